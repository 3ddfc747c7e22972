"""The check that a checkpoint is complete.

A process that is killed while it saves, or that meets a full disk, leaves a folder that only looks like a checkpoint.
"""

import functools
import json
import logging
import os
import re
import shutil
import socket
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from ..traces import FOLDER
from ..utils.distributed import lost_process, raise_on_all_ranks
from ..utils.files import beside
from ..utils.validation import ConfigError


logger = logging.getLogger(__name__)  # accelerate's logger needs initialized processes

LAST = "trainer_state.json"  # written last
AUTO = "auto"  # value of resume_from_checkpoint: the last complete checkpoint, or a new run if there is none
UNREAD = "cannot be read"  # part of the reason if a checkpoint may be complete, but cannot be read
RUN = "run"  # key of the run's id in run.json and in the first rank's state
OF_MODEL = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
OF_ADAPTER = ("peft_type", "r")
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
    """Save a checkpoint inside this context. An error in it says what the failure means for the run."""
    try:
        if rank == 0:  # an earlier checkpoint of this step is no longer complete
            (folder / LAST).unlink(missing_ok=True)
        yield
    except Exception as error:
        if lost_process(error) or not (lack := lacking(folder)):
            raise  # another process has ended, or a later failure: the upload, or the removal of old checkpoints
        if isinstance(error, TypeError):
            advice = f"{LAST} can hold only JSON. Give plain numbers to trainer.log and callbacks, as in float(value)."
        else:
            there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
            advice = f"Its disk has {shutil.disk_usage(there).free / 1e6:.0f} MB free."
        if complete := newest(str(folder.parent))[0]:
            advice += f" resume_from_checkpoint=True skips it and resumes from {Path(complete).name}."
        raise RuntimeError(
            f"{folder} was not saved completely: {lack} ({type(error).__name__}: {error}). {advice}"
        ) from error


def lacking(folder: str | Path) -> str:
    """Return the reason why a checkpoint is incomplete, "" for a complete one."""
    folder = Path(folder)
    cut_off = []
    for path in {folder / LAST, *folder.glob("*.json")}:
        try:
            json.loads(path.read_bytes())
        except FileNotFoundError:
            return f"{LAST} is missing, the file that is written last"
        except OSError as error:
            return f"{path.name} {UNREAD} ({error})"
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
            return f"{path.name} {UNREAD} ({error})"
        except SafetensorError:
            cut_off.append(path.name)
    # All ranks write these files before trainer_state.json, but not in a checkpoint of an older release.
    ranks = {path.stem.rpartition("_")[2] for path in folder.glob("grpo_plus_state_*.pt")}
    for name in sorted(f"rng_state_{rank}.pth" for rank in ranks if len(ranks) > 1):
        if not (folder / name).exists():
            return f"{name} is missing"
    return f"{' and '.join(sorted(cut_off))} cut off" if cut_off else ""


def ways(output_dir: str) -> str:
    """Return a sentence that names the allowed values of `resume_from_checkpoint`."""
    such = next(reversed(checkpoints(output_dir)), Path(output_dir, f"{PREFIX_CHECKPOINT_DIR}-100"))
    return f"Give true (the last checkpoint), {AUTO}, or a folder such as {such}."


def check(folder: str, output_dir: str) -> None:
    """Refuse a folder that is no checkpoint, or an incomplete checkpoint.

    Args:
        folder (`str`), output_dir (`str`): the checkpoint, and the folder of the run that resumes from it.

    Raises:
        ConfigError: there is no such folder, it is no checkpoint, or the checkpoint is incomplete.
    """
    if not os.path.isdir(folder):
        if str(folder).lower() in ("true", "false", "none"):
            values = f"True, None or {AUTO!r}"
            raise ConfigError(
                f"resume_from_checkpoint={folder!r} is a text. Give {values}, or the path of a checkpoint."
            )
        inside = Path(output_dir, folder)
        near = f" Did you mean {inside}?" if inside.is_dir() else beside(str(folder))
        why = "It is a file." if os.path.exists(folder) else f"There is no such folder.{near}"
        raise ConfigError(f"resume_from_checkpoint: {folder} is not a checkpoint. {why} {ways(output_dir)}")
    if last := get_last_checkpoint(folder):
        raise ConfigError(
            f"resume_from_checkpoint: {folder} is a run, not a checkpoint. Its last checkpoint is {last}."
        )
    if lack := lacking(folder):
        raise ConfigError(f"resume_from_checkpoint: {folder} is incomplete: {lack}. Name an earlier checkpoint.")


def check_fits(folder: str, model: Any) -> None:
    """Refuse a checkpoint of a model with other sizes or another adapter, whose weights do not fit this one's.

    Raises:
        ConfigError: they do not fit, on all ranks.
    """
    with raise_on_all_ranks():
        if PartialState().is_main_process and (differs := _misfit(Path(folder), model)):
            raise ConfigError(
                f"resume_from_checkpoint: {folder} is of another model: {differs}. Resume with the model and the "
                "peft_config of that run, or leave resume_from_checkpoint out and give this run another output_dir."
            )


def _misfit(folder: Path, model: Any) -> str:
    """Return what tells the checkpoint's model from `model`, as far as its configuration files say; "" if nothing."""
    adapters = getattr(model, "peft_config", None) or {}
    whole, adapter = _read(folder / "config.json"), _read(folder / "adapter_config.json")
    if adapter and not adapters:
        return "it holds an adapter, and this run has no peft_config"
    if whole and not adapter and adapters and not any(folder.glob("*/adapter_config.json")):
        return "it holds a whole model, and this run trains an adapter (peft_config)"
    if adapter and "default" in adapters:
        return _difference(adapter, adapters["default"].to_dict(), OF_ADAPTER)
    return _difference(whole, model.config.to_dict(), OF_MODEL) if whole and not adapters else ""


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_bytes()) if file.exists() else {}


def _difference(saved: dict[str, Any], now: dict[str, Any], keys: Iterable[str]) -> str:
    both = [key for key in keys if saved.get(key) is not None and now.get(key) is not None]
    return ", ".join(f"{key} was {saved[key]}, and is {now[key]} now" for key in both if saved[key] != now[key])


def checkpoints(output_dir: str) -> list[Path]:
    """Return the folders of checkpoints in a run's folder, by their steps."""
    named = {path: re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name) for path in Path(output_dir).glob("*")}
    numbers = {path: int(name[1]) for path, name in named.items() if name}
    return sorted(numbers, key=numbers.__getitem__)


def last_complete(output_dir: str, required: bool = True) -> str | None:
    """Return the last complete checkpoint of a run, and warn of later checkpoints that are not taken.

    These are incomplete, or known to be of an earlier run than the traces in the folder.

    Args:
        output_dir (`str`): the run's folder.
        required (`bool`, *optional*, defaults to `True`): whether there must be one; without it, `None` may return.

    Raises:
        ConfigError: there is no complete checkpoint of the run, and there must be one or some checkpoint cannot be
            read. A failing disk must not make a run start anew.
    """
    checkpoint, lacks, others = newest(output_dir)
    if checkpoint is None and required and others:
        raise ConfigError(
            f"resume_from_checkpoint is true, but no complete checkpoint in {output_dir} is of the run whose traces "
            "are there. That run was started after an earlier run in the same folder, and saved no checkpoint. To "
            f"resume the earlier run, name its checkpoint: resume_from_checkpoint={others[0]!r}. To start from step "
            "0, leave resume_from_checkpoint out."
        )
    if checkpoint is None and required:
        reasons = f" that is complete: {'; '.join(lacks)}" if lacks else ""
        raise ConfigError(
            f"resume_from_checkpoint is true, but {output_dir} holds no checkpoint{reasons}. "
            f"To start from step 0 if there is no checkpoint, set resume_from_checkpoint to {AUTO!r}."
        )
    if checkpoint is None and any(UNREAD in lack for lack in lacks):
        raise ConfigError(
            f"resume_from_checkpoint={AUTO!r}: {'; '.join(lacks)}. Make it readable. To start from step 0, move it "
            "away."
        )
    then = f"resuming from {checkpoint}" if checkpoint else "the run starts from step 0"
    if lacks:
        _warn(f"{'; '.join(lacks)}. Not saved completely: {then}.")
    if others:
        _warn(f"The traces in {output_dir} are of another run than {', '.join(others)}. So {then}.")
    return checkpoint


def newest(output_dir: str) -> tuple[str | None, list[str], list[str]]:
    """Look for the last complete checkpoint of a run.

    Returns:
        `tuple`: the checkpoint, or `None`; what each later one lacks; the later complete ones of an earlier run.
    """
    lacks: list[str] = []
    others: list[str] = []
    run = _run_of_traces(output_dir)
    for path in reversed(checkpoints(output_dir)):
        if lack := lacking(path):
            lacks.append(f"{path}: {lack}")
        elif run is not None and _run_of(path) not in (run, None):
            others.append(str(path))
        else:
            return str(path), lacks, others
    return None, lacks, others


def warn_of_earlier(output_dir: str) -> None:
    """Warn if a new run starts in a folder that holds an earlier run's checkpoints, which stay there."""
    if not PartialState().is_main_process or not (names := [path.name for path in checkpoints(output_dir)]):
        return
    listed = ", ".join(names if len(names) < 5 else [*names[:2], "...", names[-1]])
    last = str(Path(output_dir, names[-1]))
    logger.warning(
        f"{output_dir} holds {listed} of an earlier run. This run starts from step 0 and does not move these "
        "checkpoints, so a later resume could take one of them by mistake. Give this run another output_dir, or move "
        f"them away. To continue the earlier run instead: train(resume_from_checkpoint={last!r})."
    )


def _run_of_traces(output_dir: str) -> Any:
    """Return the id of the run whose traces are in a folder; `None` if it is not known."""
    try:
        about = json.loads((Path(output_dir) / FOLDER / "run.json").read_bytes())
    except (OSError, ValueError):
        return None
    return about.get(RUN) if isinstance(about, dict) else None


def _run_of(checkpoint: Path) -> Any:
    """Return the id of the run that saved a checkpoint; `None` if it is not known."""
    try:
        state = torch.load(checkpoint / "grpo_plus_state_0.pt", map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # no such file, or a damaged one, which can make the unpickler raise anything
        return None
    return state.get(RUN) if isinstance(state, dict) else None


def to_resume(resume_from_checkpoint: Any, output_dir: str) -> str | None:
    """Return the checkpoint that `True`, `"auto"` or a path names, as this machine has it; `None` for a new run.

    Raises:
        ConfigError: the checkpoint is incomplete, or with `True` there is no complete checkpoint.
    """
    if not resume_from_checkpoint:
        return None
    if resume_from_checkpoint is True or str(resume_from_checkpoint).lower() == AUTO:
        return last_complete(output_dir, required=resume_from_checkpoint is True)
    check(resume_from_checkpoint, output_dir)
    return str(resume_from_checkpoint)


def complete_checkpoint(resume_from_checkpoint: Any, output_dir: str) -> str | None:
    """Return the checkpoint that `resume_from_checkpoint` names, as the first rank finds it. Collective.

    Raises:
        ConfigError: the checkpoint is incomplete, with `True` there is no complete checkpoint, or the machine of
            another rank does not have it.
    """
    if not resume_from_checkpoint:
        return None
    checkpoint = None
    with raise_on_all_ranks():
        if PartialState().is_main_process:  # each rank by itself might find another one, and the ranks would part
            checkpoint = to_resume(resume_from_checkpoint, output_dir)
    checkpoint = broadcast_object_list([checkpoint])[0]
    with raise_on_all_ranks():
        if checkpoint and not os.path.isdir(checkpoint):
            raise ConfigError(
                f"resume_from_checkpoint: {socket.gethostname()}, the machine of rank {PartialState().process_index}, "
                f"has no folder {checkpoint}. The machine of rank 0 has it. Copy it to each machine, or use a shared "
                "disk."
            )
    return checkpoint


@functools.cache
def _warn(message: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # every rank of a launch script comes here
        logger.warning(message)
