"""Functions for reading a completion, which the rewards share."""

import itertools
import os
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from trl_grpo_plus.utils.text import last_message, written

from ._math.answer_lists import between


# Signs of arithmetic, as models and typography write them: × · ⋅ ∗ for *, ÷ for /, minus and en dash for -.
SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "–": "-"})
_FENCE = re.compile(r"[ \t]*(?:<answer>[ \t]*|(?:[-*+]|[0-9]{1,9}[.)])[ \t]+)?(`{3,}|~{3,})[ \t]*(.*)", re.DOTALL)
_LANGUAGE = re.compile(r"\{?[ \t]*\.?([\w+.#-]*)")
_LABEL_AND_CODE = re.compile(
    r"(?:([\w+.#-]+)[ \t]+)?((?:(?:async[ \t]+)?def|class)[ \t]+\w+[ \t]*[(:].*|import[ \t]+\w.*"
    r"|from[ \t]+[\w.]+[ \t]+import.*)",
    re.DOTALL,
)
_QUOTATION = re.compile(r"[ \t]{0,3}>[ \t]?")
_QUOTED_FENCE = re.compile(r"[ \t]{0,3}>[ \t]*(?:```|~~~)")
_WORDS_BEHIND = re.compile(r"[ \t]+[^\s=({]+[ \t]+\S.*", re.DOTALL)  # words after a fence: "``` This adds."
# A string that is not triple-quoted ends with its line. `.?`: a backslash may end the line.
_TOKEN = re.compile(r"""#.*|\"{3}|'{3}|"(?:[^"\\]|\\.?)*(?:"|\Z)|'(?:[^'\\]|\\.?)*(?:'|\Z)""", re.DOTALL)
_TRIPLE = {'"""': re.compile(r'\\.|"""', re.DOTALL), "'''": re.compile(r"\\.|'''", re.DOTALL)}
_LATE_FENCE = re.compile(r"(?<=[ \t:])(`{3,})((?:[A-Za-z][\w+#.-]*)?)\s*\Z")  # behind words: "The program: ```python"
MOST_FENCES = 40  # most fences in a string of a program
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_ANSWER_MARK = re.compile(r"<answer>|\\boxed|####")
# Marks with which chat templates end a turn. Not `</s>`, which may be HTML.
_END_OF_TURN = re.compile(
    r"<\|(?:im_end"  # Qwen, SmolLM, Kimi, InternLM
    r"|endoftext|return|call"  # GPT, OLMo; gpt-oss: an answer, a call of a tool
    r"|eot_id|eom_id|end_of_text|eot"  # Llama 3 and 4, Granite
    r"|end|user|observation"  # Phi; GLM ends its turn with the mark of the next speaker
    r"|END_OF_TURN_TOKEN|role_end)\|>"  # Command R, Ling
    r"|<end_of_turn>|<turn\|>|<eos>"  # Gemma
    r"|<｜end▁of▁sentence｜>|\[\|endofturn\|\]|<seed:eos>"  # DeepSeek, EXAONE, Seed
)
# Marks around the thinking.
_THINKING = {
    "<think>": "</think>",  # most models
    "[THINK]": "[/THINK]",  # Magistral
    "<seed:think>": "</seed:think>",  # Seed
    "◁think▷": "◁/think▷",  # Kimi
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
    "<|begin_of_thought|>": "<|end_of_thought|>",  # OpenThinker
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",  # gpt-oss
}
# Marks that other texts may have too, so that they count only if the text begins with one, or if the prompt does the
# opening: tags of EXAONE and of tutorials, and what a decoder without special tokens leaves of gpt-oss's marks.
_LEADING = re.compile(r"\s*<(?:thought|thinking|reasoning)>|analysis(?=\w)")
_LEADING_ENDS = ("</thought>", "</thinking>", "</reasoning>", "assistantfinal")
MOST_JOINED = 10  # most tagged answers that are checked for one hedge
_UNSEEN = {"Cf", "Cc", "Cs", "Mn", "Me"}  # zero-width and control characters, lone surrogates, combining marks
_BLANK = set("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols that show nothing


def text_of(completion: Any, opened: bool = False) -> str:
    """Return the text of a completion: the text itself, or that of the policy's last message ("" if there is none).

    TRL's messages include those of tools, environments and users, which say what the policy did not. If the content is
    in parts, as processors take it, the parts of text count. Thinking that TRL has parsed out of the text is put back.
    With `opened` the prompt has opened the thinking.
    """
    if isinstance(completion, str):
        return completion
    message = last_message(completion)
    thinking = written(message.get("reasoning_content")) or written(message.get("thinking"))
    text = written(message.get("content"))
    return f"{'' if opened else '<think>'}{thinking}</think>{text}" if thinking else text


def written_ids(completion_ids: Sequence[Any], tool_mask: Sequence[Any] | None) -> list[list[int]]:
    """Return for each completion the tokens that the policy wrote.

    These are the tokens for which the mask, if there is one, has no 0. Each completion may be a list, a tensor or an
    array.
    """
    tokens = [_integers(ids) for ids in completion_ids]
    if tool_mask is None:
        return tokens
    return [list(itertools.compress(ids, _integers(mask))) for ids, mask in zip(tokens, tool_mask, strict=True)]


def _integers(values: Any) -> list[int]:
    if isinstance(values, list) and (not values or type(values[0]) is int):  # as trainers give them
        return values
    return [int(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]


def after_thinking(text: str, opened: bool = False) -> str:
    """Return the text after the thinking, which ends with the last `</think>` or the mark of another model.

    The result is "" if the thinking never ends, and the whole text if there is no thinking. With `opened` the prompt
    has opened the thinking, so the result is "" if no mark ends it.

    Example:
        >>> after_thinking("<think>6 * 7</think>42"), after_thinking("[THINK]6 * 7"), after_thinking("42")
        ('42', '', '42')
    """
    opened = opened or _LEADING.match(text) is not None
    ends = (*_THINKING.values(), *(_LEADING_ENDS if opened else ()))
    end = max(at + len(mark) if (at := text.rfind(mark)) >= 0 else 0 for mark in ends)
    tail = text[end:]
    return "" if (opened and not end) or any(mark in tail for mark in _THINKING) else tail


def answer_of(text: str, opened: bool = False) -> str | None:
    """Return the body of the last `<answer>...</answer>` after the thinking.

    The result is `None` if there is no `<answer>`, if the last one has no end, or if "or", a comma or a slash joins a
    different answer to it.
    """
    head, closing, tail = shown(after_thinking(text, opened)).rpartition("</answer>")
    head, opening, body = head.rpartition("<answer>")
    if not (closing and opening) or "<answer>" in tail:
        return None
    for _ in range(MOST_JOINED):
        head, closing, gap = head.rpartition("</answer>")
        head, opening, other = head.rpartition("<answer>")
        if not (closing and opening) or between(gap) is None:
            break
        if other.strip() != body.strip():
            return None
    return body


def shown(text: str) -> str:
    r"""Return the part of a text that a reader of the answer sees.

    An HTML comment that holds an answer is left out, and so is the text after a mark that ends the turn.

    Example:
        >>> shown(r"\boxed{1} <!-- \boxed{2} -->"), shown("1<|im_end|><|im_start|>user: 2")
        ('\\boxed{1} ', '1')
    """
    end = _END_OF_TURN.search(text)
    text = text[: end.start()] if end else text
    return _COMMENT.sub(lambda comment: "" if _ANSWER_MARK.search(comment[0]) else comment[0], text)


def after_opened(answer: str, opened: bool) -> str:
    """Return a completion with an answer. If the prompt has opened the thinking, the completion ends it first."""
    return f"</think>{answer}" if opened else answer


def is_seen(char: str) -> bool:
    """Return whether a character is visible: no white space, no zero-width character, no control character."""
    return not char.isspace() and unicodedata.category(char) not in _UNSEEN and char not in _BLANK


class Block(NamedTuple):
    """A fenced block: its language in lower case ("" if none is given), and its content."""

    language: str
    body: str


def code_blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a text, in order; the last block may lack its end.

    Blocks are read as Markdown has them, with three or more backticks or tildes and as many at the end. They are also
    read as models write them: in a list or a quotation, right after `<answer>`, behind words ("So: ```", "So
    ```python"), with code after the opening fence, with the end right after the last line's text, or with a tag or
    words right after the end. Fences within Python's triple quotes are no fences.
    """
    lines, blocks, place, quoted = text.split("\n"), [], 0, 0
    late = _late_fences(text)
    while place < len(lines):
        line = lines[place]
        place += 1
        if "```" not in line and "~~~" not in line:
            continue
        if place > quoted and _QUOTED_FENCE.match(line):
            quoted = _unquote(lines, place - 1)
            line = lines[place - 1]
        opening = _FENCE.match(line) or late.get(place - 1)
        if opening and opening[1][0] not in opening[2]:  # else it is code within a line
            language, first = _label(opening[2])
            is_python = not language or language.startswith(("py", "ipy"))
            body, place = _body(lines, place, quoted if place < quoted else len(lines), opening[1], is_python)
            blocks.append(Block(language, dedented([first, *body] if first else body)))
    return blocks


def _late_fences(text: str) -> dict[int, re.Match[str]]:
    """Return line -> the fence that opens a block behind words, if code and a fence of its own line follow.

    A fence that a comment hides, or that comes after the turn, is left out.
    """
    if "```" not in text:
        return {}
    end = _END_OF_TURN.search(text)
    seen = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text[: end.start()] if end else text)
    lines = [line.strip() for line in text.split("\n")]
    last = max((place for place, line in enumerate(lines) if line.startswith("```")), default=0)
    found = {}
    for place, line in enumerate(seen.split("\n")[:last]):
        late = _LATE_FENCE.search(line) if "```" in line else None
        opens = late and (late[2] or line[: late.start()].rstrip().endswith(":"))
        if late and opens and lines[place + 1] and not lines[place + 1].startswith("```"):
            found[place] = late
    return found


def _unquote(lines: list[str], start: int) -> int:
    """Remove the marks from the lines of a quotation, in place, and return the index of the line after it."""
    place = start
    while place < len(lines) and (mark := _QUOTATION.match(lines[place])):
        lines[place] = lines[place][mark.end() :]
        place += 1
    return place


def _label(info: str) -> tuple[str, str]:
    """Split the text after an opening fence into the language and the code that begins there."""
    if not info:
        return "", ""
    if code := _LABEL_AND_CODE.fullmatch(info):
        return (code[1] or "").lower(), code[2]
    language = _LANGUAGE.match(info)
    return (language[1].lower() if language else ""), ""


def _body(lines: list[str], start: int, stop: int, fence: str, is_python: bool) -> tuple[list[str], int]:
    """Return a block's lines, and the index of the first line after the block."""
    glued = None  # a line that ends with a fence: the last line, unless the next fence is a proper end
    quote: str | None = None
    place = start
    while place < stop:
        line = lines[place]
        bare = line.strip()
        if bare.startswith(fence):
            end = None if quote is None else _end_of_string(lines, place, stop, quote)
            if end is None:
                after = bare.lstrip(fence[0])
                if not after.strip() or after.lstrip().startswith("<") or _WORDS_BEHIND.fullmatch(after):
                    return lines[start:place], place + 1
                if glued is not None:
                    break
            else:
                place = end
        elif glued is None and quote is None and bare.endswith(fence):
            glued = place
        if is_python:
            quote = quote_after(lines[place], quote)
        place += 1
    if glued is None:
        return lines[start:place], place
    return [*lines[start:glued], lines[glued].rstrip().rstrip(fence[0])], place


def _end_of_string(lines: list[str], start: int, stop: int, quote: str) -> int | None:
    """Return the line on which a string ends that is open before a fence; `None` if it never ends.

    The result is `None` also if the fences in the string form no blocks of their own: otherwise a program with broken
    quotes would swallow the next block. The result is `None` after `MOST_FENCES` fences too, because each fence of a
    long block starts this search.
    """
    fences = 0
    for place in range(start, stop):
        line = lines[place]
        if quote in line:
            return place
        bare = line.strip()
        if bare.startswith(("```", "~~~")):
            fences += 1
            if fences == MOST_FENCES or (fences % 2 == 0 and bare.lstrip("`~").strip()):
                return None
    return None


def quote_after(line: str, quote: str | None) -> str | None:
    """Return the triple quote that is open after a line of Python, given the quote that is open before it."""
    if quote is None and '"' not in line and "'" not in line:
        return None
    place = 0
    while True:
        pattern, quotes = (_TRIPLE[quote], [quote]) if quote else (_TOKEN, [*_TRIPLE])
        token = next((one for one in pattern.finditer(line, place) if one[0] in quotes), None)
        if token is None:
            return quote
        quote = token[0] if quote is None else None
        place = token.end()


def dedented(lines: list[str]) -> str:
    """Return lines as one text, without the white space that all lines except blank ones begin with."""
    if not lines:
        return ""
    margins = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines if line.strip()]
    margin = os.path.commonprefix(margins)  # noqa: RUF071
    return "".join(f"{line.removeprefix(margin)}\n" for line in lines)
