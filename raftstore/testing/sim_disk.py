"""A disk that hangs: syncs do not complete until it is healed or the node is gone (S0.4).

The watchdog of a real node (``raftstore.node.watchdog``) is here, too, on virtual time: it reports
the node after ``storage.stall_handover_ms`` and ends it after ``storage.stall_limit_ms``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from raftstore.config import NodeSettings
from raftstore.storage.log.group_commit import Batch
from raftstore.testing.sim_clock import Scheduler
from raftstore.types import StorageStall

STOPPED_LOOK_MS = 100.0
"""How often a node that is stopped is looked at: its own time does not pass."""


class DiskUser(Protocol):
    """The node whose disk it is."""

    incarnation: int
    settings: NodeSettings
    is_paused: bool

    @property
    def is_up(self) -> bool:
        """Whether it lives now."""

    def on_disk_stall(self, stall: StorageStall | None) -> None:
        """The watchdog reports that the disk hangs, or goes on."""

    def sync_completed(self, incarnation: int, batch: Batch) -> None:
        """The disk may finish a group commit now."""

    def crash(self, why: str) -> None:
        """The process ends."""


class _Sync(NamedTuple):
    """A group commit that should have completed."""

    incarnation: int
    batch: Batch
    since_ms: float


class SimDisk:
    """The disk of one simulated node; outlives its processes."""

    def __init__(self, node: DiskUser, scheduler: Scheduler) -> None:
        self._node = node
        self._scheduler = scheduler
        self._held: _Sync | None = None
        self._is_reported = False
        self.is_hanging = False

    def hang(self) -> None:
        """From the next sync on none completes."""
        self.is_hanging = True

    def heal(self) -> None:
        """The sync that hangs completes now, as do those after it."""
        self.is_hanging = False
        held, self._held = self._held, None
        node = self._node
        if held is None or held.incarnation != node.incarnation:
            return
        if self._is_reported and node.is_up:
            node.on_disk_stall(None)
        self._is_reported = False
        node.sync_completed(held.incarnation, held.batch)

    def holds(self, incarnation: int, batch: Batch) -> bool:
        """A group commit would complete now; True: it hangs."""
        if not self.is_hanging:
            return False
        scheduler = self._scheduler
        self._held = held = _Sync(incarnation, batch, scheduler.now_ms)
        self._is_reported = False
        storage = self._node.settings.storage
        scheduler.after(float(storage.stall_handover_ms), self._tell, held)
        scheduler.after(float(storage.stall_limit_ms), self._end, held)
        return True

    def stall(self) -> StorageStall | None:
        """The stall that was reported to the node; None while there is none."""
        held = self._held
        if held is None or not self._is_reported or held.incarnation != self._node.incarnation:
            return None
        waited_ms = int(self._scheduler.now_ms - held.since_ms)
        return StorageStall("fdatasync", "log", waited_ms)

    def _is_over(self, held: _Sync) -> bool:
        node = self._node
        return held is not self._held or held.incarnation != node.incarnation or not node.is_up

    def _tell(self, held: _Sync) -> None:
        if self._is_over(held):
            return
        if self._node.is_paused:
            self._scheduler.after(STOPPED_LOOK_MS, self._tell, held)
            return
        self._is_reported = True
        self._node.on_disk_stall(self.stall())

    def _end(self, held: _Sync) -> None:
        if self._is_over(held):
            return
        if self._node.is_paused:
            self._scheduler.after(STOPPED_LOOK_MS, self._end, held)
            return
        self._held = None
        self._node.crash("exit 70: the disk hangs")
