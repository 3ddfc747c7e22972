"""The reward `think_format`: one thinking, one answer, and nothing that only looks so."""

import importlib
import itertools

import pytest

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.think_format import think_format


MODULE = importlib.import_module("trl_grpo_plus.rewards.think_format")
GOOD = "<think>a</think><answer>b</answer>"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GOOD, id="plain"),
        pytest.param("<think>\na\n</think>\n<answer>\nb\n</answer>", id="on lines of their own"),
        pytest.param(" \n<think>a</think> \n\t <answer>b</answer>\n\n", id="white space around"),
        pytest.param("<think>推理</think><answer>四十二</answer>", id="Chinese"),
        pytest.param("<think>🤔</think><answer>👍</answer>", id="emoji"),
        pytest.param("<think>e\u0301</think><answer>\u200b42</answer>", id="marks and zero-width on something"),
        pytest.param("<think>x < answer and y > 2</think><answer>b</answer>", id="less than"),
        pytest.param("<think>if guess<answer: print(3>2)</think><answer>b</answer>", id="a program"),
        pytest.param("<think>I think: think!</think><answer>The answer: answer.</answer>", id="the words"),
        pytest.param("<think><b>a</b></think><answer><i>b</i></answer>", id="other tags"),
        pytest.param("<think>a\nUser: wants a number.</think><answer>b</answer>", id="the user, in the thinking"),
        pytest.param("<think>a</think><answer>Ask the user: now.</answer>", id="the user, within a line"),
        pytest.param("<think>a[i] | b < c</think><answer>b</answer>", id="signs"),
        pytest.param("<think>-</think><answer>-</answer>", id="a sign alone"),
        pytest.param("<think>" + "a\n" * 50_000 + "</think><answer>b</answer>", id="long thinking"),
    ],
)
def test_the_form(text):
    assert think_format([text]) == [1.0]


ANYWHERE = {
    "another <think>": "<think>",
    "another </think>": "</think>",
    "another <answer>": "<answer>",
    "another </answer>": "</answer>",
    "nested thinking": "<think>x</think>",
    "a nested answer": "<answer>x</answer>",
    "full-width": "＜think＞",
    "small form": "﹤answer﹥",
    "full-width letters": "<ｔｈｉｎｋ>",
    "bold letters": "<𝐚𝐧𝐬𝐰𝐞𝐫>",
    "angle quotes": "‹think›",
    "zero-width": "<thi\u200bnk>",
    "word joiner": "<\u2060answer>",
    "soft hyphen": "<an\u00adswer>",
    "byte order mark": "</\ufeffthink>",
    "a mark": "<think\u0301>",
    "direction mark": "<\u202ethink>",
    "NUL": "<thi\0nk>",
    "lone surrogate": "<answer\ud800>",
    "capitals": "<THINK>",
    "one capital": "</Answer>",
    "blanks within": "< think >",
    "a line's end within": "<\nanswer\n>",
    "a blank after the slash": "</ answer>",
    "closed at once": "<answer/>",
    "an attribute": '<answer id="2">',
    "thinking": "<thinking>",
    "end of thinking": "</thinking>",
    "answers": "<answers>",
    "escaped for HTML": "&lt;think&gt;",
    "escaped for HTML, end": "&lt;/answer&gt;",
    "escaped by number": "&#60;answer&#62;",
    "escaped by hexadecimal": "&#x3C;answer>",
    "escaped for JSON": "\\u003cthink\\u003e",
    "escaped for Python": "\\x3cthink\\x3e",
    "escaped for a URL": "%3Cthink%3E",
    "escaped for Markdown": "\\<think\\>",
    "a pipe": "<|think|>",
    "ChatML": "<|im_start|>user",
    "end of ChatML": "<|im_end|>",
    "Llama 3": "<|eot_id|>",
    "Llama 3, header": "<|start_header_id|>user<|end_header_id|>",
    "Llama 2": "[/INST]",
    "Llama 2, system": "<<SYS>>",
    "Gemma": "<start_of_turn>user",
    "DeepSeek": "<｜User｜>",
    "end of text": "<|endoftext|>",
}


@pytest.mark.parametrize("extra", [pytest.param(text, id=name) for name, text in ANYWHERE.items()])
def test_no_such_text_anywhere(extra):
    for place in range(5):
        parts = ["<think>a", "</think>", "<answer>b", "</answer>"]
        parts.insert(place, extra)
        assert think_format(["".join(parts)]) == [0.0]


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


@pytest.mark.parametrize(
    "turn",
    [
        "\nUser: next?",
        "\nHuman: next?",
        "\nSystem: hi",
        "\n**System:** hi",
        "\n\nAssistant: b",
        "\nuser : x",
        "\n**User:** x",
        "\n### Human: x",
        "\nUSER：x",
    ],
)
def test_a_next_turn(turn):
    assert think_format([f"<think>a</think><answer>b{turn}</answer>"]) == [0.0]
    assert think_format([f"<think>a</think><answer>{turn}</answer>"]) == [0.0]
    assert think_format([f"{GOOD}{turn}"]) == [0.0]
    assert get_reward("think_format", answer_tag=False)([f"<think>a</think>b{turn}"]) == [0.0]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        pytest.param("a</think><answer>b</answer>", 1.0, id="begins within the thinking"),
        pytest.param("\na\n</think>\n<answer>b</answer>\n", 1.0, id="with lines' ends"),
        pytest.param(GOOD, 0.0, id="opens it again"),
        pytest.param("</think><answer>b</answer>", 0.0, id="ends it at once"),
        pytest.param("<answer>b</answer>", 0.0, id="never ends it"),
        pytest.param("a</think>b", 0.0, id="no answer"),
        pytest.param("a</think><think>a</think><answer>b</answer>", 0.0, id="thinks twice"),
        pytest.param("a</think>x<answer>b</answer>", 0.0, id="words between"),
    ],
)
def test_thinking_opened_by_the_prompt(text, reward):
    assert get_reward("think_format", think_opened=True)([text]) == [reward]


def test_without_it_the_thinking_must_be_opened():
    assert think_format(["a</think><answer>b</answer>"]) == [0.0]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        pytest.param("<think>a</think>b", 1.0, id="any answer"),
        pytest.param("<think>a</think>\n\nThe answer:\n\nb\n", 1.0, id="with lines"),
        pytest.param("<think>a</think><boxed>b</boxed>", 1.0, id="other tags"),
        pytest.param("<think>a</think>", 0.0, id="no answer"),
        pytest.param("x<think>a</think>b", 0.0, id="words before"),
        pytest.param("<think>a</think>b</think>", 0.0, id="ends twice"),
        pytest.param("<think>a</think>b<think>", 0.0, id="begins again"),
        pytest.param("<think>a</think>b<think>c</think>d", 0.0, id="thinks twice"),
        pytest.param("<think>a</think>b<|im_end|>", 0.0, id="a template's mark"),
        pytest.param("<think>a</think>&lt;think&gt;", 0.0, id="an escaped tag"),
        pytest.param("b", 0.0, id="no thinking"),
        pytest.param("<think>a", 0.0, id="cut off"),
        pytest.param("a</think>b", 0.0, id="not opened"),
    ],
)
def test_without_answer_tags(text, reward):
    assert get_reward("think_format", answer_tag=False)([text]) == [reward]


@pytest.mark.parametrize("text", [GOOD, "<think></think>", "<think>a</think>", GOOD + "</think>", GOOD + "\nUser: x"])
def test_trl_pays_for_all_of_these(text):
    """What the docstring says of TRL's own reward."""
    from trl.rewards import think_format_reward

    assert think_format_reward([[{"role": "assistant", "content": text}]]) == [1.0]
    assert think_format([text]) == [float(text == GOOD)]
