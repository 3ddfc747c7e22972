"""The pool's end of the connection to a worker. It never waits for the rest of a message.

A reward may write anything into the connection of its worker. So the reader trusts neither the length nor the content
of a message.
"""

import json
import math
import os
import socket
import struct
from multiprocessing.connection import Connection, wait
from typing import Any

from .outcome import STATUSES, Outcome


SPOILED = "Its worker process could not answer: the reward closed the worker's connection, or wrote into it."
STALLED_S = 60  # longest wait for a worker to take in a part of a sample
DYING_S = 1.0  # time for a worker to end; one that is dying has closed its connection already
LONGEST = 1 << 28  # bytes; text that a reward writes to the worker's connection reads as a greater length
_LENGTH, _LONG_LENGTH = struct.Struct("!i"), struct.Struct("!Q")  # as `Connection.send_bytes` writes them
_IS_LONG = _LENGTH.pack(-1)  # then the length follows in 8 bytes
_READ_AT_ONCE = 1 << 16
OF_SAMPLES = {"waited", "outcome"}  # kinds of replies about a sample
_KINDS = {"cannot start", "cannot load", "loaded", *OF_SAMPLES}


class WorkerConnection(Connection):
    """A connection whose messages are replies of a worker.

    Args:
        own_socket (`socket.socket`): this process's end. The connection takes it over.

    Attributes:
        arrived (`bytearray`): the beginning of a reply whose end has not arrived.
    """

    def __init__(self, own_socket: socket.socket):
        own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STALLED_S, 0))
        super().__init__(own_socket.detach())
        self.arrived = bytearray()

    def reply(self) -> dict[str, Any] | None:
        """Read what has arrived of a reply. Call it when the connection has something to read: it does not wait then.

        Returns:
            `dict` or `None`: a reply, whose "outcome" is an [`Outcome`]; `None` if its end has not arrived.

        Raises:
            EOFError: the worker has closed the connection.
            OSError: the connection is broken.
            ValueError: what arrived is no reply of a worker.
        """
        part = os.read(self.fileno(), min(self._missing(), _READ_AT_ONCE))
        if not part:
            raise EOFError
        self.arrived += part
        if self._missing():
            return None
        start = _LENGTH.size if self.arrived[: _LENGTH.size] != _IS_LONG else _LENGTH.size + _LONG_LENGTH.size
        message = bytes(self.arrived[start:])
        self.arrived.clear()
        return _reply(message)

    def _missing(self) -> int:
        """Return how many bytes to read next: of the length, or else the rest of the message."""
        start, arrived = _LENGTH.size, len(self.arrived)
        if arrived < start:
            return start - arrived
        (length,) = _LENGTH.unpack_from(self.arrived)
        if length == -1:
            start += _LONG_LENGTH.size
            if arrived < start:
                return start - arrived
            (length,) = _LONG_LENGTH.unpack_from(self.arrived, _LENGTH.size)
        if not 0 <= length <= LONGEST:
            raise ValueError(f"a message of {length} bytes")
        return start + length - arrived


def runs_on(pid: int) -> bool:
    """Return whether a worker whose connection has broken still runs after `DYING_S`."""
    try:
        process = os.pidfd_open(pid)
    except OSError:  # it has ended, and so has its zygote
        return False
    try:
        return not wait([process], DYING_S)
    finally:
        os.close(process)


def _reply(message: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(message)
        if len(reply.keys() & _KINDS) != 1:
            raise ValueError("a message of no known kind")
        if "outcome" in reply:
            reply["outcome"] = outcome = Outcome.of_json(reply["outcome"])
            if outcome.status not in STATUSES or not (outcome.score is None or math.isfinite(outcome.score)):
                raise ValueError("no outcome")
        if "waited" in reply and not 0 <= reply["waited"] < math.inf:
            raise ValueError("no time")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no reply of a worker: {error}") from error
    return reply
