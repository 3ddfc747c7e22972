"""Messages between the judge and a child: a length, then JSON in ASCII.

Standard library only: both sides load this module.
"""

import json
import os
import struct
from typing import Any


HEADER = struct.Struct(">I")


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as bytes: its length, then JSON in ASCII."""
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> dict[str, Any]:
    """Return the message in `body`. Raise only `ValueError` if `body` holds no message."""
    try:
        message = json.loads(
            body.decode("ascii"), parse_int=_short_integer, parse_float=_refuse, parse_constant=_refuse
        )
    except RecursionError:
        raise ValueError("nested too deep") from None
    if type(message) is not dict:
        raise ValueError("no message")
    return message


def _short_integer(digits: str) -> int:
    if len(digits) > 9:
        _refuse(digits)
    return int(digits)


def _refuse(text: str) -> Any:
    raise ValueError(f"no number belongs here: {text:.40}")


class Frames:
    """Messages over a descriptor, in a child. Reads wait without limit, and end the process if the judge hung up."""

    def __init__(self, fd: int):
        self.fd = fd

    def read(self) -> dict[str, Any]:
        """Wait for the next message."""
        (size,) = HEADER.unpack(self._exactly(HEADER.size))
        return unpack(self._exactly(size))

    def write(self, message: dict[str, Any]) -> None:
        """Write a whole message."""
        data = memoryview(pack(message))
        while data:
            data = data[os.write(self.fd, data) :]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self.fd, size - len(data))
            if not part:
                os._exit(1)
            data += part
        return bytes(data)
