"""Images in traces: the text that stands for an image in a line, and the image's thumbnail.

A thumbnail is written once, beside the files of attempts:

    rollouts/thumbnails/RGB-640x480-5a3f0b6c1d2e4f70.webp     named as in the lines

Pillow is needed only if a run has images.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..utils.files import open_within, replace
from ..utils.validation import ConfigError


if TYPE_CHECKING:  # it imports torch, which reading does not need
    from ..rollouts.groups import Attempt

FOLDER = "thumbnails"
_TOLD = re.compile(r"<image ([\w;]+ \d+x\d+ [0-9a-f]{16})>", re.ASCII)  # as utils.text writes an image of a message


class Thumbnails:
    """A maker of thumbnails for the images in attempts. Each image gets one thumbnail.

    Args:
        longer_side (`int`): maximum length of a thumbnail's longer side, in pixels.

    Raises:
        ValueError: Pillow is not installed, or cannot write WebP.
    """

    def __init__(self, longer_side: int):
        _check_pillow()
        self._longer_side = longer_side
        self._sent: set[str] = set()

    def of(self, attempts: Sequence["Attempt"], alike: bool) -> dict[str, bytes]:
        """Return the new thumbnails, by the names of their images in the lines. `alike` attempts share one prompt.

        An image that Pillow cannot convert gets no thumbnail, and a warning is logged.
        """
        prompts = [attempt.prompt for attempt in attempts[: 1 if alike else None]]
        new = {}
        for picture in pictures_in([prompts, [attempt.completion for attempt in attempts]]):
            if (name := image_name(picture)) not in self._sent:
                self._sent.add(name)
                try:
                    new[name] = thumbnail(picture, self._longer_side)
                except (OSError, ValueError) as error:  # Pillow cannot convert the image's mode
                    from accelerate.logging import get_logger

                    get_logger(__name__).warning(f"No thumbnail of {name} is kept: {error}.")
        return new


def is_picture(value: Any) -> bool:
    """Return whether `value` is a PIL image."""
    return all(hasattr(value, name) for name in ("mode", "size", "tobytes"))


def image_name(picture: Any) -> str:
    """Return the text that stands for an image in a line: its mode, size and digest.

    Example:
        >>> from PIL import Image
        >>> image_name(Image.new("RGB", (24, 16)))
        'RGB 24x16 da5422489ec82fb4'
    """
    width, height = picture.size
    return f"{picture.mode} {width}x{height} {blake2b(picture.tobytes(), digest_size=8).hexdigest()}"


def pictures_in(value: Any) -> Iterator[Any]:
    """Yield the images in a prompt's or a completion's messages."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from pictures_in(item)
    elif is_picture(value):
        yield value


def thumbnail(picture: Any, longer_side: int) -> bytes:
    """Return a thumbnail as WebP, with at most `longer_side` pixels on its longer side."""
    small = picture.copy()
    small.thumbnail((longer_side, longer_side))
    written = io.BytesIO()
    small.save(written, "WEBP")  # this converts the mode if WebP lacks it
    return written.getvalue()


def keep(folder: Path, thumbnails: Mapping[str, bytes]) -> None:
    """Write the thumbnails whose files do not exist yet."""
    for name, data in thumbnails.items():
        if not (path := _path(folder, name)).exists():
            replace(path, [data])


def named_in(folder: Path | None, texts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the thumbnail of each image that the texts name, if its file exists.

    A file that is not WebP, or that is a link out of the folder, is left out, because the page that shows it may be
    shared.
    """
    if folder is None or not (folder / FOLDER).is_dir():
        return
    for name in dict.fromkeys(name for text in texts for name in _TOLD.findall(text)):
        if (path := _path(folder, name)).exists() and (data := _webp(path, folder)) is not None:
            yield name, data


def _check_pillow() -> None:
    """Raise `ConfigError` if thumbnails cannot be written here."""
    try:
        from PIL import features
    except ImportError:
        raise ConfigError("trace_thumbnails needs Pillow: pip install pillow, or set it to 0.") from None
    if not features.check("webp"):
        raise ConfigError("trace_thumbnails needs a Pillow that writes WebP, as its wheels do; or set it to 0.")


def _webp(path: Path, folder: Path) -> bytes | None:
    """Return the content of a file in the folder if its bytes are one whole WebP image; `None` otherwise."""
    try:
        with open_within(path, folder) as file:
            data = file.read()
    except OSError:
        return None
    whole = len(data) == 8 + int.from_bytes(data[4:8], "little")
    return data if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and whole else None


def _path(folder: Path, name: str) -> Path:
    return folder / FOLDER / f"{name.replace(' ', '-')}.webp"
