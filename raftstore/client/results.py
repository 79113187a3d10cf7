"""Results of calls: small frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raftstore.client.position import Position
from raftstore.protocol.admin import ChannelInfo, TableInfo
from raftstore.types import Level, Seq, Term


@dataclass(frozen=True, slots=True)
class WriteAck:
    """A committed record: where it is and how safe it was when this was said."""

    position: Position
    """Give it to ``at_least`` to read this write from any replica, or to ``if_position``."""
    partition: int
    seq: Seq
    """Seq of the record's last row; every row of the record carries it as its version."""
    term: Term
    rows: int
    """Rows of this call: others may have rows in the same record."""
    durability: str
    replicas_acked: int
    """Replicas known to hold it durably when it was acknowledged, the leader included."""
    guid: str = ""
    """Names the record for ``client.fate``. Single writes that were begun at the same time may
    share one."""


@dataclass(frozen=True, slots=True)
class WriteFate:
    """The outcome of a write (N4), and so of all writes that share its record."""

    fate: str
    """committed; not_applied (and never will be); unknown, because the leader remembers it no more
    or could not find out in time."""
    seq: Seq | None
    """Of its record, if committed."""
    position: Position | None
    condition: str
    """Of a conditional write that is committed: held or conflict; unknown, or none without one."""
    reason: str
    """Why it is so, in a sentence."""
    partition: int
    node: str
    """Who answered."""


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Everything ``put_many`` wrote; one ack per record, in no particular order."""

    rows: int
    acks: tuple[WriteAck, ...]
    position: Position

    def by_partition(self) -> dict[int, tuple[WriteAck, ...]]:
        """Return the acks of each partition that was written to."""
        grouped: dict[int, tuple[WriteAck, ...]] = {}
        for ack in sorted(self.acks, key=lambda ack: (ack.partition, ack.seq)):
            grouped[ack.partition] = (*grouped.get(ack.partition, ()), ack)
        return grouped


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Records that a bulk writer got acknowledged between two flushes."""

    rows: int
    chunks: int
    payload_bytes: int
    position: Position


@dataclass(frozen=True, slots=True)
class GetResult:
    """A row with its version, by whom it was served and how fresh that was (S7.3)."""

    value: dict[str, Any] | None
    """The row; None when there is none with this key."""
    position: Position | None
    """Version of the row, for ``if_position``; None when there is no row."""
    seq: Seq
    """The same as a number: seq of the record that wrote the row, 0 when there is no row."""
    applied_position: Position
    """What the replica had applied: give it to ``at_least`` for reads that never go back."""
    applied_seq: Seq
    partition: int
    term: Term
    node: str
    level: Level
    lag: int | None
    """Rows the replica was behind what it knew to be committed; None = unknown."""
    leader_info_age_ms: int | None
    """Age of that knowledge; None: no leader has ever been known."""
    staleness_ms: int | None = None
    """Everything committed longer ago than this is in the state (S7.3); None = not known."""
    batches_behind: int | None = None
    """Micro-batches the replica was behind; None = unknown."""


@dataclass(frozen=True, slots=True)
class ServedPart:
    """By whom one partition was read, and how fresh that was; see ``GetResult``."""

    partition: int
    node: str
    term: Term
    applied_seq: Seq
    lag: int | None
    leader_info_age_ms: int | None
    staleness_ms: int | None
    batches_behind: int | None


@dataclass(frozen=True, slots=True)
class CountResult:
    """How many rows a range has; each partition was counted in one state."""

    rows: int
    position: Position
    """The states that were counted."""
    served: tuple[ServedPart, ...]


@dataclass(frozen=True, slots=True)
class PageResult:
    """A page of a scan. All pages of one scan are of the states that its first page pinned."""

    rows: tuple[dict[str, Any], ...]
    next_token: str | None
    """Give it to ``page`` for the next one; None: this was the last."""
    position: Position
    """The states that the scan reads, the same on every page."""
    served: tuple[ServedPart, ...]
    """By whom this page was served."""


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """Where a key lives (KIP-535). Hosts are ``host:port``; a hint that may be outdated (S7.4)."""

    active_host: str | None
    """Host of the leader; None while the channel has none."""
    standby_hosts: tuple[str, ...]
    partition: int
    term: Term
    in_sync_standby_hosts: tuple[str, ...] = ()
    """Those of the standbys that could lead at once (ISS), as the leader reported; empty also while
    it is not known."""


@dataclass(frozen=True, slots=True)
class ReplicaDigest:
    """Content hash of one partition on one node, at ``applied_seq``."""

    partition: int
    node: str
    digest: str
    rows: int
    applied_seq: Seq


@dataclass(frozen=True, slots=True)
class TableDigest:
    """Content of a table on one node: equal digests at equal seqs mean equal rows."""

    table: str
    node: str
    partitions: tuple[ReplicaDigest, ...]

    @property
    def rows(self) -> int:
        """Rows of all partitions."""
        return sum(part.rows for part in self.partitions)

    def content(self) -> dict[int, tuple[str, int]]:
        """Return partition -> (digest, applied seq): what two replicas must agree on."""
        return {part.partition: (part.digest, part.applied_seq) for part in self.partitions}


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node of the cluster: what others say of it and, if it answered, what it says itself."""

    name: str
    id: str
    endpoint: str
    up: bool
    """As seen by the node that answered (``ClusterStatus.viewpoint``)."""
    status: Mapping[str, Any] | None
    """The node's own state (``raftstore.policy.status`` describes it); None: no answer."""
    error: str | None
    """Why there was no answer."""


@dataclass(frozen=True, slots=True)
class ClusterEvents:
    """Events of nodes: elections, failovers, peers that came and went."""

    events: tuple[Mapping[str, Any], ...]
    """Ordered by the nodes' wall clocks; ``node`` says whose it is."""
    next: Mapping[str, int]
    """By node: give it as ``since`` to get only what is newer."""
    errors: Mapping[str, str]
    """By node: why it reported nothing."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as seen from one node, with every node's own report."""

    cluster_id: str
    version: int
    """Of the catalog: grows with every change of a table or node."""
    age_ms: int | None
    viewpoint: str
    nodes: tuple[NodeStatus, ...]
    tables: tuple[TableInfo, ...]
    metadata_channel: ChannelInfo

    def node(self, name: str) -> NodeStatus | None:
        """Return the node with this label."""
        return next((node for node in self.nodes if node.name == name), None)

    def channels_without_leader(self) -> tuple[str, ...]:
        """Return ``table/partition`` of every channel that nobody is known to lead."""
        return tuple(
            f"{table.name}/{partition}"
            for table in self.tables
            for partition, channel in enumerate(table.channels)
            if channel.leader is None
        )
