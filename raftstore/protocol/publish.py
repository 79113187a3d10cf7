"""Publishing: a payload with its GUID, its outcome, and the question for a lost outcome."""

from __future__ import annotations

from raftstore.protocol.message import ChannelMessage, Message, Request
from raftstore.protocol.reads import Served
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    ChannelId,
    Count63,
    Digest,
    Guid,
    NodeId,
    RecordKind,
    RecordRows,
    RequestId,
    Seq,
    Small31,
    Term,
    TimeoutMs,
)


class PubMsg(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Publisher -> every replica: payload with its GUID, addressed to one leader (S5.6).

    ``attempt`` counts from 0 over retries with the same guid. ``relay_to`` names replicas the
    publisher cannot reach; the leader hands them the payload (PayloadRelay). ``after_seq`` proves
    the age of a retry: nothing of the guid is at or below it. ``is_settled``: every earlier attempt
    was answered NOT_APPLIED, so this one is as good as the first.
    """

    leader: NodeId
    guid: Guid
    digest: Digest
    rows: RecordRows
    kind: RecordKind
    payload: bytes
    attempt: Count63 = 0
    relay_to: tuple[NodeId, ...] = ()
    after_seq: Seq = Seq(0)
    is_settled: bool = False


class PubAck(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> publisher: committed. ``conflict`` (conditional writes only) says that the
    condition did not hold; the record is in the log but changed nothing. ``conflict_seq`` is the
    seq that the key has instead, 0 when the key is absent."""

    guid: Guid
    base_seq: Seq
    last_seq: Seq
    record_term: Term
    durability: str
    replicas_acked: Small31
    conflict: bool = False
    conflict_seq: Seq = Seq(0)


class PubReject(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader (or a wrong node) -> publisher. ``code`` is a RequestError.code; the class of that
    code says whether the outcome is NOT_APPLIED or UNKNOWN. ``attempt`` is the one it answers: a
    late or doubled refusal says nothing about a newer one (S12)."""

    guid: Guid
    code: str
    message: str
    leader_hint: NodeId | None = None
    attempt: Count63 = 0


class PayloadRelay(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> a replica that the publisher could not reach."""

    guid: Guid
    digest: Digest
    payload: bytes


PublishMessage = PubMsg | PubAck | PubReject


class WriteFate(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The question for the outcome of a write (N4), to the channel's leader."""

    channel: ChannelId
    guid: Guid
    timeout_ms: TimeoutMs


class WriteFateAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``fate``: committed (at ``term``, ``seq``), not_applied (and never will be) or unknown, with
    the reason. ``condition`` of a conditional write: held, conflict, unknown; none otherwise."""

    request_id: RequestId
    fate: str
    seq: Seq
    term: Term
    condition: str
    reason: str
    served: Served
