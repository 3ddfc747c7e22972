"""Pictures in traces: what a line says of one, and its thumbnail, which is written once, beside the attempts.

    rollouts/thumbnails/5a3f0b6c1d2e4f70.webp     by the digest that the lines say

PIL need not be there where nobody has pictures.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..common.files import replace
from ..common.values import Refusal


FOLDER = "thumbnails"
_TOLD = re.compile(r"<image \S+ \d+x\d+ ([0-9a-f]{16})>")  # as common.texts shows a message's picture


def check_pillow() -> None:
    """Raises ValueError where no thumbnail can be written here."""
    try:
        from PIL import features
    except ImportError:
        raise Refusal("trace_thumbnails needs Pillow: pip install pillow, or set it to 0.") from None
    if not features.check("webp"):
        raise Refusal("trace_thumbnails needs a Pillow that writes WebP, as its wheels do; or set it to 0.")


def is_picture(value: Any) -> bool:
    """Whether this is one of PIL's."""
    return all(hasattr(value, name) for name in ("mode", "size", "tobytes"))


def told(picture: Any) -> str:
    """Its mode, size and digest.

    Example:
        >>> from PIL import Image
        >>> told(Image.new("RGB", (24, 16)))
        'RGB 24x16 4386fcd9eba0d1fd'
    """
    width, height = picture.size
    return f"{picture.mode} {width}x{height} {blake2b(picture.tobytes(), digest_size=8).hexdigest()}"


def pictures_in(value: Any) -> Iterator[Any]:
    """Those in a prompt's or a completion's messages."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from pictures_in(item)
    elif is_picture(value):
        yield value


def thumbnail(picture: Any, longer_side: int) -> bytes:
    """As WebP, of at most so many pixels on its longer side."""
    small = picture.copy()
    small.thumbnail((longer_side, longer_side))
    alpha = "A" in small.mode or "transparency" in small.info
    written = io.BytesIO()
    small.convert("RGBA" if alpha else "RGB").save(written, "WEBP", quality=80)
    return written.getvalue()


def keep(folder: Path, thumbnails: Mapping[str, bytes]) -> None:
    """Write those that are not there yet."""
    for digest, data in thumbnails.items():
        if not (path := _path(folder, digest)).exists():
            replace(path, [data])


def named_in(folder: Path | None, texts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Digest and thumbnail of each picture that texts name, of those that are there."""
    if folder is None or not (folder / FOLDER).is_dir():
        return
    for digest in dict.fromkeys(digest for text in texts for digest in _TOLD.findall(text)):
        if (path := _path(folder, digest)).is_file():
            yield digest, path.read_bytes()


def _path(folder: Path, digest: str) -> Path:
    return folder / FOLDER / f"{digest}.webp"
