"""The checks of data and rewards: rows, columns, examples, gold answers, and the time of the rewards."""

from typing import Any

from ...config.tool_checks import check_length
from ...curriculum.selection import check_dataset
from ...launch.recipe import Recipe
from ...launch.reward_inputs import reward_name, takes_smoke
from ...registry import check_columns
from ...utils.tables import FAILED, OK, UNSEEN, CheckRow, in_a_line, refused
from ...utils.validation import ConfigError
from . import hub
from .rewards import as_row, ms_of
from .trial import check_reward


def load(recipe: Recipe) -> list[CheckRow]:
    """Check that the data can be read. Sets `recipe.splits` or `recipe.rowless`, and more of the data."""
    name = recipe.script.prepare or recipe.script.dataset_name or "datasets"
    try:
        loaded = hub.data(recipe.script, recipe.training, recipe.model, recipe.data)
    except ConfigError as error:
        return [CheckRow("data", FAILED, str(error))]
    except Exception as error:  # from a user's prepare function, or from the Hub
        return [CheckRow("data", FAILED, f"{name}: {in_a_line(error)}")]
    if loaded is None:
        lacking = f"{hub.unreachable()}, and no sample rows of it ship with this package"
        return [CheckRow("data", UNSEEN, f"{name}: {lacking}")]
    if loaded.what is None:
        recipe.rowless = True
        rowless = refused("data", check_dataset, None, "train_dataset", recipe.training)
        endless = refused("data", check_length, None, recipe.training.max_steps)
        return [*rowless, *endless] or [CheckRow("data", OK, f"{name} makes none: the environment does")]
    in_part = takes_smoke(recipe.script)
    recipe.splits, recipe.has_real_data, recipe.complete = loaded.what, loaded.is_real, loaded.is_real and not in_part
    counts = ", ".join(f"{split} {_count(rows)}" for split, rows in loaded.what.items())
    if loaded.is_real:
        which = ", of those that prepare makes for a check" if in_part else ""
        return [CheckRow("data", OK, f"{counts} rows{which}")]
    instead = f"sample rows that ship with this package stand in ({counts})"
    return [CheckRow("data", UNSEEN, f"{hub.unreachable()}: {instead}")]


def _count(rows: Any) -> str:
    return f"{len(rows):,}" if hasattr(rows, "__len__") else "a stream of"


def score(recipe: Recipe) -> list[CheckRow]:
    """Check each reward's examples, columns, and gold answers in the training set. Sets `recipe.reward_seconds`."""
    args = recipe.training
    scored = [_score(recipe, reward) for reward in recipe.rewards]
    batch = args.per_device_train_batch_size * args.steps_per_generation
    recipe.reward_seconds = sum(ms for _, ms in scored) / 1000 * batch
    return [row for row, _ in scored]


def _score(recipe: Recipe, reward: Any) -> tuple[CheckRow, float]:
    name = reward_name(reward)
    if isinstance(reward, str) or not callable(reward):
        return CheckRow(name, UNSEEN, "a reward model, which is not loaded here"), 0.0
    sets = {} if isinstance(reward, type) else recipe.sets  # a class is refused, whatever its columns
    try:
        for what, rows in sets.items():
            check_columns(reward, rows, what)
        findings = check_reward(reward, recipe.train_set)
    except ConfigError as error:
        return CheckRow(name, FAILED, str(error)), 0.0
    except Exception as error:  # from a user's gold function or reward
        return CheckRow(name, FAILED, f"on the recipe's data: {in_a_line(error)}"), 0.0
    return as_row(name, findings), ms_of(findings)
