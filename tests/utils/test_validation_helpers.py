"""Which values fit an annotation, how an annotation is spelled, and which numbers are finite."""

import math
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

from trl_grpo_plus.utils.validation import finite_or_none, fits, spelled


class Unusual(TypedDict):
    """A type for which `isinstance` raises."""

    a: int


@pytest.mark.parametrize(
    ("value", "annotation", "is_right"),
    [
        (1, int, True), (1.0, int, False), (True, int, False), (1, float, True), ("1", float, False),
        ("a", str, True), (True, bool, True), (0, bool, False), (None, int | None, True), (None, int, False),
        (["a"], list[str], True), ("a", list[str], False), ([1], list[str], False), ((1, 2), list[int], False),
        ([1, 2], tuple[int, ...], True), ({"a": 1}, dict[str, int], True), ({"a": "b"}, dict[str, int], False),
        ("x", Literal["x", "y"], True), (1, Literal[True], False), (object(), Any, True), ([1], list, True),
        ([], list[int] | None, True), (3, Path, False), ((1, "a"), tuple[int, str], True),
        ((1, 2), tuple[int, str], False), ((1,), tuple[int, str], False), ({"a": 1}, Unusual, True),
        (3, Annotated[int, "tokens"], True), ("3", Annotated[int, "tokens"] | None, False), ([1, "a"], tuple, True),
        ("ab", Sequence, False), (("a",), Sequence, True), ("ab", Iterable, False), ({"a": 1}, Mapping, True),
        ("ab", Container, False), ("ab", Hashable, True), ("ab", object, True),
        ("a", str | tuple, True),
    ],
)  # fmt: skip
def test_what_fits_an_annotation(value, annotation, is_right):
    assert fits(value, annotation) == is_right


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "an integer"), (int | None, "an integer or None"), (Literal["a", "b"], "one of 'a', 'b'"),
        (list[str], "a list in which each item is a text"), (Path, "Path"),
        (Annotated[int, "tokens"] | None, "an integer or None"),
        (dict[str, int], "a mapping in which each value is an integer"), (dict[str, Any], "a mapping"),
    ],
)  # fmt: skip
def test_an_annotation_in_words(annotation, words):
    assert spelled(annotation) == words


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (-0.5, -0.5), *((other, None) for other in (True, "1", None, math.nan, -math.inf, 10**400))],
)
def test_a_finite_number_or_none(value, number):
    assert finite_or_none(value) == number
