"""Steps of an attempt: from the offsets in a text that a reward scored to the tokens in which the steps end.

[`~trl_grpo_plus.objective.process_rewards`] computes advantages from these steps.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor


Steps = Sequence[tuple[int, float]]  # (last token, reward) of each step, in order
LONGEST_CHARACTER = 4  # in tokens: a character has at most 4 bytes
CONTEXT = 8  # tokens


class StepMarks(NamedTuple):
    """The steps of one attempt, as tokens.

    Args:
        length (`int`): of the completion, in tokens.
        steps (`tuple`): the [`Steps`] of each of the K rewards; `None` for a reward that scored the whole attempt or
            did not score it.
    """

    length: int
    steps: tuple[Steps | None, ...]


# -- from characters to tokens


def last_tokens(
    completion_ids: Sequence[int], text: str, ends: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[int]:
    """Return the token in which each step ends.

    This token is the first one up to which the decoded tokens hold the step's whole text.

    The function assumes only this of the tokenizer: the text decoded from the first n tokens is, except for incomplete
    characters, the beginning of the whole text.

    Args:
        completion_ids (`Sequence[int]`): of the completion, with special tokens.
        text (`str`): the rewarded text: the decoded completion, or its end (without the thinking, say).
        ends (`Sequence[int]`): offsets in `text`, ascending, from 1 to its length.
        decode (`Callable`): decodes any first tokens of the completion, in the same way as the text was decoded.

    Returns:
        `list[int]`: for each end an index into `completion_ids`.

    Raises:
        ValueError: the tokens do not decode to the text.
    """
    whole = decode(completion_ids) if ends else text
    start = whole.rfind(text)
    if start < 0:
        raise ValueError(
            f"The text {text!r:.200} is not a part of the text that its {len(completion_ids)} tokens decode to, "
            f"{whole!r:.200}. So the offsets of its steps cannot be mapped to tokens."
        )
    prefixes = _Prefixes(completion_ids, whole, decode)
    found, low = [], 1
    for end in ends:
        low = prefixes.first(start + end, low)
        found.append(low - 1)
    return found


def marked(
    completion_ids: Sequence[int],
    text: str,
    steps: Sequence[Sequence[Any] | None],
    decode: Callable[[Sequence[int]], str],
) -> StepMarks:
    """Return the steps of an attempt for each reward, as tokens; see [`last_tokens`]."""

    def as_tokens(of_one: Sequence[Any]) -> tuple[tuple[int, float], ...]:
        lasts = last_tokens(completion_ids, text, [step.end for step in of_one], decode)
        return tuple(zip(lasts, [step.reward for step in of_one], strict=True))

    of_each = tuple(None if of_one is None else as_tokens(of_one) for of_one in steps)
    return StepMarks(len(completion_ids), of_each)


class _Prefixes:
    """Measures the length of the text that the first tokens of a completion hold.

    Args:
        ids (`Sequence[int]`): the tokens.
        whole (`str`): the text that all tokens decode to.
        decode (`Callable`): as for [`last_tokens`].
    """

    def __init__(self, ids: Sequence[int], whole: str, decode: Callable[[Sequence[int]], str]):
        self._ids, self._whole, self._decode = ids, whole, decode
        self._measured: dict[int, tuple[int, bool]] = {}
        self._found: deque[int] = deque([0])  # the last counts found that end with whole characters

    def first(self, end: int, low: int) -> int:
        """Return the least count of tokens, at least `low`, that holds `end` characters. All tokens must hold as many.

        The counts of successive calls must ascend.
        """
        count = self._guess(end, low)
        if self._reached(count) < end or (count > low and self._reached(count - 1) >= end):
            count = _bisect(self._reached, end, low, len(self._ids))
        # In a run of byte tokens, such as emoji, some decoders return nothing for the whole run while its last
        # character lacks a byte. More tokens may then hold less text, until this character is whole.
        behind = count
        while behind > max(low, count - LONGEST_CHARACTER):
            behind -= 1
            if self._reached(behind) >= end:
                count = behind
            elif self._is_whole(behind):
                break
        if self._is_whole(count) and count > self._found[-1]:
            self._found.append(count)
            while len(self._found) > 2 and self._found[1] <= count - CONTEXT:
                self._found.popleft()
        return count

    def _guess(self, end: int, low: int) -> int:
        """Guess the count by decoding only the tokens near `low`, which is cheap; the caller checks the guess."""
        begin = max(low - 1 - CONTEXT, 0)
        before = len(self._decode(self._ids[begin : low - 1]))
        ahead = end - (self._reached(low - 1) if low > 1 else 0)

        def reached(count: int) -> int:
            return len(self._decode(self._ids[begin:count])) - before

        high = low
        while high < len(self._ids) and reached(high) < ahead:
            high = min(2 * high - low + 2, len(self._ids))
        return _bisect(reached, ahead, low, high)

    def _reached(self, count: int) -> int:
        """Count the characters of the text that the first `count` tokens hold."""
        if count not in self._measured:
            self._measured[count] = self._reached_nearby(count) or self._reached_from_the_start(count)
        return self._measured[count][0]

    def _reached_from_the_start(self, count: int) -> tuple[int, bool]:
        text = self._decode(self._ids[:count])
        reached = in_common(text, self._whole)
        return reached, reached == len(text)

    def _reached_nearby(self, count: int) -> tuple[int, bool] | None:
        """Count from the last count found, so that the time grows with the length of a step, not of the completion.

        `None` where the text of the tokens in between is not the next part of the whole text: a character lacks bytes,
        or a token's text depends on tokens further back.
        """
        begin, known = self._found[0], self._found[-1]
        if not begin or count <= known:
            return None
        before, text = self._decode(self._ids[begin:known]), self._decode(self._ids[begin:count])
        start, more = self._measured[known][0], text[len(before) :]
        alike = before and text.startswith(before) and self._whole.startswith(more, start)
        return (start + len(more), True) if alike and "\ufffd" not in text else None

    def _is_whole(self, count: int) -> bool:
        """Return whether the first `count` tokens end with a whole character."""
        self._reached(count)
        return self._measured[count][1]


def _bisect(reached: Callable[[int], int], end: int, low: int, high: int) -> int:
    """Return a count from `low` to `high` that reaches `end`, while the count before it does not.

    `high` must reach `end`.
    """
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= end else (middle + 1, high)
    return low


def in_common(first: str, second: str) -> int:
    """Count the characters at the beginning that two texts have in common."""
    if second.startswith(first):
        return len(first)
    return next(i for i, (a, b) in enumerate(zip(first + "\0", second + "\1", strict=False)) if a != b)


# -- the steps of a group


def steps_differ(steps: Sequence[Steps], tolerance: float) -> bool:
    """Return whether the rewards of a group's steps differ by more than `tolerance`."""
    rewards = [reward for _, reward in chain(*steps)]
    return bool(rewards) and max(rewards) - min(rewards) > tolerance


def steps_of_group(rewards: Tensor, marks: Sequence[StepMarks]) -> dict[int, list[Steps]]:
    """Return the rewards that score steps in a group, and for each the steps of its attempts.

    An attempt that such a reward scored as a whole has one step, up to its last token. An attempt that the reward did
    not score has no step.

    Args:
        rewards (`Tensor`): `(G, K)`, NaN where a reward does not apply.
        marks (`Sequence[StepMarks]`): of the G attempts.
    """
    return {
        k: [_steps_or_whole(mark, k, score) for mark, score in zip(marks, rewards[:, k].tolist(), strict=True)]
        for k in range(rewards.shape[1])
        if any(mark.steps[k] is not None for mark in marks)
    }


def _steps_or_whole(mark: StepMarks, k: int, score: float) -> Steps:
    steps = mark.steps[k]
    if steps is not None:
        return steps
    return [(mark.length - 1, score)] if mark.length and score == score else []


def by_group(rewards: Tensor, marks: Sequence[StepMarks], size: int) -> tuple[list[dict[int, list[Steps]]], Tensor]:
    """Return [`steps_of_group`] of each group, and the rewards that are left to be credited as a whole.

    Args:
        rewards (`Tensor`): `(P * size, K)`, NaN where a reward does not apply.
        marks (`Sequence[StepMarks]`): of the P * size attempts.
        size (`int`): attempts in a group.

    Returns:
        `tuple`: P dicts, and rewards of the same shape, with NaN for the rewards that scored steps in a group.
    """
    starts = range(0, len(rewards), size)
    stepwise = [steps_of_group(rewards[start : start + size], marks[start : start + size]) for start in starts]
    rest = rewards.clone()
    for start, scored in zip(starts, stepwise, strict=True):
        rest[start : start + size, list(scored)] = torch.nan
    return stepwise, rest
