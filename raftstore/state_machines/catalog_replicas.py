"""Replicas of channels in the catalog's rows: what is ordered, and what leaders report (M20, M21).

Rows are ``r/<channel id>``. A channel without one has the replicas of its table's creation. Which
configuration counts is in the channel's own log (S8): the row holds the order that its leader
carries out, and the newest committed configuration that a leader reported. An order is open until a
report says that it has ended; only then the next one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from raftstore.config import REPLICAS_MAX
from raftstore.core.membership import has_rows_enough
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, Row
from raftstore.rows.sealing import seal
from raftstore.state_machines.base import NO_CHANGE
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT, decode_entry
from raftstore.state_machines.catalog_members import row_of_left
from raftstore.types import (
    ChangeNumber,
    ChangeTarget,
    ChannelConfig,
    ChannelId,
    MemberRole,
    NodeId,
    ReplicaNumber,
    Seq,
    Small31,
    Term,
    TimestampMs,
)

REPLICAS_PREFIX: Final = b"r/"

Read = Callable[[bytes], Row | None]
Founding = Callable[[str, ChannelId], Row | tuple[NodeId, ...]]
"""Replicas with which the table of this name was created, of one of its channels; the row in the
way if it is another table's, () if there is none."""
_encode = msgspec.msgpack.Encoder().encode


class ReplicaOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """An order to change the replicas of a channel, while it is open."""

    target: ChangeTarget
    guid: bytes
    """A request that is made again under the same one is the same order."""
    reason: str
    ordered_ms: TimestampMs
    """Time of the record, which is the same at every node."""


class EndedOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The order of a channel that ended last."""

    change: ChangeNumber
    guid: bytes
    is_done: bool
    """The replicas are those that were ordered; False: it was cancelled before."""


class ReplicaEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replicas of a channel, as far as the catalog knows them."""

    config: ChannelConfig
    """The newest committed configuration that was reported; without any, that of the creation."""
    config_seq: Seq = Seq(0)
    """Of its record in the channel's log; 0 for that of the creation."""
    config_term: Term = Term(0)
    order: ReplicaOrder | None = None
    ended: EndedOrder | None = None
    format: Small31 = MEMBERS_FORMAT

    @property
    def target(self) -> ChangeTarget | None:
        """The target of the open order; None: no order is open."""
        return None if self.order is None else self.order.target

    @property
    def replicas(self) -> tuple[NodeId, ...]:
        """Nodes of the reported configuration, voters first."""
        return self.config.members

    @property
    def takers(self) -> tuple[NodeId, ...]:
        """Nodes that get a replica by the open order."""
        target = self.target
        if target is None:
            return ()
        ordered = (*target.voters, *target.learners)
        return tuple(node for node in ordered if target.number_of(node) == target.change)

    @property
    def hosts(self) -> Mapping[NodeId, ReplicaNumber]:
        """Nodes that the row has host a replica, and its number: those of the configuration and
        those that an open order names. Of a node with two, the newer."""
        found = {node: self.config.number_of(node) for node in self.config.members}
        target = self.target
        if target is not None:
            for node in (*target.voters, *target.learners):
                found[node] = max(target.number_of(node), found.get(node, ReplicaNumber(0)))
        return found

    @property
    def other_roles(self) -> Mapping[NodeId, MemberRole]:
        """The hosts that are no voters with rows, and what they are; of a node with two replicas
        the newer one's."""
        config, target, found = self.config, self.target, dict[NodeId, MemberRole]()
        for node, number in self.hosts.items():
            role = config.role_of(node) if config.number_of(node) == number else None
            if role is None:
                ordered = {} if target is None else target.roles
                role = ordered.get(node, MemberRole.LEARNER)
            if role is not MemberRole.VOTER:
                found[node] = role
        return found


class ChangeReplicas(msgspec.Struct, frozen=True, tag_field="op", tag="change_replicas"):
    """Orders other replicas for a channel, if its row is still the one of ``base_seq`` (0: none).

    ``table``: the name of its table, empty for the metadata channel, of which ``founding`` says
    with which voters it began.
    """

    channel: ChannelId
    table: str
    voters: tuple[NodeId, ...]
    base_seq: Seq
    guid: bytes
    reason: str
    learners: tuple[NodeId, ...] = ()
    """Of a table they are read replicas."""
    founding: tuple[NodeId, ...] = ()
    witnesses: tuple[NodeId, ...] = ()
    """Voters among those that it adds that shall have no rows; the others stay what they are."""
    format: Small31 = MEMBERS_FORMAT


class CancelChange(msgspec.Struct, frozen=True, tag_field="op", tag="cancel_change"):
    """Asks to end an open order where it is; only the channel's log says what became of it."""

    channel: ChannelId
    change: ChangeNumber
    format: Small31 = MEMBERS_FORMAT


class ReportConfig(msgspec.Struct, frozen=True, tag_field="op", tag="report_config"):
    """Says that a configuration is committed in the channel's log, at ``config_seq``."""

    channel: ChannelId
    table: str
    config_seq: Seq
    config_term: Term
    config: ChannelConfig
    founding: tuple[NodeId, ...] = ()
    format: Small31 = MEMBERS_FORMAT


ReplicasCommand = ChangeReplicas | CancelChange | ReportConfig


def replicas_key(channel: ChannelId) -> bytes:
    """Key of the row of a channel."""
    return REPLICAS_PREFIX + channel


def change_replicas_command(command: ChangeReplicas) -> bytes:
    """Payload of an order."""
    return _encode(command)


def cancel_change_command(channel: ChannelId, change: ChangeNumber) -> bytes:
    """Payload that asks to end an open order; the same one again changes nothing."""
    return _encode(CancelChange(channel, change))


def report_config_command(report: ReportConfig) -> bytes:
    """Payload of a report; one that is not newer than what is known changes nothing."""
    return _encode(report)


def order_problem(voters: tuple[NodeId, ...], learners: tuple[NodeId, ...]) -> str | None:
    """Why these can never be the replicas of a channel; None: they can."""
    every = (*voters, *learners)
    twice = next((node for node in every if every.count(node) > 1), None)
    if twice is not None:
        return f"node {twice} is named twice; name each node once, as voter or as learner"
    if not voters:
        return "a channel without voters keeps nothing; leave at least one"
    if len(voters) > REPLICAS_MAX:
        return f"{len(voters)} voters are more than {REPLICAS_MAX}; order fewer"
    return None


def roles_of_order(command: ChangeReplicas, config: ChannelConfig) -> dict[NodeId, MemberRole]:
    """The witnesses and readers that the order leads to (W3: nobody becomes a witness, or stops
    being one, without another number)."""
    roles: dict[NodeId, MemberRole] = {}
    for node in command.voters:
        is_kept = node in config.members
        if config.is_witness(node) if is_kept else node in command.witnesses:
            roles[node] = MemberRole.WITNESS
    if command.table:  # nodes without a vote in the catalog may get one at any time
        roles |= dict.fromkeys(command.learners, MemberRole.READER)
    return roles


def rows_problem(voters: tuple[NodeId, ...], roles: Mapping[NodeId, MemberRole]) -> str | None:
    """Why too few of the voters have rows (W1); None: enough have."""
    if has_rows_enough(voters, roles):
        return None
    witnesses = sum(roles.get(node) is MemberRole.WITNESS for node in voters)
    return (
        f"{witnesses} of {len(voters)} voters would be witnesses; a majority of the voters needs "
        "the rows: order fewer witnesses, or more replicas"
    )


def apply_replicas(
    command: ReplicasCommand, record: Record, read: Read, founding: Founding
) -> ApplyResult:
    """Compute the writes of one command; a lost condition is a conflict."""
    match command:
        case ChangeReplicas():
            return _change(command, record, read, founding)
        case CancelChange():
            return _cancel(command, read)
        case ReportConfig():
            return _report(command, read, founding)


def _entry(
    command: ChangeReplicas | ReportConfig, read: Read, founding: Founding
) -> tuple[ReplicaEntry, Seq] | ApplyResult:
    """The present entry of the command's channel with the seq of its row, 0 for none; a conflict
    where the channel does not exist (S0.8)."""
    found: Row | tuple[NodeId, ...] = command.founding
    if command.table:
        found = founding(command.table, command.channel)
    if isinstance(found, Row):
        return ApplyResult((), conflict_seq=found.seq)
    if not found:
        return ApplyResult((), conflict_seq=Seq(0))
    row = read(replicas_key(command.channel))
    if row is None:
        return ReplicaEntry(ChannelConfig((found,))), Seq(0)
    return decode_entry(row.value, ReplicaEntry), row.seq


def _write(channel: ChannelId, entry: ReplicaEntry) -> ApplyResult:
    key = replicas_key(channel)
    return ApplyResult(((key, seal(key, _encode(entry))),))


def _change(command: ChangeReplicas, record: Record, read: Read, founding: Founding) -> ApplyResult:
    found = _entry(command, read, founding)
    if isinstance(found, ApplyResult):
        return found
    entry, seq = found
    known = (entry.order, entry.ended)
    if any(order is not None and order.guid == command.guid for order in known):
        return NO_CHANGE
    # M20: a compare-and-set, and one order at a time: what it names was judged by this very row.
    if seq != command.base_seq or entry.order is not None:
        return ApplyResult((), conflict_seq=seq)
    config = entry.config
    if order_problem(command.voters, command.learners) is not None:
        return ApplyResult((), conflict_seq=seq)
    members = (*command.voters, *command.learners)
    roles = roles_of_order(command, config)
    is_wrong = rows_problem(command.voters, roles) is not None
    if is_wrong or any(config.is_witness(node) for node in command.learners):
        return ApplyResult((), conflict_seq=seq)
    added = [node for node in members if node not in config.members]
    # M27: a copy of the catalog that does not know yet who drains or has left may have chosen it.
    if (left := row_of_left(added, read, drains=True)) is not None:
        return ApplyResult((), conflict_seq=left.seq)
    # M14: a seq that no other order has, so no node hosts two replicas of one number ever.
    change = record.base_seq
    numbers = {
        node: number
        for node in members
        if (number := ReplicaNumber(change) if node in added else config.number_of(node))
    }
    target = ChangeTarget(change, command.voters, command.learners, numbers, roles=roles)
    order = ReplicaOrder(target, command.guid, command.reason, record.timestamp_ms)
    return _write(command.channel, msgspec.structs.replace(entry, order=order))


def _cancel(command: CancelChange, read: Read) -> ApplyResult:
    row = read(replicas_key(command.channel))
    if row is None:
        return ApplyResult((), conflict_seq=Seq(0))
    entry = decode_entry(row.value, ReplicaEntry)
    order = entry.order
    if order is None or order.target.change != command.change:
        return ApplyResult((), conflict_seq=row.seq)
    if order.target.cancelled:
        return NO_CHANGE
    target = msgspec.structs.replace(order.target, cancelled=True)
    order = msgspec.structs.replace(order, target=target)
    return _write(command.channel, msgspec.structs.replace(entry, order=order))


def _report(command: ReportConfig, read: Read, founding: Founding) -> ApplyResult:
    found = _entry(command, read, founding)
    if isinstance(found, ApplyResult):
        return found
    entry, _ = found
    # M21: committed configurations of one log, so the higher seq is the later one.
    if command.config_seq <= entry.config_seq:
        return NO_CHANGE
    config, order, ended = command.config, entry.order, entry.ended
    # An order ends by a record of the log that says so, never by what its voters look like: one
    # of several steps passes through other sets, and one that is cancelled ends in any of them.
    if order is not None and config.ended and config.change == order.target.change:
        ended = EndedOrder(config.change, order.guid, is_done=_is_done(config, order.target))
        order = None
    return _write(
        command.channel,
        ReplicaEntry(config, command.config_seq, command.config_term, order, ended),
    )


def _is_done(config: ChannelConfig, target: ChangeTarget) -> bool:
    return (
        len(config.voter_sets) == 1
        and set(config.voters) == set(target.voters)
        and set(config.learners) == set(target.learners)
        and all(config.number_of(node) == target.number_of(node) for node in config.members)
    )
