"""What the launch script does with a recipe: refuse, load, train, evaluate, report."""

import os
import sys
from collections.abc import Callable
from typing import Any

from accelerate.utils import DistributedType

from ..common.values import Refusal
from . import options as preflight_options
from . import prompts as preflight
from .arguments import make_parser
from .command_line import launched_as, parse, resume_command
from .inputs import adapter, check_data_name, load_data, read_rewards


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
    from .console import SlimProgress
    from .report import report, save, summarise
    from .stopping import StopOnInterrupt

    given = (script_args, training_args, model_args, dataset_args)
    rewards, evaluated = _before_data(*given)
    with training_args.main_process_first(local=False):
        dataset = (loader or load_data)(*given)
    train_set, eval_sets = preflight.pick_splits(dataset, script_args.dataset_train_split, evaluated)
    preflight.check_model(model_args.model_name_or_path)
    preflight.check_data(train_set, eval_sets, rewards, training_args)
    _check_template(train_set, model_args, training_args)
    trainer = _make_trainer(trainer_class, training_args, model_args, rewards, train_set, eval_sets)
    SlimProgress.install(trainer)
    stop = StopOnInterrupt(trainer.accelerator)
    trainer.add_callback(stop)
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    if stop.stopped:
        trainer.accelerator.print(_how_to_resume(training_args.output_dir, trainer.state.global_step))
        _end(trainer)
        return 130

    _evaluate_last(trainer)
    saved = save(trainer)
    if trainer.accelerator.is_main_process:
        print(report(summarise(trainer, saved)))
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)
    _end(trainer)
    return 0


def _before_data(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> tuple[list[Any], bool]:
    """Refuse what can be refused by now, and make the run's folder ready: the rewards, and whether it evaluates."""
    from .earlier import check_start
    from .report import settle_folder, wanted_checkpoint

    rewards, training_args.reward_weights = read_rewards(script_args.reward_funcs, training_args.reward_weights)
    preflight_options.check_processes(training_args)
    preflight_options.check_options(training_args, model_args)
    preflight_options.check_packages(training_args, model_args)
    sharded = training_args.distributed_state.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP)
    if (
        lost := preflight_options.lost_in_rounding(training_args, model_args, sharded)
    ) and training_args.process_index == 0:
        print(f"warning: {lost}", file=sys.stderr)
    check_start(training_args, model_args, resumes=wanted_checkpoint(training_args) is not None)
    check_data_name(script_args, dataset_args)
    if model_args.model_name_or_path or not script_args.prepare:  # which may make one
        preflight.check_model(model_args.model_name_or_path)
    evaluated = preflight_options.evaluates(training_args)  # before a run that resumes is told not to, at its start
    with training_args.main_process_first(local=False):
        settle_folder(training_args)
    return rewards, evaluated


def _make_trainer(
    trainer_class: type | None, training_args: Any, model_args: Any, rewards: list[Any], train_set: Any, eval_sets: Any
) -> Any:
    from trl import get_quantization_config

    from .. import GRPOPlusTrainer

    _set_model_init(training_args, model_args)
    return (trainer_class or GRPOPlusTrainer)(
        model=model_args.model_name_or_path,
        reward_funcs=rewards,
        args=training_args,
        train_dataset=train_set,
        eval_dataset=eval_sets,
        quantization_config=get_quantization_config(model_args),
        peft_config=adapter(model_args),
    )


def _check_template(train_set: Any, model_args: Any, training_args: Any) -> None:
    from transformers import AutoTokenizer

    if not preflight.has_messages(train_set):
        return
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
        f"\nStopped after step {step}, saved in {checkpoint}. To go on from there:\n\n  {resume_command(checkpoint)}\n"
    )


def run(main: Callable[..., int] = main, prog: str = "trl_grpo_plus.recipes.grpo") -> int:
    """Run `main` on what this process's command line says; a user's mistake is one line, and the exit status 2."""
    from .console import hush

    hush()
    launched_as()  # while the launcher is still there to ask
    try:
        return main(*parse(make_parser(prog=prog), sys.argv[1:]))
    except Refusal as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of each node, whose mistake it may be
            print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped at once. Nothing was saved beyond the checkpoints that were already there.", file=sys.stderr)
        return 130
