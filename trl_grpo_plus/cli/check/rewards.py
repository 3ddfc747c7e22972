"""Checks of rewards before a run depends on them.

Each reward ships examples: completions and the scores that they should get. On a dataset, each row's gold answer must
score full marks, and gold answers of other rows must not.
"""

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

from ...registry import Example, Reward, check_columns, find
from ...scoring import Definition, Outcome, columns_of, same_score
from ...utils import optional_packages
from ...utils.signatures import call
from ...utils.tables import FAILED, OK, UNSEEN, WARNED, CheckRow, in_a_line
from ...utils.text import first_words
from ...utils.validation import ConfigError


Pair = tuple[dict[str, Any], str]  # a row's columns and a gold completion

LIMIT_S = 60  # seconds that a trial or an attack of a reward without a timeout may take
SHUFFLED_AT_MOST = 0.05  # share of other rows' answers that may score: two rows may have equal answers
MOST_WRONG_GOLD = 0.05  # share of rows whose gold answer may fail; a higher share means that the reward is wrong
SHOWN_PROBLEMS = 5  # problems of a check that its row shows
_SHOWS = {"examples": "its examples", "gold": "gold answers score full marks", "shuffled": "another row's do not"}


@dataclass(frozen=True)
class RewardCheck:
    """The result of one check of one reward."""

    name: str
    what: str  # "examples", "gold", "shuffled" or "call"
    right: int = 0  # number of samples that scored as they should
    total: int = 0
    ms: float = math.nan  # milliseconds for each sample
    problems: tuple[str, ...] = ()  # the check failed if there are any
    unseen: str = ""  # why the check could not be made here; this is not a failure
    warning: str = ""  # a remark on what a run would go on in spite of
    note: str = ""  # another remark, such as the form of the gold answers as posed, if it is not the data's form

    @classmethod
    def broken(cls, name: str, what: str, error: Exception) -> "RewardCheck":
        """Return the result for a reward that cannot be loaded or scored, with the user's line at fault."""
        return cls(name, what, problems=(str(error) if isinstance(error, ConfigError) else in_a_line(error),))

    @property
    def status(self) -> str:
        """The result in a word."""
        return FAILED if self.problems else UNSEEN if self.unseen else WARNED if self.warning else OK

    @property
    def row(self) -> CheckRow:
        """The result as a row of a table."""
        ms = "" if math.isnan(self.ms) else f", {self.ms:.2f} ms a sample"
        said = [f"{self.what}: {self.unseen}" if self.unseen else f"{self.what} {self.right}/{self.total}{ms}"]
        more = len(self.problems) - SHOWN_PROBLEMS
        said += [*self.problems[:SHOWN_PROBLEMS], f"... and {more} more." if more > 0 else "", self.warning, self.note]
        return CheckRow(self.name, self.status, "\n".join(filter(None, said)))


@contextmanager
def limited(error: type[BaseException]) -> Iterator[None]:
    """Raise `error` in the code inside after [`LIMIT_S`] seconds. Outside the main thread there is no limit."""

    def stop(number: int, frame: Any) -> None:
        raise error(f"it did not return within {LIMIT_S} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def check_examples(name: str) -> RewardCheck:
    """Score the examples that a reward ships."""
    try:
        return _examples_of(name)
    except Exception as error:  # a broken reward must not stop the checks of the others
        return RewardCheck.broken(name, "examples", error)


def _examples_of(name: str) -> RewardCheck:
    definition = find(name)
    if unseen := not_installed(definition):
        return RewardCheck(name, "examples", unseen=unseen)
    rewards = [Reward(definition, example.args).prepare() for example in definition.examples]
    if not rewards:
        return RewardCheck(name, "examples", problems=("it ships no examples: register it with examples=",))
    problems = []
    pairs = list(zip(rewards, definition.examples, strict=True))
    _score(*pairs[0])  # loads everything once, so that the load does not count as a sample's time
    start = time.perf_counter()
    for reward, example in pairs:
        outcome = _score(reward, example)
        if not same_score(outcome.score, example.reward):
            wrong = f"{example.completion!r:.60} should score {example.reward}, not {outcome.score}. {outcome.reason}"
            problems.append(wrong.strip())
    count = len(pairs)
    ms = (time.perf_counter() - start) * 1000 / count
    return RewardCheck(name, "examples", count - len(problems), count, ms, tuple(problems))


def not_installed(definition: Definition) -> str:
    """Name the first package that a reward needs and that is not installed; "" if there is none."""
    roots = [module.partition(".")[0] for module in definition.preload]
    for root, how in optional_packages.missing({root: root for root in roots}).items():
        return f"not installed: {root}. {how}"
    return ""


def check_gold(reward: Reward, dataset: Any, limit: int = 200) -> list[RewardCheck]:
    """Score a dataset's gold answers in their own rows and in each other's.

    Args:
        reward ([`Reward`]): a reward whose definition has `gold`.
        dataset: a map-style dataset with the reward's columns.
        limit (`int`, *optional*, defaults to `200`): maximum number of rows to score.

    Raises:
        ConfigError: `limit` is below 2.
    """
    rows = spread(dataset, limit)
    try:
        pairs = _with_gold(reward, dataset, rows)
    except ValueError as error:
        return [RewardCheck(reward.__name__, "gold", problems=(str(error),))]
    gold = replace(_gold(reward, pairs), note=_form(reward, pairs))
    if not pairs[0][0]:  # the reward reads no column, so all rows have the same gold completion
        return [gold]
    others = [(pairs[i][0], pairs[i - 1][1]) for i in range(len(pairs)) if pairs[i][1] != pairs[i - 1][1]]
    return [gold, _shuffled(reward, others)]


def row_values(reward: Reward, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a reward reads from a dataset's row, by the names of the function's columns.

    Raises:
        ConfigError: the row lacks a column that the reward needs.
    """
    columns = columns_of(reward.definition, row, reward.renamed, reward.__name__)
    return {name: row[column] for name, column in columns.items()}


def _with_gold(reward: Reward, dataset: Any, rows: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """Return those of a dataset's rows that have a gold answer, each with its gold completion; refuse if none has."""
    check_columns(reward, dataset, "the dataset")
    read = [row_values(reward, row) for row in rows]
    pairs = [(row, text) for row in read if (text := gold_text(reward, row)) is not None]
    if not pairs:
        raise ConfigError("no row has a gold answer")
    return pairs


def gold_text(reward: Reward, row: Mapping[str, Any]) -> str | None:
    """Return the gold completion that a reward makes for a row, as text; `None` if the row has none.

    Args:
        reward ([`Reward`]): a reward whose definition has `gold`.
        row (`Mapping[str, Any]`): values by the names of the function's columns.

    Raises:
        ConfigError: the reward's `gold` fails, or returns something other than a text, a number or `None`.
    """
    assert reward.definition.gold is not None
    name = reward.__name__
    try:
        gold = call(reward.definition.gold, {**row, **reward.all_args()})
    except Exception as error:  # from a user's function
        said = in_a_line(error)
        raise ConfigError(f"reward {name!r}: gold failed on a row with {_shown(row)}: {said}. Correct it.") from error
    if isinstance(gold, Number) and not isinstance(gold, bool):
        return str(gold)
    if gold is None or isinstance(gold, str):
        return gold
    raise ConfigError(
        f"reward {name!r}: gold returned {gold!r:.80}, of the type {type(gold).__name__}, for a row with "
        f"{_shown(row)}. It must return the text of a right completion, or a number, or None for a row that has none."
    )


def spread(dataset: Any, limit: int) -> Iterator[dict[str, Any]]:
    """Return at most `limit` rows from all over a dataset: some datasets are sorted by answer.

    Raises:
        ConfigError: `limit` is below 2.
    """
    if limit < 2:
        raise ConfigError(f"--limit: {limit} rows are not enough, use 2 or more.")
    return (dataset[i] for i in range(0, len(dataset), max(1, -(-len(dataset) // limit))))


def _score(reward: Reward, example: Example) -> Outcome:
    return outcomes(reward, [(example.columns, example.completion)])[0]


def as_row(name: str, findings: Sequence[RewardCheck]) -> CheckRow:
    """Return what was found about one reward as one row of a recipe's checks."""
    first = findings[0]
    if first.what == "call" or first.unseen:
        return CheckRow(name, first.status, "\n".join(first.problems) or first.unseen or first.warning or first.note)
    gold = [finding for finding in findings if finding.what == "gold"]
    bearable = [one for one in gold if 0 < one.total - one.right <= MOST_WRONG_GOLD * one.total]
    failed = [finding for finding in findings if finding.problems and finding not in bearable]
    if problems := [f"{finding.what}: {problem}" for finding in failed for problem in finding.problems[:3]]:
        return CheckRow(name, FAILED, "\n".join(problems))
    parts = [f"{finding.right}/{finding.total} {_SHOWS[finding.what]}" for finding in findings]
    parts += [
        f"in the other rows no attempt can earn full marks, such as: {finding.problems[0]}" for finding in bearable
    ]
    notes = [finding.note for finding in findings if finding.note]
    return CheckRow(name, OK, "\n".join(["; ".join([*parts, f"{ms_of(findings):.2g} ms a sample"]), *notes]))


def ms_of(findings: Iterable[RewardCheck]) -> float:
    """Return the milliseconds that a sample took in the last check that measured them; 0.0 if none did."""
    return [0.0, *(finding.ms for finding in findings if not math.isnan(finding.ms))][-1]


def _gold(reward: Reward, pairs: Sequence[Pair]) -> RewardCheck:
    scores, ms = _timed(reward, pairs)
    full = reward.definition.full_marks
    problems = tuple(
        f"the gold answer {text!r:.80} scores {score}, not {full}{_is_number(row, text)}"
        for (row, text), score in zip(pairs, scores, strict=True)
        if not same_score(score, full)
    )
    return RewardCheck(reward.__name__, "gold", len(pairs) - len(problems), len(pairs), ms, problems)


def _is_number(row: Mapping[str, Any], text: str) -> str:
    """Return a hint if a gold answer is a number in the data, because no text equals a number; else ""."""
    names = [name for name, value in row.items() if isinstance(value, Number) and str(value) == text]
    return f": {names[0]} holds numbers, but a completion is a text, and the two are never equal" if names else ""


def _form(reward: Reward, pairs: Sequence[Pair]) -> str:
    """Describe the form in which the gold answers were posed, and the scores of the bare answers.

    Returns "" if the posed and the bare answers are the same, see [`bare_answer`].
    """
    bare = [(row, answer) for row, _ in pairs if (answer := bare_answer(reward, row)) is not None]
    if bare == list(pairs):
        return ""
    posed = f"The gold answers were posed as {first_words(pairs[0][1])}"
    if not bare:
        return f"{posed}."
    scores, full = _timed(reward, bare)[0], reward.definition.full_marks
    less = [text for (_, text), score in zip(bare, scores, strict=True) if not same_score(score, full)]
    if not less:
        return f"{posed}. Without this form, as '{first_words(bare[0][1])}', they score full marks too."
    right = f"{len(bare) - len(less)} of {len(bare)} score full marks"
    return f"{posed}. Without this form, as '{first_words(less[0])}', {right}: the prompt must ask for the form."


def bare_answer(reward: Reward, row: Mapping[str, Any]) -> str | None:
    """Return the value of the only column that a reward needs, as text.

    Returns `None` if the reward needs several columns, or the value is neither a text nor a number.
    """
    needed = reward.definition.needed
    answer = row.get(needed[0]) if len(needed) == 1 else None
    return str(answer) if isinstance(answer, str | int | float) and not isinstance(answer, bool) else None


def as_completions(texts: Iterable[str], prompts: Sequence[Any]) -> list[Any]:
    """Return texts as completions of the prompts' kind: as messages if the prompts are messages."""
    chat = not isinstance(prompts[0], str)
    return [[{"role": "assistant", "content": text}] if chat else text for text in texts]


def outcomes(reward: Reward, pairs: Sequence[tuple[Mapping[str, Any], Any]]) -> list[Outcome]:
    """Score completions in their rows, whose columns have the names of the function's arguments."""
    columns = {reward.renamed.get(name, name): [row[name] for row, _ in pairs] for name in pairs[0][0]}
    return reward.score(completions=[completion for _, completion in pairs], **columns)


def _shuffled(reward: Reward, pairs: Sequence[Pair]) -> RewardCheck:
    if not pairs:
        return RewardCheck(reward.__name__, "shuffled", problems=("all rows have the same gold answer",))
    scores, ms = _timed(reward, pairs)
    passed = [
        f"{text!r:.80} scores full marks in a row with {_shown(row)}"
        for (row, text), score in zip(pairs, scores, strict=True)
        if same_score(score, reward.definition.full_marks)
    ]
    problems = tuple(passed) if len(passed) > SHUFFLED_AT_MOST * len(pairs) else ()
    return RewardCheck(reward.__name__, "shuffled", len(pairs) - len(passed), len(pairs), ms, problems)


def _timed(reward: Reward, pairs: Sequence[Pair]) -> tuple[list[float | None], float]:
    start = time.perf_counter()
    scores = [outcome.score for outcome in outcomes(reward, pairs)]
    return scores, (time.perf_counter() - start) * 1000 / len(pairs)


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.40}" for name, value in row.items())
