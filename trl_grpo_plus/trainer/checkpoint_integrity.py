"""The check that a checkpoint is complete.

A process that is killed while it saves, or that meets a full disk, leaves a folder that only looks like a checkpoint.
"""

import functools
import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..utils.validation import ConfigError


logger = logging.getLogger(__name__)  # accelerate's logger needs initialized processes

LAST = "trainer_state.json"  # written last
AUTO = "auto"  # value of resume_from_checkpoint: the last complete checkpoint, or a new run if there is none
# Files of transformers, accelerate, PEFT and this package; a user's own files are not checked.
SAVED_BY_TORCH = (
    "pytorch_model*.bin",
    "adapter_model*.bin",
    "optimizer*.bin",
    "training_args.bin",
    "optimizer*.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "grpo_plus_*.pt",
)


@contextmanager
def saving(folder: Path, rank: int) -> Iterator[None]:
    """Save a checkpoint inside this context, in which an error tells its consequence for the run."""
    try:
        if rank == 0:  # an earlier checkpoint of this step is no longer complete
            (folder / LAST).unlink(missing_ok=True)
        yield
    except Exception as error:
        if not (lack := lacking(folder)):  # a later failure: the upload, or the removal of old checkpoints
            raise
        there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(there).free / 1e6
        raise RuntimeError(
            f"{folder} was not saved completely: {lack} ({type(error).__name__}: {error}). Its disk has {free:.0f} MB "
            "free. resume_from_checkpoint=True skips it and resumes from the last complete checkpoint."
        ) from error


def lacking(folder: str | Path) -> str:
    """Return the reason why a checkpoint is incomplete, "" for a complete one."""
    folder = Path(folder)
    cut_off = []
    for path in {folder / LAST, *folder.glob("*.json")}:
        try:
            json.loads(path.read_bytes())
        except FileNotFoundError:
            return f"{LAST} is missing, which is written last"
        except OSError as error:
            return f"{path.name} cannot be read ({error})"
        except ValueError:
            cut_off.append(path.name)
    paths = {path for pattern in SAVED_BY_TORCH for path in folder.glob(pattern)}
    for path in paths | {*folder.glob("*.safetensors")}:
        try:
            with path.open("rb") as file:
                if path.suffix != ".safetensors" and not zipfile.is_zipfile(file):
                    cut_off.append(path.name)
            if path.suffix == ".safetensors":
                safe_open(path, framework="pt").__exit__(None, None, None)
        except OSError as error:
            return f"{path.name} cannot be read ({error})"
        except SafetensorError:
            cut_off.append(path.name)
    # This package's rank states are written before trainer_state.json. TRL's random states may come after it.
    ranks = {path.stem.rpartition("_")[2] for path in folder.glob("grpo_plus_state_*.pt")}
    for name in sorted(f"rng_state_{rank}.pth" for rank in ranks if len(ranks) > 1):
        if not (folder / name).exists():
            return f"{name} is missing"
    return f"{' and '.join(sorted(cut_off))} cut off" if cut_off else ""


def check(folder: str) -> None:
    """Refuse an incomplete checkpoint."""
    if lack := lacking(folder):
        raise ConfigError(f"resume_from_checkpoint: {folder} is incomplete: {lack}. Name an earlier checkpoint.")


def last_complete(output_dir: str) -> str:
    """Return the last complete checkpoint of a run, and warn of later incomplete ones.

    Raises:
        ConfigError: there is no complete checkpoint.
    """
    checkpoint, lacks = _last_complete(output_dir)
    if checkpoint is None:
        reasons = f" that is complete: {'; '.join(lacks)}" if lacks else ""
        raise ConfigError(
            f"resume_from_checkpoint is true, but {output_dir} holds no checkpoint{reasons}. "
            f"{AUTO!r} starts anew where there is none."
        )
    return checkpoint


def last_complete_if_any(output_dir: str) -> str | None:
    """Return the last complete checkpoint of a run; `None` if there is none. Warn of incomplete ones."""
    checkpoint, lacks = _last_complete(output_dir)
    if checkpoint is None and lacks:
        _warn(f"{'; '.join(lacks)}. Not saved completely: there is nothing to resume from.")
    return checkpoint


def _last_complete(output_dir: str) -> tuple[str | None, list[str]]:
    """Return the last complete checkpoint, if any, and what each later one lacks. If there are both, warn."""
    named = {path: re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name) for path in Path(output_dir).glob("*")}
    numbers = {path: int(name[1]) for path, name in named.items() if name}
    lacks: list[str] = []
    for path in sorted(numbers, key=numbers.__getitem__, reverse=True):
        if not (lack := lacking(path)):
            if lacks:
                _warn(f"{'; '.join(lacks)}. Not saved completely: resuming from {path}.")
            return str(path), lacks
        lacks.append(f"{path}: {lack}")
    return None, lacks


def complete_checkpoint(resume_from_checkpoint: Any, output_dir: str) -> Any:
    """Return the checkpoint that `resume_from_checkpoint` names, as the first rank finds it. Collective.

    Raises:
        ConfigError: the checkpoint is incomplete, or with `True` there is no complete checkpoint.
    """
    if not resume_from_checkpoint:
        return resume_from_checkpoint
    checkpoint: Any = resume_from_checkpoint
    try:
        if not PartialState().is_main_process:
            pass  # another machine may not have the file
        elif resume_from_checkpoint is True:
            checkpoint = last_complete(output_dir)
        elif str(resume_from_checkpoint).lower() == AUTO:
            checkpoint = last_complete_if_any(output_dir)
        else:
            check(resume_from_checkpoint)
    except ConfigError as error:
        checkpoint = error
    checkpoint = broadcast_object_list([checkpoint])[0]
    if isinstance(checkpoint, ConfigError):
        raise checkpoint
    return checkpoint


@functools.cache
def _warn(message: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # every rank of a launch script comes here
        logger.warning(message)
