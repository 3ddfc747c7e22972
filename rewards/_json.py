"""JSON by the letter of RFC 8259, more strictly than Python reads it."""

import json
import math
from typing import Any


def read_json(text: str) -> Any:
    """Return the one JSON document that a text is.

    Raises:
        ValueError: the text is no document, or it has `NaN`, `Infinity`, a number beyond a double, or a key twice.
        RecursionError: the document is nested too deep for Python.
    """
    return json.loads(text, object_pairs_hook=_distinct, parse_constant=_refused, parse_float=_finite)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a key comes twice")
    return document


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refused(digits)
