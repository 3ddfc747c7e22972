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
    """Return the run's rows. The script's `prepare` option calls this function.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns.
        tasks (`Mapping[str, Mapping]`): name of a task -> its settings, or `null` for the task's defaults.
        train_rows (`int`, *optional*, defaults to 20000), test_rows (`int`, *optional*, defaults to 240): number of
            rows, dealt to the tasks in turn.
        seed (`int`, *optional*, defaults to 0): seed of the problems. The run's `seed` does not change them.
        system_prompt (`str`, *optional*): system message of each prompt. It must ask for `<answer>`.
        smoke (`bool`, *optional*, defaults to `False`): make at most a hundred rows of each split.

    Returns:
        `DatasetDict`: `train` and `test`, with the columns `prompt` (messages), `task` and `entry`, as the reward
        `reasoning_gym` reads them. No prompt of `test` is in `train`. With small tasks, `train` may therefore have
        fewer rows than requested.

    Raises:
        ImportError: reasoning-gym is not installed.
        ValueError: a task is unknown or refused, or does not take its settings.
    """
    settings = {name: dict(given or {}) for name, given in tasks.items()}
    train_rows, test_rows = (min(rows, 100) if smoke else rows for rows in (train_rows, test_rows))
    # Both splits use one seed: item 5 of seed 0 is item 4 of seed 1, so the rows of two seeds are not disjoint.
    made = make_dataset(settings, test_rows + train_rows, seed, system_prompt)
    prompts = list(map(str, made["prompt"]))
    tested = set(prompts[:test_rows])
    train = [place for place in range(test_rows, len(made)) if prompts[place] not in tested]
    return DatasetDict(train=made.select(train), test=made.select(range(test_rows)))
