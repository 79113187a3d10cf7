"""Rules S0.3, S0.5, S1.2, S1.4, S2, S6.1-S6.3 of the safety contract, one by one, on a replica."""

from __future__ import annotations

from raftstore.core.effects import Append, Halt, HistoriesDiffer, Truncate
from raftstore.core.events import PeerHash, RoleChanged
from raftstore.protocol.replication import (
    CommitNotice,
    MsgSync,
    MsgSyncRequest,
    StoreAck,
    StoreRequest,
)
from raftstore.types import FollowerMode, History, RecordKind, Role, Seq, Term
from tests.core_world import (
    CHANNEL,
    N1,
    N2,
    N3,
    Bench,
    make_replica,
    record,
    term_start,
)


def notice(
    term: int, last_term: int, last_seq: int, commit_seq: int = 0, commit_hash: bytes = b""
) -> CommitNotice:
    """The leader's positions."""
    return CommitNotice(
        channel=CHANNEL,
        term=Term(term),
        commit_seq=Seq(commit_seq),
        last_seq=Seq(last_seq),
        last_term=Term(last_term),
        commit_hash=commit_hash,
    )


def ack(term: int, match_seq: int) -> StoreAck:
    """A follower's ack."""
    return StoreAck(
        channel=CHANNEL,
        term=Term(term),
        match_seq=Seq(match_seq),
        applied_seq=Seq(0),
        commit_seq=Seq(0),
    )


def last_request(bench: Bench) -> MsgSyncRequest:
    """The newest request for history."""
    return bench.sent(MsgSyncRequest, bench.all_effects)[-1]


# --- S0, S1 ---------------------------------------------------------------------------------------


def test_follower_acks_nothing_before_its_term_is_durable() -> None:
    """S0.5: a durable record of an old term is not acknowledged while the new term is not."""
    bench = Bench(make_replica(records=[record(1)]))
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2))
    bench.receive(notice(2, 1, 1))
    assert not bench.sent(StoreAck, bench.all_effects)
    assert [a.match_seq for a in bench.sent(StoreAck, bench.persist(1, term=2))] == [1]


def test_leader_does_not_count_itself_before_its_term_is_durable() -> None:
    """S0.5: with its term still on the way to the disk, the leader's own copy does not count."""
    bench = Bench(make_replica())
    bench.lead(1)
    bench.persist(1, term=0)
    bench.receive(ack(1, 1))
    assert bench.replica.commit_seq == 0
    bench.persist(1, term=1)
    assert bench.replica.commit_seq == 1


def test_recovering_replica_acks_nothing_until_it_is_past_its_mark() -> None:
    """S0.3: verified records below the mark are not acknowledged; the one that reaches it is."""
    bench = Bench(make_replica(records=[record(1)], shortfall=History(Term(1), Seq(2))))
    bench.follow(N2, 1)
    bench.receive(notice(1, 1, 1))
    assert not bench.sent(StoreAck, bench.all_effects)
    bench.store_request(record(2), prev_term=1, inlined=True)
    assert [a.match_seq for a in bench.sent(StoreAck, bench.persist())] == [2]


def test_recovering_replica_does_not_vote() -> None:
    """S0.3: its history may lack what it once acknowledged, so it must not help to elect."""
    replica = make_replica(records=[record(1)], shortfall=History(Term(1), Seq(2)))
    assert not replica.may_vote()


def test_history_in_elections_is_what_was_accepted_durable_or_not() -> None:
    """S1.2: a record that is accepted but not yet synced counts in a vote (NATS-044)."""
    bench = Bench(make_replica())
    bench.steady()
    bench.store_request(record(1), prev_term=0, inlined=True)
    assert bench.replica.durable_seq == 0
    assert bench.replica.history() == (1, 1)


def test_ack_of_another_term_is_not_counted() -> None:
    """S3.4: an ack of an earlier leadership speaks of another log, whatever match it names."""
    bench = Bench(make_replica(records=[record(1), record(2)]))
    bench.lead(3)
    bench.persist(3, term=3)
    bench.receive(ack(1, 3))
    assert bench.replica.commit_seq == 0
    assert bench.replica.progress()[N2].match_seq == 0


# --- S2 -------------------------------------------------------------------------------------------


def test_leader_appends_a_term_start_record_before_anything_else() -> None:
    """S2.2: the first record of a term is its own, so that it can commit what came before."""
    bench = Bench(make_replica(records=[record(1)]))
    bench.lead(2)
    bench.publish(9, term=2)
    kinds = [stored.kind for stored in bench.appended(bench.all_effects)]
    assert kinds == [RecordKind.TERM_START, RecordKind.ROWS]


def test_store_request_carries_the_term_of_the_record_before() -> None:
    """S2.3: without it a follower could not know whose seq - 1 it holds."""
    bench = Bench(make_replica(records=[record(1)]))
    bench.lead(2)
    assert {m.prev_term for m in bench.sent(StoreRequest)} == {1}
    bench.publish(9, term=2)
    assert {m.prev_term for m in bench.sent(StoreRequest)} == {2}


def test_live_record_is_not_appended_after_a_record_of_another_term() -> None:
    """S2.4: the right seq after the wrong predecessor would splice two histories."""
    bench = Bench(make_replica(records=[record(1)]))
    bench.follow(N2, 3)
    bench.store_request(record(2, term=3), prev_term=2, term=3, inlined=True)
    assert bench.replica.last_seq == 1
    assert bench.replica.verified_seq == 0


def test_steady_follower_leaves_the_live_queue_only_by_log_matching() -> None:
    """S6.3: an entry that does not follow our end sends the follower back to probing.

    Shows NATS-030, NATS-052.
    """
    bench = Bench(make_replica(records=[record(1)], term=3))
    bench.steady(term=3)
    assert bench.replica.mode is FollowerMode.STEADY
    bench.store_request(record(2, term=3), prev_term=2, term=3, inlined=True)
    assert bench.replica.last_seq == 1
    assert bench.replica.mode is FollowerMode.CATCHING_UP


def test_history_is_not_appended_after_a_record_of_another_term() -> None:
    """S2.4: a batch whose predecessor we do not hold is refused, and older terms are offered."""
    bench = Bench(make_replica(records=[record(1)]))
    bench.follow(N2, 3)
    request = last_request(bench)
    bench.sync(record(2, term=3), request_id=request.request_id, from_seq=2, prev_term=2, term=3)
    assert bench.replica.last_seq == 1
    assert last_request(bench).request_id > request.request_id


def test_held_record_is_acknowledged_without_waiting_for_its_payload() -> None:
    """S2.4: what the log holds at (term, seq) is only verified, never written again."""
    held = record(1)
    bench = Bench(make_replica(records=[held]))
    bench.steady()
    bench.store_request(held, prev_term=0)
    assert not bench.of(Append)
    assert not bench.replica.live_queue()
    assert [a.match_seq for a in bench.sent(StoreAck)] == [1]


def test_conflicting_tail_is_cut_and_replaced_in_one_step() -> None:
    """S2.4: another term at the seq is the proof of conflict, and only then something is cut."""
    bench = Bench(make_replica(records=[record(1), record(2), record(3)]))
    bench.follow(N2, 2)
    request = last_request(bench)
    effects = bench.sync(
        record(2, term=2), request_id=request.request_id, from_seq=2, prev_term=1, term=2
    )
    changes = [e for e in effects if isinstance(e, (Truncate, Append))]
    assert [type(change) for change in changes] == [Truncate, Append]
    assert bench.replica.history() == (2, 2)


def test_truncation_below_the_commit_seq_stops_the_node() -> None:
    """S2.5: a leader that contradicts a committed record proves that the protocol was broken."""
    bench = Bench(make_replica(records=[record(1)]))
    bench.follow(N2, 1)
    bench.receive(notice(1, 1, 1, commit_seq=1))
    assert bench.replica.commit_seq == 1
    bench.follow(N3, 2)
    request = last_request(bench)
    bench.sync(
        record(1, term=2),
        request_id=request.request_id,
        from_seq=1,
        prev_term=0,
        term=2,
        sender=N3,
    )
    assert bench.of(Halt)


def test_uncommitted_tail_stays_when_the_leader_changes() -> None:
    """S2.5: nobody cuts to the own commit seq (KIP-101): it may hold acknowledged records."""
    bench = Bench(make_replica(records=[record(1), record(2)]))
    bench.follow(N2, 2)
    bench.follow(None, 3)
    bench.follow(N3, 3)
    assert not bench.of(Truncate, bench.all_effects)
    assert bench.replica.last_seq == 2


# --- S6 -------------------------------------------------------------------------------------------


def test_history_of_anybody_but_the_leader_is_discarded() -> None:
    """S6.1: a batch of another member is not taken, even of the right term and request."""
    bench = Bench(make_replica())
    bench.follow(N2, 1)
    request = last_request(bench)
    fields = {"request_id": request.request_id, "from_seq": 1, "prev_term": 0}
    bench.sync(term_start(1, 1), sender=N3, **fields)
    assert bench.replica.last_seq == 0
    bench.sync(term_start(1, 1), sender=N2, **fields)
    assert bench.replica.last_seq == 1


def test_new_leader_is_probed_from_nothing_verified() -> None:
    """S6.2: what the old leader verified says nothing about the log of the new one."""
    bench = Bench(make_replica(records=[record(1), record(2)]))
    bench.steady()
    assert bench.replica.verified_seq == 2
    bench.follow(N3, 2)
    assert bench.replica.verified_seq == 0
    request = last_request(bench)
    assert request.from_seq == 0
    assert request.lineage == ((1, 2),)


def test_late_batch_of_the_old_leadership_is_discarded() -> None:
    """S6.1: a batch answers exactly the request that is under way."""
    bench = Bench(make_replica())
    bench.follow(N2, 1)
    request = last_request(bench)
    bench.follow(N3, 2)
    late = MsgSync(
        channel=CHANNEL,
        term=Term(1),
        request_id=request.request_id,
        from_seq=Seq(1),
        prev_term=Term(0),
        records=(term_start(1, 1),),
        commit_seq=Seq(0),
        last_seq=Seq(1),
        first_seq=Seq(1),
        done=True,
    )
    bench.receive(late, N2)
    assert bench.replica.last_seq == 0


# --- S13 ------------------------------------------------------------------------------------------


def test_second_leader_of_a_term_stops_the_node() -> None:
    """S13: two leaders in one term cannot be; a replica that sees both must not go on."""
    bench = Bench(make_replica())
    bench.follow(N2, 1)
    assert bench.of(Halt, bench.do(RoleChanged(Term(1), Role.FOLLOWER, N3)))


def test_lower_term_stops_the_node() -> None:
    """S13: a term never decreases."""
    bench = Bench(make_replica(term=4))
    assert bench.of(Halt, bench.do(RoleChanged(Term(3), Role.FOLLOWER, None)))


def test_other_chain_hash_at_a_committed_seq_serves_nothing_before_a_quorum_has_told() -> None:
    """S13: two histories below the commit seq: until then this one may be wrong (NATS-013)."""
    bench = Bench(make_replica(records=[record(1)]))
    bench.follow(N2, 1)
    bench.receive(notice(1, 1, 1, commit_seq=1))
    assert bench.of(HistoriesDiffer, bench.do(PeerHash(N3, Seq(1), b"x" * 16)))
    assert bench.replica.is_disputed
    assert not bench.replica.may_vote()


def test_metadata_without_its_payload_is_nothing() -> None:
    """S5.1: a StoreRequest alone is not stored, not acknowledged and not history."""
    bench = Bench(make_replica())
    bench.steady()
    bench.store_request(record(1), prev_term=0)
    bench.persist()
    assert bench.replica.history() == (0, 0)
    assert not bench.sent(StoreAck, bench.all_effects)


def test_missing_payload_is_fetched_after_a_moment() -> None:
    """S5.4: the follower waits for the publisher's copy, then asks the leader for that seq."""
    bench = Bench(make_replica())
    bench.steady()
    bench.store_request(record(1), prev_term=0)
    asked = len(bench.sent(MsgSyncRequest, bench.all_effects))
    bench.wait(bench.replica._state.settings.pubmsg_wait_ms)
    assert len(bench.sent(MsgSyncRequest, bench.all_effects)) == asked + 1


def test_payload_addressed_to_another_leader_is_never_sequenced() -> None:
    """S5.6: a leader that merely holds a copy must not make a refused write come true."""
    bench = Bench(make_replica())
    bench.lead(1)
    bench.publish(5, leader=N2)
    bench.publish(5, leader=N1, term=0)
    assert [stored.kind for stored in bench.appended(bench.all_effects)] == [RecordKind.TERM_START]
