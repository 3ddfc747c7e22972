"""The part of a check that looks at data and rewards: splits, prompts, columns, examples, gold answers, time."""

import inspect
from functools import partial
from typing import Any

from ..common.values import Refusal
from ..launch import options as preflight_options
from ..launch import prompts as preflight
from ..launch.recipe import Recipe
from ..launch.table import FAILED, OK, UNSEEN, Row, told, tried
from ..registry import check_columns, list_rewards
from ..scoring import Reward, columns_of, define
from . import hub
from .rewards import Finding, check_examples, check_gold


MOST_WRONG_GOLD = 0.05  # rows that no attempt can solve cost their groups; more than this is a reward that is wrong


def rewards(recipe: Recipe) -> list[Row]:
    """Whether `reward_funcs` can be read. Sets `recipe.rewards`."""
    from ..launch import inputs

    try:
        recipe.rewards, weights = inputs.read_rewards(recipe.script.reward_funcs, recipe.training.reward_weights)
    except Refusal as error:
        return [Row("rewards", FAILED, str(error))]
    recipe.training.reward_weights = weights
    names = [preflight.reward_name(reward) for reward in recipe.rewards]
    rows = tried("filter", lambda: preflight.check_filter_metric(recipe.training.filter_metric, names))
    rows += tried("filter", lambda: preflight.check_weights(weights, recipe.training))
    shown = zip(names, weights or [1.0] * len(names), strict=True)
    return [Row("rewards", OK, ", ".join(f"{name} x {weight:g}" for name, weight in shown)), *rows]


def named(recipe: Recipe) -> list[Row]:
    """Whether what data and model are called is there, without reading either."""
    from ..launch import inputs

    rows = []
    try:
        inputs.check_data_name(recipe.script, recipe.data)
    except Refusal as error:
        rows.append(Row("data", FAILED, str(error)))
    if recipe.model.model_name_or_path or not recipe.script.prepare:
        rows += tried("model", lambda: preflight.check_model(recipe.model.model_name_or_path))
    return rows


def data(recipe: Recipe) -> list[Row]:
    """Whether the data is there and has what the run needs. Sets `recipe.splits` and `recipe.train_set`."""
    from ..launch import inputs

    name = recipe.script.prepare or recipe.script.dataset_name or "datasets"
    try:
        inputs.check_data_name(recipe.script, recipe.data)
        found = hub.data(inputs.load_data, recipe.script, recipe.training, recipe.model, recipe.data)
    except Refusal as error:
        return [Row("data", FAILED, str(error))]
    except Exception as error:  # in somebody's prepare, or of the Hub
        return [Row("data", FAILED, f"{name}: {told(error)}")]
    if found is None:
        return [Row("data", UNSEEN, f"{name}: {hub.unreachable()}, and no sample rows of it ship with this package")]
    recipe.splits, recipe.seen = found.what, found.seen
    try:
        sets = preflight.pick_splits(
            found.what, recipe.script.dataset_train_split, preflight_options.evaluates(recipe.training)
        )
    except ValueError as error:
        return [Row("data", FAILED, str(error))]
    recipe.train_set, recipe.eval_sets = sets[0], sets[1] or {}
    sized = hasattr(recipe.train_set, "__len__")
    in_part = inputs.takes_smoke(recipe.script)
    recipe.whole = found.seen and sized and not in_part
    counts = ", ".join(f"{split} {_count(rows)}" for split, rows in found.what.items())
    if found.seen:
        row = Row("data", OK, f"{counts} rows" + (", of those that prepare makes for a check" if in_part else ""))
    else:
        row = Row("data", UNSEEN, f"{hub.unreachable()}: sample rows that ship with this package stand in ({counts})")
    prompts = _prompts(recipe)
    recipe.prompted = sized and len(recipe.train_set) > 0 and prompts[0].status == OK
    return [row, *prompts, *(_enough(recipe) if recipe.stands else [])]


def _wrong_gold(finding: Finding) -> int:
    return finding.total - finding.right if finding.what == "gold" else 0


def _count(rows: Any) -> str:
    return f"{len(rows):,}" if hasattr(rows, "__len__") else "a stream of"


def _prompts(recipe: Recipe) -> list[Row]:
    def check() -> str:
        preflight.check_prompts(recipe.train_set, "train_dataset")
        for split, rows in recipe.eval_sets.items():
            preflight.check_prompts(rows, f"eval_dataset {split}")
        first = next(iter(recipe.train_set), {"prompt": ""})["prompt"]
        if isinstance(first, str):
            return "texts"
        return f"messages of {', '.join(turn['role'] for turn in first)}"

    return tried("prompts", check)


def _enough(recipe: Recipe) -> list[Row]:
    if not recipe.whole:
        return tried("rows", lambda: preflight.check_stream(recipe.train_set, recipe.training))
    return tried("rows", lambda: preflight.check_rows(len(recipe.train_set), recipe.training))


def columns(recipe: Recipe) -> list[Row]:
    """Whether the training set has the columns that the rewards read; what is in them is not looked at."""
    known = [reward for reward in recipe.rewards if isinstance(reward, Reward) or inspect.isfunction(reward)]
    if recipe.train_set is None or recipe.train_set.column_names is None:
        return []
    return [row for reward in known for row in tried(reward.__name__, partial(_columns, reward, recipe.train_set))]


def _columns(reward: Any, dataset: Any) -> str:
    definition = reward.definition if isinstance(reward, Reward) else define(reward)
    return ", ".join(columns_of(definition, dataset.column_names, getattr(reward, "renamed", {}), reward.__name__))


def score(recipe: Recipe, limit: int = 200) -> list[Row]:
    """Each reward's examples, columns, and gold answers in the training set. Sets `recipe.reward_seconds`."""
    rows = []
    for reward in recipe.rewards:
        row, ms = _score(recipe, reward, limit)
        rows.append(row)
        recipe.reward_seconds += (
            ms / 1000 * recipe.training.per_device_train_batch_size * recipe.training.steps_per_generation
        )
    return rows


def _score(recipe: Recipe, reward: Any, limit: int) -> tuple[Row, float]:
    name = preflight.reward_name(reward)
    if isinstance(reward, str) or not callable(reward):
        return Row(name, UNSEEN, "a reward model, which is not loaded here"), 0.0
    try:
        if recipe.train_set is not None:
            check_columns(reward, recipe.train_set, "train_dataset")
        for split, rows in recipe.eval_sets.items():
            check_columns(reward, rows, f"eval_dataset {split}")
    except ValueError as error:
        return Row(name, FAILED, str(error)), 0.0
    if not isinstance(reward, Reward):
        return Row(name, OK, "a function that is not registered: no examples and no gold answers to try it on"), 0.0
    has_examples = reward.definition.examples and reward.definition.name in list_rewards()
    findings = [check_examples(reward.definition.name)] if has_examples else []
    if recipe.train_set is not None and reward.definition.gold is not None and hasattr(recipe.train_set, "__len__"):
        try:
            findings += check_gold(reward, recipe.train_set, limit)
        except Exception as error:  # of a user's gold function or reward
            return Row(name, FAILED, f"on the recipe's data: {told(error)}"), 0.0
    return _row(name, findings)


def _row(name: str, findings: list[Finding]) -> tuple[Row, float]:
    bearable = [finding for finding in findings if 0 < _wrong_gold(finding) <= MOST_WRONG_GOLD * finding.total]
    failed = [finding for finding in findings if finding.problems and finding not in bearable]
    problems = [f"{finding.what}: {problem}" for finding in failed for problem in finding.problems[:3]]
    ms = next((finding.ms for finding in reversed(findings) if finding.ms == finding.ms), 0.0)
    if problems:
        return Row(name, FAILED, "\n".join(problems)), ms
    words = {"examples": "its examples", "gold": "gold answers score full marks", "shuffled": "another row's do not"}
    said = [f"{finding.right}/{finding.total} {words[finding.what]}" for finding in findings]
    said += [f"no attempt can earn them in the others, such as: {finding.problems[0]}" for finding in bearable]
    return Row(name, OK, "; ".join([*said, f"{ms:.2g} ms a sample"]) if said else "nothing to try it on"), ms
