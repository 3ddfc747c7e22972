"""The command `check rewards`: options and output. The checks import torch, so they are imported when it runs."""

import argparse
from dataclasses import replace
from typing import Any

from ...launch.datasets_by_name import load
from ...utils.signatures import name_of, synchronous
from ...utils.tables import OK, UNSEEN, CheckRow, failures, table
from ...utils.terminal import say
from ...utils.validation import ConfigError
from ..option_values import args_of, check_split


HELP = """\
Score the examples that each reward ships. With --dataset, also score the dataset's gold answers: each must get full
marks in its own row, and at most 5 % of them may get full marks in another row. With --attack, score completions
that try to get the reward without the answer (hedges, lists, repeated prompts, hidden text, ...), and honest
completions that write the gold answer in other ways.

  trl-grpo-plus check rewards
  trl-grpo-plus check rewards math_answer countdown my_rewards.py:judge
  trl-grpo-plus check rewards math_answer --dataset data.jsonl --args '{"column": "solution"}'
  trl-grpo-plus check rewards my_rewards.py:judge --dataset data.jsonl --attack
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "names", nargs="*", metavar="REWARD", help="registered name or path (default: all registered rewards)"
    )
    parser.add_argument(
        "--dataset",
        help="data with gold answers: a .jsonl, .json, .parquet or .csv file, a saved dataset, or a Hub id",
    )
    parser.add_argument("--config", help="configuration of a dataset on the Hub")
    parser.add_argument("--split", help="split of the dataset (default: train)")
    parser.add_argument("--args", default="{}", metavar="JSON", help="arguments of the reward, as JSON")
    parser.add_argument("--limit", type=int, metavar="N", help="score at most N rows (default: 200, with --attack 20)")
    parser.add_argument("--attack", action="store_true", help="try to get the reward without the right answer")
    parser.add_argument(
        "--gold",
        metavar="TEXT",
        help="with --attack: a completion that earns full marks, with the gold answer's column in braces, such as "
        "'<answer>{answer}</answer>' (default: found by trying)",
    )


def run(options: argparse.Namespace) -> int:
    """Check rewards or attack them, and return the exit status."""
    from .trial import check_args

    args = args_of(options.args)
    if args and len(options.names) != 1:
        raise ConfigError("--args needs exactly one reward: trl-grpo-plus check rewards NAME --args '{...}'.")
    if options.dataset and len(options.names) != 1:
        raise ConfigError("--dataset needs exactly one reward: trl-grpo-plus check rewards NAME --dataset DATASET.")
    if options.gold and not options.attack:
        raise ConfigError("--gold is for --attack. Give both, or leave --gold out.")
    for name in ("config", "split") if options.attack else ("config", "split", "limit"):
        if getattr(options, name) is not None and not options.dataset:
            raise ConfigError(f"--{name} is for --dataset. Give both, or leave --{name} out.")
    if args:
        check_args(options.names[0], args)
    dataset = _rows_of(options) if options.dataset else None
    limit = {} if options.limit is None else {"limit": options.limit}
    return (_attack if options.attack else _check)(options, args, dataset, limit)


def _rows_of(options: argparse.Namespace) -> Any:
    """Return the split of the dataset that the options name."""
    try:
        splits = load(options.dataset, options.config)
    except ValueError as error:  # of the library, such as an unknown configuration
        raise ConfigError(str(error)) from error
    split = options.split or "train"
    check_split(f"{options.dataset} has no split", split, splits)
    return splits[split]


def _check(options: argparse.Namespace, args: dict[str, Any], dataset: Any, limit: dict[str, int]) -> int:
    """Score examples, and gold answers of the dataset."""
    from ...registry import list_rewards
    from .trial import check_named

    names = options.names or list_rewards()
    rows = [finding.row for name in names for finding in check_named(name, args, dataset, **limit)]
    say(table(rows))
    return int(bool(failures(rows)))


def _attack(options: argparse.Namespace, args: dict[str, Any], dataset: Any, limit: dict[str, int]) -> int:
    """Score adversarial and honest completions."""
    from ...registry import Reward, list_rewards
    from .attack import attack
    from .rewards import as_row
    from .trial import definition_of, is_registered, try_out

    failed = False
    for name in options.names or list_rewards():
        try:
            definition = definition_of(name)
            reward = Reward(replace(definition, function=synchronous(definition.function)), args).prepare()
            plain = reward if args else definition.function
            rows = [] if is_registered(definition) else [as_row(name_of(plain), [try_out(plain, dataset)])]
            if all(row.status == OK for row in rows):
                rows += attack(reward, dataset, options.gold, **limit)
        except ConfigError as error:
            if len(options.names) == 1:
                raise
            rows = [CheckRow("attack", UNSEEN, str(error))]
        say(f"{name}\n\n{table(rows)}\n")
        failed = failed or bool(failures(rows))
    return int(failed)
