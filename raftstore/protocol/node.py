"""Between nodes: introductions, heartbeats, positions and members of channels, refilled holes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from raftstore.protocol.message import ChannelMessage, Message
from raftstore.protocol.records import Record
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    FOUNDING_NUMBER,
    ChannelConfig,
    ChannelId,
    Count63,
    FailureDomain,
    NodeId,
    ReplicaNumber,
    RequestId,
    Seq,
    Small31,
    Term,
    Told63,
    WallMs,
)


class Hello(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """First frame of both sides of every connection. ``node`` is empty for clients.

    ``purpose`` is "peer" (bulk), "control" (heartbeats and elections), "client", "query",
    "operator" or "birth".
    ``cluster_id`` is empty before birth. A mismatch of cluster, store UUID or version is refused
    with Goodbye (S0.1, S12).
    """

    protocol_version: Small31
    purpose: str
    cluster_id: bytes
    node: str
    boot_id: bytes
    advertise: str = ""
    level: Small31 = 0
    """What the node reads beyond the first version (docs/protocol.md); clients report none."""
    failure_domain: FailureDomain = ""
    """What fails together with the node; empty: it did not say."""
    dialled: str = ""
    """The node that the dialler means: another one at that address refuses to be taken for it.
    Empty: it is of a version that does not say."""


class Goodbye(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Last frame before the sender closes; ``code`` and ``message`` say why and what to do."""

    code: str
    message: str


class Heartbeat(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node every send interval, on the control connection.

    ``leading_digest`` covers the (channel, term) pairs the sender leads and the receiver also
    hosts (S1.8); ``sent_ms`` is the sender's wall clock, used for a skew metric only (KLIP-31).
    """

    boot_id: bytes
    counter: Count63
    sent_ms: WallMs
    leading_digest: bytes
    heard_receiver: bool = False


class LeadershipRequest(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The receiver's digest did not match: please send the list."""


class LeadershipList(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Every (channel, term) the sender leads and the receiver hosts."""

    boot_id: bytes
    leading: tuple[tuple[ChannelId, Term], ...]


class InSync(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The followers that keep up with a leader, as it knows them (FIP-06)."""

    nodes: tuple[NodeId, ...]
    """Those whose logs do; standbys in sync come first."""
    standbys_in_sync: Count63
    """The first so many of them have applied nearly all of it, too."""

    @property
    def standbys(self) -> tuple[NodeId, ...]:
        """Standbys in sync (ISS)."""
        return self.nodes[: self.standbys_in_sync]


class ChannelPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One replica's position in one channel, as its node reports it (KLIP-35, S13)."""

    channel: ChannelId
    term: Term
    is_leader: bool
    applied_seq: Seq
    commit_seq: Seq
    last_seq: Seq
    commit_hash: bytes
    commit_batches: Told63 = -1
    applied_batches: Told63 = -1
    """Micro-batches committed as far as known, and applied; -1: not reported."""
    replica: ReplicaNumber = FOUNDING_NUMBER
    in_sync: InSync | None = None
    """Of a leader; None: it does not know yet, or is of an older version."""


class Run(NamedTuple):
    """Consecutive seqs of one term in a log."""

    term: Term
    first: Seq
    last: Seq


class Hole(NamedTuple):
    """Records that a replica lost out of the middle or the end of its log (S0.3)."""

    from_seq: Seq
    to_seq: Seq
    prev_term: Term
    """Of the record in front of it; 0: there is none."""
    runs: tuple[Run, ...]
    """What the log has held. A log with one of them held the same records before it (S2.4);
    empty: nothing proves what belongs into the hole."""


class RefillRequest(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node: give back what my log lost; any node that holds it may."""

    channel: ChannelId
    request_id: RequestId
    hole: Hole
    max_bytes: Small31


class Refill(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer: records from the start of the hole on, none if the sender has none to give.

    ``leader_term``: the sender leads the channel in that term and has committed in it; 0: no.
    """

    channel: ChannelId
    request_id: RequestId
    records: tuple[Record, ...]
    leader_term: Term


class LagReport(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node: positions of all replicas of the sender. ``updated_ms`` is the sender's wall
    clock for display; ages are measured by arrival on the receiver's monotonic clock."""

    updated_ms: WallMs
    positions: tuple[ChannelPosition, ...]
    counter: Count63 = 0
    """Grows with each report of one boot of the sender."""
    http: str = ""
    """host:port of the sender's HTTP interface; empty: none."""
    room: Count63 = 0
    """What the sender's disk has room for, as in ``DiskRoom``; a greater number is less."""
    given_away: tuple[tuple[ChannelId, Count63], ...] = ()
    """Channels whose leadership the sender gave away because an operator asked, and for how many ms
    they stay where they are; only to voters of the metadata channel."""


class ConfigReport(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader of ``term`` -> leader of the metadata channel: the configuration record at
    ``config_seq`` of the channel's log is committed (M21). Repeated until the catalog holds it."""

    config_seq: Seq
    config_term: Term
    config: ChannelConfig


NodeMessage = (
    Heartbeat
    | LeadershipRequest
    | LeadershipList
    | LagReport
    | RefillRequest
    | Refill
    | ConfigReport
)

HandshakeMessage = Hello | Goodbye
