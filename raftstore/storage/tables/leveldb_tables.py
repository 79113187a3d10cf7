"""Applied rows, each channel's in a LevelDB of its own: fast, unsynced, and never the authority.

The log is the authority: each WriteBatch carries the rows and the applied position they lead to
(S10), so whatever LevelDB loses in a crash is applied again from the log, exactly once. What
LevelDB is known to do on a bad disk decides the rest (docs/decisions): it is read with checksums
verified, each row carries a seal of its own that is checked on every read, and after one error the
handle is never used again (S0.4). How the databases are opened, and what becomes of a damaged one,
is in ``tables_directory``, how they are read in ``leveldb_reads``, when their files are merged in
``merges``.

A channel of its own costs four open files, and makes everything else simpler: a dropped table gives
its bytes back at once, a damaged file is one channel's, and no channel waits for LevelDB to merge
another one's files (docs/decisions/0020-one-leveldb-per-channel.md).

Threads: reads, ``apply`` and the rest on the loop thread; applied records are written on the apply
thread (``raftstore.storage.tables.applier``); content hashes are taken on their own, and so are
long pages and counts (``raftstore.storage.tables.snapshots``). Readers and the one writer work side
by side; a get does not wait for a write. While a record is written in pieces, every read of its
channel goes to a view of the state before it (``raftstore.storage.tables.views``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

from raftstore.config import StorageSettings
from raftstore.errors import StorageError
from raftstore.ports.table_copy import TableCopy
from raftstore.ports.tables import (
    AskBetween,
    Barrier,
    BarrierDone,
    FilesDone,
    FoundRows,
    MergeDone,
    Page,
    Piece,
    ReadDone,
)
from raftstore.protocol.records import Record
from raftstore.record_machine import RecordMachine, Row, is_expired
from raftstore.rows.sealing import seal
from raftstore.storage.stalls import UNWATCHED, StallWatch
from raftstore.storage.tables import leveldb_database
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.applier import Applier, OnApplied
from raftstore.storage.tables.barriers import Barriers, base_max_of
from raftstore.storage.tables.channel_database import NOTHING, ChannelDatabase
from raftstore.storage.tables.content_hashes import ContentHashes
from raftstore.storage.tables.copy_steps import CopySteps
from raftstore.storage.tables.keys import STORE_ID, channel_end
from raftstore.storage.tables.leveldb_database import DATABASE_ERRORS, close_while_serving
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.storage.tables.live_reads import LiveReads
from raftstore.storage.tables.merges import MergeJob, Merges
from raftstore.storage.tables.snapshots import LevelDbSnapshot, SnapshotReads
from raftstore.storage.tables.table_copy import LevelDbCopy
from raftstore.storage.tables.table_files import KeptFiles
from raftstore.storage.tables.tables_directory import OPENING_THREADS, OnOpened, TablesDirectory
from raftstore.storage.tables.views import Shared, Views
from raftstore.storage.worker import Post, Worker
from raftstore.types import ChannelId, History, Seq


class LevelDbTables:
    """TableStore over plyvel. Use ``create`` once, then ``open``; ``start`` begins applying."""

    def __init__(
        self, home: TablesDirectory, directory: Path, opened: Mapping[ChannelId, Any]
    ) -> None:
        self._home = home
        self._directory = directory
        self._databases = {name: self._database(name, opened[name]) for name in opened}
        self._channels: dict[ChannelId, AppliedChannel] = {}
        self._views = Views()
        self._reads = LevelDbReads(directory)
        self._applier = Applier(
            new_batch=lambda channel: self._written(channel).write_batch(),
            live=LiveReads(self._reads, lambda channel: self._written(channel).source),
            errors=DATABASE_ERRORS,
            failed=self._reads.failed,
            piece_applied=self._piece_applied,
        )
        self._making: ThreadPoolExecutor | None = None
        """Makes the databases of new channels ahead of their first records."""
        self._removing: Worker | None = None
        self._leaving: dict[ChannelId, ChannelDatabase] = {}
        """Of dropped channels: closed and removed when nothing reads them any more."""
        self._replaced: dict[ChannelDatabase, tuple[Path, bool]] = {}
        """By a copied table: where they are, and whether they are put aside and not removed."""
        self._copies: list[LevelDbCopy] = []
        """Tables that are being copied here."""
        self._kept_files = KeptFiles()
        self._removing_lock = Lock()
        self._has_threads = False
        self._is_closing = Event()
        self._snapshots = SnapshotReads(self._reads, self._report_failure)
        self._hashes = ContentHashes(self._reads, self._report_failure)
        self._barriers = Barriers(self._reads, self._report_failure)
        self._merges = Merges(self._reads, self._report_failure)
        self._copy_steps = CopySteps(self._report_failure, home.rest_times_max)
        self._post: Post | None = None
        self._on_read: Callable[[ReadDone], None] = lambda _done: None
        self._on_failed: Callable[[StorageError], None] = lambda _error: None

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, directory: Path, store_uuid: bytes, settings: StorageSettings) -> None:
        """Create the directory of a new store's tables, without any."""
        TablesDirectory.create(directory, store_uuid, settings)

    @classmethod
    def open(
        cls,
        directory: Path,
        store_uuid: bytes,
        settings: StorageSettings,
        on_opened: OnOpened | None = None,
    ) -> LevelDbTables:
        """Open the tables; put damaged ones aside and start with empty ones in their place.
        ``on_opened`` is called with how many of how many are open.

        Raises DiskFullError, StoreIdentityError, or StorageError when one cannot be opened now.
        """
        home = TablesDirectory(directory, store_uuid, settings)
        return cls(home, directory, home.open(on_opened))

    @property
    def rebuilt_because(self) -> str | None:
        """Tables that were put aside and start empty, and why; reported loudly. None: none were."""
        reasons = (f"{what}: {why}" for what, why in self._home.rebuilt.items())
        return "; ".join(reasons) or None

    def start(
        self,
        *,
        post: Post,
        on_applied: OnApplied,
        on_failed: Callable[[StorageError], None],
        on_read: Callable[[ReadDone], None],
        stalls: StallWatch = UNWATCHED,
        clock_s: Callable[[], float] | None = None,
        requests: Callable[[], int] | None = None,
    ) -> None:
        """Start the apply thread; ``post`` brings the callbacks to the loop thread.

        Writes and long reads are noted in ``stalls`` while they are under way (S0.4). By
        ``clock_s``, in seconds, copies give way to a main loop that is late; without it never.
        ``requests`` counts those of clients: while there are none nobody is given way.
        """
        path = self._home.path
        self._applier.note_writes(stalls, path)
        self._snapshots.note_reads(stalls, path)
        self._barriers.note_flushes(stalls, path)
        self._merges.note_merges(stalls, path)
        self._copy_steps.note_steps(stalls, path)
        if clock_s is not None:
            self._copy_steps.give_way_by(clock_s, requests=requests)
        self.report_to(post=post, on_applied=on_applied, on_failed=on_failed)
        self._on_read = on_read
        self._has_threads = True
        self._making = ThreadPoolExecutor(OPENING_THREADS, "raftstore-open")
        self._applier.start()

    def report_to(
        self, *, post: Post, on_applied: OnApplied, on_failed: Callable[[StorageError], None]
    ) -> None:
        """Set the callbacks without a thread; ``apply_queued`` applies then."""
        self._post = post
        self._on_failed = on_failed
        self._applier.report_to(post=post, on_applied=on_applied, on_failed=on_failed)

    def close(self) -> None:
        """Stop the threads after the work at hand and close the databases; they are not synced."""
        with self._removing_lock:
            self._is_closing.set()
        self._copy_steps.close()
        self._applier.stop()
        if self._making is not None:
            self._making.shutdown(cancel_futures=True)
        self._hashes.close()
        self._snapshots.close()
        self._barriers.close()
        self._merges.close()
        self._views.close()
        self._reads.closed()
        if self._removing is not None:
            self._removing.stop()
        # Dropped ones are found by the next start, which knows from the log that they are.
        for database in (*self._databases.values(), *self._leaving.values(), *self._replaced):
            database.close()
        for copy in self._copies:
            copy.close()
        self._kept_files.close()

    # --- TableStore -------------------------------------------------------------------------------

    def open_channel(self, channel: ChannelId, machine: RecordMachine) -> Seq:
        """Attach the channel's state machine; return the applied seq found in the store."""
        database = self._databases.get(channel)
        if database is None:
            database = self._databases[channel] = self._database(channel, NOTHING)
            if self._making is not None:
                database.prepare(self._making.submit)
        position, marked = self.stored_position(channel), self.stored_marker(channel)
        time_ms = self._reads.channel_time(self._present(channel), channel)
        removed = self._reads.removed(database.source, channel)
        self._channels[channel] = AppliedChannel(
            channel, machine, position, marked, time_ms, removed
        )
        return position.seq

    def applied_seq(self, channel: ChannelId) -> Seq:
        """Highest applied seq that reads of this channel see."""
        view = self._views.shown.get(channel)
        return self._channels[channel].applied.seq if view is None else view.applied.seq

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue committed records, contiguous with what was queued before."""
        self._reads.check()
        self._applier.enqueue(self._channels[channel], records)

    def apply_piece(self, channel: ChannelId, piece: Piece) -> None:
        """Queue a piece of a committed record; from the first to the last, readers see a view."""
        self._reads.check()
        state = self._channels[channel]
        state.queue_piece(piece)
        if piece.first:
            # Before any slice is written. What a crash left in pieces is nobody's version.
            label = piece.version if self.unserved_until(channel) == 0 else -1
            self._views.show(channel, self._shared(channel), label)
        self._applier.enqueue_piece(state, piece)

    def channel_time(self, channel: ChannelId) -> int:
        """About the channel time of what is applied, never less than readers see; 0: none."""
        state = self._channels.get(channel)
        return 0 if state is None else state.time_ms

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

    def stoppable(self, channel: ChannelId) -> AppliedChannel:
        """Whether the channel's machine stopped, and the way to have it go on."""
        return self._channels[channel]

    def queued_bytes(self) -> int:
        """Payload bytes waiting to be applied; the engine slows publishers down by it."""
        return self._applier.queued_bytes()

    def apply_queued(self) -> None:
        """Apply everything queued in the calling thread; for tools and tests without ``start``."""
        self._applier.run_queued()

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row; raises CorruptRecordError if its checksum is wrong."""
        row = self._reads.row(self._source(channel), channel, key)
        # The channel time is that of now or later: what it does not hide, is not hidden now.
        if row is None or not is_expired(row.expires_ms, self._channels[channel].time_ms):
            return row
        with closing(self.snapshot(channel)) as snapshot:
            found = snapshot.page(key, key + b"\0", 1).rows
            return found[0] if found else None

    def get_many(self, channel: ChannelId, keys: Sequence[bytes], bytes_max: int) -> FoundRows:
        """Several rows of one applied state, and the applied seq of it.

        Records are queued by this thread: what has nothing queued stands still while it is read. A
        single row that is there says itself which state it is of. All else needs a snapshot.
        """
        self._reads.check()
        view = self._views.shown.get(channel)
        if view is not None:  # Whatever is written meanwhile, and however little was asked for.
            time_ms = self._time_in(channel, view.snapshot)
            found = self._reads.some(view.snapshot, channel, keys, bytes_max, time_ms)
            return FoundRows(*found, view.applied.seq)
        state = self._channels[channel]
        applied_seq = state.applied.seq
        if state.queued_seq == applied_seq:
            source = self._databases[channel].source
            found = self._reads.some(source, channel, keys, bytes_max, state.time_ms)
            return FoundRows(*found, applied_seq)
        if len(keys) == 1:
            row = self.get(channel, keys[0])
            if row is not None:
                # Nothing wrote the key between the row's seq and the state it was read from.
                sealed = seal(row.key, row.value)
                return FoundRows([sealed], [row.seq], row.size, max(applied_seq, row.seq))
        with self._databases[channel].source.snapshot() as snapshot:
            applied_seq = self._reads.position(snapshot, channel).seq
            time_ms = self._time_in(channel, snapshot)
            found = self._reads.some(snapshot, channel, keys, bytes_max, time_ms)
            return FoundRows(*found, applied_seq)

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
        return self._snapshot_of(channel, self._shared(channel))

    def snapshot_at(self, channel: ChannelId, version: int) -> LevelDbSnapshot | None:
        """The kept state with this label; None: it is not kept."""
        self._reads.check()
        view = self._views.at(channel, version)
        return None if view is None else self._snapshot_of(channel, view.share())

    def versions(self, channel: ChannelId) -> tuple[int, ...]:
        """Labels of the kept states, oldest first."""
        return self._views.labels(channel)

    def release_version(self, channel: ChannelId, label: int) -> None:
        """Keep the state no longer; who holds a snapshot of it goes on reading."""
        self._views.release(channel, label)

    def _hand_over(self) -> Callable[[ReadDone], object]:
        """Return what takes a result from another thread to ``on_read``."""
        self._reads.check()
        post = self._post
        assert post is not None, "start comes first"
        return lambda done: post(partial(self._on_read, done))

    def start_read(self, read: Callable[[], ReadDone]) -> None:
        """Call ``read`` on the thread of long reads; what it returns goes to ``on_read``."""
        self._snapshots.start(read, self._hand_over())

    def start_query(self, ask: Callable[[], ReadDone]) -> None:
        """Call ``ask`` on the thread of users' queries; what it returns goes to ``on_read``."""
        self._snapshots.start_query(ask, self._hand_over())

    def start_between(self, channel: ChannelId, ask: AskBetween) -> None:
        """Call ``ask`` on the apply thread behind what is queued."""
        hand_over = self._hand_over()
        state, reader = self._channels[channel], self._applier.state_of(channel)

        def job() -> None:
            hand_over(ask(reader, state.applied.seq))

        self._applier.enqueue_job(job)

    def start_barrier(self, channel: ChannelId, done: BarrierDone) -> None:
        """Make what readers see of the channel now survive a power cut, on a thread of its own."""
        hand_over = self._hand_over()
        self._start_barrier(channel, lambda barrier: hand_over(partial(done, barrier)))

    def _start_barrier(
        self,
        channel: ChannelId,
        done: Callable[[Barrier], object],
        behind: Callable[[], object] = lambda: None,
    ) -> None:
        database, machine = self._databases[channel].source, self._channels[channel].machine
        self._barriers.start(channel, machine, database, self._shared(channel), done, behind)

    def start_merge(
        self, channel: ChannelId, done: MergeDone, *, is_quiet: bool, is_urgent: bool
    ) -> None:
        """Merge files of the channel, or some of them, on a thread of its own if it is worth it."""
        hand_over = self._hand_over()
        database = self._databases[channel]
        database.hold()
        job = MergeJob(
            self._channels[channel],
            database,
            self._home.place(channel),
            self._home.memory_table_bytes(len(self._databases)),
            is_quiet=is_quiet,
            is_urgent=is_urgent,
        )
        self._merges.start(job, lambda step: hand_over(partial(done, step)))

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows of a snapshot in key order, their number, and its applied seq."""
        self._reads.check()
        return self._hashes.take(channel, self._shared(channel))

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same on a thread of its own; ``done`` is called on the loop thread, but no more when
        the tables were closed."""
        self._reads.check()
        assert self._post is not None, "start comes first"
        self._hashes.start(channel, self._shared(channel), self._post, done)

    def _report_failure(self, error: StorageError) -> None:
        assert self._post is not None
        self._post(partial(self._on_failed, error))

    def drop(self, channel: ChannelId) -> None:
        """Remove the table of a dropped channel with its bytes, behind what is queued for it."""
        self._reads.check()
        self._channels.pop(channel, None)
        self._views.forget(channel)
        database = self._databases.get(channel)
        if database is not None:
            # First there, then not here: what is queued is still applied, on another thread.
            self._leaving[channel] = database
            del self._databases[channel]
            self._applier.enqueue_job(database.retire)

    def is_leaving(self, channel: ChannelId) -> bool:
        """Whether the files of a table that was dropped are still there."""
        return channel in self._leaving

    # --- copies of other replicas' tables ---------------------------------------------------------

    def applied_history(self, channel: ChannelId) -> History:
        """Term and seq of the last record that is applied."""
        view = self._views.shown.get(channel)
        return self._channels[channel].applied if view is None else view.applied

    def base_max(self, channel: ChannelId) -> Seq:
        """The highest base that the channel's log may have beside what is applied."""
        source, state = self._present(channel), self._channels[channel]
        if source is NOTHING:
            return Seq(0)
        return base_max_of(self._reads, source, channel, state.machine, state.applied.seq)

    def is_idle(self, channel: ChannelId) -> bool:
        """Whether everything that was queued for the channel is applied."""
        state = self._channels[channel]
        return state.queued_seq == state.applied.seq and not state.in_pieces

    def table_bytes(self, channel: ChannelId) -> int:
        """About how many bytes the channel's table takes."""
        database = self._databases[channel]
        if not database.exists:
            return 0
        try:
            return int(database.source.approximate_size(channel, channel_end(channel)))
        except DATABASE_ERRORS as error:
            raise self._reads.failed(error, channel) from error

    def start_files(self, channel: ChannelId, done: FilesDone) -> None:
        """Take a barrier, and keep the files of the state behind it; on the thread of barriers."""
        hand_over = self._hand_over()
        # What a view hides from readers is in the files.
        path, is_shown = self._home.place(channel), channel in self._views.shown
        link = self._kept_files.link(None if is_shown else path, self.applied_history(channel))
        self._start_barrier(
            channel, lambda barrier: hand_over(partial(done, link.found, barrier)), link
        )

    def begin_copy(
        self, channel: ChannelId, position: History, *, in_files: bool = False
    ) -> LevelDbCopy:
        """Begin a table for the channel aside from the one it has; it takes no file yet."""
        self._reads.check()
        count = len(self._databases)
        return self._kept(self._home.begin_copy(channel, position, count, in_files=in_files))

    def begun_copy(self, channel: ChannelId) -> LevelDbCopy | None:
        """Hand over the copy that an earlier life of the node began, once; None: there is none."""
        self._reads.check()
        found = self._home.begun_copy(channel, len(self._databases))
        return None if found is None else self._kept(found)

    def _kept(self, copy: LevelDbCopy) -> LevelDbCopy:
        copy.give_way = self._copy_steps.give_way
        self._copies = [each for each in self._copies if not each.is_abandoned] + [copy]
        return copy

    def start_copy_step(self, channel: ChannelId | None, step: Callable[[], ReadDone]) -> None:
        """Call ``step`` on a thread of copies; what it returns goes to ``on_read``."""
        self._reads.check()
        post = self._post
        assert post is not None, "start comes first"
        self._copy_steps.start(channel, step, post, self._on_read)

    @property
    def rested_s(self) -> float:
        """Seconds that the threads of copies gave way to requests."""
        return self._copy_steps.giving_way.rested_s

    def install(self, channel: ChannelId, copy: TableCopy, *, keeps_former: bool = False) -> None:
        """The copy, which is complete, is the channel's table from now on."""
        self._reads.check()
        assert isinstance(copy, LevelDbCopy)
        assert channel not in self._channels or self.is_idle(channel), "records would get lost"
        self._copies.remove(copy)
        former = self._databases.get(channel)
        self._views.forget(channel)
        self._channels.pop(channel, None)
        path = self._home.switched(channel, copy.path)
        self._databases[channel] = self._database(channel, copy.taken())
        if former is not None:
            self._replaced[former] = path, keeps_former
            self._applier.enqueue_job(former.retire)

    def memory_bytes(self) -> int:
        """Approximate memory of the databases' buffers and caches."""
        return leveldb_database.memory_bytes(self._sources())

    def files_by_level(self) -> tuple[int, ...]:
        """Number of files at each level, of all databases."""
        return leveldb_database.files_by_level(self._sources())

    def _sources(self) -> list[Any]:
        """The databases there are."""
        self._reads.check()
        return [each.source for each in self._databases.values() if each.exists]

    def size_bytes(self) -> int:
        """Approximate bytes on disk."""
        stop = b"\xff" * len(STORE_ID)
        try:
            return sum(int(source.approximate_size(b"", stop)) for source in self._sources())
        except DATABASE_ERRORS as error:
            raise self._reads.failed(error, None) from error

    # --- for the start ----------------------------------------------------------------------------

    def stored_channels(self) -> tuple[ChannelId, ...]:
        """Channels that have a database, in a stable order."""
        self._reads.check()
        return tuple(sorted(name for name, each in self._databases.items() if each.exists))

    def stored_position(self, channel: ChannelId) -> History:
        """(term, seq) of the last applied record found in the store."""
        self._reads.check()
        return self._reads.position(self._present(channel), channel)

    def stored_marker(self, channel: ChannelId) -> History:
        """(term, seq) of the record that was being written in pieces; (0, 0): none was."""
        self._reads.check()
        return self._reads.marker(self._present(channel), channel)

    def copied_position(self, channel: ChannelId) -> History:
        """Up to where the table was copied from another replica; (0, 0): it was built here."""
        return self._home.copied_position(channel)

    def begun_channels(self) -> tuple[ChannelId, ...]:
        """Channels that an earlier life of the node began to copy, in a stable order."""
        return self._home.begun_channels()

    def forget_copy(self, channel: ChannelId) -> None:
        """Remove what an earlier life of the node copied of the channel."""
        found = self._home.begun_copy(channel, 1)
        if found is not None:
            found.abandon()

    def reset_channel(self, channel: ChannelId) -> None:
        """Forget everything of a channel, so that it is applied again from the log's beginning."""
        database = self._databases.pop(channel, None)
        if database is not None:
            database.close()
            self._home.remove_channel(channel)

    # --- inside -----------------------------------------------------------------------------------

    def _database(self, channel: ChannelId, source: Any) -> ChannelDatabase:
        place = self._home.place(channel)
        return ChannelDatabase(
            source,
            lambda: self._home.create_channel(place, len(self._databases)),
            lambda database: self._remove(channel, database),
        )

    def _written(self, channel: ChannelId) -> ChannelDatabase:
        """The database that records of the channel are applied to; apply thread."""
        return self._databases.get(channel) or self._leaving[channel]

    def _present(self, channel: ChannelId) -> Any:
        database = self._databases.get(channel)
        return NOTHING if database is None else database.source

    def _shared(self, channel: ChannelId) -> Shared:
        """The state that readers see now, for one reader more."""
        if (view := self._views.shown.get(channel)) is not None:
            return view.share()
        position_in = partial(self._reads.position, channel=channel)
        return self._databases[channel].share(position_in, self._channels[channel].removed_applied)

    def _snapshot_of(self, channel: ChannelId, shared: Shared) -> LevelDbSnapshot:
        time_ms = self._time_in(channel, shared.snapshot)
        return self._snapshots.snapshot(channel, shared, time_ms)

    def _time_in(self, channel: ChannelId, snapshot: Any) -> int:
        """The channel time of a snapshot that was taken before."""
        if not self._channels[channel].time_ms:
            return 0  # no row had an expiry when the snapshot was taken
        return self._reads.channel_time(snapshot, channel)

    def _source(self, channel: ChannelId) -> Any:
        """Where reads of the channel's present state look; loop thread."""
        view = self._views.shown.get(channel)
        return self._databases[channel].source if view is None else view.snapshot

    def _piece_applied(self, state: AppliedChannel, piece: Piece) -> None:
        """The node's thread learns of a piece: with the last, readers see all of them at once."""
        if piece.last and self._channels.get(state.channel) is state:
            self._views.end(state.channel)

    def _remove(self, channel: ChannelId, database: ChannelDatabase) -> None:
        """A database of a dropped channel, or one that a copy replaced, is written and read by
        nobody any more; any thread."""

        def remove() -> None:
            if not self._is_closing.is_set():
                database.close(close_while_serving)
                replaced = self._replaced.pop(database, None)
                if replaced is not None:
                    path, keeps = replaced
                    self._home.remove_generation(path, channel, keeps=keeps)
                    return
                del self._leaving[channel]
                self._home.remove_channel(channel)

        if not self._has_threads:
            remove()
            return
        with self._removing_lock:
            if self._is_closing.is_set():
                return
            if self._removing is None:
                self._removing = Worker("raftstore-remove", self._report_failure)
            self._removing.submit(remove)
