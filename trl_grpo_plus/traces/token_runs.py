"""Converts advantages of tokens to stretches of a completion's text with equal advantage."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor

from ..rollouts.groups import Attempt
from ..rollouts.steps import in_common
from ..utils.text import content_of


Decode = Callable[[Sequence[int]], str]
Runs = list[tuple[int, float]]  # (end in the text, advantage) of each stretch, in order

DIGITS = 4
CHUNK = 16  # tokens in a chunk: if its tokens' own texts do not add up to its text, decode each with its neighbours


class ByToken(NamedTuple):
    """One rank's advantages, if the tokens of a completion have advantages of their own.

    Args:
        attempts (`Sequence[Attempt]`): this rank's rows of the plan, B in all.
        advantages (`Tensor`): advantages of the tokens, `(B, T)`.
        decode (`Callable`): tokens -> text, as the completions were decoded.
    """

    attempts: Sequence[Attempt]
    advantages: Tensor
    decode: Decode

    def runs(self, rows: Iterable[int]) -> dict[int, Runs]:
        """Return the runs of the rows whose tokens decode to their text; see [`runs`]."""
        pieces: dict[int, str] = {}  # token -> its text when decoded alone
        found = {}
        for row in rows:
            attempt = self.attempts[row]
            values: list[float] = self.advantages[row, : len(attempt.completion_ids)].double().tolist()
            if attempt.tool_mask is not None:
                values = [value * own for value, own in zip(values, attempt.tool_mask, strict=True)]
            of_row = runs(attempt.completion_ids, content_of(attempt.completion), values, self.decode, pieces)
            if of_row is not None:
                found[row] = of_row
        return found


def advantages_by_token(attempts: Sequence[Attempt], advantages: Tensor, tokenizer: Any) -> ByToken | None:
    """Return the advantages of tokens from a rank's `advantages`, `(B,)` or `(B, T)`; `None` for shape `(B,)`.

    `tokenizer` must be the tokenizer that decoded the completions.
    """
    if advantages.dim() == 1:
        return None
    return ByToken(attempts, advantages.cpu(), lambda ids: tokenizer.decode(ids, skip_special_tokens=True))


def runs(
    ids: Sequence[int], text: str, advantages: Sequence[float], decode: Decode, pieces: dict[int, str] | None = None
) -> Runs | None:
    """Return the stretches of a text whose tokens have equal advantages, rounded to [`DIGITS`] digits.

    A character of several tokens has the advantage of the last of them. A token without a character, such as the end
    of sequence, is in no stretch.

    Args:
        ids (`Sequence[int]`): the completion's T tokens, including special tokens.
        text (`str`): the decoded tokens, or the end of that text.
        advantages (`Sequence[float]`): advantages of the T tokens.
        decode (`Callable`): the function that decoded the text.
        pieces (`dict`, *optional*): cache of token -> its text when decoded alone; new tokens are added.

    Returns:
        `list[tuple[int, float]]`: `(end, advantage)`, ends ascending to the length of the text; `None` if the
        tokens do not decode to the text.

    Example:
        >>> runs([0, 1, 2], "a b c", [0.5, 0.5, -1.0], lambda ids: "".join(["a", " b", " c"][id] for id in ids))
        [(3, 0.5), (5, -1.0)]
    """
    whole = decode(ids)
    start = whole.rfind(text)
    ends = _ends(ids, whole, decode, {} if pieces is None else pieces) if start >= 0 else None
    if ends is None:
        return None
    found: Runs = []
    before = 0
    for end, advantage in zip(ends, advantages, strict=True):
        end = min(max(end - start, 0), len(text))
        if end == before:
            continue
        value = round(advantage, DIGITS) + 0.0  # turns -0.0 into 0.0
        if found and found[-1][1] == value:
            found.pop()
        found.append((end, value))
        before = end
    return found


def _ends(ids: Sequence[int], whole: str, decode: Decode, pieces: dict[int, str]) -> list[int] | None:
    """Return the number of characters in the first 1, 2, ... tokens, in time linear in the number of tokens."""
    for token in set(ids) - pieces.keys():
        pieces[token] = decode([token])
    found, begin, done, done_chars = [0], 0, 0, 0
    for start in range(0, len(ids), CHUNK):
        chunk = range(start, min(start + CHUNK, len(ids)))
        alone = [pieces[ids[place]] for place in chunk]
        text = "".join(alone)
        # A token whose own text is empty may be a space in the whole text.
        settled = done == start and done_chars == found[-1]
        if settled and all(alone) and "\ufffd" not in text and whole.startswith(text, done_chars):
            found += [*accumulate(map(len, alone), initial=done_chars)][1:]
            begin, done, done_chars = start, chunk.stop, found[-1]
            continue
        # A token's text depends on its neighbours: a space may precede it, or it may be one byte of a character. So
        # decode each token together with those since the last but one whole character.
        for count in range(start + 1, chunk.stop + 1):
            before = decode(ids[begin:done])
            fresh = decode(ids[begin:count])[len(before) :]
            reached = done_chars + in_common(fresh, whole[done_chars : done_chars + len(fresh)])
            found.append(max(reached, found[-1]))
            if fresh and reached == done_chars + len(fresh) and not fresh.endswith("\ufffd"):
                begin, done, done_chars = done, count, reached
    return found[1:] if found[-1] == len(whole) else None
