"""Barriers: what is applied in a channel's database survives a power cut after one (S6.4).

LevelDB is written without syncs, since the log has everything. Before records leave the log, what
they led to must be in files that are synced. ``compact_range`` over an empty range flushes the
memory table and syncs the file made of it, but returns nothing: it hides a failure, a full disk for
one. LevelDB keeps such an error and gives it back from every later write, so nothing is believed
before one write on the same database succeeded.

Barriers are taken one after the other on a thread of their own: LevelDB may have to finish a merge
of files first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from raftstore import faults
from raftstore.errors import StorageError
from raftstore.ports.tables import Barrier
from raftstore.record_machine import RecordMachine
from raftstore.storage.stalls import UNWATCHED, Area, StallWatch
from raftstore.storage.tables.channel_database import NOTHING
from raftstore.storage.tables.keys import BARRIER_KEY, BEHIND_ALL_KEYS, encode_applied
from raftstore.storage.tables.leveldb_database import DATABASE_ERRORS
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.storage.tables.views import Shared
from raftstore.storage.worker import Worker
from raftstore.types import ChannelId, Seq


class _SnapshotState:
    """record_machine.StateReader of a channel in a snapshot."""

    def __init__(self, reads: LevelDbReads, source: Any, channel: ChannelId) -> None:
        self.get: Callable[[bytes], bytes | None] = partial(reads.state_get, source, channel)
        self.scan: Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]] = partial(
            reads.state_scan, source, channel
        )


def base_max_of(
    reads: LevelDbReads,
    source: Any,
    channel: ChannelId,
    machine: RecordMachine,
    applied_seq: Seq,
) -> Seq:
    """The highest base that a log may have beside the state in ``source`` (S6.5): below every
    record with staged rows that it still refers to."""
    needed = machine.first_needed(_SnapshotState(reads, source, channel))
    return applied_seq if needed is None else Seq(min(applied_seq, needed - 1))


class Barriers:
    """The thread of one node's barriers; all else on the loop thread."""

    def __init__(self, reads: LevelDbReads, on_failed: Callable[[StorageError], None]) -> None:
        self._reads = reads
        self._on_failed = on_failed
        self._worker: Worker | None = None
        self._is_closing = Event()
        self._stalls, self._path = UNWATCHED, Path()

    def note_flushes(self, stalls: StallWatch, path: Path) -> None:
        """Note in ``stalls`` when the database at ``path`` is flushed, from now on."""
        self._stalls, self._path = stalls, path

    def start(
        self,
        channel: ChannelId,
        machine: RecordMachine,
        database: Any,
        shared: Shared,
        done: Callable[[Barrier], object],
        behind: Callable[[], object] = lambda: None,
    ) -> None:
        """Make the state in ``shared`` durable, behind other barriers; ``done`` is called there.

        ``shared`` was taken of ``database``, and is released, after ``behind`` was called.
        """
        if self._worker is None:
            self._worker = Worker("raftstore-barrier", self._on_failed)

        def take() -> None:
            try:
                if self._is_closing.is_set():
                    return
                with self._stalls.doing(Area.READS, "a flush of LevelDB", self._path):
                    barrier = self.take(channel, machine, database, shared)
                    behind()
            finally:
                shared.release()  # LevelDB must not be closed under it.
            done(barrier)

        self._worker.submit(take)

    def take(
        self, channel: ChannelId, machine: RecordMachine, database: Any, shared: Shared
    ) -> Barrier:
        """Do it in the calling thread. Raises StorageError, and then the tables are poisoned."""
        if database is NOTHING:
            return Barrier(Seq(0), Seq(0))
        self._reads.check()
        applied = shared.applied
        base_max = base_max_of(self._reads, shared.snapshot, channel, machine, applied.seq)
        faults.reach("barrier.before-flush")
        try:
            database.compact_range(start=BEHIND_ALL_KEYS[0], stop=BEHIND_ALL_KEYS[1])
            # S0.4: only a write shows whether the flush failed.
            database.put(BARRIER_KEY, encode_applied(channel, applied))
        except DATABASE_ERRORS as error:
            raise self._reads.failed(error, channel) from error
        faults.reach("barrier.after-flush")
        return Barrier(applied.seq, base_max)

    def close(self) -> None:
        """End the thread after the barrier at hand."""
        self._is_closing.set()
        if self._worker is not None:
            self._worker.stop()
