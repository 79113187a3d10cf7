"""A calm simulated cluster whose replicas operators order."""

from __future__ import annotations

from typing import Any

from raftstore.protocol.message import Message, Request
from raftstore.protocol.replica_orders import AskOrders, OrderReplicas, OrdersAnswer
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId
from tests.unit.engine.engine_world import ask, publish, run

ORDER = b"o" * 16


class World:
    """Four calm nodes, and a table on three of them."""

    def __init__(self, seed: int = 3, **options: Any) -> None:
        """``options`` of the simulation beside its size."""
        self.cluster = SimCluster(
            SimOptions(seed=seed, nodes=4, partitions=1, evict_percent=0, **options)
        )
        self.cluster.start()
        self.cluster.create_table(1)
        run(self.cluster, 10_000)
        assert self.cluster.every_channel_has_a_leader()
        self.channel: ChannelId = self.cluster.table_channels[0]
        self.members = self.planner.runner.controller.catalog.replicas_of(self.channel)
        self.stranger = next(node for node in self.cluster.node_ids if node not in self.members)

    @property
    def planner(self) -> Any:
        """The leader of the metadata channel."""
        some = next(node.runner for node in self.cluster.nodes.values() if node.runner is not None)
        return self.cluster.leaders()[some.metadata_channel]

    @property
    def leader(self) -> SimNode:
        """The leader of the table's channel."""
        return self.cluster.leaders()[self.channel]

    def hosts(self) -> tuple[NodeId, ...]:
        """Nodes with an open replica."""
        return tuple(
            node.node
            for node in self.cluster.nodes.values()
            if node.runner is not None and self.channel in node.runner.channels
        )

    def ask(self, request: Request) -> Any:
        """The answer of the leader of the metadata channel."""
        answers: list[Message] = ask(self.cluster, self.planner, request)
        run(self.cluster, 1_000)
        (answer,) = answers
        return answer

    def order(self, *nodes: str, order: bytes = ORDER, **more: Any) -> Any:
        """Order these voters."""
        channel = more.pop("channel", self.channel)
        return self.ask(OrderReplicas(1, channel, nodes, order, "test", 5_000, **more))

    def seen(self) -> Any:
        """The channel, as operators see it."""
        answer = self.ask(AskOrders(1))
        assert isinstance(answer, OrdersAnswer)
        return next(each for each in answer.channels if each.channel == self.channel)

    def write(self, first: int, last: int) -> None:
        """Rows by the present leader."""
        for counter in range(first, last + 1):
            message = publish(self.cluster, self.leader, self.channel, counter, b"row %d" % counter)
            ask(self.cluster, self.leader, message)
            run(self.cluster, 20)
