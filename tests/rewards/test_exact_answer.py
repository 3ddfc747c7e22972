"""The reward `exact_answer`: the text is the answer and nothing more."""

from case_tables import misjudged

from trl_grpo_plus.rewards.exact_answer import exact_answer


def test_what_is_the_answer_and_what_is_not():
    assert misjudged("exact_answer", lambda text, answer: exact_answer([text], answer=[answer])[0]) == []


def test_it_scores_row_by_row():
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
