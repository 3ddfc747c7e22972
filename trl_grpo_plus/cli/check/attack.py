r"""Search for the holes of a reward with adversarial completions, before a policy finds them.

[`attack`] builds completions out of a row's gold answer, the answers of other rows and the prompt (see `attacks`).
These completions do not answer, answer wrongly, or hedge. A reward that gives one of them more than half of full marks
has a hole. Honest completions write the same gold answer in other ways. A reward that gives one of them less than full
marks is too strict.
"""

import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

from ...registry import Reward, check_columns
from ...scoring import TRL_GIVES, Outcome, all_failed
from ...utils.tables import FAILED, OK, UNSEEN, CheckRow
from ...utils.text import as_text, content_of
from ...utils.validation import ConfigError
from .attacks import ATTACKS, Target, as_number, as_parts, in_the_form_of
from .rewards import as_completions, bare_answer, gold_text, limited, row_values, spread


GOLD_COLUMNS = ("answer", "solution", "ground_truth", "gold", "target", "label")
# Forms in which tutorials ask for the answer. `{}` stands for the answer.
FORMS = (
    r"\boxed{{}}",
    "<answer>{}</answer>",
    "<answer>\n{}\n</answer>",
    "<think>\nI work it out.\n</think>\n<answer>\n{}\n</answer>",
    "<think>I work it out.</think><answer>{}</answer>",
    "<reasoning>\nI work it out.\n</reasoning>\n<answer>\n{}\n</answer>\n",
    "<start_working_out>I work it out.<end_working_out><SOLUTION>{}</SOLUTION>",
    "#### {}",
    "The answer is {}",
    "Answer: {}",
    "The final answer is: ${}$",
    "{}",
)
ATTACKED_ROWS = 20  # maximum rows of a dataset
MOST_WRONG = 3  # maximum wrong answers that a row is attacked with
_EXAMPLE = "completion of the example"  # a key that is no column's name
_TAG = re.compile(r"<answer>(.*)</answer>", re.DOTALL)
_BOX = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)
_TOLERANCE = 1e-6
_MOST_SHOWN = 100  # maximum characters of a completion in the table


class _TooSlow(BaseException):
    """A reward has not returned in time. Rewards turn an `Exception` into an outcome."""


def attack(reward: Reward, dataset: Any = None, gold: str | None = None, limit: int = ATTACKED_ROWS) -> list[CheckRow]:
    r"""Attack a reward, and return a row for each attack.

    Args:
        reward ([`Reward`]): the reward under attack.
        dataset (*optional*): a map-style dataset with the reward's columns. `None`: the examples of the reward that
            earn full marks.
        gold (`str`, *optional*):
            A completion that earns full marks, with the gold answer's column in braces, such as `\boxed{{answer}}`.
            `None`: the reward's own `gold`, or the first of `FORMS` that earns full marks.
        limit (`int`, *optional*, defaults to `20`): maximum number of rows to attack.

    Raises:
        ConfigError: the dataset lacks a column, or no completion with the gold answer earns full marks.
    """
    rows, unseen = _rows_of(reward, dataset, limit), partial(CheckRow, "attack", UNSEEN)
    if not rows:
        return [unseen("there is no gold answer to build completions from: give --dataset")]
    if not _reads_gold(reward, rows):
        return [unseen("the reward reads no column of the dataset, so there is no answer to attack")]
    forms, full = _posed(reward, rows, gold)
    if not reward.definition.columns and not _heeds_gold(reward, forms):
        return [
            unseen(
                "the scores stay the same when the gold answer changes. Either the reward ignores the answer, and "
                "cannot be attacked, or it reads a form that was not tried: give the form with --gold"
            )
        ]
    targets = _targets(reward, forms, full, gold)
    if not targets:
        tried = f"none of the {len(rows)} rows tried has one. Give a dataset with gold answers"
        if dataset is None:
            tried = "none can be made of the reward's own examples. Give a dataset with gold answers: --dataset"
        return [unseen(f"no gold answers: {tried}")]
    targets = _with_wrong(reward, targets, full)
    return [
        CheckRow("form", OK, f"gold answers were posed as {_short(targets[0].gold)}, which scores {full:g}"),
        *(_run(reward, name, targets, full) for name in ATTACKS),
    ]


def _rows_of(reward: Reward, dataset: Any, limit: int) -> list[dict[str, Any]]:
    definition = reward.definition
    if dataset is None:
        examples = [e for e in definition.examples if e.reward == definition.full_marks and not e.args]
        return [{**example.columns, _EXAMPLE: content_of(example.completion)} for example in examples[:limit]]
    check_columns(reward, dataset, "the dataset")
    renamed, rows = reward.renamed.values(), spread(dataset, limit)
    return [{name: row[name] for name in row if name not in renamed} | row_values(reward, row) for row in rows]


def _reads_gold(reward: Reward, rows: Sequence[dict[str, Any]]) -> bool:
    definition = reward.definition
    return bool(definition.columns) or (definition.takes_all and any(name in rows[0] for name in GOLD_COLUMNS))


def _heeds_gold(reward: Reward, forms: Sequence[list[Target]]) -> bool:
    """Return whether a score changes when the columns that may hold the gold answer change."""

    def changed(target: Target) -> Target:
        golds = {name: target.columns.get(name) for name in GOLD_COLUMNS}
        other = {name: type(value)(1000003) for name, value in golds.items() if isinstance(value, str | int | float)}
        return target._replace(columns={**target.columns, **other})

    return any(_scores(reward, one) != _scores(reward, [*map(changed, one)]) for one in forms if one)


def _targets(reward: Reward, forms: Sequence[list[Target]], full: float, gold: str | None) -> list[Target]:
    """Return the rows whose gold answer earns full marks in one form; none without gold answers."""
    if not any(forms):
        return []
    for targets in forms:
        scores = _scores(reward, targets)
        earned = [target for target, score in zip(targets, scores, strict=True) if score >= full - _TOLERANCE]
        if full > 0 and 2 * len(earned) > len(targets):
            return earned
    tried = "the gold answer" if gold is None else f"--gold {gold!r}"
    raise ConfigError(
        f"reward {reward.__name__!r}: {tried} does not earn full marks, so no attack can start from it. Give the "
        r"form that the reward reads: --gold '\boxed{{answer}}', where answer is a column. A reward that does not "
        "read the answer, such as a reward for length, cannot be attacked."
    )


def _posed(reward: Reward, rows: Sequence[dict[str, Any]], gold: str | None) -> tuple[list[list[Target]], float]:
    """Return the rows with their gold answers, once for each form to try, and full marks."""
    definition = reward.definition
    if gold is None and definition.gold is not None:
        read = [{name: row[name] for name in definition.columns if name in row} for row in rows]
        own = [gold_text(reward, columns) for columns in read]
        forms = [[_located(reward, row, text) for row, text in zip(rows, own, strict=True) if text is not None]]
        full = definition.full_marks
    elif gold is None and _EXAMPLE in rows[0]:
        forms, full = [[_located(reward, row, row[_EXAMPLE]) for row in rows]], definition.full_marks
    else:
        column = _gold_column(reward, rows)
        given = [row for row in rows if row[column] is not None]
        forms = [
            [Target(row, str(row[column]), before, after, prompt=_prompt_text(row)) for row in given]
            for before, _, after in _forms(gold, column)
        ]
        full = max(median(_scores(reward, targets)) for targets in forms)
    return forms, full


def _gold_column(reward: Reward, rows: Sequence[dict[str, Any]]) -> str:
    needed = reward.definition.needed
    names = [*(needed if len(needed) == 1 else ()), *GOLD_COLUMNS]
    for name in names:
        if any(isinstance(row.get(name), str | int | float) for row in rows):
            return name
    raise ConfigError(
        f"reward {reward.__name__!r}: none of the columns {', '.join(rows[0])} is known to hold the gold answer as a "
        "text or a number. Rename the column to answer, or register the reward with gold=."
    )


def _forms(gold: str | None, column: str) -> list[tuple[str, str, str]]:
    """Return the forms to try, each split at the answer."""
    if gold is None:
        return [form.partition("{}") for form in FORMS]
    named = f"{{{column}}}"
    if named not in gold:
        raise ConfigError(f"--gold {gold!r} has no {named}. Write {named} in the place of a row's gold answer.")
    return [gold.partition(named)]


def _located(reward: Reward, row: dict[str, Any], gold: str) -> Target:
    """Find the answer in a gold completion. If it is not there, the whole completion is the answer."""
    inner = [bare_answer(reward, row) or ""]
    inner += [match[1] for match in (_BOX.search(gold), _TAG.search(gold)) if match]
    for text in inner:
        at = gold.rfind(text)
        if text.strip() and at >= 0:
            return Target(row, text, gold[:at], gold[at + len(text) :], prompt=_prompt_text(row))
    return Target(row, gold, prompt=_prompt_text(row))


def _prompt_text(row: dict[str, Any]) -> str:
    prompt = row.get("prompt")
    return prompt if isinstance(prompt, str) else as_text(prompt[-1:]) if prompt else ""


def _with_wrong(reward: Reward, targets: Sequence[Target], full: float) -> list[Target]:
    """Give each target wrong answers: answers of other rows and changed answers, if they earn half marks or less."""
    answers = list(dict.fromkeys(target.answer for target in targets))
    candidates = []
    for i, target in enumerate(targets):
        others = [answer for answer in answers[i + 1 :] + answers[:i] if answer != target.answer][:MOST_WRONG]
        if (number := as_number(target.answer)) is not None:
            steps = [str(number + step) for step in (1, 10, 7)] if number.denominator == 1 else ["1000003"]
            others += [in_the_form_of(target.answer, text) for text in steps]
        elif parts := as_parts(target.answer):
            others += [f"{target.answer[0]}{', '.join([*parts[:-1], '1000003'])}{target.answer[-1]}"]
        elif re.fullmatch(r"[A-J]", target.answer):
            others += [letter for letter in "ABCD" if letter != target.answer]
        candidates.append(list(dict.fromkeys(others)) or ["1000003"])
    posed = [target._replace(answer=text) for target, texts in zip(targets, candidates, strict=True) for text in texts]
    scores = iter(_scores(reward, posed))
    wrong = [[text for text in texts if next(scores) <= full / 2] for texts in candidates]
    return [target._replace(wrong=tuple(texts[:MOST_WRONG])) for target, texts in zip(targets, wrong, strict=True)]


def _run(reward: Reward, name: str, targets: Sequence[Target], full: float) -> CheckRow:
    """Run one attack on all rows, and return its row of the table."""
    kind = ATTACKS[name]
    posed = [(target, text) for target in targets for text in dict.fromkeys(kind.build(target))]
    if not kind.honest:
        posed = [(target, text) for target, text in posed if text.strip() != target.gold.strip()]
    if not posed:
        return CheckRow(name, UNSEEN, "nothing to try on these rows")
    start = time.perf_counter()
    try:
        # A reward with a timeout has a limit of its own, for each sample.
        with nullcontext() if reward.timeout else limited(_TooSlow):
            outcomes = _outcomes(reward, posed)
    except _TooSlow as error:
        longest = max(len(text) for _, text in posed)
        given = f"{len(posed)} completions, the longest of {longest:,} characters"
        return CheckRow(name, FAILED, f"{error}: {given}. A run would hang. Is a regular expression too slow?")
    ms = (time.perf_counter() - start) * 1000 / len(posed)
    scored = [(target, text, outcome) for (target, text), outcome in zip(posed, outcomes, strict=True)]
    failed = [(text, outcome) for _, text, outcome in scored if reward.failure([outcome], [text])]
    if failed:
        text, outcome = failed[0]
        share = f"{len(failed)} of {len(scored)}"
        return CheckRow(name, FAILED, f"the reward stops the run at {share}, such as {_short(text)}: {outcome.reason}")
    if kind.honest:
        wrong = [one for one in scored if (one[2].score or 0.0) < full - _TOLERANCE]
    else:
        wrong = [one for one in scored if (one[2].score or 0.0) > full / 2]
    if not wrong:
        return CheckRow(name, OK, f"{len(scored)} completions, {ms:.2f} ms each")
    target, text, outcome = min(wrong, key=lambda one: len(one[1]))
    share = f"{kind.meaning}: {len(wrong)} of {len(scored)}"
    gold = f", where the gold answer is {_short(target.answer)}"
    return CheckRow(name, kind.status, f"{share}. {_short(text)} scores {outcome.score:g}{gold}")


def _scores(reward: Reward, targets: Sequence[Target]) -> list[float]:
    return [outcome.score or 0.0 for outcome in _outcomes(reward, [(target, target.gold) for target in targets])]


def _outcomes(reward: Reward, posed: Sequence[tuple[Target, str]]) -> list[Outcome]:
    """Score completions, as messages where the prompts are messages."""
    names = [name for name in posed[0][0].columns if name not in ("prompt", _EXAMPLE, *TRL_GIVES)]
    columns = {reward.renamed.get(name, name): [target.columns.get(name) for target, _ in posed] for name in names}
    prompts = [target.columns.get("prompt", "") for target, _ in posed]
    completions = as_completions([text for _, text in posed], prompts)
    outcomes = reward.score(completions=completions, prompts=prompts, **columns)
    if len(posed) > 1 and all_failed(outcomes):
        # One completion's error fails the whole batch. Score each alone to find the completions at fault.
        return [_outcomes(reward, [one])[0] for one in posed]
    return outcomes


def _short(text: str) -> str:
    """Return a completion in quotes; only characters that a terminal does not show are escaped."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_MOST_SHOWN])
    return f"'{shown}'" if len(text) <= _MOST_SHOWN else f"'{shown}'... ({len(text):,} characters)"
