"""Many rows: which record each goes into, and what is reported when records end differently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.position import Position
from raftstore.client.results import WriteAck
from raftstore.client.settings import REQUEST_BYTES_MAX, REQUEST_ROWS_MAX
from raftstore.client.writes.chunks import Chunk, Pair, failure_of, split, summarise
from raftstore.errors import OverloadedError, PartialWriteError, QuorumTimeoutError, RequestError
from raftstore.rows.partitioner import partition_of
from raftstore.types import Outcome, Seq, Term

UUID = b"u" * 16
KEYS = st.binary(min_size=1, max_size=3)
PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=4))), max_size=60)


def ack(partition: int, seq: int, rows: int = 1) -> WriteAck:
    position = Position.at(UUID, partition, Term(1), Seq(seq))
    return WriteAck(position, partition, Seq(seq), Term(1), rows, "fsync", 2)


@given(PAIRS, st.integers(1, 5))
def test_split_keeps_the_last_value_of_every_key_in_its_partition(
    pairs: list[Pair], partitions: int
) -> None:
    """Every key is written once, with its last value, to the partition of the partitioner."""
    chunks = split(pairs, partitions)
    written = [pair for chunk in chunks for pair in chunk.pairs]
    assert len({key for key, _ in written}) == len(written)
    assert dict(written) == dict(pairs)
    for chunk in chunks:
        assert chunk.pairs
        assert {partition_of(key, partitions) for key, _ in chunk.pairs} == {chunk.partition}


@pytest.mark.parametrize(
    ("rows", "value_bytes", "chunks"),
    [(REQUEST_ROWS_MAX, 1, 1), (REQUEST_ROWS_MAX + 1, 1, 2), (4, REQUEST_BYTES_MAX // 3, 2)],
)
def test_split_bounds_rows_and_bytes_of_a_record(rows: int, value_bytes: int, chunks: int) -> None:
    """A record holds at most 1000 rows or 1 MiB."""
    pairs: list[Pair] = [(b"%d" % n, b"v" * value_bytes) for n in range(rows)]
    assert len(split(pairs, 1)) == chunks


def test_split_lets_a_large_row_be_a_record_of_its_own() -> None:
    """A row above the bound of a record is still written."""
    pairs: list[Pair] = [(b"a", b""), (b"b", b"v" * REQUEST_BYTES_MAX), (b"c", b"")]
    assert [len(chunk.pairs) for chunk in split(pairs, 1)] == [1, 1, 1]


def test_summary_adds_up_and_groups_by_partition() -> None:
    """Acks of all records become one position and one count."""
    summary = summarise([ack(0, 5, 5), ack(1, 2, 2), ack(0, 9, 4)])
    assert summary.rows == 11
    assert summary.position.seq_of(UUID, 0) == 9
    assert summary.position.seq_of(UUID, 1) == 2
    assert [one.seq for one in summary.by_partition()[0]] == [5, 9]


def test_failure_names_rows_by_what_became_of_them() -> None:
    """Applied, not applied and unknown rows are distinguished by the caller's numbers."""
    chunks = [
        Chunk(0, ((b"a", b"1"),)),
        Chunk(1, ((b"b", b"1"),)),
        Chunk(2, ((b"c", b"1"),)),
        Chunk(1, ((b"d", b"1"),)),
    ]
    results = [ack(0, 1), QuorumTimeoutError("slow"), OverloadedError("full"), None]
    error = failure_of([b"a", b"b", b"c", b"d", b"a"], list(zip(chunks, results, strict=True)))
    assert isinstance(error, PartialWriteError)
    assert (error.applied, error.not_applied, error.unknown) == ([0, 4], [2, 3], [1])
    assert error.outcome is Outcome.UNKNOWN
    assert "partition 1: slow" in str(error)
    assert "partition 2: full" in str(error)


@pytest.mark.parametrize("error", [OverloadedError("full"), QuorumTimeoutError("slow")])
def test_failure_is_the_error_itself_when_all_rows_ended_alike(error: RequestError) -> None:
    """Where nothing differs there is nothing partial."""
    chunks = [Chunk(0, ((b"a", b"1"),)), Chunk(1, ((b"b", b"1"),))]
    assert failure_of([b"a", b"b"], [(chunk, error) for chunk in chunks]) is error
