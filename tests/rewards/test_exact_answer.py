"""The reward `exact_answer`: it pays if the text is the answer and nothing else."""

from case_tables import misjudged

from trl_grpo_plus.rewards.exact_answer import exact_answer


def test_what_is_the_answer_and_what_is_not():
    assert misjudged("exact_answer", lambda text, answer: exact_answer([text], answer=[answer])[0]) == []


def test_it_scores_row_by_row():
    """TRL also passes the other columns, and answers are `None` for some rows of a mixed dataset."""
    rewards = exact_answer(
        prompts=["a", "b", "c", "d"],
        completions=["1", "2", "3", "4"],
        answer=["1", "1", None, "4"],
        completion_ids=[[1], [2], [3], [4]],
        trainer_state=None,
    )
    assert rewards == [1.0, 0.0, None, 1.0]
    assert [type(reward) for reward in rewards] == [float, float, type(None), float]
