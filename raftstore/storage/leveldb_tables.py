"""Applied rows of every channel in one LevelDB: fast, unsynced, and never the authority.

The log is the authority: each WriteBatch carries the rows and the applied position they lead to
(S10), so whatever LevelDB loses in a crash is applied again from the log, exactly once. What
LevelDB is known to do on a bad disk decides the rest (docs/decisions): it is read with checksums
verified, each row carries a seal of its own that is checked on every read, and after one error the
handle is never used again (S0.4). How the database is opened, and what becomes of a damaged one,
is in ``leveldb_database``.

Threads: reads, ``apply`` and the rest on the loop thread; applied records are written on the apply
thread (``raftstore.storage.applier``); content hashes are taken on their own, and so are long
pages and counts (``raftstore.storage.snapshots``). Readers and the one writer work side by side; a
get does not wait for a write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from raftstore.config import StorageSettings
from raftstore.errors import CorruptRecordError, PersistError, StorageError
from raftstore.messages import Record
from raftstore.ports import Page, ReadDone, Row, StateMachine
from raftstore.rows.sealing import unseal
from raftstore.storage.applier import AppliedChannel, Applier, OnApplied
from raftstore.storage.keys import (
    DROPPING_PREFIX,
    ROWS_TAG,
    SEQ_BYTES,
    STORE_ID,
    ContentHasher,
    applied_key,
    decode_applied,
    rows_end,
    rows_prefix,
)
from raftstore.storage.leveldb_database import (
    DATABASE_ERRORS,
    ask_for_rebuild,
    create_database,
    delete_rows,
    open_database,
    translate,
)
from raftstore.storage.snapshots import LevelDbSnapshot, SnapshotReads
from raftstore.storage.worker import Post, Worker
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq


class LevelDbTables:
    """TableStore over plyvel. Use ``create`` once, then ``open``; ``start`` begins applying."""

    def __init__(self, database: Any, directory: Path) -> None:
        self._database = database
        self._directory = directory
        self._channels: dict[ChannelId, AppliedChannel] = {}
        self._failure: str | None = None
        self._applier = Applier(
            new_batch=database.write_batch,
            get=self.get,
            errors=DATABASE_ERRORS,
            failed=self.failed,
        )
        self._hashing: Worker | None = None
        self._reads = SnapshotReads(self, self._report_failure)
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
    ) -> None:
        """Start the apply thread; ``post`` brings the callbacks to the loop thread."""
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
        self._applier.stop()
        if self._hashing is not None:
            self._hashing.stop()
        self._reads.close()
        self._failure = self._failure or "they were closed"
        self._database.close()

    # --- TableStore -------------------------------------------------------------------------------

    def open_channel(self, channel: ChannelId, machine: StateMachine) -> Seq:
        """Attach the channel's state machine; return the applied seq found in the store."""
        position = self.stored_position(channel)
        self._channels[channel] = AppliedChannel(channel, machine, position)
        return position.seq

    def applied_seq(self, channel: ChannelId) -> Seq:
        """Highest applied seq that reads of this channel see."""
        return self._channels[channel].applied.seq

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue committed records, contiguous with what was queued before."""
        self.check()
        self._applier.enqueue(self._channels[channel], records)

    def queued_bytes(self) -> int:
        """Payload bytes waiting to be applied; the engine slows publishers down by it."""
        return self._applier.queued_bytes()

    def apply_queued(self) -> None:
        """Apply everything queued in the calling thread; for tools and tests without ``start``."""
        self._applier.run_queued()

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row; raises CorruptRecordError if its checksum is wrong."""
        if self._failure is not None:
            self.check()
        try:
            stored = self._database.get(channel + ROWS_TAG + key, verify_checksums=True)
        except DATABASE_ERRORS as error:
            raise self.failed(error) from error
        if stored is None:
            return None
        return self._unsealed(key, stored)

    def get_many(
        self, channel: ChannelId, keys: Sequence[bytes], bytes_max: int
    ) -> tuple[list[Row | None], Seq]:
        """Several rows of one applied state, and the applied seq of it.

        Records are queued by this thread: what has nothing queued stands still while it is read. A
        single row that is there tells itself which state it is of. All else needs a snapshot.
        """
        self.check()
        state = self._channels[channel]
        applied_seq = state.applied.seq
        if state.queued_seq == applied_seq:
            return self._get_all(self._database, channel, keys, bytes_max), applied_seq
        if len(keys) == 1:
            row = self.get(channel, keys[0])
            if row is not None:
                # Nothing wrote the key between the row's seq and the state it was read from.
                return [row], max(applied_seq, row.seq)
        with self._database.snapshot() as snapshot:
            applied_seq = self.position(snapshot, channel).seq
            return self._get_all(snapshot, channel, keys, bytes_max), applied_seq

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
        self.check()
        return self._reads.snapshot(self._database, channel)

    def start_read(self, read: Callable[[], ReadDone]) -> None:
        """Call ``read`` on the thread of long reads; what it returns goes to ``on_read``."""
        self.check()
        post = self._post
        assert post is not None, "start comes first"
        self._reads.start(read, lambda done: post(partial(self._on_read, done)))

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at.

        Works on a snapshot, so it may run in any thread while records are applied.
        """
        self.check()
        return self._hash_snapshot(channel, self._database.snapshot())

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same on a thread of its own; ``done`` is called on the loop thread."""
        self.check()
        snapshot = self._database.snapshot()
        post = self._post
        assert post is not None, "start comes first"
        if self._hashing is None:
            self._hashing = Worker("raftstore-hash", self._report_failure)
        self._hashing.submit(lambda: post(partial(done, *self._hash_snapshot(channel, snapshot))))

    def _report_failure(self, error: StorageError) -> None:
        assert self._post is not None
        self._post(partial(self._on_failed, error))

    def drop(self, channel: ChannelId) -> None:
        """Delete all rows of a dropped table's channel, behind what is queued for it."""
        self.check()
        self._channels.pop(channel, None)
        self._applier.enqueue_job(lambda: self._drop(channel))

    def size_bytes(self) -> int:
        """Approximate bytes on disk."""
        self.check()
        try:
            return int(self._database.approximate_size(b"", b"\xff" * len(STORE_ID)))
        except DATABASE_ERRORS as error:
            raise self.failed(error) from error

    # --- for the start ----------------------------------------------------------------------------

    def stored_channels(self) -> tuple[ChannelId, ...]:
        """Channels that have rows or a position in the store, in a stable order."""
        self.check()
        found = []
        try:
            with self._database.raw_iterator(verify_checksums=True, fill_cache=False) as keys:
                keys.seek(STORE_ID + b"\xff")
                while keys.valid():
                    found.append(ChannelId(keys.key()[: len(STORE_ID)]))
                    keys.seek(found[-1] + b"\xff")
        except DATABASE_ERRORS as error:
            raise self.failed(error) from error
        return tuple(found)

    def stored_position(self, channel: ChannelId) -> History:
        """(term, seq) of the last applied record found in the store."""
        self.check()
        return self.position(self._database, channel)

    def reset_channel(self, channel: ChannelId) -> None:
        """Forget all rows of a channel, so that it is applied again from the log's beginning."""
        self._drop(channel)

    # --- inside -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise PersistError if the tables failed before or are closed. Any thread."""
        if self._failure is not None:
            raise PersistError(f"the tables are not usable any more: {self._failure}")

    def failed(self, error: Exception) -> StorageError:
        """Poison the tables (S0.4); damage is also remembered for the next start. Any thread."""
        ours = error if isinstance(error, StorageError) else translate(error)
        self._failure = self._failure or str(ours)
        if isinstance(ours, CorruptRecordError):
            ask_for_rebuild(self._directory, str(ours))
        return ours

    def position(self, source: Any, channel: ChannelId) -> History:
        """What a database or snapshot says is applied: in one batch with the rows (S10)."""
        try:
            stored = source.get(applied_key(channel), verify_checksums=True)
            return EMPTY_HISTORY if stored is None else decode_applied(channel, stored)
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self.failed(error) from error

    def _unsealed(self, key: bytes, stored: bytes) -> Row:
        """The row behind its stored bytes, its seal checked and taken off."""
        try:
            value = unseal(key, stored[SEQ_BYTES:])
        except CorruptRecordError as error:
            raise self.failed(error) from error
        return Row(key, value, Seq(int.from_bytes(stored[:SEQ_BYTES], "big")))

    def _get_all(
        self, source: Any, channel: ChannelId, keys: Sequence[bytes], bytes_max: int
    ) -> list[Row | None]:
        """Rows from the database or a snapshot, up to the one that goes beyond the bytes."""
        rows: list[Row | None] = []
        size, prefix = 0, rows_prefix(channel)
        try:
            for key in keys:
                stored = source.get(prefix + key, verify_checksums=True)
                row = None if stored is None else self._unsealed(key, stored)
                rows.append(row)
                size += 0 if row is None else row.size
                if size > bytes_max:
                    break
        except DATABASE_ERRORS as error:
            raise self.failed(error) from error
        return rows

    def rows(
        self, source: Any, channel: ChannelId, *, start: bytes = b"", stop: bytes = b""
    ) -> Generator[Row, None, None]:
        """Rows of [start, stop) in a database or snapshot, each checked. Any thread."""
        prefix = rows_prefix(channel)
        end = prefix + stop if stop else rows_end(channel)
        try:
            with source.iterator(
                start=prefix + start, stop=end, verify_checksums=True, fill_cache=False
            ) as rows:
                for key, stored in rows:
                    yield self._unsealed(key[len(prefix) :], stored)
        except DATABASE_ERRORS as error:
            raise self.failed(error) from error

    def _hash_snapshot(self, channel: ChannelId, snapshot: Any) -> tuple[bytes, int, Seq]:
        with snapshot:
            applied = self.position(snapshot, channel)
            hasher = ContentHasher()
            for row in self.rows(snapshot, channel):
                hasher.add(row.key, row.value, row.seq)
        return hasher.digest(), hasher.rows, applied.seq

    def _drop(self, channel: ChannelId) -> None:
        try:
            with self._database.write_batch() as batch:
                # From here on the channel counts as never applied, however far the deletion gets.
                batch.put(DROPPING_PREFIX + channel, b"")
                batch.delete(applied_key(channel))
            delete_rows(self._database, channel)
        except DATABASE_ERRORS as error:
            raise self.failed(error) from error
