"""One HTML file that loads nothing: a page of `viewer/` with its styles, its scripts and its data written into it.

The data is in script elements that are not run: JSON without "<", or raw deflate in base64. The page unpacks the
deflated data when a reader looks at it. The page's policy allows only its own scripts and styles, by their hashes.

The text that models write is not trusted. This module turns it into JSON without "<". The page's scripts turn it into
text, never into markup.
"""

import base64
import functools
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import islice
from typing import Any


CHUNK = 256 * 1024  # bytes of JSON, before packing
LIBRARIES = ("markdown-it", "temml")  # they render Markdown and mathematics
TAGS = 120  # maximum bytes of markup around a chunk


def template(
    page: str, styles: Sequence[str], scripts: Sequence[str], more: str = "", rendering: bool = False
) -> tuple[str, str]:
    """Return the parts of a page before its data and after its data.

    Args:
        page (`str`): the page's name in `viewer/`. %POLICY%, %STYLE%, %DATA% and %SCRIPT% in it are filled in.
        styles (`Sequence[str]`), scripts (`Sequence[str]`): names of the page's files in `viewer/`, in order.
        more (`str`, *optional*): additional directives of the page's policy.
        rendering (`bool`, *optional*, defaults to `False`): include the libraries that render Markdown.
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
    """Return data as a script element of the page with the id `name`."""
    # Without "<" the data can neither end the element nor open a comment.
    return f'<script type="application/json" id="{name}">{dumped(value).replace("<", chr(92) + "u003c")}</script>\n'


def packed_block(name: str, data: bytes) -> str:
    """Return packed data as a script element of the page with the id `name`."""
    return f'<script type="application/deflate" id="{name}">{_base64(data)}</script>\n'


def pack(value: Any) -> bytes:
    """Return a value's JSON as one whole raw deflate stream."""
    return deflate(dumped(value).encode(), zlib.Z_FINISH)


def array(packed: Iterable[bytes]) -> bytes:
    """Join packed elements into the deflate stream of a JSON array, with a final null.

    Each element is JSON that ends with a comma, packed by [`deflate`].
    """
    return b"".join([deflate(b"["), *packed, deflate(b"null]", zlib.Z_FINISH)])


def deflate(data: bytes, end: int = zlib.Z_SYNC_FLUSH) -> bytes:
    """Return data as a piece of a raw deflate stream.

    A piece ends on a byte and refers to no data before it, so that pieces can be joined.
    """
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(end)


def dumped(value: Any) -> str:
    """Return a value's JSON in ASCII, with escapes for lone surrogates, NUL and line separators."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def chunk_blocks(texts: Iterable[bytes], chunks: Iterable[int]) -> Iterator[str]:
    """Yield the script element of each chunk.

    Args:
        texts (`Iterable[bytes]`): each group's texts, packed by [`deflate`].
        chunks (`Iterable[int]`): number of groups in each chunk.
    """
    waiting = iter(texts)
    for number, count in enumerate(chunks):
        yield packed_block(f"chunk-{number}", array(islice(waiting, count)))


def in_chunks(sizes: Iterable[int]) -> list[int]:
    """Return the number of groups in each chunk, by the bytes of their texts.

    The texts of a chunk add up to [`CHUNK`] bytes or more; those of the last one may be fewer.
    """
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
    return f"'sha256-{_base64(hashlib.sha256(text.encode()).digest())}'"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@functools.cache
def library(name: str) -> str:
    """Return a library's source without the name of its source map, which a page could not load."""
    path = files(__package__) / "viewer" / "vendor" / f"{name}.min.js"
    return re.sub(r"\n//# sourceMappingURL=.*\s*$", "\n", path.read_text(encoding="utf-8"))


@functools.cache
def library_sources() -> str:
    """Return JavaScript that maps the names of [`LIBRARIES`] to their sources, as raw deflate in base64."""
    packed = {name: _base64(deflate(library(name).encode(), zlib.Z_FINISH)) for name in LIBRARIES}
    return f"const LIBRARIES = {json.dumps(packed)};\n"
