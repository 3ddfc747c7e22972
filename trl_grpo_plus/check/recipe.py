"""`trl-grpo-plus check RECIPE`: everything that can be known before the GPU-hours.

The checks run one after another on the same [`~trl_grpo_plus.launch.recipe.Recipe`]; one that fails stops only those
that need what it would have found. Nothing is written to the recipe's `output_dir`.
"""

import gc
import importlib
import os
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec

from ..launch import recipe as check_keys
from ..launch.accelerate import Distribution, distribution, on_cpu
from ..launch.environment import gpus
from ..launch.recipe import Recipe
from ..launch.table import FAILED, OK, UNSEEN, Row, told
from . import data as check_data
from . import hub
from . import model as check_model
from .estimate import Card, gpu_for
from .smoke import smoke as run_smoke


ON_PAPER = ("memory", "vllm", "context", "dtype")  # what fails on a GPU, or with long prompts, works in small
UNKNOWN_PROMPT, BYTES_A_TOKEN = 512, 3
NO_ESTIMATE = "use_cpu: no estimate is made for a CPU"


def check_recipe(
    name: str,
    options: Sequence[str] = (),
    num_processes: int | None = None,
    accelerate_config: str | None = None,
    gpu: str | None = None,
    gpu_memory: float | None = None,
    smoke: bool = False,
) -> list[Row]:
    """Look at all that a recipe needs.

    Args:
        name (`str`): a file, or the name of a recipe that ships with this package.
        options (`Sequence[str]`, *optional*): of the launch script, as `run` takes them.
        num_processes (`int`, *optional*): else the configuration's, else as many as there are GPUs here, else one.
        accelerate_config (`str`, *optional*): one of TRL's presets, or a file of accelerate's.
        gpu (`str`, *optional*): the kind to estimate for, such as "A100"; else this machine's, else an H100.
        gpu_memory (`float`, *optional*): GiB of each GPU, where it is not that kind's.
        smoke (`bool`, *optional*, defaults to `False`): whether to run two steps on a tiny model.

    Returns:
        `list[Row]`: a row a check, in order.

    Raises:
        ValueError: there is no such recipe or configuration, or nothing is known of the GPU.
    """
    hub.settle()  # before what asks it is imported
    _import_libraries()
    here = gpus()
    spread = distribution(accelerate_config, num_processes, 0 if on_cpu(name, options) else len(here))
    card = gpu_for(gpu, gpu_memory, here)
    recipe, rows = check_keys.read(name, options, spread)
    if None in (recipe.script, recipe.model, recipe.data):
        return rows
    with tempfile.TemporaryDirectory(prefix="trl-grpo-plus-") as folder:
        rows += _looked_at(recipe, folder, card)
        if smoke:
            rows += _smoked(recipe, folder, rows)
    return rows


def refusals(name: str, options: Sequence[str], spread: Distribution) -> list[str]:
    """What the launch script would refuse before it loads anything, found without launching it.

    Raises:
        ValueError: there is no such recipe.
    """
    environment = dict(os.environ)
    try:
        _import_libraries()
        recipe, rows = check_keys.read(name, options, spread, forgiving=False)
        if None not in (recipe.script, recipe.model, recipe.data):
            rows += check_keys.output(recipe) + check_data.rewards(recipe) + check_data.named(recipe)
            if not any(row.status == FAILED for row in rows):
                rows += _what_lies_here(recipe)
    finally:  # what libraries set here must not reach the launcher
        os.environ.clear()
        os.environ.update(environment)
    return [row.text for row in rows if row.status == FAILED]


def _import_libraries() -> None:
    """TRL and all that it brings: nearly all of the time until a mistake is told. A sixth of that would go to the
    garbage collection, which finds nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        from ..launch.console import hush

        hush()
        importlib.import_module("datasets").disable_progress_bars()
        from ..launch import arguments  # noqa: F401
    finally:
        if was_on:
            gc.enable()


def _what_lies_here(recipe: Recipe) -> list[Row]:
    """Data and tokenizer, where reading them takes no network and no prepare function."""
    name = os.path.expanduser(recipe.script.dataset_name or "")
    if recipe.script.prepare or recipe.data.datasets or not os.path.exists(name):
        return []
    rows = check_data.data(recipe) + check_data.columns(recipe)
    if recipe.train_set is not None and os.path.isdir(os.path.expanduser(recipe.model.model_name_or_path)):
        rows += check_model.tokenizer(recipe)[0]
    return rows


def _looked_at(recipe: Recipe, folder: str, card: Card) -> list[Row]:
    rows = check_keys.output(recipe)
    recipe.training.output_dir = os.path.join(folder, "prepared")  # where a prepare function may write
    recipe.training.disable_tqdm = True
    rows += check_data.data(recipe)
    rows += check_data.rewards(recipe)
    rows += check_data.score(recipe)
    if recipe.stands:
        rows.append(Row("batches", OK, check_keys.batches(recipe)))
        rows += check_keys.precision(recipe)
    if recipe.model.model_name_or_path or not recipe.script.prepare or recipe.splits is not None:
        rows += _model(recipe, card)
    return rows


def _model(recipe: Recipe, card: Card) -> list[Row]:
    rows, config = check_model.model(recipe)
    if rows[-1].status == FAILED:
        return rows
    more, tokens = check_model.tokenizer(recipe)
    rows += more
    prompt, prompt_from = UNKNOWN_PROMPT, "a prompt, for want of data"
    if tokens and recipe.prompted:
        try:
            lengths = check_model.lengths(recipe, tokens.what)
        except Exception as error:  # of a chat template, on messages that it was not written for
            return [*rows, Row("context", FAILED, f"the prompts cannot be tokenized: {told(error)}")]
        if recipe.stands:
            rows += check_model.context(recipe, config, tokens, lengths)
        if recipe.seen:
            prompt = max(lengths) if tokens.seen else max(lengths) // BYTES_A_TOKEN
            prompt_from = "the longest prompt" + ("" if tokens.seen else f", at {BYTES_A_TOKEN} bytes a token")
    if config is None or not recipe.stands:
        return rows
    if recipe.on_cpu and not recipe.model.use_peft:
        return [*rows, Row("memory", OK, NO_ESTIMATE)]
    counted, shape = check_model.shape(recipe, config)
    rows += counted
    if recipe.on_cpu:
        return [*rows, Row("memory", OK, NO_ESTIMATE)]
    if shape is not None:
        job = check_model.job_of(recipe, config, shape, prompt)
        rows += check_model.costs(recipe, shape, job, card, f"{prompt:,} tokens for {prompt_from}")
    return rows


def _smoked(recipe: Recipe, folder: str, rows: list[Row]) -> list[Row]:
    if any(row.status == FAILED and row.name not in ON_PAPER for row in rows):
        return [Row("smoke", UNSEEN, "not run: it needs what FAILED above")]
    away = [reward for reward in recipe.rewards if isinstance(reward, str) and not os.path.isdir(reward)]
    if away and not hub.online():
        return [Row("smoke", UNSEEN, f"not run: the reward model {away[0]} cannot be reached")]
    if recipe.splits is None:
        return [Row("smoke", UNSEEN, "not run: the data cannot be reached")]
    if recipe.model.use_peft and find_spec("peft") is None:
        return [Row("smoke", UNSEEN, "not run: peft is not installed here")]
    return run_smoke(recipe, folder)
