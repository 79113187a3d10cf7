"""Applying committed records to rows, several records of a channel in one atomic batch (S10).

Knows the order and the atomicity, not the databases: it is given how to read and how the
write batches of a channel are made. Records that come in pieces are written by
``raftstore.storage.tables.pieces``. ``enqueue`` and ``enqueue_piece`` belong to the loop thread,
``run_queued`` to the apply thread (or to the only one, in tests and tools).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import Final, Protocol

from raftstore import faults
from raftstore.config import MIB
from raftstore.errors import StorageError
from raftstore.ports.machine import MachineStop
from raftstore.ports.tables import Answers, Conflicts, Piece
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, Row, StateReader
from raftstore.rows.sealing import unseal
from raftstore.storage.stalls import UNWATCHED, Area, StallWatch
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.apply_queue import ApplyPiece, ApplyQueue, ApplyRecords, Job
from raftstore.storage.tables.channel_database import WriteBatch
from raftstore.storage.tables.keys import applied_key, encode_applied, row_head
from raftstore.storage.tables.pieces import PieceWriter, put_state
from raftstore.storage.worker import Post, failure_of
from raftstore.types import ChannelId, History, Seq

BATCH_BYTES_MAX: Final = 1 * MIB
"""Payload bytes merged into one write batch: enough to be fast, little enough to be responsive."""

OnApplied = Callable[[ChannelId, Seq, Conflicts, Answers], None]
"""The channel, its applied seq as reads see it, and what became of the records up to it."""


class LiveReads(Protocol):
    """The databases as they are now, whatever readers are shown. Everything is verified."""

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row."""

    def keys(self, channel: ChannelId, start: bytes) -> Iterator[bytes]:
        """Keys of all rows from ``start`` on, in order."""

    def range(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of rows of [start, stop), b"" is open."""

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows."""

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of that state, in key order."""


class _State:
    """record_machine.StateReader of one channel: with everything before the record at hand."""

    def __init__(self, applier: Applier, channel: ChannelId) -> None:
        self._applier = applier
        self._channel = channel

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        return self._applier.state_get(self._channel, key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in key order."""
        return self._applier.state_scan(self._channel, start, stop, limit)


class _View:
    """record_machine.RecordView of one channel: with everything before the record at hand."""

    time_ms = 0

    def __init__(self, applier: Applier, of: AppliedChannel) -> None:
        self.state: StateReader = _State(applier, of.channel)
        self._applier = applier
        self._of = of

    def row(self, key: bytes) -> Row | None:
        """One row."""
        return self._applier.row(self._of, key)

    def range(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop)."""
        return self._applier.row_range(self._of, start, stop, limit)


class Applier:
    """The apply queue and the thread that empties it.

    ``failed`` poisons the store and returns the error to raise, ``errors`` are what the databases
    raise. ``piece_applied`` is called on the loop thread for each piece, before ``on_applied``.
    """

    def __init__(
        self,
        *,
        new_batch: Callable[[ChannelId], WriteBatch],
        live: LiveReads,
        errors: tuple[type[Exception], ...],
        failed: Callable[[Exception, ChannelId | None], StorageError],
        piece_applied: Callable[[AppliedChannel, Piece], None],
    ) -> None:
        self._new_batch = new_batch
        self._live = live
        self._piece_applied = piece_applied
        self._errors = errors
        self._failed = failed
        self._jobs = ApplyQueue()
        self._wake = Condition()
        self._is_stopping = False
        self._thread: Thread | None = None
        self._enqueued_bytes = 0
        self._applied_bytes = 0
        self._post: Post = lambda call: call()
        self._on_applied: OnApplied = lambda *_of: None
        self._on_failed: Callable[[StorageError], None] = lambda _error: None
        self._stalls, self._path = UNWATCHED, Path()
        self._pieces = PieceWriter(
            new_batch=self._fresh_batch,
            write=self._write,
            get=live.get,
            state_get=live.state_get,
            keys=live.keys,
        )
        self._batches: dict[ChannelId, WriteBatch] = {}
        self._size = 0
        self._at: ChannelId | None = None
        """Channel that is being applied."""
        self._dirty: dict[ChannelId, AppliedChannel] = {}
        self._pending_state: dict[bytes, bytes | None] = {}
        self._done: list[tuple[int, Callable[[], None]]] = []
        self._is_taking_writes = False

    def start(self) -> None:
        """Start the thread; ``report_to`` comes first."""
        self._thread = Thread(target=self._run, name="raftstore-apply", daemon=True)
        self._thread.start()

    def report_to(
        self, *, post: Post, on_applied: OnApplied, on_failed: Callable[[StorageError], None]
    ) -> None:
        """Set the callbacks, which go through ``post``: one ``on_applied`` per call that queued."""
        self._post, self._on_applied, self._on_failed = post, on_applied, on_failed

    def note_writes(self, stalls: StallWatch, path: Path) -> None:
        """Note in ``stalls`` when the database at ``path`` is written, from now on."""
        self._stalls, self._path = stalls, path

    def stop(self) -> None:
        """End the thread after the batch at hand; what is still queued is replayed some day."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def enqueue(self, state: AppliedChannel, records: Sequence[Record]) -> None:
        """Queue committed records contiguous with what was queued before."""
        state.queue(records)
        size = sum([len(record.payload) for record in records])
        self._enqueued_bytes += size
        self.enqueue_job(ApplyRecords(state, records, size))

    def enqueue_piece(self, state: AppliedChannel, piece: Piece) -> None:
        """Queue a piece that ``state.queue_piece`` took."""
        size = sum(len(payload) for _mode, payload in piece.chunks)
        self._enqueued_bytes += size
        self.enqueue_job(ApplyPiece(state, piece, size))

    def enqueue_job(self, job: Job) -> None:
        """Queue other work on the same data behind what is queued."""
        with self._wake:
            self._jobs.put(job)
            self._wake.notify()

    def state_of(self, channel: ChannelId) -> StateReader:
        """The state beside the rows, as it is while the apply thread reads it."""
        return _State(self, channel)

    def queued_bytes(self) -> int:
        """Payload bytes queued or being applied."""
        return self._enqueued_bytes - self._applied_bytes

    def run_queued(self) -> None:
        """Work off the queue in the calling thread. Raises StorageError; then nothing goes on."""
        while True:
            with self._wake:
                job = None if self._is_stopping else self._jobs.take()
            try:
                if isinstance(job, ApplyRecords):
                    self._apply(job)
                elif isinstance(job, ApplyPiece):
                    self._apply_piece(job)
                else:
                    # Before other work, and before waiting: rows and positions are visible.
                    self._flush()
                    if job is None:
                        return
                    job()
            except self._errors as error:
                raise self._failed(error, self._at) from error
            except BaseException as error:  # a thread must not end in silence
                ours = failure_of("applying a committed record", error)
                raise self._failed(ours, self._at) from error

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._is_stopping:
                    self._wake.wait()
                if self._is_stopping:
                    return
            try:
                self.run_queued()
            except StorageError as error:
                self._post(partial(self._on_failed, error))
                return

    def _write(self, batch: WriteBatch) -> None:
        with self._stalls.doing(Area.TABLES, "a write of LevelDB", self._path):
            faults.hang("apply")
            batch.write()

    # --- one write batch --------------------------------------------------------------------------

    def _apply(self, job: ApplyRecords) -> None:
        conflicts: list[tuple[Seq, Seq]] = []
        answers: list[tuple[Seq, bytes]] = []
        self._at = job.state.channel
        for record in job.records:
            if job.state.stop is not None:
                break  # what was queued behind is handed over anew when the machine goes on
            result = self._apply_record(job.state, record)
            if result is not None:
                if result.conflict_seq is not None:
                    conflicts.append((record.last_seq, result.conflict_seq))
                if result.answer is not None:
                    answers.append((record.last_seq, result.answer))
            self._size += len(record.payload)
            if self._size >= BATCH_BYTES_MAX:
                self._flush()
        applied_seq = job.state.unflushed.seq
        self._tell(job.size, job.state, applied_seq, tuple(conflicts), tuple(answers))
        if not self._dirty:
            self._flush()

    def _apply_record(self, state: AppliedChannel, record: Record) -> ApplyResult | None:
        view = state.view
        if view is None:
            view = state.view = _View(self, state)
        result = state.compute(record, view)
        if result is not None:
            if result.failure is not None:
                state.stop = MachineStop.at(record, result)
                return None
            # Only now: a read of the machine starts a new one.
            batch = self._batch_of(state.channel)
            put, prefix = batch.put, state.prefix
            stamp = row_head(record.last_seq, result.expires_ms)
            self._is_taking_writes = True
            writes = result.writes
            if state.rereads:
                writes, seq = tuple(writes), record.last_seq
                # The next record reads them here: many records stay one batch.
                state.pending_rows.update((key, (seq, value)) for key, value in writes)
            for key, value in writes:
                if value is None:
                    batch.delete(prefix + key)
                    state.removed += 1
                else:
                    put(prefix + key, stamp + value)
            if result.state_writes:
                beside = tuple(result.state_writes)
                put_state(batch, state.channel, beside)
                self._pending_state.update((state.channel + key, value) for key, value in beside)
            self._is_taking_writes = False
        state.unflushed = History(record.term, record.last_seq)
        self._dirty[state.channel] = state
        return result

    def _batch_of(self, channel: ChannelId) -> WriteBatch:
        batch = self._batches.get(channel)
        if batch is None:
            batch = self._batches[channel] = self._fresh_batch(channel)
        return batch

    def _fresh_batch(self, channel: ChannelId) -> WriteBatch:
        # With the first one of a channel its database is made.
        with self._stalls.doing(Area.TABLES, "opening a table", self._path):
            return self._new_batch(channel)

    def _apply_piece(self, job: ApplyPiece) -> None:
        self._flush()
        self._at = job.state.channel
        self._pieces.write(job.state, job.piece)
        record = job.piece.record
        applied_seq = record.last_seq if job.piece.last else Seq(record.base_seq - 1)
        self._done.append((0, partial(self._piece_applied, job.state, job.piece)))
        self._tell(job.size, job.state, applied_seq, (), ())
        self._flush()

    def _tell(
        self,
        size: int,
        state: AppliedChannel,
        applied_seq: Seq,
        conflicts: Conflicts,
        answers: Answers,
    ) -> None:
        report = partial(self._on_applied, state.channel, applied_seq, conflicts, answers)
        self._done.append((size, report))

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state as the records before the one at hand left it."""
        # What was gathered is looked at where it is: many small records stay one batch.
        if (stored_key := channel + key) in self._pending_state:
            return self._pending_state[stored_key]
        return self._live.state_get(channel, key)

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """The same for a range."""
        assert not self._is_taking_writes, "a machine must read before it returns its writes"
        if self._pending_state:
            self._flush()
        return self._live.state_scan(channel, start, stop, limit)

    def row(self, state: AppliedChannel, key: bytes) -> Row | None:
        """A row as the records before the one at hand left it."""
        assert not self._is_taking_writes, "a machine must read before it returns its writes"
        if not state.rereads:
            self._flush()
        elif key in state.pending_rows:
            seq, sealed = state.pending_rows[key]
            return None if sealed is None else Row(key, unseal(key, sealed), seq)
        return self._live.get(state.channel, key)

    def row_range(
        self, state: AppliedChannel, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """The same for a range."""
        assert not self._is_taking_writes, "a machine must read before it returns its writes"
        if state.pending_rows or not state.rereads:
            self._flush()
        return self._live.range(state.channel, start, stop, limit)

    def _flush(self) -> None:
        """Write what was gathered, whole records, and report the jobs that are complete by it."""
        if self._dirty:
            for channel, state in self._dirty.items():
                self._at = channel
                batch = self._batch_of(channel)
                # S10: the applied position is in the same atomic batch as the rows.
                batch.put(applied_key(channel), encode_applied(channel, state.unflushed))
                state.tell_removed(batch)
                faults.reach("table.before-apply")
                self._write(batch)
                faults.reach("table.after-apply")
                del self._batches[channel]
                state.reach(state.unflushed)
                state.pending_rows.clear()
            self._dirty = {}
            self._pending_state = {}
            self._size = 0
        self._at = None
        if self._done:
            done, self._done = self._done, []
            self._applied_bytes += sum(size for size, _ in done)
            self._post(partial(_report, [report for _, report in done]))


def _report(done: list[Callable[[], None]]) -> None:
    for report in done:
        report()
