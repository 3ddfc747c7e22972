"""Helpers of the prepare functions: convert raw rows, hold out a split, make messages."""

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset, DatasetDict

from trl_grpo_plus.launch.datasets_by_name import load
from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.scoring import Outcome, columns_of
from trl_grpo_plus.utils.terminal import say
from trl_grpo_plus.utils.validation import ConfigError, Number, RunError


Raw = Mapping[str, Any]
Row = dict[str, Any]
MakeRow = Callable[[Raw], Row]

NOT_OF_THE_ROW = ("starved", "timeout")  # outcomes that may be others on another process; an error is of the row
HELD_OUT_SEED = 0  # not the run's seed: runs with different seeds are compared on the same rows


def make_splits(script_args: Any, row: MakeRow, wanted: Sequence[str], test_rows: int | None) -> DatasetDict:
    """Load `dataset_name` (with `dataset_config`), a Hub id or a local copy, and convert its splits.

    Args:
        script_args: the script arguments that the script's parser returns.
        row: function from a raw row to a run's row, see [`convert`].
        wanted (`Sequence[str]`): raw columns that `row` reads.
        test_rows (`int`, *optional*): maximum number of rows of `test`; `None`: all. If the data has no split `test`,
            this many rows of `train` are held out, at most a quarter.

    Returns:
        `DatasetDict`: `train` and `test`. No prompt is in both.

    Raises:
        ConfigError: there is no `dataset_name` or no split `train`, a column is missing, or no row can be used.
    """
    if not script_args.dataset_name:
        raise ConfigError("dataset_name is missing. Give a Hub id, a folder or a file.")
    splits = load(script_args.dataset_name, script_args.dataset_config)
    if "train" not in splits:
        raise ConfigError(f"{script_args.dataset_name} has no split train, only {', '.join(splits)}.")
    made: dict[str, Dataset] = {}
    taken: set[str] = set()
    for split in ("test", "train"):  # test first, so that its prompts are left out of train
        if split in splits:
            name = f"{script_args.dataset_name} ({split})"
            need(splits[split], *wanted, name=name)
            made[split] = convert(splits[split], row, name, taken)
    if "test" not in made:
        return hold_out(made["train"], test_rows)
    return DatasetDict(train=made["train"], test=some(made["test"], test_rows))


def need(data: Dataset, *wanted: str, name: str) -> None:
    """Refuse data that lacks a column.

    Raises:
        ConfigError: a column is missing. The message lists the existing columns.
    """
    missing = [column for column in wanted if column not in data.column_names]
    if missing:
        raise ConfigError(f"{name} has no column {', '.join(missing)}, only {', '.join(data.column_names)}.")


def convert(data: Iterable[Raw], row: MakeRow, name: str, taken: set[str] | None = None) -> Dataset:
    """Convert raw rows into a run's rows, and print on stderr how many rows are left out and why.

    Args:
        data (`Iterable[Mapping]`): the raw rows.
        row: function from a raw row to a run's row with a `prompt`. It raises `ValueError` with the reason if a raw
            row cannot be used.
        name (`str`): name of the data, for the messages.
        taken (`set[str]`, *optional*): prompts that must not come again. The new prompts are added to the set.

    Returns:
        `Dataset`: the rows, with each prompt once.

    Raises:
        ConfigError: no row can be used.
    """
    taken = set() if taken is None else taken
    made: list[Row] = []
    left_out: Counter[str] = Counter()
    for raw in data:
        try:
            one = row(raw)
        except ValueError as error:
            left_out[str(error)] += 1
            continue
        if (prompt := str(one["prompt"])) in taken:
            left_out["with a prompt that came before"] += 1
            continue
        taken.add(prompt)
        made.append(one)
    _require_rows(name, left_out, len(made))
    return Dataset.from_list(made)


def keep_gold(data: Dataset, reward: str, name: str) -> Dataset:
    """Remove the rows whose own gold answer does not get full marks from the reward.

    Raises:
        ConfigError: no row is left.
        RunError: a gold answer got no verdict on this machine. Other processes of the run may keep its row.
    """
    judge = get_reward(reward)
    tell, full_marks = judge.definition.gold, judge.definition.full_marks
    assert tell is not None, f"{reward} cannot tell what a gold completion is"
    columns = columns_of(judge.definition, data.column_names, judge.renamed, reward)
    cells = {argument: list(data[column]) for argument, column in columns.items()}
    rows = (dict(zip(cells, values, strict=True)) for values in zip(*cells.values(), strict=True))
    golds = [tell(**row, **judge.all_args()) or "" for row in rows]
    outcomes = judge.score(completions=golds, **cells)
    _require_verdicts(f"{name}: {reward}", golds, outcomes)
    kept = [place for place, outcome in enumerate(outcomes) if outcome.score == full_marks]
    _require_rows(name, Counter({f"with an answer that {reward} cannot read": len(data) - len(kept)}), len(kept))
    return data.select(kept)


def _require_verdicts(what: str, golds: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    undecided = [place for place, outcome in enumerate(outcomes) if outcome.status in NOT_OF_THE_ROW]
    if undecided:
        first = undecided[0]
        raise RunError(
            f"{what} gave no verdict on {len(undecided)} of {len(golds)} gold answers, such as {golds[first]!r:.100}: "
            f"{outcomes[first].message} Start the run again, when this machine is less busy. If the same answers are "
            "named again, leave their rows out of the data."
        )


def hold_out(data: Dataset, rows: int | None) -> DatasetDict:
    """Split data into `train` and `test`. `test` has `rows` rows, but at least one and at most a quarter of all."""
    quarter = len(data) // 4
    count = max(1, quarter if rows is None else min(rows, quarter))
    mixed = data.shuffle(seed=HELD_OUT_SEED)
    return DatasetDict(train=mixed.select(range(count, len(mixed))), test=mixed.select(range(count)))


def check_mix(mix: Mapping[str, int], most: Mapping[str, int], besides: str) -> None:
    """Refuse a `train_mix` that asks for more problems than there are.

    Args:
        mix (`Mapping[str, int]`): kind -> requested number of problems.
        most (`Mapping[str, int]`): kind -> number of problems to choose from, for each kind of `mix`.
        besides (`str`): the other problems of each kind, for the message.

    Raises:
        ConfigError: a number is negative, not an integer or too large.
    """
    for kind, rows in mix.items():
        Number(at_least=0, integer=True).check(f"train_mix: {kind}", rows)
        if rows > most[kind]:
            raise ConfigError(f"train_mix asks for {rows} {kind}, but only {most[kind]} are left besides {besides}.")


def numbered_mix(mix: Mapping[Any, int], what: str, most: float = math.inf) -> dict[int, int]:
    """Return a `train_mix` whose kinds are numbers, such as the number of steps, with integers as keys.

    Args:
        mix (`Mapping[int | str, int]`): kind -> requested number of problems. Keys in JSON are texts.
        what (`str`): what the kinds count, for the message.
        most (`float`, *optional*, defaults to infinity): the largest kind. The smallest is 1.

    Raises:
        ConfigError: a kind is not from 1 to `most`, a number is negative or not an integer, or all numbers are 0.
    """
    for kind, rows in mix.items():
        Number(at_least=0, integer=True).check(f"train_mix: {kind}", rows)
    made = {int(kind): rows for kind, rows in mix.items() if str(kind).isdecimal() and 1 <= int(kind) <= most}
    if not any(made.values()) or len(made) < len(mix):
        bounds = f"from 1 to {most}" if math.isfinite(most) else "from 1 on"
        raise ConfigError(
            f"train_mix={dict(mix)} must have different numbers of {what} {bounds} as keys, and as values numbers of "
            "problems, of which one is above 0."
        )
    return made


def some(data: Dataset, rows: int | None) -> Dataset:
    """Return at most `rows` rows, the same rows each time; all for `None`."""
    return data if rows is None or rows >= len(data) else data.shuffle(seed=HELD_OUT_SEED).select(range(rows))


def messages(system: str | None, user: str) -> list[dict[str, str]]:
    """Return the messages of a prompt, to which the model's chat template is applied."""
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": user}]


def _require_rows(name: str, left_out: Counter[str], kept: int) -> None:
    """Refuse data of which no row is kept, or else print on stderr how many rows are left out, and why.

    Raises:
        ConfigError: no row is left.
    """
    count = sum(left_out.values())
    reasons = "; ".join(f"{many} {reason}" for reason, many in left_out.most_common(3))
    message = f"{name}: {count} of {count + kept} rows are left out: {reasons}{'; ...' if len(left_out) > 3 else ''}."
    if not kept:
        raise ConfigError(f"{message} No row is left." if count else f"{name} has no rows.")
    if count and os.environ.get("RANK", "0") == "0":
        say(message, file=sys.stderr)
