"""The rewards that ship with the package, case by case."""

import pytest

from trl_grpo_plus.rewards.exact_answer import exact_answer


CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}]}


def message(content, role="assistant"):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        pytest.param("46", "46", 1.0, id="the answer"),
        pytest.param("47", "46", 0.0, id="another"),
        pytest.param("460", "46", 0.0, id="more than the answer"),
        pytest.param("4", "46", 0.0, id="less than the answer"),
        pytest.param("The answer is 46", "46", 0.0, id="the answer and words"),
        pytest.param("4 6", "46", 0.0, id="white space within"),
        pytest.param(" 46\n", "46", 1.0, id="white space around the completion"),
        pytest.param("46", "\t46 ", 1.0, id="white space around the answer"),
        pytest.param("46.0", "46", 0.0, id="the same number, written otherwise"),
        pytest.param("yes", "Yes", 0.0, id="another case"),
        pytest.param("", "46", 0.0, id="empty"),
        pytest.param("46", None, None, id="no answer"),
        pytest.param([message("46")], None, None, id="no answer, messages"),
        pytest.param([message("46")], "46", 1.0, id="a message"),
        pytest.param([message(" 46 ")], "46", 1.0, id="white space in a message"),
        pytest.param([message("46"), message("47")], "47", 1.0, id="the last message counts"),
        pytest.param([message("46"), message("47")], "46", 0.0, id="an earlier message does not"),
        pytest.param([CALL, message("46", "tool"), message("46")], "46", 1.0, id="after a tool call"),
        pytest.param([CALL], "46", 0.0, id="a tool call without content"),
        pytest.param([{**CALL, "content": None}], "46", 0.0, id="a tool call, content None"),
        pytest.param([message("46"), CALL], "46", 0.0, id="the answer, then a tool call"),
        pytest.param([], "46", 0.0, id="no message at all"),
    ],
)
def test_exact_answer(completion, answer, reward):
    assert exact_answer([completion], answer=[answer]) == [reward]


def test_exact_answer_scores_row_by_row():
    """As TRL calls it: with the other columns, and None among the answers of a mixed dataset."""
    rewards = exact_answer(
        prompts=["a", "b", "c", "d"],
        completions=["1", "2", "3", "4"],
        answer=["1", "1", None, "4"],
        completion_ids=[[1], [2], [3], [4]],
        trainer_state=None,
    )
    assert rewards == [1.0, 0.0, None, 1.0]
    assert [type(reward) for reward in rewards] == [float, float, type(None), float]


def test_exact_answer_wants_answers_that_are_text():
    check = exact_answer.definition.check_columns
    check(answer=["46", "0"])
    with pytest.raises(ValueError, match=r"1 of 2 rows .*; row 1: answer=46 is no text\. .*convert .*str\(row"):
        check(answer=["46", 46])


@pytest.mark.parametrize("blank", ["", " \n", "\u200b", "\ufeff \u2800"])
def test_exact_answer_refuses_answers_that_saying_nothing_would_earn(blank):
    with pytest.raises(ValueError, match=r"1 of 2 rows .*; row 1: answer=.* is blank"):
        exact_answer.definition.check_columns(answer=["46", blank])


def test_exact_answer_pays_its_own_gold_and_examples():
    assert exact_answer([exact_answer.definition.gold(answer="a b")], answer=["a b"]) == [1.0]
    for example in exact_answer.definition.examples:
        assert exact_answer([example.completion], **{k: [v] for k, v in example.columns.items()}) == [example.reward]
