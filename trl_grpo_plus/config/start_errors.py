"""Errors of TRL's constructor that a folder or a model's name causes, in one line with the fix."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..utils.files import beside, looks_local, no_folder, not_writable
from ..utils.validation import ConfigError


@contextmanager
def explaining(model: Any, output_dir: str, makes_it: bool) -> Iterator[None]:
    """Construct TRL's trainer inside this context. Mistakes that can be seen before a model is loaded raise at once.

    Args:
        model: the model or its name.
        output_dir (`str`): the run's folder.
        makes_it (`bool`): whether this process makes the folder, as the first rank does.

    Raises:
        ConfigError: `output_dir` cannot be made or written, or the model's folder does not exist: its name looks like
            a path or nearly is that of a folder.
    """
    # A run may use an existing folder that cannot be written. It then keeps no traces.
    if makes_it and not os.path.isdir(output_dir) and (why := no_folder(output_dir) or not_writable(output_dir)):
        raise ConfigError(why)
    missing = isinstance(model, str) and not os.path.exists(os.path.expanduser(model))
    if missing and looks_local(model):
        raise ConfigError(_no_model(model))
    try:
        yield
    except OSError as error:
        if missing and beside(model):  # the Hub has no such name either
            first_line = str(error).strip().partition("\n")[0]
            raise ConfigError(f"{_no_model(model)} As an id it fails: {first_line}") from None
        if error.filename and Path(output_dir).absolute().is_relative_to(Path(str(error.filename)).absolute()):
            raise ConfigError(
                f"output_dir: {output_dir} cannot be made ({error.strerror}). Name another folder; it need not exist."
            ) from None
        raise


def _no_model(name: str) -> str:
    right = "Give a folder that `save_pretrained` wrote, or an id on the Hub."
    return f"model={name!r}: there is no such folder.{beside(name)} {right}"
