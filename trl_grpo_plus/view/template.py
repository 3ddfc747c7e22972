"""One HTML file that loads nothing: a page of `viewer/` with its styles and scripts written into it, and its data.

The data is in script elements that are not run: JSON without "<", or raw deflate in base64, which the page unpacks as
it is looked at. Only the scripts and styles of the page itself are let run, by their hashes.

What models write is not to be trusted. Here it only ever becomes JSON without "<"; there it only ever becomes text.
"""

import base64
import functools
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, TypeVar


CHUNK = 256 * 1024  # bytes of JSON, before they are packed
LIBRARIES = ("markdown-it", "temml")  # render Markdown and mathematics
TAGS = 120  # bytes of markup about a chunk, at most

Sized = TypeVar("Sized")


def template(
    page: str, styles: Sequence[str], scripts: Sequence[str], more: str = "", rendering: bool = False
) -> tuple[str, str]:
    """Return a page before its data and after it.

    Args:
        page (`str`): its name in `viewer/`; %POLICY%, %STYLE%, %DATA% and %SCRIPT% stand for what is filled in.
        styles (`Sequence[str]`), scripts (`Sequence[str]`): names of its files there, in order.
        more (`str`, *optional*): what its policy allows beyond that.
        rendering (`bool`, *optional*, defaults to `False`): carries the libraries that render Markdown.
    """
    style = "".join(_read(f"{name}.css") for name in styles)
    parts = "\n".join(_read(f"{name}.js") for name in scripts)
    carried = library_sources() if rendering else "const LIBRARIES = {};\n"
    script = f'(() => {{\n"use strict";\n{carried}{parts}}})();\n'
    run = [script, *(library(name) for name in LIBRARIES if rendering)]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, run))}; style-src {_hash(style)}; img-src data:; "
        "worker-src blob:; "
        f"{more}base-uri 'none'; form-action 'none'"
    )
    before, after = _read(f"{page}.html").replace("%POLICY%", policy).replace("%STYLE%", style).split("%DATA%")
    return before, after.replace("%SCRIPT%", script)


def block(name: str, value: Any) -> str:
    """Write data as an element of the page, by its id."""
    # Without "<" nothing in it can end the element or open a comment.
    return f'<script type="application/json" id="{name}">{dumped(value).replace("<", chr(92) + "u003c")}</script>\n'


def packed_block(name: str, data: bytes) -> str:
    """Return the same of data that is packed already."""
    return f'<script type="application/deflate" id="{name}">{base64.b64encode(data).decode()}</script>\n'


def pack(value: Any) -> bytes:
    """JSON as one whole raw deflate stream."""
    return deflate(dumped(value).encode(), zlib.Z_FINISH)


def array(packed: Iterable[bytes]) -> bytes:
    """Return a stream of a JSON array whose elements, each ended by a comma, [`deflate`] packed; a null comes last."""
    return b"".join([deflate(b"["), *packed, deflate(b"null]", zlib.Z_FINISH)])


def deflate(data: bytes, end: int = zlib.Z_SYNC_FLUSH) -> bytes:
    """Return a piece of a raw deflate stream that ends on a byte and refers to nothing before it: pieces can be
    joined.
    """
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(end)


def dumped(value: Any) -> str:
    """JSON in ASCII: lone surrogates, NUL and line separators are escapes in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def chunks(items: Sequence[Sized]) -> Iterator[list[Sized]]:
    """Items together until their JSON, of `raw` bytes each, comes to [`CHUNK`]."""
    chunk: list[Sized] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += item.raw  # type: ignore[attr-defined]
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def in_chunks(sizes: Iterable[int]) -> list[int]:
    """Return how many groups make a chunk each, by the bytes of their texts."""
    chunks, size = [0], 0
    for of_group in sizes:
        chunks[-1] += 1
        size += of_group
        if size >= CHUNK:
            chunks.append(0)
            size = 0
    return [count for count in chunks if count]


def _read(name: str) -> str:
    return (files(__package__) / "viewer" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def library(name: str) -> str:
    """Return a library as it is run: without the name of its source map, which a page could not load."""
    path = files(__package__) / "viewer" / "vendor" / f"{name}.min.js"
    return re.sub(r"\n//# sourceMappingURL=.*\s*$", "\n", path.read_text(encoding="utf-8"))


@functools.cache
def library_sources() -> str:
    """JavaScript that says the names of [`LIBRARIES`] and their sources, each as raw deflate in base64."""
    return f"const LIBRARIES = {json.dumps({name: _packed(library(name)) for name in LIBRARIES})};\n"


def _packed(text: str) -> str:
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()
