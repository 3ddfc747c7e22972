"""The launch script's main function: check the recipe, load the data, train, evaluate, report."""

import json
import os
import shlex
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..config import presets
from ..trainer.vllm.server import ServerFailed
from ..utils.distributed import lost_process, raise_on_all_ranks
from ..utils.fork_server import end_with_parent
from ..utils.tables import WARNED, CheckRow, raise_failures
from ..utils.terminal import outlive_reader, say, tell_errors_visibly
from ..utils.validation import ConfigError, error_lines
from .arguments import make_parser
from .command_line import launched_as, parse, resume_command
from .launchers import ERROR_FILE, LOST, STARTED_BY
from .preflight import on_data, on_paper
from .recipe import Recipe, launched
from .reward_inputs import load_callables, load_data


if TYPE_CHECKING:
    from trl import GRPOTrainer


def main(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    dataset_args: Any,
    trainer_class: Callable[..., Any] | None = None,
    loader: Callable[..., Any] | None = None,
) -> int:
    """Train, evaluate and report.

    Args:
        script_args, training_args, model_args, dataset_args: the dataclasses that [`make_parser`]'s parser returns.
        trainer_class (`Callable`, *optional*): class to use instead of [`~trl_grpo_plus.GRPOPlusTrainer`].
        loader (`Callable`, *optional*): function to use instead of [`load_data`].

    Returns:
        `int`: the exit status: 0, or 130 if Ctrl-C ended the run after a saved step.
    """
    from ..utils.folder_lock import hold

    recipe = launched(script_args, training_args, model_args, dataset_args)
    with raise_on_all_ranks():  # a node may lack a package, a model's folder or a writable disk
        _raise_failures(on_paper(recipe), training_args)
    with hold(training_args.output_dir):
        return _run(recipe, trainer_class, loader or load_data)


def _run(recipe: Recipe, trainer_class: Callable[..., Any] | None, loader: Callable[..., Any]) -> int:
    from ..trainer.progress import SlimProgress
    from ..trainer.recorder import Recorder
    from .interrupts import StopOnInterrupt
    from .previous_run import settle_folder

    training_args = recipe.training
    if training_args.preset and training_args.process_index == 0:
        say(f"preset {presets.describe(training_args)}")
    settle_folder(training_args)
    # If the main process fails, the context still lets the others go on.
    with raise_on_all_ranks(), training_args.main_process_first(local=False):
        recipe.splits = loader(recipe.script, training_args, recipe.model, recipe.data)
        recipe.rowless = recipe.splits is None
    recipe.tokenizer = partial(_tokenizer, recipe.model, training_args)
    with raise_on_all_ranks():
        _raise_failures(on_data(recipe), training_args)
    trainer = _make_trainer(trainer_class, recipe)
    SlimProgress.install(trainer)
    Recorder.say_no_folder(trainer)  # the report says the same
    stop = StopOnInterrupt(trainer.accelerator)
    trainer.add_callback(stop)
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    if stop.stopped:
        _say_how_to_resume(trainer)
    else:
        _finish(trainer, recipe)
    _end(trainer)
    return 130 if stop.stopped else 0


def _say_how_to_resume(trainer: "GRPOTrainer") -> None:
    step = trainer.state.global_step
    checkpoint = os.path.join(trainer.args.output_dir, f"checkpoint-{step}")
    stopped = f"\nStopped after step {step}. The checkpoint is {checkpoint}. To resume from it:"
    trainer.accelerator.print(f"{stopped}\n\n  {resume_command(checkpoint)}\n")


def _finish(trainer: "GRPOTrainer", recipe: Recipe) -> None:
    """Evaluate, save, report and push after the last step."""
    from .report import report, save, summarise

    _evaluate_last(trainer)
    saved = save(trainer)
    if trainer.accelerator.is_main_process:
        say(report(summarise(trainer, saved)))
    if recipe.training.push_to_hub:
        trainer.push_to_hub(dataset_name=recipe.script.dataset_name)


def _raise_failures(rows: list[CheckRow], training_args: Any) -> None:
    """Raise all failures in one error. If there are none, print the warnings on the main process."""
    raise_failures(rows)
    for row in rows:
        if row.status == WARNED and training_args.process_index == 0:
            say(f"warning: {row.text}", file=sys.stderr)


def _tokenizer(model_args: Any, training_args: Any) -> Any:
    from transformers import AutoTokenizer

    options = {"revision": model_args.model_revision, "trust_remote_code": training_args.trust_remote_code}
    try:
        return AutoTokenizer.from_pretrained(model_args.model_name_or_path, **options)
    except Exception:  # for example, the model has a processor: TRL will load it, or report why it cannot
        return None


def _make_trainer(trainer_class: Callable[..., Any] | None, recipe: Recipe) -> Any:
    from trl import get_peft_config, get_quantization_config

    from .. import GRPOPlusTrainer

    model_args, training_args = recipe.model, recipe.training
    options = {
        "revision": model_args.model_revision,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    }
    training_args.model_init_kwargs = options | (training_args.model_init_kwargs or {})
    return (trainer_class or GRPOPlusTrainer)(
        model=model_args.model_name_or_path,
        reward_funcs=recipe.rewards,
        args=training_args,
        train_dataset=recipe.train_set,
        eval_dataset=recipe.eval_sets or None,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
        **load_callables(recipe.script),
    )


def _evaluate_last(trainer: "GRPOTrainer") -> None:
    from ..trainer.training_state import is_evaluated

    if trainer.eval_dataset is not None and not is_evaluated(trainer.state):
        trainer.evaluate()


def _end(trainer: "GRPOTrainer") -> None:
    # The others wait while the main process writes the report. gloo needs no teardown, and was seen to hang in it.
    # vLLM's engine in this process tears down the group when Python ends, with a traceback if the group is gone.
    trainer.accelerator.wait_for_everyone()
    colocated = trainer.args.use_vllm and trainer.args.vllm_mode == "colocate"
    if "gloo" not in str(trainer.accelerator.state.backend) and not colocated:
        trainer.accelerator.end_training()


def _end_with_launcher() -> bool:
    """End this process when the launcher of `trl-grpo-plus run` is killed; nothing else would end it.

    Returns:
        `bool`: whether that launcher started this process.
    """
    pid, _, host = os.environ.pop(STARTED_BY, "0").partition("@")  # removed, or this process's children would read it
    launcher = int(pid) if host == socket.gethostname() else 0  # a launcher may pass its environment to another node
    if launcher == os.getppid():
        end_with_parent(signal.SIGTERM)
    if launcher and not (psutil.pid_exists(launcher) and psutil.Process(launcher).status() != psutil.STATUS_ZOMBIE):
        say(f"error: the launcher, process {launcher}, has ended. This process ends too.", file=sys.stderr)
        sys.exit(128 + signal.SIGTERM)
    return bool(launcher)


def _say_once(text: str) -> None:
    """Print an error once on each node, because its cause may be on one node only."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        say(text, file=sys.stderr)


def _say_last(text: str, launched: bool) -> None:
    """Write an error for the launcher, which prints it after the errors of processes that lost contact to this one.

    The launcher prints one error, whichever process wrote it. Without a launcher of `trl-grpo-plus run`, print the
    error at once; torch's launcher reads the file too.
    """
    file = os.environ.get(ERROR_FILE)
    if file:
        Path(file).write_text(json.dumps({"message": text, "timestamp": int(time.time())}))
    if not (launched and file):
        _say_once(text)


def _way_on(output_dir: str) -> str:
    """Return the command that continues a failed run, with a sentence before it."""
    if checkpoint := _last_checkpoint(output_dir):
        return f"That is {checkpoint}:\n\n  {resume_command(checkpoint)}\n"
    return f"It has saved none. To start it again:\n\n  {shlex.join(launched_as())}\n"


def _last_checkpoint(output_dir: str) -> str | None:
    from ..trainer.checkpoint_integrity import newest

    return newest(output_dir)[0]


def _say_stopped(output_dir: str | None) -> None:
    """Print that the run stopped at once, and how to go on; without a folder, the run had not begun."""
    saved = "No checkpoint is saved."
    if checkpoint := output_dir and _last_checkpoint(output_dir):
        saved = f"The last checkpoint is {checkpoint}. To resume from it:\n\n  {resume_command(checkpoint)}\n"
    _say_once(f"\nStopped at once. {saved}")


def run(main: Callable[..., int] = main, prog: str = "trl_grpo_plus.recipes.grpo") -> int:
    """Run `main` with this process's command line. A user's mistake prints an error and returns exit status 2."""
    outlive_reader()
    launched = _end_with_launcher()
    parsed: tuple[Any, ...] = ()
    try:
        from ..trainer.progress import silence_libraries

        silence_libraries()
        tell_errors_visibly()
        launched_as()  # cached now, while the launcher is still running
        parsed = parse(make_parser(prog=prog), sys.argv[1:])
        return main(*parsed)
    except ConfigError as error:
        _say_last(error_lines(error), launched)
        return 2
    except ServerFailed as error:
        _say_last(f"error: {error} {_way_on(parsed[1].output_dir)}", launched)
        return 1
    except RuntimeError as error:
        if (lost := lost_process(error)) is None:
            raise
        say(traceback.format_exc(), file=sys.stderr)
        say(f"error: {LOST.format(lost=lost)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _say_stopped(parsed[1].output_dir if parsed else None)
        return 130
