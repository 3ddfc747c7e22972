r"""GSM8K (https://huggingface.co/datasets/openai/gsm8k, MIT): grade-school word problems with a number as the answer.

Its raw columns, in both configurations (`main`, `socratic`) and both splits (7,473 `train`, 1,319 `test`):

    question  str  "A baker fills 12 trays with 24 rolls each. How many rolls are that?"
    answer    str  "He bakes 12 * 24 = <<12*24=288>>288 rolls.\n#### 288"
"""

import re
from functools import partial
from typing import Any

from datasets import DatasetDict

from .dataset_helpers import Raw, Row, make_splits, messages


SYSTEM_PROMPT = "Please reason step by step, and put your final answer, a number, within \\boxed{}."

_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+|(?=\.))(?:\.[0-9]+)?")


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    system_prompt: str | None = SYSTEM_PROMPT,
    test_rows: int | None = 256,
) -> DatasetDict:
    """Return the run's rows. The script's `prepare` option calls this function.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns.
        system_prompt (`str`, *optional*): system message of each prompt; `null` keeps the model's default.
        test_rows (`int`, *optional*, defaults to 256): maximum number of rows of `test` to evaluate on; `null`: all
            1,319.

    Returns:
        `DatasetDict`: `train` and `test`, with the columns `prompt` (messages) and `answer` ("288").

    Raises:
        ValueError: a column is missing, or no row ends in a number.
    """
    make = partial(make_row, system_prompt=system_prompt)
    return make_splits(script_args, make, ["question", "answer"], test_rows)


def make_row(raw: Raw, system_prompt: str | None) -> Row:
    """Convert a raw row into a run's row.

    Raises:
        ValueError: the row has no question, or its answer does not end in a number.
    """
    question = (raw["question"] or "").strip()
    if not question:
        raise ValueError("without a question")
    return {"prompt": messages(system_prompt, question), "answer": final_number(raw["answer"])}


def final_number(solution: Any) -> str:
    """Return the number after the last `####`, without the commas between thousands.

    Raises:
        ValueError: there is no such number.
    """
    _, marks, rest = str(solution or "").rpartition("####")
    number = rest.strip().removeprefix("$").removesuffix(".")
    if not marks or not _NUMBER.fullmatch(number):
        raise ValueError("without a number after '####'")
    return number.replace(",", "")
