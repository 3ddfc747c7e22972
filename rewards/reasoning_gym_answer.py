"""Reward for reasoning-gym's tasks (https://github.com/open-thought/reasoning-gym), and their datasets.

train_dataset = make_dataset({"chain_sum": {"max_terms": 3}, "gcd": {}}, size=1000, seed=0)
GRPOPlusTrainer(reward_funcs="reasoning_gym", train_dataset=train_dataset, ...)
"""

import contextlib
import functools
import importlib
import io
import itertools
import json
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.scoring import AnnotatedScore
from trl_grpo_plus.utils import optional_packages
from trl_grpo_plus.utils.validation import ConfigError, did_you_mean

from ._rows import refuse_rows
from ._text import after_opened, answer_of, text_of


if TYPE_CHECKING:
    from datasets import Dataset

# Measured with reasoning-gym 0.1.25.
_EXECUTES = "its scorer executes the answer as a program"
_EXECUTES_ROW = "its scorer executes the row's text as a program"
_UNEQUAL = "its scorer compares tuples, which a dataset makes lists: right answers score 0.05"
REFUSED = {
    "arc_agi": _UNEQUAL,
    "binary_matrix": _EXECUTES,
    "bitwise_arithmetic": _EXECUTES_ROW,
    "coin_flip": 'its scorer gives "0" full marks for any chance but 1',
    "complex_arithmetic": 'its scorer gives "nan" full marks',
    "composite": "it is no task but a mixture: give its parts",
    "countdown": _EXECUTES + "; use the reward `countdown`",
    "game_of_life_halting": "its scorer gives any text full marks",
    "intermediate_integration": _EXECUTES,
    "n_queens": _EXECUTES,
    "number_sorting": _EXECUTES_ROW,
    "polynomial_multiplication": _EXECUTES,
    "puzzle24": _EXECUTES + ", and does not look at the numbers",
    "rearc": _UNEQUAL,
    "simple_integration": _EXECUTES,
    "spiral_matrix": _EXECUTES,
    "string_insertion": _EXECUTES,
}
SYSTEM_PROMPT = (
    "Think about the problem step by step. Then give the final answer, and nothing else, as <answer>answer</answer>."
)


def _check_columns(task: list[Any], entry: list[Any], **_: Any) -> None:
    hint = "trl_grpo_plus.rewards.reasoning_gym_answer.make_dataset makes rows that can."
    refuse_rows("reasoning_gym", lambda *row: _problem(row[0]) or _problem_of_entry(*row), task, entry, hint=hint)


def _gold(task: str, entry: Any, think_opened: bool = False) -> str | None:
    answer = _item(entry).get("answer")
    return None if answer is None else after_opened(f"<answer>{answer}</answer>", think_opened)


_SUM = {"question": "2 + 3 =", "answer": "5", "metadata": {"source_dataset": "chain_sum"}}


@register_reward(
    "reasoning_gym",
    examples=[
        Example("<think>2 + 3 is 5</think><answer>5</answer>", {"task": "chain_sum", "entry": _SUM}, 1.0),
        Example("<answer>6</answer>", {"task": "chain_sum", "entry": json.dumps(_SUM)}, 0.0),
        Example("It is 5.", {"task": "chain_sum", "entry": _SUM}, 0.0),
    ],
    timeout=2.0,
    on_timeout="zero",
    check_columns=_check_columns,
    gold=_gold,
    preload=("reasoning_gym",),
)
def reasoning_gym(
    completions: list[Any], task: list[str], entry: list[Any], *, think_opened: bool = False
) -> list[float | None]:
    """0.0 to 1.0, as the task's own `score_answer` scores the answer.

    The answer is the body of the last `<answer>...</answer>` after the thinking, without white space around it. If
    there is none or it is empty, the score is 0.0 and the scorer is not called. If the scorer raises or gives no
    finite number, the answer made it do so: the score is 0.0 too, and the outcome is an error, which is counted.

    Some scorers of reasoning-gym 0.1.25 are weak. The tasks in `REFUSED` are refused before training, each with its
    reason: some execute the answer. Most others give some credit to a wrong answer that contains the right one ("15"
    for "5" scores 0.5) or comes near it. Over 200 items with default settings, the best constant answer found earns on
    average: 0.96 on game_of_life (a dead board), 0.7 on syllogism, 0.6 on circuit_logic, 0.5 on course_schedule,
    isomorphic_strings, ransom_note, self_reference and time_intervals, 0.4 on rectangle_count, shortest_path and acre,
    0.35 on polynomial_equations, gcd, mahjong_puzzle, maze, letter_counting, rotten_oranges and zebra_puzzles, 0.25 on
    mini_sudoku, aiw and propositional_logic, 0.2 or less on the rest. A mean reward up to these values shows no
    learning.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        task (`list[str]`): N names of tasks, such as `"chain_sum"`.
        entry (`list`):
            N items of reasoning-gym, each `{"question", "answer", "metadata"}` as a dict or as JSON, since a dataset's
            column cannot hold different dicts. An optional `config` has the settings of the task, which some scorers
            need. [`make_dataset`] writes such items.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.

    Returns:
        `list[float]`: N rewards from 0.0 to 1.0.

    Raises:
        ImportError: reasoning-gym is not installed. Raised before training.
        ValueError: a task is unknown or refused, or an entry is no item. Raised before training.

    Example:
        >>> entry = '{"question": "2 + 3 =", "answer": "5", "metadata": {}}'
        >>> reasoning_gym(["<answer>5</answer>", "<answer>6</answer>", "5"], task=["chain_sum"] * 3, entry=[entry] * 3)
        [1.0, 0.0, 0.0]
    """
    return [
        _score(answer_of(text_of(completion), think_opened), name, _item(item))
        for completion, name, item in zip(completions, task, entry, strict=True)
    ]


def make_dataset(
    tasks: Mapping[str, Mapping[str, Any]], size: int, seed: int, system_prompt: str | None = SYSTEM_PROMPT
) -> "Dataset":
    """Make a dataset of one or several tasks for the reward `reasoning_gym`.

    Args:
        tasks (`Mapping[str, Mapping]`): name of a task -> its settings, as `reasoning_gym.create_dataset` takes them.
        size (`int`): number of rows, dealt to the tasks in turn.
        seed (`int`): equal seeds give equal rows. Neighbouring seeds share most rows (item 1 of seed 0 is item 0 of
            seed 1): split one dataset, rather than make the evaluation set with another seed.
        system_prompt (`str`, *optional*): put before each question; by default a prompt that asks for `<answer>`.

    Returns:
        `datasets.Dataset`: with the columns `prompt` (messages), `task` and `entry` (JSON).

    Raises:
        ImportError: reasoning-gym is not installed.
        ConfigError: there are no tasks, a task is unknown or refused, or a task does not take its settings.
    """
    if problem := next(filter(None, map(_problem, tasks)), None if tasks else "tasks is empty."):
        raise ConfigError(f"make_dataset: {problem}")
    shares = [len(range(first, size, len(tasks))) for first in range(len(tasks))]
    items = [_generate(name, dict(tasks[name]), share, seed) for name, share in zip(tasks, shares, strict=True)]
    names = list(tasks)
    rows = [(names[i % len(names)], items[i % len(names)][i // len(names)]) for i in range(size)]
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    from datasets import Dataset  # slow to import, and not needed by the reward

    return Dataset.from_dict(
        {
            "prompt": [[*system, {"role": "user", "content": item["question"]}] for _, item in rows],
            "task": [name for name, _ in rows],
            # The metadata of gsm_symbolic holds fractions, which its scorer does not read.
            "entry": [json.dumps(item, default=str) for _, item in rows],
        }
    )


def _generate(task: str, config: dict[str, Any], size: int, seed: int) -> list[dict[str, Any]]:
    if {"size", "seed"} & set(config):
        raise ConfigError(f"make_dataset: give size and seed once for all tasks, not in the settings of {task}.")
    try:
        # Make twice as many, because items that cannot be scored are left out.
        made = _library().create_dataset(task, **config, size=2 * size + 1, seed=seed)
        settings = {"config": json.loads(json.dumps(config))}
    except (TypeError, AssertionError) as error:
        raise ConfigError(f"make_dataset: {task} does not take {config}: {error}.") from None
    made_items = (made[i] for i in range(2 * size + 1))
    items = list(itertools.islice((item | settings for item in made_items if not _is_blank(item)), size))
    if len(items) < size:
        raise ConfigError(f"make_dataset: with {config}, the right answer of most items of {task} is empty.")
    return items


def _is_blank(item: dict[str, Any]) -> bool:
    """Return whether the right answer is a blank text, which would score 0 as a missing answer does.

    `None`, which some tasks give as the right answer, is not blank.
    """
    return item["answer"] is not None and not item["answer"].strip()


def _score(answer: str | None, task: str, item: dict[str, Any]) -> float:
    if problem := _problem(task):
        raise ValueError(f"reasoning_gym: {problem}")
    if answer is None or not answer.strip():
        return 0.0
    score_answer = _scorer(task, json.dumps(item.get("config", {})))
    try:
        # Scorers warn and print about bad answers.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            score = float(score_answer(answer.strip(), item))
    except Exception as error:
        return AnnotatedScore(0.0, "error", f"The scorer of {task} failed on {answer!r:.80}: {error!r:.200}.")
    if not math.isfinite(score):
        return AnnotatedScore(0.0, "error", f"The scorer of {task} gave {score} for {answer!r:.80}.")
    return min(max(score, 0.0), 1.0)


@functools.cache
def _scorer(task: str, config: str) -> Any:
    return _library().create_dataset(task, **json.loads(config)).score_answer


def _item(entry: Any) -> dict[str, Any]:
    return json.loads(entry) if isinstance(entry, str) else entry


def _problem(task: Any) -> str | None:
    if isinstance(task, str) and task in REFUSED:
        return f"the task {task} is not for training: {REFUSED[task]}."
    tasks = _library().factory.DATASETS
    if isinstance(task, str) and task in tasks:
        return None
    return f"reasoning-gym has no task {task!r}.{did_you_mean(str(task), tasks)}"


def _problem_of_entry(task: str, entry: Any) -> str | None:
    try:
        item = _item(entry)
        source, is_blank = item["metadata"].get("source_dataset", task), _is_blank(item)
        _scorer(task, json.dumps(item.get("config", {})))
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        return (
            f"entry must be a dict of question, answer and metadata, or JSON of one, got {entry!r:.100} ({error!r})."
        )
    if is_blank:
        return "the right answer is empty, so an empty completion would be right."
    return None if source == task else f"task is {task!r}, but the entry is from {source!r}."


def _library() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ImportError(
            f"the reward reasoning_gym needs reasoning-gym ({error}): {optional_packages.install('reasoning_gym')}."
        ) from error
