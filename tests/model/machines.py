"""The product's coordinator and channels as steps between states that can be compared and hashed.

A state is everything a machine keeps, interned to a number, and each step is computed once. Seqs
and times of records are functions of what they are about, so that states that differ only in the
order of independent records are one state.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from hashlib import blake2b

from msgspec import structs

from raftstore.protocol.batches import APPEND, TRUNCATE, BeginBatch, ChannelPart, Manifest
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import BatchApply, ChunkHeader, encode_apply, encode_staged
from raftstore.record_machine import StateWrites
from raftstore.rows.sealing import seal
from raftstore.state_machines.batches.coordinator import apply_txn, judge_begin
from raftstore.state_machines.batches.staging import (
    ApplyPlan,
    BatchHead,
    Broken,
    ChunkRef,
    Known,
    NotYet,
    judge_apply,
    live_chunks,
    part_of,
    plan_apply,
    read_head,
    refs_of,
    stage,
    staged_of,
)
from raftstore.state_machines.batches.txn_records import (
    AnyStep,
    Begin,
    Close,
    Commit,
    Drop,
    Trim,
    Verdict,
    decode_verdict,
    encode_step,
)
from raftstore.state_machines.batches.txn_state import (
    Open,
    OutboxEntry,
    TableHead,
    WriterState,
    apply_for,
    floor_for,
    outbox,
    read_decided,
    read_table,
    read_writer,
    waiting_for,
)
from raftstore.state_machines.state_keys import packed, writer_key
from raftstore.types import NO_GUID, ChannelId, RecordKind, Seq, Term

Items = tuple[tuple[bytes, bytes], ...]
Chunk = tuple[str, int, int, int]
"""Writer, attempt, task, run: what a task attempt stages in one channel."""
CHANNEL = ChannelId(bytes(18))


class State:
    """record_machine.StateReader over a tuple of items."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self._values = dict(items)
        self._keys = [key for key, _ in items]

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self._values.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Pairs of [start, stop) in order."""
        first, last = bisect_left(self._keys, start), bisect_left(self._keys, stop)
        return list(self.items[first : min(last, first + limit)])

    def after(self, writes: StateWrites) -> Items:
        """The items once these are written."""
        values = dict(self._values)
        for key, value in writes:
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        return tuple(sorted(values.items()))


_NUMBERS: dict[Items, int] = {(): 0}
_STATES: list[State] = [State(())]
EMPTY = 0


def number_of(items: Items) -> int:
    """The number of a state."""
    found = _NUMBERS.get(items)
    if found is None:
        found = _NUMBERS[items] = len(_STATES)
        _STATES.append(State(items))
    return found


def state_of(number: int) -> State:
    """The state behind a number."""
    return _STATES[number]


def _record(kind: RecordKind, payload: bytes, seq: int, digest: bytes = bytes(16)) -> Record:
    return Record(Term(1), Seq(seq), 1, NO_GUID, 1_000, digest, kind, payload)


# --- coordinator ----------------------------------------------------------------------------------


@cache
def step(coordinator: int, made: AnyStep) -> tuple[int, Verdict]:
    """The state and the verdict that a TXN record leads to."""
    state = state_of(coordinator)
    result = apply_txn(_record(RecordKind.TXN, encode_step(made), 1), state)
    return number_of(state.after(result.state_writes)), decode_verdict(result.answer)


def uuid_of(driver: int, batch: int) -> bytes:
    """The uuid of a driver's writer instance for a batch."""
    return bytes((driver, batch)) + bytes(14)


def begin(
    coordinator: int, writer: str, batch: int, uuid: bytes, lineage: str, channels: int
) -> tuple[int, Verdict]:
    """BEGIN arrives: answered at once, or by its record."""
    request = BeginBatch(1, CHANNEL, writer, batch, uuid, lineage, False, 0, 0)
    known = _judged(coordinator, request, channels)
    after = step(coordinator, Begin(writer, batch, uuid, lineage, False, 0, channels))
    assert known is None or after == (coordinator, known), "the fast path says the same"
    return after


@cache
def _judged(coordinator: int, request: BeginBatch, channels: int) -> Verdict | None:
    return judge_begin(request, state_of(coordinator), partitions=channels, pending_max=64)


def close(coordinator: int, writer: str, attempt: int) -> int:
    """The attempt's time is over."""
    return step(coordinator, Close(writer, attempt))[0]


def acknowledge(coordinator: int, channel: int, n: int) -> int:
    """A channel says that it has applied n."""
    return step(coordinator, Trim(((channel, n),)))[0]


def commit(
    coordinator: int, writer: str, batch: int, attempt: int, manifest: Manifest
) -> tuple[int, Verdict]:
    """COMMIT is applied."""
    digest = blake2b(repr(manifest).encode(), digest_size=16).digest()
    return step(coordinator, Commit(writer, batch, attempt, manifest, digest, 0))


@cache
def manifest_of(
    writer: str,
    attempt: int,
    tasks: tuple[tuple[int, ...], ...],
    runs: tuple[int, ...],
    truncate: bool,
    channels: int,
) -> Manifest:
    """A driver's manifest: for each task its channels and the run that won."""
    parts: list[ChannelPart] = []
    for channel in range(channels):
        refs = [
            ref_of((writer, attempt, task, runs[task]))
            for task, where in enumerate(tasks)
            if channel in where
        ]
        if refs or truncate:
            parts.append(part_of(channel, refs))
    return Manifest(
        TRUNCATE if truncate else APPEND,
        tuple(enumerate(runs)),
        tuple(parts),
        sum(part.rows for part in parts),
    )


@cache
def pushes_of(coordinator: int, n: int) -> tuple[tuple[int, BatchApply], ...]:
    """Pushes of a commit, by channel, from a state whose outbox has it."""
    state = state_of(coordinator)
    found = read_decided(n, state)
    if found is None:
        return ()  # it touches no channel
    (entry,) = [each for each in outbox(state) if each.n == n]
    batches = ((part, apply_for(entry, found, part)) for part in entry.waiting)
    return tuple((part, batch) for part, batch in batches if batch is not None)


@cache
def floor(coordinator: int, writer: str, channel: int) -> int:
    """F, as the product answers it."""
    return floor_for(writer, channel, state_of(coordinator))


@cache
def waits(coordinator: int, n: int, acked: tuple[int, ...]) -> bool:
    """Whether success of n is withheld, when the channels acknowledged these."""
    return bool(waiting_for(n, state_of(coordinator), dict(enumerate(acked))))


@cache
def writer_of(coordinator: int, writer: str) -> WriterState | None:
    """A writer as the coordinator has it."""
    return read_writer(writer, state_of(coordinator))


@cache
def table_of(coordinator: int) -> TableHead | None:
    """The table's head."""
    return read_table(state_of(coordinator))


@cache
def outbox_of(coordinator: int) -> tuple[OutboxEntry, ...]:
    """Commits that are not known to be applied everywhere."""
    return tuple(outbox(state_of(coordinator)))


# --- channels -------------------------------------------------------------------------------------


@cache
def chunk_record(chunk: Chunk) -> Record:
    """The STAGED record of a chunk: one row that names it."""
    writer, attempt, task, run = chunk
    key = f"{writer}/{task}".encode()
    rows = encode_rows([(key, seal(key, repr(chunk).encode()))])
    payload = encode_staged(ChunkHeader(writer, attempt, task, run, 0), rows)
    digest = blake2b(payload, digest_size=16).digest()
    seq = 1 + ((ord(writer[0]) * 64 + attempt) * 8 + task) * 8 + run
    return _record(RecordKind.STAGED, payload, seq, digest)


@cache
def ref_of(chunk: Chunk) -> ChunkRef:
    """The reference by which a channel remembers the chunk."""
    (ref,) = live_chunks(state_of(staged(EMPTY, chunk)), b"", 1)
    return ref


@cache
def staged(channel: int, chunk: Chunk) -> int:
    """The channel once the chunk is staged."""
    state = state_of(channel)
    return number_of(state.after(stage(chunk_record(chunk), state)))


@cache
def dropped(channel: int, writer: str, up_to: int) -> int:
    """The channel once it got a floor."""
    return step(channel, Drop(writer, up_to))[0]


@cache
def applied(channel: int, batch: BatchApply) -> tuple[int, ApplyPlan | NotYet | Known | Broken]:
    """The channel once a decided batch arrived."""
    state = state_of(channel)
    record = _record(RecordKind.BATCH_APPLY, encode_apply(batch), 100_000 + batch.n)
    refs = refs_of(batch.writer, batch.attempt, state)
    plan = plan_apply(record, read_head(state), refs)
    if isinstance(plan, ApplyPlan):
        return number_of(state.after(plan.state_writes)), plan
    return channel, plan


@cache
def applied_unchained(channel: int, batch: BatchApply) -> tuple[int, ApplyPlan | Broken]:
    """The same by a channel that looks at no chain, for a batch that it has not applied."""
    record = _record(
        RecordKind.BATCH_APPLY, encode_apply(structs.replace(batch, prev=0)), 100_000 + batch.n
    )
    state = state_of(channel)
    plan = plan_apply(record, BatchHead(), refs_of(batch.writer, batch.attempt, state))
    assert not isinstance(plan, Known | NotYet)
    after = state.after(plan.state_writes) if isinstance(plan, ApplyPlan) else state.items
    return number_of(after), plan


@cache
def head_of(channel: int) -> BatchHead:
    """The newest batch that the channel has applied."""
    return read_head(state_of(channel))


@cache
def reopened(coordinator: int, writer: str, batch: int, attempt: int) -> int:
    """The coordinator as if the attempt were open: for rules that do not ask."""
    found = writer_of(coordinator, writer)
    assert found is not None
    again = structs.replace(found, open=Open(attempt, batch, bytes(16), 0))
    return number_of(state_of(coordinator).after(((writer_key(writer), packed(again)),)))


@cache
def has_all(channel: int, batch: BatchApply) -> bool:
    """Whether everything that the batch lists is in the channel (I1)."""
    refs = refs_of(batch.writer, batch.attempt, state_of(channel))
    unchained = structs.replace(batch, prev=0)
    return not isinstance(judge_apply(unchained, BatchHead(), refs), Broken)


@cache
def holds(channel: int, writer: str, attempt: int, manifest: Manifest, part: ChannelPart) -> bool:
    """Whether the channel says yes when it is asked for its part of a manifest."""
    winners, state = manifest.winners, state_of(channel)
    return staged_of(writer, attempt, winners, part, state) == part


@cache
def attempts_in(channel: int) -> tuple[tuple[str, int], ...]:
    """(writer, attempt) of the chunks that are staged."""
    refs = live_chunks(state_of(channel), b"", 2**31)
    return tuple(sorted({(ref.writer, ref.attempt) for ref in refs}))
