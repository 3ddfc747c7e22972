"""Plain data as text: the encoding of values between the judge and untrusted programs.

No pickle, eval or literal_eval: reading a message can build None, bool, int, float, complex, str, bytes, list, tuple,
set, frozenset and dict, and nothing else. A value is a list of tokens in postfix order: `[1, "a"]` is
`[["i", "0x1"], ["s", "a"], ["l", 2]]`. So a reader needs no recursion, however deep the sender nests.

A subclass counts as its base class (a Counter is a dict, a namedtuple a tuple, an IntEnum an int), but a bool is not
an int. Standard library only: the judge and the sandboxed process both load this file.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any


NESTING = 100
NODES = 1_000_000
_INTEGER = re.compile(r"-?0x[0-9a-f]+")
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "l": list,
    "t": tuple,
    "S": set,
    "F": frozenset,
    "d": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
}
_TAGS: tuple[tuple[Any, str], ...] = ((list, "l"), (tuple, "t"), (set, "S"), (frozenset, "F"))


def names_of(entry_point: str) -> list[str]:
    """Split an entry point: `add` is `["add"]`; `Solution.add` and `Solution().add` are `["Solution", "add"]`."""
    return entry_point.replace("()", "").split(".")


def encode(value: Any) -> list[list[Any]]:
    """Return the tokens of a value.

    Raises:
        TypeError: the value is not plain data, or holds a part that is not.
        ValueError: the value is nested more than 100 deep, or has more than a million parts.
    """
    tokens: list[list[Any]] = []
    _encode(value, tokens, NESTING)
    return tokens


def _encode(value: Any, tokens: list[list[Any]], room: int) -> None:
    if room < 0 or len(tokens) > NODES:
        raise ValueError("too deep or too many parts for a value")
    if isinstance(value, dict):
        items = list(dict.items(value))
        for item in items:
            for part in item:
                _encode(part, tokens, room - 1)
        tokens.append(["d", len(items)])
        return
    for kind, tag in _TAGS:
        if isinstance(value, kind):
            items = list(kind.__iter__(value))
            for part in items:
                _encode(part, tokens, room - 1)
            tokens.append([tag, len(items)])
            return
    tokens.append(_leaf_token(value))


def _leaf_token(value: Any) -> list[Any]:
    if value is None:
        return ["n", ""]
    if isinstance(value, bool):
        return ["b", "1" if value else "0"]
    if isinstance(value, int):
        return ["i", int.__format__(value, "#x")]
    if isinstance(value, float):
        return ["f", float.hex(value)]
    if isinstance(value, complex):
        real, imag = complex.real.__get__(value), complex.imag.__get__(value)
        return ["c", f"{float.hex(real)} {float.hex(imag)}"]
    if isinstance(value, str):
        return ["s", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["y", bytes.hex(value) if isinstance(value, bytes) else bytearray.hex(value)]
    raise TypeError(f"{type(value).__name__} is not plain data (numbers, text, lists, tuples, sets, dicts)")


def decode(tokens: Any) -> Any:
    """Return the value of tokens. Raise `ValueError` if they are not valid."""
    try:
        return _fold(tokens, _leaf, lambda tag, items: _COLLECTIONS[tag](items))
    except TypeError as error:  # an unhashable part, such as a list in a set
        raise ValueError(str(error)) from None


def canonical(tokens: Any) -> str:
    """Return a text that is the same for values that are equal and of the same types; a tuple counts as a list.

    Tuples count as lists because expected answers written in JSON cannot hold tuples. Sets and dicts are compared
    without building them: numbers that all collide in a hash table would take the judge minutes.

    Raises:
        ValueError: the tokens are not valid, or hold a NaN, which equals nothing.
    """
    return _fold(tokens, _canonical_leaf, _canonical_collection)


def same(expected: Any, tokens: Any) -> bool:
    """Return whether tokens from the program encode a value equal to `expected`."""
    try:
        return canonical(encode(expected)) == canonical(tokens)
    except ValueError:
        return False


def is_plain(tokens: Any) -> bool:
    """Return whether the tokens encode a value."""
    try:
        _fold(tokens, _leaf, lambda tag, items: None)
    except ValueError:
        return False
    return True


def _canonical_leaf(tag: str, content: Any) -> str:
    value = _leaf(tag, content)
    if tag == "i":
        return f"i{value:x}"
    if tag in "fc":
        parts = (value,) if tag == "f" else (value.real, value.imag)
        if any(map(math.isnan, parts)):
            raise ValueError("NaN equals nothing")
        return tag + ",".join((part + 0.0).hex() for part in parts)  # + 0.0: -0.0 equals 0.0
    return tag + json.dumps(content)


def _canonical_collection(tag: str, items: list[str]) -> str:
    if tag == "d":
        items = sorted(f"{key}:{value}" for key, value in zip(items[::2], items[1::2], strict=True))
    elif tag in "SF":
        items = sorted(items)
    kind = {"t": "l", "F": "S"}.get(tag, tag)
    return f"{kind}({','.join(items)})"


def _fold(tokens: Any, leaf: Callable[[str, Any], Any], collection: Callable[[str, list[Any]], Any]) -> Any:
    stack: list[tuple[Any, int]] = []
    for tag, content in _pairs(tokens):
        if tag not in _COLLECTIONS:
            stack.append((leaf(tag, content), 0))
            continue
        if type(content) is not int or content < 0:
            raise ValueError(f"bad size {content!r:.40}")
        start = len(stack) - (2 * content if tag == "d" else content)
        if start < 0:
            raise ValueError("more parts are said than there are")
        parts = stack[start:]
        depth = 1 + max((part[1] for part in parts), default=0)
        if depth > NESTING:
            raise ValueError("nested too deep")
        stack[start:] = [(collection(tag, [part[0] for part in parts]), depth)]
    if len(stack) != 1:
        raise ValueError(f"{len(stack)} values where one is wanted")
    return stack[0][0]


def _pairs(tokens: Any) -> Iterable[tuple[str, Any]]:
    if type(tokens) is not list:
        raise ValueError("no tokens")
    for token in tokens:
        if type(token) is not list or len(token) != 2 or type(token[0]) is not str:
            raise ValueError("no token")
        yield token[0], token[1]


def _leaf(tag: str, content: Any) -> Any:
    if type(content) is not str:
        raise ValueError(f"bad content of {tag!r:.40}")
    if tag == "s":
        return content
    if tag == "i" and _INTEGER.fullmatch(content):
        return int(content, 16)
    if tag == "n" and not content:
        return None
    if tag == "b" and content in ("0", "1"):
        return content == "1"
    if tag == "f":
        return _float(content)
    if tag == "c" and content.count(" ") == 1:
        return complex(*map(_float, content.split(" ")))
    if tag == "y":
        return bytes.fromhex(content)
    raise ValueError(f"bad token {tag!r:.40}")


def _float(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def message_size(value: Any) -> int:
    """Return the size of a value as an answer, in bytes.

    Raises:
        ValueError: the value cannot be an answer. It is not plain data, or holds a NaN, which equals nothing.
    """
    try:
        tokens = encode(value)
    except TypeError as error:
        raise ValueError(f"{value!r:.60}: {error}") from None
    if not same(value, tokens):
        raise ValueError(f"{value!r:.60} holds a NaN, which nothing equals")
    return len(json.dumps(tokens))
