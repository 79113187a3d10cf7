"""Nodes that join, drain and leave, in the catalog's rows (M27, M28).

Rows are ``k/<ticket>`` (a permission to join, once), ``s/<node id>`` (the node drains: no replica
is placed there any more) and ``x/<node id>`` (retired: the id never comes back, S0.1). A ticket
stays when it was used: the seq of the record that used it is the node's number in the metadata
channel, and what it replaces says whose replicas the node takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, Row
from raftstore.rows.sealing import seal
from raftstore.state_machines.base import NO_CHANGE
from raftstore.state_machines.catalog_entries import (
    MEMBERS_FORMAT,
    REPLACED_ONCE_FORMAT,
    NodeEntry,
    decode_entry,
    node_key,
)
from raftstore.types import NodeId, Seq, Small31, TimestampMs, node_name

TICKET_PREFIX: Final = b"k/"
DRAINING_PREFIX: Final = b"s/"
RETIRED_PREFIX: Final = b"x/"
TAG_PREFIX: Final = b"g/"

Read = Callable[[bytes], Row | None]
_ABSENT: Final = ApplyResult((), conflict_seq=Seq(0))
_encode = msgspec.msgpack.Encoder().encode


class TicketEntry(msgspec.Struct, frozen=True):
    """A permission for one node to join, and after that who did.

    ``stored_key`` verifies the ticket's secret without showing it (``protocol.tickets``).
    ``expires_ms`` is compared with the time of the record that uses the ticket, so it means the
    same at every replica.
    """

    stored_key: bytes
    expires_ms: TimestampMs
    replaces: str = ""
    """Id of the node whose place is taken; empty: none."""
    used_by: str = ""
    """Id of the node that joined by it; empty: nobody yet."""
    format: Small31 = MEMBERS_FORMAT
    is_forced: bool = False
    """Whatever has become of the replaced node and of others until it is used; judged by the
    leader that is asked, so older ones need not know it."""


class DrainingEntry(msgspec.Struct, frozen=True):
    """The node gets no further replicas."""

    format: Small31 = MEMBERS_FORMAT


class RetiredEntry(msgspec.Struct, frozen=True):
    """The node has left for ever; ``replaced_by`` is who took its place, empty: nobody."""

    replaced_by: str = ""
    format: Small31 = MEMBERS_FORMAT


class AddTicket(msgspec.Struct, frozen=True, tag_field="op", tag="add_ticket"):
    """``entry`` holds the bytes of the TicketEntry that are stored.

    ``forget``: tickets that nobody used and that have expired, whose rows are of no use any more.
    """

    ticket: bytes
    entry: bytes
    forget: tuple[bytes, ...] = ()
    format: Small31 = MEMBERS_FORMAT


class JoinNode(msgspec.Struct, frozen=True, tag_field="op", tag="join_node"):
    """Enters a node by a ticket, in the place of the one that the ticket names, if any.

    ``entry``: the bytes of the NodeEntry that are stored; ``used``: those of the ticket's row;
    ``retired``: those of the row of the node that is replaced, empty without one.
    """

    ticket: bytes
    entry: bytes
    used: bytes
    retired: bytes = b""
    format: Small31 = MEMBERS_FORMAT
    """From ``REPLACED_ONCE_FORMAT`` on only as long as the replaced node has not left."""


class DrainNode(msgspec.Struct, frozen=True, tag_field="op", tag="drain_node"):
    """``entry``: the bytes of the DrainingEntry that are stored; empty: the node is active."""

    node: NodeId
    entry: bytes
    format: Small31 = MEMBERS_FORMAT


class RemoveNode(msgspec.Struct, frozen=True, tag_field="op", tag="remove_node"):
    """Retires a node that drains since the record at ``base_seq``.

    ``entry`` holds the bytes of the RetiredEntry that are stored.
    """

    node: NodeId
    entry: bytes
    base_seq: Seq
    format: Small31 = MEMBERS_FORMAT


MembersCommand = AddTicket | JoinNode | DrainNode | RemoveNode


def ticket_key(ticket: bytes) -> bytes:
    """Key of the row of a ticket."""
    return TICKET_PREFIX + ticket


def draining_key(node: NodeId) -> bytes:
    """Key of the row that is there while a node drains."""
    return DRAINING_PREFIX + node.encode()


def retired_key(node: NodeId) -> bytes:
    """Key of the row that keeps an id from coming back."""
    return RETIRED_PREFIX + node.encode()


def tag_key(node: NodeId) -> bytes:
    """Key of the row of a node's tag (``catalog_rebalance``)."""
    return TAG_PREFIX + node.encode()


def add_ticket_command(ticket: bytes, entry: TicketEntry, forget: Iterable[bytes] = ()) -> bytes:
    """Payload that enters a ticket; the same one again changes nothing."""
    return _encode(AddTicket(ticket, _encode(entry), tuple(forget)))


def join_node_command(
    ticket: bytes, entry: TicketEntry, node: NodeEntry, *, is_once: bool
) -> bytes:
    """Payload by which a node joins; ``entry`` is the ticket as it is, used or not.

    ``is_once``: every node knows that a place is taken once; otherwise the log does not decide it.
    """
    number = REPLACED_ONCE_FORMAT if entry.replaces and is_once else MEMBERS_FORMAT
    node = msgspec.structs.replace(node, format=MEMBERS_FORMAT)
    used = msgspec.structs.replace(entry, used_by=node.node)
    retired = _encode(RetiredEntry(replaced_by=node.node)) if entry.replaces else b""
    return _encode(JoinNode(ticket, _encode(node), _encode(used), retired, number))


def drain_node_command(node: NodeId, *, drains: bool) -> bytes:
    """Payload that has a node drain, or takes that back."""
    return _encode(DrainNode(node, _encode(DrainingEntry()) if drains else b""))


def remove_node_command(node: NodeId, draining_seq: Seq) -> bytes:
    """Payload that retires a node which drains since that seq.

    Since then no table was placed there, so what a later copy of the catalog names is all.
    """
    return _encode(RemoveNode(node, _encode(RetiredEntry()), draining_seq))


def apply_members(command: MembersCommand, record: Record, read: Read) -> ApplyResult:
    """Compute the writes of one command; a lost condition is a conflict."""
    match command:
        case AddTicket():
            return _add_ticket(command, record, read)
        case JoinNode():
            return _join_node(command, record, read)
        case DrainNode():
            return _drain_node(command, read)
        case RemoveNode():
            return _remove_node(command, read)


def row_of_left(nodes: Iterable[NodeId], read: Read, *, drains: bool) -> Row | None:
    """The row of one of these nodes that has left, or drains; None: there is none."""
    for node in dict.fromkeys(nodes):
        row = read(retired_key(node)) or (read(draining_key(node)) if drains else None)
        if row is not None:
            return row
    return None


def _add_ticket(command: AddTicket, record: Record, read: Read) -> ApplyResult:
    key = ticket_key(command.ticket)
    row = read(key)
    if row is not None:
        same = decode_entry(command.entry, TicketEntry).stored_key
        is_same = decode_entry(row.value, TicketEntry).stored_key == same
        return NO_CHANGE if is_same else ApplyResult((), conflict_seq=row.seq)
    writes: list[tuple[bytes, bytes | None]] = [(key, seal(key, command.entry))]
    for ticket in dict.fromkeys(command.forget):
        old = read(ticket_key(ticket))
        if old is None or ticket == command.ticket:
            continue
        entry = decode_entry(old.value, TicketEntry)
        # A used ticket is the memory of a join, and is never forgotten.
        if not entry.used_by and entry.expires_ms <= record.timestamp_ms:
            writes.append((ticket_key(ticket), None))
    return ApplyResult(tuple(writes))


def _join_node(command: JoinNode, record: Record, read: Read) -> ApplyResult:
    entry = decode_entry(command.entry, NodeEntry)
    key = ticket_key(command.ticket)
    row = read(key)
    if row is None:
        return _ABSENT
    ticket = decode_entry(row.value, TicketEntry)
    # S0.1: an id that has left never comes back, whatever ticket it has.
    if (left := read(retired_key(entry.node))) is not None:
        return ApplyResult((), conflict_seq=left.seq)
    if ticket.used_by:
        # M28: once for one id; that id may ask again, however late.
        is_mine = ticket.used_by == entry.node
        return NO_CHANGE if is_mine else ApplyResult((), conflict_seq=row.seq)
    if ticket.expires_ms <= record.timestamp_ms:
        return ApplyResult((), conflict_seq=row.seq)
    replaced = NodeId(ticket.replaces)
    # M29: the place of a node is taken once, by whichever ticket comes first. Older logs had it
    # taken by each, and those that apply them now must come to the same members.
    if command.format >= REPLACED_ONCE_FORMAT:
        gone = read(retired_key(replaced))
        if gone is not None:
            return ApplyResult((), conflict_seq=gone.seq)
    name = node_key(node_name(entry.node))
    taken = read(name)
    # M27: a name passes to another id only by a ticket that names the old one.
    if taken is not None and decode_entry(taken.value, NodeEntry).node != replaced:
        return ApplyResult((), conflict_seq=taken.seq)
    writes = [(name, seal(name, command.entry)), (key, seal(key, command.used))]
    return ApplyResult((*writes, *_retire(replaced, command.retired, read, but=name)))


def _drain_node(command: DrainNode, read: Read) -> ApplyResult:
    row = read(node_key(node_name(command.node)))
    if row is None or decode_entry(row.value, NodeEntry).node != command.node:
        return _ABSENT if row is None else ApplyResult((), conflict_seq=row.seq)
    key = draining_key(command.node)
    drains = read(key) is not None
    if drains == bool(command.entry):
        return NO_CHANGE
    return ApplyResult(((key, seal(key, command.entry) if command.entry else None),))


def _remove_node(command: RemoveNode, read: Read) -> ApplyResult:
    if read(retired_key(command.node)) is not None:
        return NO_CHANGE
    # Only one that drained all the time since the proposer looked where its replicas are.
    draining = read(draining_key(command.node))
    if draining is None or draining.seq != command.base_seq:
        return _ABSENT if draining is None else ApplyResult((), conflict_seq=draining.seq)
    return ApplyResult(_retire(command.node, command.entry, read))


def _retire(
    node: NodeId, entry: bytes, read: Read, *, but: bytes = b""
) -> tuple[tuple[bytes, bytes | None], ...]:
    """Writes that retire a node; ``but``: a row that is written otherwise. None for no node."""
    if not node or read(retired_key(node)) is not None:
        return ()
    key, name, draining = retired_key(node), node_key(node_name(node)), draining_key(node)
    writes: list[tuple[bytes, bytes | None]] = [(key, seal(key, entry))]
    row = read(name)
    if name != but and row is not None and decode_entry(row.value, NodeEntry).node == node:
        writes.append((name, None))
    writes.extend((each, None) for each in (draining, tag_key(node)) if read(each) is not None)
    return tuple(writes)
