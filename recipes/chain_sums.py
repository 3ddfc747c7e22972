r"""Sums of many terms, for SmolLM2-135M-Instruct, which learns to work them out line by line instead of guessing.

    State the final answer to the following arithmetic problem: 4 - 1 + 7 =

    4 - 1 = 3
    3 + 7 = 10
    #### 10

The problems are reasoning-gym's `chain_sum` (https://github.com/open-thought/reasoning-gym, Apache-2.0). The original
model knows the signs, but cannot write such an answer. A warm-up of some minutes (supervised, on problems that no
split holds) teaches two forms of the answer: the worked lines, and in half of the lessons the last line alone. So the
warm model guesses in half of its attempts. Most guesses are wrong, and GRPO teaches the model to write the lines: its
answers become longer.
"""

import random
from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from trl_grpo_plus.utils.optional_packages import install, is_installed
from trl_grpo_plus.utils.validation import ConfigError, Number

from .dataset_helpers import Row, messages, numbered_mix
from .warm_start import WarmUp, padded, start_from, teach


SYSTEM_PROMPT = "You are a calculator. Work out one step a line."
HELD_OUT = 24  # problems for each number of terms
TRAIN_MIX = {3: 300, 4: 300, 5: 300, 6: 300, 8: 300}  # number of terms -> rows
WARM_BATCH, WARM_RATE = 8, 1e-4


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    train_mix: Mapping[int | str, int] | None = None,
    digits: int = 1,
    guesses: float = 0.5,
    warm_steps: int = 60,
    smoke: bool = False,
) -> DatasetDict:
    """Make the problems and warm up the model. The script's `prepare` option calls this function.

    The model `model_args.model_name_or_path` is read, taught, and written to `<output_dir>/warm_start` in bfloat16.
    With `model_args.dtype` bfloat16 the lessons are computed in bfloat16 too.
    The argument is then set to this folder. Only the main process makes the model; the other processes must call this
    function after it. A run that resumes uses the model beside its checkpoint.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns. `training_args.seed`
            determines the problems.
        train_mix (`Mapping[int, int]`, *optional*): number of terms -> rows of `train`, by default those of
            [`TRAIN_MIX`]. For each number of terms, 24 more problems are held out.
        digits (`int`, *optional*, defaults to 1): the most digits of a term.
        guesses (`float`, *optional*, defaults to 0.5): share of the lessons that have the last line alone.
        warm_steps (`int`, *optional*, defaults to 60): steps of the warm-up, of 8 problems each.
        smoke (`bool`, *optional*, defaults to `False`): skip the warm-up.

    Returns:
        `DatasetDict`: `train` and the held-out `terms_2`, `terms_3`, ..., with the columns `prompt` (messages),
        `answer` ("10"), `terms` and `solution` (the worked lines).

    Raises:
        ImportError: reasoning-gym is not installed.
        ConfigError: `train_mix` has a key that is no whole number >= 1, a value that is no whole number >= 0, or only
            zeros; `digits` is no whole number >= 1, or `guesses` not from 0 to 1; or more problems are requested than
            exist, for example with one or two terms.
    """
    mix = numbered_mix(TRAIN_MIX if train_mix is None else train_mix, "terms")
    Number(at_least=1, integer=True).check("digits", digits)
    Number(at_least=0, at_most=1).check("guesses", guesses)
    warm_up = WarmUp(warm_steps, WARM_BATCH, WARM_RATE)
    made = {terms: _problems(terms, HELD_OUT + rows, training_args.seed, digits) for terms, rows in mix.items()}
    train = [row for rows in made.values() for row in rows[HELD_OUT:]]
    random.Random(training_args.seed).shuffle(train)
    if not smoke:
        seen = {row["prompt"][-1]["content"] for rows in made.values() for row in rows}
        name, bf16 = model_args.model_name_or_path, model_args.dtype == "bfloat16"

        def make() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
            """Make the warm model, on the main process alone."""
            lessons = _lessons(list(mix), warm_up, guesses, training_args.seed, digits, seen)
            return _warm(name, warm_up, lessons, training_args, bf16)

        start_from(training_args, model_args, make)
    splits = {f"terms_{terms}": Dataset.from_list(rows[:HELD_OUT]) for terms, rows in made.items()}
    return DatasetDict(train=Dataset.from_list(train), **splits)


def _problems(
    terms: int, count: int, seed: int, digits: int, other_than: frozenset[str] | set[str] = frozenset()
) -> list[Row]:
    """Return `count` different problems with this number of terms, none of which is in `other_than`."""
    if not is_installed("reasoning_gym"):
        raise ImportError(f"chain_sums needs reasoning-gym: {install('reasoning_gym')}")
    from reasoning_gym import create_dataset

    # Item 5 of one seed is item 4 of the next seed, so seeds must be far apart.
    settings = {"min_terms": terms, "max_terms": terms, "min_digits": 1, "max_digits": digits}
    rows: dict[str, Row] = {}
    for item in create_dataset("chain_sum", size=20 * count, seed=10_000_019 * seed, **settings):
        if item["question"] not in other_than:
            expression, answer = item["metadata"]["expression"], item["answer"]
            rows.setdefault(
                item["question"],
                {
                    "prompt": messages(SYSTEM_PROMPT, item["question"]),
                    "answer": answer,
                    "terms": terms,
                    "solution": worked(expression),
                },
            )
        if len(rows) == count:
            break
    if len(rows) < count:
        raise ConfigError(f"chain_sums has only {len(rows)} problems of {terms} terms, and {count} were asked for.")
    return list(rows.values())


def worked(expression: str) -> str:
    r"""Return the lines of an answer: `"4 - 1 + 17"` -> `"4 - 1 = 3\n3 + 17 = 20\n#### 20"`."""
    first, *rest = expression.split()
    now, lines = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        after = now + int(term) if sign == "+" else now - int(term)
        lines.append(f"{now} {sign} {term} = {after}")
        now = after
    return "\n".join([*lines, f"#### {now}"])


def _lessons(terms: list[int], warm_up: WarmUp, guesses: float, seed: int, digits: int, seen: set[str]) -> list[Row]:
    """Return problems that are not among the `seen`, with solutions of which a share is the last line alone."""
    count = warm_up.steps * warm_up.batch
    each = -(-count // len(terms))
    lessons = [row for number in terms for row in _problems(number, each, seed + 1, digits, seen)] if count else []
    random.Random(seed).shuffle(lessons)
    for place, row in enumerate(lessons):
        if int((place + 1) * guesses + 0.5) > int(place * guesses + 0.5):
            row["solution"] = f"#### {row['answer']}"
    return lessons[:count]


def _warm(
    name: str, warm_up: WarmUp, lessons: list[Row], training_args: Any, bf16: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Read the model, and teach it the form of the lessons' solutions."""
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    if lessons:
        starts = range(0, len(lessons), warm_up.batch)
        batches = [_batch(tokenizer, lessons[at : at + warm_up.batch]) for at in starts]
        teach(model, batches, warm_up.rate, training_args, weight_decay=0.0, bf16=bf16)
    return model.to(torch.bfloat16), tokenizer


def _batch(tokenizer: PreTrainedTokenizerBase, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids (B, T) and labels (B, T) of problems with their solutions, as [`padded`]."""
    said, solved = [row["prompt"] for row in rows], [row["solution"] + tokenizer.eos_token for row in rows]
    prompts = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    solutions = tokenizer(solved, add_special_tokens=False).input_ids
    return padded(zip(prompts, solutions, strict=True), tokenizer.pad_token_id)
