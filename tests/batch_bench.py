"""The machines of micro-batches on plain dicts: a coordinator and its channels, for tests."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from hashlib import blake2b

from raftstore.protocol.batches import APPEND, TRUNCATE, ChannelPart, Manifest
from raftstore.protocol.payload import Cell, encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import (
    BatchApply,
    ChunkHeader,
    decode_staged,
    encode_apply,
    encode_staged,
)
from raftstore.record_machine import Row, StateWrites
from raftstore.rows.sealing import SEAL_BYTES, seal
from raftstore.state_machines.batches.coordinator import apply_txn
from raftstore.state_machines.batches.staging import (
    ApplyPlan,
    BatchHead,
    Broken,
    ChunkRef,
    Known,
    NotYet,
    check_of,
    live_chunks,
    plan_apply,
    read_head,
    refs_of,
    rows_of,
    seqs_of,
    stage,
)
from raftstore.state_machines.batches.txn_records import (
    AnyStep,
    Begin,
    Commit,
    Drop,
    Verdict,
    decode_verdict,
    encode_step,
)
from raftstore.state_machines.batches.txn_state import apply_for, outbox, read_decided
from raftstore.types import NO_GUID, RecordKind, Seq, Term

PARTITIONS = 2


class DictState:
    """record_machine.StateReader, and what a store does with the writes of a record."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self._values.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Pairs of [start, stop) in order."""
        first, last = bisect_left(self._keys, start), bisect_left(self._keys, stop)
        return [(key, self._values[key]) for key in self._keys[first : min(last, first + limit)]]

    def write(self, writes: StateWrites) -> None:
        """Apply the writes of one record."""
        for key, value in writes:
            if value is None:
                if self._values.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
                continue
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in order."""
        return [(key, self._values[key]) for key in self._keys]


class Log:
    """Numbers the records of one channel."""

    def __init__(self) -> None:
        self.seq = 0
        self.now_ms = 1_000

    def record(self, kind: RecordKind, payload: bytes, rows: int = 1, *, digest: int = 0) -> Record:
        """The next record."""
        base = self.seq + 1
        self.seq += rows
        content = digest.to_bytes(8, "big") + bytes(8)
        return Record(Term(1), Seq(base), rows, NO_GUID, self.now_ms, content, kind, payload)


class CoordinatorBench:
    """The coordinator of one table, fed with steps."""

    def __init__(self, partitions: int = PARTITIONS, *, one_shots_max: int = 1_000) -> None:
        self.partitions = partitions
        self.one_shots_max = one_shots_max
        self.state = DictState()
        self.log = Log()

    def step(self, step: AnyStep) -> Verdict:
        """Apply one step; what it led to."""
        record = self.log.record(RecordKind.TXN, encode_step(step))
        result = apply_txn(record, self.state)
        self.state.write(result.state_writes)
        return decode_verdict(result.answer)

    def begin(
        self,
        writer: str = "w",
        batch_id: int = 1,
        uuid: int = 1,
        *,
        lineage: str = "c",
        one_shot: bool = False,
    ) -> Verdict:
        """BEGIN as a leader writes it down."""
        identity = uuid.to_bytes(16, "big")
        return self.step(
            Begin(writer, batch_id, identity, lineage, one_shot, 9_000, self.partitions)
        )

    def commit(
        self,
        attempt: int,
        writer: str = "w",
        batch_id: int = 1,
        parts: Iterable[int] = (0, 1),
        *,
        manifest: Manifest | None = None,
        digest: bytes = b"d",
    ) -> Verdict:
        """COMMIT of one chunk of one row in each of the partitions."""
        content = manifest or manifest_of(parts)
        return self.step(Commit(writer, batch_id, attempt, content, digest, self.one_shots_max))

    def pending(self) -> list[tuple[int, tuple[int, ...]]]:
        """The outbox: (n, partitions that have not applied it)."""
        return [(entry.n, entry.waiting) for entry in outbox(self.state)]

    def apply_of(self, n: int, partition: int) -> BatchApply:
        """The message that is pushed to a partition for a commit in the outbox."""
        (entry,) = [entry for entry in outbox(self.state) if entry.n == n]
        decided = read_decided(n, self.state)
        assert decided is not None
        batch = apply_for(entry, decided, partition)
        assert batch is not None
        return batch


def manifest_of(
    parts: Iterable[int], *, mode: int = APPEND, partitions: int = PARTITIONS
) -> Manifest:
    """One chunk of one row, with digest 5 and 50 bytes, in each of these partitions."""
    told = {partition: ChannelPart(partition, 1, 1, 50, 5) for partition in parts}
    if mode == TRUNCATE:
        told = {p: told.get(p, ChannelPart(p, 0, 0, 0, 0)) for p in range(partitions)}
    rows = sum(part.rows for part in told.values())
    return Manifest(mode, ((0, 7),), tuple(told.values()), rows)


class ChannelBench:
    """One channel: stages, drops, applies, and holds rows with the seq that wrote them."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.state = DictState()
        self.log = Log()
        self.rows: dict[bytes, Row] = {}
        self.records: dict[int, Record] = {}
        """Staged records by their last seq: the log, as far as it is read again."""

    def stage(self, header: ChunkHeader, rows: Iterable[tuple[bytes, bytes | None]]) -> Record:
        """Stage one chunk of (key, value or None to delete)."""
        pairs: list[tuple[bytes, Cell]] = [
            (key, None if value is None else seal(key, value)) for key, value in rows
        ]
        payload = encode_staged(header, encode_rows(pairs))
        record = self.log.record(RecordKind.STAGED, payload, len(pairs), digest=hash_of(payload))
        self.records[record.last_seq] = record
        self.state.write(stage(record, self.state))
        return record

    def refs(self, writer: str = "w", attempt: int = 2**62) -> list[ChunkRef]:
        """Staged chunks of a writer."""
        return refs_of(writer, attempt, self.state)

    def all_chunks(self) -> list[ChunkRef]:
        """Staged chunks of all writers."""
        return live_chunks(self.state, b"", 2**31)

    @property
    def head(self) -> BatchHead:
        """The newest applied batch."""
        return read_head(self.state)

    def plan(self, batch: BatchApply) -> tuple[Record, ApplyPlan | NotYet | Known | Broken]:
        """The effect of the next BATCH_APPLY record."""
        record = self.log.record(
            RecordKind.BATCH_APPLY, encode_apply(batch), seqs_of(batch.part.rows)
        )
        refs = self.refs(batch.writer, batch.attempt)
        return record, plan_apply(record, self.head, refs)

    def apply(self, batch: BatchApply) -> ApplyPlan | NotYet | Known | Broken:
        """Apply a decided batch as a store does, rows and state."""
        record, plan = self.plan(batch)
        if isinstance(plan, ApplyPlan):
            self.write_rows(record, plan)
            self.state.write(plan.state_writes)
        return plan

    def write_rows(self, record: Record, plan: ApplyPlan, *, chunks: int = 2**31) -> None:
        """Write the rows of a plan, or stop after some of its chunks."""
        if plan.truncate:
            self.rows.clear()
        for ref in plan.refs[:chunks]:
            header, cells = decode_staged(self.records[ref.last_seq].payload)
            for key, sealed in rows_of(header.mode, cells, self.rows.get, record.last_seq):
                if sealed is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = Row(key, sealed[SEAL_BYTES:], record.last_seq)

    def drop(self, writer: str, floor: int) -> None:
        """The channel was informed that attempts up to the floor are finished."""
        step = encode_step(Drop(writer, floor))
        record = self.log.record(RecordKind.TXN, step)
        self.state.write(apply_txn(record, self.state).state_writes)

    def values(self) -> dict[bytes, bytes]:
        """Key -> value."""
        return {key: row.value for key, row in sorted(self.rows.items())}


def hash_of(payload: bytes) -> int:
    """A digest of the first 8 bytes that a chunk adds to the check."""
    return check_of(blake2b(payload, digest_size=16).digest())


def committed() -> CoordinatorBench:
    """Batch 5 of writer w is decided by attempt 1 as commit 1; checkpoint c."""
    bench = CoordinatorBench()
    assert bench.begin(batch_id=5).attempt == 1
    assert bench.commit(1, batch_id=5).n == 1
    return bench


def opened() -> CoordinatorBench:
    """The same, and attempt 2 (uuid 2) at batch 7 is open: gaps are allowed."""
    bench = committed()
    assert bench.begin(batch_id=7, uuid=2).attempt == 2
    return bench
