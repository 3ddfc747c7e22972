"""Tables of labelled cases, `cases/NAME.tsv`: tab-separated raw text, under headings that begin with `§`.

What an editor does not show or would strip stands there as its code, `⟦a⟧` for a line's end; a field that begins with
`json:` is that value and no text.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


REWARDS = {"+": 1.0, "-": 0.0}


def table(name: str) -> Iterator[list[Any]]:
    """The fields of each line."""
    for line in (Path(__file__).parents[1] / "rewards" / "cases" / f"{name}.tsv").read_text("utf-8").splitlines():
        if not line.startswith("§"):
            yield [_value(field) for field in line.split("\t")]


def texts(name: str, kind: str) -> list[Any]:
    """All fields of the lines whose first one is this kind."""
    return [text for first, *rest in table(name) if first == kind for text in rest]


def misjudged(name: str, score: Callable[..., Any]) -> list[Any]:
    """Of a table of verdicts (`+`, `-` or the reward), why, and what `score` takes: who gets another reward."""
    judged = [(why, *case, score(*case), REWARDS.get(verdict, verdict)) for verdict, why, *case in table(name)]
    return [line for line in judged if line[-2] != float(line[-1])]


def _value(field: str) -> Any:
    if field.startswith("json:"):
        return json.loads(field.removeprefix("json:"))
    return re.sub("⟦([0-9a-f]+)⟧", lambda code: chr(int(code[1], 16)), field)
