"""`trl-grpo-plus check RECIPE`: everything that can be checked before a recipe costs GPU-hours.

The checks of [`~trl_grpo_plus.launch.preflight`] and further checks run one after another on the same
[`~trl_grpo_plus.launch.recipe.Recipe`]. A failure stops only the checks that depend on it. Nothing is written to the
recipe's `output_dir`.
"""

import gc
import importlib
import os
import tempfile
from collections.abc import Iterable

from ...launch import preflight
from ...launch.datasets_by_name import is_here
from ...launch.launchers import Start
from ...launch.preflight import on_data, on_paper
from ...launch.recipe import Recipe, batches, read
from ...utils import optional_packages
from ...utils.tables import FAILED, OK, UNSEEN, CheckRow, failures, in_a_line, raise_failures
from ..env import gpus
from . import data as check_data
from . import hub
from . import model as check_model
from .gpus import Card, gpu_for
from .hub import Loaded
from .smoke import clocked as run_clocked
from .smoke import smoke as run_smoke


# Checks whose failure does not stop the smoke run, which has a tiny model, short texts and no GPU.
FINE_IN_SMALL = ("memory", "vllm", "context", "dtype")
UNKNOWN_PROMPT, BYTES_A_TOKEN = 512, 3
NOT_TIMED = CheckRow(
    "speed", OK, "not estimated: the speed of a CPU must be measured; --smoke takes steps of the model"
)


def check_recipe(
    start: Start, gpu: str | None = None, gpu_memory: float | None = None, smoke: bool = False
) -> list[CheckRow]:
    """Check everything that a recipe needs.

    Args:
        start ([`~trl_grpo_plus.launch.launchers.Start`]): the run, as `run` would start it.
        gpu (`str`, *optional*): kind of GPU to estimate for, such as "A100". Default: this machine's, or else an H100.
        gpu_memory (`float`, *optional*): GiB of each GPU. Default: the memory of that kind.
        smoke (`bool`, *optional*, defaults to `False`): also run two steps on a tiny model.

    Returns:
        `list[CheckRow]`: the rows of the checks, in order.

    Raises:
        ConfigError: the GPU is unknown.
    """
    hub.settle()  # before the libraries that use the Hub are imported
    _import_libraries()
    card = gpu_for(gpu, gpu_memory, gpus())
    recipe = read(start.recipe, start.options, start.spread, of_command=start.of_command)
    rows = on_paper(recipe)
    if not recipe.readable:
        return rows
    with tempfile.TemporaryDirectory(prefix="trl-grpo-plus-") as folder:
        recipe.training.output_dir = os.path.join(folder, "prepared")  # where a prepare function may write
        recipe.training.disable_tqdm = True
        if not recipe.data_unread and not any(row.name == "data" for row in failures(rows)):
            rows += check_data.load(recipe)
        more, config, tokens = _model(recipe)
        rows += [*more, *on_data(recipe), *check_data.score(recipe)]
        if recipe.stands:
            rows.append(CheckRow("batches", OK, batches(recipe)))
        rows += [*_given(recipe, tokens), *_costs(recipe, config, tokens, card)]
        rows = list(dict.fromkeys(rows))  # two checks may find the same mistake
        ran = _smoked(recipe, folder, rows, start.launcher, config is not None) if smoke else []
        if recipe.on_cpu and recipe.stands and config is not None:
            timed = _speed_on_cpu(recipe, folder, [*rows, *ran[:1]], config.origin, start) if smoke else NOT_TIMED
            rows.append(timed)
    return [*rows, *ran]


def refuse(starts: Iterable[Start]) -> None:
    """Refuse recipes that the launch script would refuse, without launching the script.

    Only checks that need neither the network nor a prepare function are made.

    Raises:
        ConfigError: some of these checks failed. The message has the failures of all recipes, each once.
    """
    raise_failures(dict.fromkeys(row for start in starts for row in _rows_before_launch(start)))


def _rows_before_launch(start: Start) -> list[CheckRow]:
    environment = dict(os.environ)
    try:
        _import_libraries()
        recipe = read(start.recipe, start.options, start.spread, launching=True, of_command=start.of_command)
        rows = on_paper(recipe)
        if not failures(rows) and _lies_here(recipe):
            rows += check_data.load(recipe)
            if os.path.isdir(os.path.expanduser(recipe.model.model_name_or_path)):
                rows += check_model.tokenizer(recipe)[0]
            rows += on_data(recipe)
    finally:  # variables that libraries set here must not reach the launcher
        os.environ.clear()
        os.environ.update(environment)
    return rows


def _import_libraries() -> None:
    """Import TRL and its dependencies, without garbage collection.

    These imports take nearly all of the time until a mistake is reported. Garbage collection would take a sixth of it,
    and find nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        from ...trainer.progress import silence_libraries

        silence_libraries()
        importlib.import_module("datasets").disable_progress_bars()
        from ...launch import arguments  # noqa: F401
    finally:
        if was_on:
            gc.enable()


def _lies_here(recipe: Recipe) -> bool:
    if recipe.script.prepare:
        return False
    if recipe.data.datasets:
        return all(map(is_here, recipe.data.datasets))
    return os.path.exists(os.path.expanduser(recipe.script.dataset_name or ""))


def _model(recipe: Recipe) -> tuple[list[CheckRow], Loaded | None, Loaded | None]:
    """Check that the model can be read; return the rows, the config and the tokenizer."""
    if not recipe.model.model_name_or_path or any(preflight.model(recipe)):
        return [], None, None
    rows, config = check_model.model(recipe)
    if failures(rows):
        return rows, None, None
    if recipe.stands:
        rows += check_model.sampled(recipe)
    more, tokens = check_model.tokenizer(recipe)
    return [*rows, *more], config, tokens


def _given(recipe: Recipe, tokens: Loaded | None) -> list[CheckRow]:
    """Show the first prompt as the model is given it, if there is a tokenizer and a chat template for it."""
    if tokens is None or recipe.first_prompt is None or any(preflight.template(recipe)):
        return []
    try:
        return check_model.given(recipe, tokens)
    except Exception as error:  # of a chat template, on messages that it was not written for
        return [CheckRow("given", UNSEEN, f"the first prompt cannot be tokenized: {in_a_line(error)}")]


def _costs(recipe: Recipe, config: Loaded | None, tokens: Loaded | None, card: Card) -> list[CheckRow]:
    """Check that the prompts fit the model's context, and that the run fits the GPUs or the CPU."""
    rows = []
    prompt, prompt_from = UNKNOWN_PROMPT, "a prompt, whose length is not known"
    if tokens and recipe.prompted and not any(preflight.template(recipe)):
        try:
            lengths = check_model.lengths(recipe, tokens.what)
        except Exception as error:  # of a chat template, on messages that it was not written for
            return [CheckRow("context", FAILED, f"the prompts cannot be tokenized: {in_a_line(error)}")]
        if recipe.stands:
            rows += check_model.context(recipe, config, tokens, lengths)
        if recipe.has_real_data:
            prompt = max(lengths) if tokens.is_real else max(lengths) // BYTES_A_TOKEN
            prompt_from = "the longest prompt" + ("" if tokens.is_real else f", at {BYTES_A_TOKEN} bytes a token")
    if config is None or not recipe.stands:
        return rows
    counted, shape = check_model.shape(recipe, config)
    rows += counted
    if shape is not None:
        job = check_model.job_of(recipe, config, shape, prompt)
        granted = f"{prompt:,} tokens for {prompt_from}"
        if recipe.on_cpu:
            rows += check_model.costs_on_cpu(recipe, shape, job, granted)
        else:
            rows += check_model.costs(recipe, shape, job, card, granted)
    return rows


def _smoked(recipe: Recipe, folder: str, rows: list[CheckRow], launcher: str, model_known: bool) -> list[CheckRow]:
    if any(row.name not in FINE_IN_SMALL for row in failures(rows)):
        return [CheckRow("smoke", UNSEEN, "not run: it needs what FAILED above")]
    away = [reward for reward in recipe.rewards if isinstance(reward, str) and not os.path.isdir(reward)]
    if away and not hub.online():
        return [CheckRow("smoke", UNSEEN, f"not run: the reward model {away[0]} cannot be reached")]
    if recipe.splits is None and not recipe.rowless:
        return [CheckRow("smoke", UNSEEN, "not run: there is no data here")]
    if recipe.model.use_peft and not optional_packages.is_installed("peft"):
        return [CheckRow("smoke", UNSEEN, "not run: peft is not installed here")]
    return run_smoke(recipe, folder, launcher, model_known)


def _speed_on_cpu(recipe: Recipe, folder: str, rows: list[CheckRow], origin: str, start: Start) -> CheckRow:
    """Return the time of a run on a CPU, which only steps of the real model can tell."""
    if failures(rows) or rows[-1].status != OK:
        return CheckRow("speed", UNSEEN, "not measured: it needs what FAILED, or the smoke run, which was not run")
    if any(row.name == "machine" and row.status == UNSEEN for row in rows):
        return CheckRow("speed", UNSEEN, "not measured: it needs what this machine lacks")
    if origin != "here":
        away = f"{recipe.model.model_name_or_path} is in no folder here"
        return CheckRow("speed", UNSEEN, f"not measured: {away}, and a tiny model does not show its speed")
    if start.nodes.count > 1:
        nodes = f"the run has {start.nodes.count} nodes"
        return CheckRow("speed", UNSEEN, f"not measured: {nodes}, and this machine is only one of them")
    return run_clocked(recipe, folder, start.launcher)
