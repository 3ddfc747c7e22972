"""Rewards of steps: from offsets in a text to tokens, and from the steps of a group to advantages of its tokens.

The rewards of all steps of all attempts of a group are normalised together, `(r - mean R) / (std R + eps)`; then

| process | a token earns |
|---|---|
| to_go | the normalised rewards of the steps that end at it or after it (DeepSeekMath, section 4.1.3) |
| own | the normalised reward of the step that it lies in |

and 0 behind the last step. A token in which two steps end lies in both. A group whose step rewards differ by no more
than the tolerance has advantage exactly 0. So two attempts whose sums are equal teach where their steps differ, and
attempts that are alike do, too, where the steps within them differ: the baseline is the mean step, not the mean
attempt.
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .common.values import Refusal, one_of


Steps = Sequence[tuple[int, float]]  # (last token, reward) of each, in order
LONGEST_CHARACTER = 4  # in tokens: a character has at most so many bytes
CONTEXT = 8  # tokens


class Marks(NamedTuple):
    """The steps of one attempt, as tokens.

    Args:
        length (`int`): of the completion, in tokens.
        steps (`tuple`): of each of the K rewards its [`Steps`], `None` where it scored the whole or not at all.
    """

    length: int
    steps: tuple[Steps | None, ...]


# -- from characters to tokens


def last_tokens(
    completion_ids: Sequence[int], text: str, ends: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[int]:
    """The token in which each step ends: the first one up to which the tokens, decoded, hold the step's whole text.

    Nothing is assumed of the tokenizer but that what it decodes of the first n tokens is, but for characters that are
    not complete, how the whole text begins.

    Args:
        completion_ids (`Sequence[int]`): of the completion, special tokens and all.
        text (`str`): what was rewarded: what the tokens decode to, or the end of that (without the thinking, say).
        ends (`Sequence[int]`): offsets in `text`, ascending, from 1 to its length.
        decode (`Callable`): as the text was decoded; of any first tokens.

    Returns:
        `list[int]`: for each end an index into `completion_ids`.

    Raises:
        ValueError: the tokens do not decode to the text.
    """
    whole = decode(completion_ids) if ends else text
    start = whole.rfind(text)
    if start < 0:
        raise ValueError(
            f"The text {text!r:.200} is not what its {len(completion_ids)} tokens decode to, {whole!r:.200}, nor a "
            "part of it: the offsets of its steps lead to no tokens."
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
) -> Marks:
    """An attempt's steps of each reward, as tokens; see [`last_tokens`]."""

    def as_tokens(of_one: Sequence[Any]) -> tuple[tuple[int, float], ...]:
        lasts = last_tokens(completion_ids, text, [step.end for step in of_one], decode)
        return tuple(zip(lasts, [step.reward for step in of_one], strict=True))

    of_each = tuple(None if of_one is None else as_tokens(of_one) for of_one in steps)
    return Marks(len(completion_ids), of_each)


class _Prefixes:
    """How much of a text its first tokens hold.

    Args:
        ids (`Sequence[int]`): the tokens.
        whole (`str`): what they decode to.
        decode (`Callable`): as for [`last_tokens`].
    """

    def __init__(self, ids: Sequence[int], whole: str, decode: Callable[[Sequence[int]], str]):
        self._ids, self._whole, self._decode = ids, whole, decode
        self._known: dict[int, tuple[int, bool]] = {}

    def first(self, end: int, low: int) -> int:
        """The first count of tokens, `low` or more, that holds `end` characters, as all do."""
        count = self._guess(end, low)
        if self._reached(count) < end or (count > low and self._reached(count - 1) >= end):
            count = _bisect(self._reached, end, low, len(self._ids))
        # In a run of bytes that are tokens of their own (emoji, say) some decoders give nothing for the whole run
        # while its last character lacks a byte: more tokens may reach less, until that character is whole.
        behind = count
        while behind > max(low, count - LONGEST_CHARACTER):
            behind -= 1
            if self._reached(behind) >= end:
                count = behind
            elif self._is_whole(behind):
                break
        return count

    def _guess(self, end: int, low: int) -> int:
        """From what the tokens behind `low` decode to by themselves, which is little to decode. It is checked."""
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
        """Characters of the text that the first `count` tokens hold."""
        if count not in self._known:
            text = self._decode(self._ids[:count])
            reached = in_common(text, self._whole)
            self._known[count] = (reached, reached == len(text))
        return self._known[count][0]

    def _is_whole(self, count: int) -> bool:
        """Whether the first `count` tokens end with a whole character."""
        self._reached(count)
        return self._known[count][1]


def _bisect(reached: Callable[[int], int], end: int, low: int, high: int) -> int:
    """A count from `low` to `high` that reaches `end`, as `high` does, while the one before it does not."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= end else (middle + 1, high)
    return low


def in_common(first: str, second: str) -> int:
    """Characters that both begin with."""
    if second.startswith(first):
        return len(first)
    return next(i for i, (a, b) in enumerate(zip(first + "\0", second + "\1", strict=False)) if a != b)


# -- from steps to advantages


def of_steps(
    steps: Sequence[Steps],
    lengths: Sequence[int],
    process: str = "to_go",
    ddof: int = 1,
    eps: float = 1e-4,
    *,
    scale: str = "group",
    floor: float = 0.0,
    tolerance: float = 1e-6,
) -> list[Tensor]:
    """Advantages of the tokens of one group, from the rewards of its steps. See the module for the formula.

    Args:
        steps (`Sequence`): of each of the G attempts `[(last token, reward), ...]`, last tokens ascending from 0; an
            attempt without steps has none.
        lengths (`Sequence[int]`): of the G attempts, in tokens.
        process (`str`, *optional*, defaults to `"to_go"`): one of [`PROCESSES`].
        ddof (`int`, *optional*, defaults to `1`): 1 for the sample std, 0 for the population std.
        eps (`float`, *optional*, defaults to `1e-4`): added to the std.
        scale (`str`, *optional*, defaults to `"group"`): one of [`STEP_SCALES`]; "none" divides by nothing.
        floor (`float`, *optional*, defaults to `0.0`): smallest std.
        tolerance (`float`, *optional*, defaults to `1e-6`): largest max - min of rewards that count as tied.

    Returns:
        `list[Tensor]`: G tensors `(length,)` in float64.

    Raises:
        ValueError: an unknown process or scale, or steps that are not in order or pass the end.

    Example:
        >>> [values.tolist() for values in of_steps([[(1, 1.0), (3, 0.0)], [(1, 1.0)]], [4, 3], scale="none")]
        [[-0.3333333333333333, -0.3333333333333333, -0.6666666666666666, -0.6666666666666666], [0.33333333333333337, \
0.33333333333333337, 0.0]]
    """
    one_of("process", process, PROCESSES)
    one_of("scale", scale, STEP_SCALES)
    for of_one, length in zip(steps, lengths, strict=True):
        lasts = [-1, *(last for last, _ in of_one), length - 1]
        if any(after < before for before, after in pairwise(lasts)) or (of_one and of_one[0][0] < 0):
            raise Refusal(f"steps={list(of_one)!r:.200} must end in order, at tokens from 0 to {length - 1}.")
    rewards = torch.tensor([reward for _, reward in chain(*steps)], dtype=torch.float64)
    tied = not varies(steps, tolerance)
    mean, divisor = (0.0, 1.0) if tied else (rewards.mean().item(), 1.0)
    if scale == "group" and not tied:
        divisor = max(rewards.std(correction=ddof).item(), floor) + eps
    advantages = []
    for of_one, length in zip(steps, lengths, strict=True):
        values = torch.zeros(length, dtype=torch.float64)
        before = -1
        for last, reward in of_one if not tied else ():
            values[PROCESSES[process](before, last) : last + 1] += (reward - mean) / divisor
            before = last
        advantages.append(values)
    return advantages


# The first token that earns a step's reward, from the last tokens of the step before and of its own.
PROCESSES: dict[str, Callable[[int, int], int]] = {
    "to_go": lambda before, last: 0,
    "own": lambda before, last: min(before + 1, last),
}
STEP_SCALES = ("group", "none")


def varies(steps: Sequence[Steps], tolerance: float) -> bool:
    """Whether the rewards of a group's steps differ by more than that."""
    rewards = [reward for _, reward in chain(*steps)]
    return bool(rewards) and max(rewards) - min(rewards) > tolerance


def steps_of_group(rewards: Tensor, marks: Sequence[Marks]) -> dict[int, list[Steps]]:
    """The rewards that score steps in a group, and for each the steps of its attempts.

    An attempt that such a reward scored as a whole has one step, up to its last token; one that it did not, none.

    Args:
        rewards (`Tensor`): `(G, K)`, NaN where a reward does not apply.
        marks (`Sequence[Marks]`): of the G attempts.
    """
    return {
        k: [_steps_or_whole(mark, k, score) for mark, score in zip(marks, rewards[:, k].tolist(), strict=True)]
        for k in range(rewards.shape[1])
        if any(mark.steps[k] is not None for mark in marks)
    }


def _steps_or_whole(mark: Marks, k: int, score: float) -> Steps:
    steps = mark.steps[k]
    if steps is not None:
        return steps
    return [(mark.length - 1, score)] if mark.length and score == score else []


def by_group(rewards: Tensor, marks: Sequence[Marks], size: int) -> tuple[list[dict[int, list[Steps]]], Tensor]:
    """[`steps_of_group`] of each group, and what is left to be credited as a whole.

    Args:
        rewards (`Tensor`): `(P * size, K)`, NaN where a reward does not apply.
        marks (`Sequence[Marks]`): of the P * size attempts.
        size (`int`): attempts in a group.

    Returns:
        `tuple`: P dicts, and rewards of the same shape, NaN for a group's attempts where its steps were scored.
    """
    starts = range(0, len(rewards), size)
    stepwise = [steps_of_group(rewards[start : start + size], marks[start : start + size]) for start in starts]
    rest = rewards.clone()
    for start, scored in zip(starts, stepwise, strict=True):
        rest[start : start + size, list(scored)] = torch.nan
    return stepwise, rest
