"""Replicas that nodes open, keep and delete by what is ordered and reported (M12, M14, M23, B1)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.core.configs import ConfigEntry
from raftstore.engine.catalog.hosting import may_be_deleted
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_replicas import (
    ChangeReplicas,
    ReplicaEntry,
    ReplicaOrder,
    ReportConfig,
    cancel_change_command,
    change_replicas_command,
    report_config_command,
)
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import (
    ChangeTarget,
    ChannelConfig,
    ChannelId,
    NodeId,
    ReplicaId,
    ReplicaNumber,
    Seq,
    Term,
)
from tests.unit.engine.engine_world import ask, publish, run

N1, N2, N3, N4 = (NodeId(f"n{number}@00") for number in (1, 2, 3, 4))
OLD, NEW = ReplicaNumber(7), ReplicaNumber(40)


def config(*voters: NodeId, learner: int | None = None, change: int = 7) -> ChannelConfig:
    """One voter set, and maybe node 4 as a learner of this number."""
    numbers = {} if learner is None else {N4: ReplicaNumber(learner)}
    learners = () if learner is None else (N4,)
    return ChannelConfig((voters,), learners, numbers, change)


def row(seq: int, reported: ChannelConfig, target: ChangeTarget | None = None) -> ReplicaEntry:
    """The catalog's row of a channel."""
    order = None if target is None else ReplicaOrder(target, b"", "", 0)
    return ReplicaEntry(reported, Seq(seq), Term(1), order)


def known(*entries: tuple[int, ChannelConfig]) -> tuple[ConfigEntry, ...]:
    """Configurations of the replica's own log."""
    return tuple(ConfigEntry(Seq(seq), Term(1), each) for seq, each in entries)


VERSION = 50
"""Of the copy of the catalog: later than all orders."""
CREATION = known((0, ChannelConfig(((N1, N2, N3),))))
WITHOUT_N3 = config(N1, N2)


@pytest.mark.parametrize(
    ("entry", "me", "log", "deleted"),
    [
        # Reported without it, and its log knows nothing later that names it.
        (row(20, WITHOUT_N3), ReplicaId(N3), CREATION, True),
        (row(20, WITHOUT_N3), ReplicaId(N3), known((20, WITHOUT_N3)), True),
        # The row is of the creation, or names it.
        (row(0, CREATION[0].config), ReplicaId(N3), CREATION, False),
        (row(20, WITHOUT_N3), ReplicaId(N2), CREATION, False),
        (row(20, ChannelConfig(((N1, N2, N3), (N1, N2)))), ReplicaId(N3), CREATION, False),
        # A2: it was opened for an open order, which no configuration names yet.
        (
            row(20, WITHOUT_N3, ChangeTarget(7, (N1, N2, N4), (), {N4: OLD})),
            ReplicaId(N4, OLD),
            CREATION,
            False,
        ),
        # The order names another life of it.
        (
            row(20, WITHOUT_N3, ChangeTarget(40, (N1, N2, N4), (), {N4: NEW})),
            ReplicaId(N4, OLD),
            CREATION,
            True,
        ),
        (row(20, config(N1, N2, learner=40)), ReplicaId(N4, OLD), CREATION, True),
        # B1: the row is behind its own log.
        (
            row(20, WITHOUT_N3),
            ReplicaId(N4, OLD),
            known((20, WITHOUT_N3), (30, config(N1, N2, learner=7))),
            False,
        ),
        (
            row(20, WITHOUT_N3),
            ReplicaId(N4, OLD),
            known((20, WITHOUT_N3), (30, config(N1, N2, learner=40))),
            True,
        ),
    ],
)
def test_m12_replica_is_deleted_only_when_nothing_names_it(
    entry: ReplicaEntry, me: ReplicaId, log: tuple[ConfigEntry, ...], *, deleted: bool
) -> None:
    """Neither the row, nor an open order, nor a later configuration of its own log."""
    assert may_be_deleted(entry, me, log, VERSION) is deleted


def test_m12_older_copy_of_the_catalog_says_nothing_of_a_replica_that_came_since() -> None:
    """It was taken from another node, and names a replica no more or not yet; found as world 22280
    with changes of members, where the order of a replica that had gone by it never ended."""
    entry, me = row(20, WITHOUT_N3), ReplicaId(N4, NEW)
    assert not may_be_deleted(entry, me, CREATION, NEW - 1)
    assert may_be_deleted(entry, me, CREATION, NEW)


class World:
    """Four calm nodes, and a table on the first three of them."""

    def __init__(self) -> None:
        self.cluster = SimCluster(SimOptions(seed=3, nodes=4, partitions=1, evict_percent=0))
        self.cluster.start()
        self.cluster.create_table(1)
        run(self.cluster, 10_000)
        assert self.cluster.every_channel_has_a_leader()
        self.channel: ChannelId = self.cluster.table_channels[0]
        self.members = self.catalog.replicas_of(self.channel)
        every = [node.node for node in self.cluster.nodes.values()]
        self.stranger = next(node for node in every if node not in self.members)

    @property
    def catalog(self) -> Catalog:
        """The copy of the leader of the metadata channel."""
        return self.leader().runner.controller.catalog

    def leader(self) -> SimNode:
        """The leader of the metadata channel."""
        some = next(node.runner for node in self.cluster.nodes.values() if node.runner is not None)
        return self.cluster.leaders()[some.metadata_channel]

    def node(self, node: NodeId) -> SimNode:
        """The node of this id."""
        return next(each for each in self.cluster.nodes.values() if each.node == node)

    def hosts(self, node: NodeId) -> Any:
        """The open replica of a node; None without one."""
        return self.node(node).runner.channels.get(self.channel)

    def commit(self, payload: bytes) -> None:
        """Write a command into the catalog."""
        node, answers = self.leader(), list[PubAck | PubReject]()
        controller, now_ms = node.runner.controller, node.clock.now_ms()
        controller.proposals.propose(
            controller.metadata, payload, lambda answer, _: answers.append(answer), now_ms
        )
        node.runner.on_timer(now_ms)
        run(self.cluster, 2_000)
        assert [type(answer) for answer in answers] == [PubAck]
        assert isinstance(answers[0], PubAck)
        assert not answers[0].conflict

    def order(self, *voters: NodeId) -> int:
        """Order these voters; the number of the order."""
        seq = self.catalog.change_seqs.get(self.channel, Seq(0))
        name = self.catalog.table_of(self.channel)
        assert name is not None
        self.commit(
            change_replicas_command(
                ChangeReplicas(self.channel, name.name, voters, seq, b"%d" % seq, "test")
            )
        )
        target = self.catalog.changes[self.channel].target
        assert target is not None
        return target.change

    def order_now(self, *voters: NodeId) -> int:
        """The same of an order that may end before this returns."""
        seq = self.catalog.change_seqs.get(self.channel, Seq(0))
        table = self.catalog.table_of(self.channel)
        assert table is not None
        command = ChangeReplicas(self.channel, table.name, voters, seq, b"%d" % seq, "test")
        self.commit(change_replicas_command(command))
        entry = self.catalog.changes[self.channel]
        found = entry.target or entry.ended
        assert found is not None
        return found.change

    def promote_nobody(self) -> None:
        """Orders stay open: every learner has more rows to apply than it may."""
        for node in self.members:
            state = self.hosts(node).core._state
            state.membership = dataclasses.replace(state.membership, promote_lag_max=-1)

    def report(self, seq: int, reported: ChannelConfig) -> None:
        """A report as a leader makes it."""
        name = self.catalog.table_of(self.channel)
        assert name is not None
        report = ReportConfig(self.channel, name.name, Seq(seq), Term(1), reported)
        self.commit(report_config_command(report))


def test_node_hosts_what_is_ordered_and_deletes_what_was_undone() -> None:
    """M23, M12, M14: a replica is opened for an order, goes when its end is reported without it,
    and a later order opens another one under a higher number."""
    world = World()
    world.promote_nobody()
    assert world.hosts(world.stranger) is None
    first = world.order(*world.members[:2], world.stranger)
    opened = world.hosts(world.stranger)
    assert (opened.number, opened.core.config().learners) == (first, (world.stranger,))
    assert all(world.hosts(node) is not None for node in world.members)
    world.commit(cancel_change_command(world.channel, first))
    node = world.node(world.stranger)
    assert world.hosts(world.stranger) is None
    assert node.log.removed(world.channel) == first
    assert all(world.hosts(member) is not None for member in world.members)
    second = world.order(*world.members[:2], world.stranger)
    assert second > first
    assert world.hosts(world.stranger).number == second
    node.kill("to see what it opens at its next start")
    node.boot()
    run(world.cluster, 5_000)
    assert world.hosts(world.stranger).number == second


def test_b5_write_to_a_replica_that_was_removed_is_in_doubt() -> None:
    """S4.1: a first copy of it may have been sequenced before; only one of a later term was not."""
    world = World()
    node = world.cluster.leaders()[world.channel]
    member = node.node
    message = publish(world.cluster, node, world.channel, 1, b"row")
    later = msgspec.structs.replace(message, term=Term(message.term + 1))
    rest = tuple(each for each in world.members if each != member)
    world.report(1_000, ChannelConfig((rest,), change=5, ended=True))
    assert world.hosts(member) is None
    answers: list[Any] = ask(world.cluster, node, message, later)
    run(world.cluster, 1_000)
    codes = {answer.term: answer.code for answer in answers}
    assert codes == {message.term: "leadership_lost", later.term: "unknown_channel"}


def test_m14_table_goes_when_the_log_remembers_the_removal() -> None:
    """A crash in between would leave a replica that acknowledged rows, without them."""
    world = World()
    leader = world.cluster.leaders()[world.channel]
    member = next(node for node in world.members if node != leader.node)
    hosting = world.node(member).runner.controller.hosting
    runner, dropped = world.hosts(member), list[ChannelId]()
    log: Any = hosting._log
    hosting._tables = SimpleNamespace(drop=dropped.append)  # type: ignore[assignment]
    hosting._delete(runner, 0)
    assert log.removed(world.channel) == 0
    assert log.durable_operation() < log.last_operation()
    assert not hosting.on_timer(1)
    assert dropped == []
    log.flush()
    assert hosting.on_timer(2)
    assert dropped == [world.channel]
    assert not hosting.on_timer(3)
