"""What is printed. Some of it comes from a model, a data set or a run's folder: a terminal must obey none of that."""

import re
import sys
import traceback
from typing import Any


# Control characters but for tab and newline, marks and overrides of the direction of writing, the separators of lines
# and paragraphs, and lone surrogates, which have no bytes.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return the text with escapes for what a terminal would obey. Newlines, tabs and all that is only drawn stay.

    Example:
        >>> visible("a\x1b[2J\tb")
        'a\\x1b[2J\tb'
    """
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def quoted(text: str) -> str:
    """Return the text in quotes on one line, as Python would write it, but with every character that is only drawn."""
    mark = '"' if "'" in text and '"' not in text else "'"
    escaped = visible(text.replace("\\", "\\\\")).replace("\n", "\\n").replace("\t", "\\t")
    return mark + escaped.replace(mark, "\\" + mark) + mark


def say(text: str = "", **options: Any) -> None:
    """Print the text as [`visible`] makes it; `options` are those of `print`. Nothing else in the package prints."""
    print(visible(text), **options)


def tell_errors_visibly() -> None:
    """Have an error that ends this process told as [`visible`] makes it: its message may quote what a model wrote."""
    sys.excepthook = lambda *error: say("".join(traceback.format_exception(*error)), end="", file=sys.stderr)
