"""A limit on the size of files, which makes writes fail as on a full disk."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_room(after: int = 1000) -> Iterator[None]:
    """Let each write of this process beyond `after` bytes of a file fail. The error names no file.

    A fixture would not do: pytest reports a test before it ends the fixtures, and its report may go to a long file.
    """
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
