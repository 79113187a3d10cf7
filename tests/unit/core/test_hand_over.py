"""Handing the leadership over without losing or refusing more than needed (S9)."""

from __future__ import annotations

from raftstore.core.effects import HandOverFailed, TransferLeadership
from raftstore.core.events import HandOverRequested, RoleChanged
from raftstore.protocol.publish import PubAck
from raftstore.protocol.replication import StoreAck
from raftstore.types import ChannelConfig, Role, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, OUTSIDER, Bench, make_replica


def leading(config: ChannelConfig | None = None) -> Bench:
    """A leader of term 1 with everything committed by itself and n2."""
    bench = Bench(make_replica(N1, **({} if config is None else {"config": config})))
    bench.lead()
    bench.persist()
    acked(bench)
    return bench


def acked(bench: Bench) -> None:
    """n2 has everything."""
    bench.receive(StoreAck(CHANNEL, Term(1), bench.replica.last_seq), N2)


def test_target_that_is_equal_takes_over_at_once() -> None:
    """S9: the target durably holds our end, so the transfer may leave."""
    bench = leading()
    assert bench.do(HandOverRequested(N2, "drain")) == [TransferLeadership(N2)]


def test_leader_stops_accepting_and_waits_until_the_target_is_equal() -> None:
    """S9: first stop accepting, then wait for the durable match to reach the end."""
    bench = leading()
    bench.publish(1)
    assert bench.of(TransferLeadership, bench.do(HandOverRequested(N2, "drain"))) == []
    ((_, refused),) = bench.replies(bench.publish(2))
    assert refused.code == "unavailable"
    bench.persist()
    acked(bench)
    assert bench.of(TransferLeadership) == [TransferLeadership(N2)]
    assert isinstance(bench.replies()[0][1], PubAck)


def test_any_equal_voter_takes_over_when_none_is_named() -> None:
    """Without a target the first voter that is equal to our end is asked."""
    bench = leading()
    assert bench.do(HandOverRequested(None, "stopping")) == [TransferLeadership(N2)]


def test_leader_accepts_again_when_the_hand_over_times_out() -> None:
    """S9: on timeout resume."""
    bench = leading()
    assert bench.do(HandOverRequested(N3, "drain")) == []
    effects = bench.wait(1_000)
    assert len(bench.of(HandOverFailed, effects)) == 1
    bench.publish(1)
    assert len(bench.appended()) == 1


def test_transfer_that_is_not_taken_up_times_out_too() -> None:
    """S9: a target that never wins leaves the old leader in office."""
    bench = leading()
    bench.do(HandOverRequested(N2, "drain"))
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert "did not take over" in failed.reason


def test_pending_publishes_are_unknown_when_the_target_wins() -> None:
    """S9: pending publishes still commit or become UNKNOWN."""
    bench = leading()
    bench.publish(1)
    bench.do(HandOverRequested(N2, "drain"))
    ((_, answer),) = bench.replies(bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2)))
    assert answer.code == "leadership_lost"


def test_known_retries_are_answered_during_a_hand_over() -> None:
    """A committed write's retry needs no new seq."""
    bench = leading()
    bench.publish(1)
    bench.persist()
    acked(bench)
    bench.do(HandOverRequested(N3, "drain"))
    ((_, answer),) = bench.replies(bench.publish(1, client=8, attempt=1))
    assert isinstance(answer, PubAck)


def test_impossible_hand_overs_fail_at_once() -> None:
    """No other voter, a target that is no voter, or not leading: refused, and writes go on."""
    alone = leading(ChannelConfig(((N1,),)))
    assert len(alone.of(HandOverFailed, alone.do(HandOverRequested(None, "x")))) == 1
    bench = leading()
    assert len(bench.of(HandOverFailed, bench.do(HandOverRequested(OUTSIDER, "x")))) == 1
    bench.publish(1)
    assert len(bench.appended()) == 1
    follower = Bench(make_replica(N1))
    assert len(follower.of(HandOverFailed, follower.do(HandOverRequested(N2, "x")))) == 1


def test_learner_is_no_target() -> None:
    """S9: only voters may lead."""
    bench = leading(ChannelConfig(((N1, N2),), learners=(N3,)))
    bench.publish(1)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N3)
    assert bench.of(TransferLeadership, bench.do(HandOverRequested(None, "x"))) == []


def test_voter_that_is_down_is_not_asked_although_it_was_equal() -> None:
    """S9: an idle channel's dead voter holds our end, too; asking it would only lose time."""
    bench = leading()
    bench.receive(StoreAck(CHANNEL, Term(1), bench.replica.last_seq), N3)
    event = HandOverRequested(None, "stopping", down=(N2,))
    assert bench.do(event) == [TransferLeadership(N3)]


def test_hand_over_fails_at_once_when_every_other_voter_is_down() -> None:
    """Given that all other voters are down, the hand-over fails at once; no voter was asked, so the
    leadership stays and writes go on.
    """
    bench = leading()
    (failed,) = bench.of(
        HandOverFailed, bench.do(HandOverRequested(None, "stopping", down=(N2, N3)))
    )
    assert not failed.was_asked
    bench.publish(1)
    assert len(bench.appended()) == 1


def test_named_target_is_asked_whatever_is_believed_of_it() -> None:
    """An operator's word counts more than a suspicion."""
    bench = leading()
    assert bench.do(HandOverRequested(N2, "drain", down=(N2,))) == [TransferLeadership(N2)]


def test_failed_hand_over_tells_whether_the_target_may_still_take_over() -> None:
    """S4.1: only when nobody was asked is it certain that nothing comes of it."""
    bench = leading()
    bench.do(HandOverRequested(N3, "drain"))
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert not failed.was_asked
    bench.do(HandOverRequested(N2, "drain"))
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert failed.was_asked


def test_node_that_stops_asks_the_next_voter_when_one_does_not_take_over() -> None:
    """S9: one after the other, equal ones only, and no write is accepted in between."""
    bench = leading()
    bench.receive(StoreAck(CHANNEL, Term(1), bench.replica.last_seq), N3)
    asked = bench.do(HandOverRequested(None, "stopping", keeps_trying=True))
    assert asked == [TransferLeadership(N2)]
    effects = bench.wait(1_000)
    (failed,) = bench.of(HandOverFailed, effects)
    assert failed.was_asked
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N3)]
    ((_, refused),) = bench.replies(bench.publish(1))
    assert refused.code == "unavailable"
    assert bench.of(TransferLeadership, bench.wait(1_000)) == [TransferLeadership(N2)]


def test_node_that_stops_passes_over_a_voter_that_is_behind() -> None:
    """S9: a voter whose end differs from the leader's is not asked, although all others failed."""
    bench = leading()
    bench.do(HandOverRequested(None, "stopping", keeps_trying=True))
    assert bench.of(TransferLeadership, bench.wait(1_000)) == [TransferLeadership(N2)]
    bench.wait(1_000)
    bench.receive(StoreAck(CHANNEL, Term(1), bench.replica.last_seq), N3)
    assert bench.of(TransferLeadership, bench.wait(1_000)) == [TransferLeadership(N3)]
