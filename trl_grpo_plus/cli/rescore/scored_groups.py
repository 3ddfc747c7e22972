"""The scored groups on disk: a run of millions of attempts has more of them than fit into memory."""

import pickle
import tempfile
from array import array
from collections.abc import Sequence

from .scoring_loop import Group


class NoRoom(OSError):
    """The folder of temporary files has no room for the scores."""


class ScoredGroups(Sequence[Group]):
    """A sequence of scored groups in a temporary file, to which groups are added.

    Memory holds 8 bytes for each group. A group is a new object each time that it is read.

    Attributes:
        attempts (`int`): number of attempts in all groups.
    """

    def __init__(self) -> None:
        # It lives as long as this object. Without a buffer, a failed write leaves nothing behind.
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._ends = array("Q")
        self.attempts = 0

    def append(self, group: Group) -> None:
        """Add a group.

        Raises:
            NoRoom: the group cannot be written. The groups before it can be read.
        """
        data, start = pickle.dumps(group), self._ends[-1] if self._ends else 0
        self._file.seek(start)
        try:
            whole = self._file.write(data) == len(data)
            why = "no space left"
        except OSError as error:
            whole, why = False, error.strerror or str(error)
        if not whole:
            room = f"{tempfile.gettempdir()} has no room for the scores ({why})."
            raise NoRoom(f"{room} Set TMPDIR to a folder with more room.")
        self._ends.append(start + len(data))
        self.attempts += group.size

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> Group:  # type: ignore[override]  # nobody takes slices
        number = range(len(self))[number]
        start = self._ends[number - 1] if number else 0
        self._file.seek(start)
        group: Group = pickle.loads(self._file.read(self._ends[number] - start))
        return group
