"""Texts that make a careless reward hang or raise, placed in different parts of a completion."""

from collections.abc import Iterator


MANY = 300_000

BOMBS = {
    "many letters": "a" * MANY,
    "many blanks": " " * MANY,
    "many digits": "9" * MANY,
    "many dollars": "$" * MANY,
    "many stars": "*" * MANY,
    "many minus": "-" * MANY,
    "many <": "<" * MANY,
    "NUL": "\0" * MANY,
    "lone surrogates": "\ud800" * MANY,
    "newlines": "\n" * MANY,
    "brackets opened": "[" * 100_000,
    "brackets": "[" * 100_000 + "]" * 100_000,
    "parentheses": "(" * 100_000 + "1" + ")" * 100_000,
    "braces": "{" * 100_000 + "}" * 100_000,
    "few parentheses": "(" * 300 + "1" + ")" * 300,
    "thinking opened": "<think>" * 100_000,
    "thinking closed": "</think>" * 100_000,
    "tags in turn": "<think>a</think><answer>" * 40_000,
    "whole answers": "<think>a</think><answer>b</answer>" * 30_000,
    "answers opened": "<answer>" * 100_000,
    "answers in answers": "<answer>" * 60_000 + "</answer>" * 60_000,
    "boxes opened": "\\boxed{" * 100_000,
    "boxes in boxes": "\\boxed{" * 60_000 + "}" * 60_000,
    "a box after blanks": "\\boxed" + " " * MANY + "{B}",
    "a fence and no line": "```" + "a" * MANY,
    "a fence and blanks": "```" + " " * MANY,
    "fences": "```\n" * 75_000,
    "combining marks": "a" + "\u0301\u0328" * 100_000,
    "zero-width": "\u200b" * MANY,
    "one character that is eighteen": "\ufdfa" * 100_000,
    "a number in HTML": "&#" + "9" * MANY + ";",
    "escaped tags": "&lt;think&gt;" * 60_000,
    "an answer's line": "Answer: " * 100_000,
    "a role after blanks": "\nUser" + " " * MANY,
    "backslashes": '"' + "\\" * MANY,
    "a number beyond int": "1" * 5_000,
    "a number beyond float": "1e" + "9" * 5_000,
    "family emoji": "👩‍👩‍👧" * 60_000,
}


def has_its_turn(bomb: int, place: int) -> bool:
    """Return whether `make test` tries this bomb in this place. The other pairs are marked `full`."""
    return (bomb + place) % 3 == 0


def placed(bomb: str) -> Iterator[str]:
    """Yield the bomb alone, in the answer, in the thinking, in a box, in a fence, and before a cut-off answer."""
    yield bomb
    yield f"<think>x</think><answer>{bomb}</answer>"
    yield f"<think>{bomb}</think><answer>1</answer>"
    yield f"<think>x</think>\\boxed{{{bomb}}}"
    yield f"<think>x</think>\n```json\n{bomb}\n```"
    yield f"{bomb}</think>Answer: {bomb}<answer>"
