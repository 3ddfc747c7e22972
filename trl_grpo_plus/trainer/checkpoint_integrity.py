"""Whether a checkpoint is whole.

A process that is killed while it saves, or whose disk is full, leaves a folder that looks like one and is none.
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


logger = logging.getLogger(__name__)  # accelerate's wants processes that know of each other

LAST = "trainer_state.json"  # the file that is written last
# Of transformers, accelerate, PEFT and this package; a user's own file of such a kind is none of them.
SAVED_BY_TORCH = (
    *("pytorch_model*.bin", "adapter_model*.bin", "optimizer*.bin", "training_args.bin"),
    *("optimizer*.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "grpo_plus_*.pt"),
)


@contextmanager
def saving(folder: Path, rank: int) -> Iterator[None]:
    """For saving a checkpoint: an error says what it means for the run."""
    try:
        if rank == 0:  # an earlier one of this step stops being whole
            (folder / LAST).unlink(missing_ok=True)
        yield
    except Exception as error:
        if not (lack := lacking(folder)):  # what comes after it: its upload, older ones that go
            raise
        there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(there).free / 1e6
        raise RuntimeError(
            f"{folder} was not saved whole: {lack} ({type(error).__name__}: {error}). On its disk {free:.0f} MB are "
            "free. It is not resumed from: resume_from_checkpoint=True goes on from the last one that is whole."
        ) from error


def lacking(folder: str | Path) -> str:
    """Return what a checkpoint lacks to be whole, "" where it is."""
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
    # All ranks' states of this package are there before trainer_state.json is; their random numbers may come after.
    ranks = {path.stem.rpartition("_")[2] for path in folder.glob("grpo_plus_state_*.pt")}
    for name in sorted(f"rng_state_{rank}.pth" for rank in ranks if len(ranks) > 1):
        if not (folder / name).exists():
            return f"{name} is missing"
    return f"{' and '.join(sorted(cut_off))} cut off" if cut_off else ""


def check(folder: str) -> None:
    """Refuse a checkpoint that is not whole."""
    if lack := lacking(folder):
        raise ConfigError(f"resume_from_checkpoint: {folder} is no whole checkpoint: {lack}. Name an earlier one.")


def last_whole(output_dir: str) -> str:
    """Return the last checkpoint of a run that is whole; warns of later ones that are not.

    Raises:
        ConfigError: there is none.
    """
    named = {path: re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name) for path in Path(output_dir).glob("*")}
    numbers = {path: int(name[1]) for path, name in named.items() if name}
    lacks: list[str] = []
    for path in sorted(numbers, key=numbers.__getitem__, reverse=True):
        if not (lack := lacking(path)):
            if lacks:
                _warn(f"{'; '.join(lacks)}. Not saved whole: going on from {path}.")
            return str(path)
        lacks.append(f"{path}: {lack}")
    seen = f" that is whole: {'; '.join(lacks)}" if lacks else ""
    raise ConfigError(f"resume_from_checkpoint is true, but {output_dir} holds no checkpoint{seen}.")


def whole(wanted: Any, output_dir: str) -> Any:
    """Return what `resume_from_checkpoint` means, as the first rank finds it. Collective.

    Raises:
        ConfigError: it is not whole, or with `True` there is none that is.
    """
    if not wanted:
        return wanted
    found: Any = wanted
    try:
        if not PartialState().is_main_process:
            pass  # it may have no such file, on a machine of its own
        elif wanted is True:
            found = last_whole(output_dir)
        else:
            check(wanted)
    except ConfigError as error:
        found = error
    found = broadcast_object_list([found])[0]
    if isinstance(found, ConfigError):
        raise found
    return found


@functools.cache
def _warn(message: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # a launch script looks on every rank
        logger.warning(message)
