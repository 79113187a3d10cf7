"""Roles, recovery, detection and what the engine may look at (S0.3, S1, S13)."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import ReplicationSettings
from raftstore.core.effects import (
    Append,
    CommitAdvanced,
    Halt,
    HistoriesDiffer,
    Send,
    StepDown,
    StopServing,
    Truncate,
)
from raftstore.core.events import (
    Applied,
    Broken,
    DisputeEnded,
    Event,
    HandOverRequested,
    PeerHash,
    Persisted,
    PublishReceived,
    ReadRequested,
    RoleChanged,
    TimerFired,
)
from raftstore.core.state import RECORDS_AT_ONCE, ChannelState
from raftstore.errors import UnavailableError
from raftstore.protocol.records import Record
from raftstore.protocol.replication import CommitNotice, MsgSyncRequest, ReadIndexRequest, StoreAck
from raftstore.types import FollowerMode, History, Role, Seq, Term
from tests.core_world import (
    CHANNEL,
    N1,
    N2,
    N3,
    Bench,
    make_replica,
    pub_msg,
    record,
    term_start,
)

LOG = [term_start(1, 1), record(2), record(3)]


def test_log_that_is_applied_is_not_all_in_memory_while_it_is_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel of millions of records is opened with what its outlines need."""
    learn, most = ChannelState._follow, 0

    def counted(state: ChannelState, stored: Record) -> None:
        nonlocal most
        learn(state, stored)
        most = max(most, state.uncommitted_records, state.dedupe.outcomes)

    monkeypatch.setattr(ChannelState, "_follow", counted)
    end = 5 * RECORDS_AT_ONCE
    held = [record(seq, counter=seq) for seq in range(1, end + 1)]
    whole = make_replica(records=held, applied_seq=end)
    assert whole.commit_seq == end
    assert RECORDS_AT_ONCE <= most <= 3 * RECORDS_AT_ONCE


def recovering() -> Bench:
    """A replica whose log is shorter than its mark, following n2 in term 2."""
    mark = History(Term(1), Seq(5))
    bench = Bench(make_replica(N1, records=LOG, term=2, shortfall=mark))
    bench.follow(N2, term=2)
    return bench


# --- recovering (S0.3) ----------------------------------------------------------------------------


def test_recovering_replica_neither_votes_nor_acks_nor_confirms() -> None:
    """S0.3: a log shorter than its mark takes no part until it is verified past the mark."""
    bench = recovering()
    assert bench.replica.is_recovering
    assert not bench.replica.may_vote()
    bench.sync(request_id=1, from_seq=4, prev_term=1, term=2, last_seq=3)
    bench.receive(ReadIndexRequest(CHANNEL, Term(2), 1))
    assert bench.replica.verified_seq == 3
    sent = [type(e.message).__name__ for e in bench.of(Send, bench.all_effects)]
    assert sent == ["MsgSyncRequest", "CaughtUp"]


def test_recovering_ends_past_the_mark_under_a_current_leader() -> None:
    """S0.3: verified and durable past the mark, it takes part again, and says so with an ack."""
    bench = recovering()
    bench.sync(record(4), record(5), request_id=1, from_seq=4, prev_term=1, term=2)
    assert bench.replica.is_recovering
    bench.persist()
    assert not bench.replica.is_recovering
    assert bench.replica.may_vote()
    assert [ack.match_seq for ack in bench.sent(StoreAck)] == [5]


def test_recovering_ends_by_a_newer_term_although_the_log_is_shorter() -> None:
    """S0.3: a verified record of a later term proves that what is missing was never committed."""
    bench = recovering()
    bench.sync(term_start(4, 2), request_id=1, from_seq=4, prev_term=1, term=2)
    bench.persist()
    assert bench.replica.history() < (2, 5)
    assert not bench.replica.is_recovering


def test_recovering_does_not_end_by_what_is_only_in_the_log() -> None:
    """S0.3: appended but not durable, or durable but not verified, is not enough."""
    bench = recovering()
    bench.sync(record(4), record(5), request_id=1, from_seq=4, prev_term=1, term=2)
    bench.persist(4)
    assert bench.replica.is_recovering
    bench.do(RoleChanged(Term(3), Role.FOLLOWER, N3))
    bench.persist()
    assert bench.replica.is_recovering


def test_recovering_replica_that_was_elected_halts() -> None:
    """S0.3: it must not stand, so winning is an impossible state."""
    bench = recovering()
    assert [type(e) for e in bench.lead(term=3)] == [Halt]


def test_recovering_replica_keeps_the_applied_position_of_its_table() -> None:
    """The table may know more than a damaged log; nothing is applied twice."""
    bench = Bench(make_replica(N1, records=LOG, applied_seq=5, shortfall=History(Term(1), Seq(5))))
    assert bench.replica.commit_seq == 3
    bench.follow(N2, term=2)
    bench.sync(record(4), record(5), request_id=1, from_seq=4, prev_term=1, term=2, commit_seq=5)
    bench.persist()
    assert bench.replica.commit_seq == 5


# --- accepted history (S1.2) ----------------------------------------------------------------------


def test_history_for_elections_is_accepted_not_durable() -> None:
    """S1.2: a vote compares everything that may still be acknowledged."""
    bench = Bench(make_replica(N1, records=LOG))
    bench.steady()
    bench.store_request(record(4), inlined=True)
    assert bench.replica.durable_seq == 3
    assert bench.replica.history() == (1, 4)


def test_history_orders_by_term_before_seq() -> None:
    """S1.1: a longer log of an older term is the lower history."""
    short = make_replica(N1, records=[term_start(1, 2)])
    long = make_replica(N2, records=[record(seq) for seq in range(1, 9)])
    assert short.history() > long.history()


# --- terms and roles ------------------------------------------------------------------------------


def test_term_that_goes_back_halts() -> None:
    """S13: terms never decrease."""
    bench = Bench(make_replica(N1, term=5))
    assert [type(e) for e in bench.do(RoleChanged(Term(4), Role.FOLLOWER, N2))] == [Halt]
    assert bench.do(Applied(Seq(0))) == []


def test_two_leaders_of_one_term_halt() -> None:
    """S13: the elector named two leaders for one term."""
    bench = Bench(make_replica(N1))
    bench.follow(N2, term=1)
    bench.do(RoleChanged(Term(1), Role.FOLLOWER, None))
    assert [type(e) for e in bench.do(RoleChanged(Term(1), Role.FOLLOWER, N3))] == [Halt]


def test_deposed_leader_becomes_a_follower_that_probes() -> None:
    """S1.4, S6.2: it acks nothing of its own tail before the new leader has it verified."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.publish(1)
    bench.persist()
    bench.follow(N2, term=2)
    assert bench.replica.role is Role.FOLLOWER
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    assert bench.sent(StoreAck, bench.all_effects) == []
    assert bench.sent(MsgSyncRequest, bench.all_effects)[0].lineage == ((1, 2),)
    assert bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N3) == []


def test_repeated_role_of_a_leader_changes_nothing() -> None:
    """A second notice that it leads starts no second term."""
    bench = Bench(make_replica(N1))
    bench.lead()
    assert bench.lead() == []


def test_candidate_waits_without_a_leader() -> None:
    """A candidacy asks nobody for history."""
    bench = Bench(make_replica(N1, records=LOG))
    effects = bench.do(RoleChanged(Term(2), Role.CANDIDATE, None))
    assert bench.of(Send, effects) == []
    assert bench.do(RoleChanged(Term(2), Role.FOLLOWER, None)) == []
    assert bench.replica.role is Role.FOLLOWER


# --- detection (S13) ------------------------------------------------------------------------------


def test_follower_serves_nothing_when_the_leaders_chain_hash_differs() -> None:
    """S13: two histories at one committed seq: a quorum has to show which one is wrong."""
    bench = Bench(make_replica(N1, records=LOG))
    bench.steady()
    notice = CommitNotice(CHANNEL, Term(1), Seq(3), Seq(3), Term(1), bytes(16))
    effects = bench.receive(notice)
    assert bench.of(HistoriesDiffer, effects) == [HistoriesDiffer(N2, Seq(3))]
    assert bench.replica.is_disputed
    assert not bench.replica.may_vote()
    assert bench.of(HistoriesDiffer, bench.receive(notice)) == []
    assert bench.of(StopServing, bench.do(Broken("no quorum"))) != []
    assert bench.receive(notice) == []
    assert bench.replica.stopped_reason == "no quorum"


def test_dispute_ends_when_a_quorum_has_the_history_that_is_here() -> None:
    """S13: another replica is wrong, and this one goes on as before."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    bench.do(PeerHash(N2, Seq(1), bytes(16)))
    assert not bench.replica.may_vote()
    assert bench.do(DisputeEnded()) == []
    assert bench.replica.may_vote()
    assert bench.replies(bench.publish(1)) == []
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N2)
    assert bench.replica.commit_seq == 2


def test_leader_stops_serving_and_steps_down_when_nothing_more_can_be_applied() -> None:
    """S13, I1: a committed batch lists rows that are not here, which every replica finds alike."""
    bench = Bench(make_replica(N1))
    bench.lead()
    effects = bench.do(Broken("commit 7 lists 2 chunks"))
    assert [type(e) for e in effects] == [StopServing, StepDown]
    assert bench.replica.stopped_reason == "commit 7 lists 2 chunks"
    assert bench.do(Broken("again")) == []
    assert not bench.replica.may_vote()


def test_leader_answers_nothing_on_a_differing_hash_and_steps_down_when_it_is_wrong() -> None:
    """S13: a leader that may be wrong answers nothing more; one that is lets another take over."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    bench.publish(5)
    effects = bench.do(PeerHash(N2, Seq(1), bytes(16)))
    assert effects == [HistoriesDiffer(N2, Seq(1))]
    ((_, refused),) = bench.replies(bench.publish(2))
    assert refused.code == "unavailable"
    assert bench.replies(bench.publish(5)) == []
    assert bench.do(ReadRequested(2))[0].error is UnavailableError  # type: ignore[union-attr]
    effects = bench.do(Broken("a quorum has another history"))
    assert [type(e) for e in effects] == [StopServing, StepDown]
    ((_, refused),) = bench.replies(bench.publish(1))
    assert refused.code == "unavailable"
    assert bench.replies(bench.publish(5)) == []
    assert bench.do(ReadRequested(1))[0].error is UnavailableError  # type: ignore[union-attr]
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N2)
    assert bench.replica.commit_seq == 1


def test_equal_or_incomparable_hashes_change_nothing() -> None:
    """S13: only hashes at a seq that both have committed are compared."""
    bench = Bench(make_replica(N1, records=LOG, applied_seq=3))
    seq, commit_hash = bench.replica.chain_hash_at_commit()
    assert bench.do(PeerHash(N2, seq, commit_hash)) == []
    assert bench.do(PeerHash(N2, Seq(9), bytes(16))) == []
    assert bench.do(PeerHash(N2, seq, b"")) == []


def test_chain_hash_is_the_same_on_every_replica_and_after_a_restart() -> None:
    """S13: equal histories give equal hashes, however they came about."""
    first = make_replica(N1, records=LOG, applied_seq=3)
    bench = Bench(make_replica(N2))
    bench.steady(leader=N1)
    bench.store_request(*LOG, prev_term=0, commit_seq=3, sender=N1, inlined=True)
    bench.persist()
    assert bench.replica.chain_hash_at_commit() == first.chain_hash_at_commit()


def test_stopped_replica_that_was_elected_halts() -> None:
    """S13: it must not stand, so winning is an impossible state."""
    bench = Bench(make_replica(N1, records=LOG, applied_seq=3))
    bench.do(Broken("a quorum has another history"))
    assert [type(e) for e in bench.lead(term=2)] == [Halt]


# --- rebuilding and views -------------------------------------------------------------------------


def test_restart_commits_what_was_applied_and_nothing_else() -> None:
    """The commit position after a restart is the applied one; no effect repeats it."""
    replica = make_replica(N1, records=LOG, applied_seq=2)
    assert (replica.commit_seq, replica.last_seq, replica.durable_seq) == (2, 3, 3)
    assert replica.step(Persisted(Seq(3), Term(1)), 1) == []


def test_restart_reports_only_new_commits() -> None:
    """S10: CommitAdvanced goes on from the applied position."""
    bench = Bench(make_replica(N1, records=LOG, applied_seq=2))
    bench.steady()
    effects = bench.receive(CommitNotice(CHANNEL, Term(1), Seq(3), Seq(3), Term(1), b""))
    assert bench.of(CommitAdvanced, effects) == [CommitAdvanced(Seq(3), Seq(3))]


def test_bytes_of_records_are_given_back_when_they_are_committed() -> None:
    """Bounds: else a leader would refuse every write after uncommitted_bytes_max of them."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.publish(1, payload=b"12345")
    bench.publish(2, payload=b"123")
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N2)
    assert bench.replica.statistics().uncommitted_bytes == 3
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(3)), N2)
    assert bench.replica.statistics().uncommitted_bytes == 0


def test_bytes_of_records_are_given_back_when_they_are_truncated() -> None:
    """Bounds: what a replica lost to a new leader does not count when it leads again."""
    log = [term_start(1, 1), record(2, payload=b"12"), record(3, payload=b"345")]
    bench = Bench(make_replica(N1, records=log))
    assert bench.replica.statistics().uncommitted_bytes == 5
    bench.follow(N2, term=2)
    (request,) = bench.sent(MsgSyncRequest, bench.all_effects)
    newer = term_start(3, 2)
    bench.sync(newer, request_id=request.request_id, from_seq=3, prev_term=1, term=2)
    assert bench.of(Truncate, bench.all_effects)
    assert bench.replica.statistics().uncommitted_bytes == 2


def test_statistics_show_everything_bounded() -> None:
    """The statistics show every bounded quantity."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.publish(1, payload=b"12345")
    statistics = bench.replica.statistics()
    assert statistics.uncommitted_records == 2
    assert statistics.uncommitted_bytes == 5
    assert statistics.waiting_publishers == 1
    assert bench.replica.live_queue() == ()
    assert set(bench.replica.progress()) == {N2, N3}
    follower = make_replica(N2)
    assert follower.progress() == {}
    assert follower.statistics().live_queue.messages == 0


@pytest.mark.parametrize(
    "event",
    [
        Applied(Seq(0)),
        TimerFired(),
        Persisted(Seq(0), Term(0)),
        ReadRequested(1),
        HandOverRequested(None, "x"),
        PublishReceived(1, pub_msg(1)),
        PeerHash(N2, Seq(0), b""),
        DisputeEnded(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_every_event_is_harmless_before_anything_happened(event: Event) -> None:
    """A fresh replica appends, sends and commits nothing by itself."""
    effects = make_replica(N1).step(event, 5)
    assert not any(isinstance(e, Append | Send | CommitAdvanced | Halt) for e in effects)


def test_step_is_a_function_of_state_and_events() -> None:
    """B4: same state and inputs, same outputs."""

    def run() -> list[Any]:
        bench = Bench(make_replica(N1, records=LOG, settings=ReplicationSettings()))
        bench.lead(term=2)
        bench.persist()
        for counter in range(20, 30):
            bench.publish(counter, term=2)
            bench.persist()
            bench.receive(StoreAck(CHANNEL, Term(2), bench.replica.last_seq), N2)
            bench.wait(20)
        return bench.all_effects

    assert run() == run()
