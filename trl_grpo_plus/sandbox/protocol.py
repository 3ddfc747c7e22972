"""The judge's side of the messages to and from an untrusted program: each has a time limit and a size limit.

The program chooses the content of its replies. A reply is read as plain data. A reply that is not well formed raises a
`Fault`: the program failed. All functions here may raise `run_clock.TooBusy`, which is the fault of neither side.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..utils.run_clock import Clock, TooLong
from .child import framing as _frames
from .child import plain_data as _plain


TOO_LONG = "it took too long"
ENDED = "it ended"
KILLED = "it was killed"  # by the kernel, when memory ran out, or by itself; not by the judge
REASON_CHARS = 300  # kept of a failure's text
STDERR_BYTES = 4096


class Fault(Exception):
    """Raised when the program failed: it ended, took too long, or sent an invalid message."""


class Ran(NamedTuple):
    """The result of a script.

    Args:
        status (`int`): exit status; if negative, minus the signal that ended the script.
        stdout (`bytes`): the script's output, at most `output_kb`.
        reason (`str`):
            Why the script failed, for instance [`TOO_LONG`] or [`KILLED`]; empty: it ended by itself, with status 0.
            Use `reason`, not `status`, to decide whether it failed.
    """

    status: int
    stdout: bytes
    reason: str


class Answer(NamedTuple):
    """The answer to a call.

    Args:
        tokens (`list`, *optional*): the encoded return value; `None`: no value was returned.
        reason (`str`): why no value was returned.
    """

    tokens: list[Any] | None
    reason: str = ""

    def equals(self, expected: Any) -> bool:
        """Return whether the answer equals `expected`, with the same types throughout.

        A tuple counts as a list. NaN equals nothing.
        """
        return self.tokens is not None and _plain.same(expected, self.tokens)


class Checked(NamedTuple):
    """The result of a check: `passed`, and the reason if the asserts failed."""

    passed: bool
    reason: str = ""


class Program:
    """A loaded program; see [`Sandbox.load`]. A non-empty `fault` says why it can no longer be called."""

    def __init__(
        self,
        channel: "Channel",
        source: str,
        entry_point: str,
        pids: Sequence[int],
        clock: Callable[..., Clock],
        end: Callable[[], int],
    ):
        self._channel, self.pids, self._clock, self._end = channel, pids, clock, end
        self.fault = ""
        loading = self.exchange({"program": source, "entry_point": entry_point}, clock(pids=pids))
        self.fault = _raised(loading) or self.fault

    def call(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Answer:
        """Call the function with plain data."""
        return self._call(args, kwargs, changed=False)[0]

    def call_in_place(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> tuple[Answer, Answer]:
        """Call the function. Return its answer, and `[args, kwargs]` as they are after the call."""
        return self._call(args, kwargs, changed=True)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, changed: bool) -> tuple[Answer, Answer]:
        call = {"args": _plain.encode(list(args)), "kwargs": _plain.encode(dict(kwargs or {})), "changed": changed}
        clock = self._clock(pids=self.pids, fresh=False)
        reply = self.exchange(call, clock)
        clock.stop()
        reason = self.fault or _raised(reply)
        return Answer(reply.get("returned"), reason), Answer(reply.get("after"), reason)

    def exchange(self, message: dict[str, Any], clock: Clock) -> dict[str, Any]:
        """Send a message and return the well-formed reply; if there is none, set `fault` and return `{}`."""
        try:
            if self.fault:
                return {}
            self._channel.send(message, clock)
            return _checked(self._channel.receive(clock))
        except Fault as error:
            self.fault = str(error)
            if self.fault == ENDED and self._end() == -signal.SIGKILL:
                self.fault = KILLED
            return {}


class Channel:
    """A channel for messages to and from a child, with a time limit and a size limit."""

    def __init__(self, own: socket.socket, most: int):
        self._socket, self._most = own, most

    def send(self, message: dict[str, Any], clock: Clock) -> None:
        """Send a message. Raise [`Fault`] if the other side does not read it in time."""
        data = memoryview(_frames.pack(message))
        while data:
            self._socket.settimeout(left(clock))
            with _as_fault():
                data = data[self._socket.send(data) :]

    def receive(self, clock: Clock) -> dict[str, Any]:
        """Return the next message. Raise [`Fault`] if it is late, too large or not well formed."""
        (size,) = _frames.HEADER.unpack(self._exactly(_frames.HEADER.size, clock))
        if size > self._most:
            raise Fault(f"its answer has more than {self._most >> 10} KiB")
        try:
            return _frames.unpack(self._exactly(size, clock))
        except ValueError as error:
            raise Fault(f"it sent what is no message: {error}") from None

    def _exactly(self, size: int, clock: Clock) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(left(clock))
            with _as_fault():
                part = self._socket.recv(min(size - len(data), 1 << 20))
                if not part:
                    raise Fault(ENDED)
                data += part
        return bytes(data)


def relay(tests: Channel, program: Program, entry_point: str, source: str, clock: Clock) -> Checked:
    """Relay calls from the tests to the candidate, and its answers back, until the tests report their result.

    Tests that call the candidate with an argument that is not plain data are at fault if that is their first call. In
    a later call the argument may come from an answer of the candidate, as in `f(f(x))`, so the candidate fails.

    Raises:
        ValueError: the tests are at fault.
    """
    tests.send({"tests": source, "entry_point": entry_point}, clock)
    calls = 0
    while True:
        message = tests.receive(clock)
        if "call" in message:
            calls += 1
            reply = program.exchange(message["call"], clock)
            if program.fault:
                return Checked(False, program.fault)
            tests.send(reply, clock)
        elif "misuse" in message:
            problem = f"the tests call {entry_point} with what cannot be passed on: {message['misuse']}"
            if not calls:
                raise ValueError(problem)
            return Checked(False, problem)
        elif not calls:
            outcome = f"fail ({message['failed']})" if "failed" in message else "pass"
            raise ValueError(f"the tests {outcome} without a single call of {entry_point}: {source!r:.200}")
        else:
            return Checked("passed" in message, message.get("failed", ""))


@contextlib.contextmanager
def file_of(text: str) -> Iterator[int]:
    """Yield a descriptor of a file in memory that holds `text` and is sealed against changes."""
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(fd, data) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        )
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Yield the two ends of a pipe, and close them at the end."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            os.close(fd)


def collect(output: int, stdout: bytearray, most: int, errors: int, stderr: bytearray, clock: Clock) -> None:
    """Read a script's output until its end, and keep the last part of its stderr.

    Raises:
        Fault: the script took too long, or wrote more than `most` bytes.
    """
    poll = select.poll()
    for fd in (output, errors):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll(1000 * left(clock))]
        if errors in ready:
            data = _read(errors)
            stderr += data
            del stderr[:-STDERR_BYTES]
            if not data:
                poll.unregister(errors)
        if output in ready:
            data = _read(output)
            stdout += data
            if not data:
                return
            if len(stdout) > most:
                raise Fault(f"it wrote more than {most >> 10} KiB")


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Return only the valid parts of a reply: the exception, or the return value and the changed arguments."""
    raised, returned = reply.get("raised"), reply.get("returned")
    if type(raised) is list and len(raised) == 2 and all(type(part) is str for part in raised):
        return {"raised": raised}
    if not _plain.is_plain(returned):
        raise Fault("it sent what is no answer")
    if "after" not in reply:
        return {"returned": returned}
    if not _plain.is_plain(reply["after"]):
        raise Fault("it sent what are no arguments")
    return {"returned": returned, "after": reply["after"]}


def _raised(reply: dict[str, Any]) -> str:
    # Lone surrogates would break the logs.
    return ": ".join(reply["raised"])[:REASON_CHARS].encode(errors="replace").decode() if "raised" in reply else ""


@contextlib.contextmanager
def _as_fault() -> Iterator[None]:
    try:
        yield
    except TimeoutError:  # the clock decides whether time is up
        pass
    except OSError:  # a broken pipe, a reset
        raise Fault(ENDED) from None


def left(clock: Clock) -> float:
    """Return the seconds until the clock must be asked again. Raise [`Fault`] if the time is up."""
    try:
        return clock.left()
    except TooLong:
        raise Fault(TOO_LONG) from None
