"""Which message of a conversation a reward reads, for every reward of the library and the combinations of rewards.

Only the last message of the policy counts. The right answer may also stand in a message of a tool, a user or the
system, or in an earlier message of the policy.
"""

import pytest
import torch

from trl_grpo_plus.registry import find, get_reward
from trl_grpo_plus.rewards import LIBRARY
from trl_grpo_plus.rewards.combine import clip, gate, scale
from trl_grpo_plus.rewards.exact_answer import exact_answer


CALL = {"type": "function", "function": {"name": "search", "arguments": {"query": "72"}}}
SAYS = "I call the tool."


def message(content, role="assistant", **others):
    return {"role": role, "content": content, **others}


def calling(content):
    return message(content, tool_calls=[CALL])


# Who says the right text -> (function from the right text to messages, the lone text that must score the same).
# `None` stands for the right text.
CONVERSATIONS = {
    "a tool": (lambda text: [calling(SAYS), message(text, "tool")], SAYS),
    "a tool, after a call without words": (lambda text: [calling(None), message(text, "tool")], ""),
    "a tool, after a call without content": (
        lambda text: [{"role": "assistant", "tool_calls": [CALL]}, message(text, "tool")],
        "",
    ),
    "a tool alone": (lambda text: [message(text, "tool")], ""),
    "a tool in parts": (lambda text: [calling(SAYS), message([{"type": "text", "text": text}], "tool")], SAYS),
    "a function, as it was once called": (lambda text: [calling(SAYS), message(text, "function")], SAYS),
    "the user": (lambda text: [message(SAYS), message(text, "user")], SAYS),
    "the system": (lambda text: [message(SAYS), message(text, "system")], SAYS),
    "the developer": (lambda text: [message(SAYS), message(text, "developer")], SAYS),
    "nobody": (lambda text: [message(SAYS), {"content": text}], SAYS),
    "the policy, before it went on": (lambda text: [message(text), message("Done."), message(SAYS)], SAYS),
    "the policy, before a call": (lambda text: [message(text), calling(None), message("72", "tool")], ""),
    "the policy, before it said nothing": (lambda text: [calling(text), message("72", "tool"), message("")], ""),
    "arguments of a call": (
        lambda text: [message(SAYS, tool_calls=[{**CALL, "function": {"name": text, "arguments": text}}])],
        SAYS,
    ),
    "a part that is no text": (lambda text: [message([{"type": "image", "text": text}, {"type": "text"}])], ""),
    "the policy, then a tool": (lambda text: [calling(text), message(SAYS, "tool")], None),
    "the policy, after a tool": (lambda text: [calling(SAYS), message(SAYS, "tool"), message(text)], None),
    "the policy, then the user": (lambda text: [message(text), message(SAYS, "user")], None),
    "the policy in parts": (
        lambda text: [
            message([{"type": "text", "text": text[:2]}, {"type": "image"}, SAYS, {"type": "text", "text": text[2:]}])
        ],
        None,
    ),
}


def rewards_and_examples():
    for name in LIBRARY:
        best = max(find(name).examples, key=lambda example: example.reward)
        yield pytest.param(get_reward(name, **best.args), best, id=name)
    for reward in (gate("exact_answer", by="exact_answer"), clip("exact_answer", 0, 1), scale("exact_answer", 1.0)):
        yield pytest.param(reward, exact_answer.definition.examples[0], id=reward.__name__)


@pytest.mark.parametrize(("reward", "example"), rewards_and_examples())
def test_the_last_message_of_the_policy_counts_and_no_other(reward, example):
    def scores(completions):
        return reward(completions=completions, **{name: [value] * len(completions) for name, value in columns})

    columns = example.columns.items()
    texts = {name: example.completion if text is None else text for name, (_, text) in CONVERSATIONS.items()}
    alone = list(dict.fromkeys(texts.values()))
    of_text = dict(zip(alone, scores(alone), strict=True))
    conversations = scores([spoken(example.completion) for spoken, _ in CONVERSATIONS.values()])
    assert dict(zip(texts, conversations, strict=True)) == {name: of_text[text] for name, text in texts.items()}
    assert example.reward in of_text.values()


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], ""),
        ([message("")], ""),
        ([message(None)], ""),
        ([message([])], ""),
        ([message([{"type": "text", "text": None}])], ""),
        ([message([{"type": "text", "text": "4"}, {"type": "text", "text": "6"}])], "46"),
        ([message("46"), message("47")], "47"),
    ],
)
def test_a_message_s_text(messages, text):
    assert exact_answer([messages], answer=["46"]) == [float(text == "46")]


THOUGHT = "6 * 7"


@pytest.mark.parametrize("field", ["reasoning_content", "thinking"])
@pytest.mark.parametrize("opened", [False, True])
def test_thinking_that_trl_has_parsed_out_of_a_text_is_thinking(field, opened):
    """For models with tools TRL moves the text before `</think>` into another field of the message."""
    parsed = [message("<answer>42</answer>", **{field: THOUGHT}), message("<answer>6</answer>", **{field: "42"})]
    completions = [[one] for one in parsed]
    assert get_reward("math_answer", think_opened=opened)(completions, answer=["42", "42"]) == [1.0, 0.0]
    assert get_reward("think_format", think_opened=opened)(completions) == [1.0, 1.0]
    inside = [[message("", **{field: "<answer>42</answer>"})], [message(None, **{field: None})]]
    assert get_reward("math_answer", think_opened=opened)(inside, answer=["42", "42"]) == [0.0, 0.0]
    assert get_reward("think_format", think_opened=opened)(inside) == [0.0, 0.0]


LOOP, FROM_TOOL = [5, 5, 5, 5, 5], [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("mask_of", [list, torch.tensor])
@pytest.mark.parametrize("ids_of", [list, torch.tensor])
def test_tokens_of_tools_are_no_part_of_what_the_policy_wrote(ids_of, mask_of):
    masks = [mask_of([1] * 5 + [0] * 6), mask_of([0] * 5 + [1] * 6), mask_of([0] * 11)]
    masked = {"completion_ids": [ids_of(LOOP + FROM_TOOL)] * 3, "tool_mask": masks}
    alone = {"completion_ids": [LOOP, FROM_TOOL, []]}
    texts, columns = ["42"] * 3, {"answer": ["42", "41", "42"]}
    length = get_reward("cosine_length", max_length=20, correct="exact_answer")
    assert get_reward("repetition", ngram=2)(texts, **masked) == get_reward("repetition", ngram=2)(texts, **alone)
    assert length(texts, **masked, **columns) == length(texts, **alone, **columns)
    # TRL's limit on a completion's length also counts the tokens of tools.
    assert get_reward("overlong", max_length=10, cache=5)(texts, **masked) == [-1.0] * 3
    # TRL's own trainer passes no mask to rewards.
    del masked["tool_mask"]
    assert get_reward("repetition", ngram=2)(texts, **masked) == pytest.approx([-0.6] * 3)
