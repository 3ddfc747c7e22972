"""Statistics of the texts of a batch, from a few attempts in each of a few groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ...utils.text import as_text, find_answer, repeated, words
from ...utils.validation import finite_or_none
from .. import GroupKey, Row, group_key


_LOOKED_AT = 6  # groups of a batch, and attempts in each, that are read: about 10 ms
_HEAD, _TAIL = 600, 2400  # characters read at the start and the end of a text; loops and answers are at the end
_WORDS = 20  # minimum words of a text: shorter texts are alike by nature
_ALIKE = 0.9  # share of word triples that near-duplicates have in common
LOOP = 0.5  # share of repeated 4-grams above which a text repeats itself


@dataclass(frozen=True)
class TextStats:
    """Statistics of the texts of one group. Pairs are (count, out of how many)."""

    key: GroupKey
    copies: tuple[int, int]
    loops: tuple[int, int]
    unanswered: tuple[int, int]
    distinct: tuple[int, int]


def text_stats_of(groups: Sequence[Sequence[Row]], bar: float) -> list[TextStats]:
    """Return text statistics of some of the groups. Attempts with a total above `bar` count as rewarded."""
    return [_stats_of(rows, bar) for rows in _spread(groups)]


def reward_of(row: Row) -> float:
    """Return the total of an attempt; -inf if it has none."""
    reward = finite_or_none(row["reward"])
    return -math.inf if reward is None else reward


def _spread(items: Sequence[Any]) -> Sequence[Any]:
    """Return at most `_LOOKED_AT` of the items, evenly spread."""
    return [items[at * len(items) // _LOOKED_AT] for at in range(_LOOKED_AT)] if len(items) > _LOOKED_AT else items


def _stats_of(group: Sequence[Row], bar: float) -> TextStats:
    """Return text statistics of at most `_LOOKED_AT` attempts of a group. Totals above `bar` count as rewarded."""
    rows = _spread(group)
    texts = [_clipped(as_text(row["completion"])) for row in rows]
    spans = [find_answer(text) for text in texts]
    paid = [span is None for row, span in zip(rows, spans, strict=True) if reward_of(row) > bar]
    wrong = [
        " ".join(text[slice(*span)].lower().split())
        for row, text, span in zip(rows, texts, spans, strict=True)
        if span is not None and -math.inf < reward_of(row) <= bar
    ]
    differ = [a != b for a, b in combinations(wrong, 2)]
    units = [unit for unit in map(_units, texts) if len(unit[0]) >= _WORDS * unit[1]]
    loops = [repeated(tokens, 4 * width) > LOOP for tokens, width in units]
    shingles = [frozenset(map(hash, zip(*(tokens[i:] for i in range(3 * w)), strict=False))) for tokens, w in units]
    copies = [len(a & b) >= _ALIKE * len(a | b) for a, b in combinations(shingles, 2)]
    shares = ((sum(found), len(found)) for found in (copies, loops, paid, differ))
    return TextStats(group_key(group[0]), *shares)


def _clipped(text: str) -> str:
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}\n{text[-_TAIL:]}"


def _units(text: str) -> tuple[list[str], int]:
    """Split a text into words, or into characters if the script has no spaces between words.

    Returns:
        `tuple[list[str], int]`: the units, and the number of units that make up about one word.
    """
    units = words(text)
    if sum(map(len, units)) <= 6 * len(units):
        return units, 1
    return [character for character in text if not character.isspace()], 3
