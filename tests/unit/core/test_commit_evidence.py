"""A leader knows from its commits, without asking, as of when its state is complete (S7.3)."""

from __future__ import annotations

from raftstore.core.events import Stalled
from raftstore.protocol.replication import ReadIndexRequest, StoreAck
from raftstore.types import Role, Seq, Term
from tests.core_bench import CHANNEL, N1, N2, Bench, make_replica, record, term_start


def acked(bench: Bench, seq: int, term: int = 1) -> None:
    """The record is durable at the leader and at one of two followers."""
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(term), Seq(seq)), N2)


def test_committed_record_proves_the_moment_it_was_appended() -> None:
    """S7.3: not the moment of its commit: the acks may have been under way for long, and another
    leader may have been elected and have committed something since they were sent."""
    bench = Bench(make_replica(N1))
    bench.lead()
    acked(bench, 1)
    bench.now_ms = 2_000
    bench.publish(1)
    bench.now_ms = 2_400
    acked(bench, 2)
    assert bench.replica.commit_seq == 2
    assert bench.replica.fresh_as_of(Seq(2)) == 2_000
    assert bench.replica.proven_ms == 2_000


def test_commit_needs_no_round_of_its_own() -> None:
    """A busy leader proves its position all the time, for nothing."""
    bench = Bench(make_replica(N1))
    bench.lead()
    acked(bench, 1)
    assert bench.replica.fresh_as_of(Seq(1)) == 1_000
    assert not [m for e in bench.all_effects for m in bench.sent(ReadIndexRequest, [e])]


def test_records_of_the_past_prove_nothing() -> None:
    """S3.1: they commit with the first of the term, and what that one proves is its own moment."""
    bench = Bench(make_replica(N1, records=[term_start(1, 1), record(2)]))
    bench.now_ms = 5_000
    bench.lead(term=2)
    assert bench.replica.proven_ms is None
    bench.now_ms = 5_300
    acked(bench, 3, term=2)
    assert bench.replica.proven_ms == 5_000


def test_what_was_proven_stays_proven_when_the_role_is_lost() -> None:
    """Given a replica that loses the leadership, its proof stays: what was committed stays so, and
    it serves on within the bound.
    """
    bench = Bench(make_replica(N1))
    bench.lead()
    acked(bench, 1)
    bench.follow(N2, term=2)
    assert bench.replica.role is Role.FOLLOWER
    assert bench.replica.fresh_as_of(Seq(1)) == 1_000


def test_record_from_before_a_stop_does_not_end_the_distrust() -> None:
    """S7.3: its acks may have waited as long as the stop took; one appended since is a proof."""
    bench = Bench(make_replica(N1))
    bench.lead()
    acked(bench, 1)
    bench.publish(1)
    bench.now_ms += 20_000
    bench.do(Stalled())
    acked(bench, 2)
    assert not bench.replica.is_trusting
    assert bench.replica.proven_ms == 1_000
    bench.now_ms += 5
    bench.publish(2)
    acked(bench, 3)
    assert bench.replica.is_trusting
