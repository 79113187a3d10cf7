"""The table machine: rows, conditional writes, and records it must not skip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import CorruptRecordError, StorageError
from raftstore.protocol.payload import encode_conditional, encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import INSERT
from raftstore.record_machine import ApplyResult, DictView, Row
from raftstore.rows.sealing import seal, unseal
from raftstore.state_machines.outcomes import chunk_outcomes
from raftstore.state_machines.row_writes import writes_of
from raftstore.state_machines.table import TableMachine
from raftstore.types import NO_GUID, RecordKind, Seq, Term

MACHINE = TableMachine()
KEYS = st.sampled_from([b"a", b"b", b"c"])


def record(kind: RecordKind, payload: bytes = b"", *, base_seq: int = 1, rows: int = 1) -> Record:
    """A committed record."""
    return Record(Term(1), Seq(base_seq), rows, NO_GUID, 0, bytes(16), kind, payload)


class Rows(dict[bytes, Row]):
    """A table store in its simplest form."""

    def apply(self, committed: Record) -> ApplyResult:
        """Apply one record as a store does; the last write of a key wins."""
        result = MACHINE.apply(committed, DictView(self))
        result = ApplyResult(tuple(result.writes), result.conflict_seq)
        for key, sealed in result.writes:
            if sealed is None:
                self.pop(key, None)
            else:
                self[key] = Row(key, unseal(key, sealed), committed.last_seq)
        return result


def test_rows_are_written_and_deleted_in_order() -> None:
    """Upserts replace, deletes remove, and the last write of a key in a record wins."""
    rows = Rows()
    payload = encode_rows([(b"a", seal(b"a", b"1")), (b"b", seal(b"b", b"2")), (b"a", None)])
    assert rows.apply(record(RecordKind.ROWS, payload, rows=3)).conflict_seq is None
    assert rows == {b"b": Row(b"b", b"2", Seq(3))}


def test_writes_of_gives_the_flat_list_of_the_payload() -> None:
    """Stores may apply rows in bulk without going through pairs."""
    payload = encode_rows([(b"a", seal(b"a", b"1")), (b"b", None)])
    assert writes_of(record(RecordKind.ROWS, payload, rows=2)) == [
        b"a",
        seal(b"a", b"1"),
        b"b",
        None,
    ]


def test_conditional_applies_only_when_the_row_is_the_expected_one() -> None:
    """Compare-and-set: 0 expects absence, n expects the row written at seq n."""
    rows = Rows()
    absent = encode_conditional(b"a", seal(b"a", b"1"), Seq(0))
    assert rows.apply(record(RecordKind.CONDITIONAL, absent, base_seq=5)).conflict_seq is None
    assert rows.apply(record(RecordKind.CONDITIONAL, absent, base_seq=6)).conflict_seq == 5
    stale = encode_conditional(b"a", None, Seq(4))
    assert rows.apply(record(RecordKind.CONDITIONAL, stale, base_seq=7)).conflict_seq == 5
    assert rows[b"a"] == Row(b"a", b"1", Seq(5))
    right = encode_conditional(b"a", None, Seq(5))
    assert rows.apply(record(RecordKind.CONDITIONAL, right, base_seq=8)).conflict_seq is None
    assert rows == {}


def test_conditional_conflict_tells_zero_when_the_row_is_absent() -> None:
    """A lost race against a delete is a conflict as well."""
    payload = encode_conditional(b"a", seal(b"a", b"1"), Seq(3))
    assert Rows().apply(record(RecordKind.CONDITIONAL, payload)).conflict_seq == 0


@pytest.mark.parametrize("kind", [RecordKind.COMMAND, RecordKind.STAGED, RecordKind.BATCH_APPLY])
def test_record_of_an_unknown_kind_stops_the_node(kind: RecordKind) -> None:
    """A record of a newer format is never skipped: that would part the replicas."""
    with pytest.raises(StorageError, match=f"is of kind {kind:d}, .* run a newer version"):
        MACHINE.apply(record(kind), DictView())


@pytest.mark.parametrize("kind", [RecordKind.ROWS, RecordKind.CONDITIONAL])
def test_record_with_a_damaged_payload_stops_the_node(kind: RecordKind) -> None:
    """Given a committed record that cannot be read, the machine raises CorruptRecordError: it is no
    empty record.
    """
    with pytest.raises(CorruptRecordError, match="record 1 of term 1 cannot be applied"):
        MACHINE.apply(record(kind, b"\xc1"), DictView())


WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), min_size=1, max_size=4)
CONDITIONALS = st.tuples(KEYS, st.none() | st.binary(max_size=3), st.integers(0, 12))


@given(st.lists(WRITES | CONDITIONALS, max_size=8))
def test_rows_are_those_of_a_dict_with_seqs_when_any_records_are_applied(steps: list) -> None:
    """The machine and a dictionary of (value, seq) agree after every record."""
    rows, model, seq = Rows(), {}, 1
    for step in steps:
        if isinstance(step, list):
            cells = [(key, None if value is None else seal(key, value)) for key, value in step]
            committed = record(RecordKind.ROWS, encode_rows(cells), base_seq=seq, rows=len(step))
            for key, value in step:
                _model_write(model, key, value, committed.last_seq)
        else:
            key, value, expected = step
            sealed = None if value is None else seal(key, value)
            payload = encode_conditional(key, sealed, Seq(expected))
            committed = record(RecordKind.CONDITIONAL, payload, base_seq=seq)
            if model.get(key, (b"", 0))[1] == expected:
                _model_write(model, key, value, committed.last_seq)
        rows.apply(committed)
        seq = committed.last_seq + 1
        assert {key: (row.value, row.seq) for key, row in rows.items()} == model


def _model_write(model: dict, key: bytes, value: bytes | None, seq: int) -> None:
    if value is None:
        model.pop(key, None)
    else:
        model[key] = (value, seq)


def test_a_condition_is_decided_by_rows_before_it() -> None:
    """S10: of a later row every replica would have to know the same."""
    condition = record(RecordKind.CONDITIONAL, encode_conditional(b"a", None, Seq(0)), base_seq=3)
    with pytest.raises(AssertionError, match="the condition at seq 3 is decided by a row of 3"):
        MACHINE.apply(condition, DictView({b"a": Row(b"a", b"1", Seq(3))}))


def test_staged_rows_lead_to_no_more_rows_than_they_are() -> None:
    """S10: readers of the changes are shown one for each at most."""
    with pytest.raises(AssertionError, match="1 staged rows led to 2"):
        chunk_outcomes(9, 0, INSERT, [b"a", b"1"], [(b"a", b"1"), (b"b", b"2")])
