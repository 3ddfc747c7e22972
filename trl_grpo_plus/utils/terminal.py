"""Printing: text from a model, a data set or a run's folder must contain nothing that a terminal obeys.

Also: output that nobody reads any more, and Ctrl-C while a process of a run imports its modules.
"""

import io
import os
import re
import signal
import sys
import traceback
from types import FrameType
from typing import Any


# Control characters except tab and newline, marks and overrides of the writing direction, separators of lines and
# paragraphs, and lone surrogates, which have no bytes.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return the text with escapes for characters that a terminal would obey; newlines, tabs and visible text stay.

    Example:
        >>> visible("a\x1b[2J\tb")
        'a\\x1b[2J\tb'
    """
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def quoted(text: str) -> str:
    """Return the text quoted on one line, as Python writes it, but with all visible characters unescaped."""
    mark = '"' if "'" in text and '"' not in text else "'"
    escaped = visible(text.replace("\\", "\\\\")).replace("\n", "\\n").replace("\t", "\\t")
    return mark + escaped.replace(mark, "\\" + mark) + mark


def say(text: str = "", **options: Any) -> None:
    """Print the text made [`visible`], with the `options` of `print`."""
    print(visible(text), **options)


def tell_errors_visibly() -> None:
    """Print an error that ends this process as [`visible`] text, because its message may quote a model's text."""
    sys.excepthook = lambda *error: say("".join(traceback.format_exception(*error)), end="", file=sys.stderr)


def outlive_reader() -> None:
    """Let this process go on when its output cannot be written, and drop this output.

    Ctrl-C ends the `tee` of `run | tee log` too, while the run still has a checkpoint to save. A closed terminal and a
    full disk are no reasons to end a run either.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):  # nobody captures it
            stream.flush()
            file = _Droppable(stream.fileno(), "w", closefd=False)
            like = {key: getattr(stream, key) for key in ("encoding", "errors", "line_buffering", "write_through")}
            buffer: Any = file if stream.write_through else io.BufferedWriter(file)  # as `python -u` has it
            setattr(sys, name, io.TextIOWrapper(buffer, **like))


class _Droppable(io.FileIO):
    """A file that takes all bytes. It drops those that cannot be written."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def end_at_ctrl_c() -> None:
    """Let Ctrl-C end this process in one line. Where SIGINT is ignored, it stays so.

    For the imports of a run's process, which take seconds: a traceback would say where in them the process is.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interrupt_at_ctrl_c() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, after [`end_at_ctrl_c`]."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            os.write(2, b"\nStopped before the run began.\n")
    finally:  # the terminal may be gone
        os._exit(128 + number)
