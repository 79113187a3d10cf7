"""Applied rows of every channel in one LevelDB: fast, unsynced, and never the authority.

The log is the authority: each WriteBatch carries the rows and the applied position they lead to
(S10), so whatever LevelDB loses in a crash is applied again from the log, exactly once. What
LevelDB is known to do on a bad disk decides the rest (docs/decisions): it is read with checksums
verified, each row carries a seal of its own that is checked on every read, and after one error the
handle is never used again (S0.4). How the database is opened, and what becomes of a damaged one,
is in ``leveldb_database``, how it is read in ``leveldb_reads``.

Threads: reads, ``apply`` and the rest on the loop thread; applied records are written on the apply
thread (``raftstore.storage.tables.applier``); content hashes are taken on their own, and so are
long pages and counts (``raftstore.storage.tables.snapshots``). Readers and the one writer work side
by side; a get does not wait for a write. While a record is written in pieces, every read of its
channel goes to a view of the state before it (``raftstore.storage.tables.views``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

from raftstore.config import StorageSettings
from raftstore.errors import StorageError
from raftstore.ports.machine import Row, StateMachine
from raftstore.ports.tables import FoundRows, Page, Part, ReadDone
from raftstore.protocol.records import Record
from raftstore.rows.sealing import seal
from raftstore.storage.stalls import UNWATCHED, StallWatch
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.applier import Applier, OnApplied
from raftstore.storage.tables.keys import (
    DROPPING_PREFIX,
    STORE_ID,
    applied_key,
    rows_end,
    rows_prefix,
)
from raftstore.storage.tables.leveldb_database import (
    DATABASE_ERRORS,
    TABLES_DIRECTORY,
    create_database,
    delete_channel,
    keys_between,
    open_database,
)
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.storage.tables.snapshots import LevelDbSnapshot, SnapshotReads
from raftstore.storage.tables.views import Shared, Views
from raftstore.storage.worker import Post, Worker
from raftstore.types import ChannelId, History, Seq


class _Live:
    """The applier's own reads: of the database, whatever readers are shown."""

    def __init__(self, reads: LevelDbReads, database: Any) -> None:
        self._reads = reads
        self._database = database

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row."""
        return self._reads.row(self._database, channel, key)

    def keys(self, channel: ChannelId, start: bytes) -> Iterator[bytes]:
        """Keys of all rows from ``start`` on, in order."""
        prefix = rows_prefix(channel)
        for key in keys_between(self._database, prefix + start, rows_end(channel)):
            yield key[len(prefix) :]

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows."""
        return self._reads.state_get(self._database, channel, key)

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of that state, in key order."""
        return self._reads.state_scan(self._database, channel, start, stop, limit)


LEVELS: Final = 7
"""Of LevelDB, fixed when it is compiled."""


class LevelDbTables:
    """TableStore over plyvel. Use ``create`` once, then ``open``; ``start`` begins applying."""

    def __init__(self, database: Any, directory: Path) -> None:
        self._database = database
        self._directory = directory
        self._channels: dict[ChannelId, AppliedChannel] = {}
        self._views = Views()
        self._reads = LevelDbReads(directory)
        self._applier = Applier(
            new_batch=database.write_batch,
            live=_Live(self._reads, database),
            errors=DATABASE_ERRORS,
            failed=self._reads.failed,
            part_applied=self._part_applied,
        )
        self._hashing: Worker | None = None
        self._is_closing = Event()
        self._snapshots = SnapshotReads(self._reads, self._report_failure)
        self._post: Post | None = None
        self._on_read: Callable[[ReadDone], None] = lambda _done: None
        self._on_failed: Callable[[StorageError], None] = lambda _error: None
        self.rebuilt_because: str | None = None
        """Why the tables were put aside and start empty; to be told loudly. None: they were not."""

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, directory: Path, store_uuid: bytes, settings: StorageSettings) -> None:
        """Create the empty database of a store; only when it is new or being rebuilt."""
        create_database(directory, store_uuid, settings)

    @classmethod
    def open(cls, directory: Path, store_uuid: bytes, settings: StorageSettings) -> LevelDbTables:
        """Open the database; put it aside and start with an empty one when it is damaged.

        Raises DiskFullError, StoreIdentityError, or StorageError when it cannot be opened now.
        """
        database, reason = open_database(directory, store_uuid, settings)
        tables = cls(database, directory)
        tables.rebuilt_because = reason
        return tables

    def start(
        self,
        *,
        post: Post,
        on_applied: OnApplied,
        on_failed: Callable[[StorageError], None],
        on_read: Callable[[ReadDone], None],
        stalls: StallWatch = UNWATCHED,
    ) -> None:
        """Start the apply thread; ``post`` brings the callbacks to the loop thread.

        Writes and long reads are noted in ``stalls`` while they are under way (S0.4).
        """
        path = self._directory / TABLES_DIRECTORY
        self._applier.note_writes(stalls, path)
        self._snapshots.note_reads(stalls, path)
        self.report_to(post=post, on_applied=on_applied, on_failed=on_failed)
        self._on_read = on_read
        self._applier.start()

    def report_to(
        self, *, post: Post, on_applied: OnApplied, on_failed: Callable[[StorageError], None]
    ) -> None:
        """Set the callbacks without a thread; ``apply_queued`` applies then."""
        self._post = post
        self._on_failed = on_failed
        self._applier.report_to(post=post, on_applied=on_applied, on_failed=on_failed)

    def close(self) -> None:
        """Stop the threads after the work at hand and close the database; it is not synced."""
        self._is_closing.set()
        self._applier.stop()
        if self._hashing is not None:
            self._hashing.stop()
        self._snapshots.close()
        self._views.close()
        self._reads.closed()
        self._database.close()

    # --- TableStore -------------------------------------------------------------------------------

    def open_channel(self, channel: ChannelId, machine: StateMachine) -> Seq:
        """Attach the channel's state machine; return the applied seq found in the store."""
        position, marked = self.stored_position(channel), self.stored_marker(channel)
        self._channels[channel] = AppliedChannel(channel, machine, position, marked)
        return position.seq

    def applied_seq(self, channel: ChannelId) -> Seq:
        """Highest applied seq that reads of this channel see."""
        view = self._views.shown.get(channel)
        return self._channels[channel].applied.seq if view is None else view.applied.seq

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue committed records, contiguous with what was queued before."""
        self._reads.check()
        self._applier.enqueue(self._channels[channel], records)

    def apply_part(self, channel: ChannelId, part: Part) -> None:
        """Queue a piece of a committed record; from the first to the last, readers see a view."""
        self._reads.check()
        state = self._channels[channel]
        state.queue_part(part)
        if part.first:
            # Before any slice is written. What a crash left in pieces is nobody's version.
            label = part.version if self.unserved_until(channel) == 0 else -1
            self._views.show(channel, self._shared(channel), label)
        self._applier.enqueue_part(state, part)

    def truncated(self, channel: ChannelId) -> bytes | None:
        """Where the truncating piece applied last ended; None: no row is left."""
        return self._channels[channel].truncated

    def unserved_until(self, channel: ChannelId) -> Seq:
        """Seq to be applied before anything is answered from this channel; 0: all may be."""
        marked_seq = self._channels[channel].marked_seq
        return marked_seq if marked_seq > self.applied_seq(channel) else Seq(0)

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows, of the applied state."""
        return self._reads.state_get(self._source(channel), channel, key)

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of that state in [start, stop), in key order."""
        return self._reads.state_scan(self._source(channel), channel, start, stop, limit)

    def queued_bytes(self) -> int:
        """Payload bytes waiting to be applied; the engine slows publishers down by it."""
        return self._applier.queued_bytes()

    def apply_queued(self) -> None:
        """Apply everything queued in the calling thread; for tools and tests without ``start``."""
        self._applier.run_queued()

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row; raises CorruptRecordError if its checksum is wrong."""
        return self._reads.row(self._source(channel), channel, key)

    def get_many(self, channel: ChannelId, keys: Sequence[bytes], bytes_max: int) -> FoundRows:
        """Several rows of one applied state, and the applied seq of it.

        Records are queued by this thread: what has nothing queued stands still while it is read. A
        single row that is there tells itself which state it is of. All else needs a snapshot.
        """
        self._reads.check()
        view = self._views.shown.get(channel)
        if view is not None:  # Whatever is written meanwhile, and however little was asked for.
            found = self._reads.some(view.snapshot, channel, keys, bytes_max)
            return FoundRows(*found, view.applied.seq)
        state = self._channels[channel]
        applied_seq = state.applied.seq
        if state.queued_seq == applied_seq:
            found = self._reads.some(self._database, channel, keys, bytes_max)
            return FoundRows(*found, applied_seq)
        if len(keys) == 1:
            row = self.get(channel, keys[0])
            if row is not None:
                # Nothing wrote the key between the row's seq and the state it was read from.
                sealed = seal(row.key, row.value)
                return FoundRows([sealed], [row.seq], row.size, max(applied_seq, row.seq))
        with self._database.snapshot() as snapshot:
            applied_seq = self._reads.position(snapshot, channel).seq
            return FoundRows(*self._reads.some(snapshot, channel, keys, bytes_max), applied_seq)

    def scan(
        self,
        channel: ChannelId,
        start: bytes,
        stop: bytes,
        limit: int,
        bytes_max: int | None = None,
    ) -> Page:
        """Rows of [start, stop) in key order of one applied state, bounded by rows and bytes."""
        with closing(self.snapshot(channel)) as snapshot:
            return snapshot.page(start, stop, limit, bytes_max)

    def snapshot(self, channel: ChannelId) -> LevelDbSnapshot:
        """The applied state as it is now."""
        self._reads.check()
        return self._snapshots.snapshot(channel, self._shared(channel))

    def snapshot_at(self, channel: ChannelId, version: int) -> LevelDbSnapshot | None:
        """The kept state with this label; None: it is not kept."""
        self._reads.check()
        view = self._views.at(channel, version)
        return None if view is None else self._snapshots.snapshot(channel, view.share())

    def versions(self, channel: ChannelId) -> tuple[int, ...]:
        """Labels of the kept states, oldest first."""
        return self._views.labels(channel)

    def release_version(self, channel: ChannelId, label: int) -> None:
        """Keep the state no longer; who holds a snapshot of it goes on reading."""
        self._views.release(channel, label)

    def start_read(self, read: Callable[[], ReadDone]) -> None:
        """Call ``read`` on the thread of long reads; what it returns goes to ``on_read``."""
        self._reads.check()
        post = self._post
        assert post is not None, "start comes first"
        self._snapshots.start(read, lambda done: post(partial(self._on_read, done)))

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at.

        Works on a snapshot, and LevelDB lets rows be applied meanwhile.
        """
        self._reads.check()
        return self._hash_shared(channel, self._shared(channel))

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same on a thread of its own; ``done`` is called on the loop thread.

        What is still queued when the tables are closed is not taken.
        """
        self._reads.check()
        shared = self._shared(channel)
        post = self._post
        assert post is not None, "start comes first"
        if self._hashing is None:
            self._hashing = Worker("raftstore-hash", self._report_failure)

        def take_hash() -> None:
            if self._is_closing.is_set():
                shared.release()  # LevelDB must not be closed under it.
            else:
                post(partial(done, *self._hash_shared(channel, shared)))

        self._hashing.submit(take_hash)

    def _hash_shared(self, channel: ChannelId, shared: Shared) -> tuple[bytes, int, Seq]:
        try:
            return self._reads.content_hash(shared.snapshot, channel)
        finally:
            shared.release()

    def _report_failure(self, error: StorageError) -> None:
        assert self._post is not None
        self._post(partial(self._on_failed, error))

    def drop(self, channel: ChannelId) -> None:
        """Delete everything of a dropped table's channel, behind what is queued for it."""
        self._reads.check()
        self._channels.pop(channel, None)
        self._views.forget(channel)
        self._applier.enqueue_job(lambda: self._drop(channel))

    def memory_bytes(self) -> int:
        """Approximate memory of the database's buffers and caches."""
        return int(self._property(b"leveldb.approximate-memory-usage") or 0)

    def files_by_level(self) -> tuple[int, ...]:
        """Number of files at each of the database's levels."""
        found = (self._property(b"leveldb.num-files-at-level%d" % n) for n in range(LEVELS))
        return tuple(int(number or 0) for number in found)

    def _property(self, name: bytes) -> bytes | None:
        self._reads.check()
        value: bytes | None = self._database.get_property(name)
        return value

    def size_bytes(self) -> int:
        """Approximate bytes on disk."""
        self._reads.check()
        try:
            return int(self._database.approximate_size(b"", b"\xff" * len(STORE_ID)))
        except DATABASE_ERRORS as error:
            raise self._reads.failed(error) from error

    # --- for the start ----------------------------------------------------------------------------

    def stored_channels(self) -> tuple[ChannelId, ...]:
        """Channels that have rows or a position in the store, in a stable order."""
        self._reads.check()
        found = []
        try:
            with self._database.raw_iterator(verify_checksums=True, fill_cache=False) as keys:
                keys.seek(STORE_ID + b"\xff")
                while keys.valid():
                    found.append(ChannelId(keys.key()[: len(STORE_ID)]))
                    keys.seek(found[-1] + b"\xff")
        except DATABASE_ERRORS as error:
            raise self._reads.failed(error) from error
        return tuple(found)

    def stored_position(self, channel: ChannelId) -> History:
        """(term, seq) of the last applied record found in the store."""
        self._reads.check()
        return self._reads.position(self._database, channel)

    def stored_marker(self, channel: ChannelId) -> History:
        """(term, seq) of the record that was being written in pieces; (0, 0): none was."""
        self._reads.check()
        return self._reads.marker(self._database, channel)

    def reset_channel(self, channel: ChannelId) -> None:
        """Forget everything of a channel, so that it is applied again from the log's beginning."""
        self._drop(channel)

    # --- inside -----------------------------------------------------------------------------------

    def _shared(self, channel: ChannelId) -> Shared:
        """The state that readers see now, for one reader more."""
        view = self._views.shown.get(channel)
        if view is not None:
            return view.share()
        snapshot = self._database.snapshot()
        return Shared(snapshot, self._reads.position(snapshot, channel))

    def _source(self, channel: ChannelId) -> Any:
        """Where reads of the channel's present state look; loop thread."""
        view = self._views.shown.get(channel)
        return self._database if view is None else view.snapshot

    def _part_applied(self, state: AppliedChannel, part: Part) -> None:
        """The node's thread learns of a piece: with the last, readers see all of them at once."""
        if part.last and self._channels.get(state.channel) is state:
            self._views.end(state.channel)

    def _drop(self, channel: ChannelId) -> None:
        try:
            with self._database.write_batch() as batch:
                # From here on the channel counts as never applied, however far the deletion gets.
                batch.put(DROPPING_PREFIX + channel, b"")
                batch.delete(applied_key(channel))
            delete_channel(self._database, channel)
        except DATABASE_ERRORS as error:
            raise self._reads.failed(error) from error
