"""Between the replicas of a channel: storing, committing, catching up, confirming reads.

Every message carries ``channel`` and the sender's ``term`` (safety contract S1.4).
"""

from __future__ import annotations

from collections.abc import Iterator

from raftstore.protocol.log_ends import LogEndMessage
from raftstore.protocol.message import ChannelMessage, Message
from raftstore.protocol.payload_repair import RepairMessage
from raftstore.protocol.publish import PayloadRelay
from raftstore.protocol.records import Record, RecordMeta
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    FOUNDING_NUMBER,
    Count63,
    Guid,
    LineageEntry,
    ReplicaNumber,
    RequestId,
    Seq,
    Term,
    Told63,
)


class StoreRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> followers: metadata of consecutive records; ``prev_term`` is the term of the seq
    before the first of them (S2.3, S2.4). Also announces the leader of ``term``."""

    prev_term: Term
    commit_seq: Seq
    records: tuple[RecordMeta, ...]


class StoreAck(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> leader, cumulative: everything up to ``match_seq`` is durable here and verified
    against this term's leader (S3.4). ``commit_seq`` is the commit position the follower knows:
    the leader repeats what did not arrive (S3.5)."""

    match_seq: Seq
    applied_seq: Seq = Seq(0)
    commit_seq: Seq = Seq(0)
    replica: ReplicaNumber = FOUNDING_NUMBER
    """The sender's: of a node's replicas only the one that the configuration names is counted (M4).
    """


class StoreReject(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> leader: why it leaves steady state. ``reason`` is missing_pubmsg,
    missing_store_request, gap, prev_term_mismatch or live_queue_overflow."""

    reason: str
    seq: Seq
    guid: Guid
    replica: ReplicaNumber = FOUNDING_NUMBER


class CommitNotice(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> followers while nothing else carries it (S3.5): commit position, the end of the
    leader's log, and the chain hash at ``commit_seq`` (S13; empty when not known)."""

    commit_seq: Seq
    last_seq: Seq
    last_term: Term
    commit_hash: bytes
    commit_batches: Told63 = -1
    """Micro-batches in the committed prefix; -1: not reported."""


class MsgSyncRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> leader: send history from ``from_seq``; 0 asks the leader to find the match point
    from ``lineage`` (newest first, bounded; S2.6)."""

    request_id: RequestId
    from_seq: Seq
    lineage: tuple[LineageEntry, ...]
    max_bytes: Count63
    replica: ReplicaNumber = FOUNDING_NUMBER


class MsgSync(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> follower: consecutive records from ``from_seq``; ``prev_term`` is the term of the
    seq before it. ``done``: the last record is the leader's end. ``first_seq`` is the oldest seq
    the leader still has; above ``from_seq``: history was trimmed, there are no records, and nothing
    but a snapshot helps (S6.6). ``next_seq``: where the answer to a question behind this one will
    end, and one more; 0: not reported."""

    request_id: RequestId
    from_seq: Seq
    prev_term: Term
    records: tuple[Record, ...]
    commit_seq: Seq
    last_seq: Seq
    first_seq: Seq
    done: bool
    next_seq: Seq = Seq(0)


class CaughtUp(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> leader: back in steady state at ``seq``."""

    seq: Seq
    replica: ReplicaNumber = FOUNDING_NUMBER


class CannotComplete(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> leader: at ``seq`` I fall further behind all the time (NATS-150). ``deltas``: how
    far, at the ends of the last windows of time."""

    seq: Seq
    deltas: tuple[Count63, ...]


class ReadIndexRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> voters: confirm that ``term`` is still yours (S7.1)."""

    round_id: RequestId


class ReadIndexReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Voter -> leader: ``term`` is still mine and you lead it."""

    round_id: RequestId
    replica: ReplicaNumber = FOUNDING_NUMBER


class StaleTerm(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Any replica -> the sender of a lower term: ``term`` is mine, adopt it (NATS-031)."""


class FreshRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Replica -> leader of ``term``: prove that you lead, and answer how far the channel is
    committed (S7.1, S7.3)."""

    round_id: RequestId
    replica: ReplicaNumber = FOUNDING_NUMBER


class FreshReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> replica: proven by a ReadIndex round that started after the request came, nothing
    was committed above ``read_seq`` when the request was sent."""

    round_id: RequestId
    read_seq: Seq
    batches: Told63 = -1
    """Micro-batches in the log up to ``read_seq``; -1: not reported."""


class AskApplied(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> the replica that shall lead: acknowledge once more when your table shows everything
    up to ``seq`` (FIP-10, FIP-20)."""

    seq: Seq


class RemovedNotice(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> a replica that no configuration from ``config_seq`` on names: stop standing and
    asking for history (M13). A hint: nothing is deleted by it, and no configuration changes.
    ``replica``: the number of the one that is meant."""

    config_seq: Seq
    commit_seq: Seq
    replica: ReplicaNumber = FOUNDING_NUMBER


class ReplicationBundle(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node: what many channels of the sender say to that node in one turn. Each message is
    fenced by its own term (S1.4). Only sent to nodes at level 3 or above."""

    store_requests: tuple[StoreRequest, ...]
    commit_notices: tuple[CommitNotice, ...]
    store_acks: tuple[StoreAck, ...]
    read_requests: tuple[ReadIndexRequest, ...]
    read_replies: tuple[ReadIndexReply, ...]

    def messages(self) -> Iterator[ReplicationMessage]:
        """All of them."""
        yield from self.store_requests
        yield from self.commit_notices
        yield from self.store_acks
        yield from self.read_requests
        yield from self.read_replies


ReplicationMessage = (
    StoreRequest
    | StoreAck
    | StoreReject
    | CommitNotice
    | MsgSyncRequest
    | MsgSync
    | CaughtUp
    | CannotComplete
    | ReadIndexRequest
    | ReadIndexReply
    | FreshRequest
    | FreshReply
    | RemovedNotice
    | AskApplied
    | PayloadRelay
    | RepairMessage
    | LogEndMessage
)
