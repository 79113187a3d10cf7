"""Winning a term, counting what is durable, committing, and notifying the followers (S2, S3)."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import ReplicationSettings
from raftstore.core.effects import CommitAdvanced, ServeSync
from raftstore.core.events import Persisted
from raftstore.protocol.publish import PubAck
from raftstore.protocol.replication import (
    CaughtUp,
    CommitNotice,
    MsgSyncRequest,
    StoreAck,
    StoreReject,
    StoreRequest,
)
from raftstore.types import ChannelConfig, LineageEntry, NodeId, RecordKind, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, OUTSIDER, Bench, guid, make_replica, record

OLD = [record(1), record(2), record(3)]


def ack(match_seq: int, *, term: int = 2, commit_seq: int = 0) -> StoreAck:
    """A follower's ack."""
    return StoreAck(CHANNEL, Term(term), Seq(match_seq), Seq(0), Seq(commit_seq))


def leading(term: int = 2, **options: Any) -> Bench:
    """A leader of term 2 with three records of term 1."""
    bench = Bench(make_replica(N1, **{"records": OLD, **options}))
    bench.lead(term)
    return bench


def test_leader_starts_its_term_with_a_record_of_its_own() -> None:
    """S2.2: before anything else, a record of the new term, offered to everybody with its
    payload."""
    bench = leading()
    (started,) = bench.appended()
    assert (started.kind, started.term, started.base_seq) == (RecordKind.TERM_START, 2, 4)
    request = bench.sent(StoreRequest)[0]
    assert (request.prev_term, request.records[0].payload) == (1, b"")


def test_record_of_an_older_term_is_not_committed_by_counting() -> None:
    """S3.1 (Raft, figure 8): a quorum holding an old-term record does not make it committed."""
    bench = leading()
    bench.persist(3)
    bench.receive(ack(3), N2)
    bench.receive(ack(3), N3)
    assert bench.replica.commit_seq == 0
    bench.receive(ack(4), N2)
    assert bench.replica.commit_seq == 0
    bench.persist(4)
    assert bench.replica.commit_seq == 4


def test_old_records_commit_together_with_the_first_of_the_new_term() -> None:
    """S3.1: earlier records commit with it, in one step."""
    bench = leading()
    bench.persist()
    bench.receive(ack(4), N2)
    assert bench.of(CommitAdvanced) == [CommitAdvanced(Seq(4), Seq(4))]


def test_repeated_acks_of_one_follower_make_no_quorum() -> None:
    """S3.2: distinct member ids count, not acks."""
    five = ChannelConfig(((N1, N2, N3, NodeId("n4"), NodeId("n5")),))
    bench = leading(config=five)
    bench.persist()
    for _ in range(5):
        bench.receive(ack(4), N2)
    assert bench.replica.commit_seq == 0
    bench.receive(ack(4), N3)
    assert bench.replica.commit_seq == 4


def test_leader_counts_itself_only_after_its_own_fsync() -> None:
    """S3.3: what the leader has only sent and buffered is not held by it (NATS-055)."""
    bench = leading()
    bench.receive(ack(4), N2)
    assert bench.replica.commit_seq == 0
    bench.persist(4)
    assert bench.replica.commit_seq == 4


def test_leader_does_not_count_itself_before_its_term_is_durable() -> None:
    """S0.5: a record of a term that a crash could take back is not held."""
    bench = leading()
    bench.receive(ack(4), N2)
    bench.do(Persisted(Seq(4), Term(1)))
    assert bench.replica.commit_seq == 0
    bench.do(Persisted(Seq(4), Term(2)))
    assert bench.replica.commit_seq == 4


def test_followers_quorum_commits_while_the_leaders_disk_is_slow() -> None:
    """S3.3, S10: two followers suffice; the leader applies only what is durable here."""
    bench = leading()
    bench.receive(ack(4), N2)
    bench.receive(ack(4), N3)
    assert bench.of(CommitAdvanced) == [CommitAdvanced(Seq(4), Seq(3))]
    bench.persist(4)
    assert bench.of(CommitAdvanced) == [CommitAdvanced(Seq(4), Seq(4))]


def test_acks_of_another_term_do_not_count() -> None:
    """S1.4, S3.4: what a follower had verified against another leader proves nothing here."""
    bench = leading(term=3)
    bench.persist()
    bench.receive(ack(4, term=2), N2)
    bench.receive(ack(4, term=1), N3)
    assert bench.replica.commit_seq == 0
    assert bench.replica.progress()[N2].match_seq == 0


def test_matches_start_at_zero_when_a_term_is_won() -> None:
    """S3.4: acks of an earlier leadership of the same node are not remembered."""
    bench = leading(term=2)
    bench.persist()
    bench.receive(ack(4), N2)
    bench.follow(N3, term=3)
    bench.lead(term=4)
    bench.persist()
    assert bench.replica.progress()[N2].match_seq == 0
    assert bench.replica.commit_seq == 4


@pytest.mark.parametrize("outsider", [OUTSIDER, N1])
def test_acks_of_outsiders_are_not_counted(outsider: NodeId) -> None:
    """S3.6: only other members of the configuration are listened to."""
    bench = leading()
    bench.persist()
    bench.receive(ack(4), outsider)
    assert bench.replica.commit_seq == 0
    assert set(bench.replica.progress()) == {N2, N3}


def test_acks_of_learners_are_not_counted() -> None:
    """S3.6: a learner gets everything and decides nothing."""
    bench = leading(config=ChannelConfig(((N1, N2),), learners=(N3,)))
    assert len(bench.sent(StoreRequest)) == 2
    bench.persist()
    bench.receive(ack(4), N3)
    assert bench.replica.commit_seq == 0


def test_single_replica_commits_with_its_own_fsync() -> None:
    """A channel with one voter is its own quorum, after fsync."""
    bench = leading(config=ChannelConfig(((N1,),)))
    bench.publish(9, term=2)
    assert bench.replica.commit_seq == 0
    bench.persist()
    assert bench.replica.commit_seq == 5
    assert isinstance(bench.replies()[0][1], PubAck)
    assert bench.replica.next_deadline_ms() is None


def test_store_requests_carry_the_term_before_and_the_commit_position() -> None:
    """S2.3: every StoreRequest lets the follower check what it follows."""
    bench = leading()
    bench.persist()
    bench.receive(ack(4), N2)
    bench.publish(9, term=2)
    request = bench.sent(StoreRequest)[0]
    assert (request.prev_term, request.commit_seq, request.term) == (2, 4, 2)


def test_idle_follower_is_told_the_commit_within_the_notice_interval() -> None:
    """S3.5: after commits pause, the position nothing else carries travels by itself."""
    bench = leading()
    bench.persist()
    bench.receive(ack(4), N2)
    effects = bench.wait(25)
    notices = bench.sent(CommitNotice, effects)
    assert [(n.commit_seq, n.last_seq, n.last_term) for n in notices] == [(4, 4, 2), (4, 4, 2)]
    assert notices[0].commit_hash == bench.replica.chain_hash_at_commit()[1]


def test_follower_that_knows_everything_is_left_alone() -> None:
    """An idle channel costs nothing: no deadline is left once all followers know the end."""
    bench = leading()
    bench.persist()
    bench.receive(ack(4), N2)
    bench.wait(25)
    bench.receive(ack(4, commit_seq=4), N2)
    bench.receive(ack(4, commit_seq=4), N3)
    assert bench.replica.next_deadline_ms() is None


def test_silent_follower_is_reminded_ever_more_rarely() -> None:
    """A lost StoreRequest is noticed by a notice; a dead follower costs little."""
    bench = leading()
    counts = [len(bench.sent(CommitNotice, bench.wait(1_000))) for _ in range(8)]
    assert counts[0] >= 2
    assert sum(counts[4:]) <= 6
    assert bench.replica.next_deadline_ms() is not None


def test_sync_request_is_served_from_the_match_point() -> None:
    """S2.6: from_seq 0 lets the leader find the largest common term (NATS-155)."""
    bench = leading()
    lineage = (LineageEntry(Term(1), Seq(2)),)
    bench.receive(MsgSyncRequest(CHANNEL, Term(2), 5, Seq(0), lineage, 100), N2)
    (serve,) = bench.of(ServeSync)
    assert (serve.from_seq, serve.prev_term, serve.last_seq) == (3, 1, 4)
    assert serve.request.request_id == 5


def test_sync_request_beyond_the_end_is_served_at_the_end() -> None:
    """A follower with a longer log learns where this leader's ends (S2.5: that is no conflict)."""
    bench = leading()
    bench.receive(MsgSyncRequest(CHANNEL, Term(2), 5, Seq(90), (), 100), N2)
    (serve,) = bench.of(ServeSync)
    assert (serve.from_seq, serve.prev_term) == (5, 2)


def test_nats_144_leader_keeps_nothing_for_a_follower_that_it_sent_history_to() -> None:
    """NATS-163: one question, one answer; a follower that falls silent costs no timer and no
    message."""
    bench = leading()
    before = bench.replica.next_deadline_ms()
    bench.receive(MsgSyncRequest(CHANNEL, Term(2), 5, Seq(1), (), 100), N2)
    assert len(bench.of(ServeSync)) == 1
    assert bench.replica.next_deadline_ms() == before
    bench.wait(60_000)
    assert len(bench.of(ServeSync, bench.all_effects)) == 1


def test_leader_tracks_who_is_catching_up() -> None:
    """NATS-062, NATS-143: rejects and CaughtUp move a follower out of and into the in-sync set."""
    bench = leading()
    bench.receive(CaughtUp(CHANNEL, Term(2), Seq(4)), N2)
    assert not bench.replica.progress()[N2].is_catching_up
    bench.receive(StoreReject(CHANNEL, Term(2), "missing_pubmsg", Seq(4), guid(4)), N2)
    assert bench.replica.progress()[N2].is_catching_up
    assert bench.replica.progress()[N2].heard_ms == bench.now_ms


def test_follower_that_asks_for_history_is_catching_up() -> None:
    """NATS-062: given one that had caught up, its request alone moves it out of the in-sync set."""
    bench = leading()
    bench.receive(CaughtUp(CHANNEL, Term(2), Seq(4)), N2)
    bench.receive(MsgSyncRequest(CHANNEL, Term(2), 5, Seq(3), (), 100), N2)
    assert bench.replica.progress()[N2].is_catching_up


def test_second_leader_of_one_term_halts_the_node() -> None:
    """S13: two leaders in one term is an impossible state."""
    bench = leading()
    effects = bench.store_request(record(4, term=2), term=2, sender=N2)
    assert [type(effect).__name__ for effect in effects] == ["Halt"]
    assert bench.publish(1, term=2) == []
    assert bench.replica.next_deadline_ms() is None


def test_notice_interval_is_a_setting() -> None:
    """Bounds and times come from the settings."""
    bench = leading(settings=ReplicationSettings(commit_notice_interval_ms=7))
    bench.persist()
    bench.receive(ack(4), N2)
    assert bench.replica.next_deadline_ms() == bench.now_ms + 7
