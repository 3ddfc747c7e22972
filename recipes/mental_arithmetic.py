"""Sums and products, such as "27 + 35 = ?", for a model that understands them but gets most of them wrong.

    train                                           5 kinds of problems, mixed
    sums_1, sums_2, sums_3                          held out: sums of numbers with one, two and three digits
    products_1x1, products_1x2                      held out: products of one digit by one, and by two

No problem is in two splits. Operands are at least 1. A one-digit operand of a product is at least 2.
"""

import random
from collections.abc import Mapping
from typing import Any

from datasets import Dataset, DatasetDict

from trl_grpo_plus.utils.validation import ConfigError

from .dataset_helpers import check_mix, messages


SYSTEM_PROMPT = "You are a calculator."
HELD_OUT = 16  # problems of each kind

# kind -> sign, first operand, second operand
KINDS = {
    "sums_1": ("+", range(1, 10), range(1, 10)),
    "sums_2": ("+", range(10, 100), range(10, 100)),
    "sums_3": ("+", range(100, 1000), range(100, 1000)),
    "products_1x1": ("*", range(2, 10), range(2, 10)),
    "products_1x2": ("*", range(2, 10), range(10, 100)),
}
# kind -> rows of `train`; for the small kinds all problems that are not held out
TRAIN_MIX = {"sums_1": 65, "sums_2": 500, "sums_3": 500, "products_1x1": 48, "products_1x2": 400}


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    train_mix: Mapping[str, int] | None = None,
    system_prompt: str | None = SYSTEM_PROMPT,
) -> DatasetDict:
    """Return the run's rows. The script's `prepare` option calls this function.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns. `training_args.seed`
            determines the problems.
        train_mix (`Mapping[str, int]`, *optional*): rows of `train` by kind, by default those of [`TRAIN_MIX`].
            Another mix holds out other problems.
        system_prompt (`str`, *optional*): system message of each prompt; `null` keeps the one that the model's chat
            template adds, which for SmolLM2 is 18 tokens longer.

    Returns:
        `DatasetDict`: `train` and the five held-out splits, with the columns `prompt` (messages), `kind`, `answer`
        ("62") and `pattern`, a regular expression for a text whose last number is the answer.

    Raises:
        ConfigError: an unknown kind, or more rows than there are problems.
    """
    mix = dict(TRAIN_MIX if train_mix is None else train_mix)
    if unknown := sorted(set(mix) - set(KINDS)):
        raise ConfigError(f"train_mix: unknown kinds {', '.join(unknown)}. Kinds: {', '.join(KINDS)}.")
    most = {kind: len(first) * len(second) - HELD_OUT for kind, (_, first, second) in KINDS.items()}
    check_mix(mix, most, f"the {HELD_OUT} held out")
    chance = random.Random(training_args.seed)
    held_out, train = {}, []
    for kind, (sign, first, second) in KINDS.items():
        places = chance.sample(range(len(first) * len(second)), HELD_OUT + mix.get(kind, 0))
        rows = [
            _row(kind, first[place // len(second)], sign, second[place % len(second)], system_prompt)
            for place in places
        ]
        held_out[kind] = Dataset.from_list(rows[:HELD_OUT])
        train += rows[HELD_OUT:]
    chance.shuffle(train)
    return DatasetDict(train=Dataset.from_list(train), **held_out)


def _row(kind: str, a: int, sign: str, b: int, system_prompt: str | None) -> dict[str, Any]:
    answer = str(a + b if sign == "+" else a * b)
    return {
        "prompt": messages(system_prompt, f"{a} {sign} {b} = ?"),
        "kind": kind,
        "answer": answer,
        "pattern": rf"(?s)(?:.*[^0-9.,−-])?{_with_commas(answer)}(?:[^0-9]*)",
    }


def _with_commas(number: str) -> str:
    """Return a pattern for a whole number, with or without a comma between thousands."""
    return rf"{number[:-3]},?{number[-3:]}" if len(number) > 3 else number
