"""Applying committed records to rows, several records in one atomic batch (S10).

Knows the order and the atomicity, not the database: it is given how to make a write batch and how
to get a row. ``enqueue`` belongs to the loop thread, ``run_queued`` to the apply thread (or to the
only one, in tests and tools).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition, Thread
from typing import Final, Protocol

from raftstore import faults
from raftstore.config import MIB
from raftstore.errors import PersistError, StorageError
from raftstore.messages import Record
from raftstore.ports import Row, StateMachine
from raftstore.storage.keys import SEQ_BYTES, applied_key, encode_applied, rows_prefix
from raftstore.storage.worker import Post, failure_of
from raftstore.types import ChannelId, History, RecordKind, Seq

BATCH_BYTES_MAX: Final = 1 * MIB
"""Payload bytes merged into one write batch: enough to be fast, little enough to be responsive."""

Conflicts = tuple[tuple[Seq, Seq], ...]
OnApplied = Callable[[ChannelId, Seq, Conflicts], None]

_STATELESS: Final = (RecordKind.TERM_START, RecordKind.CONFIG)
"""Records that change no rows of any machine."""


class WriteBatch(Protocol):
    """What an atomic batch of the database can do."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""

    def delete(self, key: bytes) -> None:
        """Remove a key."""

    def write(self) -> None:
        """Write everything at once."""


class AppliedChannel:
    """One channel: what is applied (any thread reads it) and what is queued (loop thread)."""

    __slots__ = ("channel", "machine", "prefix", "applied", "queued_seq", "unflushed")

    def __init__(self, channel: ChannelId, machine: StateMachine, applied: History) -> None:
        self.channel = channel
        self.machine = machine
        self.prefix = rows_prefix(channel)
        self.applied = applied
        self.queued_seq = applied.seq
        self.unflushed = applied


@dataclass(frozen=True, slots=True)
class _Apply:
    state: AppliedChannel
    records: Sequence[Record]
    size: int


_Job = _Apply | Callable[[], None]


class Applier:
    """The apply queue and the thread that empties it.

    ``get`` returns a verified row, ``failed`` poisons the store and returns the error to raise,
    ``errors`` are what the database raises.
    """

    def __init__(
        self,
        *,
        new_batch: Callable[[], WriteBatch],
        get: Callable[[ChannelId, bytes], Row | None],
        errors: tuple[type[Exception], ...],
        failed: Callable[[Exception], StorageError],
    ) -> None:
        self._new_batch = new_batch
        self._get = get
        self._errors = errors
        self._failed = failed
        self._jobs: deque[_Job] = deque()
        self._wake = Condition()
        self._is_stopping = False
        self._thread: Thread | None = None
        self._enqueued_bytes = 0
        self._applied_bytes = 0
        self._post: Post = lambda call: call()
        self._on_applied: OnApplied = lambda _channel, _seq, _conflicts: None
        self._on_failed: Callable[[StorageError], None] = lambda _error: None
        self._batch = new_batch()
        self._size = 0
        self._dirty: dict[ChannelId, AppliedChannel] = {}
        self._done: list[tuple[_Apply, Conflicts]] = []
        self._is_taking_writes = False

    def start(self) -> None:
        """Start the thread; ``report_to`` comes first."""
        self._thread = Thread(target=self._run, name="raftstore-apply", daemon=True)
        self._thread.start()

    def report_to(
        self, *, post: Post, on_applied: OnApplied, on_failed: Callable[[StorageError], None]
    ) -> None:
        """Set the callbacks, which go through ``post``: one ``on_applied`` per ``enqueue``."""
        self._post, self._on_applied, self._on_failed = post, on_applied, on_failed

    def stop(self) -> None:
        """End the thread after the batch at hand; what is still queued is replayed some day."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def enqueue(self, state: AppliedChannel, records: Sequence[Record]) -> None:
        """Queue committed records contiguous with what was queued before."""
        for record in records:
            if record.base_seq != state.queued_seq + 1:
                raise PersistError(
                    f"a record at seq {record.base_seq} of channel {state.channel.hex()} cannot be "
                    f"applied behind seq {state.queued_seq}; the node stops"
                )
            state.queued_seq = record.last_seq
        size = sum(len(record.payload) for record in records)
        self._enqueued_bytes += size
        self.enqueue_job(_Apply(state, records, size))

    def enqueue_job(self, job: _Job) -> None:
        """Queue other work on the same data behind what is queued."""
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()

    def queued_bytes(self) -> int:
        """Payload bytes queued or being applied."""
        return self._enqueued_bytes - self._applied_bytes

    def run_queued(self) -> None:
        """Work off the queue in the calling thread. Raises StorageError; then nothing goes on."""
        while True:
            with self._wake:
                job = self._jobs.popleft() if self._jobs and not self._is_stopping else None
            try:
                if isinstance(job, _Apply):
                    self._apply(job)
                else:
                    # Before other work, and before waiting: rows and positions are visible.
                    self._flush()
                    if job is None:
                        return
                    job()
            except self._errors as error:
                raise self._failed(error) from error
            except Exception as error:  # a thread must not end in silence
                ours = failure_of("applying a committed record", error)
                raise self._failed(ours) from error

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

    # --- one write batch --------------------------------------------------------------------------

    def _apply(self, job: _Apply) -> None:
        conflicts: list[tuple[Seq, Seq]] = []
        for record in job.records:
            conflict = self._apply_record(job.state, record)
            if conflict is not None:
                conflicts.append((record.last_seq, conflict))
            self._size += len(record.payload)
            if self._size >= BATCH_BYTES_MAX:
                self._flush()
        self._done.append((job, tuple(conflicts)))
        if not self._dirty:
            self._flush()

    def _apply_record(self, state: AppliedChannel, record: Record) -> Seq | None:
        conflict = None
        if record.kind not in _STATELESS:
            result = state.machine.apply(record, partial(self._read, state))
            conflict = result.conflict_seq
            batch = self._batch  # Only now: a read of the machine starts a new one.
            put, prefix = batch.put, state.prefix
            stamp = record.last_seq.to_bytes(SEQ_BYTES, "big")
            self._is_taking_writes = True
            for key, value in result.writes:
                if value is None:
                    batch.delete(prefix + key)
                else:
                    put(prefix + key, stamp + value)
            self._is_taking_writes = False
        state.unflushed = History(record.term, record.last_seq)
        self._dirty[state.channel] = state
        return conflict

    def _read(self, state: AppliedChannel, key: bytes) -> Row | None:
        """A machine reads: it must see every record before the one it computes."""
        assert not self._is_taking_writes, "a machine must read before it returns its writes"
        self._flush()
        return self._get(state.channel, key)

    def _flush(self) -> None:
        """Write what was gathered, whole records, and report the jobs that are complete by it."""
        if self._dirty:
            for channel, state in self._dirty.items():
                # S10: the applied position is in the same atomic batch as the rows.
                self._batch.put(applied_key(channel), encode_applied(channel, state.unflushed))
            faults.reach("table.before-apply")
            self._batch.write()
            faults.reach("table.after-apply")
            for state in self._dirty.values():
                state.applied = state.unflushed
            self._dirty = {}
            self._batch = self._new_batch()
            self._size = 0
        if self._done:
            done, self._done = self._done, []
            self._applied_bytes += sum(job.size for job, _ in done)
            self._post(partial(self._report, done))

    def _report(self, done: list[tuple[_Apply, Conflicts]]) -> None:
        for job, conflicts in done:
            self._on_applied(job.state.channel, job.records[-1].last_seq, conflicts)
