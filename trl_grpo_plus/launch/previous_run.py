"""What an earlier run left in `output_dir`: a checkpoint to resume from, or files that are moved to a separate folder.

A run's files are recognised by the names that this package, TRL, transformers and PEFT write. The list of files in the
run's summary adds the files of a model's own code or tokenizer. Everything else in the folder belongs to the user.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from ..trainer.checkpoint_integrity import complete_checkpoint, ways
from ..utils.files import unused
from ..utils.terminal import say
from ..utils.validation import ConfigError
from .command_line import resume_command
from .recipe_yaml import FALSE, TRUE


PAGE, SUMMARY = "report.html", "summary.json"
NO_RESUME = (*FALSE, "none", "null", "")
UNFINISHED = "earlier-unfinished"  # folder of a move that is under way, or was killed
# Any of these files shows that a run was here. The summary comes last, because it lists other files.
MARKS = ("checkpoint-[0-9]*", "trainer_state.json", "training_args.bin", "rollouts", PAGE, SUMMARY)
WEIGHTS = ("model*.safetensors", "model*.safetensors.index.json", "pytorch_model*", "adapter_model*")
OF_A_MODEL = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.*",
    "additional_chat_templates",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
OF_A_RUN = ("completions", "runs", "wandb", "trackio", "warm_start", "rescore.html")


def settle_folder(training_args: Any) -> None:
    """Find the checkpoint to resume from, or move an earlier run in `output_dir` out of the way.

    This sets `resume_from_checkpoint` to a path or `None`. When resuming, it turns `eval_on_start` off, because the
    checkpoint's log already holds the first evaluation. A new run must neither mix its files with another run's nor
    overwrite them. All files of the earlier run are therefore moved to `<output_dir>/earlier-N`. The same happens
    when the run resumes from a checkpoint in another folder.

    The first process chooses the checkpoint for all. Collective.

    Raises:
        ConfigError: there is no such checkpoint, it is not complete, or another machine does not have it.
    """
    folder = training_args.output_dir
    checkpoint = complete_checkpoint(requested(training_args), folder)
    training_args.resume_from_checkpoint = checkpoint
    with training_args.main_process_first(local=False):
        if training_args.local_process_index == 0:  # one process on each node: nodes may not share a disk
            _make_room(Path(folder), checkpoint)
    if checkpoint is not None:
        training_args.eval_on_start = False


def requested(training_args: Any) -> Any:
    """Return `resume_from_checkpoint` as the trainer takes it. Recipes and the command line give texts.

    Raises:
        ConfigError: the value is neither a text nor true or false.
    """
    value = training_args.resume_from_checkpoint
    if value is None or isinstance(value, bool | os.PathLike):
        return value
    if not isinstance(value, str):
        raise ConfigError(
            f"resume_from_checkpoint={value!r} is neither a text nor true or false. {ways(training_args.output_dir)}"
        )
    return True if value.lower() in TRUE else None if value.lower() in NO_RESUME else value


def _make_room(folder: Path, checkpoint: str | None) -> None:
    if checkpoint is None:
        move_aside(folder, "Starting a new run.")
    elif not (folder.is_dir() and any(os.path.samefile(at, folder) for at in (checkpoint, Path(checkpoint).parent))):
        move_aside(folder, f"Resuming from {checkpoint}.")


def of_a_run(folder: Path) -> list[Path]:
    """Return the files of a run or a saved model in `folder`; empty if there is neither.

    The files are in the order of moving. If a move is cut short, the remaining files are still recognised as a run's.
    """
    marks, weights = _matching(folder, MARKS), _matching(folder, WEIGHTS)
    beside: list[Path] = []
    if marks:
        beside += [*_matching(folder, OF_A_RUN), *_listed(folder), *_card(folder)]
    if weights:
        beside += _matching(folder, OF_A_MODEL)
    return list(dict.fromkeys([*(path for path in beside if path not in {*marks, *weights}), *marks, *weights]))


def move_aside(folder: Path, then: str) -> None:
    """Move all files of an earlier run to `<folder>/earlier-N`, and print a message. Only one process may do so.

    Args:
        folder (`Path`): output folder of the runs.
        then (`str`): sentence that ends the message.
    """
    unfinished, left = folder / UNFINISHED, of_a_run(folder)
    if not left and not unfinished.is_dir():
        return
    if any((unfinished / path.name).exists() for path in left):  # a run wrote here after a move was cut short
        unfinished.rename(unused(folder, "earlier"))
    unfinished.mkdir(exist_ok=True)
    for path in left:
        with suppress(FileNotFoundError):  # another node has moved it, and this node's NFS still lists it
            path.rename(unfinished / path.name)
    if not any(unfinished.iterdir()):
        unfinished.rmdir()
        return
    earlier = unfinished.rename(unused(folder, "earlier"))
    finished, checkpoint = (earlier / SUMMARY).exists(), get_last_checkpoint(str(earlier))
    what = "a finished run" if finished else "an interrupted run" if _matching(earlier, MARKS) else "a model"
    say(f"Moved {what} from {folder} to {earlier}. {then}")
    if checkpoint and not finished:
        say(f"To resume that run instead:\n\n  {resume_command(checkpoint)}\n")


def check_start(training_args: Any, model_args: Any, resumes: bool) -> None:
    """Refuse a run that would overwrite or move the model that the run starts from."""
    name, output = model_args.model_name_or_path, training_args.output_dir
    if not name or not os.path.isdir(os.path.expanduser(name)):
        return
    model = Path(name).expanduser().resolve()
    if model == Path(output).resolve():
        raise ConfigError(
            f"output_dir: {output} holds the model that the run starts from (model_name_or_path). The run would "
            "overwrite it. Choose another folder."
        )
    if not resumes and any(model.is_relative_to(path.resolve()) for path in of_a_run(Path(output))):
        raise ConfigError(
            f"model_name_or_path: {name} belongs to the earlier run in output_dir ({output}). A new run would move "
            "it away. Choose another output_dir."
        )


def stamps(folder: str) -> dict[str, int]:
    """Return the last modification time of each entry of a folder, in ns; empty if there is no folder."""
    entries = os.scandir(folder) if os.path.isdir(folder) else ()
    return {entry.name: entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries}


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def _listed(folder: Path) -> list[Path]:
    """Return the existing files that the run's summary lists as saved."""
    try:
        names = json.loads((folder / SUMMARY).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):  # no summary, or an older release's
        return []
    return [path for name in names if (path := folder / Path(name).name).exists()]


def _card(folder: Path) -> list[Path]:
    """Return the model card, but not a README that the user wrote."""
    card = folder / "README.md"
    try:
        head = card.read_text(errors="replace")[:2000]
    except OSError:
        return []
    return [card] if head.startswith("---") and "library_name:" in head else []
