"""All checks of a recipe that are made before its model is loaded, in two tuples: PAPER and DATA.

`trl-grpo-plus check` shows the result of each check. `trl-grpo-plus run` prints the failures and launches nothing if
there are any. The launch script raises the failures. To add a check, write a function from a [`Recipe`] to rows, and
add the function to PAPER or DATA. Checks in PAPER read only the recipe. Checks in DATA run once the data is loaded.
Cheaper checks come first.
"""

import itertools
import os
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..config import presets, tool_checks
from ..config.compatibility import check_columns_read, check_filter_metric, check_model, check_weights, no_reward
from ..curriculum import belief_store
from ..curriculum.selection import check_class, check_column, check_enough_rows, check_stream
from ..objective.credit import Credit
from ..registry import check_columns, resolve
from ..scoring import has_messages, is_conversation, lacks_template, wrong_prompts
from ..utils import import_path, optional_packages
from ..utils.files import beside, looks_local, not_writable, unexpanded
from ..utils.tables import FAILED, OK, UNSEEN, WARNED, CheckRow, refused
from ..utils.validation import ConfigError, did_you_mean
from .command_line import load
from .needed_packages import missing_packages
from .option_checks import (
    bad_for_adapter,
    bad_together,
    base_drifts,
    lacks_compiler,
    lost_in_rounding,
    slow_on_processor,
    unknown_attention,
    wrong_options,
)
from .recipe import Recipe
from .reward_inputs import check_data_name, load_callables, read_rewards, reward_name


TEST_SPLIT = "test"  # TRL's default of dataset_test_split


def keys(recipe: Recipe) -> list[CheckRow]:
    """Check that each key and option exists and has a valid value."""
    if recipe.refused:
        return [CheckRow("keys", FAILED, why) for why in recipe.refused]
    words = f", {len(recipe.options)} words on the command line" if recipe.options else ""
    return [CheckRow("keys", OK, f"{recipe.keys} keys{words}")]


def preset(recipe: Recipe) -> list[CheckRow]:
    """Describe a preset's settings, and name the settings that the recipe overrides. This check refuses nothing."""
    said = presets.describe(recipe.training)
    return [CheckRow("preset", OK, said)] if said else []


def processes(recipe: Recipe) -> list[CheckRow]:
    """Check that the processes form one group: without a GPU for each, accelerate lets every process train alone."""
    started = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    if started <= recipe.training.world_size:
        return []
    alone = f"{started} processes were started, but there is no GPU for them here, so each would train alone."
    return [CheckRow("processes", FAILED, f"{alone} Set use_cpu: true to train on the CPU.")]


def options(recipe: Recipe) -> list[CheckRow]:
    """Check that options are in their bounds, go together, and name things that exist. Sets `recipe.stands`."""
    generates = not recipe.script.rollout_func
    wrong = [] if recipe.refused else wrong_options(recipe.training, recipe.model, generates)
    recipe.stands = recipe.stands and not wrong
    return [CheckRow("options", FAILED, why) for why in wrong]


def together(recipe: Recipe) -> list[CheckRow]:
    """Warn of valid combinations of options that are known to be unwise."""
    if not recipe.stands:
        return []
    unwise = bad_together(recipe.training)
    if not recipe.launching:  # the trainer of a launched run says it
        unwise += bad_for_adapter(recipe.training, recipe.model)
    return [CheckRow("options", WARNED, why) for why in unwise]


def machine(recipe: Recipe) -> list[CheckRow]:
    """Check that this machine has the packages and the GPU that the options need.

    A missing package is a failure only if the recipe is to run on this machine.
    """
    if recipe.refused or not recipe.stands:
        return []
    missing = missing_packages(recipe.training, recipe.model)
    if recipe.spread.sharding.startswith("zero"):
        missing |= optional_packages.missing({recipe.spread.sharding: "deepspeed"})
    if missing and recipe.launching:
        needs = "needs a package that is not installed"
        return [CheckRow("machine", FAILED, f"{what} {needs}: {how}.") for what, how in missing.items()]
    lacking = [*recipe.lacking, *(f"{what}: not installed here ({how})" for what, how in missing.items())]
    if lacking:
        return [CheckRow("machine", UNSEEN, "; ".join(dict.fromkeys(lacking)))]
    if recipe.on_cpu:
        return [CheckRow("machine", OK, "the CPU is enough")]
    if why := lacks_compiler():
        return [CheckRow("machine", WARNED, why)]
    return [CheckRow("machine", OK, "there is a GPU, and the packages that the options need")]


def dtype(recipe: Recipe) -> list[CheckRow]:
    """Check that the weights have the precision that updates and adapters need.

    The trainer of a launched run warns of lost updates itself.
    """
    if not recipe.stands:
        return []
    sharded = recipe.spread.sharding not in ("none", "ddp")
    lost = lost_in_rounding(recipe.training, recipe.model, sharded)
    if lost and not recipe.launching:
        return [CheckRow("dtype", UNSEEN if recipe.spread.guessed else FAILED, lost)]
    doubts = [base_drifts(recipe.training, recipe.model, recipe.spread.sharding)]
    if recipe.on_cpu:
        doubts.append(slow_on_processor(recipe.training, recipe.model))
    return [CheckRow("dtype", WARNED, doubt) for doubt in doubts if doubt]


def output(recipe: Recipe) -> list[CheckRow]:
    """Check that the resume checkpoint exists, the first model is not overwritten, and no other run uses the folder.

    The processes of this run skip the last check, because one of them may hold the folder's lock.
    """
    from ..trainer.checkpoint_integrity import to_resume
    from ..utils import folder_lock
    from . import previous_run  # they import transformers

    folder = recipe.training.output_dir
    if not os.path.exists(folder) and (why := unexpanded(folder)):
        return [CheckRow("output", FAILED, f"output_dir: {why}")]
    if why := not_writable(folder):
        # For a check alone, the folder may be on another machine, unless it or its parent is on this one.
        here = recipe.launching or os.path.isdir(os.path.dirname(os.path.abspath(folder)))
        return [CheckRow("output", FAILED if here else UNSEEN, why)]
    try:
        if recipe.name:
            folder_lock.check(folder)
        checkpoint = to_resume(previous_run.requested(recipe.training), folder)
        previous_run.check_start(recipe.training, recipe.model, resumes=checkpoint is not None)
    except ConfigError as error:
        return [CheckRow("output", FAILED, str(error))]
    if not recipe.stands:
        return []
    if checkpoint:
        return [CheckRow("output", OK, f"resumes from {checkpoint}")]
    moves = ": an earlier run there would be moved to earlier-N" if previous_run.of_a_run(Path(folder)) else ""
    return [CheckRow("output", OK, f"{folder}{moves}")]


def rewards(recipe: Recipe) -> list[CheckRow]:
    """Check that `reward_funcs` names rewards. Sets `recipe.rewards` and the config's `reward_weights`."""
    args = recipe.training
    if not recipe.script.reward_funcs and recipe.script.environment_factory:
        lacking = refused("rewards", _check_environment_rewards, recipe)
        return lacking or [CheckRow("rewards", OK, "none: get_reward of the environments is the reward")]
    try:
        recipe.rewards, args.reward_weights = read_rewards(recipe.script.reward_funcs, args.reward_weights)
    except ConfigError as error:
        return [CheckRow("rewards", FAILED, str(error))]
    weighed = zip(recipe.rewards, args.reward_weights or [1.0] * len(recipe.rewards), strict=True)
    return [CheckRow("rewards", OK, ", ".join(f"{reward_name(reward)} x {weight:g}" for reward, weight in weighed))]


def _check_environment_rewards(recipe: Recipe) -> None:
    """Refuse an environment that cannot stand for `reward_funcs`. Only the environments that a function makes tell."""
    path = recipe.script.environment_factory
    made = load(path, "environment_factory")
    if isinstance(made, type) and not hasattr(made, "get_reward"):
        raise ConfigError(
            f"reward_funcs is empty, and {path} has no get_reward. Name a reward function, or add the method."
        )
    resolve([], recipe.training.reward_weights)


def callables(recipe: Recipe) -> list[CheckRow]:
    """Check that tools, environment and rollout function exist and go together. Sets `environment` and `tools`."""

    def check() -> None:
        """Refuse what the trainer would refuse once the model is loaded."""
        made = load_callables(recipe.script)
        environment = made.get("environment_factory")
        if environment is not None:
            tool_checks.check_made(environment)
        tools = [*made.get("tools", ()), *tool_checks.tools_of(environment)]
        given = {"environments": environment, "rollouts": made.get("rollout_func"), "tools": tools}
        check_model(recipe.training, **given, images=False, trl_version=version("trl"))
        recipe.environment, recipe.tools = environment, tools

    return refused("callables", check)


def filter_metric(recipe: Recipe) -> list[CheckRow]:
    """Check that the reward that judges groups exists and has a weight."""
    names, args = [reward_name(reward) for reward in recipe.rewards], recipe.training
    if not names:
        return []
    unknown = refused("filter", check_filter_metric, args.filter_metric, names)
    wrong = [*unknown, *refused("filter", check_weights, args.reward_weights, args)]
    idle = None if recipe.launching else no_reward(args.reward_weights)  # the trainer of a launched run says it
    return [*wrong, CheckRow("rewards", WARNED, idle)] if idle and not wrong else wrong


def stream(recipe: Recipe) -> list[CheckRow]:
    """Check that the user's own class for choosing prompts exists."""
    return refused("prompts", check_class, recipe.training) if recipe.stands else []


def advantage(recipe: Recipe) -> list[CheckRow]:
    """Check that the user's own advantage functions exist and take their arguments."""
    return refused("advantage", Credit, recipe.training) if recipe.stands else []


def data(recipe: Recipe) -> list[CheckRow]:
    """Check that the data is named exactly once, and exists if the name is a path."""
    return [] if recipe.data_unread else refused("data", check_data_name, recipe.script, recipe.data)


def model(recipe: Recipe) -> list[CheckRow]:
    """Check that the recipe or its prepare function names a model, and that the model exists if the name is a path."""
    name = recipe.model.model_name_or_path
    if not name:
        unknown = "model_name_or_path" in recipe.unread or (recipe.script.prepare and recipe.splits is None)
        return [] if unknown else [CheckRow("model", FAILED, "model_name_or_path is missing.")]
    if os.path.isdir(os.path.expanduser(name)):
        return []
    if why := unexpanded(name):
        return [CheckRow("model", FAILED, f"model_name_or_path: {why}")]
    if not looks_local(name):
        return []
    right = "Give a folder that `save_pretrained` wrote, or an id on the Hub."
    lacking = f"there is no folder {name}.{beside(name)}{import_path.start_of(name)}"
    return [CheckRow("model", FAILED, f"model_name_or_path: {lacking} {right}")]


def attention(recipe: Recipe) -> list[CheckRow]:
    """Check that the attention has a known name, unless a prepare function that has not run may register one."""
    if not recipe.stands or (recipe.script.prepare and recipe.splits is None):
        return []
    why = unknown_attention(recipe.training, recipe.model)
    return [CheckRow("model", FAILED, why)] if why else []


def splits(recipe: Recipe) -> list[CheckRow]:
    """Check that there is a training split, and a split to evaluate on if the run evaluates.

    The run evaluates on `dataset_test_split` if this is not TRL's default, else on all splits but the training split.
    Sets `recipe.train_set` and `recipe.eval_sets`.
    """
    train, test = recipe.script.dataset_train_split, recipe.script.dataset_test_split
    if recipe.splits is None:
        return []
    chosen = test != TEST_SPLIT and recipe.has_real_data  # sample rows may lack the split
    needed = {"dataset_train_split": train, **({"dataset_test_split": test} if chosen and recipe.evaluates else {})}
    if wrong := [
        _no_split(option, name, recipe.splits) for option, name in needed.items() if name not in recipe.splits
    ]:
        return wrong
    others = {name: rows for name, rows in recipe.splits.items() if (name == test if chosen else name != train)}
    others = others if recipe.evaluates else {}
    if recipe.evaluates and not others:
        off = "set eval_strategy: 'no', do_eval: false and eval_on_start: false."
        lacking = "Evaluation is on, but the data has no split other than the training split."
        return [CheckRow("data", FAILED, f"{lacking} Add a split, which a race needs, or {off}")]
    recipe.train_set, recipe.eval_sets = recipe.splits[train], others
    return []


def _no_split(option: str, name: str, there: Iterable[str]) -> CheckRow:
    named = f"{', '.join(there)}.{did_you_mean(name, there)}"
    return CheckRow("data", FAILED, f"{option}: the data has no split {name!r}, only {named}")


def prompts(recipe: Recipe) -> list[CheckRow]:
    """Check that each dataset has prompts, as texts or messages, and that no prompt is empty.

    An environment may make the prompts: the column may be left out then. Sets `recipe.prompted` and
    `recipe.first_prompt`.
    """
    checked = {what: rows for what, rows in recipe.sets.items() if not _makes_prompts(recipe, rows)}
    wrong = [why for what, rows in checked.items() if (why := wrong_prompts(rows, what))]
    if not wrong and recipe.tools:
        refusals = refused("prompts", tool_checks.check_conversations, recipe.train_set, recipe.eval_sets)
        wrong = [row.text for row in refusals]
    if wrong or recipe.train_set is None:
        return [CheckRow("prompts", FAILED, why) for why in wrong]
    row: dict[str, Any] = next(iter(recipe.train_set), {})
    first: Any = row.get("prompt") or None
    recipe.first_prompt, recipe.prompted = first, first is not None and hasattr(recipe.train_set, "__len__")
    if _makes_prompts(recipe, recipe.train_set):
        return [CheckRow("prompts", OK, "none: the environment makes them")]
    roles = ", ".join(turn["role"] for turn in first) if is_conversation(first) else ""
    return [CheckRow("prompts", OK, f"messages of {roles}" if roles else "texts")]


def reset(recipe: Recipe) -> list[CheckRow]:
    """Check that the environment's `reset` takes the columns of the first rows."""
    if recipe.environment is None or recipe.training.remove_unused_columns:
        return []
    given = {what: [*next(iter(rows), {})] for what, rows in recipe.sets.items()}
    if recipe.rowless:
        given[tool_checks.ROWLESS] = ["prompt"]
    return [
        row
        for what, names in given.items()
        for row in refused("reset", tool_checks.check_reset, recipe.environment, names, what)
    ]


def _makes_prompts(recipe: Recipe, rows: Any) -> bool:
    """Return whether the environment makes the prompts of these rows, which have none."""
    return bool(recipe.script.environment_factory) and "prompt" not in next(iter(rows), {})


def enough(recipe: Recipe) -> list[CheckRow]:
    """Check that the training set has enough rows for a step, and more rows to resample from."""
    if recipe.train_set is None or not recipe.stands:
        return []
    streamed = refused("rows", check_stream, recipe.train_set, recipe.training)
    if streamed or not recipe.complete:
        return streamed
    args, rows = recipe.training, recipe.train_set
    prompts = args.generation_batch_size // args.num_generations
    count = len(rows) if recipe.whole else sum(1 for _ in itertools.islice(rows, prompts))
    return refused("rows", check_enough_rows, count, args)


def remembered(recipe: Recipe) -> list[CheckRow]:
    """Check that the training set has the columns used to choose prompts, share beliefs and compute advantages."""
    if recipe.train_set is None or not recipe.stands:
        return []
    args, rows = recipe.training, recipe.train_set
    forgotten = refused("rows", belief_store.check_belief_columns, rows, args) if args.what_believes else []
    lacking = refused("rows", lambda: check_columns_read(Credit(args).columns, rows, args))
    return [*forgotten, *lacking, *(refused("rows", check_column, rows, args) if hasattr(rows, "__len__") else [])]


def columns(recipe: Recipe) -> list[CheckRow]:
    """Check that each dataset has the columns that the rewards read; their values are not read."""
    if recipe.script.environment_factory or recipe.script.rollout_func:
        return []  # these add columns, so the trainer skips this check too

    def check(reward: Any) -> None:
        """Refuse a reward that needs a column which a set lacks."""
        for what, rows in recipe.sets.items():
            check_columns(reward, rows, what, read=False)

    return [row for reward in recipe.rewards for row in refused(reward_name(reward), check, reward)]


def template(recipe: Recipe) -> list[CheckRow]:
    """Check that the tokenizer has a chat template if the prompts are messages, and one for tools if there are any."""
    calls = bool(recipe.script.environment_factory or recipe.tools)
    if not calls and (recipe.train_set is None or not has_messages(recipe.train_set)):
        return []
    if (tokenizer := recipe.tokenizer()) is None:
        return []
    if calls:
        return refused("template", tool_checks.check_template, tokenizer, bool(recipe.tools))
    why = lacks_template(tokenizer, recipe.model.model_name_or_path)
    return [CheckRow("template", FAILED, why)] if why else []


Check = Callable[[Recipe], Iterable[CheckRow]]
PAPER: tuple[Check, ...] = (
    keys,
    preset,
    processes,
    options,
    together,
    machine,
    dtype,
    output,
    rewards,
    callables,
    filter_metric,
    stream,
    advantage,
    data,
    model,
)
# `model` is checked again here, because a prepare function may make the model.
DATA: tuple[Check, ...] = (splits, model, attention, prompts, reset, enough, remembered, columns, template)


def on_paper(recipe: Recipe) -> list[CheckRow]:
    """Return the rows of the checks in PAPER; only those of `keys` if the recipe is not readable."""
    return [row for check in PAPER[: None if recipe.readable else 1] for row in check(recipe)]


def on_data(recipe: Recipe) -> list[CheckRow]:
    """Return the rows of the checks in DATA, which read `recipe.splits`. Call `on_paper` first."""
    return [row for check in DATA for row in check(recipe)]
