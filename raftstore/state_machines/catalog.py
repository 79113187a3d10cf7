"""The catalog: nodes, tables and placement, as the rows of the metadata channel (GAP-07).

Rows are ``t/<table name>``, ``n/<node name>``, ``d/<table UUID>`` (dropped for ever, S0.8) and
those of ``catalog_members`` and ``catalog_replicas``; values are msgpack maps with a format
version. A command carries everything that is random or depends on the moment (table UUID,
placement) and the bytes of the row it writes, so replicas of different versions store the same
bytes. Rows that depend on the record itself are made of what earlier ones hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from raftstore.errors import NewerFormatError
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, TableSettings
from raftstore.rows.schema_growth import is_grown_from
from raftstore.state_machines.catalog_entries import (
    DURABILITY_FORMAT,
    EDITED_FORMAT,
    FIRST_FORMAT,
    MACHINE_FORMAT,
    MEMBERS_FORMAT,
    NODE_PREFIX,
    RESTORED_SET_FORMAT,
    SETTINGS_FORMAT,
    NodeEntry,
    decode_entry,
)
from raftstore.state_machines.catalog_members import (
    DRAINING_PREFIX,
    RETIRED_PREFIX,
    TICKET_PREFIX,
    DrainingEntry,
    RetiredEntry,
    TicketEntry,
)
from raftstore.state_machines.catalog_rebalance import (
    KnownRebalance,
)
from raftstore.state_machines.catalog_replicas import (
    REPLICAS_PREFIX,
    ReplicaEntry,
)
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    Count63,
    Durability,
    MemberRole,
    NodeId,
    PartitionCount,
    Seq,
    Small31,
    channel_id,
    channel_partition,
    channel_table,
    node_name,
)

TABLE_PREFIX: Final = b"t/"
DROPPED_PREFIX: Final = b"d/"

Placement = tuple[tuple[NodeId, ...], ...]
"""Per partition its replicas; the first is the preferred leader."""


class TableEntry(msgspec.Struct, frozen=True):
    """A table as the catalog knows it; ``uuid`` identifies it, the name is a label (S0.8)."""

    name: str
    uuid: bytes
    key_columns: tuple[str, ...]
    partitions: PartitionCount
    replicas: Small31
    durability: str
    max_lag: Count63 | None
    schema_json: str
    placement: Placement
    format: Small31 = FIRST_FORMAT
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None
    standby_reads: bool = True
    max_replica_lag: Count63 | None = None
    settings: TableSettings = DEFAULT_SETTINGS
    was_edited: bool = False
    """Rows of ``EDITED_FORMAT`` were edited, whatever they say here."""
    is_resizing: bool = False
    """Partitions do not have ``replicas`` voters yet: the leader of the metadata channel orders
    replicas until they do."""
    machine: str = ""
    """Of a channel set: the state machine of its users behind each partition, by module and class
    or the name of an entry point; empty: it is a table."""
    machine_version: Small31 = 0
    """Version of that machine with which every partition begins."""

    def same_definition(self, other: TableEntry) -> bool:
        """Whether both ask for the same table; UUID and placement are given, not asked for.

        Properties that were edited since are the operator's: a request to create the table if it
        does not exist means this one, also without the columns that were appended to it.
        """
        edited = any(entry.was_edited or entry.format == EDITED_FORMAT for entry in (self, other))
        mine = _asked_for(self, edited=edited)
        if edited and is_grown_from(self.schema_json, other.schema_json):
            mine = msgspec.structs.replace(mine, schema_json=other.schema_json)
        return mine == _asked_for(other, edited=edited)

    @property
    def channels(self) -> tuple[ChannelId, ...]:
        """The channel of each partition."""
        return tuple(channel_id(self.uuid, number) for number in range(self.partitions))

    def has_channel(self, channel: ChannelId) -> bool:
        """Whether one of its partitions has this channel."""
        return channel_table(channel) == self.uuid and channel_partition(channel) < self.partitions


def _asked_for(entry: TableEntry, *, edited: bool) -> TableEntry:
    return msgspec.structs.replace(
        entry,
        uuid=b"",
        placement=(),
        format=FIRST_FORMAT,
        replicas=0 if edited else entry.replicas,
        max_lag=None if edited else entry.max_lag,
        max_staleness_ms=None,
        max_batches_behind=None,
        standby_reads=True,
        max_replica_lag=None,
        settings=DEFAULT_SETTINGS if edited else entry.settings,
        was_edited=False,
        is_resizing=False,
        machine_version=0,
    )


class DroppedEntry(msgspec.Struct, frozen=True):
    """Remains of a dropped table, so that its UUID is never accepted again (S0.8).

    ``writers``: (writer, lineage) of those with batches in it, whose next batch must not begin
    another table of the name (``dropped_batches``). Versions without it skip the field.
    """

    name: str
    format: Small31 = FIRST_FORMAT
    writers: tuple[tuple[str, str], ...] = ()


class CreateTableCommand(msgspec.Struct, frozen=True, tag_field="op", tag="create_table"):
    """``entry`` holds the bytes of the TableEntry that are stored."""

    entry: bytes
    if_not_exists: bool = False
    format: Small31 = FIRST_FORMAT


class DropTableCommand(msgspec.Struct, frozen=True, tag_field="op", tag="drop_table"):
    """``entry`` holds the bytes of the DroppedEntry that are stored."""

    name: str
    uuid: bytes
    entry: bytes
    format: Small31 = FIRST_FORMAT


class EditTableCommand(msgspec.Struct, frozen=True, tag_field="op", tag="edit_table"):
    """``entry`` holds the bytes of the TableEntry that replace those written at ``base_seq``."""

    name: str
    uuid: bytes
    entry: bytes
    base_seq: Seq
    format: Small31 = EDITED_FORMAT


class RegisterNodeCommand(msgspec.Struct, frozen=True, tag_field="op", tag="register_node"):
    """``entry`` holds the bytes of the NodeEntry that are stored."""

    entry: bytes
    format: Small31 = FIRST_FORMAT


TableCommand = CreateTableCommand | DropTableCommand | EditTableCommand
_encode = msgspec.msgpack.Encoder().encode


def create_table_command(entry: TableEntry, *, if_not_exists: bool = False) -> bytes:
    """Payload that creates a table if no table has its name (a compare-and-set on the name)."""
    number = max(entry.format, created_format(entry))
    entry = msgspec.structs.replace(entry, format=number)
    return _encode(CreateTableCommand(_encode(entry), if_not_exists, number))


def created_format(entry: TableEntry) -> int:
    """Format of the command that creates a table with this entry."""
    if entry.machine:
        return RESTORED_SET_FORMAT if entry.settings.from_backup else MACHINE_FORMAT
    if any(len(group) != entry.replicas for group in entry.placement) or entry.is_resizing:
        return MEMBERS_FORMAT
    if entry.durability != Durability.FSYNC.label or entry.settings.restoring is not None:
        return DURABILITY_FORMAT
    return FIRST_FORMAT if entry.settings == DEFAULT_SETTINGS else SETTINGS_FORMAT


def drop_table_command(name: str, uuid: bytes, writers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Payload that removes the table of this name if it still has this UUID."""
    return _encode(DropTableCommand(name, uuid, _encode(DroppedEntry(name, writers=writers))))


def edit_table_command(entry: TableEntry, base_seq: Seq) -> bytes:
    """Payload that replaces the entry of a table if the row is still the one of ``base_seq``.

    Two who edit at the same time would undo each other's change without that condition.
    """
    number = edited_format(entry)
    edited = msgspec.structs.replace(entry, format=number, was_edited=True)
    return _encode(EditTableCommand(entry.name, entry.uuid, _encode(edited), base_seq, number))


def edited_format(entry: TableEntry) -> int:
    """Format of the command that writes this entry in the place of another."""
    return max(EDITED_FORMAT, created_format(entry))


def register_node_command(
    node: NodeId, endpoint: str, level: int, failure_domain: str = ""
) -> bytes:
    """Payload that enters a node, or changes what is known of one."""
    entry = NodeEntry(node, endpoint, level=level, failure_domain=failure_domain)
    return _encode(RegisterNodeCommand(_encode(entry)))


@dataclass(frozen=True, slots=True)
class Catalog:
    """The catalog at ``version`` (applied seq of the metadata channel), read from its rows.

    Tables and nodes are ordered by name, so everything derived from them is the same everywhere.
    """

    version: int
    nodes: dict[str, NodeEntry] = field(default_factory=dict)
    tables: dict[str, TableEntry] = field(default_factory=dict)
    dropped: dict[bytes, str] = field(default_factory=dict)
    dropped_writers: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    """Per name of dropped tables the (writer, lineage) of those that had batches in them."""
    seqs: dict[str, Seq] = field(default_factory=dict)
    """Per table the seq of the record that wrote its entry."""
    tickets: dict[bytes, TicketEntry] = field(default_factory=dict)
    draining: dict[NodeId, Seq] = field(default_factory=dict)
    """Nodes that get no further replicas, and the seq of the record since which they drain."""
    retired: dict[NodeId, RetiredEntry] = field(default_factory=dict)
    numbers: dict[NodeId, Seq] = field(default_factory=dict)
    """Per node that joined the seq of the record by which it did: its number in the metadata
    channel (M30). Founders are not in it: theirs is 0."""
    changes: dict[ChannelId, ReplicaEntry] = field(default_factory=dict)
    """Of channels whose replicas were ever to be others than those of the creation."""
    change_seqs: dict[ChannelId, Seq] = field(default_factory=dict)
    """Per entry of ``changes`` the seq of the record that wrote it."""
    rebalance: KnownRebalance = field(default_factory=KnownRebalance)
    """Replicas that are moved so that shares are even, and tags of nodes."""
    _by_uuid: dict[bytes, TableEntry] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> Catalog:
        """The catalog before anything was applied."""
        return cls(0)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[bytes, bytes, Seq]],
        version: int,
        *,
        before: Catalog | None = None,
    ) -> Catalog:
        """Read (key, value, seq) rows; raise CorruptRecordError on one this version cannot read.

        ``before`` is what was read earlier: a table's row of the same seq is not read again.
        """
        catalog = cls(version)
        known = {} if before is None else before.seqs
        moves = KnownRebalance() if before is None else before.rebalance
        dropped_writers: dict[str, dict[tuple[str, str], None]] = {}
        for key, value, seq in sorted(rows):
            prefix, name = key[:2], key[2:]
            if prefix == TABLE_PREFIX:
                if before is not None and known.get(label := name.decode()) == seq:
                    table = before.tables[label]
                else:
                    table = decode_entry(value, TableEntry)
                catalog.tables[table.name] = table
                catalog.seqs[table.name] = seq
                catalog._by_uuid[table.uuid] = table
            elif prefix == NODE_PREFIX:
                node = decode_entry(value, NodeEntry)
                catalog.nodes[node_name(node.node)] = node
            elif prefix == DROPPED_PREFIX:
                gone = decode_entry(value, DroppedEntry)
                catalog.dropped[name] = gone.name
                dropped_writers.setdefault(gone.name, {}).update(dict.fromkeys(gone.writers))
            elif prefix == REPLICAS_PREFIX:
                catalog._take_replicas(ChannelId(name), value, seq, before)
            elif not (
                catalog._take_members(prefix, name, value, seq)
                or catalog.rebalance.take(key, value, seq, moves)
            ):
                raise NewerFormatError(
                    f"the catalog has a row {key!r} of an unknown sort; run a newer version"
                )
        # Frozen once: rows of dropped tables stay for ever, and a name may have many of them.
        frozen = {name: frozenset(writers) for name, writers in dropped_writers.items()}
        catalog.dropped_writers.update(frozen)
        return catalog

    def _take_members(self, prefix: bytes, name: bytes, value: bytes, seq: Seq) -> bool:
        """Read a row about a node that joins, drains or has left; False: it is none."""
        if prefix == TICKET_PREFIX:
            ticket = self.tickets[name] = decode_entry(value, TicketEntry)
            if ticket.used_by:
                self.numbers[NodeId(ticket.used_by)] = seq
        elif prefix == DRAINING_PREFIX:
            decode_entry(value, DrainingEntry)
            self.draining[NodeId(name.decode())] = seq
        elif prefix == RETIRED_PREFIX:
            self.retired[NodeId(name.decode())] = decode_entry(value, RetiredEntry)
        else:
            return False
        return True

    def _take_replicas(
        self, channel: ChannelId, value: bytes, seq: Seq, before: Catalog | None
    ) -> None:
        if before is not None and before.change_seqs.get(channel) == seq:
            self.changes[channel] = before.changes[channel]
        else:
            self.changes[channel] = decode_entry(value, ReplicaEntry)
        self.change_seqs[channel] = seq

    def changed_since(self, before: Catalog) -> tuple[tuple[TableEntry, ...], bool]:
        """Tables that are new or edited since an earlier state, and whether any is gone."""
        changed = tuple(
            table for name, table in self.tables.items() if before.tables.get(name) is not table
        )
        is_gone = any(uuid not in self._by_uuid for uuid in before._by_uuid)
        return changed, is_gone

    def replicas_changed_since(self, before: Catalog) -> tuple[ChannelId, ...]:
        """Channels whose replicas are ordered or reported anew since an earlier state."""
        seqs = before.change_seqs
        return tuple(name for name, seq in self.change_seqs.items() if seqs.get(name) != seq)

    def table_of(self, channel: ChannelId) -> TableEntry | None:
        """The table of a channel; None if it does not exist (any more)."""
        return self._by_uuid.get(channel_table(channel))

    def placeable(self) -> list[NodeId]:
        """The nodes on which replicas may be placed: all that neither drain nor have a tag."""
        nodes = (entry.node for entry in self.nodes.values())
        tagged = self.rebalance.tags
        return [node for node in nodes if node not in self.draining and node not in tagged]

    def domains(self) -> dict[NodeId, str]:
        """The failure domain of every registered node that has one."""
        nodes = self.nodes.values()
        return {entry.node: entry.failure_domain for entry in nodes if entry.failure_domain}

    def founding_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Replicas with which a channel was created, whatever it has now; () for an unknown one."""
        table = self.table_of(channel)
        partition = channel_partition(channel)
        if table is None or partition >= len(table.placement):
            return ()
        return tuple(table.placement[partition])

    def entry_of(self, channel: ChannelId) -> ReplicaEntry | None:
        """Everything known of a channel's replicas; None for an unknown channel."""
        entry = self.changes.get(channel)
        if entry is None and (founding := self.founding_of(channel)):
            entry = ReplicaEntry(ChannelConfig((founding,)))
        return entry

    def replicas_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Replicas of a channel by its newest reported configuration, voters first; () for an
        unknown channel."""
        entry = self.changes.get(channel)
        return self.founding_of(channel) if entry is None else entry.replicas

    def leaders_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Voters that have rows, by its newest reported configuration: who may be asked to lead; ()
        for an unknown channel."""
        entry = self.changes.get(channel)
        if entry is None:
            return self.founding_of(channel)
        return tuple(node for node in entry.config.voters if not entry.config.is_witness(node))

    def roles_of(self, channel: ChannelId) -> Mapping[NodeId, MemberRole]:
        """The hosts of a channel that are no voters with rows, and what they are instead."""
        entry = self.changes.get(channel)
        return {} if entry is None else entry.other_roles

    def voters_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Replicas that vote, by its newest reported configuration; () for an unknown channel."""
        entry = self.changes.get(channel)
        return self.founding_of(channel) if entry is None else entry.config.voters

    def placement_of(self, table: TableEntry) -> Placement:
        """Per partition the nodes that host a replica now, or are ordered to."""
        if not self.changes:
            return table.placement
        return tuple(map(self.hosts_of, table.channels))

    def placements(self) -> list[Placement]:
        """The same of every table, by name."""
        return [self.placement_of(table) for table in self.tables.values()]

    def hosts_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Its replicas, and the nodes that an open order has begin one."""
        entry = self.changes.get(channel)
        return self.founding_of(channel) if entry is None else tuple(entry.hosts)

    def hosts(self) -> set[NodeId]:
        """Every node with a replica of a table, or that an open order has begin one."""
        return {node for channel in self.channels() for node in self.hosts_of(channel)}

    def channels_of(self, node: NodeId) -> tuple[ChannelId, ...]:
        """Channels of which the catalog has a node host a replica, by table name and partition."""
        return tuple(channel for channel in self.channels() if node in self.hosts_of(channel))

    def channels(self) -> Iterator[ChannelId]:
        """Every channel of a table, by table name and partition."""
        return (channel for table in self.tables.values() for channel in table.channels)
