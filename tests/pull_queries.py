"""Servers A, B, C, ... on virtual time, and pull queries asked at any of them, as the documents do.

Nodes, network, elections and replicas are the production code in the simulator. A query goes its
way as in production: the node that is asked looks at what it knows (its view, health),
``nodes_to_query`` puts the replicas into order, they are asked one after the other, and each judges
its own lag before it answers. Hosts of the table's one partition are called by what they do in the
scene; the node that hosts nothing is the router.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raftstore.policy.health import HealthState
from raftstore.policy.routing import ReplicaView, Route, no_replica_available, nodes_to_query
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.rows.sealing import seal, unseal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, Level, NodeId, Role, Seq, node_name
from tests.unit.engine.engine_world import publish, run

KEY = b"order-1"
ASKER_HANDLE = 4_000
NODE_PATIENCE_MS = 400
"""So long a router waits for one node."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the asker of a query is told."""

    value: int | None
    """The number of the write that is seen; None: no row."""
    served_by: SimNode
    applied_seq: int
    lag: int | None
    asked: tuple[NodeId, ...]
    """Nodes that a request was sent to, in order."""
    took_ms: float


@dataclass(slots=True)
class PullQueries:
    """The scene. ``active`` leads the partition, ``standbys`` replicate it, ``router`` hosts none
    of it."""

    cluster: SimCluster
    channel: ChannelId
    router: SimNode
    active: SimNode
    standbys: list[SimNode]
    written: int = 0
    _requests: int = 0
    _answers: dict[int, Message] = field(default_factory=dict)
    _held: dict[NodeId, Any] = field(default_factory=dict)

    # --- the world --------------------------------------------------------------------------------

    def pass_time(self, ms: float) -> None:
        """Let virtual time pass."""
        run(self.cluster, ms)

    def write(self, count: int) -> None:
        """So many rows are written to the one key, one by one; each is committed."""
        for _ in range(count):
            self.written += 1
            payload = encode_rows([(KEY, seal(KEY, b"%d" % self.written))])
            leader = self.cluster.leaders()[self.channel]
            message = publish(self.cluster, leader, self.channel, self.written, payload)
            self.cluster.network.send("asker", leader.node, message)
            self.pass_time(200)

    def hold(self, node: SimNode) -> None:
        """The node's table stands still where it is: everything is received, nothing applied."""
        self._held[node.node] = node._start_apply
        node._start_apply = lambda: None  # type: ignore[method-assign]

    def restore(self, node: SimNode) -> None:
        """The node's table catches up."""
        node._start_apply = self._held.pop(node.node)  # type: ignore[method-assign]
        node._start_apply()
        self.pass_time(500)

    def applied(self, node: SimNode) -> int:
        """The node's current offset position."""
        return node.tables.applied_seq(self.channel)

    def leader(self) -> SimNode | None:
        """Who leads the partition, if anybody alive does."""
        return self.cluster.leaders().get(self.channel)

    def cut(self, sender: SimNode, receiver: SimNode) -> None:
        """Nothing comes from the one to the other any more."""
        self.cluster.network.cut(sender.node, receiver.node)

    def until_led(self, ms_max: float = 5_000) -> SimNode:
        """Wait until a living node leads the partition and has committed in its term."""
        scheduler = self.cluster.scheduler
        scheduler.run_until(scheduler.now_ms + ms_max, self._is_led)
        found = self.leader()
        assert found is not None
        return found

    def _is_led(self) -> bool:
        found = self.leader()
        return (
            found is not None
            and found.runner is not None
            and found.runner.channels[self.channel].core.leader_is_ready
        )

    # --- queries ----------------------------------------------------------------------------------

    def views(self, at: SimNode) -> list[ReplicaView]:
        """What the node knows of the replicas: all it routes by."""
        runner = at.runner
        assert runner is not None
        now = at.clock.now_ms()
        views = []
        for hint in runner.views.channels(now)[self.channel].replicas:
            state = HealthState.UP
            silent_ms = 0
            if hint.node != at.node:
                state = runner.watch.health.state(hint.node) or HealthState.DOWN
                silent_ms = now - (runner.watch.health.since_ms(hint.node) or now)
            is_leader = hint.role == Role.LEADER.value
            views.append(ReplicaView(hint.node, state, hint.lag, is_leader, silent_ms))
        return views

    def hosts(self) -> list[NodeId]:
        """The replicas of the partition, dead ones too."""
        return [node.node for node in (self.active, *self.standbys)]

    def route(self, at: SimNode, max_lag: int | None) -> Route:
        """Where a query asked there would go; no node is contacted to say so."""
        return nodes_to_query(self.views(at), max_lag=max_lag, local=at.node)

    def query(
        self,
        at: SimNode,
        *,
        max_lag: int | None = None,
        level: Level = Level.BOUNDED,
        at_least: int = 0,
    ) -> Reply:
        """Ask the node for the row; NoReplicaAvailableError with a reason per node."""
        began = self.cluster.scheduler.now_ms
        route = self.route(at, max_lag if level is Level.BOUNDED else None)
        reasons = {node_name(node): reason for node, reason in route.refused.items()}
        asked: list[NodeId] = []
        for node in route.nodes:
            asked.append(node)
            answer = self._ask(at, self.cluster.nodes[node], level, max_lag, at_least)
            if isinstance(answer, GetAnswer):
                [sealed] = answer.values
                return Reply(
                    None if sealed is None else int(unseal(KEY, sealed)),
                    self.cluster.nodes[node],
                    answer.served.applied_seq,
                    answer.served.lag,
                    tuple(asked),
                    self.cluster.scheduler.now_ms - began,
                )
            reasons[node_name(node)] = answer
        raise no_replica_available("SELECT * FROM orders", reasons)

    def _ask(
        self, at: SimNode, node: SimNode, level: Level, max_lag: int | None, at_least: int
    ) -> GetAnswer | str:
        """The node's answer, or why there is none."""
        if not node.is_up:
            return "connection refused"
        self._requests += 1
        number = self._requests
        get = Get(
            number, self.channel, (KEY,), level.value, max_lag if level is Level.BOUNDED else None,
            Seq(at_least), NODE_PATIENCE_MS,
        )  # fmt: skip
        self.cluster.network.send("asker", node.node, get)
        scheduler = self.cluster.scheduler
        scheduler.run_until(
            scheduler.now_ms + 2 * NODE_PATIENCE_MS, lambda: number in self._answers
        )
        answer = self._answers.pop(number, None)
        if isinstance(answer, GetAnswer):
            return answer
        return answer.message if isinstance(answer, Failed) else "timeout"

    def on_message(self, sender: NodeId, message: Message) -> None:
        """An answer came."""
        number = getattr(message, "request_id", None)
        if isinstance(number, int):
            self._answers[number] = message


def pull_queries(seed: int = 1) -> PullQueries:
    """Four healthy servers, three of them with a replica of the table's one partition."""
    options = SimOptions(seed=seed, nodes=4, partitions=1, evict_percent=0)
    cluster = SimCluster(options)
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    channel = cluster.table_channels[0]
    active = cluster.leaders()[channel]
    hosts = cluster.replicas(channel)
    standbys = [cluster.nodes[node] for node in hosts if node != active.node]
    [router] = [node for node in cluster.nodes.values() if node.node not in hosts]
    scene = PullQueries(cluster, channel, router, active, standbys)
    cluster.add_client("asker", ASKER_HANDLE, scene.on_message)
    return scene
