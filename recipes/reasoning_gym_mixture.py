"""A mixture of reasoning-gym's tasks (https://github.com/open-thought/reasoning-gym), generated here."""

from collections.abc import Mapping
from typing import Any

from datasets import DatasetDict

from trl_grpo_plus.rewards.reasoning_gym_answer import SYSTEM_PROMPT, make_dataset


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    tasks: Mapping[str, Mapping[str, Any] | None],
    train_rows: int = 20_000,
    test_rows: int = 240,
    seed: int = 0,
    system_prompt: str | None = SYSTEM_PROMPT,
    smoke: bool = False,
) -> DatasetDict:
    """Return the run's rows, as the script's `prepare` option asks.

    Args:
        script_args, training_args, model_args: what the script's parser returns.
        tasks (`Mapping[str, Mapping]`): name of a task -> its settings, or `null` for the task's own.
        train_rows (`int`, *optional*, defaults to 20000), test_rows (`int`, *optional*, defaults to 240): how many,
            dealt to the tasks in turn.
        seed (`int`, *optional*, defaults to 0): of the problems; the run's `seed` does not change them.
        system_prompt (`str`, *optional*): put before each question; it must ask for `<answer>`.
        smoke (`bool`, *optional*, defaults to `False`): whether a hundred rows are enough.

    Returns:
        `DatasetDict`: `train` and `test`, with the columns `prompt` (messages), `task` and `entry`, as the reward
        `reasoning_gym` reads them. No prompt of `test` is in `train`, which small tasks make smaller than asked for.

    Raises:
        ImportError: reasoning-gym is not installed.
        ValueError: an unknown or refused task, or settings that it does not take.
    """
    settings = {name: dict(given or {}) for name, given in tasks.items()}
    train_rows, test_rows = (min(rows, 100) if smoke else rows for rows in (train_rows, test_rows))
    # Of one seed: item 5 of seed 0 is item 4 of seed 1, so the rows of two seeds are not disjoint.
    made = make_dataset(settings, test_rows + train_rows, seed, system_prompt)
    prompts = list(map(str, made["prompt"]))
    tested = set(prompts[:test_rows])
    train = [place for place in range(test_rows, len(made)) if prompts[place] not in tested]
    return DatasetDict(train=made.select(train), test=made.select(range(test_rows)))
