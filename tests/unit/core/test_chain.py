"""Chain hashes stand for whole histories (S13)."""

from __future__ import annotations

from raftstore.core.chain import CHAIN_START, ChainHashes
from raftstore.protocol.records import Record
from raftstore.types import Seq
from tests.core_world import record


def chain_of(records: list[Record], committed_max: int = 8) -> ChainHashes:
    """Hashes of a log."""
    chain = ChainHashes(committed_max)
    for stored in records:
        chain.append(stored)
    return chain


def test_chain_is_equal_for_equal_logs_and_differs_for_any_difference() -> None:
    """S13: term, guid or payload changed anywhere below changes every hash above."""
    log = [record(1), record(2), record(3)]
    same = chain_of(log).at(3)
    assert same == chain_of(list(log)).at(3)
    assert same != chain_of([record(1), record(2, payload=b"other"), record(3)]).at(3)
    assert same != chain_of([record(1), record(2, counter=9), record(3)]).at(3)
    assert same != chain_of([record(1), record(2, term=2), record(3, term=2)]).at(3)


def test_chain_answers_only_at_record_boundaries() -> None:
    """A hash belongs to the last seq of a record."""
    chain = chain_of([record(1, rows=3), record(4)])
    assert chain.at(0) == CHAIN_START
    assert chain.at(2) is None
    assert chain.at(3) is not None
    assert chain.at(5) is None


def test_chain_after_truncation_goes_on_as_if_never_longer() -> None:
    """Truncated records leave no trace in the hashes that follow."""
    chain = chain_of([record(1), record(2), record(3)])
    chain.truncate(Seq(2))
    chain.append(record(2, term=2))
    assert chain.at(2) == chain_of([record(1), record(2, term=2)]).at(2)
    assert chain.at(3) is None


def test_committed_hashes_go_when_there_are_more_than_twice_as_many() -> None:
    """The newest ones stay; hashes that are not committed do not count."""
    chain = chain_of([record(seq) for seq in range(1, 9)], committed_max=4)
    for commit_seq in (5, 7):
        chain.commit(Seq(commit_seq))
        assert len(chain) == 9
    chain.commit(Seq(8))
    assert [seq for seq in range(9) if chain.at(seq) is not None] == [5, 6, 7, 8]


def test_chain_keeps_a_bounded_window_below_the_commit_seq() -> None:
    """Committed hashes are bounded; uncommitted ones are all kept."""
    chain = ChainHashes(4)
    for seq in range(1, 101):
        chain.append(record(seq))
        chain.commit(Seq(seq))
        assert len(chain) <= 9
        assert chain.at(seq) is not None
    for seq in range(101, 121):
        chain.append(record(seq))
        chain.commit(Seq(100))
    assert all(chain.at(seq) is not None for seq in range(100, 121))
    assert chain.at(50) is None


def test_chain_keeps_every_uncommitted_hash_however_few_are_committed() -> None:
    """Given a long uncommitted tail behind a short committed prefix, no hash is forgotten."""
    chain = chain_of([record(seq) for seq in range(1, 31)], committed_max=8)
    for commit_seq in range(31):
        chain.commit(Seq(commit_seq))
        kept = range(max(0, commit_seq - 7), 31)
        assert all(chain.at(seq) is not None for seq in kept)
    assert chain.at(30) == chain_of([record(seq) for seq in range(1, 31)], 100).at(30)
