"""Staged rows in one channel: kept by name until the batch they are of is applied, or over.

Pure functions of a channel's records and state (S10): every replica keeps and drops the same
chunks. The rows themselves stay in the log, once; the state only says where they are.

A chunk leaves in two ways and no other: a batch of its writer with its attempt or a later one is
applied here, or the coordinator said that attempts up to a floor are finished (rule 6). No clock of
a channel takes part.

A batch is written in slices, and one that a crash cut in two is written again as a whole, over a
table in which some rows are its own already. It has to end as on a replica that wrote it once
(S10). By what its chunks do to a key, in their order (``_in_order``):

* An upsert and a delete do not ask what is there.
* An insert does: it leaves out a key that others wrote. Rows of the batch itself are known by their
  seq, so they are not taken for those of others (``rows_of``). A row that it left out, and a later
  chunk of the batch wrote, looks as if it was its own the second time; the later chunk writes it
  again. A merge would keep its columns, so where there are merges the inserts come behind them.
* A merge keeps columns that are there. Merging the same once more changes nothing as long as it is
  the merge of columns and no more; where the row becomes too large the update replaces it, and then
  the second time may be another. So a merge is never computed over what it led to: what each chunk
  led to is in the state before any of its rows is in the table (``outcomes.merged_before``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from raftstore.config import ROWS_PER_RECORD_MAX, VALUE_BYTES_MAX
from raftstore.errors import DecodeError
from raftstore.nesting import is_too_deep
from raftstore.protocol.batches import TRUNCATE, ChannelPart
from raftstore.protocol.payload import Cell
from raftstore.protocol.records import Record
from raftstore.protocol.staged import INSERT, MERGE, BatchApply, decode_apply, decode_header
from raftstore.record_machine import Row, StateReader, StateWrites
from raftstore.rows.sealing import SEAL_BYTES, seal
from raftstore.state_machines.base import refuse_payload
from raftstore.state_machines.batches.txn_records import Drop
from raftstore.state_machines.state_keys import (
    BATCH_HEAD,
    CHUNKS,
    CHUNKS_END,
    applied_batch_key,
    chunk_key,
    chunks_of,
    packed,
    read_state,
    unpacked,
)
from raftstore.types import Seq

EVERYTHING: Final = 2**31
"""A limit for scans that want all there is."""
CHECK_MODULUS: Final = 2**64
MERGED_BYTES_MAX: Final = 4 * VALUE_BYTES_MAX
"""Of a merged value; each batch could add columns to it, and a reader is sent it in one frame."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_ARRAY: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_MAP: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_NIL: Final = b"\xc0"


class ChunkRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a staged chunk lies in the log, and which one it is."""

    base_seq: int
    last_seq: int
    rows: int
    size: int
    mode: int
    digest: bytes
    writer: str
    attempt: int
    partition_id: int
    task_attempt_id: int
    number: int

    @property
    def key(self) -> bytes:
        """Its key in the state."""
        return chunk_key(
            self.writer, self.attempt, self.partition_id, self.task_attempt_id, self.number
        )


class BatchHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest batch that is applied here: its commit number, the last seq of its record, and
    the vector that was published with it."""

    n: int = 0
    seq: int = 0
    vector: tuple[int, ...] = ()


class AppliedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The effect of one BATCH_APPLY record; ``chunks`` are (base seq, last seq) in order."""

    n: int
    writer: str
    batch_id: int
    attempt: int
    mode: int
    decided_ms: int
    rows: int
    chunks: tuple[tuple[int, int], ...]


class Known(NamedTuple):
    """The batch is applied already: the record changes nothing."""

    applied: int


class NotYet(NamedTuple):
    """The batch before it in this channel is not applied yet: the record changes nothing."""

    applied: int


class Broken(NamedTuple):
    """Staged rows that were decided are not all here: the channel must stop serving (I1)."""

    reason: str


class ApplyPlan(NamedTuple):
    """The plan of a BATCH_APPLY record: the deletion of all rows if ``truncate``, then rows of
    these chunks in this order, and ``state_writes`` with the last of them."""

    refs: tuple[ChunkRef, ...]
    truncate: bool
    state_writes: StateWrites


# --- staging --------------------------------------------------------------------------------------


def stage(record: Record, state: StateReader) -> StateWrites:
    """Remember where the chunk of a STAGED record is.

    A chunk that is known stays as it came first. Was the other one another content, then the check
    in the manifest that lists it does not fit, and the batch is refused as a whole.
    """
    try:
        header, _ = decode_header(record.payload)
    except DecodeError as error:
        raise refuse_payload(record, error) from error
    ref = ChunkRef(
        base_seq=record.base_seq,
        last_seq=record.last_seq,
        rows=record.rows,
        size=len(record.payload),
        mode=header.mode,
        digest=record.digest,
        writer=header.writer,
        attempt=header.attempt,
        partition_id=header.partition_id,
        task_attempt_id=header.task_attempt_id,
        number=header.number,
    )
    if state.get(ref.key) is not None:
        return ()
    return ((ref.key, packed(ref)),)


def drop(step: Drop, state: StateReader) -> StateWrites:
    """Forget the staged chunks of a writer's attempts up to the floor."""
    return _removals(refs_of(step.writer, step.floor, state))


def refs_of(writer: str, attempt: int, state: StateReader) -> list[ChunkRef]:
    """Staged chunks of a writer's attempts up to this one, in the order of their keys."""
    start = chunks_of(writer)
    stop = start + (attempt + 1).to_bytes(8, "big")
    return [unpacked(stored, ChunkRef) for _, stored in state.scan(start, stop, EVERYTHING)]


def live_chunks(state: StateReader, after: bytes, limit: int) -> list[ChunkRef]:
    """At most ``limit`` staged chunks behind the key ``after`` (b"": from the first), by key."""
    start = after + b"\x00" if after else CHUNKS
    return [unpacked(stored, ChunkRef) for _, stored in state.scan(start, CHUNKS_END, limit)]


def oldest(state: StateReader, limit: int) -> list[ChunkRef]:
    """For at most ``limit`` writers with staged chunks, the chunk of the lowest attempt each."""
    found: list[ChunkRef] = []
    start = CHUNKS
    while len(found) < limit and (first := state.scan(start, CHUNKS_END, 1)):
        ref = unpacked(first[0][1], ChunkRef)
        found.append(ref)
        start = chunks_of(ref.writer) + b"\xff" * 9
    return found


def first_needed(state: StateReader) -> Seq | None:
    """Seq of the oldest record with staged rows that a batch may still list; None: there is none.

    Their rows are in the log alone, so it must not be cut above it (S6.5).
    """
    chunks = state.scan(CHUNKS, CHUNKS_END, EVERYTHING)
    return min((Seq(unpacked(stored, ChunkRef).base_seq) for _, stored in chunks), default=None)


def read_head(state: StateReader) -> BatchHead:
    """The newest batch that is applied in this channel."""
    return read_state(state, BATCH_HEAD, BatchHead) or BatchHead()


# --- applying a decided batch ---------------------------------------------------------------------


def seqs_of(rows: int) -> int:
    """Seqs that a BATCH_APPLY record of so many rows occupies.

    Lag is counted in rows: a replica that has not applied a batch yet is behind by its rows, as far
    as a record can hold them, and not by one.
    """
    return max(1, min(rows, ROWS_PER_RECORD_MAX))


def part_of(partition: int, refs: Iterable[ChunkRef]) -> ChannelPart:
    """The sum of these chunks of one channel, as in a manifest."""
    chunks = rows = size = check = 0
    for ref in refs:
        chunks += 1
        rows += ref.rows
        size += ref.size
        check = (check + check_of(ref.digest)) % CHECK_MODULUS
    return ChannelPart(partition, chunks, rows, size, check)


def check_of(digest: bytes) -> int:
    """The share of one chunk in ``ChannelPart.check``."""
    return int.from_bytes(digest[:8], "big")


def listed_of(
    attempt: int,
    winners: Iterable[tuple[int, int]],
    part: ChannelPart,
    refs: Iterable[ChunkRef],
) -> list[ChunkRef]:
    """The chunks that a part of a manifest means, in the order of the log, as far as they are here.

    As many as it lists, the first ones: what is staged behind them changes nothing any more, so a
    part that is here once stays so.
    """
    counted = frozenset(winners)
    found = [
        ref
        for ref in refs
        if ref.attempt == attempt and (ref.partition_id, ref.task_attempt_id) in counted
    ]
    return sorted(found, key=lambda ref: ref.base_seq)[: part.chunks]


def staged_of(
    writer: str,
    attempt: int,
    winners: Iterable[tuple[int, int]],
    part: ChannelPart,
    state: StateReader,
) -> ChannelPart:
    """The staged share of a part of a manifest; the part itself when it can be decided.

    That it is all here stays true as long as the attempt may commit: nothing else takes chunks away
    than a batch of this attempt or a later one, or a floor, and neither can be before the end of
    the attempt is in the coordinator's log, where a commit of it is judged (rules 1 and 6).
    """
    return part_of(
        part.partition, listed_of(attempt, winners, part, refs_of(writer, attempt, state))
    )


def judge_apply(
    batch: BatchApply, head: BatchHead, refs: Sequence[ChunkRef]
) -> tuple[ChunkRef, ...] | NotYet | Known | Broken:
    """Which chunks a decided batch makes visible here, in the order in which they are written.

    ``refs`` are the writer's staged chunks up to the batch's attempt (``refs_of``). The first guard
    that matches wins.
    """
    if batch.n <= head.n:
        return Known(head.n)
    # Rule 4: a channel applies along the chain of the commits that touch it, each exactly once.
    if batch.prev != head.n:
        return NotYet(head.n)
    listed = listed_of(batch.attempt, batch.winners, batch.part, refs)
    found = part_of(batch.part.partition, listed)
    if found != batch.part:  # I1: nobody may go on as if they had been there
        return Broken(
            f"commit {batch.n} lists {batch.part.chunks} chunks with {batch.part.rows} rows of "
            f"writer {batch.writer!r}, attempt {batch.attempt}, and {found.chunks} with "
            f"{found.rows} rows are staged here"
        )
    return tuple(_in_order(listed))


def plan_apply(
    record: Record, head: BatchHead, refs: Sequence[ChunkRef]
) -> ApplyPlan | NotYet | Known | Broken:
    """The plan of a committed BATCH_APPLY record; arguments as in ``judge_apply``."""
    try:
        batch = decode_apply(record.payload)
    except DecodeError as error:
        raise refuse_payload(record, error) from error
    chosen = judge_apply(batch, head, refs)
    if isinstance(chosen, NotYet | Known | Broken):
        return chosen
    assert head.seq < record.base_seq, (
        f"commit {batch.n} would be applied at seq {record.base_seq} behind {head} (S10)"
    )
    done = AppliedBatch(
        n=batch.n,
        writer=batch.writer,
        batch_id=batch.batch_id,
        attempt=batch.attempt,
        mode=batch.mode,
        decided_ms=batch.decided_ms,
        rows=batch.part.rows,
        chunks=tuple((ref.base_seq, ref.last_seq) for ref in chosen),
    )
    new_head = BatchHead(batch.n, record.last_seq, batch.vector)
    writes = [
        (BATCH_HEAD, packed(new_head)),
        (applied_batch_key(record.last_seq), packed(done)),
        # Rule 6: of this writer nothing up to the attempt can be listed any more.
        *_removals(ref for ref in refs if ref.attempt <= batch.attempt),
    ]
    return ApplyPlan(chosen, batch.mode == TRUNCATE, tuple(writes))


def _in_order(refs: list[ChunkRef]) -> list[ChunkRef]:
    """By task, and within a task as it staged them: of two rows with one key the last one stays.

    Rows to insert come last where others are merged, see above.
    """
    modes = {ref.mode for ref in refs}
    inserts_last = MERGE in modes and INSERT in modes
    return sorted(
        refs,
        key=lambda ref: (inserts_last and ref.mode == INSERT, ref.partition_id, ref.number),
    )


def _removals(refs: Iterable[ChunkRef]) -> tuple[tuple[bytes, None], ...]:
    return tuple((ref.key, None) for ref in refs)


# --- rows of a chunk ------------------------------------------------------------------------------


def rows_of(
    mode: int, cells: Sequence[Cell], read: Callable[[bytes], Row | None], seq: int
) -> list[tuple[bytes, Cell]]:
    """The writes of one chunk of the batch whose record ends with ``seq``; None deletes.

    ``read`` gives the row that is there now, with what earlier chunks of the batch wrote. A row of
    ``seq`` is the batch's own, see above.
    """
    # decode_rows refuses rows without a key.
    keys = cast(Sequence[bytes], cells[::2])
    pairs = zip(keys, cells[1::2], strict=True)
    if mode == INSERT:
        return [
            (key, sealed) for key, sealed in pairs if (row := read(key)) is None or row.seq == seq
        ]
    if mode == MERGE:
        return list(_merged(pairs, read))
    return list(pairs)


def _merged(
    pairs: Iterable[tuple[bytes, Cell]], read: Callable[[bytes], Row | None]
) -> Iterator[tuple[bytes, Cell]]:
    here: dict[bytes, bytes | None] = {}  # what this chunk itself wrote
    for key, sealed in pairs:
        if key in here:
            present = here[key]
        else:
            row = read(key)
            present = None if row is None else row.value
        if sealed is None or present is None:
            here[key] = None if sealed is None else sealed[SEAL_BYTES:]
            yield key, sealed
            continue
        value = merge_values(present, sealed[SEAL_BYTES:])
        here[key] = value
        yield key, seal(key, value)


def merge_values(present: bytes, update: bytes) -> bytes:
    """The update with the present columns where its own are null or missing.

    Values are msgpack lists or maps of columns (``raftstore.rows.values``); no column is decoded.
    Of two different shapes the update stays as it is, and so it does when either is no row of
    columns or the two would become too large: nothing that anybody wrote may stop the replicas, and
    a row that no reader can be sent is worse than one that lacks columns (docs/spark.md says so).
    """
    # S10: where a decoder gives up depends on its caller, so nothing deep ever reaches it.
    if is_too_deep(present) or is_too_deep(update):
        return update
    try:
        merged = _merged_columns(present, update)
    except ValueError:  # malformed, or a name that is no UTF-8
        return update
    return merged if len(merged) <= MERGED_BYTES_MAX else update


def _merged_columns(present: bytes, update: bytes) -> bytes:
    if _is_array(present) and _is_array(update):
        return _ENCODER.encode(_merged_lists(_ARRAY.decode(present), _ARRAY.decode(update)))
    columns, updates = _MAP.decode(present), _MAP.decode(update)
    for name, value in updates.items():
        if name not in columns or not _is_null(value):
            columns[name] = value
    return _ENCODER.encode(columns)


def _merged_lists(present: list[msgspec.Raw], update: list[msgspec.Raw]) -> list[msgspec.Raw]:
    kept = [old if _is_null(new) else new for old, new in zip(present, update, strict=False)]
    return [*kept, *update[len(kept) :], *present[len(kept) :]]


def _is_null(column: msgspec.Raw) -> bool:
    return bytes(column) == _NIL


def _is_array(value: bytes) -> bool:
    return bool(value) and (0x90 <= value[0] <= 0x9F or value[0] in (0xDC, 0xDD))
