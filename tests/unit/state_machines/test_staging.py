"""Staged chunks in one channel: kept, dropped, applied along the chain, and written by mode."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.nesting import LEVELS_MAX
from raftstore.protocol.records import Record
from raftstore.protocol.staged import BatchApply, ChunkHeader, encode_apply
from raftstore.record_machine import ApplyResult, DictView, Row, StateReader
from raftstore.state_machines.batches.staging import (
    MERGED_BYTES_MAX,
    AppliedBatch,
    ApplyPlan,
    BatchHead,
    Broken,
    Known,
    NotYet,
    judge_apply,
    live_chunks,
    merge_values,
    oldest,
    part_of,
    plan_apply,
    seqs_of,
    stage,
    staged_of,
)
from raftstore.state_machines.batches.txn_records import Close, Drop, encode_step
from raftstore.state_machines.state_keys import applied_batch_key, unpacked
from raftstore.state_machines.table import TableMachine
from raftstore.types import RecordKind, Seq
from tests.batch_bench import ChannelBench, Log, hash_of

packed = msgspec.msgpack.encode


def header(
    attempt: int = 1, task: int = 0, run: int = 7, number: int = 0, mode: int = 0, writer: str = "w"
) -> ChunkHeader:
    """A chunk's name, with what a test is about."""
    return ChunkHeader(writer, attempt, task, run, number, mode)


def decided(
    bench: ChannelBench,
    n: int,
    prev: int = 0,
    *,
    attempt: int = 1,
    winners: tuple[tuple[int, int], ...] = ((0, 7),),
    mode: int = 0,
    writer: str = "w",
) -> BatchApply:
    """The commit that lists what these task attempts have staged in the channel."""
    refs = [
        ref
        for ref in bench.refs(writer)
        if ref.attempt == attempt and (ref.partition_id, ref.task_attempt_id) in winners
    ]
    part = part_of(bench.partition, refs)
    return BatchApply(n, prev, writer, n, attempt, mode, winners, part, (n, 0), 1_000)


# --- staging and dropping -------------------------------------------------------------------------


def test_staged_rows_are_remembered_and_not_visible() -> None:
    """S4.2: what is not committed is in no read."""
    bench = ChannelBench()
    record = bench.stage(header(), [(b"a", b"1"), (b"b", None)])
    (ref,) = bench.refs()
    assert (ref.base_seq, ref.last_seq, ref.rows) == (1, 2, 2)
    assert (ref.size, ref.digest) == (len(record.payload), record.digest)
    assert bench.rows == {}


def test_chunk_staged_again_stays_as_it_came_first() -> None:
    """A retry under another guid changes nothing, whatever it holds: the check decides later."""
    bench = ChannelBench()
    bench.stage(header(), [(b"a", b"1")])
    before = bench.state.items()
    bench.stage(header(), [(b"a", b"1")])
    bench.stage(header(), [(b"a", b"other")])
    assert bench.state.items() == before
    bench.stage(header(number=1), [(b"a", b"2")])
    assert len(bench.refs()) == 2


@pytest.mark.parametrize("payload", [b"", b"\x00\x01\xc1"])
def test_chunk_that_cannot_be_read_stops_the_node(payload: bytes) -> None:
    """S0.4: the leader checks before it sequences, so this is damage."""
    bench = ChannelBench()
    with pytest.raises(CorruptRecordError, match="cannot be applied"):
        stage(bench.log.record(RecordKind.STAGED, payload), bench.state)


def test_drop_takes_attempts_of_one_writer_up_to_the_floor() -> None:
    """Rule 6: garbage goes by the coordinator's word, and only what it is about."""
    bench = ChannelBench()
    for attempt in (1, 2, 3):
        bench.stage(header(attempt), [(b"a", b"1")])
        bench.stage(header(attempt, writer="v"), [(b"a", b"1")])
    bench.drop("w", 2)
    assert [ref.attempt for ref in bench.refs("w")] == [3]
    assert [ref.attempt for ref in bench.refs("v")] == [1, 2, 3]
    bench.drop("w", 1)
    bench.drop("nobody", 9)
    assert len(bench.all_chunks()) == 4


def test_oldest_names_each_writer_once_with_its_lowest_attempt() -> None:
    """The channel asks for every writer that has something here, however many chunks there are."""
    bench = ChannelBench()
    for number in range(5):
        bench.stage(header(4, number=number, writer="u"), [(b"a", b"1")])
        bench.stage(header(3 + number, writer="v"), [(b"a", b"1")])
    bench.stage(header(9), [(b"a", b"1")])
    found = {ref.writer: ref.attempt for ref in oldest(bench.state, 10)}
    assert found == {"u": 4, "v": 3, "w": 9}
    assert len(oldest(bench.state, 2)) == 2
    assert oldest(ChannelBench().state, 2) == []


def test_live_chunks_are_listed_in_pages() -> None:
    """A new leader counts what is staged without holding up its node."""
    bench = ChannelBench()
    for number in range(5):
        bench.stage(header(number=number), [(b"a", b"1")])
    page = live_chunks(bench.state, b"", 3)
    rest = live_chunks(bench.state, page[-1].key, 3)
    assert [ref.number for ref in (*page, *rest)] == [0, 1, 2, 3, 4]


# --- the guards of APPLY --------------------------------------------------------------------------

APPLY_TABLE = [
    # (n, prev, whether what it lists is here) against a channel that has applied commit 4.
    ("applied, wrong chain, missing", (4, 1, False), Known),
    ("older, wrong chain, missing", (2, 1, False), Known),
    ("applied", (4, 2, True), Known),
    ("not in chain, missing", (6, 5, False), NotYet),
    ("not in chain, here", (6, 2, True), NotYet),
    ("in chain, missing", (6, 4, False), Broken),
    ("in chain, here", (6, 4, True), tuple),
]


@pytest.mark.parametrize(
    ("asked", "expected"), [row[1:] for row in APPLY_TABLE], ids=[row[0] for row in APPLY_TABLE]
)
def test_apply_table(asked: tuple[int, int, bool], expected: type) -> None:
    """First matching line wins; leader and feed decide by the same function."""
    n, prev, is_here = asked
    bench = ChannelBench()
    bench.stage(header(), [(b"a", b"1")])
    batch = decided(bench, n, prev, winners=((0, 7),))
    refs = bench.refs() if is_here else []
    head = BatchHead(4, 9, (4, 0))
    judged = judge_apply(batch, head, refs)
    assert isinstance(judged, expected)
    if isinstance(judged, Known | NotYet):
        assert judged.applied == 4


@pytest.mark.parametrize("change", ["chunks", "rows", "bytes", "check"])
def test_chunks_that_are_not_those_of_the_manifest_break_the_channel(change: str) -> None:
    """I1: decided rows that are not here are never passed over, on any replica."""
    bench = ChannelBench()
    bench.stage(header(), [(b"a", b"1")])
    batch = decided(bench, 1)
    part = msgspec.structs.replace(batch.part, **{change: getattr(batch.part, change) + 1})
    found = bench.apply(msgspec.structs.replace(batch, part=part))
    assert isinstance(found, Broken)
    assert "commit 1 lists" in found.reason
    assert (bench.rows, bench.head.n, len(bench.refs())) == ({}, 0, 1)


@pytest.mark.parametrize(
    "late", [header(number=0), header(task=0, number=0)], ids=["number", "task"]
)
def test_late_chunk_does_not_displace_a_listed_one(late: ChunkHeader) -> None:
    """I1: a part is the first chunks in the log; a later one may come before them by its key."""
    bench = ChannelBench()
    bench.stage(header(task=1, number=1), [(b"a", b"listed")])
    batch = decided(bench, 1, winners=((0, 7), (1, 7)))
    assert batch.part.chunks == 1
    bench.stage(late, [(b"a", b"late")])
    told = staged_of("w", 1, batch.winners, batch.part, bench.state)
    assert told == batch.part, "what was confirmed once stays so"
    assert isinstance(bench.apply(batch), ApplyPlan)
    assert bench.values() == {b"a": b"listed"}


def test_chunk_that_came_again_with_other_rows_is_noticed_by_its_check() -> None:
    """Given a chunk that was staged with other rows than the commit names, the check breaks the
    channel instead of applying them.
    """
    bench, other = ChannelBench(), ChannelBench()
    bench.stage(header(), [(b"a", b"1")])
    other.stage(header(), [(b"a", b"2")])
    assert isinstance(bench.apply(decided(other, 1)), Broken)


def test_check_does_not_depend_on_the_order_of_chunks() -> None:
    """Tasks come back in any order; a channel reads its chunks in the order of their keys."""
    bench = ChannelBench()
    for number in range(4):
        bench.stage(header(number=number), [(b"%d" % number, b"1")])
    refs = bench.refs()
    assert part_of(0, refs) == part_of(0, reversed(refs))
    total = sum(int.from_bytes(ref.digest[:8], "big") for ref in refs)
    assert part_of(0, refs).check == total % 2**64
    assert hash_of(bench.records[1].payload) == int.from_bytes(refs[0].digest[:8], "big")


def test_apply_makes_only_winners_visible_and_drops_the_rest() -> None:
    """Losers of speculation, earlier attempts and replays never show; later attempts stay."""
    bench = ChannelBench()
    bench.stage(header(1), [(b"old", b"attempt")])
    bench.stage(header(2, run=6), [(b"first", b"speculation")])
    bench.stage(header(2), [(b"a", b"1")])
    bench.stage(header(2, run=8), [(b"lost", b"speculation")])
    bench.stage(header(2, task=1, run=9), [(b"denied", b"commit")])
    bench.stage(header(3), [(b"next", b"attempt")])
    bench.stage(header(1, writer="v"), [(b"other", b"writer")])
    plan = bench.apply(decided(bench, 1, attempt=2))
    assert isinstance(plan, ApplyPlan)
    assert bench.values() == {b"a": b"1"}
    assert sorted((ref.writer, ref.attempt) for ref in bench.all_chunks()) == [("v", 1), ("w", 3)]


def test_apply_remembers_commit_vector_and_chunks() -> None:
    """Readers get the vector with the state; the change feed finds the rows by the record's seq."""
    bench = ChannelBench()
    first = bench.stage(header(number=0), [(b"a", b"1"), (b"b", b"2")])
    second = bench.stage(header(number=1), [(b"c", b"3")])
    plan = bench.apply(decided(bench, 1))
    assert isinstance(plan, ApplyPlan)
    last_seq = bench.log.seq
    assert bench.head == BatchHead(1, last_seq, (1, 0))
    stored = bench.state.get(applied_batch_key(last_seq))
    assert stored is not None
    done = unpacked(stored, AppliedBatch)
    assert done.chunks == ((1, first.last_seq), (3, second.last_seq))
    assert (done.n, done.writer, done.batch_id, done.attempt, done.rows) == (1, "w", 1, 1, 3)
    assert {row.seq for row in bench.rows.values()} == {last_seq}


def test_replacing_batch_deletes_what_was_there() -> None:
    """Overwrite: the old rows and the new ones change places in one step."""
    bench = ChannelBench()
    bench.rows[b"old"] = Row(b"old", b"1", Seq(1))
    bench.stage(header(), [(b"new", b"2")])
    plan = bench.apply(decided(bench, 1, mode=1))
    assert isinstance(plan, ApplyPlan)
    assert plan.truncate
    assert bench.values() == {b"new": b"2"}
    bench.apply(decided(bench, 2, 1, mode=1, winners=()))
    assert bench.values() == {}


def test_batch_that_is_applied_again_changes_nothing() -> None:
    """A second record of the same commit is as if it were not there (rule 4)."""
    bench = ChannelBench()
    bench.stage(header(), [(b"a", b"1")])
    batch = decided(bench, 1)
    bench.apply(batch)
    bench.rows[b"a"] = Row(b"a", b"put later", Seq(99))
    before = bench.state.items()
    assert bench.apply(batch) == Known(1)
    assert (bench.values(), bench.state.items()) == ({b"a": b"put later"}, before)


@pytest.mark.parametrize(
    ("rows", "seqs"), [(0, 1), (1, 1), (2, 2), (65_536, 65_536), (65_537, 65_536), (10**9, 65_536)]
)
def test_seqs_of_a_batch_are_its_rows_as_far_as_a_record_can_hold(rows: int, seqs: int) -> None:
    """Lag in rows stays honest: a batch that is not applied counts with its rows."""
    assert seqs_of(rows) == seqs


@pytest.mark.parametrize(
    ("payload", "error"),
    [(b"", CorruptRecordError), (b"\x01\xc0", CorruptRecordError), (b"\x02", NewerFormatError)],
)
def test_decided_batch_that_cannot_be_read_stops_the_node(
    payload: bytes, error: type[Exception]
) -> None:
    """S0.4: skipping it would part this replica from the others."""
    with pytest.raises(error):
        plan_apply(Log().record(RecordKind.BATCH_APPLY, payload), BatchHead(), [])


def test_table_machine_applies_staged_and_txn_records_only() -> None:
    """BATCH_APPLY takes its rows from other records, so it is not a matter of one record."""
    machine, bench = TableMachine(), ChannelBench()

    def applied(record: Record, state: StateReader) -> ApplyResult:
        view = DictView(bench.rows)
        view.state = state
        return machine.kinds().get(record.kind, machine).apply(record, view)

    staged = bench.stage(header(), [(b"a", b"1")])
    fresh = ChannelBench().state
    result = applied(staged, fresh)
    assert [key for key, _ in result.state_writes] == [ref.key for ref in bench.refs()]
    assert (tuple(result.writes), result.answer) == ((), None)
    txn = bench.log.record(RecordKind.TXN, encode_step(Close("w", 1)))
    assert applied(txn, fresh).answer is not None
    dropped = bench.log.record(RecordKind.TXN, encode_step(Drop("w", 1)))
    result = applied(dropped, bench.state)
    assert list(result.state_writes) == [(bench.refs()[0].key, None)]
    for kind in (RecordKind.BATCH_APPLY, RecordKind.COMMAND):
        with pytest.raises(NewerFormatError, match="run a newer version"):
            applied(bench.log.record(kind, b""), fresh)


# --- how rows are written -------------------------------------------------------------------------

OLD = {b"a": packed([1, 2]), b"b": packed([3, 4])}
NEW: list[tuple[bytes, bytes | None]] = [
    (b"a", packed([None, 9])),
    (b"b", None),
    (b"c", packed([None, 7])),
]
MODE_TABLE = [
    (0, {b"a": [None, 9], b"c": [None, 7]}),
    (1, {b"a": [1, 2], b"b": [3, 4], b"c": [None, 7]}),
    (2, {b"a": [1, 9], b"c": [None, 7]}),
]


@pytest.mark.parametrize(("mode", "expected"), MODE_TABLE, ids=["upsert", "insert", "merge"])
def test_mode_table(mode: int, expected: dict[bytes, Any]) -> None:
    """Upserts replace and delete, inserts leave what is there, merges keep columns."""
    bench = ChannelBench()
    for key, value in OLD.items():
        bench.rows[key] = Row(key, value, Seq(1))
    bench.stage(header(mode=mode), NEW)
    bench.apply(decided(bench, 1))
    assert {key: msgspec.msgpack.decode(value) for key, value in bench.values().items()} == expected


@pytest.mark.parametrize(
    ("present", "update", "expected"),
    [
        ([1, 2, 3], [None, 5], [1, 5, 3]),
        ([1], [None, None, 7], [1, None, 7]),
        ([], [None], [None]),
        ({"a": 1, "b": 2}, {"a": None, "c": 3, "d": None}, {"a": 1, "b": 2, "c": 3, "d": None}),
        ([1], {"a": 1}, {"a": 1}),
        ({"a": 1}, [1], [1]),
        ([None, [1, None]], [2, None], [2, [1, None]]),
    ],
)
def test_merge_keeps_columns_where_the_update_has_none(
    present: object, update: object, expected: object
) -> None:
    """No column is decoded: lists by position, maps by name, anything else is replaced."""
    merged = merge_values(packed(present), packed(update))
    assert msgspec.msgpack.decode(merged) == expected


def test_merge_of_what_is_no_row_value_takes_the_update() -> None:
    """A value that some other program wrote is replaced, not a reason to stop."""
    assert merge_values(b"\xc1", packed([1])) == packed([1])
    assert merge_values(b"", packed({"a": 1})) == packed({"a": 1})


def test_merge_of_names_that_are_no_texts_takes_the_update() -> None:
    """No value that a client wrote may stop the replicas that come to it (S10)."""
    named, update = b"\x81\xa1\xff\x01", packed({"a": 1})
    assert merge_values(named, update) == update
    assert merge_values(update, named) == named


@pytest.mark.parametrize("levels", [10, 127, 128, 900, 100_000])
def test_merge_looks_into_so_many_levels_for_all_callers(levels: int) -> None:
    """S10: a decoder that calls itself gives up earlier on one replica than on another."""
    deep = b"\x91" * levels + b"\xc0"
    assert merge_values(deep, packed([1])) == packed([1])
    assert merge_values(packed([1]), deep) == deep
    assert merge_values(deep, b"\x91\xc0") == (deep if levels <= LEVELS_MAX else b"\x91\xc0")


def test_merge_that_would_grow_without_end_takes_the_update() -> None:
    """Each batch could add columns until no reader can be sent the row."""
    half = {"a": b"x" * (MERGED_BYTES_MAX // 2)}
    other = {"b": b"y" * (MERGED_BYTES_MAX // 2)}
    assert merge_values(packed(half), packed({"b": 1})) == packed(half | {"b": 1})
    assert merge_values(packed(half), packed(other)) == packed(other)


def test_merge_sees_what_earlier_rows_of_its_chunk_wrote() -> None:
    """Two rows of one key in one task are merged in their order."""
    bench = ChannelBench()
    bench.rows[b"a"] = Row(b"a", packed([0, 0, 0]), Seq(1))
    bench.stage(
        header(mode=2),
        [(b"a", packed([1, None])), (b"a", packed([None, 2])), (b"b", packed([5])), (b"b", None)],
    )
    bench.apply(decided(bench, 1))
    assert bench.values() == {b"a": packed([1, 2, 0])}


def test_of_two_tasks_with_one_key_the_higher_partition_wins() -> None:
    """The same on every replica and in every replay of the same partitioning."""
    bench = ChannelBench()
    bench.stage(header(task=1, run=5), [(b"a", b"from task 1")])
    bench.stage(header(task=0, run=9, number=1), [(b"a", b"from task 0")])
    bench.stage(header(task=0, run=9, number=0), [(b"b", b"first"), (b"a", b"never")])
    bench.apply(decided(bench, 1, winners=((0, 9), (1, 5))))
    assert bench.values() == {b"a": b"from task 1", b"b": b"first"}


KEYS = st.sampled_from([b"a", b"b"])
COLUMN = st.one_of(st.none(), st.integers(1, 9))
VALUES = st.one_of(st.none(), st.tuples(COLUMN, COLUMN).map(packed))
CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2]), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=4,
)


WRITES: list[tuple[int, bytes | None]] = [
    (0, packed([1, 1])),
    (0, None),
    (1, packed([2, 2])),
    (1, None),
    (2, packed([None, 3])),
    (2, packed([4, None])),
    (2, None),
]
"""What a chunk may do to a key, in each mode."""


def written(
    before: bytes | None, chunks: tuple[tuple[int, bytes | None], ...], stops: tuple[int, ...]
) -> dict[bytes, bytes]:
    """The row of one key once these chunks are written, stopped after so many of them and begun
    again."""
    bench = ChannelBench()
    bench.log.seq = 1
    if before is not None:
        bench.rows[b"a"] = Row(b"a", before, Seq(1))
    for number, (mode, value) in enumerate(chunks):
        bench.stage(header(number=number, mode=mode), [(b"a", value)])
    record, plan = bench.plan(decided(bench, 1))
    assert isinstance(plan, ApplyPlan)
    for count in stops:
        bench.write_rows(record, plan, chunks=count)
    bench.write_rows(record, plan)
    return bench.values()


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, packed([8, 9])], ids=["absent", "present"])
def test_batch_that_is_written_again_after_a_stop_ends_the_same(before: bytes | None) -> None:
    """A crash between two writes of a batch is followed by all of them, in every mode."""
    for count in (1, 2, 3):
        for chunks in product(WRITES, repeat=count):
            whole = written(before, chunks, ())
            for stop in range(1, count + 1):
                assert written(before, chunks, (stop,)) == whole, (chunks, stop)


def test_of_two_inserted_rows_with_one_key_the_last_stays() -> None:
    """Given two inserts of one key in a batch, the last one stays; a row from before the batch
    stays instead of both.
    """
    insert = (1, packed([1, 1])), (1, packed([2, 2]))
    assert written(None, insert, (1,)) == {b"a": packed([2, 2])}
    assert written(packed([8, 9]), insert, (1,)) == {b"a": packed([8, 9])}


@given(chunks=CHUNKS, data=st.data())
def test_channels_with_the_same_log_hold_the_same(
    chunks: list[tuple[int, list[tuple[bytes, bytes | None]]]], data: st.DataObject
) -> None:
    """S10: everything is a function of the log, whatever else a replica did in between."""
    logged: list[Record] = []
    one = ChannelBench()
    for number, (mode, rows) in enumerate(chunks):
        attempt = data.draw(st.integers(1, 3))
        logged.append(one.stage(header(attempt, number=number, mode=mode), rows))
    other = ChannelBench()
    for record in logged:
        other.state.write(stage(record, other.state))
        oldest(other.state, 3)
    assert other.state.items() == one.state.items()


def test_batches_are_applied_in_the_order_of_the_log() -> None:
    """S10: the seq of the newest one rises with its number."""
    bench = ChannelBench()
    bench.stage(header(), [(b"a", b"1")])
    record = Log().record(RecordKind.BATCH_APPLY, encode_apply(decided(bench, 1)))
    with pytest.raises(AssertionError, match="commit 1 would be applied at seq 1 behind BatchHead"):
        plan_apply(record, BatchHead(0, 1), bench.refs())
