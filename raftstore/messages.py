"""One class per protocol message between publishers and nodes, and between nodes.

All are msgspec Structs encoded as tagged MessagePack arrays: the decoder checks types, unknown
trailing fields are ignored and new fields must be appended with a default, so an older node can
read a newer one. Tags are on the wire: never reuse a number.

Every channel message carries ``channel`` and the sender's ``term`` (safety contract S1.4).
Sequences: a record of n rows occupies [base_seq, base_seq + n); ``last_seq`` is its last one.
Client requests other than publishing live in ``raftstore.requests``.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from raftstore.types import (
    BaseSeq,
    ChannelId,
    Count63,
    Digest,
    Guid,
    History,
    LineageEntry,
    NodeId,
    RecordKind,
    RecordRows,
    RequestId,
    Seq,
    Small31,
    Term,
    TimestampMs,
    Told63,
    WallMs,
)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is stored: metadata given by the leader of ``term``, and the payload (S5.1)."""

    term: Term
    base_seq: BaseSeq
    rows: RecordRows
    guid: Guid
    timestamp_ms: TimestampMs
    digest: Digest
    kind: RecordKind
    payload: bytes

    @property
    def last_seq(self) -> Seq:
        """The seq by which the record is known in acks, commits and history."""
        return Seq(self.base_seq + self.rows - 1)


class RecordMeta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record without its payload: all a leader sends in steady state (NATS-050, S2.3).

    ``payload`` is None except for records no publisher sends (term start, configuration).
    """

    term: Term
    base_seq: BaseSeq
    rows: RecordRows
    guid: Guid
    timestamp_ms: TimestampMs
    digest: Digest
    length: Small31
    kind: RecordKind
    payload: bytes | None = None

    @property
    def last_seq(self) -> Seq:
        """The seq by which the record is known in acks, commits and history."""
        return Seq(self.base_seq + self.rows - 1)


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of everything that travels in a frame."""


class ChannelMessage(Message, frozen=True, array_like=True, gc=False):
    """Base of messages about one channel, fenced by the sender's term."""

    channel: ChannelId
    term: Term


# --- publishing ---------------------------------------------------------------------------------


class PubMsg(ChannelMessage, frozen=True, array_like=True, gc=False, tag=1):
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


class PubAck(ChannelMessage, frozen=True, array_like=True, gc=False, tag=2):
    """Leader -> publisher: committed. ``conflict`` (conditional writes only) tells that the
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


class PubReject(ChannelMessage, frozen=True, array_like=True, gc=False, tag=3):
    """Leader (or a wrong node) -> publisher. ``code`` is a RequestError.code; the class of that
    code says whether the outcome is NOT_APPLIED or UNKNOWN. ``attempt`` is the one it answers: a
    late or doubled refusal says nothing about a newer one (S12)."""

    guid: Guid
    code: str
    message: str
    leader_hint: NodeId | None = None
    attempt: Count63 = 0


class PayloadRelay(ChannelMessage, frozen=True, array_like=True, gc=False, tag=4):
    """Leader -> a replica that the publisher could not reach."""

    guid: Guid
    digest: Digest
    payload: bytes


# --- replication --------------------------------------------------------------------------------


class StoreRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=10):
    """Leader -> followers: metadata of consecutive records; ``prev_term`` is the term of the seq
    before the first of them (S2.3, S2.4). Also announces the leader of ``term``."""

    prev_term: Term
    commit_seq: Seq
    records: tuple[RecordMeta, ...]


class StoreAck(ChannelMessage, frozen=True, array_like=True, gc=False, tag=11):
    """Follower -> leader, cumulative: everything up to ``match_seq`` is durable here and verified
    against this term's leader (S3.4). ``commit_seq`` is the commit position the follower knows:
    the leader repeats what did not arrive (S3.5)."""

    match_seq: Seq
    applied_seq: Seq = Seq(0)
    commit_seq: Seq = Seq(0)


class StoreReject(ChannelMessage, frozen=True, array_like=True, gc=False, tag=12):
    """Follower -> leader: why it leaves steady state. ``reason`` is missing_pubmsg,
    missing_store_request, gap, prev_term_mismatch or live_queue_overflow."""

    reason: str
    seq: Seq
    guid: Guid


class CommitNotice(ChannelMessage, frozen=True, array_like=True, gc=False, tag=13):
    """Leader -> followers while nothing else tells them (S3.5): commit position, the end of the
    leader's log, and the chain hash at ``commit_seq`` (S13; empty when not known)."""

    commit_seq: Seq
    last_seq: Seq
    last_term: Term
    commit_hash: bytes
    commit_batches: Told63 = -1
    """Micro-batches in the committed prefix; -1: not told."""


class MsgSyncRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=14):
    """Follower -> leader: send history from ``from_seq``; 0 asks the leader to find the match point
    from ``lineage`` (newest first, bounded; S2.6)."""

    request_id: RequestId
    from_seq: Seq
    lineage: tuple[LineageEntry, ...]
    max_bytes: Count63


class MsgSync(ChannelMessage, frozen=True, array_like=True, gc=False, tag=15):
    """Leader -> follower: consecutive records from ``from_seq``; ``prev_term`` is the term of the
    seq before it. ``done``: the last record is the leader's end. ``first_seq`` is the oldest seq
    the leader still has (a lower request needs a snapshot, S6.6)."""

    request_id: RequestId
    from_seq: Seq
    prev_term: Term
    records: tuple[Record, ...]
    commit_seq: Seq
    last_seq: Seq
    first_seq: Seq
    done: bool


class CaughtUp(ChannelMessage, frozen=True, array_like=True, gc=False, tag=16):
    """Follower -> leader: back in steady state at ``seq``."""

    seq: Seq


class ReadIndexRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=17):
    """Leader -> voters: confirm that ``term`` is still yours (S7.1)."""

    round_id: RequestId


class ReadIndexReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=18):
    """Voter -> leader: ``term`` is still mine and you lead it."""

    round_id: RequestId


class StaleTerm(ChannelMessage, frozen=True, array_like=True, gc=False, tag=19):
    """Any replica -> the sender of a lower term: ``term`` is mine, adopt it (NATS-031)."""


class FreshRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=20):
    """Replica -> leader of ``term``: prove that you lead, and tell how far the channel is committed
    (S7.1, S7.3)."""

    round_id: RequestId


class FreshReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=21):
    """Leader -> replica: proven by a ReadIndex round that started after the request came, nothing
    was committed above ``read_seq`` when the request was sent."""

    round_id: RequestId
    read_seq: Seq
    batches: Told63 = -1
    """Micro-batches in the log up to ``read_seq``; -1: not told."""


# --- elections (raftstore.election is the only maker and reader) ---------------------------------


class PreVote(ChannelMessage, frozen=True, array_like=True, gc=False, tag=30):
    """Would you vote for me in ``proposed_term``? Changes nothing at the receiver."""

    proposed_term: Term
    history: History


class PreVoteReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=31):
    """``term`` is the replier's own."""

    proposed_term: Term
    granted: bool


class RequestVote(ChannelMessage, frozen=True, array_like=True, gc=False, tag=32):
    """Candidate -> voters. ``transfer``: the leader asked for this election (S9)."""

    history: History
    transfer: bool


class VoteReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=33):
    """Voter -> candidate of ``vote_term``; ``term`` is the voter's own."""

    vote_term: Term
    granted: bool


class LeaderAnnounce(ChannelMessage, frozen=True, array_like=True, gc=False, tag=34):
    """Leader of ``term`` -> replicas; leaves only after its vote is durable."""


class TransferNow(ChannelMessage, frozen=True, array_like=True, gc=False, tag=35):
    """Leader -> the replica that shall take over at once (S9)."""


class StepDownNotice(ChannelMessage, frozen=True, array_like=True, gc=False, tag=36):
    """Leader -> replicas: I gave up leading ``term``; stand for election now (NATS-211)."""


# --- node level ---------------------------------------------------------------------------------


class Hello(Message, frozen=True, array_like=True, gc=False, tag=50):
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
    """What the node reads beyond the first version (docs/protocol.md); clients tell none."""


class Goodbye(Message, frozen=True, array_like=True, gc=False, tag=51):
    """Last frame before the sender closes; ``code`` and ``message`` say why and what to do."""

    code: str
    message: str


class Heartbeat(Message, frozen=True, array_like=True, gc=False, tag=52):
    """Node -> node every send interval, on the control connection.

    ``leading_digest`` covers the (channel, term) pairs the sender leads and the receiver also
    hosts (S1.8); ``sent_ms`` is the sender's wall clock, used for a skew metric only (KLIP-31).
    """

    boot_id: bytes
    counter: Count63
    sent_ms: WallMs
    leading_digest: bytes
    heard_receiver: bool = False


class LeadershipRequest(Message, frozen=True, array_like=True, gc=False, tag=53):
    """The receiver's digest did not match: please send the list."""


class LeadershipList(Message, frozen=True, array_like=True, gc=False, tag=54):
    """Every (channel, term) the sender leads and the receiver hosts."""

    boot_id: bytes
    leading: tuple[tuple[ChannelId, Term], ...]


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
    """Micro-batches committed as far as known, and applied; -1: not told."""


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
    """What the log has held. Whoever has held one of them held the same records before it (S2.4);
    empty: nothing proves what belongs into the hole."""


class RefillRequest(Message, frozen=True, array_like=True, gc=False, tag=56):
    """Node -> node: give back what my log lost; any node that holds it may."""

    channel: ChannelId
    request_id: RequestId
    hole: Hole
    max_bytes: Small31


class Refill(Message, frozen=True, array_like=True, gc=False, tag=57):
    """The answer: records from the start of the hole on, none if the sender has none to give.

    ``leader_term``: the sender leads the channel in that term and has committed in it; 0: no.
    """

    channel: ChannelId
    request_id: RequestId
    records: tuple[Record, ...]
    leader_term: Term


class LagReport(Message, frozen=True, array_like=True, gc=False, tag=55):
    """Node -> node: positions of all replicas of the sender. ``updated_ms`` is the sender's wall
    clock for display; ages are measured by arrival on the receiver's monotonic clock."""

    updated_ms: WallMs
    positions: tuple[ChannelPosition, ...]
    counter: Count63 = 0
    """Grows with each report of one boot of the sender."""
    http: str = ""
    """host:port of the sender's HTTP interface; empty: none."""


# --- birth of a cluster (S0.7) --------------------------------------------------------------------


class BirthQuery(Message, frozen=True, array_like=True, gc=False, tag=60):
    """Founder not born -> every other: who are you, and do you belong to a cluster already?"""

    name: str


class BirthInfo(Message, frozen=True, array_like=True, gc=False, tag=61):
    """Answer to BirthQuery; ``cluster_id`` and ``accepted_proposal`` are empty if there is none."""

    node: NodeId
    advertise: str
    cluster_id: bytes
    accepted_proposal: bytes


class BirthProposal(Message, frozen=True, array_like=True, gc=False, tag=62):
    """The lowest name -> every initial member: the creation configuration of the metadata channel.

    ``members`` is (node id, advertised address). A node accepts and fsyncs at most one, ever.
    """

    cluster_id: bytes
    members: tuple[tuple[NodeId, str], ...]


class BirthAccepted(Message, frozen=True, array_like=True, gc=False, tag=63):
    """Member -> proposer: this proposal is durable here."""

    cluster_id: bytes
    node: NodeId


class BirthComplete(Message, frozen=True, array_like=True, gc=False, tag=64):
    """Proposer -> members: all accepted; start the metadata channel."""

    cluster_id: bytes


ElectionMessage = (
    PreVote
    | PreVoteReply
    | RequestVote
    | VoteReply
    | LeaderAnnounce
    | TransferNow
    | StepDownNotice
    | StaleTerm
)
ReplicationMessage = (
    StoreRequest
    | StoreAck
    | StoreReject
    | CommitNotice
    | MsgSyncRequest
    | MsgSync
    | CaughtUp
    | ReadIndexRequest
    | ReadIndexReply
    | FreshRequest
    | FreshReply
    | PayloadRelay
)
PublishMessage = PubMsg | PubAck | PubReject
NodeMessage = Heartbeat | LeadershipRequest | LeadershipList | LagReport | RefillRequest | Refill
BirthMessage = BirthQuery | BirthInfo | BirthProposal | BirthAccepted | BirthComplete
HandshakeMessage = Hello | Goodbye
