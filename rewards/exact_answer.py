"""Reward for a task whose completion is the answer and nothing else."""

from typing import Any

from trl_grpo_plus.registry import Example, register_reward

from ._rows import refuse_rows
from ._text import is_seen, text_of


def _check_columns(answer: list[Any]) -> None:
    hint = (
        "Filter blank answers; convert others: dataset.map(lambda row: {'answer': str(row['answer'])}). In a recipe a "
        "function of yours does so (prepare: file.py:function)."
    )
    refuse_rows("exact_answer", _problem, answer, hint=hint)


def _problem(gold: Any) -> str | None:
    if not isinstance(gold, str):
        return f"answer={gold!r:.100} is no text"
    return None if any(map(is_seen, set(gold))) else f"answer={gold!r:.100} is blank, so saying nothing is right"


@register_reward(
    "exact_answer",
    examples=[
        Example("46", {"answer": "46"}, 1.0),
        Example(" 46\n", {"answer": "46"}, 1.0),
        Example("460", {"answer": "46"}, 0.0),
        Example("The answer is 46", {"answer": "46"}, 0.0),
        Example("", {"answer": "46"}, 0.0),
    ],
    check_columns=_check_columns,
    gold=lambda answer: answer,
)
def exact_answer(completions: list[Any], answer: list[str]) -> list[float | None]:
    r"""1.0 for a completion that is the answer, else 0.0; white space around either does not count.

    The whole completion counts, with its thinking. For answers at the end of a text there are other rewards.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        answer (`list[str]`): N answers: the dataset's `answer` column. A row where it is `None` is not scored.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0; `None` (not scored) where `answer` is `None`.

    Raises:
        ValueError: before training, if an answer is no text, or is blank, which an empty completion would earn.

    Example:
        >>> exact_answer(["46", " 46\n", "forty-six", "46"], answer=["46", "46", "46", None])
        [1.0, 1.0, 0.0, None]
        >>> exact_answer([[{"role": "assistant", "content": "46"}]], answer=["46"])
        [1.0]
    """
    return [
        float(text_of(completion).strip() == gold.strip())
        for completion, gold in zip(completions, answer, strict=True)
    ]
