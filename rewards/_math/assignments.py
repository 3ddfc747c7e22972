"""Assignments such as `x = 1, y = 2`: their values by name, and in the order of a tuple."""

import re

from .parse import Shape, shape, squeezed


_TUPLE = re.compile(r"\(\s*(?:[a-z]|\\[a-z]+)\s*(?:,\s*(?:[a-z]|\\[a-z]+)\s*)+\)")
# Cartesian, cylindrical (polar) and spherical coordinates, in the order in which they are given.
_COORDINATES = (("x", "y", "z"), ("r", "\\theta", "z"), ("\\rho", "\\theta", "\\phi"))
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
    r"""Return the values in the order of a tuple; `None` if that order is not sure.

    Coordinates are sorted by their names. Other names must already be in alphabetical order, with Greek letters last.

    Example:
        >>> in_order({"y": "2", "x": "1"}), in_order({"\\rho": "1", "\\theta": "2"}), in_order({"b": "1", "a": "2"})
        (['1', '2'], ['1', '2'], None)
    """
    names = list(values)
    plain = {name: name.replace("\\var", "\\") for name in names}
    if system := next((system for system in _COORDINATES if set(plain.values()) <= {*system}), None):
        names.sort(key=lambda name: system.index(plain[name]))
        return [values[name] for name in names]
    places = [_place(plain[name]) for name in names]
    is_sure = None not in places and places == sorted(places, key=str) and not _is_mixed(names)
    return list(values.values()) if is_sure else None


def _is_mixed(names: list[str]) -> bool:
    letters = "".join(name for name in names if len(name) == 1)
    return letters not in (letters.lower(), letters.upper())


def _place(name: str) -> str | None:
    if re.fullmatch(r"[A-Za-z]", name):
        return name
    return f"~{_GREEK.index(name[1:]):02}" if name[1:] in _GREEK and name[0] == "\\" else None
