"""Events that may happen to a replica. ``Replica.step(event, now_ms)`` accepts exactly these.

The engine fences before it steps (S1.4): a Received message always carries the replica's current
term; a lower one was answered with StaleTerm, a higher one was adopted (RoleChanged came first).
"""

from __future__ import annotations

import msgspec

from raftstore.errors import Refusal
from raftstore.ports.log import Base
from raftstore.protocol.publish import PubMsg
from raftstore.protocol.replication import ReplicationMessage
from raftstore.types import ChangeTarget, NodeId, Role, Seq, Term


class Received(msgspec.Struct, frozen=True):
    """A replication message of the current term from a member of the channel."""

    sender: NodeId
    message: ReplicationMessage


class PublishReceived(msgspec.Struct, frozen=True):
    """A publisher's message; ``client`` is the engine's handle to answer it (unique while open).

    ``refusal``: if the engine knows why a new write must not be sequenced; one that
    was sequenced before has its outcome all the same.
    """

    client: int
    message: PubMsg
    refusal: Refusal | None = None


class Persisted(msgspec.Struct, frozen=True):
    """The log of this channel is durable up to ``durable_seq`` and the term up to ``durable_term``.

    ``durable_seq`` never counts a record that was truncated meanwhile (the engine clips it).
    ``stored_seq``: what counts as stored at the durability of the table (S0.6); never below
    ``durable_seq``, and the same at ``fsync``.
    """

    durable_seq: Seq
    durable_term: Term
    stored_seq: Seq = Seq(0)


class PayloadSource(msgspec.Struct, frozen=True):
    """The replica to be asked for the payload of ``seq``; None: there is none to be asked."""

    seq: Seq
    node: NodeId | None


class RoleChanged(msgspec.Struct, frozen=True):
    """The elector's verdict: this replica's term, role, and the leader it knows of, if any.

    Also sent with unchanged values when the connection to the leader was re-established, so that a
    follower probes again.
    """

    term: Term
    role: Role
    leader: NodeId | None


class TimerFired(msgspec.Struct, frozen=True):
    """``next_deadline_ms()`` has passed."""


class Applied(msgspec.Struct, frozen=True):
    """The state machine has applied everything up to ``applied_seq``.

    ``conflicts``: for conditional records among them whose condition did not hold, the seq of the
    record -> the seq of the key's present value (0 = absent).
    """

    applied_seq: Seq
    conflicts: tuple[tuple[Seq, Seq], ...] = ()


class DisputeEnded(msgspec.Struct, frozen=True):
    """A quorum has the history that this replica has (S13)."""


class Broken(msgspec.Struct, frozen=True):
    """A committed record asks for what is not here, so that nothing behind it can be applied, or no
    quorum has the history that is here (S13)."""

    reason: str


class ReadRequested(msgspec.Struct, frozen=True):
    """Someone wants a linearizable read; answered by ReadReady or ReadRefused with the token."""

    token: int


class ReadsDropped(msgspec.Struct, frozen=True):
    """These linearizable reads were given up by their callers: they get no answer."""

    tokens: frozenset[int]


class FreshnessRequested(msgspec.Struct, frozen=True):
    """Someone waits until ``until_ms`` for a proof of how far the channel is committed (S7.3);
    answered by FreshnessProven, or not at all."""

    until_ms: int


class Stalled(msgspec.Struct, frozen=True):
    """The node stood still until now: no report of a leader counts, its own included, before a
    round trip that starts now or later (S7.3)."""


class StorageStalled(msgspec.Struct, frozen=True):
    """The node's disk has not finished an operation for long (S0.4); ``reason`` says which.

    None: it went on after all. A leader gives its leadership away to any voter but those in
    ``down``, and until then, or until it goes on, accepts no write and confirms no read.
    """

    reason: str | None
    down: tuple[NodeId, ...] = ()


class HandOverRequested(msgspec.Struct, frozen=True):
    """Give the leadership to ``target`` (None: any voter but those in ``down``): S9."""

    target: NodeId | None
    reason: str
    down: tuple[NodeId, ...] = ()
    """Nodes that the engine believes to be dead: what they held says nothing of who answers."""
    keeps_trying: bool = False
    """Who does not take over in time is followed by the next best; no write is accepted again."""


class PeerHash(msgspec.Struct, frozen=True):
    """A peer's chain hash at a committed seq (S13), and its number of micro-batches up to there;
    -1: not reported."""

    sender: NodeId
    seq: Seq
    commit_hash: bytes
    batches: int = -1


class TargetKnown(msgspec.Struct, frozen=True):
    """The order of this node's applied catalog for the channel; None: none is open (M22).

    ``config_seq_reported``: seq of the newest configuration that the catalog has a report of.
    """

    target: ChangeTarget | None
    config_seq_reported: Seq = Seq(0)


class TrimTo(msgspec.Struct, frozen=True):
    """Records up to ``base`` may leave the log: the table survives a power cut at or above it, and
    nothing needs them any more (S6.5). The base was made of the log's own records (S6.7)."""

    base: Base


LocalEvent = (
    PublishReceived
    | Persisted
    | RoleChanged
    | TimerFired
    | Applied
    | ReadRequested
    | ReadsDropped
    | FreshnessRequested
    | Stalled
    | StorageStalled
    | HandOverRequested
    | PeerHash
    | DisputeEnded
    | Broken
    | TrimTo
    | TargetKnown
    | PayloadSource
)
"""What the node itself brings."""
Event = Received | LocalEvent
