"""Replicas that this node hosts: which it opens, and under which number, and when one is deleted.

The catalog orders and the channel's log decides (S8): a replica stays open as long as its row, an
open order or its own log names it. It is deleted when a configuration without it was committed in
the channel and reported to the catalog, so after two commits. Then the log remembers that it was
removed, and its table goes once that is durable; the node may host the channel again under a higher
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from raftstore.core.configs import ConfigEntry
from raftstore.core.events import TargetKnown
from raftstore.core.folds import Folds
from raftstore.engine.catalog.failpoints import REPLICA_DELETED, REPLICA_FORGOTTEN
from raftstore.engine.channel.registry import ChannelRegistry
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import Tell
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_replicas import ReplicaEntry
from raftstore.types import (
    FOUNDING_NUMBER,
    ChannelConfig,
    ChannelId,
    MemberRole,
    NodeId,
    RecordKind,
    ReplicaId,
    ReplicaNumber,
    Term,
)

LOOK_AGAIN_MS: Final = 20
"""How soon a table is looked at again that waits for the log, or for the removal of its files."""
_LEAVING: Final = 1


class _Leaving(NamedTuple):
    """A replica whose table goes when this operation of the log is durable."""

    operation: int
    name: str
    number: ReplicaNumber


def may_be_deleted(
    entry: ReplicaEntry, me: ReplicaId, known: Sequence[ConfigEntry], version: int
) -> bool:
    """Whether a replica may go with all that it holds (M12).

    ``known``: the configurations of its own log, from the newest known to be committed on. The row
    may be behind them: one that names the replica above the row's keeps it (B1). ``version``: of
    the copy of the catalog that has the row. One from before the order that brought the replica,
    which is its number (M14), says nothing of it.
    """
    if me.number > version:
        return False
    if not entry.config_seq or entry.config.has_member(me):
        return False
    target = entry.target
    if target is not None and _ordered(target.voters, target.learners, me.node):
        if target.number_of(me.node) == me.number:
            return False
    return all(each.seq < entry.config_seq for each in known if each.config.has_member(me))


def _ordered(voters: Iterable[NodeId], learners: Iterable[NodeId], node: NodeId) -> bool:
    return node in voters or node in learners


class HostedReplica(NamedTuple):
    """A replica that a node opens."""

    number: ReplicaNumber
    is_witness: bool = False
    """It gets no rows; so it was from its first record on (W3)."""


FOUNDING: Final = HostedReplica(FOUNDING_NUMBER)


def replica_in_log(
    log: MessageLog, channel: ChannelId, me: NodeId, creation: ChannelConfig
) -> HostedReplica | None:
    """This node's replica by the newest configuration of its log that names it; None: none does, or
    only one that was removed."""
    configs = Folds(creation, base=log.base(channel)).configs
    for record in log.records(channel):
        if record.kind is RecordKind.CONFIG:
            configs.append(record)
    removed = log.removed(channel)
    for each in reversed(configs.entries):
        number = each.config.number_of(me)
        if me in each.config.members and (removed is None or number > removed):
            return HostedReplica(number, each.config.is_witness(me))
    return None


class Hosting:
    """The replicas of one node, against what its copy of the catalog says of them."""

    def __init__(
        self,
        me: NodeId,
        log: MessageLog,
        tables: TableStore,
        registry: ChannelRegistry,
        tell: Tell,
        deadlines: Deadlines[int],
    ) -> None:
        """``deadlines``: of its owner; one key is used here."""
        self._me = me
        self._log = log
        self._tables = tables
        self._registry = registry
        self._tell = tell
        self._leaving: dict[ChannelId, _Leaving] = {}
        self._deadlines = deadlines

    def replica_of(self, channel: ChannelId, catalog: Catalog) -> HostedReplica | None:
        """The replica with which this node hosts a channel of the catalog; None: it does not.

        The log outranks the catalog: what it holds of a replica is opened as that one.
        """
        founding = catalog.founding_of(channel)
        removed = self._log.removed(channel)
        entry = catalog.changes.get(channel)
        if entry is None and removed is None and self._me in founding:
            return FOUNDING
        if not founding or channel in self._leaving or self._tables.is_leaving(channel):
            return None
        if self._log.holds(channel):
            creation = ChannelConfig((founding,))
            found = replica_in_log(self._log, channel, self._me, creation)
            if found is not None:
                return found
        # M14: a channel is opened by the placement of its creation only while nothing replaced it.
        if entry is None:
            found = FOUNDING if self._me in founding else None
        else:
            number = entry.hosts.get(self._me)
            is_witness = entry.other_roles.get(self._me) is MemberRole.WITNESS
            found = None if number is None else HostedReplica(number, is_witness)
        return found if found is not None and (removed is None or found.number > removed) else None

    def last_term(self, channel: ChannelId) -> Term | None:
        """The term that a replica was in which was removed from here; None: none was."""
        if self._log.removed(channel) is None:
            return None
        return self._log.open_channel(channel).term

    def follow(self, catalog: Catalog, channels: Iterable[ChannelId], now_ms: int) -> None:
        """The rows of these channels changed, or are looked at again."""
        for channel in channels:
            runner = self._registry.runners.get(channel)
            entry = catalog.changes.get(channel)
            if runner is None or entry is None:
                continue
            me = ReplicaId(self._me, runner.number)
            if may_be_deleted(entry, me, runner.core.known_configs(), catalog.version):
                self._delete(runner, now_ms)
            else:
                runner.inform(TargetKnown(entry.target, entry.config_seq), now_ms)

    def on_timer(self, now_ms: int) -> bool:
        """Whether some table went since the last call: its channel may be opened anew."""
        if not self._leaving:
            return False
        durable = self._log.durable_operation()
        gone = [channel for channel, at in self._leaving.items() if at.operation <= durable]
        for channel in gone:
            # M14: only now, for the log must not hold a replica again whose rows are no more.
            _, name, number = self._leaving.pop(channel)
            self._tell(REPLICA_FORGOTTEN, channel=name, replica=number)
            self._tables.drop(channel)
        if self._leaving:
            self._deadlines.push(_LEAVING, now_ms + LOOK_AGAIN_MS)
        else:
            self._deadlines.cancel(_LEAVING)
        return bool(gone)

    def _delete(self, runner: ChannelRunner, now_ms: int) -> None:
        channel, number = runner.channel, runner.number
        self._tell(REPLICA_DELETED, channel=runner.name, replica=number)
        operation = self._registry.remove(channel, number, now_ms)
        self._leaving[channel] = _Leaving(operation, runner.name, number)
        self._deadlines.push(_LEAVING, now_ms + LOOK_AGAIN_MS)
