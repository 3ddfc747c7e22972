r"""Mathematics problems with answers that can be checked, read from three raw formats with different columns.

MATH (nlile/hendrycks-MATH-benchmark: 12,000 `train`, and MATH-500 as `test`; DigitalLearningGmbH/MATH-lighteval, which
lacks `answer`; HuggingFaceH4/MATH-500 and HuggingFaceH4/aime_2024):

    problem  str    "What is the sum of the roots of $x^2 - 7x + 10$?"
    answer   str    "7", or a number; if it is missing, the last \boxed{} of the column `solution` is used
    level    int64  1 to 5, or a text such as "Level 5"; not in all datasets

open-r1/DAPO-Math-17k-Processed (configurations `all`, `en`, `cn`; 14,116 rows in `en`; only a split `train`):

    prompt    str  "Find the number of ..."
    solution  str  "34", only the answer

BytedTsinghua-SIA/DAPO-Math-17k (Apache-2.0; each problem appears about a hundred times, and is kept once):

    prompt        list[{"role": str, "content": str}]  the problem between two sentences on the form of the answer
    reward_model  {"ground_truth": str, "style": str}  "34"
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from datasets import DatasetDict

from trl_grpo_plus.launch.datasets_by_name import load

from .dataset_helpers import Raw, Row, convert, keep_gold, make_splits, messages, need


SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."

# DAPO's sentences around a problem ask for another form than `\boxed{}`, so they are removed.
_BEFORE = re.compile(r"\ASolve the following math problem step by step\.[^\n]*\n\n")
_AFTER = re.compile(r"\n\nRemember to put your answer on its own line[^\n]*\Z")


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    system_prompt: str | None = SYSTEM_PROMPT,
    test_rows: int | None = 256,
    levels: Sequence[int] | None = None,
    benchmark: str | None = None,
    max_chars: int = 2000,
) -> DatasetDict:
    """Return the run's rows. The script's `prepare` option calls this function.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns.
        system_prompt (`str`, *optional*): system message of each prompt; `null` keeps the model's default.
        test_rows (`int`, *optional*, defaults to 256): maximum number of rows of `test` to evaluate on; `null`: all.
            If the data has no split `test`, this many rows of `train` are held out, at most a quarter.
        levels (`list[int]`, *optional*): MATH's levels of difficulty to train on; all by default.
        benchmark (`str`, *optional*): another dataset to evaluate on, in MATH's format, such as
            `HuggingFaceH4/aime_2024`.
        max_chars (`int`, *optional*, defaults to 2000): maximum length of a problem to train on. Longer ones, such as
            those with a long figure in Asymptote, may leave no room for an answer.

    Returns:
        `DatasetDict`: `train`, `test` and, if requested, `benchmark`, with the columns `prompt` (messages) and
        `answer` (a text that the reward `math_answer` can read; other rows are left out).

    Raises:
        ValueError: a column is missing, or no row can be used.
        RunError: `math_answer` gave no verdict on a gold answer, because the machine is too busy.
    """
    make = partial(make_row, system_prompt=system_prompt)
    splits = make_splits(script_args, make, [], test_rows)
    if benchmark is not None:
        sets = load(benchmark)
        split = "test" if "test" in sets else next(iter(sets))
        splits["benchmark"] = convert(sets[split], make, f"{benchmark} ({split})")
    lengths = [len(prompt[-1]["content"]) for prompt in splits["train"]["prompt"]]
    splits["train"] = splits["train"].select([at for at, length in enumerate(lengths) if length <= max_chars])
    if levels is not None:
        need(splits["train"], "level", name=str(script_args.dataset_name))
        labels = splits["train"]["level"]
        splits["train"] = splits["train"].select([at for at, level in enumerate(labels) if level in levels])
    read = {split: rows.select_columns(["prompt", "answer"]) for split, rows in splits.items()}
    return DatasetDict({split: keep_gold(rows, "math_answer", split) for split, rows in read.items()})


def make_row(raw: Raw, system_prompt: str | None) -> Row:
    """Convert a raw row into a run's row, with the `level` if there is one.

    Raises:
        ValueError: the row has no problem or no answer, or has none of the three formats.
    """
    problem, answer = _problem(raw), _answer(raw)
    if not problem or not answer:
        raise ValueError("without an answer" if problem else "without a problem")
    return {"prompt": messages(system_prompt, problem), "answer": answer, **_level(raw)}


def _problem(raw: Raw) -> str:
    if "problem" not in raw and "prompt" not in raw:
        raise ValueError(f"without a column problem or prompt, only with {', '.join(raw)}")
    text = raw.get("problem") or raw.get("prompt") or ""
    if isinstance(text, list):
        text = _AFTER.sub("", _BEFORE.sub("", text[-1]["content"] or ""))
    return text.strip()


def _answer(raw: Raw) -> str:
    r"""Return the gold answer. It may be a text with a `\boxed{}`, because the reward reads the answer there."""
    answers = (raw.get("answer"), raw.get("solution"), (raw.get("reward_model") or {}).get("ground_truth"))
    return next((text for answer in answers if (text := _as_text(answer))), "")


def _as_text(answer: Any) -> str:
    """Return an answer as text. A column of numbers with gaps is read as floats: 34.0 is the answer 34."""
    if answer is None or answer != answer:  # NaN stands for a gap, too
        return ""
    return str(int(answer) if isinstance(answer, float) and answer.is_integer() else answer).strip()


def _level(raw: Raw) -> Row:
    digit = re.search(r"[1-5]", str(raw.get("level")))
    return {"level": int(digit[0])} if digit else {}
