"""Properties of a completion's text: its words, its repetition and the place of its answer."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any


# Forms in which runs ask for an answer, besides tags; the most reliable form comes first.
_ANSWERS = (
    re.compile(r"^####[ \t]*(\S.*)$", re.MULTILINE),
    re.compile(r"(?:final answer|the answer) is:?[ \t]*(\S[^\n]*)", re.IGNORECASE),
)
_MOST_OF_A_BLOCK = 80  # characters
_FIRST = 60  # characters that tell one prompt or completion from another
_WORD = re.compile(r"\w+|[^\w\s]")


def distinct(names: Sequence[str], taken: Sequence[str] = (), mark: str = "-") -> tuple[str, ...]:
    """Return distinct names, none of them in `taken`: a name that is there already gets `mark` and a number.

    Example:
        >>> distinct(["a", "a", "a-2", "total"], taken=["total"])
        ('a', 'a-2', 'a-2-2', 'total-2')
    """
    found = list(taken)
    for name in names:
        numbered = (name if n == 1 else f"{name}{mark}{n}" for n in count(1))
        found.append(next(free for free in numbered if free not in found))
    return tuple(found[len(taken) :])


def as_text(messages: Any) -> str:
    """Return a prompt or completion as one text: the text itself, or the text of its messages with tool calls.

    Example:
        >>> as_text([{"role": "assistant", "content": "42"}])
        '42'
    """
    if isinstance(messages, str):
        return messages
    return "\n".join(_content(message) for message in messages or ())


def first_words(text: Any) -> str:
    """Return the beginning of a text, or of the last of some messages, on one line, for a message to the user."""
    return shortened(" ".join(as_text(text if isinstance(text, str) else text[-1:]).split()), _FIRST)


def percent(share: float, form: str = ".0f") -> str:
    """Return a share in per cent.

    Example:
        >>> percent(0.5), percent(0.125, "+.1f")
        ('50 %', '+12.5 %')
    """
    return f"{100 * share:{form}} %"


def shortened(text: str, most: int) -> str:
    """Return the first `most` characters of a text, with "..." if there are more."""
    return text if len(text) <= most else f"{text[:most]}..."


def without_middle(text: str, most: int) -> str:
    r"""Return a text; of one longer than `most` characters, only its beginning and its end.

    Example:
        >>> without_middle("abcdefgh", most=4)
        'ab\n[... 4 characters left out ...]\ngh'
    """
    if len(text) <= most:
        return text
    end = len(text) - most // 2
    return f"{text[: most - most // 2]}\n[... {len(text) - most:,} characters left out ...]\n{text[end:]}"


def content_of(completion: Any) -> str:
    """Return the text that the policy wrote last: the completion, or the content of the policy's last message.

    The result is "" if there is no such message. If the content is in parts, only its text parts count.

    Example:
        >>> content_of([{"role": "assistant", "content": "42"}, {"role": "tool", "content": "43"}])
        '42'
    """
    return completion if isinstance(completion, str) else written(last_message(completion).get("content"))


def last_message(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the policy's last message, or an empty message if there is none."""
    return next((one for one in reversed(messages) if one.get("role") == "assistant"), {})


def written(content: Any) -> str:
    """Return the text of a message's content, which may be in parts."""
    if isinstance(content, list):
        parts = (part for part in content if isinstance(part, dict) and part.get("type") == "text")
        return "".join(written(part.get("text")) for part in parts)
    return content if isinstance(content, str) else ""


def find_answer(text: str) -> tuple[int, int] | None:
    r"""Return the place of the final answer in `text`, as (start, end), or `None` if no known form is found.

    The answer is the last `\boxed{...}`, else the last `<answer>...</answer>`, `#### ...` or "the answer is ...". This
    is a guess for readers and alarms; rewards have rules of their own.

    Example:
        >>> text = "so <answer>42</answer>"
        >>> text[slice(*find_answer(text))]
        '42'
    """
    start = text.rfind("\\boxed{")
    if start >= 0 and (end := _closing(text, start + len("\\boxed"))) is not None:
        return start + len("\\boxed{"), end
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start >= 0:
        return start + len("<answer>"), end
    for pattern in _ANSWERS:
        matches = list(pattern.finditer(text))
        if matches:
            return matches[-1].span(1)
    return None


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case."""
    return _WORD.findall(text.lower())


def repeated(tokens: list[str], n: int = 4) -> float:
    """Return the share of n-grams that have occurred before in the same text: 0 if all are new, near 1 in a loop.

    Example:
        >>> repeated("a b a b a b a b".split(), n=2)
        0.7142857142857143
    """
    count = len(tokens) - n + 1
    return 1 - len(Counter(zip(*(tokens[i:] for i in range(n)), strict=False))) / count if count > 0 else 0.0


def _closing(text: str, opening: int) -> int | None:
    """Return the index of the brace that closes the brace at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return None


def _content(message: dict[str, Any] | str) -> str:
    if isinstance(message, str):  # TRL trains on prompts of two texts
        return message
    content = message.get("content") or ""
    if not isinstance(content, str):  # blocks, or what a tool returned
        content = "\n".join(map(_block, content if isinstance(content, list | tuple) else [content]))
    calls = [str(call.get("function", call)) for call in message.get("tool_calls") or ()]
    return "\n".join(part for part in (content, *calls) if part)


def _block(block: Any) -> str:
    """Return the text of a block, or the JSON of another value: TRL makes any list that a tool returns the content."""
    if isinstance(block, dict) and isinstance(text := block.get("text"), str) and text:
        return text
    if isinstance(block, dict) and isinstance(block.get("type"), str):
        return _named(block)
    return block if isinstance(block, str) else json.dumps(block, ensure_ascii=False, default=str)


def _named(block: dict[str, Any]) -> str:
    """Return a placeholder for a block that is not text.

    The placeholder of a picture holds its name in the trace, or the beginning of its address or data.
    """
    kind = block["type"]
    about = block.get(kind)
    if not isinstance(about, str) or not about:
        return f"<{kind}>"
    return f"<{kind} {shortened(about, _MOST_OF_A_BLOCK)}>"
