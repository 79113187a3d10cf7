"""Effects that a replica may ask for. The engine executes those of one step IN LIST ORDER.

Ordering duties (the engine must keep them, the core relies on them):

* ``Append`` and ``Truncate`` enter the node's log in list order; they are durable only when the
  engine says so with ``Persisted``. A StoreAck is only ever produced by a step on ``Persisted`` or
  bounded by what was persisted, so an ack before durability cannot be written by accident (S0.5).
* ``Send`` may leave at once. A StoreRequest precedes the leader's own ``Append`` on purpose
  (NATS-049); the leader counts itself only after its own ``Persisted`` (S3.3).
* ``CommitAdvanced`` may only be applied to the state machine up to ``min(commit_seq, durable
  seq)`` and strictly in seq order (S10); the core already bounds ``apply_to`` that way.
* ``Halt`` stops the whole node with exit code 70 before anything else is sent (S0.4).
"""

from __future__ import annotations

import msgspec

from raftstore.core.statistics import CatchUpView
from raftstore.errors import RequestError
from raftstore.ports.log import Base
from raftstore.protocol.payload_repair import FoundPayload, WantedPayload
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.records import Record
from raftstore.protocol.replication import MsgSyncRequest, ReplicationMessage
from raftstore.types import ChannelConfig, FollowerMode, NodeId, RequestId, Seq, Term


class Send(msgspec.Struct, frozen=True):
    """Send a message to one member; it may be lost."""

    to: NodeId
    message: ReplicationMessage


class PayloadEffect(msgspec.Struct, frozen=True):
    """Base of what repairs of missing payloads ask for."""


class SendIfKnown(PayloadEffect, frozen=True):
    """Send a message of a kind that came with a level to one member, if it reported that level."""

    to: NodeId
    message: ReplicationMessage


class AskPayloads(PayloadEffect, frozen=True):
    """Choose the replica that is asked for the payload of ``seq``, none of ``asked``; the answer is
    the event ``PayloadSource`` (S5.4)."""

    seq: Seq
    asked: tuple[NodeId, ...]


class GivePayloads(PayloadEffect, frozen=True):
    """Send ``held`` as PayloadResponse to ``to``, and of ``stored`` what the log has, at most
    ``bytes_max`` of it, or one payload if there is none else."""

    to: NodeId
    term: Term
    request_id: RequestId
    held: tuple[FoundPayload, ...]
    stored: tuple[WantedPayload, ...]
    bytes_max: int


class TakeWrite(PayloadEffect, frozen=True):
    """Leader: judge this publisher's message, which ``sender`` relayed, as one of a client (S5.6).
    Its outcome goes to ``sender`` as RelayedAck."""

    sender: NodeId
    write: PubMsg


class Append(msgspec.Struct, frozen=True):
    """Append records to the log, contiguous with it."""

    records: tuple[Record, ...]


class Truncate(msgspec.Struct, frozen=True):
    """Remove every record with base_seq >= from_seq; only on proof of conflict (S2.5)."""

    from_seq: Seq


class Rebase(msgspec.Struct, frozen=True):
    """The log begins behind this base from now on; records behind it stay (S6.5)."""

    base: Base


class Reply(msgspec.Struct, frozen=True):
    """Answer a publisher. The handle may be gone; then the answer is dropped."""

    client: int
    message: PubAck | PubReject


class CommitAdvanced(msgspec.Struct, frozen=True):
    """Apply records up to ``apply_to`` (committed and durable here)."""

    commit_seq: Seq
    apply_to: Seq


class ServeSync(msgspec.Struct, frozen=True):
    """Leader: read records from ``from_seq`` (bounded by the request's max_bytes, at least one
    record when there is one) and send them to ``to`` as MsgSync with these positions."""

    to: NodeId
    request: MsgSyncRequest
    term: Term
    from_seq: Seq
    prev_term: Term
    commit_seq: Seq
    last_seq: Seq
    first_seq: Seq = Seq(1)
    """The oldest seq that the log still holds; below it nothing is read (S6.6)."""


class ReadReady(msgspec.Struct, frozen=True):
    """A linearizable read may be answered from state with applied_seq >= ``read_seq`` (S7.1).

    Emitted only when that is already applied here.
    """

    token: int
    read_seq: Seq


class ReadRefused(msgspec.Struct, frozen=True):
    """The read cannot be confirmed here."""

    token: int
    error: type[RequestError]
    message: str


class FreshnessProven(msgspec.Struct, frozen=True):
    """The commit position known here is complete as of ``known_ms`` (S7.3): reads that wait
    for that may look again."""

    known_ms: int


class StepDown(msgspec.Struct, frozen=True):
    """Leader: give up the role, keep the term (no quorum contact, or asked to)."""

    reason: str


class TransferLeadership(msgspec.Struct, frozen=True):
    """Leader: the target is durable and equal to our end; ask it to take over (S9)."""

    to: NodeId


class HandOverFailed(msgspec.Struct, frozen=True):
    """The hand-over is off; the leader accepts writes again (S9). ``was_asked``: the target was
    asked to take over and may still do so."""

    reason: str
    was_asked: bool = False


class CatchUpNote(msgspec.Struct, frozen=True):
    """News of catching up, to be reported; nothing waits for it."""


class ModeChanged(CatchUpNote, frozen=True):
    """For status and logs: the follower's mode and why (NATS-028, NATS-131)."""

    mode: FollowerMode
    reason: str


class ReplicaSnapshotNeeded(msgspec.Struct, frozen=True):
    """This replica cannot go on behind ``have_seq``: the records that follow are held by nobody it
    may fetch them from, the first that are begin at ``first_seq`` (S6.6). Only a snapshot helps."""

    have_seq: Seq
    first_seq: Seq


class CatchUpPaced(CatchUpNote, frozen=True):
    """A replica that catches up is so far (NATS-140): reported once in each window of time."""

    view: CatchUpView


class CannotCatchUp(CatchUpNote, frozen=True):
    """This replica falls further behind all the time (NATS-150). ``deltas``: how far, at the ends
    of the last windows."""

    deltas: tuple[int, ...]
    verified_seq: Seq


class ReplicaFlapping(CatchUpNote, frozen=True):
    """This replica left steady state again and again, the last time for ``reason``: it stays with
    history for so long (NATS-153)."""

    reason: str
    stay_ms: int


class ReplicaCannotComplete(CatchUpNote, frozen=True):
    """Leader: this follower said that it cannot catch up."""

    node: NodeId
    deltas: tuple[int, ...]


class HistoriesDiffer(msgspec.Struct, frozen=True):
    """A peer has another chain hash at a seq that is committed on both: ask who is wrong (S13)."""

    whose: NodeId
    seq: Seq


class DoubtEffect(msgspec.Struct, frozen=True):
    """Base of what a replica asks for that may have lost records (S0.6)."""


class RaiseTerm(DoubtEffect, frozen=True):
    """Take over a higher term without a vote, before this replica asks others to do so (S0.6)."""

    term: Term


class DoubtEnded(DoubtEffect, frozen=True):
    """Everything that this replica acknowledged is in its log again, as far as any replica holds it
    (S0.6)."""


class ConfigCommitted(msgspec.Struct, frozen=True):
    """The configuration record at ``seq`` is known to be committed (M21); of several that become
    so at once, the newest. A leader says it again when a record of its own term is committed."""

    seq: Seq
    term: Term
    config: ChannelConfig


class StopServing(msgspec.Struct, frozen=True):
    """Nothing can be applied, or histories differ: stop serving this channel, keep all (S13)."""

    reason: str


class Halt(msgspec.Struct, frozen=True):
    """An impossible state: the node stops with exit code 70 (S0.4, S13)."""

    reason: str


Effect = (
    Send
    | Append
    | Truncate
    | Rebase
    | Reply
    | CommitAdvanced
    | ServeSync
    | ReadReady
    | ReadRefused
    | FreshnessProven
    | StepDown
    | TransferLeadership
    | HandOverFailed
    | ReplicaSnapshotNeeded
    | CatchUpNote
    | HistoriesDiffer
    | StopServing
    | ConfigCommitted
    | DoubtEffect
    | Halt
    | SendIfKnown
    | AskPayloads
    | GivePayloads
    | TakeWrite
)
