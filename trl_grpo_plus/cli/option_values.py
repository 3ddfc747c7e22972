"""Checks of the values of options that several commands have: --max-mb, --split and --args."""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ..utils.validation import ConfigError, Number, did_you_mean


PAGE_MB = Number(above=0, at_most=1_000_000, optional=True)  # --max-mb


def check_split(lacks: str, split: str, splits: Iterable[str]) -> None:
    """Refuse a value of --split that is not one of the splits; `lacks` begins the message, such as "RUN has no"."""
    splits = list(splits)
    if split not in splits:
        raise ConfigError(f"--split: {lacks} {split!r}, only {', '.join(splits)}.{did_you_mean(split, splits)}")


def args_of(text: str) -> dict[str, Any]:
    """Parse the value of --args, which is a JSON object."""
    with suppress(ValueError):
        if isinstance(args := json.loads(text), dict):
            return args
    raise ConfigError(f'--args: {text!r} is not a JSON object such as \'{{"column": "solution"}}\'.')
