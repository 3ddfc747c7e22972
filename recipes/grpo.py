"""Run GRPO from one YAML file: `accelerate launch -m trl_grpo_plus.recipes.grpo --config NAME|PATH [--option value]`.

NAME is a YAML that ships with this package. Options on the command line win over the file's. The shape is that of
TRL's `trl/scripts/grpo.py`; on top of it come `prepare`, refused typos, Ctrl-C that saves, and a closing report.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from trl import ScriptArguments

from trl_grpo_plus import preflight
from trl_grpo_plus.loading import near
from trl_grpo_plus.registry import resolve

from .command_line import UserError, launch_command, launched_as, load, parse, said_plainly


@dataclass
class GRPOPlusScriptArguments(ScriptArguments):
    """Script arguments: those of TRL's scripts and these.

    Args:
        reward_funcs (`list[str]`, *optional*):
            Rewards, each a registered name, a path (`pkg.mod.func`, `pkg.mod:func`, `path/to/file.py:func`), a model's
            id, or `{name: ..., args: ..., weight: ..., ...}`; see [`~trl_grpo_plus.registry.RewardSpec`].
        prepare (`str`, *optional*):
            Function, given like a reward function, that makes or loads the run's data and, where wanted, its model:
            `(script_args, training_args, model_args, **prepare_args) -> DatasetDict`. It is called on the main process
            first, then on the others. Where it takes `smoke`, `trl-grpo-plus check` passes `smoke=True` and wants
            the same in little time. Without it, `dataset_name` or `datasets` says what to load.
        prepare_args (`dict[str, Any]` or `str`, *optional*):
            Keyword arguments of `prepare`. As JSON on the command line.
    """

    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Rewards, each a registered name, pkg.mod.func, pkg.mod:func, path/to/file.py:func, a model, or "
            "'{name: ..., args: {...}, weight: 1, timeout: 5, monitor: false}'."
        },
    )
    prepare: str | None = field(
        default=None,
        metadata={
            "help": "Function (script_args, training_args, model_args) -> DatasetDict that makes or loads the run's "
            "data, given as pkg.mod.func, pkg.mod:func or path/to/file.py:func."
        },
    )
    prepare_args: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Keyword arguments of `prepare`, as JSON on the command line."}
    )


def main(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    dataset_args: Any,
    trainer_class: type | None = None,
    loader: Callable[..., Any] | None = None,
) -> int:
    """Train, evaluate and report.

    Args:
        script_args, training_args, model_args, dataset_args: what [`make_parser`]'s parser returns.
        trainer_class (`type`, *optional*): a subclass of [`~trl_grpo_plus.GRPOPlusTrainer`] to use in its place.
        loader (`Callable`, *optional*): to use in place of [`load_data`].

    Returns:
        `int`: the exit status: 0, or 130 where Ctrl-C ended the run after a saved step.
    """
    from trl import get_peft_config, get_quantization_config

    from trl_grpo_plus import GRPOPlusTrainer

    from .console import SlimProgress
    from .report import report, settle_folder, summarise, wanted_checkpoint
    from .stopping import StopOnInterrupt

    rewards, training_args.reward_weights = read_rewards(script_args.reward_funcs, training_args.reward_weights)
    with said_plainly():
        preflight.check_processes(training_args)
        preflight.check_pairs(training_args, model_args)
        preflight.check_packages(training_args, model_args)
    wanted_checkpoint(training_args)
    check_data_name(script_args, dataset_args)
    if model_args.model_name_or_path or not script_args.prepare:  # which may make one
        with said_plainly():
            preflight.check_model(model_args.model_name_or_path)
    with training_args.main_process_first(local=False):
        settle_folder(training_args)
    with training_args.main_process_first(local=False):
        dataset = (loader or load_data)(script_args, training_args, model_args, dataset_args)
    with said_plainly():
        train_set, eval_sets = preflight.pick_splits(dataset, script_args.dataset_train_split, training_args)
        preflight.check_model(model_args.model_name_or_path)
        preflight.check_data(train_set, rewards, training_args)
        _check_template(train_set, model_args, training_args)
    _set_model_init(training_args, model_args)

    with said_plainly():
        trainer = (trainer_class or GRPOPlusTrainer)(
            model=model_args.model_name_or_path,
            reward_funcs=rewards,
            args=training_args,
            train_dataset=train_set,
            eval_dataset=eval_sets,
            quantization_config=get_quantization_config(model_args),
            peft_config=get_peft_config(model_args),
        )
    SlimProgress.install(trainer)
    stop = StopOnInterrupt(trainer.accelerator)
    trainer.add_callback(stop)
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    if stop.stopped:
        trainer.accelerator.print(_how_to_resume(training_args.output_dir, trainer.state.global_step))
        _end(trainer)
        return 130

    _evaluate_last(trainer)
    trainer.save_model(training_args.output_dir)
    trainer.save_state()
    if trainer.accelerator.is_main_process:
        print(report(summarise(trainer)))
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)
    _end(trainer)
    return 0


def make_parser(subparsers: Any = None, prog: str | None = None, config: type | None = None) -> Any:
    """TRL's parser over the script's, the trainer's, the model's and the dataset mixture's arguments.

    Args:
        subparsers, prog (*optional*): as in TRL's scripts.
        config (`type`, *optional*): a subclass of [`~trl_grpo_plus.GRPOPlusConfig`] to use in its place.
    """
    from trl import DatasetMixtureConfig, ModelConfig, TrlParser

    from trl_grpo_plus import GRPOPlusConfig

    dataclass_types = (GRPOPlusScriptArguments, config or GRPOPlusConfig, ModelConfig, DatasetMixtureConfig)
    if subparsers is not None:
        return subparsers.add_parser("grpo", help="Run the GRPO training script", dataclass_types=dataclass_types)
    # The usage that argparse would make up lists some three hundred options.
    return TrlParser(dataclass_types, prog=prog, usage="%(prog)s --config NAME|PATH [--option value ...]")


def check_data_name(script_args: Any, dataset_args: Any) -> None:
    """Refuse a recipe without data, and a prepare function, an argument of its or a file that are not there.

    Raises:
        UserError: with what to do about it.
    """
    if script_args.prepare:
        _prepare_args(load(script_args.prepare, "prepare"), script_args.prepare_args, smoke=False)
    elif script_args.prepare_args:
        raise UserError("prepare_args are given, but prepare names no function to give them to.")
    elif not (script_args.dataset_name or dataset_args.datasets):
        raise UserError("There is no data: set dataset_name, datasets or prepare.")
    if script_args.dataset_name:
        with said_plainly():
            preflight.check_data_path(script_args.dataset_name)


def load_data(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any, smoke: bool = False) -> Any:
    """The run's data: what `prepare` returns, the mixture `datasets`, or `dataset_name`.

    Args:
        script_args, training_args, model_args, dataset_args: what [`make_parser`]'s parser returns.
        smoke (`bool`, *optional*, defaults to `False`): passed to a `prepare` that takes it.

    Raises:
        UserError: `prepare` does not take what it is given, or a file is not there.
    """
    from trl import get_dataset

    from trl_grpo_plus.data import load as load_splits

    if script_args.prepare:
        prepare = load(script_args.prepare, "prepare")
        given = _prepare_args(prepare, script_args.prepare_args, smoke)
        with said_plainly():
            return prepare(script_args, training_args, model_args, **given)
    if dataset_args.datasets:
        return get_dataset(dataset_args)
    with said_plainly("dataset_name"):
        return load_splits(script_args.dataset_name, script_args.dataset_config, script_args.dataset_streaming)


def takes_smoke(script_args: Any) -> bool:
    """Whether the recipe's prepare function makes less where it is called for a check."""
    return bool(script_args.prepare) and "smoke" in inspect.signature(load(script_args.prepare, "prepare")).parameters


def _prepare_args(prepare: Callable[..., Any], given: Any, smoke: bool) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise UserError(f"prepare_args: {given!r} is not JSON.") from None
    if not isinstance(given, dict | None):
        raise UserError(f"prepare_args: {given!r} must be the arguments of prepare by name.")
    parameters = inspect.signature(prepare).parameters.values()
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    free = [name for name in takes[3:] if name != "smoke"]
    for name in given or {}:
        if name not in free and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise UserError(f"prepare_args: {name!r} is none of {', '.join(free) or 'any'}.{near(name, free)}")
    return {**(given or {}), **({"smoke": True} if smoke and "smoke" in takes else {})}


def _check_template(train_set: Any, model_args: Any, training_args: Any) -> None:
    from transformers import AutoTokenizer

    name = model_args.model_name_or_path
    options = {"revision": model_args.model_revision, "trust_remote_code": training_args.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except Exception:  # it has a processor, say: TRL will find what it needs, or say why not
        return
    preflight.check_template(train_set, tokenizer, name)


def _set_model_init(training_args: Any, model_args: Any) -> None:
    given = {
        "revision": model_args.model_revision,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    }
    training_args.model_init_kwargs = given | (training_args.model_init_kwargs or {})


def _evaluate_last(trainer: Any) -> None:
    evaluated = [entry["step"] for entry in trainer.state.log_history if any(k.startswith("eval_") for k in entry)]
    if trainer.eval_dataset is not None and evaluated[-1:] != [trainer.state.global_step]:
        trainer.evaluate()


def _end(trainer: Any) -> None:
    # The main process has a report to write; gloo needs no tearing down, and was seen to hang in it.
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.state.backend != "gloo":
        trainer.accelerator.end_training()


def _how_to_resume(output_dir: str, step: int) -> str:
    checkpoint = os.path.join(output_dir, f"checkpoint-{step}")
    return (
        f"\nStopped after step {step}, saved in {checkpoint}. To go on from there:\n\n  {launch_command(checkpoint)}\n"
    )


def read_rewards(entries: Any, weights: list[float] | None) -> tuple[list[Any], list[float] | None]:
    """The rewards that `reward_funcs` names, and their weights.

    Raises:
        UserError: an entry is not understood, or weights do not go with them.
    """
    entries = [entries] if isinstance(entries, str | dict) else entries or []
    if not entries:
        raise UserError("reward_funcs is empty: name at least one reward function.")
    with said_plainly("reward_funcs"):
        # On the command line an entry with options is a text.
        parsed = [_parsed(entry) if isinstance(entry, str) else entry for entry in entries]
        rewards, weights = resolve(parsed, weights)
    if weights is not None and len(weights) != len(rewards):
        raise UserError(f"reward_weights has {len(weights)} values for {len(rewards)} reward_funcs: give one each.")
    return rewards, weights


def _parsed(entry: str) -> Any:
    if not entry.lstrip().startswith("{"):
        return entry
    try:
        return yaml.safe_load(entry)
    except yaml.YAMLError:
        raise UserError(f"reward_funcs: {entry!r} is not {{name: ..., weight: ...}} in YAML or JSON.") from None


def run(main: Callable[..., int] = main, prog: str = "trl_grpo_plus.recipes.grpo") -> int:
    """Run `main` on what this process's command line says; a user's mistake is one line, and the exit status 2."""
    from .console import hush

    hush()
    launched_as()  # while the launcher is still there to ask
    try:
        return main(*parse(make_parser(prog=prog), sys.argv[1:]))
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of each node, whose mistake it may be
            print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped at once. Nothing was saved beyond the checkpoints that were already there.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())
