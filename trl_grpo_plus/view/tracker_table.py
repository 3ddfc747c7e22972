"""Which groups a tracker is shown, and as which rows of a table."""

import json
import math
from collections import Counter
from typing import Any

from ..common.texts import as_text
from ..groups import VERDICTS


# Of a text in a table. wandb keeps all rows of a growing table in memory.
MOST_CHARACTERS = 20_000

BEFORE_REWARDS = ("step", "split", "round", "group", "attempt", "verdict", "kept", "reason", "reward", "advantage")
AFTER_REWARDS = ("outcome", "tokens", "truncated", "prompt", "completion", "reference", "alarms")


def pick(groups: list[list[dict[str, Any]]], count: int) -> list[list[dict[str, Any]]]:
    """At most `count` groups to look at, in the order given.

    Up to half are groups that alarms name, most alarms first; one is the group with the highest reward; then verdicts
    take turns, the rarest among those picked first.
    """
    alarmed = [i for i, group in enumerate(groups) if _alarms(group)]
    alarmed.sort(key=lambda i: -_alarms(groups[i]))
    picked = alarmed[: max(1, count // 2)]
    rest = sorted(set(range(len(groups))) - set(picked), key=lambda i: (-_highest(groups[i]), i))
    if rest and len(picked) < count:
        picked.append(rest.pop(0))
    rest.sort()
    while rest and len(picked) < count:
        seen = Counter(_verdict(groups[i]) for i in picked)
        picked.append(min(rest, key=lambda i: (seen[_verdict(groups[i])], VERDICTS.index(_verdict(groups[i])))))
        rest.remove(picked[-1])
    return [groups[i] for i in sorted(picked)]


def columns(rewards: list[str]) -> list[str]:
    """Names of the columns of [`table`]. A reward named like another column is told from it by `rewards/`."""
    taken = {*BEFORE_REWARDS, *AFTER_REWARDS}
    return [*BEFORE_REWARDS, *(f"rewards/{name}" if name in taken else name for name in rewards), *AFTER_REWARDS]


def table(groups: list[list[dict[str, Any]]], rewards: list[str]) -> list[list[Any]]:
    """One row an attempt, groups together, in each the highest advantage first and those without one last."""
    return [_row(row, rewards) for group in groups for row in sorted(group, key=_by_advantage)]


def shown(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` as a tracker can store it, without its middle where it is longer than `most` characters.

    Example:
        >>> shown("abcdefgh", most=4)
        'ab\\n[... 4 characters left out ...]\\ngh'
    """
    text = valid(text)
    if len(text) <= most:
        return text
    head, tail = text[: most - most // 2], text[len(text) - most // 2 :]
    return f"{head}\n[... {len(text) - most} characters left out ...]\n{tail}"


def _row(row: dict[str, Any], rewards: list[str]) -> list[Any]:
    last = {
        "outcome": ", ".join(f"{name}: {status}" for name, status in row["outcomes"].items() if status != "ok"),
        "prompt": shown(as_text(row["prompt"])),
        "completion": shown(as_text(row["completion"])),
        "reference": shown(json.dumps(row["reference"], ensure_ascii=False)),
        "alarms": ", ".join(row["alarms"]),
    }
    scores = (row["rewards"].get(name) for name in rewards)
    cells = (
        *(row[name] for name in BEFORE_REWARDS),
        *scores,
        *(last.get(name, row.get(name)) for name in AFTER_REWARDS),
    )
    return list(cells)


def _by_advantage(row: dict[str, Any]) -> tuple[bool, float]:
    return (row["advantage"] is None, -(row["advantage"] or 0.0))


def _alarms(group: list[dict[str, Any]]) -> int:
    return len({name for row in group for name in row["alarms"]})


def _verdict(group: list[dict[str, Any]]) -> str:
    return group[0]["verdict"]


def _highest(group: list[dict[str, Any]]) -> float:
    return max((row["reward"] for row in group if row["reward"] is not None), default=-math.inf)


def valid(text: str) -> str:
    """Lone surrogates, which cannot be written as UTF-8, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def inert(value: Any) -> Any:
    """Text that is no Markdown or HTML, and looks the same: trackio documents a table's text as Markdown.

    A zero-width space after each `<` and `]` leaves no tag, link, image or reference.
    """
    return value.replace("<", "<\u200b").replace("]", "]\u200b") if isinstance(value, str) else value
