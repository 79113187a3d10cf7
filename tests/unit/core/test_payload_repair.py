"""Payloads that a replica misses are asked for before it catches up (S5.4, S5.6, NATS-061..067)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftstore.config import MIB, ReplicationSettings
from raftstore.core.chain import digest_of
from raftstore.core.effects import AskPayloads, GivePayloads, TakeWrite
from raftstore.core.events import PayloadSource, TimerFired
from raftstore.core.payload_repair import SOURCES_MAX
from raftstore.protocol.payload_repair import (
    GAPS_MAX,
    PAYLOADS_MAX,
    FoundPayload,
    OfferedWrite,
    PayloadRequest,
    PayloadResponse,
    RelayedAck,
    RelayedWrite,
    WantedPayload,
    WriteOffer,
    WriteRequest,
)
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.protocol.records import Record
from raftstore.protocol.replication import MsgSyncRequest, StoreReject
from raftstore.types import FollowerMode, NodeId, Role, Seq, Term
from tests.core_world import (
    CHANNEL,
    N1,
    N2,
    N3,
    Bench,
    guid,
    make_replica,
    pub_msg,
    record,
    term_start,
)


def steady(*sources: NodeId, **options: Any) -> Bench:
    """A steady follower of n2 in term 1 whose log ends at seq 2; ``sources`` can be asked."""
    bench = Bench(make_replica(N1, records=[term_start(1, 1), record(2)], **options))
    bench.steady()
    bench.sources = sources
    return bench


def wanted(stored: Record) -> WantedPayload:
    """The description of a record's payload."""
    return WantedPayload(stored.base_seq, stored.guid, stored.digest, len(stored.payload))


def found(stored: Record, **changed: Any) -> FoundPayload:
    """A record's payload, maybe not as it should be."""
    right = FoundPayload(stored.guid, stored.digest, stored.payload)
    return msgspec.structs.replace(right, **changed)


def response(request: PayloadRequest, *payloads: FoundPayload) -> PayloadResponse:
    """The answer to a request."""
    return PayloadResponse(CHANNEL, Term(1), request.request_id, payloads)


def asking(bench: Bench, *missing: Record) -> PayloadRequest:
    """The request for these records, whose metadata is reported and whose wait is over."""
    bench.store_request(*missing)
    (request,) = bench.sent(PayloadRequest, bench.wait(100))
    assert isinstance(request, PayloadRequest)
    return request


# --- a follower misses payloads -------------------------------------------------------------------


def test_missing_payload_is_asked_for_before_a_catch_up() -> None:
    """NATS-205, S5.4: the leader is asked after the wait, and nothing gets out of sync."""
    bench = steady(N2, N3)
    request = asking(bench, record(3), record(4))
    assert request.wanted == (wanted(record(3)), wanted(record(4)))
    assert bench.replica.mode is FollowerMode.STEADY
    effects = bench.receive(response(request, found(record(3)), found(record(4))))
    assert bench.appended(effects) == [record(3), record(4)]
    assert bench.sent(StoreReject, bench.all_effects) == []
    assert bench.replica.mode is FollowerMode.STEADY
    assert bench.replica.statistics().payloads_repaired == 2


def test_only_what_is_missing_is_asked_for() -> None:
    """NATS-202: a payload that is held is not sent again."""
    bench = steady(N2)
    bench.hold(record(4))
    assert asking(bench, record(3), record(4), record(5)).wanted == (
        wanted(record(3)),
        wanted(record(5)),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"guid": guid(99)},
        {"digest": digest_of(b"another")},
        {"payload": b"p3 and more"},
        {"payload": b"P3"},
    ],
    ids=["guid", "digest", "length", "content"],
)
def test_payload_that_does_not_match_its_metadata_is_not_taken(wrong: dict[str, Any]) -> None:
    """S5.2: guid, length and checksum are those of the StoreRequest, from any replica."""
    bench = steady(N2, N3)
    request = asking(bench, record(3))
    effects = bench.receive(response(request, found(record(3), **wrong)))
    assert bench.appended(effects) == []
    assert bench.replica.statistics().pending_payloads.messages == 0
    (again,) = bench.sent(PayloadRequest, effects)
    assert bench.appended(bench.receive(response(again, found(record(3))), N3)) == [record(3)]


def test_what_nobody_asked_for_is_not_held() -> None:
    """S5.3: the cache is for what is wanted: an answer cannot fill it."""
    bench = steady(N2)
    request = asking(bench, record(3))
    bench.receive(response(request, found(record(77)), found(record(3))))
    assert bench.replica.statistics().pending_payloads.messages == 0
    assert bench.replica.last_seq == 3


def test_answer_of_another_request_or_node_is_not_taken() -> None:
    """A late or strange answer says nothing about the question that is open."""
    bench = steady(N2)
    request = asking(bench, record(3))
    assert bench.receive(response(request, found(record(3))), N3) == []
    late = msgspec.structs.replace(request, request_id=request.request_id - 1)
    assert bench.receive(response(late, found(record(3)))) == []
    assert bench.appended(bench.receive(response(request, found(record(3))))) == [record(3)]


def test_sources_are_asked_one_after_the_other_and_then_it_catches_up() -> None:
    """NATS-061, NATS-062: bounded in time, and catch-up is the last resort."""
    bench = steady(N2, N3)
    bench.store_request(record(3))
    asked = []
    for _ in range(2):
        effects = bench.wait(100)
        asked += [len(bench.sent(PayloadRequest, effects)), len(bench.sent(StoreReject, effects))]
    assert asked == [1, 0, 1, 0]
    effects = bench.wait(100)
    (reject,) = bench.sent(StoreReject, effects)
    assert (reject.reason, reject.seq) == ("missing_pubmsg", 3)
    assert len(bench.sent(MsgSyncRequest, effects)) == 1


def test_empty_answer_leads_to_the_next_source_at_once() -> None:
    """A replica that lacks it, too, costs one round trip and no wait."""
    bench = steady(N2, N3)
    request = asking(bench, record(3))
    (second,) = bench.sent(PayloadRequest, bench.receive(response(request)))
    effects = bench.receive(response(second), N3)
    assert [r.reason for r in bench.sent(StoreReject, effects)] == ["missing_pubmsg"]


def test_no_more_sources_are_asked_than_the_bound() -> None:
    """Bounded in number: with many replicas a catch-up comes sooner than the last answer."""
    nodes = tuple(NodeId(f"n{number}") for number in range(10, 20))
    bench = steady(*nodes)
    bench.store_request(record(3))
    effects = bench.wait(100 * (SOURCES_MAX + 1))
    assert len(bench.sent(PayloadRequest, effects)) == SOURCES_MAX
    assert len(bench.sent(StoreReject, effects)) == 1


@pytest.mark.parametrize("missing", [PAYLOADS_MAX, PAYLOADS_MAX + 1])
def test_large_gap_is_left_to_catch_up(missing: int) -> None:
    """NATS-205: payloads are repaired for gaps of at most 64 records."""
    bench = steady(N2)
    bench.store_request(*(record(seq) for seq in range(3, 3 + missing)))
    effects = bench.wait(100)
    is_repaired = missing <= PAYLOADS_MAX
    assert [len(r.wanted) for r in bench.sent(PayloadRequest, effects)] == [missing] * is_repaired
    assert len(bench.sent(StoreReject, effects)) == (not is_repaired)


def test_payload_that_comes_by_itself_ends_the_question() -> None:
    """The publisher's copy was only slow: the late answer changes nothing."""
    bench = steady(N2)
    request = asking(bench, record(3))
    assert bench.appended(bench.hold(record(3))) == [record(3)]
    assert bench.receive(response(request, found(record(3)))) == []
    assert bench.replica.statistics().pending_payloads.messages == 0


def test_source_that_is_chosen_too_late_is_not_asked() -> None:
    """The engine's answer to an old question asks nobody."""
    bench = steady()
    assert bench.do(PayloadSource(Seq(3), N2)) == []
    bench.store_request(record(3))
    assert bench.do(PayloadSource(Seq(3), N2)) == []


def test_request_is_bounded_in_bytes() -> None:
    """At most replication.sync_batch_bytes_max of payloads are asked for at once."""
    bench = steady(N2, settings=ReplicationSettings(sync_batch_bytes_max=MIB // 4))
    assert asking(bench, record(3)).max_bytes == MIB // 4


# --- any replica gives what it has ----------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.LEADER, Role.FOLLOWER])
def test_payloads_in_the_log_are_given_in_any_role(role: Role) -> None:
    """NATS-205: any replica that reports the seq may be asked."""
    bench = Bench(make_replica(N1, records=[term_start(1, 1), record(2)]))
    if role is Role.LEADER:
        bench.lead(2)
    else:
        bench.follow(N2, 2)
    request = PayloadRequest(CHANNEL, Term(2), 9, (wanted(record(2)), wanted(record(8))), MIB)
    (give,) = bench.of(GivePayloads, bench.receive(request, N3))
    assert (give.to, give.request_id, give.held) == (N3, 9, ())
    assert give.stored == (wanted(record(2)),)
    assert give.bytes_max == MIB


def test_payloads_in_front_of_the_log_are_given() -> None:
    """A payload that a follower holds and cannot store yet helps another one."""
    bench = steady()
    bench.hold(record(4))
    request = PayloadRequest(CHANNEL, Term(1), 9, (wanted(record(3)), wanted(record(4))), MIB)
    (give,) = bench.of(GivePayloads, bench.receive(request, N3))
    assert give.held == (found(record(4)),)
    assert give.stored == ()


def test_what_is_given_is_bounded_in_bytes_and_number() -> None:
    """One payload at least, then as many bytes as were asked for."""
    bench = steady()
    large = [record(seq, payload=bytes([seq]) * 100) for seq in range(10, 20)]
    for stored in large:
        bench.hold(stored)
    asked = tuple(wanted(stored) for stored in large)
    for most, count in ((1, 1), (250, 2), (10_000, 10)):
        request = PayloadRequest(CHANNEL, Term(1), 9, asked, most)
        (give,) = bench.of(GivePayloads, bench.receive(request, N3))
        assert len(give.held) == count
    many = PayloadRequest(CHANNEL, Term(1), 9, (wanted(record(2)),) * 100, MIB)
    (give,) = bench.of(GivePayloads, bench.receive(many, N3))
    assert len(give.stored) == PAYLOADS_MAX


# --- the leader misses a write --------------------------------------------------------------------


def offer_of(message: PubMsg) -> OfferedWrite:
    """A write without its payload."""
    return OfferedWrite(message.guid, message.digest, len(message.payload), message.attempt)


def published(bench: Bench, counter: int = 3, client: int = 7, **fields: Any) -> PubMsg:
    """A publisher's message reaches this follower of n2, and no StoreRequest follows."""
    message = pub_msg(counter, leader=N2, **fields)
    bench.publish(counter, client, leader=N2, **fields)
    return message


def test_write_that_no_store_request_names_is_offered_to_its_leader_once() -> None:
    """NATS-064: the follower reports to the leader what it holds, and neither steps down nor
    cuts."""
    bench = steady()
    message = published(bench)
    assert bench.wait(249) == []
    (offer,) = bench.sent(WriteOffer, bench.wait(1))
    assert offer.writes == (offer_of(message),)
    assert bench.wait(5_000) == []
    assert bench.replica.mode is FollowerMode.STEADY


@pytest.mark.parametrize("fields", [{"leader": N3}, {"term": 2}], ids=["leader", "term"])
def test_write_addressed_to_another_is_not_offered(fields: dict[str, Any]) -> None:
    """S5.6: only the leader addressed, in the term addressed, ever gives it a seq."""
    bench = steady()
    bench.publish(3, 7, **({"leader": N2} | fields))
    assert bench.wait(1_000) == []


def test_write_whose_store_request_came_is_not_offered() -> None:
    """Its leader knows it: what is missing is in front of it."""
    bench = steady(N2)
    bench.hold(record(4))
    bench.store_request(record(3), record(4))
    assert bench.sent(WriteOffer, bench.wait(299)) == []


def test_follower_that_catches_up_offers_nothing() -> None:
    """It does not know what the leader has."""
    bench = steady()
    published(bench)
    bench.store_request(record(3))
    bench.wait(100)
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    assert bench.sent(WriteOffer, bench.wait(1_000)) == []


def test_offers_are_bounded() -> None:
    """At most 64 writes: a leader that says nothing of more has another trouble."""
    bench = steady()
    for counter in range(3, 3 + 2 * PAYLOADS_MAX):
        published(bench, counter)
    (offer,) = bench.sent(WriteOffer, bench.wait(1_000))
    assert len(offer.writes) == PAYLOADS_MAX


def test_follower_relays_what_the_leader_asks_for_and_hands_its_answer_on() -> None:
    """NATS-065, S4.4: the OK is the leader's; it reaches the publisher through the follower."""
    bench = steady()
    message = published(bench, client=42)
    request = WriteRequest(CHANNEL, Term(1), (offer_of(message),))
    (relayed,) = bench.sent(RelayedWrite, bench.receive(request))
    assert relayed.write == message
    ack = PubAck(CHANNEL, Term(1), message.guid, Seq(3), Seq(3), Term(1), "fsync", 2)
    assert bench.replies(bench.receive(RelayedAck(CHANNEL, Term(1), ack))) == [(42, ack)]
    assert bench.receive(RelayedAck(CHANNEL, Term(1), ack)) == []


def test_only_the_leader_is_given_writes() -> None:
    """S5.6: a write goes to the leader that it is addressed to and to nobody else."""
    bench = steady()
    message = published(bench)
    request = WriteRequest(CHANNEL, Term(1), (offer_of(message),))
    assert bench.receive(request, N3) == []
    assert bench.receive(WriteRequest(CHANNEL, Term(1), ()), N2) == []
    other = steady()
    strange = pub_msg(3, leader=N3)
    other.publish(3, 7, leader=N3)
    assert other.receive(WriteRequest(CHANNEL, Term(1), (offer_of(strange),))) == []


def leader() -> Bench:
    """The ready leader of term 1."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.persist()
    return bench


def test_leader_fetches_a_write_that_it_missed() -> None:
    """NATS-065, NATS-198: it neither steps down nor fails; the write is judged as a late one."""
    bench, message = leader(), pub_msg(5)
    (request,) = bench.sent(
        WriteRequest,
        bench.receive(WriteOffer(CHANNEL, Term(1), (offer_of(message),)), N2),
    )
    assert request.writes == (offer_of(message),)
    effects = bench.receive(RelayedWrite(CHANNEL, Term(1), message), N2)
    assert bench.of(TakeWrite, effects) == [TakeWrite(N2, message)]
    assert bench.replica.role is Role.LEADER


def test_leader_asks_for_nothing_that_it_knows() -> None:
    """NATS-066: a write with a seq, a refused attempt and one under way are not fetched again."""
    bench = leader()
    bench.publish(5)
    bench.publish(6, rows=0)  # refused
    known, refused, newer = pub_msg(5), pub_msg(6), pub_msg(6, attempt=1)
    offers = tuple(map(offer_of, (known, refused, newer)))
    (request,) = bench.sent(WriteRequest, bench.receive(WriteOffer(CHANNEL, Term(1), offers), N2))
    assert request.writes == (offer_of(newer),)
    assert bench.receive(WriteOffer(CHANNEL, Term(1), offers), N3) == []
    bench.wait(100)
    assert len(bench.sent(WriteRequest, bench.receive(WriteOffer(CHANNEL, Term(1), offers), N3)))


def test_writes_under_way_to_the_leader_are_bounded() -> None:
    """NATS-066: at most 64 are asked for and not there yet."""
    bench = leader()
    offers = [offer_of(pub_msg(counter)) for counter in range(5, 5 + 2 * PAYLOADS_MAX)]
    first, second = (tuple(offers[at : at + PAYLOADS_MAX]) for at in (0, PAYLOADS_MAX))
    bench.receive(WriteOffer(CHANNEL, Term(1), first), N2)
    assert bench.receive(WriteOffer(CHANNEL, Term(1), second), N2) == []


@pytest.mark.parametrize(
    "message",
    [
        pub_msg(6),
        pub_msg(5, payload=b"something else"),
        pub_msg(5, leader=N2),
        pub_msg(5, term=2),
        pub_msg(5, attempt=1),
        msgspec.structs.replace(pub_msg(5), payload=b"another length"),
    ],
    ids=["guid", "digest", "leader", "term", "attempt", "length"],
)
def test_relayed_write_that_was_not_offered_so_is_not_judged(message: PubMsg) -> None:
    """S5.6: only what was asked for, addressed to this leader in this term."""
    bench = leader()
    bench.receive(WriteOffer(CHANNEL, Term(1), (offer_of(pub_msg(5)),)), N2)
    assert bench.receive(RelayedWrite(CHANNEL, Term(1), message), N2) == []


def test_relayed_write_of_another_node_is_not_judged() -> None:
    """The node that was asked gives it."""
    bench = leader()
    bench.receive(WriteOffer(CHANNEL, Term(1), (offer_of(pub_msg(5)),)), N2)
    assert bench.receive(RelayedWrite(CHANNEL, Term(1), pub_msg(5)), N3) == []


def test_late_payloads_do_not_disturb_a_leader() -> None:
    """A leader asked for none; it is no second leader that speaks (S13)."""
    bench = leader()
    assert bench.receive(PayloadResponse(CHANNEL, Term(1), 3, (found(record(3)),)), N2) == []


def test_leader_offers_nothing_and_its_timer_goes_on() -> None:
    """The writes that it held as a follower were addressed to another; their time passes."""
    bench = steady()
    published(bench)
    bench.lead(2)
    bench.now_ms += 300
    effects = bench.do(TimerFired())
    assert bench.sent(WriteOffer, effects) == []
    assert (bench.replica.next_deadline_ms() or 0) > bench.now_ms


# --- gaps -----------------------------------------------------------------------------------------


def test_gaps_are_what_is_missing_in_front_of_what_is_held() -> None:
    """NATS-207: metadata without payload, and seqs of which nothing was reported."""
    bench = steady()
    assert bench.replica.gaps() == (2, ())
    for seq in (4, 8):
        bench.hold(record(seq))
    bench.store_request(record(3), record(4))
    assert bench.replica.gaps() == (4, ((3, 3),))
    bench.store_request(record(7), record(8))
    assert bench.replica.gaps() == (8, ((3, 3), (5, 7)))
    bench.hold(record(3))
    assert bench.replica.gaps()[1][0] == (5, 7)


def test_at_most_sixteen_gaps_are_told() -> None:
    """NATS-207: the last of them covers what is beyond."""
    bench = steady()
    records = [record(seq) for seq in range(3, 63)]
    for stored in records[1::2]:
        bench.hold(stored)
    bench.store_request(*records)
    end_seq, gaps = bench.replica.gaps()
    assert (end_seq, len(gaps)) == (62, GAPS_MAX)
    assert gaps[0] == (3, 3)
    assert gaps[-1] == (33, 61)


def test_leader_has_no_gaps() -> None:
    """S2.1: its log is what the others are measured by."""
    assert leader().replica.gaps() == (1, ())


def test_rows_of_a_record_count_in_gaps() -> None:
    """Seqs count rows."""
    bench = steady()
    bench.store_request(record(3, rows=5))
    assert bench.replica.gaps() == (7, ((3, 7),))


def test_ask_names_whom_it_asked() -> None:
    """The engine chooses somebody else each time."""
    bench = steady(N2, N3)
    bench.store_request(record(3))
    asks = bench.of(AskPayloads, bench.wait(300))
    assert [ask.asked for ask in asks] == [(), (N2,), (N2, N3)]
