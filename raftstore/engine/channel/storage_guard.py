"""Behaviour while the disk hangs or is nearly full, and the bound on bytes that are not on the disk
(S0.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftstore.config import KIB
from raftstore.engine.channel.disk_space import DiskSpace
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.node_ports import Tell
from raftstore.errors import NoSpaceError, OverloadedError, Refusal
from raftstore.ports.log import MessageLog
from raftstore.types import DiskRoom, NodeId, StorageStall, node_name

CATALOG_BYTES: Final = 256 * KIB
"""Bytes of disk that a message with records of the catalog is counted as, which few exceed."""


class StorageGuard:
    """Guards one node against a disk that hangs; called by the watcher of its disk."""

    def __init__(
        self,
        me: NodeId,
        log: MessageLog,
        outbox: Outbox,
        tell: Tell,
        *,
        unsynced_bytes_max: int,
        space: DiskSpace,
        stall: Callable[[], StorageStall | None],
    ) -> None:
        self._me = me
        self._log = log
        self._outbox = outbox
        self._tell = tell
        self._unsynced_bytes_max = unsynced_bytes_max
        self.space = space
        self.stall = stall
        """What the disk does not finish right now, for views."""
        self.reason: str | None = None
        """What the disk does not finish; None while it does."""

    def changed(self, stall: StorageStall | None) -> None:
        """An operation takes too long, or (None) ended after all. Before the channels learn of it:
        what they say then must not wait for the disk."""
        before = self.reason
        self.reason = None if stall is None else stall.describe(node_name(self._me))
        self._outbox.is_stalled = stall is not None
        if self.reason is not None:
            self._tell("storage_stalled", reason=self.reason)
        elif before is not None:
            self._tell("storage_resumed", reason=before, dropped_messages=self._outbox.dropped)

    def write_refusal(self, more_bytes: int, *, is_client: bool) -> Refusal | None:
        """Code and text if a new write must not be sequenced now.

        What the node itself proposes is small, and may free space, as the end of a table does.
        """
        self._note_log()
        return self.refusal(more_bytes) or (self.space.refusal() if is_client else None)

    def takes_records(self, *, is_catalog: bool) -> bool:
        """Whether a leader's records are taken; others are caught up with later.

        Those of the catalog (``is_catalog``) are taken while they fit: removing a table is what
        frees space where no node has any.
        """
        if self.refusal(0) is not None:
            return False
        self._note_log()
        return not self.space.is_exhausted or (is_catalog and self.space.claim(CATALOG_BYTES))

    def takes_beginning(self, more_bytes: int) -> bool:
        """Whether records are taken that a new leader needs to begin its term, although no others
        are. Half of what the second mark keeps free stays for what frees space."""
        return self.refusal(0) is None and self.space.claim(more_bytes, kept_part=2)

    def _note_log(self) -> None:
        if self.space.is_near:
            self.space.note_log(self._log.size_bytes())

    def room(self) -> DiskRoom:
        """The room on the disk, as other nodes are to know it."""
        space = self.space
        if not space.is_exhausted:
            return DiskRoom.RECORDS if space.is_low else DiskRoom.PLENTY
        return DiskRoom.CATALOG if space.has_room(CATALOG_BYTES) else DiskRoom.NOTHING

    def catalog_refusal(self) -> Refusal | None:
        """Code and text if not even records of the catalog are taken here, for lack of space."""
        if self.room() <= DiskRoom.CATALOG:
            return None
        text = f"{self.space.reason}, and it takes no changes of the catalog either"
        return Refusal(NoSpaceError, f"{text}; free some, or lower storage.min_free_bytes")

    def refusal(self, more_bytes: int) -> Refusal | None:
        """Code and text if the log must not take so much more now.

        Although others may hold it: what a quorum of them committed fills this node's memory, too.
        """
        limit = self._unsynced_bytes_max
        held = self._log.unsynced_bytes()
        if not held or held + more_bytes <= limit:
            return None
        text = f"{held} of {limit} bytes are not on the disk of {node_name(self._me)} yet"
        return Refusal(OverloadedError, f"{text}; {self.reason or 'retry later'}")
