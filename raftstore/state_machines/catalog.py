"""The catalog: nodes, tables and placement, as the rows of the metadata channel (GAP-07).

Rows are ``t/<table name>``, ``n/<node name>`` and ``d/<table UUID>`` (dropped for ever, S0.8);
values are msgpack maps with a format version. A command carries everything that is random or
depends on the moment (table UUID, placement) and the bytes of the row it writes, so replicas of
different versions store the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.ports.machine import ApplyResult, Row, StateMachine
from raftstore.protocol.records import Record
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, TableSettings
from raftstore.rows.schema_growth import is_grown_from
from raftstore.rows.sealing import seal
from raftstore.state_machines.base import NO_CHANGE, SILENT_KINDS, refuse_kind, refuse_payload
from raftstore.types import (
    ChannelId,
    Count63,
    NodeId,
    PartitionCount,
    RecordKind,
    Seq,
    Small31,
    channel_id,
    channel_partition,
    channel_table,
    node_name,
)

CATALOG_FORMAT: Final = 3
"""Newest version of commands and rows read here. A newer one stops the node: it could not keep the
catalog."""

FIRST_FORMAT: Final = 1
"""Of every command and row that nodes of the first version can read, too."""

EDITED_FORMAT: Final = 2
"""Of the command that edits a table and of the row that it writes: older nodes stop there, for they
would serve the table by rules that do not hold any more."""

SETTINGS_FORMAT: Final = 3
"""Of the commands that create or edit a table which has settings of its own, and of its row: older
nodes stop there, for they would not go by them."""

TABLE_PREFIX: Final = b"t/"
NODE_PREFIX: Final = b"n/"
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


def _asked_for(entry: TableEntry, *, edited: bool) -> TableEntry:
    return msgspec.structs.replace(
        entry,
        uuid=b"",
        placement=(),
        format=FIRST_FORMAT,
        max_lag=None if edited else entry.max_lag,
        max_staleness_ms=None,
        max_batches_behind=None,
        standby_reads=True,
        max_replica_lag=None,
        settings=DEFAULT_SETTINGS if edited else entry.settings,
        was_edited=False,
    )


class NodeEntry(msgspec.Struct, frozen=True):
    """A registered node, where it can be reached (addresses may change, S0.7) and its level.

    Versions without levels skip the field, and write entries without it: those are at level 0.
    """

    node: NodeId
    endpoint: str
    format: Small31 = FIRST_FORMAT
    level: Small31 = 0


class DroppedEntry(msgspec.Struct, frozen=True):
    """Remains of a dropped table, so that its UUID is never accepted again (S0.8).

    ``writers``: (writer, lineage) of those with batches in it, whose next batch must not begin
    another table of the name (``dropped_batches``). Versions without it skip the field.
    """

    name: str
    format: Small31 = FIRST_FORMAT
    writers: tuple[tuple[str, str], ...] = ()


class _CreateTable(msgspec.Struct, frozen=True, tag_field="op", tag="create_table"):
    """``entry`` holds the bytes of the TableEntry that are stored."""

    entry: bytes
    if_not_exists: bool = False
    format: Small31 = FIRST_FORMAT


class _DropTable(msgspec.Struct, frozen=True, tag_field="op", tag="drop_table"):
    """``entry`` holds the bytes of the DroppedEntry that are stored."""

    name: str
    uuid: bytes
    entry: bytes
    format: Small31 = FIRST_FORMAT


class _EditTable(msgspec.Struct, frozen=True, tag_field="op", tag="edit_table"):
    """``entry`` holds the bytes of the TableEntry that replace those written at ``base_seq``."""

    name: str
    uuid: bytes
    entry: bytes
    base_seq: Seq
    format: Small31 = EDITED_FORMAT


class _RegisterNode(msgspec.Struct, frozen=True, tag_field="op", tag="register_node"):
    """``entry`` holds the bytes of the NodeEntry that are stored."""

    entry: bytes
    format: Small31 = FIRST_FORMAT


_Command = _CreateTable | _DropTable | _EditTable | _RegisterNode
_Entry = TypeVar("_Entry", TableEntry, NodeEntry, DroppedEntry)
_COMMANDS: Final = msgspec.msgpack.Decoder(_Command)
_encode = msgspec.msgpack.Encoder().encode


def create_table_command(entry: TableEntry, *, if_not_exists: bool = False) -> bytes:
    """Payload that creates a table if no table has its name (a compare-and-set on the name)."""
    number = max(entry.format, created_format(entry))
    entry = msgspec.structs.replace(entry, format=number)
    return _encode(_CreateTable(_encode(entry), if_not_exists, number))


def created_format(entry: TableEntry) -> int:
    """Format of the command that creates a table with this entry."""
    return FIRST_FORMAT if entry.settings == DEFAULT_SETTINGS else SETTINGS_FORMAT


def drop_table_command(name: str, uuid: bytes, writers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Payload that removes the table of this name if it still has this UUID."""
    return _encode(_DropTable(name, uuid, _encode(DroppedEntry(name, writers=writers))))


def edit_table_command(entry: TableEntry, base_seq: Seq) -> bytes:
    """Payload that replaces the entry of a table if the row is still the one of ``base_seq``.

    Two who edit at the same time would undo each other's change without that condition.
    """
    number = edited_format(entry)
    edited = msgspec.structs.replace(entry, format=number, was_edited=True)
    return _encode(_EditTable(entry.name, entry.uuid, _encode(edited), base_seq, number))


def edited_format(entry: TableEntry) -> int:
    """Format of the command that writes this entry in the place of another."""
    return max(EDITED_FORMAT, created_format(entry))


def register_node_command(node: NodeId, endpoint: str, level: int) -> bytes:
    """Payload that enters a node, or changes the endpoint or the level of a known one."""
    return _encode(_RegisterNode(_encode(NodeEntry(node, endpoint, level=level))))


class CatalogMachine(StateMachine):
    """Applies commands to the catalog's rows.

    A command that must not change anything (a lost compare-and-set) is a conflict, reported like
    that of a conditional write: ``conflict_seq`` is the seq of the row in the way, 0 if absent.
    """

    def apply(self, record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
        """Compute the writes of one committed record; raise CorruptRecordError if unreadable."""
        if record.kind in SILENT_KINDS:
            return NO_CHANGE
        if record.kind is not RecordKind.COMMAND:
            raise refuse_kind("catalog", record)
        try:
            command: _Command = _COMMANDS.decode(record.payload)
        except msgspec.MsgspecError as error:
            raise refuse_payload(record, error) from error
        if command.format > CATALOG_FORMAT:
            raise _newer(command.format)
        match command:
            case _CreateTable():
                return _create_table(command, read)
            case _DropTable():
                return _drop_table(command, read)
            case _EditTable():
                return _edit_table(command, read)
            case _RegisterNode():
                return _register_node(command, read)

    @staticmethod
    def table_key(name: str) -> bytes:
        """Key of the row of a table."""
        return TABLE_PREFIX + name.encode()

    @staticmethod
    def node_key(name: str) -> bytes:
        """Key of the row of a node."""
        return NODE_PREFIX + name.encode()


def _create_table(command: _CreateTable, read: Callable[[bytes], Row | None]) -> ApplyResult:
    entry = _decode(command.entry, TableEntry)
    key = CatalogMachine.table_key(entry.name)
    # S0.8: creating is a compare-and-set on the name.
    if (row := read(key)) is not None:
        existing = _decode(row.value, TableEntry)
        if existing.uuid == entry.uuid:
            return NO_CHANGE
        if command.if_not_exists and existing.same_definition(entry):
            return NO_CHANGE
        return ApplyResult((), conflict_seq=row.seq)
    # S0.8: the UUID of a dropped table never serves again.
    if (dropped := read(DROPPED_PREFIX + entry.uuid)) is not None:
        return ApplyResult((), conflict_seq=dropped.seq)
    return ApplyResult(((key, seal(key, command.entry)),))


def _drop_table(command: _DropTable, read: Callable[[bytes], Row | None]) -> ApplyResult:
    key = CatalogMachine.table_key(command.name)
    row = read(key)
    if row is None or _decode(row.value, TableEntry).uuid != command.uuid:
        return ApplyResult((), conflict_seq=Seq(0) if row is None else row.seq)
    tomb = DROPPED_PREFIX + command.uuid
    return ApplyResult(((key, None), (tomb, seal(tomb, command.entry))))


def _edit_table(command: _EditTable, read: Callable[[bytes], Row | None]) -> ApplyResult:
    key = CatalogMachine.table_key(command.name)
    row = read(key)
    # S0.8: a compare-and-set; another table of the name, or a newer entry, is not touched.
    if (
        row is None
        or row.seq != command.base_seq
        or _decode(row.value, TableEntry).uuid != command.uuid
    ):
        return ApplyResult((), conflict_seq=Seq(0) if row is None else row.seq)
    return ApplyResult(((key, seal(key, command.entry)),))


def _register_node(command: _RegisterNode, read: Callable[[bytes], Row | None]) -> ApplyResult:
    entry = _decode(command.entry, NodeEntry)
    key = CatalogMachine.node_key(node_name(entry.node))
    row = read(key)
    # S0.1: a name with another store UUID is another node; it may not take this one's place.
    if row is not None and _decode(row.value, NodeEntry).node != entry.node:
        return ApplyResult((), conflict_seq=row.seq)
    return ApplyResult(((key, seal(key, command.entry)),))


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
        dropped_writers: dict[str, dict[tuple[str, str], None]] = {}
        for key, value, seq in sorted(rows):
            prefix, name = key[:2], key[2:]
            if prefix == TABLE_PREFIX:
                if before is not None and known.get(label := name.decode()) == seq:
                    table = before.tables[label]
                else:
                    table = _decode(value, TableEntry)
                catalog.tables[table.name] = table
                catalog.seqs[table.name] = seq
                catalog._by_uuid[table.uuid] = table
            elif prefix == NODE_PREFIX:
                node = _decode(value, NodeEntry)
                catalog.nodes[node_name(node.node)] = node
            elif prefix == DROPPED_PREFIX:
                gone = _decode(value, DroppedEntry)
                catalog.dropped[name] = gone.name
                dropped_writers.setdefault(gone.name, {}).update(dict.fromkeys(gone.writers))
            else:
                raise NewerFormatError(
                    f"the catalog has a row {key!r} of an unknown sort; run a newer version"
                )
        # Frozen once: rows of dropped tables stay for ever, and a name may have many of them.
        frozen = {name: frozenset(writers) for name, writers in dropped_writers.items()}
        catalog.dropped_writers.update(frozen)
        return catalog

    def changed_since(self, before: Catalog) -> tuple[tuple[TableEntry, ...], bool]:
        """Tables that are new or edited since an earlier state, and whether any is gone."""
        changed = tuple(
            table for name, table in self.tables.items() if before.tables.get(name) is not table
        )
        is_gone = any(uuid not in self._by_uuid for uuid in before._by_uuid)
        return changed, is_gone

    def table_of(self, channel: ChannelId) -> TableEntry | None:
        """The table of a channel; None if it does not exist (any more)."""
        return self._by_uuid.get(channel_table(channel))

    def replicas_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Replicas of a channel, preferred leader first; () for an unknown channel."""
        table = self.table_of(channel)
        partition = channel_partition(channel)
        if table is None or partition >= len(table.placement):
            return ()
        return table.placement[partition]

    def channels_of(self, node: NodeId) -> tuple[ChannelId, ...]:
        """Channels that a node hosts, by table name and partition."""
        return tuple(
            channel_id(table.uuid, partition)
            for table in self.tables.values()
            for partition, replicas in enumerate(table.placement)
            if node in replicas
        )


def _decode(value: bytes, kind: type[_Entry]) -> _Entry:
    try:
        entry = msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptRecordError(
            f"{len(value)} bytes of the catalog are no {kind.__name__}: {error}; "
            "compare them with another replica"
        ) from error
    if entry.format > CATALOG_FORMAT:
        raise _newer(entry.format)
    return entry


def _newer(number: int) -> NewerFormatError:
    return NewerFormatError(
        f"catalog format {number} is newer than {CATALOG_FORMAT}; run a newer version on this node"
    )
