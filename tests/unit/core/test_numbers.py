"""Acks, confirmations and questions count by node and number of the replica (M4, M13)."""

from __future__ import annotations

import pytest

from raftstore.core.effects import ReadReady, SendIfKnown, ServeSync
from raftstore.core.events import Applied, ReadRequested
from raftstore.protocol.replication import (
    CaughtUp,
    CommitNotice,
    FreshReply,
    FreshRequest,
    MsgSyncRequest,
    ReadIndexReply,
    ReadIndexRequest,
    RemovedNotice,
    StoreAck,
    StoreReject,
)
from raftstore.types import (
    NO_GUID,
    ChannelConfig,
    NodeId,
    ReplicaId,
    ReplicaNumber,
    Seq,
    Term,
)
from tests.core_world import CHANNEL, N1, N2, N3, Bench, make_replica
from tests.unit.core.test_configs import config_record

AGAIN = ReplicaNumber(7)
NUMBERED = ChannelConfig(((N1, N2, N3),), (), {N2: AGAIN}, 7, ended=True)
"""n2's replica is in its second life."""
OLD = [config_record(1, NUMBERED)]


def leading() -> Bench:
    """A leader of term 2 under ``NUMBERED``, with its own records durable."""
    bench = Bench(make_replica(N1, records=OLD, applied_seq=1))
    bench.lead(2)
    bench.persist()
    return bench


def ack(match_seq: int, replica: int = 0) -> StoreAck:
    """A follower's ack."""
    return StoreAck(CHANNEL, Term(2), Seq(match_seq), replica=ReplicaNumber(replica))


def test_ack_of_an_earlier_life_is_not_counted() -> None:
    """M4: what it held was deleted; it may have been sent before that."""
    bench = leading()
    bench.receive(ack(2), N2)
    assert bench.replica.commit_seq == 1
    bench.receive(ack(2, AGAIN), N2)
    assert bench.replica.commit_seq == 2


def test_ack_of_a_later_life_than_the_configuration_names_is_not_counted() -> None:
    """M4: it may have come before the record that adds it."""
    bench = leading()
    bench.receive(ack(2, 9), N3)
    assert bench.replica.commit_seq == 1


def test_confirmation_of_an_earlier_life_is_not_counted() -> None:
    """M4, S7.1: it may follow nobody any more."""
    bench = leading()
    bench.receive(ack(2), N3)
    bench.do(Applied(Seq(2)))
    bench.do(ReadRequested(1))
    reply = ReadIndexReply(CHANNEL, Term(2), bench.sent(ReadIndexRequest)[-1].round_id)
    assert bench.receive(reply, N2) == []
    answer = ReadIndexReply(CHANNEL, Term(2), reply.round_id, AGAIN)
    assert bench.of(ReadReady, bench.receive(answer, N2)) == [ReadReady(1, Seq(2))]


def test_other_life_of_the_leader_does_not_count_itself() -> None:
    """M4: neither for commits nor for reads; a term that it holds says nothing of its history."""
    alone = ChannelConfig(((N1,),))
    bench = Bench(make_replica(N1, config=alone, number=9))
    bench.lead(2)
    bench.persist()
    assert bench.replica.commit_seq == 0
    assert not bench.replica.leader_is_ready
    assert bench.of(ReadReady, bench.do(ReadRequested(1))) == []


def test_other_life_of_a_leader_does_not_confirm_itself() -> None:
    """M4, S7.1: a round begins with the leader's confirmation, if it is the replica that counts."""
    bench = leading()
    bench.receive(ack(2), N3)
    bench.do(Applied(Seq(2)))
    # No leader comes to this by the rules; even so it does not count.
    bench.replica._state.number = ReplicaNumber(9)
    bench.do(ReadRequested(1))
    (asked, *_) = bench.sent(ReadIndexRequest)
    reply = ReadIndexReply(CHANNEL, Term(2), asked.round_id)
    assert bench.receive(reply, N3) == []


def test_questions_of_an_earlier_life_are_not_answered() -> None:
    """M4, S7.3: it is no member; and it is notified of its removal (M13)."""
    bench = leading()
    bench.receive(ack(2), N3)
    assert bench.receive(FreshRequest(CHANNEL, Term(2), 5), N2) == []
    request = MsgSyncRequest(CHANNEL, Term(2), 5, Seq(1), (), 1000)
    effects = bench.receive(request, N2)
    assert bench.of(ServeSync, effects) == []
    notice = RemovedNotice(CHANNEL, Term(2), Seq(1), Seq(2))
    assert effects == [SendIfKnown(N2, notice)]
    assert bench.of(SendIfKnown, bench.receive(ack(1), N2)) == [SendIfKnown(N2, notice)]


@pytest.mark.parametrize(
    ("replica", "is_told"),
    [(0, True), (6, True), (7, True), (8, False)],
    ids=["founding", "older", "ended", "to-be-added"],
)
def test_only_replicas_that_are_never_added_again_are_told(replica: int, is_told: bool) -> None:
    """M13: orders below the newest one of the log, or ended ones, are not begun again; one that the
    next order adds may ask before its record is in the log."""
    bench = leading()
    bench.receive(ack(2), N3)
    request = MsgSyncRequest(CHANNEL, Term(2), 5, Seq(1), (), 1000, ReplicaNumber(replica))
    told = bench.of(SendIfKnown, bench.receive(request, NodeId("n4")))
    assert [each.message.replica for each in told] == ([replica] if is_told else [])


def test_replicas_of_an_order_under_way_are_not_told() -> None:
    """M13: a learner of it may be yet to be added."""
    config = ChannelConfig(((N1, N2, N3),), (), {}, 7)
    bench = Bench(make_replica(N1, records=[config_record(1, config)], applied_seq=1))
    stack = bench.replica._state.configs
    assert not stack.has_dropped(ReplicaId(NodeId("n4"), AGAIN))
    assert stack.has_dropped(ReplicaId(NodeId("n4")))
    assert not stack.has_dropped(ReplicaId(N2))


def test_reports_of_an_earlier_life_do_not_speak_for_the_new_one() -> None:
    """M4: that it caught up, or left steady state."""
    bench = leading()
    bench.receive(CaughtUp(CHANNEL, Term(2), Seq(2)), N2)
    assert bench.replica.progress()[N2].is_catching_up
    bench.receive(CaughtUp(CHANNEL, Term(2), Seq(2), AGAIN), N2)
    assert not bench.replica.progress()[N2].is_catching_up
    bench.receive(StoreReject(CHANNEL, Term(2), "gap", Seq(2), NO_GUID), N2)
    assert not bench.replica.progress()[N2].is_catching_up


def test_follower_says_which_replica_it_is() -> None:
    """M4: in everything that is counted, or that history is sent for."""
    bench = Bench(make_replica(N2, number=7, records=OLD, applied_seq=1))
    (asked,) = bench.sent(MsgSyncRequest, bench.follow(N1, 2))
    bench.persist()
    notice = CommitNotice(CHANNEL, Term(2), Seq(1), Seq(1), Term(1), b"")
    told = bench.receive(notice, N1)
    bench.receive(ReadIndexRequest(CHANNEL, Term(2), 3), N1)
    (reply,) = bench.sent(ReadIndexReply)
    (caught_up,) = bench.sent(CaughtUp, told)
    (acked,) = bench.sent(StoreAck, told)
    assert {m.replica for m in (asked, caught_up, acked, reply)} == {AGAIN}


def test_removed_replica_stands_and_asks_no_more_until_a_leader_counts_on_it() -> None:
    """M13: a hint, which deletes nothing; only for the replica that it names."""
    bench = Bench(make_replica(N2, records=OLD, applied_seq=1))
    bench.follow(N1, 2)
    bench.receive(RemovedNotice(CHANNEL, Term(2), Seq(2), Seq(3), AGAIN), N1)
    assert not bench.replica.is_removed
    bench.receive(RemovedNotice(CHANNEL, Term(2), Seq(2), Seq(3)), N3)
    assert not bench.replica.is_removed, "it came from another node than the leader"
    bench.receive(RemovedNotice(CHANNEL, Term(2), Seq(2), Seq(3)), N1)
    assert bench.replica.is_removed
    assert bench.sent(MsgSyncRequest, bench.wait(5_000)) == []
    again = bench.follow(N1, 2)  # over a new connection
    assert (bench.sent(MsgSyncRequest, again), bench.replica.is_removed) == ([], True)
    assert bench.replica.config() == NUMBERED
    bench.receive(CommitNotice(CHANNEL, Term(2), Seq(1), Seq(4), Term(2), b""), N1)
    assert not bench.replica.is_removed
    assert len(bench.sent(MsgSyncRequest, bench.wait(5_000))) > 0


def test_removal_that_is_older_than_the_configuration_here_is_ignored() -> None:
    """M13: a newer one names it again."""
    bench = Bench(make_replica(N3, records=OLD, applied_seq=1))
    bench.follow(N1, 2)
    bench.receive(RemovedNotice(CHANNEL, Term(2), Seq(0), Seq(0)), N1)
    assert not bench.replica.is_removed


def test_fresh_replies_go_to_members() -> None:
    """S7.3: others get none, and serve nothing bounded."""
    bench = leading()
    bench.receive(ack(2), N3)
    bench.receive(FreshRequest(CHANNEL, Term(2), 5, AGAIN), N2)
    (asked, *_) = bench.sent(ReadIndexRequest)
    effects = bench.receive(ReadIndexReply(CHANNEL, Term(2), asked.round_id), N3)
    assert [m.round_id for m in bench.sent(FreshReply, effects)] == [5]
