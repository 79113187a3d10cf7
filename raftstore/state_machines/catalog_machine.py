"""The machine behind the metadata channel: commands to the rows of the catalog (GAP-07).

Every command that creates or edits is a compare-and-set, decided by the rows before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import ClassVar, Final

import msgspec

from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, RecordMachine, RecordView, Row
from raftstore.rows.sealing import seal
from raftstore.state_machines.base import NO_CHANGE, refuse_kind, refuse_payload
from raftstore.state_machines.catalog import (
    DROPPED_PREFIX,
    TABLE_PREFIX,
    CreateTableCommand,
    DropTableCommand,
    EditTableCommand,
    RegisterNodeCommand,
    TableCommand,
    TableEntry,
)
from raftstore.state_machines.catalog_entries import (
    CATALOG_FORMAT,
    NodeEntry,
    decode_entry,
    newer_format,
    node_key,
)
from raftstore.state_machines.catalog_members import (
    AddTicket,
    DrainNode,
    JoinNode,
    MembersCommand,
    RemoveNode,
    apply_members,
    retired_key,
    row_of_left,
)
from raftstore.state_machines.catalog_rebalance import (
    BeginRebalance,
    CancelMoves,
    EndRebalance,
    RebalanceCommand,
    SetSwitch,
    SetThrottle,
    StepMove,
    TagNodeCommand,
    apply_rebalance,
)
from raftstore.state_machines.catalog_replicas import (
    ReplicasCommand,
    apply_replicas,
    replicas_key,
)
from raftstore.types import ChannelId, NodeId, RecordKind, Seq, channel_partition, node_name

_Command = TableCommand | RegisterNodeCommand | MembersCommand | ReplicasCommand | RebalanceCommand
_COMMANDS: Final = msgspec.msgpack.Decoder(_Command)


class CatalogMachine(RecordMachine):
    """Applies commands to the catalog's rows.

    A command that must not change anything (a lost compare-and-set) is a conflict, reported like
    that of a conditional write: ``conflict_seq`` is the seq of the row in the way, 0 if absent.
    """

    LABEL: ClassVar = "catalog"
    KINDS: ClassVar = frozenset({RecordKind.COMMAND})

    def apply(  # noqa: C901 - one arm per kind
        self, record: Record, view: RecordView
    ) -> ApplyResult:
        """Compute the writes of one committed record; raise CorruptRecordError if unreadable."""
        read = view.row
        if record.kind is not RecordKind.COMMAND:
            raise refuse_kind("catalog", record)
        try:
            command: _Command = _COMMANDS.decode(record.payload)
        except ValueError as error:  # of msgspec, or of a text that is no UTF-8
            raise refuse_payload(record, error) from error
        if command.format > CATALOG_FORMAT:
            raise newer_format(command.format)
        match command:
            case CreateTableCommand():
                return _create_table(command, read)
            case DropTableCommand():
                return _drop_table(command, read)
            case EditTableCommand():
                return _edit_table(command, read)
            case RegisterNodeCommand():
                return _register_node(command, read)
            case AddTicket() | JoinNode() | DrainNode() | RemoveNode():
                return apply_members(command, record, read)
            case TagNodeCommand() | SetThrottle() | SetSwitch() | BeginRebalance():
                return apply_rebalance(command, record, read)
            case StepMove() | CancelMoves() | EndRebalance():
                return apply_rebalance(command, record, read)
            case _:
                return apply_replicas(command, record, read, partial(_founding, read))

    @staticmethod
    def table_key(name: str) -> bytes:
        """Key of the row of a table."""
        return TABLE_PREFIX + name.encode()

    @staticmethod
    def node_key(name: str) -> bytes:
        """Key of the row of a node."""
        return node_key(name)


def _create_table(command: CreateTableCommand, read: Callable[[bytes], Row | None]) -> ApplyResult:
    entry = decode_entry(command.entry, TableEntry)
    key = CatalogMachine.table_key(entry.name)
    # S0.8: creating is a compare-and-set on the name.
    if (row := read(key)) is not None:
        existing = decode_entry(row.value, TableEntry)
        if existing.uuid == entry.uuid:
            return NO_CHANGE
        if command.if_not_exists and existing.same_definition(entry):
            return NO_CHANGE
        return ApplyResult((), conflict_seq=row.seq)
    # S0.8: the UUID of a dropped table never serves again.
    if (dropped := read(DROPPED_PREFIX + entry.uuid)) is not None:
        return ApplyResult((), conflict_seq=dropped.seq)
    # M27: a copy of the catalog that does not know yet who drains or has left may have placed it.
    if (left := row_of_left(chain(*entry.placement), read, drains=True)) is not None:
        return ApplyResult((), conflict_seq=left.seq)
    return ApplyResult(((key, seal(key, command.entry)),))


def _drop_table(command: DropTableCommand, read: Callable[[bytes], Row | None]) -> ApplyResult:
    key = CatalogMachine.table_key(command.name)
    row = read(key)
    if row is None or decode_entry(row.value, TableEntry).uuid != command.uuid:
        return ApplyResult((), conflict_seq=Seq(0) if row is None else row.seq)
    tomb = DROPPED_PREFIX + command.uuid
    channels = decode_entry(row.value, TableEntry).channels
    orders = (each for each in map(replicas_key, channels) if read(each) is not None)
    gone = tuple((each, None) for each in (key, *orders))
    return ApplyResult((*gone, (tomb, seal(tomb, command.entry))))


def _founding(
    read: Callable[[bytes], Row | None], name: str, channel: ChannelId
) -> Row | tuple[NodeId, ...]:
    """Replicas with which a channel of the table of this name was created; else its row, if any."""
    row = read(CatalogMachine.table_key(name))
    if row is None:
        return ()
    entry = decode_entry(row.value, TableEntry)
    if not entry.has_channel(channel):
        return row
    return tuple(entry.placement[channel_partition(channel)])


def _edit_table(command: EditTableCommand, read: Callable[[bytes], Row | None]) -> ApplyResult:
    key = CatalogMachine.table_key(command.name)
    row = read(key)
    # S0.8: a compare-and-set; another table of the name, or a newer entry, is not touched.
    if (
        row is None
        or row.seq != command.base_seq
        or decode_entry(row.value, TableEntry).uuid != command.uuid
    ):
        return ApplyResult((), conflict_seq=Seq(0) if row is None else row.seq)
    return ApplyResult(((key, seal(key, command.entry)),))


def _register_node(
    command: RegisterNodeCommand, read: Callable[[bytes], Row | None]
) -> ApplyResult:
    entry = decode_entry(command.entry, NodeEntry)
    key = CatalogMachine.node_key(node_name(entry.node))
    row = read(key)
    # S0.1: a name with another store UUID is another node; it may not take this one's place.
    if row is not None and decode_entry(row.value, NodeEntry).node != entry.node:
        return ApplyResult((), conflict_seq=row.seq)
    # S0.1: nor does one that was retired come back.
    if (left := read(retired_key(entry.node))) is not None:
        return ApplyResult((), conflict_seq=left.seq)
    return ApplyResult(((key, seal(key, command.entry)),))
