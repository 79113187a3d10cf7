"""Rules S3, S4, S5.6, S7.1, S9 and S10 of the safety contract, one by one, on a replica."""

from __future__ import annotations

import pytest

from raftstore.core.effects import (
    CommitAdvanced,
    HandOverFailed,
    ReadReady,
    ReadRefused,
    Send,
    SendIfKnown,
    ServeSync,
    TransferLeadership,
)
from raftstore.core.events import (
    Applied,
    HandOverRequested,
    ReadRequested,
    RoleChanged,
)
from raftstore.errors import (
    GuidReuseError,
    LeadershipLostError,
    QuorumTimeoutError,
    UnavailableError,
)
from raftstore.protocol.codec import decode, encode
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.replication import (
    AskApplied,
    CommitNotice,
    MsgSyncRequest,
    ReadIndexReply,
    ReadIndexRequest,
    StoreAck,
    StoreRequest,
)
from raftstore.types import WALL_MS_MAX, Outcome, Role, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, Bench, World, make_replica, record


def ack(match_seq: int, term: int = 1, *, applied_seq: int = 0) -> StoreAck:
    """A follower's ack."""
    return StoreAck(
        channel=CHANNEL,
        term=Term(term),
        match_seq=Seq(match_seq),
        applied_seq=Seq(applied_seq),
        commit_seq=Seq(0),
    )


def confirmation(round_id: int, term: int = 1) -> ReadIndexReply:
    """A voter's word that the term is still the leader's."""
    return ReadIndexReply(channel=CHANNEL, term=Term(term), round_id=round_id)


def ready_leader() -> Bench:
    """A leader of term 1 whose term-start record is committed and applied."""
    bench = Bench(make_replica())
    bench.lead(1)
    bench.persist()
    bench.receive(ack(1))
    bench.do(Applied(Seq(1)))
    assert bench.replica.leader_is_ready
    return bench


# --- S3 -------------------------------------------------------------------------------------------


def test_record_of_an_old_term_does_not_commit_by_counting() -> None:
    """S3.1 (Raft 5.4.2): a quorum for an old record commits nothing until one of this term has.

    Shows GAP-05.
    """
    bench = Bench(make_replica(records=[record(1)]))
    bench.lead(2)
    bench.persist()
    bench.receive(ack(1, term=2), N2)
    bench.receive(ack(1, term=2), N3)
    assert bench.replica.commit_seq == 0
    bench.receive(ack(2, term=2), N2)
    assert bench.replica.commit_seq == 2


def test_figure_8_commits_nothing_that_a_later_term_may_still_replace() -> None:
    """S3.1: the story of Raft's figure 8: a record of term 2 on a majority may still lose."""
    world = World(inflight_requests=1)
    world.sync_records_max = 1
    world.elect(N1)
    world.settle(ticks=1)
    world.elect(N1, voters=(N1, N2))  # term 2: its records reach nobody else
    world.publish(1, to=(N1,))
    world.drop()
    world[N1].persist()
    world[N1].crash()
    world.elect(N3, voters=(N2, N3))  # term 3: neither does this one's
    world.drop()
    world[N3].persist()
    world[N3].crash()
    world[N1].boot()
    world.elect(N1, voters=(N1, N2))  # term 4: the records of term 2 go to a majority now
    world[N1].persist()
    old_end = world[N1].replica.last_seq - 1
    for _ in range(100):
        if world[N2].replica.durable_seq == old_end:
            break
        world.drop(kind="StoreRequest")
        world.tick(300)
        world.deliver()
        world[N2].persist()
    assert world[N2].replica.history() == (2, old_end)
    world.deliver(N1, "StoreAck")
    assert world[N1].replica.progress()[N2].match_seq == old_end
    assert world[N1].replica.commit_seq == 1
    world[N3].boot()
    assert world.try_to_elect(N3, voters=(N2, N3)) is not None


def test_leader_counts_itself_only_after_its_own_sync() -> None:
    """S3.3: one follower and a leader that has not written yet are no quorum."""
    bench = Bench(make_replica())
    bench.lead(1)
    bench.persist(0)
    bench.receive(ack(1))
    assert bench.replica.commit_seq == 0
    bench.persist(1)
    assert bench.replica.commit_seq == 1


def test_follower_acks_what_is_verified_and_never_its_end() -> None:
    """S3.4: a longer tail of an old term is not acknowledged to a leader that lacks it."""
    bench = Bench(make_replica(records=[record(1), record(2), record(3)]))
    bench.follow(N2, 2)
    request_id = 1
    bench.sync(request_id=request_id, from_seq=2, prev_term=1, term=2, last_seq=9)
    assert [a.match_seq for a in bench.sent(StoreAck, bench.all_effects)] == [1]


def test_follower_acks_nothing_before_it_is_durable() -> None:
    """S0.5, S3.4: an accepted record is acknowledged after its sync, not before."""
    bench = Bench(make_replica())
    bench.steady()
    bench.store_request(record(1), prev_term=0, inlined=True)
    assert not bench.sent(StoreAck, bench.all_effects)
    assert [a.match_seq for a in bench.sent(StoreAck, bench.persist())] == [1]


def test_follower_commits_only_what_it_verified() -> None:
    """S3.5: the leader's commit seq says nothing about a tail the leader did not send (GAP-02)."""
    bench = Bench(make_replica(records=[record(1), record(2), record(3)]))
    bench.follow(N2, 2)
    notice = CommitNotice(
        channel=CHANNEL,
        term=Term(2),
        commit_seq=Seq(3),
        last_seq=Seq(9),
        last_term=Term(2),
        commit_hash=b"",
    )
    bench.receive(notice)
    assert bench.replica.commit_seq == 0


def test_idle_followers_learn_the_commit_seq_within_the_notice_interval() -> None:
    """S3.5: after the last commit a notice follows, so that lag falls to zero."""
    bench = ready_leader()
    effects = bench.wait(bench.replica._state.settings.commit_notice_interval_ms)
    assert {n.commit_seq for n in bench.sent(CommitNotice, effects)} == {1}


# --- S4, S5 ---------------------------------------------------------------------------------------


def test_quorum_timeout_is_unknown_and_the_record_stays() -> None:
    """S4.1: nobody may call it failed; it still commits when the quorum comes back (NATS-069)."""
    bench = ready_leader()
    bench.publish(1)
    effects = bench.wait(bench.replica._state.settings.quorum_timeout_ms)
    codes = [m.code for _, m in bench.replies(effects) if isinstance(m, PubReject)]
    assert codes == [QuorumTimeoutError.code]
    assert QuorumTimeoutError.outcome is Outcome.UNKNOWN
    assert bench.replica.last_seq == 2


def test_pending_publish_is_unknown_after_a_step_down() -> None:
    """S4.3: the next leader decides, so this one must not say that it failed."""
    bench = ready_leader()
    bench.publish(1)
    effects = bench.do(RoleChanged(Term(2), Role.FOLLOWER, None))
    codes = [m.code for _, m in bench.replies(effects) if isinstance(m, PubReject)]
    assert codes == [LeadershipLostError.code]
    assert LeadershipLostError.outcome is Outcome.UNKNOWN


def test_publish_is_acknowledged_after_its_commit_only() -> None:
    """S4.4: not when it is sent, not when the leader has it on disk."""
    bench = ready_leader()
    bench.publish(1)
    bench.persist()
    assert not [m for _, m in bench.replies(bench.all_effects) if isinstance(m, PubAck)]
    bench.receive(ack(2))
    assert [m.last_seq for _, m in bench.replies() if isinstance(m, PubAck)] == [2]


def test_retry_of_an_uncommitted_write_waits_for_the_first_one() -> None:
    """S4.5: a second copy is neither written again nor answered before the commit."""
    bench = ready_leader()
    bench.publish(1, client=7)
    effects = bench.publish(1, client=8, attempt=1)
    assert not bench.appended(effects)
    assert not bench.replies(effects)
    bench.persist()
    effects = bench.receive(ack(2))
    assert [(client, m.last_seq) for client, m in bench.replies(effects)] == [(7, 2), (8, 2)]


def test_retry_of_a_committed_write_is_answered_with_the_same_place() -> None:
    """S4.5: applied once, however often it is sent, also by the next leader."""
    bench = Bench(make_replica(records=[record(1, counter=4, payload=b"value 4")]))
    bench.lead(2)
    bench.persist()
    bench.receive(ack(2, term=2))
    effects = bench.publish(4, term=2, attempt=1)
    assert [m.last_seq for _, m in bench.replies(effects)] == [1]
    assert not bench.appended(effects)


def test_guid_with_another_payload_is_refused() -> None:
    """S4.6: one guid names one payload, or replicas would store different ones."""
    bench = ready_leader()
    bench.publish(1, payload=b"one")
    effects = bench.publish(1, payload=b"two", client=8)
    assert [m.code for _, m in bench.replies(effects)] == [GuidReuseError.code]
    assert not bench.appended(effects)


def test_refused_attempt_stays_refused_when_its_copy_arrives_late() -> None:
    """S5.6: NOT_APPLIED must stay true, so a doubled message is not sequenced afterwards."""
    bench = ready_leader()
    bench.do(HandOverRequested(N2, "test"))
    assert not bench.replies(bench.publish(1, attempt=0))
    second = bench.publish(1, attempt=0)  # its refusal is decided, though not answered yet
    assert [m.code for _, m in bench.replies(second)] == [UnavailableError.code]
    effects = bench.wait(bench.replica._state.settings.hand_over_timeout_ms)
    assert [m.code for _, m in bench.replies(effects)] == [UnavailableError.code]
    assert not bench.appended(bench.publish(1, attempt=0))
    assert bench.appended(bench.publish(1, attempt=1))


# --- S7.3 -----------------------------------------------------------------------------------------


def test_leader_tells_no_commit_position_before_a_record_of_its_term_is_committed() -> None:
    """S7.3: after a restart it knows an old one, and who measured lag against it would lag more."""
    bench = Bench(make_replica(records=[record(1), record(2), record(3)], applied_seq=2))
    bench.lead(2)
    bench.persist()
    bench.publish(9, term=2)
    bench.receive(MsgSyncRequest(CHANNEL, Term(2), 1, Seq(2), (), 1_000))
    bench.wait(1_000)
    told = [e.message for e in bench.all_effects if isinstance(e, Send)]
    early = [m.commit_seq for m in told if isinstance(m, StoreRequest | CommitNotice)]
    served = [e.commit_seq for e in bench.all_effects if isinstance(e, ServeSync)]
    assert len(early) >= 2
    assert len(served) == 1
    assert set(early + served) == {0}

    bench.all_effects.clear()
    bench.receive(ack(4, term=2))
    bench.receive(ack(4, term=2), N3)
    bench.wait(1_000)
    notices = [e.message for e in bench.all_effects if isinstance(e, Send)]
    assert {m.commit_seq for m in notices if isinstance(m, CommitNotice)} == {4}


# --- S7.1 -----------------------------------------------------------------------------------------


def test_leader_confirms_no_read_before_a_record_of_its_term_is_committed() -> None:
    """S7.1: until then it does not know what is committed, even if voters confirm its term."""
    bench = Bench(make_replica(records=[record(1)], applied_seq=1))
    bench.lead(2)
    bench.do(ReadRequested(1))
    for round_id in (1, 2):
        bench.receive(confirmation(round_id, term=2))
    assert not bench.of(ReadReady, bench.all_effects)
    bench.persist()
    bench.receive(ack(2, term=2))
    assert bench.sent(ReadIndexRequest, bench.all_effects)


def test_read_waits_for_a_quorum_of_confirmations() -> None:
    """S7.1: a leader that was paused and replaced gets none, so it answers no stale read."""
    bench = ready_leader()
    bench.do(ReadRequested(1))
    assert not bench.of(ReadReady, bench.all_effects)
    effects = bench.receive(confirmation(bench.sent(ReadIndexRequest)[0].round_id))
    assert [ready.read_seq for ready in bench.of(ReadReady, effects)] == [1]


def test_confirmation_of_an_earlier_round_does_not_count() -> None:
    """S7.1: the round must have started after the read arrived."""
    bench = ready_leader()
    bench.do(ReadRequested(1))
    old = bench.sent(ReadIndexRequest)[0].round_id
    bench.receive(confirmation(old), N2)
    bench.do(ReadRequested(2))
    assert not bench.of(ReadReady, bench.receive(confirmation(old), N3))


def test_read_waits_until_its_seq_is_applied() -> None:
    """S7.1: confirmed is not enough: the answer must show everything below the read's seq."""
    bench = ready_leader()
    bench.publish(1)
    bench.persist()
    bench.receive(ack(2))
    bench.do(ReadRequested(1))
    effects = bench.receive(confirmation(bench.sent(ReadIndexRequest)[0].round_id))
    assert not bench.of(ReadReady, effects)
    assert [r.read_seq for r in bench.of(ReadReady, bench.do(Applied(Seq(2))))] == [2]


def test_unconfirmed_read_is_refused_in_time() -> None:
    """S7.1: without a quorum the reader gets that answer, and nothing is shown."""
    bench = ready_leader()
    bench.do(ReadRequested(1))
    effects = bench.wait(bench.replica._state.settings.read_index_timeout_ms)
    assert [refused.token for refused in bench.of(ReadRefused, effects)] == [1]


# --- S9 -------------------------------------------------------------------------------------------


def test_hand_over_waits_for_an_equal_target() -> None:
    """S9: the target is asked only when it durably holds the leader's end."""
    bench = ready_leader()
    bench.publish(1)
    bench.persist()
    bench.receive(ack(1, applied_seq=1), N3)
    assert not bench.of(TransferLeadership, bench.do(HandOverRequested(N3, "test")))
    bench.receive(ack(2, applied_seq=1))
    assert not bench.of(TransferLeadership, bench.receive(ack(1, applied_seq=2), N3))
    effects = bench.receive(ack(2, applied_seq=2), N3)
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N3)]


def test_hand_over_waits_until_the_targets_table_shows_everything() -> None:
    """FIP-20: what a successor has yet to apply its readers and writers would wait for."""
    bench = ready_leader()
    bench.publish(1)
    bench.persist()
    assert not bench.of(TransferLeadership, bench.do(HandOverRequested(N3, "test")))
    effects = bench.receive(ack(2), N3)
    assert not bench.of(TransferLeadership, effects)
    asked = [(each.to, each.message) for each in bench.of(SendIfKnown, effects)]
    assert asked == [(N3, AskApplied(CHANNEL, Term(1), Seq(2)))]
    assert not bench.of(TransferLeadership, bench.receive(ack(2, applied_seq=1), N3))
    effects = bench.receive(ack(2, applied_seq=2), N3)
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N3)]


def test_hand_over_stops_accepting_and_resumes_after_its_timeout() -> None:
    """S9: refused meanwhile, certainly not applied; accepted again when nobody took over."""
    bench = ready_leader()
    bench.receive(ack(1), N3)
    bench.do(HandOverRequested(N3, "test"))
    assert not bench.appended(bench.publish(1))
    effects = bench.wait(bench.replica._state.settings.hand_over_timeout_ms)
    assert [m.code for _, m in bench.replies(effects)] == [UnavailableError.code]
    assert bench.of(HandOverFailed, effects)
    assert bench.appended(bench.publish(2))


# --- S10, S4.2 ------------------------------------------------------------------------------------


def test_uncommitted_record_is_not_applied() -> None:
    """S4.2: durable here is not committed, so nobody sees it."""
    bench = Bench(make_replica())
    bench.steady()
    bench.store_request(record(1), prev_term=0, inlined=True)
    assert not bench.of(CommitAdvanced, bench.persist())
    # Nor what is durable behind the record that is committed now.
    bench.store_request(record(2), prev_term=1, inlined=True)
    assert not bench.of(CommitAdvanced, bench.persist())
    effects = bench.store_request(record(3), prev_term=1, commit_seq=1, inlined=True)
    assert [(c.commit_seq, c.apply_to) for c in bench.of(CommitAdvanced, effects)] == [(1, 1)]


def test_committed_record_is_not_applied_before_it_is_durable_here() -> None:
    """S10: the table is never ahead of the durable log (FIP-19)."""
    bench = Bench(make_replica())
    bench.steady()
    effects = bench.store_request(record(1), prev_term=0, commit_seq=1, inlined=True)
    assert [(c.commit_seq, c.apply_to) for c in bench.of(CommitAdvanced, effects)] == [(1, 0)]
    assert [c.apply_to for c in bench.of(CommitAdvanced, bench.persist())] == [1]


@pytest.mark.parametrize("ahead_ms", [1, 1_000_000_000])
def test_timestamp_follows_the_record_before_whatever_the_clock_says(ahead_ms: int) -> None:
    """S10: ts = max(now, last + 1): a leader with a slow clock does not go back in time."""
    bench = Bench(make_replica(records=[record(1, timestamp_ms=bench_now() + ahead_ms)]))
    bench.lead(2, N1)
    assert bench.appended()[0].timestamp_ms == bench_now() + ahead_ms + 1


@pytest.mark.parametrize("before_the_end_ms", [0, 1])
def test_timestamp_stands_still_at_the_end_of_its_range(before_the_end_ms: int) -> None:
    """S12: one more, and no follower could read what this leader replicates, in any term."""
    last = record(1, timestamp_ms=WALL_MS_MAX - before_the_end_ms)
    bench = Bench(make_replica(records=[last]))
    effects = bench.lead(2, N1)
    assert bench.appended()[0].timestamp_ms == WALL_MS_MAX
    for request in bench.sent(StoreRequest, effects):
        assert decode(encode(request)) == request


def bench_now() -> int:
    """The time a bench starts at."""
    return Bench(make_replica()).now_ms
