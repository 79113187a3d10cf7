"""One replica on a bench, and the records and messages that tests of the core are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raftstore.config import CatchUpSettings, ReplicationSettings
from raftstore.core.chain import digest_of
from raftstore.core.effects import (
    Append,
    AskPayloads,
    Effect,
    Reply,
    Send,
    SendIfKnown,
)
from raftstore.core.events import (
    Event,
    PayloadSource,
    Persisted,
    PublishReceived,
    Received,
    RoleChanged,
    TimerFired,
)
from raftstore.core.found_table import FOUND_TABLE, FoundTable
from raftstore.core.history import Lineage
from raftstore.core.replica import Replica
from raftstore.ports.log import EMPTY_BASE, Base, RecoveredChannel
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubMsg
from raftstore.protocol.records import Record, RecordMeta
from raftstore.protocol.replication import MsgSync, StoreRequest
from raftstore.types import (
    NO_GUID,
    ChannelConfig,
    Guid,
    History,
    NodeId,
    RecordKind,
    ReplicaNumber,
    Role,
    Seq,
    Term,
    channel_id,
    make_guid,
    node_id,
)

CHANNEL = channel_id(bytes(range(16)), 0)
N1, N2, N3, N4, N5 = (node_id(f"n{i}", bytes([i] * 16)) for i in (1, 2, 3, 4, 5))
OUTSIDER = node_id("n9", bytes([9] * 16))
TRIO = ChannelConfig(((N1, N2, N3),))
SESSION = b"session1"

AT_ONCE_MAX = 100
"""Timers due at one moment that a step may ask for; more of them are a loop without an end."""


def guid(counter: int, session: bytes = SESSION) -> Guid:
    """The GUID of the counter-th write of a test's publisher."""
    return make_guid(session, counter)


def record(
    base_seq: int,
    *,
    term: int = 1,
    rows: int = 1,
    counter: int | None = None,
    payload: bytes | None = None,
    kind: RecordKind = RecordKind.ROWS,
    timestamp_ms: int | None = None,
    session: bytes = SESSION,
) -> Record:
    """A record with a payload and digest that fit each other."""
    body = f"p{base_seq}".encode() if payload is None else payload
    return Record(
        term=Term(term),
        base_seq=Seq(base_seq),
        rows=rows,
        guid=guid(base_seq if counter is None else counter, session),
        timestamp_ms=base_seq * 10 if timestamp_ms is None else timestamp_ms,
        digest=digest_of(body),
        kind=kind,
        payload=body,
    )


def term_start(base_seq: int, term: int) -> Record:
    """The record a leader puts first in its term."""
    return Record(
        Term(term),
        Seq(base_seq),
        1,
        NO_GUID,
        base_seq * 10,
        digest_of(b""),
        RecordKind.TERM_START,
        b"",
    )


def meta_of(stored: Record, *, inlined: bool = False) -> RecordMeta:
    """The metadata of a record in a StoreRequest."""
    return RecordMeta(
        stored.term,
        stored.base_seq,
        stored.rows,
        stored.guid,
        stored.timestamp_ms,
        stored.digest,
        len(stored.payload),
        stored.kind,
        stored.payload if inlined else None,
    )


def pub_msg(
    counter: int,
    *,
    leader: NodeId = N1,
    term: int = 1,
    payload: bytes | None = None,
    rows: int = 1,
    kind: RecordKind = RecordKind.ROWS,
    attempt: int = 0,
    relay_to: tuple[NodeId, ...] = (),
    session: bytes = SESSION,
    after_seq: int = 0,
    is_settled: bool = False,
) -> PubMsg:
    """A publish of the test's publisher."""
    body = f"value {counter}".encode() if payload is None else payload
    return PubMsg(
        channel=CHANNEL,
        term=Term(term),
        leader=leader,
        guid=guid(counter, session),
        digest=digest_of(body),
        rows=rows,
        kind=kind,
        payload=body,
        attempt=attempt,
        relay_to=relay_to,
        after_seq=Seq(after_seq),
        is_settled=is_settled,
    )


def lineage_of(records: Iterable[Record]) -> Lineage:
    """The runs of terms of a log."""
    lineage = Lineage()
    for stored in records:
        lineage.append(stored)
    return lineage


def make_replica(
    me: NodeId = N1,
    *,
    records: Iterable[Record] = (),
    term: int | None = None,
    applied_seq: int = 0,
    config: ChannelConfig = TRIO,
    settings: ReplicationSettings | None = None,
    catch_up: CatchUpSettings | None = None,
    shortfall: History | None = None,
    first_round_id: int = 0,
    base: Base = EMPTY_BASE,
    found: FoundTable = FOUND_TABLE,
    in_doubt: bool = False,
    number: int = 0,
) -> Replica:
    """A replica opened on a log that holds ``records`` durably, behind ``base``."""
    held = list(records)
    lineage = lineage_of(held)
    end = lineage.last if held else base.history
    recovered = RecoveredChannel(
        channel=CHANNEL,
        term=end.term if term is None else Term(term),
        voted_for=None,
        lineage=tuple(reversed(lineage.newest())),
        last_seq=end.seq,
        shortfall=shortfall,
        base=base,
        in_doubt=in_doubt,
    )
    return Replica(
        me=me,
        channel=CHANNEL,
        creation_config=config,
        settings=settings or ReplicationSettings(),
        catch_up=catch_up or CatchUpSettings(),
        durability="fsync",
        recovered=recovered,
        records=held,
        applied_seq=Seq(applied_seq),
        first_round_id=first_round_id,
        found=found,
        number=ReplicaNumber(number),
    )


class Bench:
    """One replica on a bench: events go in one by one, effects are looked at."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.now_ms = 1_000
        self.effects: list[Effect] = []
        self.all_effects: list[Effect] = []
        self.sources: tuple[NodeId, ...] = ()
        """Nodes that can be asked for payloads, in this order; none: all are of older levels."""

    def do(self, event: Event) -> list[Effect]:
        """Step with an event; the effects of this step are returned and kept.

        Whom to ask for a payload is answered at once, by ``sources``.
        """
        self.effects = self.replica.step(event, self.now_ms)
        for effect in tuple(self.effects):
            if isinstance(effect, AskPayloads):
                left = [node for node in self.sources if node not in effect.asked]
                chosen = PayloadSource(effect.seq, left[0] if left else None)
                self.effects += self.replica.step(chosen, self.now_ms)
        self.all_effects += self.effects
        return self.effects

    def lead(self, term: int = 1, me: NodeId = N1) -> list[Effect]:
        """Win a term."""
        return self.do(RoleChanged(Term(term), Role.LEADER, me))

    def follow(self, leader: NodeId | None = N2, term: int = 1) -> list[Effect]:
        """Follow a leader, with the term durable at once."""
        effects = self.do(RoleChanged(Term(term), Role.FOLLOWER, leader))
        return effects + self.persist(self.replica.durable_seq, term=term)

    def receive(self, message: Any, sender: NodeId = N2) -> list[Effect]:
        """A message of a peer."""
        return self.do(Received(sender, message))

    def publish(self, counter: int, client: int = 7, **fields: Any) -> list[Effect]:
        """A publish."""
        return self.do(PublishReceived(client, pub_msg(counter, **fields)))

    def hold(self, stored: Record, leader: NodeId = N2, term: int = 1) -> list[Effect]:
        """The publisher's payload of a record arrives, addressed to the leader."""
        message = PubMsg(
            CHANNEL,
            Term(term),
            leader,
            stored.guid,
            stored.digest,
            stored.rows,
            stored.kind,
            stored.payload,
        )
        return self.do(PublishReceived(1, message))

    def persist(self, durable_seq: int | None = None, *, term: int | None = None) -> list[Effect]:
        """The log is durable up to a seq (default: its end)."""
        seq = self.replica.last_seq if durable_seq is None else Seq(durable_seq)
        return self.do(Persisted(seq, self.replica.term if term is None else Term(term)))

    def store_request(
        self,
        *records: Record,
        prev_term: int = 1,
        term: int = 1,
        commit_seq: int = 0,
        sender: NodeId = N2,
        inlined: bool = False,
    ) -> list[Effect]:
        """A StoreRequest of the leader."""
        metas = tuple(meta_of(stored, inlined=inlined) for stored in records)
        request = StoreRequest(CHANNEL, Term(term), Term(prev_term), Seq(commit_seq), metas)
        return self.receive(request, sender)

    def sync(
        self,
        *records: Record,
        request_id: int,
        from_seq: int,
        prev_term: int,
        last_seq: int | None = None,
        term: int = 1,
        commit_seq: int = 0,
        sender: NodeId = N2,
        first_seq: int = 1,
        next_seq: int = 0,
    ) -> list[Effect]:
        """A MsgSync of the leader; ``last_seq`` defaults to the end of the batch."""
        end = records[-1].last_seq if records else from_seq - 1
        last = end if last_seq is None else last_seq
        message = MsgSync(
            channel=CHANNEL,
            term=Term(term),
            request_id=request_id,
            from_seq=Seq(from_seq),
            prev_term=Term(prev_term),
            records=tuple(records),
            commit_seq=Seq(commit_seq),
            last_seq=Seq(last),
            first_seq=Seq(first_seq),
            done=end >= last and from_seq >= first_seq,
            next_seq=Seq(next_seq),
        )
        return self.receive(message, sender)

    def wait(self, ms: int) -> list[Effect]:
        """Let time pass, firing the timer at every deadline on the way."""
        end, effects, fired = self.now_ms + ms, [], 0
        while True:
            due = self.replica.next_deadline_ms()
            if due is None or due > end:
                break
            fired = fired + 1 if due <= self.now_ms else 0
            assert fired <= AT_ONCE_MAX, f"the timer of {due} is due again and again"
            self.now_ms = max(self.now_ms, due)
            effects += self.do(TimerFired())
        self.now_ms = end
        return effects

    def sent(self, kind: type[Message], effects: list[Effect] | None = None) -> list[Any]:
        """Messages of a kind sent in the last step (or in the given effects)."""
        looked_at = self.effects if effects is None else effects
        sends = [e for e in looked_at if isinstance(e, Send | SendIfKnown)]
        return [e.message for e in sends if isinstance(e.message, kind)]

    def of(self, kind: type[Any], effects: list[Effect] | None = None) -> list[Any]:
        """Effects of a kind in the last step (or in the given effects)."""
        return [e for e in (self.effects if effects is None else effects) if isinstance(e, kind)]

    def appended(self, effects: list[Effect] | None = None) -> list[Record]:
        """Records appended in the last step (or in the given effects)."""
        return [stored for effect in self.of(Append, effects) for stored in effect.records]

    def replies(self, effects: list[Effect] | None = None) -> list[tuple[int, Any]]:
        """(client, answer) of the last step (or of the given effects)."""
        return [(effect.client, effect.message) for effect in self.of(Reply, effects)]

    def steady(self, *records: Record, leader: NodeId = N2, term: int = 1) -> None:
        """Follow a leader whose log equals ours, up to steady state."""
        self.follow(leader, term)
        requests = [m for e in self.all_effects for m in self.sent(Message, [e])]
        request = next(m for m in reversed(requests) if hasattr(m, "max_bytes"))
        last = self.replica.history()
        self.sync(
            request_id=request.request_id,
            from_seq=last.seq + 1,
            prev_term=last.term,
            term=term,
            sender=leader,
        )
        for stored in records:
            self.hold(stored, leader, term)
