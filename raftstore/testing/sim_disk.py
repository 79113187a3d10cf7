"""A disk that hangs: syncs do not complete until it is healed or the node is gone (S0.4).

The watchdog of a real node (``raftstore.node.watchdog``) is here, too, on virtual time: it tells
the node after ``storage.stall_handover_ms`` and ends it after ``storage.stall_limit_ms``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftstore.types import StorageStall

if TYPE_CHECKING:
    from raftstore.testing.sim_node import SimNode

STOPPED_LOOK_MS = 100.0
"""How often a node that is stopped is looked at: its own time does not pass."""


class _Sync(NamedTuple):
    """A sync that should have completed."""

    incarnation: int
    upto: int
    since_ms: float


class SimDisk:
    """Of one simulated node; outlives its processes."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._held: _Sync | None = None
        self._is_told = False
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
        if self._is_told and node.runner is not None:
            node.told_of_disk(None)
        self._is_told = False
        node.sync_completed(held.incarnation, held.upto)

    def holds(self, incarnation: int, upto: int) -> bool:
        """A sync would complete now; True: it hangs."""
        if not self.is_hanging:
            return False
        node, scheduler = self._node, self._node.cluster.scheduler
        self._held = held = _Sync(incarnation, upto, scheduler.now_ms)
        self._is_told = False
        storage = node.settings.storage
        scheduler.after(float(storage.stall_handover_ms), self._tell, held)
        scheduler.after(float(storage.stall_limit_ms), self._end, held)
        return True

    def stall(self) -> StorageStall | None:
        """What the node's views show."""
        held = self._held
        if held is None or not self._is_told or held.incarnation != self._node.incarnation:
            return None
        waited_ms = int(self._node.cluster.scheduler.now_ms - held.since_ms)
        return StorageStall("fdatasync", "log", waited_ms)

    def _is_over(self, held: _Sync) -> bool:
        node = self._node
        return held is not self._held or held.incarnation != node.incarnation or not node.is_up

    def _tell(self, held: _Sync) -> None:
        if self._is_over(held):
            return
        if self._node.is_paused:
            self._node.cluster.scheduler.after(STOPPED_LOOK_MS, self._tell, held)
            return
        self._is_told = True
        self._node.told_of_disk(self.stall())

    def _end(self, held: _Sync) -> None:
        if self._is_over(held):
            return
        if self._node.is_paused:
            self._node.cluster.scheduler.after(STOPPED_LOOK_MS, self._end, held)
            return
        self._held = None
        self._node.crash("exit 70: the disk hangs")
