"""Plain data: which values may leave and enter the sandbox, which may not, and which are equal."""

import math
import signal
from collections import Counter, OrderedDict, namedtuple

import pytest
from time_limit import ends

from trl_grpo_plus.sandbox.child import framing as _frames
from trl_grpo_plus.sandbox.child import plain_data as _plain


Point = namedtuple("Point", "x y")


class Text(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


PLAIN = [
    None, True, False, 0, -1, 16**5000, 1.5, -0.0, math.inf, 1e-320, 2 + 3j, "", "é\ud800\0", b"\0\xff", [], (), set(),
    frozenset([1]), {}, [1, [2, (3,)], {"a": {1, 2}}], {(1, 2): None, None: [], 1.5: "x"}, {True: 0}, [[]] * 50,
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=map(str, range(len(PLAIN))))
def test_plain_data_comes_back_as_it_was(value):
    tokens = _frames.unpack(_frames.pack({"x": _plain.encode(value)})[_frames.HEADER.size :])["x"]
    back = _plain.decode(tokens)
    assert back == value
    assert type(back) is type(value)
    assert _plain.is_plain(tokens)
    assert _plain.same(value, tokens)


def test_different_values_are_not_the_same():
    values = [value for value in PLAIN if value not in ((), frozenset([1]))]
    for i, one in enumerate(values):
        same = [j for j, other in enumerate(values) if _plain.same(one, _plain.encode(other))]
        assert (one, same) == (one, [i])


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        (1, True, False), (True, 1, False), (1, 1.0, False), (1.0, 1, False), ("1", 1, False), (None, 0, False),
        ([1, 2], (1, 2), True), ((1, [2]), [1, (2,)], True), ([1, 2], {1, 2}, False), ([1, 2], [2, 1], False),
        ({1, 2}, {2, 1}, True), ({1, 2}, frozenset([1, 2]), True), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"1": 1}, {1: 1}, False), ({1: 1}, {True: 1}, False), ({"a": 1}, Counter("a"), True),
        ({"a": 1}, OrderedDict(a=1), True), ([1, 2], Point(1, 2), True), ("x", Text("x"), True),
        ("y", Text("x"), False),
        (0.0, -0.0, True), (math.nan, math.nan, False), ([math.nan], [math.nan], False), (0.3, 0.1 + 0.2, False),
        (math.inf, math.inf, True), (b"a", "a", False), ("a,b", ["a", "b"], False), (["a", "b"], ["a,b"], False),
        (["s\"a\""], ["a"], False), ([[], []], [[[]]], False), (3, signal.Signals(3), True),
        (b"x", bytearray(b"x"), True),
        ({1: 2}, {1: 2, 3: 4}, False), ([1], [1, 1], False), ("é", "e\u0301", False),
    ],
)  # fmt: skip
def test_sameness(wanted, got, same):
    assert _plain.same(wanted, _plain.encode(got)) is same


@pytest.mark.parametrize(
    "tokens",
    [
        None, 5, "x", {}, [], [[]], [["i"]], [["i", 5]], [["i", "5"]], [["i", "0x"]], [["i", "0x1_0"]],
        [["i", " 0x1"]],
        [["i", "0xG"]], [["q", "1"]], [[5, "1"]], [["f", "one"]], [["c", "0x1p0"]], [["y", "0"]], [["b", "2"]],
        [["n", "x"]], [["l", 1]], [["l", -1]], [["l", True]], [["l", "0"]], [["d", 1]], [["i", "0x1"], ["d", 1]],
        [["i", "0x1"], ["i", "0x1"]], [["l", 10**8]], [["l", 0], *[["l", 1]] * 101], [["s", None]], [["s", ["x"]]],
        [["f", "0x1p99999"]], [["f", "-0x1p99999"]], [["c", "0x1p99999 0x0p0"]], [["c", "0x0p0 -0x1p99999"]],
        [["c", "inf"]], [["c", "one two"]], [["f", ""]], [["f", "0x1p" + "9" * 100_000]],
    ],
    ids=lambda tokens: repr(tokens)[:30],
)  # fmt: skip
def test_what_is_no_plain_data(tokens):
    assert not _plain.is_plain(tokens)
    assert not _plain.same(None, tokens)
    with pytest.raises(ValueError, match=r"\w"):
        _plain.decode(tokens)


def test_a_list_in_a_set_is_the_sender_s_fault():
    with pytest.raises(ValueError, match="unhashable"):
        _plain.decode([["l", 0], ["S", 1]])


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b"NaN", b'{"a": NaN}', b'{"a": 1.5}', b'{"a": 1e5}', b'{"a": 1234567890}', b'"\xff"',
     b"[" * 100_000, b'{"a":' * 100_000, b"9" * 1_000_000, b"\0", '{"a": "é"}'.encode(), b"\xff\xfe{\0}\0"],
    ids=lambda body: repr(body)[:30],
)  # fmt: skip
def test_what_is_no_message(body):
    with ends(), pytest.raises(ValueError, match=r"\w"):
        _frames.unpack(body)


@pytest.mark.parametrize(
    "value",
    [object(), len, [object()], {1: {2: iter(())}}, type, range(3), Ellipsis],
    ids=lambda value: repr(value)[:20],
)
def test_what_cannot_be_sent(value):
    with pytest.raises(TypeError, match="is not plain data"):
        _plain.encode(value)


def test_a_subclass_has_no_say_in_what_is_sent():
    class Complex(complex):
        real = imag = property(lambda self: 1 / 0)

    class Float(float):
        hex = None

    class Bytes(bytes):
        hex = None

    class Array(bytearray):
        hex = None

    for mine, value in ((Complex(1, 2), 1 + 2j), (Float(1.5), 1.5), (Bytes(b"x"), b"x"), (Array(b"x"), b"x")):
        assert _plain.decode(_plain.encode(mine)) == value


def test_numbers_that_collide_cost_the_judge_nothing():
    modulus = (1 << 61) - 1
    tokens = [part for i in range(60_000) for part in (["i", hex(i * modulus)], ["n", ""])]
    with ends():
        assert not _plain.same({}, [*tokens, ["d", 60_000]])
        assert _plain.is_plain([*tokens, ["d", 60_000]])
