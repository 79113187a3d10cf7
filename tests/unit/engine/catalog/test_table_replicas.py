"""A table's number of replicas is edited, and the leader of the metadata channel sees to it."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.policy.open_moves import MOVES_OPEN_MIN
from raftstore.protocol.admin import (
    ClusterInfo,
    ClusterInfoAnswer,
    DropTable,
    EditTable,
    TableInfo,
)
from raftstore.protocol.members import Drain
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.replica_orders import OrderReplicas
from raftstore.state_machines.catalog import Catalog
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, channel_id, node_name
from tests.unit.engine.engine_world import ask, run

pytestmark = pytest.mark.slow

PARTITIONS = 6


class World:
    """Five nodes and a table with three replicas."""

    def __init__(self, partitions: int = PARTITIONS, nodes: int = 5) -> None:
        options = SimOptions(seed=2, nodes=nodes, partitions=partitions, evict_percent=0)
        self.cluster = SimCluster(options)
        self.cluster.start()
        self.cluster.create_table(partitions)
        run(self.cluster, 10_000)
        assert self.cluster.every_channel_has_a_leader()

    @property
    def planner(self) -> SimNode:
        """The leader of the metadata channel."""
        return self.cluster.leaders()[channel_id(self.cluster.cluster_id, 0)]

    @property
    def catalog(self) -> Catalog:
        """As the planner has it."""
        assert self.planner.runner is not None
        return self.planner.runner.controller.catalog

    def edit(self, replicas: Any) -> list[Message]:
        """Ask for another number; the answer comes into the list."""
        table = self.catalog.tables["t"]
        request = EditTable(5, "t", table.uuid, {"replicas": replicas}, 2_000)
        return ask(self.cluster, self.planner, request)

    def counts(self) -> list[int]:
        """Voters of each partition, by the reported configurations."""
        return [len(self.catalog.voters_of(each)) for each in self.cluster.table_channels]

    def orders(self) -> list[ChannelId]:
        """Channels with an open order."""
        entries = self.catalog.changes.items()
        return [channel for channel, entry in entries if entry.order is not None]

    def until_ordered(self) -> None:
        """Time passes until the first replica is ordered."""
        for _ in range(100):
            run(self.cluster, 5)
            if self.orders():
                return
        raise AssertionError("nothing was ordered")

    def until_resized(self, replicas: int, ms: int = 60_000) -> None:
        """Time passes until every partition has so many and the mark is gone."""
        for _ in range(ms // 100):
            run(self.cluster, 100)
            assert len(self.orders()) <= MOVES_OPEN_MIN
            if not self.catalog.tables["t"].is_resizing:
                break
        assert self.counts() == [replicas] * len(self.cluster.table_channels)
        assert self.orders() == []

    def info(self) -> TableInfo:
        """The table as clients see it."""
        answers = ask(self.cluster, self.planner, ClusterInfo(6))
        run(self.cluster, 100)
        [answer] = answers
        assert isinstance(answer, ClusterInfoAnswer)
        return answer.tables[0]

    def hosts(self) -> list[int]:
        """How many nodes have each channel open."""
        return [len(self.cluster.replicas(each)) for each in self.cluster.table_channels]


def test_replicas_come_until_every_partition_has_five_and_go_until_it_has_three() -> None:
    """A few channels at a time; what left is deleted, and the table says how far it is."""
    world = World()
    done = world.edit(5)
    world.until_ordered()
    run(world.cluster, 10)
    assert [type(each) for each in done] == [Done]
    info = world.info()
    assert (info.replicas, len(info.voters)) == (5, PARTITIONS)
    assert min(info.voters) < 5
    world.until_resized(5)
    assert world.hosts() == [5] * PARTITIONS
    assert world.info().voters == ()
    assert world.planner.runner is not None
    _, events = world.planner.runner.ring.since(0, ("table_resized",), 9)
    assert [(event["table"], event["replicas"]) for event in events] == [("t", 5)]
    world.edit(3)
    world.until_resized(3)
    run(world.cluster, 5_000)
    assert world.hosts() == [3] * PARTITIONS
    held = [node for each in world.cluster.table_channels for node in world.catalog.hosts_of(each)]
    assert max(map(held.count, held)) - min(map(held.count, world.cluster.node_ids)) <= 2


def test_another_planner_goes_on() -> None:
    """All of it is in the catalog."""
    world = World()
    world.edit(5)
    world.until_ordered()
    assert world.catalog.tables["t"].is_resizing
    first = world.planner
    first.crash("test")
    run(world.cluster, 5_000)
    first.boot()
    world.until_resized(5)


def test_edit_on_the_way_turns_back() -> None:
    """Orders that lead away from the new number are cancelled; nothing is left half done."""
    world = World()
    world.edit(5)
    world.until_ordered()
    assert set(world.counts()) == {3}
    world.edit(3)
    cancelled = 0
    for _ in range(40):
        run(world.cluster, 50)
        entries = world.catalog.changes.values()
        cancelled += sum(each.target.cancelled for each in entries if each.target is not None)
    assert cancelled
    world.until_resized(3)
    run(world.cluster, 5_000)
    assert world.hosts() == [3] * PARTITIONS


def test_order_that_is_open_keeps_the_table_resizing() -> None:
    """The replica that it adds would be one too many, or missing, behind everybody's back."""
    world = World(partitions=2)
    channel = world.cluster.table_channels[0]
    held = {world.planner.node, *world.catalog.hosts_of(channel)}
    away = next(node for node in world.cluster.node_ids if node not in held)
    names = tuple(map(node_name, (*world.catalog.voters_of(channel), away)))
    world.cluster.network.cut_groups([away], [n for n in world.cluster.node_ids if n != away])
    mine = OrderReplicas(7, channel, names, b"o" * 16, "mine", 2_000, is_forced=True)
    ask(world.cluster, world.planner, mine)
    run(world.cluster, 1_000)
    other = world.cluster.table_channels[1]
    assert world.orders() == [channel]
    world.edit(4)
    run(world.cluster, 1_000)
    world.edit(3)
    run(world.cluster, 20_000)
    assert len(world.catalog.voters_of(other)) == 3
    assert world.orders() == [channel]
    assert world.catalog.tables["t"].is_resizing
    world.cluster.network.heal_partitions()
    world.until_resized(3)


def test_same_number_again_changes_nothing_or_brings_back_what_was_ordered_otherwise() -> None:
    """An operator's own order for a channel stays until then."""
    world = World(partitions=2)
    version = world.catalog.seqs["t"]
    done = world.edit(3)
    run(world.cluster, 500)
    assert [type(each) for each in done] == [Done]
    assert world.catalog.seqs["t"] == version
    channel = world.cluster.table_channels[0]
    names = tuple(map(node_name, world.cluster.node_ids[:4]))
    ask(world.cluster, world.planner, OrderReplicas(7, channel, names, b"o" * 16, "mine", 2_000))
    run(world.cluster, 20_000)
    assert world.counts() == [4, 3]
    world.edit(3)
    world.until_resized(3)


def test_more_replicas_than_nodes_are_refused_and_nothing_is_written() -> None:
    """With the value and what to do."""
    world = World(partitions=1, nodes=4)
    version = world.catalog.seqs["t"]
    for wrong, text in (
        (5, "replicas=5 need 5 nodes, but 4 may have replicas (n1, n2, n3, n4); start more nodes"),
        (0, "replicas=0 is outside 1..7"),
        (8, "replicas=8 is outside 1..7"),
        (None, "replicas=None is outside 1..7"),
        (True, "replicas=True is outside 1..7"),
    ):
        answers = world.edit(wrong)
        run(world.cluster, 300)
        [failure] = answers
        assert isinstance(failure, Failed)
        assert failure.code == "schema"
        assert text in failure.message
    assert world.catalog.seqs["t"] == version


def test_node_that_drains_gives_its_replicas_away_first_where_some_go_anyway() -> None:
    """A replica that goes is not moved elsewhere before."""
    world = World(partitions=2)
    world.edit(5)
    world.until_resized(5)
    leaving = next(node for node in world.cluster.node_ids if node != world.planner.node)
    ask(world.cluster, world.planner, Drain(8, node_name(leaving), True, 2_000))
    run(world.cluster, 2_000)
    assert world.counts() == [5, 5]  # there is no other node to take its place
    world.edit(4)
    world.until_resized(4)
    assert all(leaving not in world.catalog.hosts_of(c) for c in world.cluster.table_channels)


def test_dropped_table_ends_what_was_under_way() -> None:
    """Nothing is left of it in the catalog, and nothing is proposed for it any more."""
    world = World()
    world.edit(5)
    run(world.cluster, 400)
    done = ask(world.cluster, world.planner, DropTable(9, "t", 2_000))
    run(world.cluster, 5_000)
    assert [type(each) for each in done] == [Done]
    assert world.catalog.changes == {}
    assert all(
        each not in node.runner.channels
        for node in world.cluster.nodes.values()
        for each in world.cluster.table_channels
        if node.runner is not None
    )


def said(world: World) -> tuple[list[str], float, float]:
    """Warnings of the planner about tables that wait, how many do, and for how long at most."""
    runner = world.planner.runner
    assert runner is not None
    warnings = [text for text in runner.reports.status()["warnings"] if "waits for" in text]
    samples, _ = runner.reports.metrics()
    found = {name: value for name, _, value in samples}
    waiting = "raftstore_tables_waiting_for_replicas"
    return warnings, found[waiting], found[f"{waiting}_seconds"]


def test_table_that_waits_long_for_its_replicas_is_warned_about_with_the_remedy() -> None:
    """One of the five nodes is down, and no other one may take its place."""
    world = World(partitions=2)
    assert said(world) == ([], 0.0, 0.0)
    gone = next(node for node in world.cluster.nodes.values() if node is not world.planner)
    gone.crash("for long")
    run(world.cluster, 5_000)
    world.edit(5)
    run(world.cluster, 50_000)
    warnings, count, waited_s = said(world)
    assert (warnings, count) == ([], 1.0)
    assert 45 < waited_s < 55
    run(world.cluster, 15_000)
    (text,), _, _ = said(world)
    assert "table t waits for 5 replicas of each partition since 6" in text
    assert "1 of 2 partitions do not have them; only 4 nodes are up and take replicas" in text
    assert "`raftstore table alter t --replicas 4`" in text
    gone.boot()
    world.until_resized(5)
    run(world.cluster, 1_000)
    assert said(world) == ([], 0.0, 0.0)
