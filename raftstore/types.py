"""The words every room shares: identities, positions and small enumerations.

Identity (safety contract S0.1, S0.8): a node is *name + store UUID* and a channel is *table UUID +
partition*. Addresses and table names are labels that may change; they never identify anything.
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, NewType

import msgspec
from msgspec import Meta

GUID_BYTES: Final = 16
CHANNEL_ID_BYTES: Final = 18
DIGEST_BYTES: Final = 16

# --- the ranges of numbers that come from outside -------------------------------------------------
#
# Messages and records of the log name their numbers by these types, and what lies outside is
# refused where it is decoded, before any code counts with it (S12; docs/decisions/0017). Each range
# leaves room for what is done with the number: one more, a sum with a number of rows, the bytes
# that it is stored in. tests/unit/protocol/test_ranges.py holds every field to having one.

INT63_MAX: Final = 2**63 - 1
"""The most that fits a signed number of 64 bits, as Spark's ``long``; one more still fits the eight
bytes in which positions, terms and attempts are stored."""
TERM_MAX: Final = 2**48 - 1
"""Elections of one channel, one in each millisecond, need 8,900 years to get here. Nobody stands
for a term above it, so the last one can still be sent and stored."""
PARTITION_MAX: Final = 2**16 - 1
"""A channel's id has two bytes for its partition."""
TIMEOUT_MS_MAX: Final = 2**53
"""Also of waits that a client gives to itself; nodes have bounds of their own, far lower."""
WALL_MS_MAX: Final = 2**62
"""Of the wall clock, in either direction: a timestamp and a span still fit 63 bits together."""

Count63 = Annotated[int, Meta(ge=0, le=INT63_MAX)]
"""A number of rows, batches, bytes or events, or a bound of it."""
Told63 = Annotated[int, Meta(ge=-1, le=INT63_MAX)]
"""The same, where -1 says that there is none or that it is not reported."""
Span63 = Annotated[int, Meta(ge=-INT63_MAX, le=INT63_MAX)]
"""A difference of two numbers, or of two moments in milliseconds."""
Unsigned64 = Annotated[int, Meta(ge=0)]
"""All that eight bytes hold, more than which MessagePack has no form for. Compared, never counted
with."""
Signed64 = Annotated[int, Meta(ge=-(2**63))]
"""All that MessagePack has a form for; judged, with words of its own, where it is decoded."""
RequestId = Annotated[int, Meta(ge=0, le=INT63_MAX)]
"""Chosen by who asks; the answer repeats it."""
Partition = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
"""Of a table; whether the table has so many is for its catalog entry to say."""
PartitionCount = Annotated[int, Meta(ge=0, le=PARTITION_MAX + 1)]
"""Of a table, or what is asked for (``config.PARTITIONS_MAX`` are allowed)."""
Attempt = Annotated[int, Meta(ge=0, le=INT63_MAX)]
"""Of a writer at a micro-batch; the coordinator hands them out in order, from 1."""
BatchId = Annotated[int, Meta(ge=0, le=INT63_MAX)]
"""Spark's, or an application's own."""
CommitNumber = Annotated[int, Meta(ge=0, le=INT63_MAX)]
"""Decided micro-batches of a table are numbered from 1; 0: none."""
TaskId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""A task of a micro-batch, and the number of a chunk within it."""
TaskAttempt = Annotated[int, Meta(ge=0, le=INT63_MAX)]
"""A run of a task (Spark's task attempt id)."""
RECORD_ROWS_MAX: Final = 65_536
RecordRows = Annotated[int, Meta(ge=1, le=RECORD_ROWS_MAX)]
"""Rows of one record (``config.ROWS_PER_RECORD_MAX``): as many seqs it occupies."""
TimeoutMs = Annotated[int, Meta(ge=-TIMEOUT_MS_MAX, le=TIMEOUT_MS_MAX)]
"""How long somebody waits; what is not above 0 has passed already."""
WallMs = Annotated[int, Meta(ge=-WALL_MS_MAX, le=WALL_MS_MAX)]
"""Wall clock, in milliseconds since 1970."""
TimestampMs = Annotated[int, Meta(ge=0, le=WALL_MS_MAX)]
"""Of a record: the leader's wall clock, but always after the record before (S10)."""
Small31 = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A version, level, format, mode or process id."""
FailureDomain = Annotated[str, Meta(max_length=63)]
"""What fails together with a node, such as a rack or a zone; empty: nothing but the node itself."""
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
"""Of a payload."""

NodeId = NewType("NodeId", str)
"""``name@<32 hex digits of the store UUID>``. A node that lost its store gets a new one (S0.1)."""

ChannelId = NewType(
    "ChannelId", Annotated[bytes, Meta(min_length=CHANNEL_ID_BYTES, max_length=CHANNEL_ID_BYTES)]
)
"""18 bytes: 16 of the table UUID, then the partition as unsigned big-endian 16 bits (S0.8)."""

Guid = NewType("Guid", Annotated[bytes, Meta(min_length=GUID_BYTES, max_length=GUID_BYTES)])
"""16 bytes: 8 of the producer session, then its counter as unsigned big-endian 64 bits (S4.5)."""

Term = NewType("Term", Annotated[int, Meta(ge=0, le=TERM_MAX)])
"""Election era of one channel; 0 means that nobody ever won."""

Seq = NewType("Seq", Annotated[int, Meta(ge=0, le=INT63_MAX)])
"""Position of a row in a channel, 1-based without gaps; 0 means "before the first"."""

SEQ_MAX: Final = INT63_MAX
"""The last position."""
BASE_SEQ_MAX: Final = SEQ_MAX - RECORD_ROWS_MAX + 1
"""Of a record's first row: then its last one is a position, too, however many it has."""
PUBLISHED_SEQ_MAX: Final = BASE_SEQ_MAX - 2**32
"""The sequencer refuses writes that would end behind it. What is left is for the first records of
terms, which a leader cannot do without."""

if TYPE_CHECKING:
    BaseSeq = Seq
else:
    BaseSeq = Annotated[int, Meta(ge=1, le=BASE_SEQ_MAX)]
    """Position of the first row of a record."""
NO_GUID: Final = Guid(bytes(GUID_BYTES))
"""Carried by records that the leader makes itself (term start, configuration)."""


ReplicaNumber = NewType("ReplicaNumber", Annotated[int, Meta(ge=0, le=INT63_MAX)])
"""Lives of a node's replica of one channel: 0 is that of the creation. A replica whose data was
deleted comes back under a number that no other has had (M14), and counts by node id and number."""

ChangeNumber = Annotated[int, Meta(ge=0, le=INT63_MAX)]
"""Orders to change a channel's replicas: the seq of the order in the metadata channel (M20); 0:
none."""

FOUNDING_NUMBER: Final = ReplicaNumber(0)


def node_id(name: str, store_uuid: bytes) -> NodeId:
    """Build a node id from its label and the UUID minted when its store was created."""
    return NodeId(f"{name}@{store_uuid.hex()}")


def node_name(node: NodeId) -> str:
    """Return the label people use for the node (the part before ``@``)."""
    return node.partition("@")[0]


def channel_id(table_uuid: bytes, partition: int) -> ChannelId:
    """Build the identity of one partition's channel."""
    assert len(table_uuid) == CHANNEL_ID_BYTES - 2
    return ChannelId(table_uuid + partition.to_bytes(2, "big"))


def channel_table(channel: ChannelId) -> bytes:
    """Return the 16-byte UUID of the channel's table."""
    return channel[:-2]


def channel_partition(channel: ChannelId) -> int:
    """Return the partition number of the channel."""
    return int.from_bytes(channel[-2:], "big")


def guid_text(channel: ChannelId, guid: Guid) -> str:
    """Return the name of a write that acks and errors give and ``raftstore fate`` takes: its
    channel and its guid, as 68 hexadecimal digits."""
    return (channel + guid).hex()


def make_guid(session: bytes, counter: int) -> Guid:
    """Build a GUID from an 8-byte producer session and its counter (first is 1)."""
    assert len(session) == GUID_BYTES // 2
    return Guid(session + counter.to_bytes(8, "big"))


def guid_session(guid: Guid) -> bytes:
    """Return the producer session of the GUID."""
    return guid[:8]


def guid_parts(guid: Guid) -> tuple[bytes, int]:
    """Return the producer session of the GUID and its position there."""
    return guid[:8], int.from_bytes(guid[8:], "big")


def guid_counter(guid: Guid) -> int:
    """Return the position of the GUID in its producer session."""
    return int.from_bytes(guid[8:], "big")


class Role(Enum):
    """Role of a replica in its channel; owned by the elector."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class FollowerMode(Enum):
    """How a follower takes records from its leader (NATS-028)."""

    STEADY = "steady"
    CATCHING_UP = "catching_up"


class Outcome(Enum):
    """The outcome of a write for its publisher (S4): UNKNOWN never becomes one of the others."""

    OK = "ok"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


class Level(Enum):
    """Levels of reads; docs/guarantees.md has the table."""

    LINEARIZABLE = "linearizable"
    LEADER = "leader"
    BOUNDED = "bounded"
    ANY = "any"


LevelName = Literal["linearizable", "leader", "bounded", "any"]
"""The levels, as calls take them."""
PreferName = Literal["leader", "nearest", "any_in_bound"]
"""Which replica is asked first, as calls take it; ``policy.routing.Prefer`` describes them."""
DurabilityName = Literal["fsync", "buffered", "memory"]
"""When a record counts as stored, as calls take it; ``Durability`` describes them."""
BatchModeName = Literal["append", "overwrite"]
"""What becomes of the rows that a table has when a batch is committed."""


EVENT_TYPES: Final = (
    "role",
    "peer_up",
    "peer_lost",
    "peer_health",
    "failover",
    "failover_seen",
    "step_down",
    "hand_over_failed",
    "node_joined",
    "join_refused",
    "replica_opened",
    "replica_deleted",
    "iss_changed",
    "table_resized",
    "leader_moved",
    "leader_move_failed",
    "rebalance_started",
    "replica_move",
    "replica_move_failed",
    "rebalance_ended",
    "stop_serving",
    "mode",
    "catch_up",
    "cannot_complete",
    "replica_cannot_complete",
    "flapping",
    "truncate",
    "replica_snapshot_needed",
    "replica_snapshot_started",
    "replica_snapshot_resumed",
    "replica_snapshot_begun_anew",
    "replica_snapshot_finished",
    "replica_snapshot_failed",
    "replica_snapshot_chunk_damaged",
    "replica_snapshot_refused",
    "base_taken",
    "histories_differ",
    "replica_diverged",
    "replica_quarantined",
    "divergence_located",
    "replica_healed",
    "table_damaged",
    "table_healed",
    "table_not_healed",
    "log_damaged",
    "log_not_healed",
    "hole",
    "hole_filled",
    "hole_covered",
    "hole_given_up",
    "scrub_finished",
    "stalled",
    "checkpoint",
    "disk_low",
    "disk_space_back",
    "channel_closed",
    "replica_waited_for",
    "replica_left_behind",
    "replica_within_bound",
    "machine_stopped",
    "machine_resumed",
    "machine_slow",
    "machine_slow_ended",
    "machine_version",
    "machine_finding",
    "audit_violation",
)
"""What nodes keep events of. What happens with every request is counted, not kept."""


class RecordKind(IntEnum):
    """The meaning of a record to the state machine. Numbers are on disk and on the wire."""

    __hash__ = int.__hash__  # Enum's own is Python, and kinds are looked up for every record

    TERM_START = 0
    """First record of a term, made by its leader (S2.2); occupies one seq, changes no state."""
    ROWS = 1
    """Upserts and deletes of one table."""
    CONFIG = 2
    """A ChannelConfig, effective when appended (M2)."""
    COMMAND = 3
    """A command of a non-table state machine (the catalog)."""
    CONDITIONAL = 4
    """One upsert or delete that applies only if its condition holds when it is applied."""
    STAGED = 5
    """Rows staged under an attempt at a micro-batch, invisible until its commit is applied."""
    BATCH_APPLY = 6
    """Makes the staged rows of a decided micro-batch visible in this channel."""
    BATCH_MARK = 7
    """End of a micro-batch written row by row: [writer, batch id]; changes no rows (BLOG-32)."""
    TXN = 8
    """A step of the coordinator of micro-batches, or of a channel that drops staged rows."""
    ROWS_WITH_TTL = 9
    """Upserts and deletes of one table; what is written expires (``protocol.lifetimes``)."""
    CONDITIONAL_WITH_TTL = 10
    """The same of one row that is written on a condition."""
    EXPIRE = 11
    """Made by the leader: it is now so late, and these rows have expired."""
    TRIM_OUTCOMES = 12
    """Made by the leader: what became of old records is removed (``protocol.trimming``)."""
    MACHINE_COMMAND = 13
    """A command of a user's state machine (``protocol.machines``)."""
    MACHINE_STEP = 14
    """Made by the leader: a command is skipped, or another version of the machine is in force."""
    MACHINE_COMMANDS = 15
    """Several commands of one client in a record; each occupies one seq."""
    MACHINE_RESTORE = 16
    """A portion of a machine's state that comes from a backup (``protocol.machine_restore``)."""
    MACHINE_LIMITS = 17
    """Made by the leader: from here on these limits of commands are in force."""


class DiskRoom(IntEnum):
    """The room on the disk of a node (GAP-13); a greater number is less."""

    PLENTY = 0
    RECORDS = 1
    """Records of leaders elsewhere, and no writes of clients here."""
    CATALOG = 2
    """Records of the catalog, and no others."""
    NOTHING = 3


class Durability(IntEnum):
    """When a replica counts a record of a table as stored (S0.6). Numbers are on disk."""

    FSYNC = 0
    """Once it is synced."""
    BUFFERED = 1
    """Once the system was handed it: the end of a process costs nothing, that of a machine may."""
    MEMORY = 2
    """Once the process has it."""

    @property
    def label(self) -> DurabilityName:
        """The name that calls and acknowledgements use."""
        return DURABILITIES[self]


DURABILITIES: Final[tuple[DurabilityName, ...]] = ("fsync", "buffered", "memory")
"""The names, in the order of ``Durability``."""


class History(NamedTuple):
    """The history that elections compare (S1.1): term of the last accepted record, then its seq.

    A sequence alone loses committed records; plain tuple order is the comparator.
    """

    term: Term
    seq: Seq


EMPTY_HISTORY: Final = History(Term(0), Seq(0))


class LineageEntry(NamedTuple):
    """A run of records of one term: ``end_seq`` is the last seq of that run (S2.6)."""

    term: Term
    end_seq: Seq


@lru_cache(maxsize=1_024)
def without_repetition(nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Each node once, in the order of the first time. Asked for with every message."""
    return tuple(dict.fromkeys(nodes))


class ReplicaId(NamedTuple):
    """One life of a node's replica of a channel: votes, acks and confirmations count by it (M4)."""

    node: NodeId
    number: ReplicaNumber = FOUNDING_NUMBER


class MemberRole(StrEnum):
    """The part of a replica in its channel. Only the last two are written into configurations: the
    others are said by the sets."""

    VOTER = "voter"
    """Has the log and the rows, votes, and may lead."""
    LEARNER = "learner"
    """Gets the history and the records, and may become a voter."""
    READER = "reader"
    """A read replica: a learner that stays one, serves reads and never stands."""
    WITNESS = "witness"
    """A voter with the log alone: it has no rows, serves no read and is no goal of a hand-over.
    While it learns it is one already."""


class ChannelConfig(msgspec.Struct, frozen=True, array_like=True):
    """The voters of a channel: one set, or two while they change (joint). Learners never count."""

    voter_sets: tuple[tuple[NodeId, ...], ...]
    learners: tuple[NodeId, ...] = ()
    numbers: dict[NodeId, ReplicaNumber] = {}
    """Of members that are not founding replicas; absent: 0 (M1)."""
    change: ChangeNumber = 0
    """The order that it belongs to; 0: the creation."""
    ended: bool = False
    """The order is carried out or undone: nothing of it is begun again."""
    roles: dict[NodeId, MemberRole] = {}
    """Of members that are witnesses or readers."""

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """All voters in a stable order without repetition."""
        if len(self.voter_sets) == 1:
            return without_repetition(self.voter_sets[0])
        return without_repetition(tuple(node for group in self.voter_sets for node in group))

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Voters, then learners."""
        if not self.learners:
            return self.voters
        return without_repetition((*self.voters, *self.learners))

    @property
    def is_joint(self) -> bool:
        """Two voter sets are in force."""
        return len(self.voter_sets) > 1

    def number_of(self, node: NodeId) -> ReplicaNumber:
        """The number of a member's replica."""
        return self.numbers.get(node, FOUNDING_NUMBER)

    def has_member(self, replica: ReplicaId) -> bool:
        """Whether this life of the replica is a voter or a learner."""
        return replica.node in self.members and self.number_of(replica.node) == replica.number

    def has_voter(self, replica: ReplicaId) -> bool:
        """Whether this life of the replica is a voter."""
        return replica.node in self.voters and self.number_of(replica.node) == replica.number

    def role_of(self, node: NodeId) -> MemberRole | None:
        """The role of a member; None: it is none."""
        if node in self.voters:
            return self.roles.get(node, MemberRole.VOTER)
        return self.roles.get(node, MemberRole.LEARNER) if node in self.learners else None

    def is_witness(self, node: NodeId) -> bool:
        """Whether the node's replica has no rows, be it a voter yet or not."""
        return bool(self.roles) and self.roles.get(node) is MemberRole.WITNESS

    def may_lead(self, replica: ReplicaId) -> bool:
        """Whether this life of the replica may take a leadership over and keep it: it is a voter
        with rows."""
        return self.has_voter(replica) and not self.is_witness(replica.node)


class ChangeTarget(msgspec.Struct, frozen=True, array_like=True):
    """The order of the catalog for the replicas of a channel (M20)."""

    change: ChangeNumber
    """The order's number; replicas that it adds have it, too."""
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    numbers: dict[NodeId, ReplicaNumber] = {}
    """Of voters and learners; absent: 0."""
    cancelled: bool = False
    roles: dict[NodeId, MemberRole] = {}
    """Of those that are to be witnesses or readers."""

    def number_of(self, node: NodeId) -> ReplicaNumber:
        """The number of a replica that it names."""
        return self.numbers.get(node, FOUNDING_NUMBER)


class StorageStall(NamedTuple):
    """An operation of a node's store that began and has not ended (S0.4)."""

    doing: str
    """The system call, or what LevelDB was asked for."""
    path: str
    """The file or directory that it is about."""
    for_ms: int
    """Since when, by the time in which this process ran."""

    def describe(self, node: str) -> str:
        """One sentence for operators and clients."""
        waited = f"{self.for_ms / 1000:.1f} s"
        return f"the disk of {node} has not finished {self.doing} on {self.path} for {waited}"
