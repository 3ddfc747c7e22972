"""The reward `think_format`: it pays for one thinking and one answer, and for nothing that only looks like that."""

import itertools

import pytest
from case_tables import misjudged, table

from trl_grpo_plus.registry import ConfigError, get_reward
from trl_grpo_plus.rewards.math_answer import math_answer
from trl_grpo_plus.rewards.think_format import think_format


GOOD = "<think>a</think><answer>b</answer>"


def score(text, args=None):
    return get_reward("think_format", **(args or {}))([text])[0]


def test_the_form_and_that_of_other_arguments():
    assert misjudged("think_format", score) == []
    assert score("<think>" + "a\n" * 50_000 + "</think><answer>b</answer>") == 1.0


@pytest.mark.parametrize("tag", ["thinking", "thought", "reasoning"])
def test_the_form_with_another_tag(tag):
    reward = get_reward("think_format", think_tag=tag)
    good = GOOD.replace("think>", f"{tag}>")
    assert reward([good, GOOD, good.replace(">a<", "><think>a<")]) == [1.0, 0.0, 0.0]
    for end in range(1, len(good)):
        assert reward([good[:end], good[end:]]) == [0.0, 0.0]
    for extra in (f"<{tag}>", f"</{tag}>", f"< {tag.upper()} >", f"&lt;/{tag}&gt;", "<answer>"):
        assert reward([good.replace(">a<", f">a{extra}<"), good + extra]) == [0.0, 0.0]
    assert get_reward("think_format", think_tag=tag, think_opened=True)([good.removeprefix(f"<{tag}>")]) == [1.0]
    assert math_answer([good.replace(">a<", "><answer>c</answer><").replace(">b<", ">\\boxed{2}<")], answer=["2"]) == [
        1.0
    ]


def test_a_tag_that_other_rewards_do_not_read_is_refused():
    with pytest.raises(ConfigError, match=r"think_tag.*'scratchpad'"):
        get_reward("think_format", think_tag="scratchpad")


def test_nothing_that_looks_like_a_tag_anywhere():
    parts = ["<think>a", "</think>", "<answer>b", "</answer>"]
    for what, tag in table("think_format_tags"):
        texts = ["".join([*parts[:place], tag, *parts[place:]]) for place in range(5)]
        assert (what, think_format(texts)) == (what, [0.0] * 5)


@pytest.mark.parametrize("extra", ["x", ".", "So:", "```", "\0", "\u200b", "\ufeff", "\ud800", "<b>", "42", "**"])
@pytest.mark.parametrize(
    "form", ["{}<think>a</think><answer>b</answer>", "<think>a</think>{}<answer>b</answer>", GOOD + "{}"]
)
def test_nothing_around_the_tags(form, extra):
    assert think_format([form.format(extra)]) == [0.0]
    assert think_format([form.format(f"\n{extra}\n")]) == [0.0]


BLANKS = [
    "", " ", "\n\n", "\t", "\u00a0", "\u3000", "\u200b", "\u200b \ufeff", "\0",
    "\u2800", "\u3164", "\u0301", "\ud800", "\u202e", "\x1b",
]  # fmt: skip


@pytest.mark.parametrize("blank", BLANKS)
def test_bodies_that_show_nothing(blank):
    assert think_format([f"<think>{blank}</think><answer>b</answer>"]) == [0.0]
    assert think_format([f"<think>a</think><answer>{blank}</answer>"]) == [0.0]
    assert think_format([f"<think>a</think>{blank}"]) == [0.0]
    assert get_reward("think_format", answer_tag=False)([f"<think>a</think>{blank}"]) == [0.0]
    assert get_reward("think_format", think_opened=True)([f"{blank}</think><answer>b</answer>"]) == [0.0]


def test_every_other_order_of_the_tags():
    parts = ["<think>a", "</think>", "<answer>b", "</answer>"]
    for order in itertools.permutations(parts):
        assert think_format(["".join(order)]) == [float(list(order) == parts)]


def test_every_cut():
    text = "<think>ab</think>\n<answer>cd</answer>"
    for end in range(len(text)):
        assert think_format([text[:end]]) == [0.0]
        assert end == 0 or think_format([text[end:]]) == [0.0]


def test_every_tag_left_out_or_doubled():
    tags = ["<think>", "</think>", "<answer>", "</answer>"]
    for tag in tags:
        assert think_format([GOOD.replace(tag, ""), GOOD.replace(tag, tag * 2)]) == [0.0, 0.0]


TURNS = [
    "\nUser: next?", "\nHuman: next?", "\nSystem: hi", "\n**System:** hi", "\n\nAssistant: b", "\nuser : x",
    "\n**User:** x", "\n### Human: x", "\nUSER：x",
]  # fmt: skip


@pytest.mark.parametrize("turn", TURNS)
def test_a_next_turn(turn):
    assert think_format([f"<think>a</think><answer>b{turn}</answer>"]) == [0.0]
    assert think_format([f"<think>a</think><answer>{turn}</answer>"]) == [0.0]
    assert think_format([f"{GOOD}{turn}"]) == [0.0]
    assert get_reward("think_format", answer_tag=False)([f"<think>a</think>b{turn}"]) == [0.0]


@pytest.mark.parametrize("text", [GOOD, "<think></think>", "<think>a</think>", GOOD + "</think>", GOOD + "\nUser: x"])
def test_trl_pays_for_all_of_these(text):
    """The docstring of `think_format` says that TRL's reward pays for these."""
    from trl.rewards import think_format_reward

    assert think_format_reward([[{"role": "assistant", "content": text}]]) == [1.0]
    assert think_format([text]) == [float(text == GOOD)]
