"""The search for the Python program in a completion.

Python itself parses nothing here, because deep nesting can crash it. Everything takes time linear in the text.
"""

import functools
import re
from collections.abc import Iterator

from trl_grpo_plus.sandbox import names_of

from .._text import Block, answer_of, code_blocks, dedented, quote_after


_PYTHON = re.compile(r"i?py(?:thon)?[\d.]*")
# Labels of blocks that hold what a program reads or prints, or how it is started.
_NO_PROGRAM = {"bash", "console", "input", "json", "log", "output", "sh", "shell", "stdin", "stdout", "yaml", "zsh"}
# No part can fail once it has begun, so the nested repeats never backtrack.
STRINGS_AND_COMMENTS = re.compile(
    r"#[^\n]*"
    r'|"""(?:[^"\\]+|\\.?|"(?!""))*(?:"""|\Z)' + r"|'''(?:[^'\\]+|\\.?|'(?!''))*(?:'''|\Z)"
    r'|"(?:[^"\\\n]+|\\.?)*(?:"|$)' + r"|'(?:[^'\\\n]+|\\.?)*(?:'|$)",
    re.DOTALL | re.MULTILINE,
)
_TARGET = r"[A-Za-z_][\w.]*(?:\[[^\]\n]{0,80}\])?"
_STATEMENT = (
    r"(?:async[ \t]+)?def[ \t]+\w+[ \t]*[(\[]|class[ \t]+\w+[ \t]*[(:]|import[ \t]+\w|from[ \t]+[\w.]+[ \t]+import\b"
    r"|@\w|(?:async[ \t]+)?(?:for|with)[ \t].*:|(?:while|if|elif)\b.*:|(?:else|try|finally)[ \t]*:|except\b.*:"
    rf"|{_TARGET}(?:[ \t]*,[ \t]*{_TARGET}){{0,20}}[ \t]*(?::[^=\n]{{0,80}})?[-+*/%|&^]{{0,2}}=(?!=)|[A-Za-z_][\w.]*\("
)
_CODE = re.compile(_STATEMENT)
_ANYWHERE = re.compile(rf"^[ \t]*(?:{_STATEMENT})", re.MULTILINE)
_WORDS = re.compile(r"(?:[-*•>][ \t]+|\d+[.)][ \t]+)?[*_]{0,3}[A-Z][\w'’]*[,:]?(?:[ \t]+[^\s=]+){2,}[ \t]*")
_TAGS = (
    (re.compile(r"\[PYTHON\]"), "[/PYTHON]"),
    (re.compile(r"\[BEGIN\]"), "[DONE]"),
    (re.compile(r"<code(?:\s[^<>]{0,80})?>"), "</code>"),
    (re.compile(r"<python>"), "</python>"),
    (re.compile(r"<solution>"), "</solution>"),
    (re.compile(r"\\begin\{lstlisting\}(?:\[[^\]]{0,80}\])?"), "\\end{lstlisting}"),
    (re.compile(r"\\begin\{minted\}(?:\[[^\]]{0,80}\])?\{[^}]{0,20}\}"), "\\end{minted}"),
    (re.compile(r"\\begin\{verbatim\}"), "\\end{verbatim}"),
)
_END_MARK = re.compile(r"(?:<\|[^|<>\s]{1,40}\|>|</s>)\Z")
_SPAN = re.compile(r"(`{1,3})(?:(?:python|py)[ \t]+(?=[^ \t]))?([^`\n]+)\1")
_PIECE = re.compile(
    r"(?:async[ \t]+)?def\b|class\b|import\b|from\b|@|[A-Z_][A-Z_0-9]*[ \t]*(?::[^=]*)?=(?!=)"
    r"|\w+[ \t]*(?::[^=]*)?=(?!=)[^(]*$|[)\]}]|(?:if[ \t]+__name__\b.*|else[ \t]*):|(?:global|pass)\b"
)
_DEFINED = re.compile(r"^(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+)?(\w+)[ \t]*(?:[(:\[]|=(?!=))", re.MULTILINE)
_IMPORTED = re.compile(r"^(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(.+)", re.MULTILINE)
_NAME = re.compile(r"[^\W\d]\w*")


def program_of(text: str, entry_point: str | None = None) -> str:
    """Return the program in a completion that is given without its thinking.

    The program is the last block that defines the entry point, or the last script if there is no entry point. Earlier
    blocks that only define what the program needs come before it.
    """
    text = text.lstrip("\ufeff")
    blocks = _blocks(text, entry_point)
    place = _place(blocks, entry_point)
    if place is None:
        return text
    return "\n".join([*_pieces(blocks, place), blocks[place].body])


def begins_with_code(text: str) -> bool:
    """Return whether a text begins with a line of code.

    If so, the fences in its docstrings are no blocks of the text.
    """
    return _CODE.match(text.lstrip()) is not None


def _blocks(text: str, entry_point: str | None) -> list[Block]:
    """Return the blocks of the first place that has the program, or else the first blocks found."""
    every: list[Block] = []
    for blocks in _places(text):
        if _place(blocks, entry_point, sure=True) is not None:
            return blocks
        every = every or blocks
    return every


def _places(text: str) -> Iterator[list[Block]]:
    body = answer_of(text)
    if body is not None:
        yield _fenced(body) or _unfenced(body)
        yield _of_any_label(_fenced(body))
    fenced = _fenced(text)
    yield [] if begins_with_code(text) else fenced
    yield _tagged(text)
    yield [Block("", span[2].strip()) for span in _SPAN.finditer(text)] if not fenced else []
    yield [] if begins_with_code(text) else _of_any_label(fenced)
    yield _unfenced(text)
    yield fenced


def _of_any_label(blocks: list[Block]) -> list[Block]:
    """Return the blocks that may be a program in spite of their label (`code`, `pypy3`), without the label."""
    return [block._replace(language="") for block in blocks if block.language not in _NO_PROGRAM]


def _fenced(text: str) -> list[Block]:
    blocks = []
    for block in code_blocks(text):
        inner = code_blocks(block.body) if block.language in ("markdown", "md") else []
        blocks += inner or [block]
    return [block._replace(body=block.body.lstrip("\ufeff")) for block in blocks]


def _tagged(text: str) -> list[Block]:
    tagged = []
    for opening, closing in _TAGS:
        end = text.rfind(closing)
        starts = [match.end() for match in opening.finditer(text, 0, end)] if end >= 0 else []
        if starts:
            tagged.append((starts[-1], Block("python", text[starts[-1] : end].lstrip("\n"))))
    return [block for _, block in sorted(tagged)]


def _unfenced(text: str) -> list[Block]:
    """Return the runs of code lines between lines of words, or the whole text if it has no lines of words."""
    end = _end_of_text(text, len(text))
    while mark := _END_MARK.search(text, max(0, end - 50), end):
        end = _end_of_text(text, mark.start())
    lines = text[:end].split("\n")
    runs: list[list[str]] = []
    inside, margin, quote, words = False, "", None, False
    for line in lines:
        bare = line.lstrip(" \t")
        begins = quote is None and bool(bare) and len(line) - len(bare) <= len(margin)
        if begins and inside and _WORDS.fullmatch(bare) and not _CODE.match(bare):
            inside, words = False, True
        elif not inside and bare and _CODE.match(bare):
            inside, margin = True, line[: len(line) - len(bare)]
            runs.append([])
        elif not inside and bare:
            words = True
        if inside:
            runs[-1].append(line)
            quote = quote_after(line, quote)
    if not words and runs:
        return [Block("", "\n".join(lines))]
    return [Block("", dedented(run)) for run in runs]


def _end_of_text(text: str, end: int) -> int:
    while end and text[end - 1].isspace():
        end -= 1
    return end


def _place(blocks: list[Block], entry_point: str | None, sure: bool = False) -> int | None:
    """Return the index of the block that is the program.

    If no block looks like the program, the result is that of the last block, or `None` if the block must be `sure`.
    """
    places = range(len(blocks) - 1, -1, -1)
    if entry_point is None:
        right = next((i for i in places if _is_python(blocks[i]) and _says_something(blocks[i].body)), None)
        if right is None:
            right = next((i for i in places if not blocks[i].language and _is_code(blocks[i].body)), None)
    else:
        name = re.escape(names_of(entry_point)[0])
        defines = re.compile(
            rf"^(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+){name}\b|^{name}[ \t]*(?:=(?!=)|:)", re.MULTILINE
        )
        bodies = ((i, blocks[i].body) for i in places)
        right = next((i for i, body in bodies if defines.search(body) and defines.search(_bare(body))), None)
    return right if right is not None or sure or not blocks else len(blocks) - 1


def _is_python(block: Block) -> bool:
    return _PYTHON.fullmatch(block.language) is not None


def _says_something(body: str) -> bool:
    """Return whether a block is more than comments, and no session of an interpreter."""
    return bool(body.strip()) and not body.lstrip().startswith(">>>") and re.search(r"\w", _bare(body)) is not None


def _is_code(body: str) -> bool:
    return bool(body.strip()) and _ANYWHERE.search(_bare(body)) is not None


@functools.lru_cache(maxsize=16)
def _bare(code: str) -> str:
    """Return code without comments, and with empty strings."""
    return STRINGS_AND_COMMENTS.sub(lambda token: "" if token[0].startswith("#") else '""', code)


def _pieces(blocks: list[Block], place: int) -> list[str]:
    """Return the earlier blocks that define what the program needs, and do nothing else."""
    bare = _bare(blocks[place].body)
    if "__future__" in bare:
        return []
    undefined = set(_NAME.findall(bare)) - _defined(bare)
    pieces = []
    for block in reversed(blocks[:place]):
        if not block.body.strip() or not (_is_python(block) or not block.language):
            continue
        bare = _bare(block.body)
        top = [line for line in bare.split("\n") if line.strip() and not line[0].isspace() and line.strip() != '""']
        if top and all(map(_PIECE.match, top)) and undefined & (defined := _defined(bare)):
            pieces.append(block.body)
            undefined -= defined  # in place, because there may be many names in many pieces
            undefined |= set(_NAME.findall(bare)) - defined
    return pieces[::-1]


def _defined(bare: str) -> set[str]:
    """Return the names that a program without strings and comments defines at its left margin."""
    imported = {
        name.split(" as ")[-1].strip().split(".")[0].strip("() \t")
        for line in _IMPORTED.findall(bare)
        for name in line.split(",")
    }
    return {*_DEFINED.findall(bare), *imported}
