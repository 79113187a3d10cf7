"""Effects of each message on a replica in each state, tried out on the core itself (NATS-038)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from raftstore.core.effects import Effect, Send, SendIfKnown
from raftstore.core.events import (
    Applied,
    Broken,
    FreshnessRequested,
    HandOverRequested,
    ReadRequested,
    Received,
)
from raftstore.protocol.log_ends import AskLogEnd, LogEnd
from raftstore.protocol.payload_repair import (
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
from raftstore.protocol.publish import PayloadRelay, PubAck, PubMsg
from raftstore.protocol.replication import (
    AskApplied,
    CannotComplete,
    CaughtUp,
    CommitNotice,
    FreshReply,
    FreshRequest,
    MsgSync,
    MsgSyncRequest,
    ReadIndexReply,
    ReadIndexRequest,
    RemovedNotice,
    ReplicationMessage,
    StoreAck,
    StoreReject,
    StoreRequest,
)
from raftstore.types import History, LineageEntry, Role, Seq, Term
from tests.core_bench import (
    CHANNEL,
    N1,
    N2,
    Bench,
    digest_of,
    guid,
    make_replica,
    meta_of,
    pub_msg,
    record,
    term_start,
)

TERM: Final = Term(2)
LOG: Final = (term_start(1, 1), record(2), record(3))
"""What every replica of the table holds before its term began."""
NEXT: Final = record(5, term=2)
"""The record that the leader of the term sends after its term-start record."""


def _leader() -> Bench:
    bench = Bench(make_replica(N1, records=LOG))
    bench.lead(TERM)
    bench.persist(term=TERM)
    bench.receive(StoreAck(CHANNEL, TERM, Seq(4)))
    bench.publish(9, term=TERM)
    bench.persist(term=TERM)
    bench.do(Applied(Seq(4)))
    bench.do(ReadRequested(1))
    return bench


def _leader_that_hands_over() -> Bench:
    bench = _leader()
    bench.do(HandOverRequested(None, "asked"))
    return bench


def _probing() -> Bench:
    bench = Bench(make_replica(N1, records=LOG))
    bench.follow(N2, TERM)
    return bench


def _steady() -> Bench:
    bench = Bench(make_replica(N1, records=(*LOG, term_start(4, 2)), term=TERM))
    bench.steady(term=TERM)
    bench.hold(NEXT, term=TERM)
    return bench


def _without_leader() -> Bench:
    bench = Bench(make_replica(N1, records=LOG))
    bench.follow(None, TERM)
    return bench


def _recovering() -> Bench:
    bench = Bench(make_replica(N1, records=LOG, shortfall=History(TERM, Seq(9))))
    bench.follow(N2, TERM)
    return bench


def _stopped() -> Bench:
    bench = _steady()
    bench.receive(CommitNotice(CHANNEL, TERM, Seq(4), Seq(4), TERM, b""))
    bench.do(Broken("another history"))
    return bench


STATES: Final[Mapping[str, Callable[[], Bench]]] = {
    "leader": _leader,
    "leader, handing over": _leader_that_hands_over,
    "follower, steady": _steady,
    "follower, catching up": _probing,
    "without leader": _without_leader,
    "recovering (S0.3)": _recovering,
    "stopped (S13)": _stopped,
}


def _last_number(bench: Bench, kind: type[Any], field: str) -> int:
    """The number of the last question of a kind, for an answer that fits; 1 if there was none."""
    asked = [e.message for e in bench.all_effects if isinstance(e, Send | SendIfKnown)]
    return next((getattr(m, field) for m in reversed(asked) if isinstance(m, kind)), 1)


def _fresh_reply(bench: Bench, term: Term) -> FreshReply:
    """The answer to a FreshRequest of this replica, which it sends first if it may."""
    bench.do(FreshnessRequested(bench.now_ms + 1_000))
    return FreshReply(CHANNEL, term, _last_number(bench, FreshRequest, "round_id"), Seq(3))


_WRITE: Final = pub_msg(40, term=TERM)
_OFFERED: Final = OfferedWrite(_WRITE.guid, _WRITE.digest, len(_WRITE.payload), 0)


def _payload_response(bench: Bench, term: Term) -> PayloadResponse:
    """The answer to a PayloadRequest of this replica, which it sends first if it may."""
    bench.sources = (N2,)
    missing = record(6, term=2)
    bench.store_request(NEXT, missing, prev_term=TERM, term=TERM)
    bench.wait(100)
    number = _last_number(bench, PayloadRequest, "request_id")
    found = FoundPayload(missing.guid, missing.digest, missing.payload)
    return PayloadResponse(CHANNEL, term, number, (found,))


def _write_request(bench: Bench, term: Term) -> WriteRequest:
    """The question for a write that this replica holds, if it holds any."""
    write = pub_msg(40, leader=N2, term=TERM)
    bench.publish(40, leader=N2, term=TERM)
    return WriteRequest(
        CHANNEL, term, (OfferedWrite(write.guid, write.digest, len(write.payload), 0),)
    )


def _relayed_write(bench: Bench, term: Term) -> RelayedWrite:
    """A write that this replica asked for, if it may lead."""
    if bench.replica.role is Role.LEADER:
        bench.receive(WriteOffer(CHANNEL, TERM, (_OFFERED,)))
    return RelayedWrite(CHANNEL, term, _WRITE)


def _relayed_ack(bench: Bench, term: Term) -> RelayedAck:
    """The outcome of a write that this replica relayed, if it did."""
    if bench.replica.role is not Role.LEADER:
        bench.receive(_write_request(bench, TERM))
    ack = PubAck(CHANNEL, TERM, _WRITE.guid, Seq(6), Seq(6), TERM, "fsync", 2)
    return RelayedAck(CHANNEL, term, ack)


def message_of(kind: type[Any], bench: Bench, term: Term) -> Any:
    """A message of the kind as a healthy peer would send it now."""
    made: Mapping[type[Any], Callable[[], Any]] = {
        StoreRequest: lambda: StoreRequest(CHANNEL, term, TERM, Seq(4), (meta_of(NEXT),)),
        StoreAck: lambda: StoreAck(CHANNEL, term, Seq(5)),
        StoreReject: lambda: StoreReject(CHANNEL, term, "missing_pubmsg", Seq(5), NEXT.guid),
        CommitNotice: lambda: CommitNotice(CHANNEL, term, Seq(3), Seq(5), TERM, b""),
        MsgSyncRequest: lambda: MsgSyncRequest(
            CHANNEL, term, 1, Seq(0), (LineageEntry(Term(1), Seq(3)),), 1_000_000
        ),
        MsgSync: lambda: MsgSync(
            CHANNEL, term, _last_number(bench, MsgSyncRequest, "request_id"), Seq(4), Term(1),
            (term_start(4, 2),), Seq(3), Seq(4), Seq(1), done=True,
        ),
        CaughtUp: lambda: CaughtUp(CHANNEL, term, Seq(5)),
        CannotComplete: lambda: CannotComplete(CHANNEL, term, Seq(5), (1, 2)),
        ReadIndexRequest: lambda: ReadIndexRequest(CHANNEL, term, 1),
        ReadIndexReply: lambda: ReadIndexReply(
            CHANNEL, term, _last_number(bench, ReadIndexRequest, "round_id")
        ),
        FreshRequest: lambda: FreshRequest(CHANNEL, term, 1),
        FreshReply: lambda: _fresh_reply(bench, term),
        AskApplied: lambda: AskApplied(CHANNEL, term, Seq(1)),
        RemovedNotice: lambda: RemovedNotice(CHANNEL, term, Seq(3), Seq(3)),
        PayloadRelay: lambda: PayloadRelay(CHANNEL, term, guid(77), digest_of(b"x"), b"x"),
        PayloadRequest: lambda: PayloadRequest(
            CHANNEL, term, 1,
            (WantedPayload(Seq(3), LOG[2].guid, LOG[2].digest, len(LOG[2].payload)),), 1_000_000,
        ),
        PayloadResponse: lambda: _payload_response(bench, term),
        WriteOffer: lambda: WriteOffer(CHANNEL, term, (_OFFERED,)),
        WriteRequest: lambda: _write_request(bench, term),
        RelayedWrite: lambda: _relayed_write(bench, term),
        RelayedAck: lambda: _relayed_ack(bench, term),
        AskLogEnd: lambda: AskLogEnd(CHANNEL, term, 1, is_fence=False),
        LogEnd: lambda: LogEnd(CHANNEL, term, 1, History(TERM, Seq(5)), leads=False),
    }  # fmt: skip
    return made[kind]()


def replication_messages() -> list[type[Any]]:
    """Every message that replicas of a channel send each other."""
    return list(get_args(ReplicationMessage))


def effects_of(state: str, kind: type[Any], term: Term = TERM) -> list[Effect]:
    """Effects of one such message on the replica."""
    bench = STATES[state]()
    effects = bench.do(Received(N2, message_of(kind, bench, term)))
    # What is written is acknowledged when it is durable: the whole answer, in one cell.
    return effects + bench.persist(term=TERM) if effects else effects


def publish_effects(state: str) -> list[Effect]:
    """Effects of a write addressed to it in its term."""
    bench = STATES[state]()
    return bench.publish(30, term=TERM)


def cell(effects: list[Effect]) -> str:
    """The kinds of effects, in their order, each once."""
    names = [
        f"sends {type(effect.message).__name__}"
        if isinstance(effect, Send | SendIfKnown)
        else type(effect).__name__
        for effect in effects
    ]
    return ", ".join(dict.fromkeys(names)) or "nothing"


def role_table() -> list[list[str]]:
    """Head, one row a message, and the row of a write."""
    rows = [["message", *STATES]]
    rows += [
        [kind.__name__, *(cell(effects_of(state, kind)) for state in STATES)]
        for kind in replication_messages()
    ]
    rows.append([PubMsg.__name__, *(cell(publish_effects(state)) for state in STATES)])
    return rows
