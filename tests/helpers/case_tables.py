"""Readers of the tables of labelled cases, `cases/NAME.tsv`: tab-separated text, with headings that begin with `§`.

A character that editors hide or strip is written as its code point: `⟦a⟧` is a line break. A field that begins with
`json:` is a JSON value.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


REWARDS = {"+": 1.0, "-": 0.0}


def table(name: str) -> Iterator[list[Any]]:
    """Yield the fields of each line, without the headings."""
    for line in (Path(__file__).parents[1] / "rewards" / "cases" / f"{name}.tsv").read_text("utf-8").splitlines():
        if not line.startswith("§"):
            yield [_value(field) for field in line.split("\t")]


def texts(name: str, kind: str) -> list[Any]:
    """Return the other fields of all lines whose first field is `kind`."""
    return [text for first, *rest in table(name) if first == kind for text in rest]


def misjudged(name: str, score: Callable[..., Any]) -> list[Any]:
    """Return the cases to which `score` gives another reward than the table's verdict.

    A line of the table holds the verdict (`+`, `-` or the reward), the reason, and the arguments of `score`.
    """
    judged = [(why, *case, score(*case), REWARDS.get(verdict, verdict)) for verdict, why, *case in table(name)]
    return [line for line in judged if line[-2] != float(line[-1])]


def _value(field: str) -> Any:
    if field.startswith("json:"):
        return json.loads(field.removeprefix("json:"))
    return re.sub("⟦([0-9a-f]+)⟧", lambda code: chr(int(code[1], 16)), field)
