"""A follower correlates, verifies, appends in order, and acks only what is both (S2, S3, S5)."""

from __future__ import annotations

import msgspec
import pytest

from raftstore.config import ReplicationSettings
from raftstore.core.chain import digest_of
from raftstore.core.effects import Append, CommitAdvanced, Halt, ModeChanged, Send, Truncate
from raftstore.core.events import Persisted, PublishReceived, RoleChanged
from raftstore.errors import DecodeError
from raftstore.protocol.codec import decode, encode
from raftstore.protocol.message import Message
from raftstore.protocol.payload_repair import WriteOffer
from raftstore.protocol.publish import PayloadRelay, PubMsg
from raftstore.protocol.records import Record, RecordMeta
from raftstore.protocol.replication import (
    CommitNotice,
    MsgSyncRequest,
    StoreAck,
    StoreReject,
    StoreRequest,
)
from raftstore.types import (
    BASE_SEQ_MAX,
    RECORD_ROWS_MAX,
    SEQ_MAX,
    FollowerMode,
    RecordKind,
    Role,
    Seq,
    Term,
)
from tests.core_world import CHANNEL, N1, N2, N3, Bench, guid, make_replica, record, term_start


def steady(*records: object, **options: object) -> Bench:
    """A steady follower of n2 in term 1 whose log is [term start, record 2]."""
    bench = Bench(make_replica(N1, records=[term_start(1, 1), record(2)], **options))  # type: ignore[arg-type]
    bench.steady()
    return bench


def notice(
    commit_seq: int, last_seq: int, *, last_term: int = 1, term: int = 1, commit_hash: bytes = b""
) -> CommitNotice:
    """The leader's positions."""
    return CommitNotice(
        CHANNEL, Term(term), Seq(commit_seq), Seq(last_seq), Term(last_term), commit_hash
    )


def acks(bench: Bench) -> list[int]:
    """Matches acknowledged in the last step."""
    return [ack.match_seq for ack in bench.sent(StoreAck)]


@pytest.mark.parametrize("payload_first", [True, False])
def test_payload_and_metadata_correlate_in_either_order(payload_first: bool) -> None:
    """NATS-041: whichever comes first waits for the other; only then is anything written."""
    bench, stored = steady(), record(3)
    if payload_first:
        assert bench.of(Append, bench.hold(stored)) == []
        bench.store_request(stored)
    else:
        assert bench.of(Append, bench.store_request(stored)) == []
        bench.hold(stored)
    assert bench.appended() == [stored]


def test_ack_leaves_only_when_the_record_is_durable() -> None:
    """S0.5: accepting is not acknowledging."""
    bench, stored = steady(), record(3)
    bench.hold(stored)
    bench.store_request(stored)
    assert acks(bench) == []
    bench.persist()
    assert acks(bench) == [3]


def test_ack_leaves_only_when_the_term_is_durable() -> None:
    """S0.5: a record that carries no new term does not make the term durable."""
    bench = Bench(make_replica(N1, records=[record(1)]))
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2))
    bench.store_request(term_start(2, 2), term=2, inlined=True)
    bench.do(Persisted(Seq(2), Term(1)))
    assert acks(bench) == []
    bench.do(Persisted(Seq(2), Term(2)))
    assert acks(bench) == [2]


def test_metadata_alone_is_never_acknowledged() -> None:
    """S5.1: an ack means payload and metadata are durable together."""
    bench, stored = steady(), record(3)
    bench.store_request(stored)
    bench.do(Persisted(Seq(2), Term(1)))
    assert bench.replica.history() == (1, 2)
    assert acks(bench) == []


@pytest.mark.parametrize("field", ["digest", "payload"])
def test_payload_that_is_not_described_does_not_correlate(field: str) -> None:
    """S5.2: guid alone is not enough; digest and content must be those of the StoreRequest."""
    bench, stored = steady(), record(3)
    wrong = b"another payload"
    digest = digest_of(wrong) if field == "digest" else stored.digest
    message = PubMsg(CHANNEL, Term(1), N2, stored.guid, digest, 1, stored.kind, wrong)
    bench.do(PublishReceived(1, message))
    bench.store_request(stored)
    assert bench.appended() == []
    assert bench.appended(bench.hold(stored)) == [stored]


def test_relayed_payload_serves_as_well_as_the_publishers() -> None:
    """A payload handed on by the leader correlates; from anybody else it is ignored."""
    bench, stored = steady(), record(3)
    relay = PayloadRelay(CHANNEL, Term(1), stored.guid, stored.digest, stored.payload)
    bench.store_request(stored)
    assert bench.of(Append, bench.receive(relay, N3)) == []
    assert bench.appended(bench.receive(relay, N2)) == [stored]


def test_records_are_written_in_seq_order_behind_a_missing_payload() -> None:
    """S5.4: later StoreRequests queue behind the missing one; the log has no holes."""
    bench = steady()
    third, fourth = record(3), record(4)
    bench.store_request(third)
    bench.store_request(fourth)
    assert bench.of(Append, bench.hold(fourth)) == []
    assert bench.replica.live_queue() == ((3, 3), (4, 4))
    assert bench.appended(bench.hold(third)) == [third, fourth]


def test_missing_payload_leads_to_catch_up_after_the_wait() -> None:
    """S5.4, NATS-061: wait pubmsg_wait_ms, reject, then fetch the record."""
    bench = steady()
    bench.store_request(record(3))
    assert bench.wait(99) == []
    effects = bench.wait(1)
    (reject,) = bench.sent(StoreReject, effects)
    assert (reject.reason, reject.seq, reject.guid) == ("missing_pubmsg", 3, record(3).guid)
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    (request,) = bench.sent(MsgSyncRequest, effects)
    assert request.from_seq == 3


@pytest.mark.parametrize("later", [record(3), record(4), record(5)], ids=["same", "next", "gap"])
def test_traffic_does_not_prolong_the_wait_for_a_payload(later: Record) -> None:
    """S5.4: a channel with much traffic asks as soon as a quiet one, or it would wait for ever."""
    bench = steady()
    bench.store_request(record(3))
    for _ in range(3):
        assert bench.wait(30) == []
        if later.base_seq != 3:
            bench.hold(later)
        bench.store_request(later)
        assert bench.replica.mode is FollowerMode.STEADY
    (reject,) = bench.sent(StoreReject, bench.wait(10))
    assert (reject.reason, reject.seq) == ("missing_pubmsg", 3)


def test_each_missing_payload_has_the_whole_wait() -> None:
    """S5.4: the wait of one record is over when it is written."""
    bench = steady()
    bench.store_request(record(3))
    bench.store_request(record(4))
    bench.wait(90)
    bench.hold(record(3))
    assert bench.wait(99) == []
    (reject,) = bench.sent(StoreReject, bench.wait(1))
    assert (reject.reason, reject.seq) == ("missing_pubmsg", 4)


def test_orphan_payload_is_dropped_without_a_word() -> None:
    """S5.3: no error, no truncation, no step-down; the leader heard of it before (S5.6)."""
    bench = steady()
    bench.hold(record(3))
    assert len(bench.sent(WriteOffer, bench.wait(250))) == 1
    assert bench.wait(3_000) == []
    assert bench.replica.statistics().pending_payloads.messages == 0
    assert bench.replica.mode is FollowerMode.STEADY


def test_payload_of_a_record_in_the_log_is_not_held_again() -> None:
    """A retry's payload does not pile up."""
    bench = steady()
    bench.hold(record(2))
    assert bench.replica.statistics().pending_payloads.messages == 0


def test_store_request_that_does_not_follow_our_log_is_refused() -> None:
    """S2.4: the follower accepts a seq only if it holds (prev_term, seq - 1)."""
    bench, stored = steady(), record(3, term=1)
    bench.hold(stored)
    effects = bench.store_request(stored, prev_term=0)
    assert bench.of(Append, effects) == []
    (reject,) = bench.sent(StoreReject)
    assert reject.reason == "prev_term_mismatch"


def test_gap_in_store_requests_leads_to_catch_up_at_once() -> None:
    """NATS-086: a missing seq is seen with the next StoreRequest; nothing is written past it."""
    bench, stored = steady(), record(4)
    bench.hold(stored)
    effects = bench.store_request(stored)
    assert bench.of(Append, effects) == []
    assert [reject.reason for reject in bench.sent(StoreReject)] == ["gap"]
    assert bench.sent(MsgSyncRequest)[0].from_seq == 3


def test_repeated_store_request_is_acknowledged_only() -> None:
    """S2.4: who holds (term, seq) already acks and writes nothing."""
    bench = steady()
    effects = bench.store_request(record(2))
    assert bench.of(Append, effects) == []
    assert acks(bench) == [2]


def test_conflicting_tail_is_cut_and_replaced_in_one_batch() -> None:
    """S2.4: the same seq in another term is truncated and appended in the same step."""
    log = [record(1), record(2), record(3), record(4)]
    bench = Bench(make_replica(N1, records=log))
    bench.do(RoleChanged(Term(3), Role.FOLLOWER, N2))
    bench.persist(term=3)
    mine = record(3, term=3, counter=30)
    effects = bench.store_request(mine, term=3, prev_term=1, inlined=True)
    cut = [effect for effect in effects if isinstance(effect, Append | Truncate)]
    assert cut == [Truncate(Seq(3)), Append((mine,))]
    assert bench.replica.history() == (3, 3)
    assert bench.replica.durable_seq == 2


def test_truncation_below_the_commit_position_halts() -> None:
    """S2.5: what is committed is never cut; the node stops instead."""
    bench = Bench(make_replica(N1, records=[record(1), record(2)], applied_seq=2))
    bench.do(RoleChanged(Term(3), Role.FOLLOWER, N2))
    effects = bench.store_request(record(2, term=3), term=3, prev_term=1, inlined=True)
    assert [type(effect) for effect in effects] == [Halt]


def test_longer_log_than_the_leaders_is_kept_but_not_acknowledged() -> None:
    """S2.5, S3.4: the leader not knowing our tail is no proof; it is neither cut nor acked."""
    log = [record(1), record(2), record(3)]
    bench = Bench(make_replica(N1, records=log))
    bench.follow(N2, term=2)
    (request,) = bench.sent(MsgSyncRequest, bench.all_effects)
    bench.sync(request_id=request.request_id, from_seq=3, prev_term=1, last_seq=2, term=2)
    assert bench.replica.last_seq == 3
    assert bench.of(Truncate, bench.all_effects) == []
    assert acks(bench) == [2]


def test_ack_is_what_was_verified_never_the_end_of_the_log() -> None:
    """S3.4: durable but unverified records are not acknowledged to a new leader (NATS-054): a
    follower that catches up counts for what is verified (NATS-132)."""
    log = [record(1), record(2), record(3)]
    bench = Bench(make_replica(N1, records=log))
    bench.follow(N2, term=2)
    assert acks(bench) == []
    bench.receive(notice(0, 2, last_term=1, term=2))
    assert acks(bench) == [2]


def test_new_leader_starts_with_nothing_verified() -> None:
    """S3.4, S6.2: what was verified against the old leader proves nothing to the new one."""
    bench = steady()
    assert bench.replica.verified_seq == 2
    bench.follow(N3, term=2)
    assert bench.replica.verified_seq == 0
    bench.persist()
    assert acks(bench) == []


def test_commit_position_is_bounded_by_what_is_verified() -> None:
    """S3.5: the leader's commit seq says nothing about records not compared with its log."""
    log = [record(1), record(2), record(3)]
    bench = Bench(make_replica(N1, records=log))
    bench.follow(N2, term=2)
    bench.receive(notice(9, 9, last_term=2, term=2))
    assert bench.replica.commit_seq == 0
    assert bench.replica.known_leader_commit_seq == 9
    (request,) = bench.sent(MsgSyncRequest, bench.all_effects)
    bench.sync(
        request_id=request.request_id, from_seq=3, prev_term=1, term=2, last_seq=9, commit_seq=9
    )
    assert bench.replica.commit_seq == 2


def test_follower_applies_only_what_is_durable_here() -> None:
    """S10: the table never runs ahead of the durable log."""
    bench, stored = steady(), record(3)
    bench.hold(stored)
    effects = bench.store_request(stored, commit_seq=3)
    assert bench.of(CommitAdvanced, effects) == [CommitAdvanced(Seq(3), Seq(2))]
    assert bench.of(CommitAdvanced, bench.persist()) == [CommitAdvanced(Seq(3), Seq(3))]


def test_commit_notice_brings_an_idle_follower_to_lag_zero() -> None:
    """S3.5: the position arrives by itself, is applied and confirmed."""
    bench = steady()
    effects = bench.receive(notice(2, 2))
    assert bench.of(CommitAdvanced, effects) == [CommitAdvanced(Seq(2), Seq(2))]
    assert [(ack.match_seq, ack.commit_seq) for ack in bench.sent(StoreAck)] == [(2, 2)]


def test_lost_store_request_is_noticed_by_the_next_notice() -> None:
    """NATS-036: the leader's end above ours reveals it; the follower says so and catches up."""
    bench = steady()
    bench.receive(notice(2, 3))
    assert [reject.reason for reject in bench.sent(StoreReject)] == ["missing_store_request"]
    assert bench.sent(MsgSyncRequest)[0].from_seq == 3


def test_notice_about_a_record_in_the_live_queue_is_no_loss() -> None:
    """A record that only waits for its payload is not missing."""
    bench = steady()
    bench.store_request(record(3))
    bench.receive(notice(2, 3))
    assert bench.sent(StoreReject) == []


def test_follower_tells_the_end_of_the_last_record_that_can_be_named() -> None:
    """S12: what a record says of its seqs leaves no range: its leader can read the refusal."""
    bench = steady(settings=ReplicationSettings(live_queue_messages_max=1))
    bench.store_request(record(3))
    said = msgspec.structs.replace(record(4), base_seq=Seq(BASE_SEQ_MAX), rows=RECORD_ROWS_MAX)
    bench.store_request(said)
    (reject,) = bench.sent(StoreReject)
    assert reject.seq == SEQ_MAX
    assert decode(encode(reject)) == reject
    beyond = RecordMeta(
        Term(1), Seq(BASE_SEQ_MAX + 1), 1, guid(4), 1, bytes(16), 0, RecordKind.ROWS
    )
    with pytest.raises(DecodeError, match="base_seq of a StoreRequest is 922337203685471"):
        decode(encode(StoreRequest(CHANNEL, Term(1), Term(1), Seq(0), (beyond,))))


def test_full_live_queue_in_steady_state_leads_to_catch_up() -> None:
    """S6.3: beyond the bound entries are dropped, so the follower must fetch them."""
    bench = steady(settings=ReplicationSettings(live_queue_messages_max=2))
    for seq in (3, 4, 5):
        bench.store_request(record(seq))
    assert [reject.reason for reject in bench.sent(StoreReject)] == ["live_queue_overflow"]
    assert bench.replica.statistics().live_queue.messages == 2


def test_messages_of_another_term_or_sender_are_not_looked_at() -> None:
    """S1.4, S6.1: only the leader of the present term is listened to."""
    bench, stored = steady(), record(3)
    bench.hold(stored)
    assert bench.store_request(stored, term=0) == []
    assert bench.store_request(stored, term=2) == []
    assert bench.store_request(stored, sender=N3) == []
    assert bench.receive(notice(2, 2), N3) == []
    assert bench.replica.last_seq == 2


def test_messages_meant_for_a_leader_are_ignored() -> None:
    """A late ack to what this node was does nothing."""
    bench = steady()
    assert bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N2) == []


def test_follower_that_knows_no_leader_waits() -> None:
    """Without a leader nothing is asked and nothing is due."""
    bench = Bench(make_replica(N1, records=[record(1)]))
    bench.follow(None, term=2)
    assert bench.of(Send, bench.all_effects) == []
    assert bench.replica.next_deadline_ms() is None


def test_mode_changes_are_told_with_their_reason() -> None:
    """NATS-028, NATS-131: every transition has a reason."""
    bench = steady()
    bench.store_request(record(4))
    modes = [(e.mode.value, e.reason) for e in bench.of(ModeChanged, bench.all_effects)]
    assert modes == [("catching_up", "restart"), ("steady", "caught_up"), ("catching_up", "gap")]


def test_reconnected_follower_asks_again_and_keeps_what_it_verified() -> None:
    """The engine repeats the role when the connection is new: what was in flight is lost."""
    bench = steady()
    effects = bench.do(RoleChanged(Term(1), Role.FOLLOWER, N2))
    (request,) = bench.sent(MsgSyncRequest, effects)
    assert request.from_seq == 3
    assert bench.replica.verified_seq == 2
    bench.sync(request_id=request.request_id, from_seq=3, prev_term=1)
    assert bench.replica.mode is FollowerMode.STEADY


def test_follower_sends_nothing_but_answers() -> None:
    """NATS-002: a follower never sends a StoreRequest."""
    bench, stored = steady(), record(3)
    bench.hold(stored)
    bench.store_request(stored)
    bench.persist()
    kinds = {type(message).__name__ for message in bench.sent(Message, bench.all_effects)}
    assert kinds == {"MsgSyncRequest", "StoreAck", "CaughtUp"}
