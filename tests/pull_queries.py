"""Servers A, B, C, ... on virtual time, and pull queries asked at any of them, as the documents do.

Nodes, network, elections and replicas are the production code in the simulator. A query is one of
the production client beside the node that is asked, as the client of its HTTP interface
does: it has just been informed what that node knows, puts the replicas into order, asks them one
after the other, and each judges its own lag before it answers. Hosts of the table's one partition
are called by what they do in the scene; the node that hosts nothing is the router.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raftstore.client.reads.read_spec import ReadSpec, spec_of
from raftstore.client.reads.router import RoutingPolicy
from raftstore.policy.routing import Route
from raftstore.policy.views import nodes_by_id, route_of
from raftstore.protocol.admin import ClusterView, ClusterViewAnswer
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Bounds, Get
from raftstore.rows.sealing import seal, unseal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_loop import SchedulerLoop
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, Level, NodeId, Seq
from tests.sim_client import SimClient, play
from tests.unit.engine.engine_world import publish, run

KEY = b"order-1"
WRITER_HANDLE = 4_000
QUERY_MS = 800
"""So long a query may take."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a query, and how it was found."""

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
    _loop: SchedulerLoop
    written: int = 0
    _held: dict[NodeId, Any] = field(default_factory=dict)
    _clients: dict[NodeId, SimClient] = field(default_factory=dict)

    # --- the world --------------------------------------------------------------------------------

    def pass_time(self, ms: float) -> None:
        """Let virtual time pass; connections to nodes that died have ended then."""
        with self._loop.running():
            run(self.cluster, ms)
            for client in self._clients.values():
                client.look()

    def write(self, count: int) -> None:
        """So many rows are written to the one key, one by one; each is committed."""
        for _ in range(count):
            self.written += 1
            payload = encode_rows([(KEY, seal(KEY, b"%d" % self.written))])
            leader = self.cluster.leaders()[self.channel]
            message = publish(self.cluster, leader, self.channel, self.written, payload)
            self.cluster.network.send("writer", leader.node, message)
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
        """The leader of the partition, if a live node is."""
        return self.cluster.leaders().get(self.channel)

    def cut(self, sender: SimNode, receiver: SimNode) -> None:
        """Nothing comes from the one to the other any more."""
        self.cluster.network.cut(sender.node, receiver.node)

    def until_led(self, ms_max: float = 5_000) -> SimNode:
        """Wait until a living node leads the partition and has committed in its term."""
        scheduler = self.cluster.scheduler
        with self._loop.running():
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

    def view(self, at: SimNode) -> ClusterViewAnswer:
        """The node's knowledge of the cluster, as it sends it along with what it asks."""
        runner = at.runner
        assert runner is not None
        return runner.views.answer(ClusterView(1), at.clock.now_ms())

    def lags(self, at: SimNode, *hosts: SimNode) -> list[int | None]:
        """Rows that these lack, as far as the node knows."""
        [channel] = [each for each in self.view(at).channels if each.channel == self.channel]
        known = {hint.node: hint.lag for hint in channel.replicas}
        return [known[host.node] for host in hosts]

    def hosts(self) -> list[NodeId]:
        """The replicas of the partition, dead ones too."""
        return [node.node for node in (self.active, *self.standbys)]

    def route(self, at: SimNode, max_lag: int | None) -> Route:
        """Where a query asked there would go, by the node's view; None: without a bound."""
        view = self.view(at)
        [channel] = [each for each in view.channels if each.channel == self.channel]
        level = Level.ANY if max_lag is None else Level.BOUNDED
        return route_of(channel, nodes_by_id(view), level, Bounds(max_lag))

    def candidates(self, at: SimNode, **options: Any) -> tuple[NodeId, ...]:
        """The replicas that the client beside the node would ask, in order."""
        client = self._client(at)
        play(self._loop, self.cluster, client.learn(), QUERY_MS)
        router = client._channel_reads._engine.router
        with self._loop.running():
            return router.candidates(self.channel, RoutingPolicy.of(spec_of(options), None))

    def query(
        self,
        at: SimNode,
        *,
        max_lag: int | None = None,
        level: Level = Level.BOUNDED,
        at_least: int = 0,
        only: SimNode | None = None,
    ) -> Reply:
        """Ask for the row; NoReplicaAvailableError has a reason per node.

        ``only``: the one replica that is asked.
        """
        options: Any = {"level": level, "max_lag": max_lag if level is Level.BOUNDED else None}
        spec = spec_of(options if only is None else {**options, "replica": only.name})
        client = self._client(at)
        work = self._read(client, spec, Seq(at_least))
        reply: Reply = play(self._loop, self.cluster, work, 2 * QUERY_MS)
        return reply

    async def _read(self, client: SimClient, spec: ReadSpec, min_seq: Seq) -> Reply:
        await client.learn()
        client.sent.clear()
        began = self.cluster.scheduler.now_ms
        reads, context = client._channel_reads, client._context
        deadline_ms = context.now_ms() + QUERY_MS
        try:
            answer = await reads.get(self.channel, (KEY,), spec, deadline_ms, min_seq=min_seq)
        finally:
            await client.be_idle()
        [sealed] = answer.values
        return Reply(
            None if sealed is None else int(unseal(KEY, sealed)),
            self.cluster.nodes[answer.served.node],
            answer.served.applied_seq,
            answer.served.lag,
            tuple(node for node, request in client.sent if isinstance(request, Get)),
            self.cluster.scheduler.now_ms - began,
        )

    def _client(self, at: SimNode) -> SimClient:
        if at.node not in self._clients:
            with self._loop.running():
                handle = WRITER_HANDLE + 1 + len(self._clients)
                self._clients[at.node] = SimClient(self.cluster, at, handle)
        return self._clients[at.node]


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
    scene = PullQueries(
        cluster, channel, router, active, standbys, SchedulerLoop(cluster.scheduler)
    )
    cluster.add_client("writer", WRITER_HANDLE, lambda sender, message: None)
    return scene
