"""The coordinator of a table's micro-batches: which attempt may commit, and what is decided.

``apply_txn`` runs on every replica of partition 0 for each TXN record, in log order (S10). Its
guards stand in the order of docs/protocol.md and the first that matches wins: the order is the
protocol. ``judge_begin`` and ``judge_commit`` answer from applied state what needs no record: facts
that stay true however late they are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from raftstore.config import MANIFEST_BYTES_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import (
    BatchRegressionError,
    DecodeError,
    GuidReuseError,
    OverloadedError,
    PayloadTooLargeError,
    SchemaError,
    WriterFencedError,
)
from raftstore.protocol.batches import (
    ALREADY,
    APPEND,
    OK,
    OPENED,
    TRUNCATE,
    BeginBatch,
    CommitBatch,
    Manifest,
)
from raftstore.protocol.records import Record
from raftstore.protocol.staged import ATTEMPT_MAX, NUMBER_MAX, writer_fault
from raftstore.record_machine import StateReader, StateWrites
from raftstore.state_machines.base import refuse_payload
from raftstore.state_machines.batches.staging import drop
from raftstore.state_machines.batches.txn_records import (
    DONE,
    Acked,
    Adopt,
    Begin,
    Close,
    Commit,
    Drop,
    Remove,
    Trim,
    Verdict,
    decode_step,
    encode_verdict,
)
from raftstore.state_machines.batches.txn_state import (
    NOTHING_ACKED,
    Decided,
    Last,
    Open,
    OutboxEntry,
    TableHead,
    WriterState,
    outbox,
    read_decided,
    read_table,
    read_writer,
    still_waiting,
)
from raftstore.state_machines.state_keys import (
    ENDS,
    ENDS_END,
    TABLE_HEAD,
    end_key,
    manifest_key,
    outbox_key,
    packed,
    writer_key,
)

UUID_BYTES: Final = 16
CHECKPOINT_BYTES_MAX: Final = 256
COMMIT_DIGEST_BYTES_MAX: Final = 64
BATCH_ID_MAX: Final = 2**63 - 1
ENDS_PER_STEP: Final = 16
"""One-shot writers forgotten with one commit, at most; more than one only when the limit fell."""

_ENCODER: Final = msgspec.msgpack.Encoder()


class TxnResult(NamedTuple):
    """The writes of a step, and the encoded ``Verdict`` for its proposer."""

    state_writes: StateWrites
    answer: bytes


class _Draft(StateReader):
    """The state with the writes of one record in front of it."""

    def __init__(self, state: StateReader) -> None:
        self.state = state
        self.writes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        if key in self.writes:
            return self.writes[key]
        return self.state.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self.state.scan(start, stop, limit)

    def put(self, key: bytes, value: msgspec.Struct) -> None:
        self.writes[key] = packed(value)

    def delete(self, key: bytes) -> None:
        self.writes[key] = None


def apply_txn(record: Record, state: StateReader) -> TxnResult:
    """Judge and apply one step. Raises CorruptRecordError or NewerFormatError if it is none."""
    try:
        step = decode_step(record.payload)
    except DecodeError as error:
        if error.is_out_of_range:  # older than ranges, and in all logs: it decides nothing
            return TxnResult((), encode_verdict(_refusal(SchemaError.code, str(error))))
        raise refuse_payload(record, error) from error
    if isinstance(step, Drop):
        return TxnResult(drop(step, state), encode_verdict(DONE))
    draft = _Draft(state)
    now_ms = record.timestamp_ms
    match step:
        case Begin():
            verdict = _begin(step, draft, now_ms)
        case Commit():
            verdict = _commit(step, draft, now_ms)
        case Close():
            verdict = _close(step, draft, now_ms)
        case Remove():
            verdict = _remove(step, draft)
        case Adopt():
            verdict = _adopt(step, draft, now_ms)
        case _:
            assert isinstance(step, Trim), f"no rule for the step {type(step).__name__}"
            verdict = DONE
    _trim(step.acked, draft)
    return TxnResult(tuple(draft.writes.items()), encode_verdict(verdict))


# --- answers that need no record ------------------------------------------------------------------


def judge_begin(
    request: BeginBatch,
    state: StateReader,
    *,
    partitions: int,
    pending_max: int,
    acked: Mapping[int, int] = NOTHING_ACKED,
) -> Verdict | None:
    """The answer to a BEGIN as far as applied state has it; None: it needs a record.

    ``partitions`` is the table's number from the catalog; ``acked`` as in ``waiting_for``. An
    answer "already" is given to the client when its commit is applied everywhere, not before.
    """
    fault = writer_fault(request.writer) or _begin_fault(request)
    if fault is not None:
        return _refusal(SchemaError.code, fault)
    known = _known_begin(request, partitions, state)
    if known is not None:
        return known
    pending = sum(1 for entry in outbox(state) if still_waiting(entry, acked))
    if pending >= pending_max:
        return _refusal(
            OverloadedError.code,
            f"{pending} decided batches of the table wait for channels to apply them, the limit "
            f"is {pending_max} (batch.pending_max); retry when those channels have leaders",
        )
    return None


def judge_commit(request: CommitBatch, state: StateReader) -> Verdict | None:
    """The answer to a COMMIT as far as applied state has it; None: it needs a record.

    An "ok" is given to the client when its commit is applied everywhere, not before.
    """
    fault = writer_fault(request.writer)
    if fault is None and len(request.digest) > COMMIT_DIGEST_BYTES_MAX:
        fault = (
            f"the digest of a manifest has {len(request.digest)} bytes, allowed are "
            f"{COMMIT_DIGEST_BYTES_MAX}"
        )
    if fault is not None:
        return _refusal(SchemaError.code, fault)
    size = len(_ENCODER.encode(request.manifest))
    if size > MANIFEST_BYTES_MAX:
        return _refusal(
            PayloadTooLargeError.code,
            f"a manifest of {size} bytes is over the limit of {MANIFEST_BYTES_MAX}; write the "
            "batch with fewer tasks",
        )
    head = read_table(state)
    # The attempt may have been opened by records that are not applied here yet.
    if head is None or request.attempt >= head.next_attempt:
        return None
    return _known_commit(request, head, state)


# --- the steps ------------------------------------------------------------------------------------


def _known_begin(asked: Begin | BeginBatch, partitions: int, state: StateReader) -> Verdict | None:
    """The answer to a BEGIN that opens nothing new; None: it opens an attempt."""
    head = read_table(state)
    if head is not None and head.partitions != partitions:
        return _refusal(
            SchemaError.code,
            f"the table has {head.partitions} partitions for its batches, not {partitions}",
        )
    found = read_writer(asked.writer, state)
    if found is None:
        return None
    if found.lineage is not None and asked.lineage != found.lineage:
        return _regression(asked, f"of another checkpoint ({found.lineage!r}, not this one)")
    last = found.last
    if last is not None and asked.batch_id == last.batch_id:
        return _decided(ALREADY, last, state)
    if last is not None and asked.batch_id < last.batch_id:
        return _regression(asked, f"at batch {last.batch_id} already")
    now = found.open
    if now is not None and (now.uuid, now.batch_id) == (asked.uuid, asked.batch_id):
        return Verdict(OPENED, attempt=now.attempt, batch_id=now.batch_id)
    return None


def _begin(step: Begin, draft: _Draft, now_ms: int) -> Verdict:
    known = _known_begin(step, step.partitions, draft)
    if known is not None:
        return known
    head = read_table(draft) or TableHead(1, 1, (0,) * step.partitions)
    found = read_writer(step.writer, draft)
    kept_n = 0 if found is None else found.kept_n
    if kept_n and not step.one_shot:
        head = _let_go(step.writer, kept_n, head, draft)
        kept_n = 0
    attempt = head.next_attempt  # never used again, by any writer of the table
    assert found is None or found.open is None or found.open.attempt < attempt, (
        f"attempt {attempt} is opened after {found.open} of writer {step.writer!r}"
    )
    last = None if found is None else found.last
    assert last is None or step.batch_id > last.batch_id, (
        f"batch {step.batch_id} of writer {step.writer!r} is opened after {last}"
    )
    assert last is None or attempt > last.attempt, (
        f"attempt {attempt} of writer {step.writer!r} is opened after {last} (rule 1)"
    )
    draft.put(TABLE_HEAD, msgspec.structs.replace(head, next_attempt=attempt + 1))
    # Rule 1, the fence: the attempt that was open before can never commit.
    opened = Open(attempt, step.batch_id, step.uuid, step.ttl_ms)
    writer = WriterState(opened, last, step.lineage, step.one_shot, now_ms, kept_n)
    draft.put(writer_key(step.writer), writer)
    return Verdict(OPENED, attempt=attempt, batch_id=step.batch_id)


def _known_commit(
    asked: Commit | CommitBatch, head: TableHead, state: StateReader
) -> Verdict | None:
    """The answer to a COMMIT that decides nothing; None: it decides."""
    found = read_writer(asked.writer, state)
    last = None if found is None else found.last
    made = _made_by(asked, last, state)
    if made is not None:
        if made.digest != asked.digest:
            return _refusal(
                GuidReuseError.code,
                f"attempt {asked.attempt} of writer {asked.writer!r} was committed with another "
                "manifest; each attempt has one driver and one commit",
            )
        return _decided(OK, made, state)
    if last is not None and asked.batch_id <= last.batch_id:
        return _fenced(asked, f"batch {last.batch_id} is committed already")
    now = None if found is None else found.open
    if now is None or (now.attempt, now.batch_id) != (asked.attempt, asked.batch_id):
        return _fenced(asked, "the attempt was closed, or another one began")
    fault = manifest_fault(asked.manifest, head.partitions)
    return None if fault is None else _refusal(SchemaError.code, fault)


def _commit(step: Commit, draft: _Draft, now_ms: int) -> Verdict:
    head = read_table(draft)
    if head is None:
        return _fenced(step, "no attempt was ever opened in this table")
    known = _known_commit(step, head, draft)
    if known is not None:
        return known
    found = read_writer(step.writer, draft)
    assert found is not None, f"the open attempt {step.attempt} has no writer {step.writer!r}"
    # Rule 1: of a writer's attempts only the newest one commits.
    assert found.open is not None, f"no attempt of writer {step.writer!r} is open"
    assert found.open.attempt == step.attempt, (
        f"attempt {step.attempt} would commit while {found.open} may"
    )
    assert found.last is None or step.batch_id > found.last.batch_id, (
        f"batch {step.batch_id} of writer {step.writer!r} would be decided after {found.last}"
    )
    # The one atomic point of a batch: n, its place in the chain of each channel, and the vector.
    n = head.next_commit
    assert n > max(head.tail, default=0), f"commit {n} is decided already, tails {head.tail} (S10)"
    assert found.last is None or n > found.last.n, f"commit {n} is decided after {found.last} (S10)"
    touched = [part.partition for part in step.manifest.parts]
    vector = list(head.tail)
    for partition in touched:
        vector[partition] = n
    head_now = msgspec.structs.replace(head, next_commit=n + 1, tail=tuple(vector))
    if touched:
        entry = OutboxEntry(
            n=n,
            writer=step.writer,
            batch_id=step.batch_id,
            attempt=step.attempt,
            digest=step.digest,
            rows=step.manifest.rows,
            decided_ms=now_ms,
            waiting=tuple(touched),
        )
        prevs = tuple(head.tail[partition] for partition in touched)
        draft.put(outbox_key(n), entry)
        draft.put(manifest_key(n), Decided(step.manifest, head_now.tail, prevs))
    if found.kept_n:
        head_now = _let_go(step.writer, found.kept_n, head_now, draft)
    kept_n = n if found.one_shot else 0
    last = Last(step.batch_id, step.attempt, n, step.digest, step.manifest.rows)
    writer = WriterState(None, last, found.lineage, found.one_shot, now_ms, kept_n)
    draft.put(writer_key(step.writer), writer)
    if kept_n:
        head_now = _keep(step.writer, kept_n, step.one_shots_max, head_now, draft)
    draft.put(TABLE_HEAD, head_now)
    return _verdict(OK, last, head_now.tail)


def _close(step: Close, draft: _Draft, now_ms: int) -> Verdict:
    found = read_writer(step.writer, draft)
    if found is None or found.open is None or found.open.attempt != step.attempt:
        return DONE
    if found.one_shot and found.last is None:
        draft.delete(writer_key(step.writer))  # nothing of it will ever be asked for
    else:
        closed = msgspec.structs.replace(found, open=None, ts_ms=now_ms)
        draft.put(writer_key(step.writer), closed)
    return DONE


def _remove(step: Remove, draft: _Draft) -> Verdict:
    found = read_writer(step.writer, draft)
    if found is not None:
        draft.delete(writer_key(step.writer))
        _let_go_of(step.writer, found, draft)
    return DONE


def _adopt(step: Adopt, draft: _Draft, now_ms: int) -> Verdict:
    found = read_writer(step.writer, draft)
    if found is None:
        return _refusal(SchemaError.code, f"the table has no writer {step.writer!r}")
    _let_go_of(step.writer, found, draft)
    # The operator's word: batch ids begin anew. What was decided stays decided, in the outbox.
    adopted = WriterState(None, None, step.lineage, found.one_shot, now_ms)
    draft.put(writer_key(step.writer), adopted)
    return DONE


# --- what goes with every step --------------------------------------------------------------------


def _trim(acked: Acked, draft: _Draft) -> None:
    """Commits that channels said they applied leave the outbox.

    Read from the state before the record: what the step itself decided cannot be applied yet.
    """
    if not acked:
        return
    newest: dict[int, int] = {}
    for partition, n in acked:
        newest[partition] = max(n, newest.get(partition, 0))
    for entry in outbox(draft.state):
        assert entry.waiting, f"commit {entry.n} is in the outbox and waits for no channel (rule 5)"
        waiting = still_waiting(entry, newest)
        if not waiting:
            draft.delete(outbox_key(entry.n))
            draft.delete(manifest_key(entry.n))
        elif waiting != entry.waiting:
            draft.put(outbox_key(entry.n), msgspec.structs.replace(entry, waiting=waiting))


def _keep(writer: str, n: int, limit: int, head: TableHead, draft: _Draft) -> TableHead:
    """Remember a one-shot writer by its commit, and forget those of the oldest commits beyond.

    S4.5, S10: a number of commits, and no clock, decides how long: a leader whose clock is days
    ahead must not have a batch that is begun again look new.
    """
    draft.put(end_key(n, writer), DONE)
    kept = head.one_shots + 1
    over = min(kept - limit, ENDS_PER_STEP)
    for key, _ in draft.scan(ENDS, ENDS_END, over) if over > 0 else ():
        draft.delete(key)
        draft.delete(writer_key(key[len(ENDS) + 8 :].decode()))
        kept -= 1
    return msgspec.structs.replace(head, one_shots=kept)


def _let_go(writer: str, n: int, head: TableHead, draft: _Draft) -> TableHead:
    """The writer is no one-shot writer whose batch is over any more, or one of a later commit."""
    assert 0 < n < head.next_commit, f"writer {writer!r} is remembered by commit {n}, not decided"
    draft.delete(end_key(n, writer))
    return msgspec.structs.replace(head, one_shots=max(0, head.one_shots - 1))


def _let_go_of(writer: str, found: WriterState, draft: _Draft) -> None:
    head = read_table(draft)
    if found.kept_n and head is not None:
        draft.put(TABLE_HEAD, _let_go(writer, found.kept_n, head, draft))


# --- verdicts -------------------------------------------------------------------------------------


def _made_by(asked: Commit | CommitBatch, last: Last | None, state: StateReader) -> Last | None:
    """The commit that this very attempt made, as far as it is remembered."""
    if last is not None and (last.batch_id, last.attempt) == (asked.batch_id, asked.attempt):
        return last
    for entry in outbox(state):
        if (entry.writer, entry.batch_id, entry.attempt) == (
            asked.writer,
            asked.batch_id,
            asked.attempt,
        ):
            return Last(entry.batch_id, entry.attempt, entry.n, entry.digest, entry.rows)
    return None


def _decided(name: str, made: Last, state: StateReader) -> Verdict:
    """A commit that was made before, with its vector or, when that is gone, the present one."""
    decided = read_decided(made.n, state)
    if decided is not None:
        return _verdict(name, made, decided.vector)
    head = read_table(state)
    return _verdict(name, made, () if head is None else head.tail)


def _verdict(name: str, made: Last, vector: tuple[int, ...]) -> Verdict:
    return Verdict(
        name,
        attempt=made.attempt,
        n=made.n,
        batch_id=made.batch_id,
        vector=vector,
        rows=made.rows,
    )


def _refusal(code: str, message: str) -> Verdict:
    return Verdict("refused", code, message)


def _fenced(asked: Commit | CommitBatch, reason: str) -> Verdict:
    text = (
        f"attempt {asked.attempt} of writer {asked.writer!r} at batch {asked.batch_id} cannot "
        f"commit: {reason}; stop this driver, the next start learns whether the batch is in"
    )
    return _refusal(WriterFencedError.code, text)


def _regression(asked: Begin | BeginBatch, reason: str) -> Verdict:
    text = (
        f"batch {asked.batch_id} of writer {asked.writer!r} is refused: the writer is {reason}; "
        "restore the checkpoint that belongs to the table, adopt the writer, or use another writer"
    )
    return _refusal(BatchRegressionError.code, text)


def _begin_fault(request: BeginBatch) -> str | None:
    if len(request.uuid) != UUID_BYTES:
        return f"the uuid of an attempt has {len(request.uuid)} bytes, expected {UUID_BYTES}"
    if not 0 <= request.batch_id <= BATCH_ID_MAX or not 0 <= request.ttl_ms <= BATCH_ID_MAX:
        allowed = f"must not be negative or over {BATCH_ID_MAX}"
        return f"batch id {request.batch_id} and ttl {request.ttl_ms} ms {allowed}"
    if len(request.lineage.encode()) > CHECKPOINT_BYTES_MAX:
        checkpoint = request.lineage[:40]
        return f"the checkpoint (lineage) {checkpoint!r}… is over {CHECKPOINT_BYTES_MAX} bytes"
    return None


def manifest_fault(manifest: Manifest, partitions: int) -> str | None:
    """Why no table with so many partitions takes this manifest; None: it does."""
    touched = [part.partition for part in manifest.parts]
    tasks = [task for task, _ in manifest.winners]
    if manifest.mode not in (APPEND, TRUNCATE):
        return f"a manifest has mode {manifest.mode}; {APPEND} appends, {TRUNCATE} replaces"
    if touched != sorted(set(touched)) or not all(0 <= each < partitions for each in touched):
        return f"the parts of a manifest must be of partitions 0 to {partitions - 1} in order"
    # Two attempts of one task must never both count: they hold the same rows.
    if tasks != sorted(set(tasks)):
        return "the winners of a manifest must be in the order of their tasks, one for each"
    if not all(
        0 <= task <= NUMBER_MAX and 0 <= run <= ATTEMPT_MAX for task, run in manifest.winners
    ):
        return f"a task of a manifest is outside 0 to {NUMBER_MAX}, or its attempt"
    for part in manifest.parts:
        is_empty = part.chunks == part.rows == part.bytes == part.check == 0
        is_full = (
            0 < part.chunks <= part.rows <= part.chunks * ROWS_PER_RECORD_MAX and part.bytes > 0
        )
        if not (is_full or (is_empty and manifest.mode == TRUNCATE)):
            return (
                f"partition {part.partition} of a manifest has {part.chunks} chunks with "
                f"{part.rows} rows and {part.bytes} bytes, which cannot be"
            )
    # Rule 4: what replaces the table reaches every channel, also those that get no rows.
    if manifest.mode == TRUNCATE and len(touched) != partitions:
        return f"a manifest that replaces the table must name all of its {partitions} partitions"
    if manifest.rows != sum(part.rows for part in manifest.parts):
        return f"a manifest with {manifest.rows} rows has parts with another number of them"
    return None
