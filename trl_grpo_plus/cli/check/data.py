"""The checks of data and rewards: rows, columns, examples, gold answers, and the time of the rewards."""

from typing import Any

from ...launch.recipe import Recipe
from ...launch.reward_inputs import load_data, reward_name, takes_smoke
from ...registry import check_columns, list_rewards
from ...scoring import Reward
from ...utils.tables import FAILED, OK, UNSEEN, CheckRow, in_a_line
from ...utils.validation import ConfigError
from . import hub
from .rewards import RewardCheck, check_examples, check_gold
from .trial import try_out


MOST_WRONG_GOLD = 0.05  # share of rows whose gold answer may fail; a higher share means that the reward is wrong


def load(recipe: Recipe) -> list[CheckRow]:
    """Check that the data can be read. Sets `recipe.splits`, `recipe.has_real_data` and `recipe.complete`."""
    name = recipe.script.prepare or recipe.script.dataset_name or "datasets"
    try:
        loaded = hub.data(load_data, recipe.script, recipe.training, recipe.model, recipe.data)
    except ConfigError as error:
        return [CheckRow("data", FAILED, str(error))]
    except Exception as error:  # from a user's prepare function, or from the Hub
        return [CheckRow("data", FAILED, f"{name}: {in_a_line(error)}")]
    if loaded is None:
        return [
            CheckRow("data", UNSEEN, f"{name}: {hub.unreachable()}, and no sample rows of it ship with this package")
        ]
    in_part = takes_smoke(recipe.script)
    recipe.splits, recipe.has_real_data, recipe.complete = loaded.what, loaded.is_real, loaded.is_real and not in_part
    counts = ", ".join(f"{split} {_count(rows)}" for split, rows in loaded.what.items())
    if loaded.is_real:
        return [
            CheckRow("data", OK, f"{counts} rows" + (", of those that prepare makes for a check" if in_part else ""))
        ]
    instead = f"sample rows that ship with this package stand in ({counts})"
    return [CheckRow("data", UNSEEN, f"{hub.unreachable()}: {instead}")]


def _count(rows: Any) -> str:
    return f"{len(rows):,}" if hasattr(rows, "__len__") else "a stream of"


def score(recipe: Recipe, limit: int = 200) -> list[CheckRow]:
    """Check each reward's examples, columns, and gold answers in the training set. Sets `recipe.reward_seconds`."""
    rows = []
    for reward in recipe.rewards:
        row, ms = _score(recipe, reward, limit)
        rows.append(row)
        recipe.reward_seconds += (
            ms / 1000 * recipe.training.per_device_train_batch_size * recipe.training.steps_per_generation
        )
    return rows


def _score(recipe: Recipe, reward: Any, limit: int) -> tuple[CheckRow, float]:
    name = reward_name(reward)
    if isinstance(reward, str) or not callable(reward):
        return CheckRow(name, UNSEEN, "a reward model, which is not loaded here"), 0.0
    if isinstance(reward, type):
        return try_out(reward), 0.0
    try:
        for what, rows in recipe.sets.items():
            check_columns(reward, rows, what)
    except ConfigError as error:
        return CheckRow(name, FAILED, str(error)), 0.0
    if not isinstance(reward, Reward):
        return try_out(reward, recipe.train_set), 0.0
    has_examples = reward.definition.examples and reward.definition.name in list_rewards()
    findings = [check_examples(reward.definition.name)] if has_examples else []
    if recipe.train_set is not None and reward.definition.gold is not None and hasattr(recipe.train_set, "__len__"):
        try:
            findings += check_gold(reward, recipe.train_set, limit)
        except Exception as error:  # from a user's gold function or reward
            return CheckRow(name, FAILED, f"on the recipe's data: {in_a_line(error)}"), 0.0
    return _row(name, findings) if findings else (try_out(reward, recipe.train_set), 0.0)


def _row(name: str, findings: list[RewardCheck]) -> tuple[CheckRow, float]:
    bearable = [finding for finding in findings if 0 < _wrong_gold(finding) <= MOST_WRONG_GOLD * finding.total]
    failed = [finding for finding in findings if finding.problems and finding not in bearable]
    problems = [f"{finding.what}: {problem}" for finding in failed for problem in finding.problems[:3]]
    ms = next((finding.ms for finding in reversed(findings) if finding.ms == finding.ms), 0.0)
    if problems:
        return CheckRow(name, FAILED, "\n".join(problems)), ms
    words = {"examples": "its examples", "gold": "gold answers score full marks", "shuffled": "another row's do not"}
    parts = [f"{finding.right}/{finding.total} {words[finding.what]}" for finding in findings]
    parts += [f"no attempt can earn them in the others, such as: {finding.problems[0]}" for finding in bearable]
    forms = [finding.form for finding in findings if finding.form]
    text = "\n".join(["; ".join([*parts, f"{ms:.2g} ms a sample"]), *forms])
    return CheckRow(name, OK, text), ms


def _wrong_gold(finding: RewardCheck) -> int:
    return finding.total - finding.right if finding.what == "gold" else 0
