"""Functions of a completion's text: its answer, its words and its repetition."""

import pytest

from trl_grpo_plus.utils.text import as_text, find_answer, repeated, words


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{1} no \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("<answer>\n7\n</answer> <answer>8</answer>", "8"),
        ("6 times 7\n#### 42\n", "42"),
        ("Hence the answer is: 12 apples\nbye", "12 apples"),
        ("\\boxed{never closed", None),
        ("just 42", None),
        ("<answer>no <answer>5</answer> <answer>", "5"),
        ("</answer> 5 <answer>", None),
        ("<answer>" * 100_000, None),  # this is fast, though no tag is closed
        ("", None),
    ],
)
def test_find_answer(text, answer):
    span = find_answer(text)
    assert (span and text[slice(*span)]) == answer


def test_texts_of_messages():
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "look"}, {"type": "image"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]},
        {"role": "tool", "content": "3"},
    ]
    assert as_text(messages) == "look\n<image>\n{'name': 'add'}\n3"
    assert as_text(None) == ""


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": ""}, "<text>"),
        ({"type": "image", "image": "RGB 8x8 0123456789abcdef"}, "<image RGB 8x8 0123456789abcdef>"),
        (
            {"type": "image", "image": "data:image/png;base64," + "A" * 2**20},
            f"<image data:image/png;base64,{'A' * 58}...>",
        ),
        ({"type": "image", "image": "x" * 80}, f"<image {'x' * 80}>"),
        ({"type": "image", "image": {"url": "x"}}, "<image>"),
    ],
    ids=["empty", "of a trace", "data", "not too long", "no text"],
)
def test_blocks_that_are_no_text(block, text):
    assert as_text([{"role": "user", "content": [block]}]) == text


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ([("G1", 2), ("G\u00e9", None)], '["G1", 2]\n["G\u00e9", null]'),
        ([{"gene": "G1"}, {"gene": "G2"}], '{"gene": "G1"}\n{"gene": "G2"}'),
        (["G1", "G2"], "G1\nG2"),
        ([1, 0.5], "1\n0.5"),
        ([{"text": "G1"}, {"type": "text", "text": 5}], "G1\n<text>"),
        ([], ""),
        ({"gene": "G1"}, '{"gene": "G1"}'),
    ],
    ids=["rows of a table", "records", "texts", "numbers", "blocks", "nothing", "an object"],
)
def test_what_a_tool_returned(returned, text):
    """TRL makes a tool's list the content of a message, whatever is in the list."""
    assert as_text([{"role": "tool", "name": "query", "content": returned}]) == text


def test_repetition():
    assert repeated(words("The cat sat. The dog ran.")) == 0.0
    assert repeated(words("no no no no no no no no")) == pytest.approx(0.8)
    assert repeated([]) == 0.0
    assert words("Don't stop!") == ["don", "'", "t", "stop", "!"]
