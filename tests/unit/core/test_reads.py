"""Linearizable reads: confirmed after they came, at a seq that is applied (S7.1)."""

from __future__ import annotations

from typing import Any

from raftstore.config import ReplicationSettings
from raftstore.core.effects import ReadReady, ReadRefused
from raftstore.core.events import Applied, ReadRequested, RoleChanged
from raftstore.protocol.replication import ReadIndexReply, ReadIndexRequest, StoreAck
from raftstore.types import ChannelConfig, NodeId, Role, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, Bench, make_replica

JOINT = ChannelConfig(((N1, N2, N3), (N1, NodeId("n4"), NodeId("n5"))))


def leading(**options: Any) -> Bench:
    """A leader of term 1 whose term-start record is committed and applied."""
    bench = Bench(make_replica(N1, **options))
    bench.lead()
    bench.persist()
    for node in bench.replica.config().voters[1:]:
        bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), node)
    bench.do(Applied(Seq(1)))
    return bench


def reply(round_id: int, term: int = 1) -> ReadIndexReply:
    """A voter's confirmation."""
    return ReadIndexReply(CHANNEL, Term(term), round_id)


def test_read_is_ready_once_a_quorum_confirmed_the_term() -> None:
    """S7.1: leader and one voter of three confirm; the read is answered at the commit seq.

    Shows GAP-06, KLIP-13.
    """
    bench = leading()
    bench.do(ReadRequested(1))
    assert [(m.round_id, m.term) for m in bench.sent(ReadIndexRequest)] == [(1, 1), (1, 1)]
    assert bench.receive(reply(1), N2) == [ReadReady(1, Seq(1))]


def test_leader_alone_confirms_nothing() -> None:
    """S7.1: without a quorum there is no answer, however long it takes, only a refusal."""
    bench = leading()
    bench.do(ReadRequested(1))
    effects = bench.wait(1_000)
    assert bench.of(ReadReady, effects) == []
    (refused,) = bench.of(ReadRefused, effects)
    assert (refused.token, refused.error.code) == (1, "unavailable")


def test_confirmations_of_another_round_or_outsider_do_not_count() -> None:
    """S7.1: a round started before the read, a repeated reply or a learner proves nothing."""
    bench = leading(config=ChannelConfig(((N1, N2, N3),), learners=(NodeId("n4"),)))
    bench.do(ReadRequested(1))
    assert bench.receive(reply(7), N2) == []
    assert bench.receive(reply(1), NodeId("n4")) == []
    assert bench.receive(reply(1, term=0), N2) == []
    assert bench.receive(reply(1), N3) == [ReadReady(1, Seq(1))]


def test_read_joins_only_a_round_that_starts_after_it_came() -> None:
    """S7.1: a read that arrives during a round waits for the next one."""
    bench = leading()
    bench.do(ReadRequested(1))
    bench.do(ReadRequested(2))
    bench.do(ReadRequested(3))
    assert bench.sent(ReadIndexRequest) == []
    effects = bench.receive(reply(1), N2)
    assert bench.of(ReadReady, effects) == [ReadReady(1, Seq(1))]
    assert {m.round_id for m in bench.sent(ReadIndexRequest)} == {2}
    assert bench.receive(reply(1), N3) == []
    assert bench.receive(reply(2), N3) == [ReadReady(2, Seq(1)), ReadReady(3, Seq(1))]


def test_joint_configuration_needs_both_majorities() -> None:
    """S7.1: while voters change, both sets must confirm."""
    bench = leading(config=JOINT)
    bench.do(ReadRequested(1))
    assert bench.receive(reply(1), N2) == []
    assert bench.receive(reply(1), NodeId("n5")) == [ReadReady(1, Seq(1))]


def test_new_leader_answers_no_read_before_it_committed_in_its_term() -> None:
    """S7.1: until then it does not know what is committed, however many confirm."""
    bench = Bench(make_replica(N1))
    bench.lead()
    assert bench.do(ReadRequested(1)) == []
    assert not bench.replica.leader_is_ready
    bench.persist()
    effects = bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    assert len(bench.sent(ReadIndexRequest, effects)) == 2
    assert bench.replica.leader_is_ready
    assert bench.of(ReadReady, bench.receive(reply(1), N2)) == []
    assert bench.do(Applied(Seq(1))) == [ReadReady(1, Seq(1))]


def test_read_waits_until_its_seq_is_applied() -> None:
    """S7.1: the answer comes from state that has applied the read's seq."""
    bench = leading()
    bench.publish(1)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N2)
    bench.do(ReadRequested(1))
    assert bench.of(ReadReady, bench.receive(reply(1), N2)) == []
    assert bench.do(Applied(Seq(2))) == [ReadReady(1, Seq(2))]


def test_unconfirmed_round_is_repeated_to_those_who_did_not_answer() -> None:
    """A lost confirmation request is sent again under the same round."""
    bench = leading()
    bench.do(ReadRequested(1))
    repeated = bench.sent(ReadIndexRequest, bench.wait(100))
    assert [m.round_id for m in repeated] == [1, 1]
    assert bench.receive(reply(1), N3) == [ReadReady(1, Seq(1))]


def test_deposed_leader_answers_no_read() -> None:
    """S1.4: waiting reads are refused with the role; late confirmations change nothing."""
    bench = leading()
    bench.do(ReadRequested(1))
    bench.do(ReadRequested(2))
    effects = bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2))
    assert [(e.token, e.error.code) for e in bench.of(ReadRefused, effects)] == [
        (1, "not_leader"),
        (2, "not_leader"),
    ]
    assert bench.receive(reply(1), N2) == []


def test_paused_leader_that_wakes_up_confirms_nothing_stale() -> None:
    """A leader deposed without knowing it gets no confirmations, so it answers no read."""
    bench = leading()
    bench.do(ReadRequested(1))
    voter = Bench(make_replica(N2))
    voter.follow(N3, term=2)
    voter.receive(bench.sent(ReadIndexRequest)[0], N1)
    assert voter.sent(ReadIndexReply) == []


def test_follower_refuses_linearizable_reads_with_a_reason() -> None:
    """Only the leader answers them; without a known leader nobody does."""
    bench = Bench(make_replica(N1))
    (refused,) = bench.do(ReadRequested(1))
    assert isinstance(refused, ReadRefused)
    assert refused.error.code == "no_leader"
    bench.follow(N2)
    (refused,) = bench.do(ReadRequested(2))
    assert isinstance(refused, ReadRefused)
    assert refused.error.code == "not_leader"


def test_voter_confirms_only_its_own_leader_and_a_durable_term() -> None:
    """S0.5, S7.1: a term that a crash could take back is not confirmed before it is durable."""
    voter = Bench(make_replica(N2))
    voter.do(RoleChanged(Term(3), Role.FOLLOWER, N1))
    assert voter.receive(ReadIndexRequest(CHANNEL, Term(3), 4), N1) == []
    assert voter.receive(ReadIndexRequest(CHANNEL, Term(3), 5), N3) == []
    voter.persist(0, term=3)
    assert [m.round_id for m in voter.sent(ReadIndexReply)] == [4]


def test_single_replica_confirms_itself() -> None:
    """One voter is its own quorum."""
    bench = leading(config=ChannelConfig(((N1,),)))
    assert bench.do(ReadRequested(1)) == [ReadReady(1, Seq(1))]


def test_reads_beyond_the_limit_are_refused_at_once_while_applying_stalls() -> None:
    """Confirmed reads wait for the table; who asked has long given up, so they must not pile up."""
    settings = ReplicationSettings(read_index_reads_max=3)
    bench = leading(settings=settings)
    bench.do(ReadRequested(1))
    bench.do(ReadRequested(2))
    bench.publish(1)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N2)
    assert bench.of(ReadReady, bench.receive(reply(1), N2)) == [ReadReady(1, Seq(1))]
    bench.receive(reply(2), N2)
    bench.do(ReadRequested(3))
    bench.do(ReadRequested(4))
    (refused,) = bench.of(ReadRefused, bench.do(ReadRequested(5)))
    assert (refused.token, refused.error.code) == (5, "overloaded")
    assert "3 of 3 reads" in refused.message
    assert bench.of(ReadReady, bench.do(Applied(Seq(2)))) == [ReadReady(2, Seq(2))]
    assert bench.of(ReadRefused, bench.do(ReadRequested(6))) == []


def test_reads_that_were_answered_or_refused_leave_their_places_to_others() -> None:
    """The limit counts who waits, not who ever did."""
    bench = leading(settings=ReplicationSettings(read_index_reads_max=1))
    for token in range(1, 4):
        assert bench.of(ReadRefused, bench.do(ReadRequested(token))) == []
        assert bench.receive(reply(token), N2) == [ReadReady(token, Seq(1))]
    bench.do(ReadRequested(8))
    assert len(bench.of(ReadRefused, bench.wait(1_000))) == 1
    assert bench.of(ReadRefused, bench.do(ReadRequested(9))) == []
