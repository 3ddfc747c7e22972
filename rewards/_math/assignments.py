"""Assignments such as `x = 1, y = 2`: their values by name, and in the order of a tuple."""

import re

from .parse import Shape, shape, squeezed


_TUPLE = re.compile(r"\([a-z](?:,\s*[a-z])+\)")
_GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "theta", "kappa", "lambda", "mu", "nu", "rho", "sigma", "phi", "psi",
    "omega",
)  # fmt: skip


def assigned(shaped: Shape) -> dict[str, str] | None:
    """Return the values by name of `x = 1, y = 2` or `(x, y) = (1, 2)`; `None` if fewer than two names get values."""
    if shaped.kind == "()" and _TUPLE.fullmatch(shaped.name):
        names, values = [name.strip() for name in shaped.name[1:-1].split(",")], list(shaped.parts)
    elif shaped.kind in ("list", "()") and not shaped.name:
        parts = [shape(part) for part in shaped.parts]
        names = [squeezed(part.name) if part and part.kind == "one" else "" for part in parts]
        values = [part.parts[0] for part in parts if part]
    else:
        return None
    distinct = len(set(names)) == len(names) == len(values) > 1
    return dict(zip(names, values, strict=True)) if distinct and all(names) else None


def in_order(values: dict[str, str]) -> list[str] | None:
    """Return the values in the order of a tuple; `None` if that order is not sure.

    Coordinates are sorted by their names. Other names must already be in alphabetical order, with Greek letters last.
    """
    names = list(values)
    if set(names) <= {"x", "y", "z"}:
        names.sort()
    elif None in (places := [_place(name) for name in names]) or places != sorted(places, key=str) or _is_mixed(names):
        return None
    return [values[name] for name in names]


def _is_mixed(names: list[str]) -> bool:
    letters = "".join(name for name in names if len(name) == 1)
    return letters not in (letters.lower(), letters.upper())


def _place(name: str) -> str | None:
    if re.fullmatch(r"[A-Za-z]", name):
        return name
    return f"~{_GREEK.index(name[1:]):02}" if name[1:] in _GREEK and name[0] == "\\" else None
