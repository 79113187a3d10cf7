"""Applied rows of every channel in one LevelDB: fast, unsynced, and never the authority.

The log is the authority: each WriteBatch carries the rows and the applied position they lead to
(S10), so whatever LevelDB loses in a crash is applied again from the log, exactly once. What
LevelDB is known to do on a bad disk decides the rest (docs/decisions): it is opened with paranoid
checks, created only once under our own marker, read with checksums verified, each row carries a
seal of its own that is checked on every read, and after one error the handle is never used again
(S0.4). A damaged database is not repaired: it is put aside and filled again from the log at the
next start.

Threads: reads, ``apply`` and the rest on the loop thread; applied records are written on the apply
thread (``raftstore.storage.applier``); content hashes are taken on their own. Readers and the one
writer work side by side; a get does not wait for a write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import plyvel

from raftstore.config import StorageSettings
from raftstore.errors import (
    CorruptRecordError,
    DiskFullError,
    PersistError,
    StorageError,
    StoreIdentityError,
)
from raftstore.messages import Record
from raftstore.ports import Page, Row, StateMachine
from raftstore.rows.sealing import unseal
from raftstore.storage.applier import AppliedChannel, Applier, OnApplied
from raftstore.storage.files import DIRECTORY_MODE, FileOps, starting
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
from raftstore.storage.leveldb_files import why_incomplete
from raftstore.storage.recovery import QUARANTINE_DIRECTORY
from raftstore.storage.worker import Post, Worker
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq

TABLES_DIRECTORY: Final = "tables"
REBUILD_NAME: Final = "tables.rebuild"
"""Its presence asks the next start to rebuild the tables; it holds the reason."""
OWNER_NAME: Final = "raftstore-store"
"""Beside LevelDB's files, which LevelDB leaves alone: the UUID of the store they belong to."""
DROP_KEYS_PER_BATCH: Final = 10_000

DATABASE_ERRORS: Final = (plyvel.Error,)
_FULL: Final = ("No space left on device", "Disk quota exceeded")
_DAMAGE: Final = (
    "Invalid argument",
    "No such file or directory",
    "Not a directory",
    "Is a directory",
    "Input/output error",
)


def translate(error: Exception) -> StorageError:
    """Return our error for one of plyvel's, of a running store."""
    text = f"LevelDB failed: {error}; the node stops"
    if isinstance(error, plyvel.CorruptionError) or _is_damage(error):
        return CorruptRecordError(text + ", its tables are rebuilt from the log at the next start")
    return PersistError(text)


def _is_damage(error: Exception) -> bool:
    """Whether opening or reading failed because files are wrong, rather than by circumstances."""
    if isinstance(error, plyvel.IOError):
        return any(reason in str(error) for reason in _DAMAGE)
    return type(error) is plyvel.Error or isinstance(error, plyvel.CorruptionError)


def _open_database(path: Path, settings: StorageSettings, *, create: bool) -> Any:
    return plyvel.DB(
        str(path),
        create_if_missing=create,
        error_if_exists=create,
        paranoid_checks=True,
        write_buffer_size=settings.write_buffer_bytes,
        lru_cache_size=settings.block_cache_bytes,
        bloom_filter_bits=10,
    )


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
            failed=self._failed,
        )
        self._hashing: Worker | None = None
        self._post: Post | None = None
        self._on_failed: Callable[[StorageError], None] = lambda _error: None
        self.rebuilt_because: str | None = None
        """Why the tables were put aside and start empty; to be told loudly. None: they were not."""

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, directory: Path, store_uuid: bytes, settings: StorageSettings) -> None:
        """Create the empty database of a store; only when it is new or being rebuilt."""
        path = directory / TABLES_DIRECTORY
        with starting(path, "creating the tables"):
            try:
                _open_database(path, settings, create=True).close()
            except DATABASE_ERRORS as error:
                raise _opening_error(path, error) from error
            FileOps().create_file(path / OWNER_NAME, store_uuid.hex().encode())
            FileOps().sync_directory(directory)

    @classmethod
    def open(cls, directory: Path, store_uuid: bytes, settings: StorageSettings) -> LevelDbTables:
        """Open the database; put it aside and start with an empty one when it is damaged.

        Raises DiskFullError, StoreIdentityError, or StorageError when it cannot be opened now.
        """
        path = directory / TABLES_DIRECTORY
        reason = _rebuild_reason(directory)
        if reason is None:
            if not (path / "CURRENT").exists():
                reason = f"{path} is missing or empty"
            else:
                try:
                    return cls(_open_checked(path, store_uuid, settings), directory)
                except DATABASE_ERRORS as error:
                    if not _is_damage(error):
                        raise _opening_error(path, error) from error
                    reason = f"LevelDB reports: {error}"
                except CorruptRecordError as error:
                    reason = str(error)
        _put_aside(directory, reason)
        cls.create(directory, store_uuid, settings)
        try:
            tables = cls(_open_checked(path, store_uuid, settings), directory)
        except DATABASE_ERRORS as error:
            raise _opening_error(path, error) from error
        tables.rebuilt_because = reason
        with starting(directory, "starting the tables again"):
            (directory / REBUILD_NAME).unlink(missing_ok=True)
        return tables

    def start(
        self,
        *,
        post: Post,
        on_applied: OnApplied,
        on_failed: Callable[[StorageError], None],
    ) -> None:
        """Start the apply thread; ``post`` brings both callbacks to the loop thread."""
        self.report_to(post=post, on_applied=on_applied, on_failed=on_failed)
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
        self._check()
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
            self._check()
        try:
            stored = self._database.get(channel + ROWS_TAG + key, verify_checksums=True)
        except DATABASE_ERRORS as error:
            raise self._failed(error) from error
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
        self._check()
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
            applied_seq = self._position(snapshot, channel).seq
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
        self._check()
        found: list[Row] = []
        size, more = 0, False
        with self._database.snapshot() as snapshot:
            applied = self._position(snapshot, channel)
            with closing(self._rows(snapshot, channel, start=start, stop=stop)) as rows:
                for row in rows:
                    size += row.size
                    is_full = bytes_max is not None and size > bytes_max
                    more = len(found) == limit or (is_full and bool(found))
                    if more:
                        break
                    found.append(row)
        return Page(found, more, applied.seq)

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at.

        Works on a snapshot, so it may run in any thread while records are applied.
        """
        self._check()
        return self._hash_snapshot(channel, self._database.snapshot())

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same on a thread of its own; ``done`` is called on the loop thread."""
        self._check()
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
        self._check()
        self._channels.pop(channel, None)
        self._applier.enqueue_job(lambda: self._drop(channel))

    def size_bytes(self) -> int:
        """Approximate bytes on disk."""
        self._check()
        try:
            return int(self._database.approximate_size(b"", b"\xff" * len(STORE_ID)))
        except DATABASE_ERRORS as error:
            raise self._failed(error) from error

    # --- for the start ----------------------------------------------------------------------------

    def stored_channels(self) -> tuple[ChannelId, ...]:
        """Channels that have rows or a position in the store, in a stable order."""
        self._check()
        found = []
        try:
            with self._database.raw_iterator(verify_checksums=True, fill_cache=False) as keys:
                keys.seek(STORE_ID + b"\xff")
                while keys.valid():
                    found.append(ChannelId(keys.key()[: len(STORE_ID)]))
                    keys.seek(found[-1] + b"\xff")
        except DATABASE_ERRORS as error:
            raise self._failed(error) from error
        return tuple(found)

    def stored_position(self, channel: ChannelId) -> History:
        """(term, seq) of the last applied record found in the store."""
        self._check()
        return self._position(self._database, channel)

    def reset_channel(self, channel: ChannelId) -> None:
        """Forget all rows of a channel, so that it is applied again from the log's beginning."""
        self._drop(channel)

    # --- inside -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise PersistError(f"the tables are not usable any more: {self._failure}")

    def _failed(self, error: Exception) -> StorageError:
        """Poison the tables (S0.4); damage is also remembered for the next start. Any thread."""
        ours = error if isinstance(error, StorageError) else translate(error)
        self._failure = self._failure or str(ours)
        if isinstance(ours, CorruptRecordError):
            try:
                (self._directory / REBUILD_NAME).write_text(str(ours), encoding="utf-8")
            except OSError:
                pass  # Then the next start finds the same damage and asks again.
        return ours

    def _position(self, source: Any, channel: ChannelId) -> History:
        """What a database or snapshot says is applied: in one batch with the rows (S10)."""
        try:
            stored = source.get(applied_key(channel), verify_checksums=True)
            return EMPTY_HISTORY if stored is None else decode_applied(channel, stored)
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self._failed(error) from error

    def _unsealed(self, key: bytes, stored: bytes) -> Row:
        """The row behind its stored bytes, its seal checked and taken off."""
        try:
            value = unseal(key, stored[SEQ_BYTES:])
        except CorruptRecordError as error:
            raise self._failed(error) from error
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
            raise self._failed(error) from error
        return rows

    def _rows(
        self, source: Any, channel: ChannelId, *, start: bytes = b"", stop: bytes = b""
    ) -> Generator[Row, None, None]:
        prefix = rows_prefix(channel)
        end = prefix + stop if stop else rows_end(channel)
        try:
            with source.iterator(
                start=prefix + start, stop=end, verify_checksums=True, fill_cache=False
            ) as rows:
                for key, stored in rows:
                    yield self._unsealed(key[len(prefix) :], stored)
        except DATABASE_ERRORS as error:
            raise self._failed(error) from error

    def _hash_snapshot(self, channel: ChannelId, snapshot: Any) -> tuple[bytes, int, Seq]:
        with snapshot:
            applied = self._position(snapshot, channel)
            hasher = ContentHasher()
            for row in self._rows(snapshot, channel):
                hasher.add(row.key, row.value, row.seq)
        return hasher.digest(), hasher.rows, applied.seq

    def _drop(self, channel: ChannelId) -> None:
        try:
            with self._database.write_batch() as batch:
                # From here on the channel counts as never applied, however far the deletion gets.
                batch.put(DROPPING_PREFIX + channel, b"")
                batch.delete(applied_key(channel))
            _delete_rows(self._database, channel)
        except DATABASE_ERRORS as error:
            raise self._failed(error) from error


def _keys(database: Any, start: bytes, stop: bytes) -> Iterator[bytes]:
    with database.iterator(
        start=start, stop=stop, include_value=False, verify_checksums=True, fill_cache=False
    ) as keys:
        yield from keys


def _delete_rows(database: Any, channel: ChannelId) -> None:
    batch, keys = database.write_batch(), _keys(database, rows_prefix(channel), rows_end(channel))
    for count, key in enumerate(keys, start=1):
        batch.delete(key)
        if count % DROP_KEYS_PER_BATCH == 0:
            batch.write()
            batch.clear()
    batch.delete(DROPPING_PREFIX + channel)
    batch.write()


def _finish_drops(database: Any) -> None:
    """Go on with deletions that a stop interrupted."""
    for key in list(_keys(database, DROPPING_PREFIX, DROPPING_PREFIX + b"\xff")):
        _delete_rows(database, ChannelId(key[len(DROPPING_PREFIX) :]))


def _open_checked(path: Path, store_uuid: bytes, settings: StorageSettings) -> Any:
    # Asked before LevelDB opens anything, since even opening rewrites its files.
    with starting(path / OWNER_NAME, "reading whose tables these are"):
        owner = (path / OWNER_NAME).read_bytes() if (path / OWNER_NAME).exists() else b""
    if not owner:
        raise CorruptRecordError(f"{path} does not say whose tables it holds")
    if owner != store_uuid.hex().encode():
        raise StoreIdentityError(
            f"{path} holds the tables of store {owner.decode('ascii', 'replace')}, not of "
            f"{store_uuid.hex()}; put back the directory of this store, or remove it to have it "
            "built again from the log"
        )
    with starting(path, "looking at LevelDB's files"):
        missing = why_incomplete(path)
    if missing is not None:
        raise CorruptRecordError(f"{path} may lack rows: {missing}")
    database = _open_database(path, settings, create=False)
    try:
        _finish_drops(database)
    except BaseException:
        database.close()
        raise
    return database


def _opening_error(path: Path, error: Exception) -> StorageError:
    if any(reason in str(error) for reason in _FULL):
        return DiskFullError(
            f"no space left on the disk of {path} while opening the tables; free some space, "
            "the node starts by itself then"
        )
    return StorageError(
        f"the tables {path} cannot be opened: {error}; check the disk and its permissions, then "
        "start the node again"
    )


def _rebuild_reason(directory: Path) -> str | None:
    path = directory / REBUILD_NAME
    with starting(path, "reading why the tables shall be rebuilt"):
        return path.read_text(encoding="utf-8") if path.exists() else None


def _put_aside(directory: Path, reason: str) -> None:
    """Move the database into quarantine; nothing reads it again, an operator may."""
    quarantine = directory / QUARANTINE_DIRECTORY
    path = directory / TABLES_DIRECTORY
    with starting(directory, "putting the damaged tables aside"):
        (directory / REBUILD_NAME).write_text(reason, encoding="utf-8")
        if not path.exists():
            return
        quarantine.mkdir(DIRECTORY_MODE, exist_ok=True)
        path.rename(quarantine / f"tables-{len(list(quarantine.iterdir())):04d}")
        FileOps().sync_directory(directory)
