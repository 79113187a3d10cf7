"""Room on the disk of a node for what is written, looked at before there is none (GAP-13).

A disk that is full fails a write, which ends the node (S0.4), and what would free space, trimming
and merging files, needs some itself. So two marks stand before that. Below the first one the node
takes no new writes of clients and gives its leaderships to replicas that have space; as a follower
it goes on. Below the second one it takes no records of its leaders either: it catches up when there
is space again. All of it ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftstore.config import StorageSettings
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import Tell
from raftstore.errors import NoSpaceError, Refusal
from raftstore.types import NodeId, node_name

RESERVE_PART: Final = 4
"""The second mark is this part of the first one; so much above a mark has to be free again, too."""


NEAR_MARKS: Final = 4
"""Below so many times the first mark what is logged counts at once, and not with the next look."""


class DiskSpace:
    """Watches the free space of one node's disk."""

    def __init__(
        self,
        me: NodeId,
        settings: StorageSettings,
        tell: Tell,
        free_bytes: Callable[[], int | None],
        unwritten_bytes: Callable[[], int],
        give_away: Callable[[int], None],
    ) -> None:
        """``free_bytes``: by the newest look at the disk; None: not known. ``unwritten_bytes``: of
        the log, that may still have to find room there. ``give_away`` (now_ms): offer the node's
        leaderships to others, called at each look while there is no space."""
        self._me = me
        self._bytes_min = settings.min_free_bytes
        self._interval_ms = settings.free_check_ms
        self._tell = tell
        self._free_bytes = free_bytes
        self._unwritten_bytes = unwritten_bytes
        self._give_away = give_away
        self.free_bytes: int | None = None
        self.is_low = False
        """Below the first mark: no new writes of clients, no leadership."""
        self.is_exhausted = False
        """Below the second one: no records at all."""
        self._claimed_bytes = 0
        self.is_near = False
        """Few bytes are left above the marks: what the log grows by counts at once, too."""
        self._log_bytes: int | None = None
        """Size of the log at the first question behind the newest look."""
        self.refused = 0
        """Writes of clients since the start."""
        self.deadlines: Deadlines[int] = Deadlines()

    def start(self, now_ms: int) -> None:
        """Look from time to time, if there is a mark at all."""
        if self._bytes_min:
            self.deadlines.push(0, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Look, when that is due."""
        for _ in self.deadlines.due(now_ms):
            self.deadlines.push(0, now_ms + self._interval_ms)
            self._look()
            if self.is_low:
                self._give_away(now_ms)

    def refusal(self) -> Refusal | None:
        """Code and text if a client's write must not be taken now."""
        if not self.is_low:
            return None
        self.refused += 1
        return Refusal(NoSpaceError, f"{self.reason}; free some, or wait for another leader")

    def shortage(self, more_bytes: int) -> str | None:
        """Why nothing of this size may be copied to this disk now; None: it has room for it and
        for what the second mark keeps free."""
        free = self.free_bytes
        if not self._bytes_min or free is None:
            return None
        if free - more_bytes >= self._bytes_min // RESERVE_PART:
            return None
        return (
            f"{more_bytes} bytes have no room beside what stays free on the disk of "
            f"{node_name(self._me)}, which has {free} bytes free; it waits for space"
        )

    def claim(self, more_bytes: int, *, kept_part: int = RESERVE_PART) -> bool:
        """Whether so much may be written now to free space, by trimming and merging: they may use
        of what the second mark keeps free all but this part of it. What is granted counts as used
        until the next look."""
        if not self.has_room(more_bytes, kept_part=kept_part):
            return False
        self._claimed_bytes += more_bytes
        return True

    def has_room(self, more_bytes: int, *, kept_part: int = RESERVE_PART) -> bool:
        """Whether ``claim`` would grant so much."""
        free = self.free_bytes
        if not self._bytes_min or free is None:
            return True
        kept = self._bytes_min // RESERVE_PART // kept_part
        return free - self._claimed_bytes - more_bytes >= kept

    @property
    def reason(self) -> str:
        """The one sentence that every error and report uses."""
        return (
            f"the disk of {node_name(self._me)} has {self.free_bytes} bytes free, "
            f"storage.min_free_bytes is {self._bytes_min}"
        )

    def note_log(self, log_bytes: int) -> None:
        """The log is that large now: between two looks a fast disk takes more than the marks keep
        free. Asked before records are taken, while ``is_near``."""
        free = self.free_bytes
        if free is None:
            return
        if self._log_bytes is None:
            self._log_bytes = log_bytes
        elif log_bytes > self._log_bytes:
            self.free_bytes = max(0, free - (log_bytes - self._log_bytes))
            self._log_bytes = log_bytes
            self._judge(self.free_bytes)

    def _look(self) -> None:
        self.free_bytes = free = self._free_bytes()
        self._claimed_bytes, self._log_bytes = 0, None
        if free is None:
            self.is_near = False
            return
        # A slow disk has yet to take what was logged before this look, and does not show it.
        self.free_bytes = free = max(0, free - self._unwritten_bytes())
        self.is_near = free < NEAR_MARKS * self._bytes_min
        self._judge(free)

    def _judge(self, free: int) -> None:
        before = (self.is_low, self.is_exhausted)
        self.is_low = free < _mark(self._bytes_min, is_below=self.is_low)
        reserve = self._bytes_min // RESERVE_PART
        self.is_exhausted = free < _mark(reserve, is_below=self.is_exhausted)
        if (self.is_low, self.is_exhausted) == before:
            return
        name = "disk_low" if self.is_low else "disk_space_back"
        self._tell(
            name,
            free_bytes=free,
            min_free_bytes=self._bytes_min,
            takes_records=not self.is_exhausted,
        )


def _mark(mark: int, *, is_below: bool) -> int:
    """Bytes that have to be free; more once there were fewer, so that it does not change its mind
    with every file that is merged."""
    return mark + mark // RESERVE_PART if is_below else mark
