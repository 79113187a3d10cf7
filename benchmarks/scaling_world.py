"""A simulated cluster of many nodes, and the messages that it sends: counted, not timed.

The nodes are those of ``raftstore simulate``: the production engine in virtual time, so what they
send is what processes send, message by message, and a cluster of thirty nodes fits one process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Any, Final

from raftstore.config import NodeSettings, RebalanceSettings
from raftstore.policy.rebalance import ClusterNodes, PlacedChannel, plan_rebalance
from raftstore.protocol.codec import encode
from raftstore.protocol.framing import HEADER_BYTES
from raftstore.protocol.members import Drain
from raftstore.protocol.message import Done, Message
from raftstore.protocol.rebalance import NodeTag, StartRebalance, TagNode, WantedMove
from raftstore.testing.leader_counts import LeaderCounts
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import STORAGE, SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId, channel_id, node_name

OPERATOR: Final = 777
PATIENCE_MS: Final = 300_000.0
STEP_MS: Final = 250.0
MOVES_MAX: Final = 4


class Sent:
    """Messages between nodes since some moment, by kind."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, message: Message) -> None:
        """One message on its way."""
        kind = type(message).__name__
        self.messages[kind] += 1
        self.bytes[kind] += HEADER_BYTES + len(encode(message))

    def rows(self, nodes: int, seconds: float) -> list[dict[str, Any]]:
        """Per node and second, the kinds with most bytes first."""
        return [
            {
                "kind": kind,
                "messages": round(self.messages[kind] / nodes / seconds, 2),
                "bytes": round(count / nodes / seconds),
            }
            for kind, count in self.bytes.most_common()
        ]


class ScalingWorld:
    """Calm nodes with one table; nothing goes wrong that is not asked for."""

    def __init__(self, nodes: int, channels: int, *, spare: int = 0) -> None:
        """``spare``: further nodes, which get no replica of the table when it is created."""
        options = SimOptions(
            seed=1, nodes=nodes + spare, partitions=channels, evict_percent=0, delay_max_ms=2.0
        )
        # Other than the default by a hair, which the simulator would take for "as it likes".
        rebalance = RebalanceSettings(calm_ms=RebalanceSettings().calm_ms + 1)
        base = NodeSettings(name="", data_dir="", storage=STORAGE, rebalance=rebalance)
        self.cluster = cluster = SimCluster(options, base)
        self.channels = channels
        self.counts = LeaderCounts(cluster)
        self.sent = Sent()
        self._send = cluster.network.send
        cluster.network.send = self._watch  # type: ignore[method-assign]
        self._answers: list[Message] = []
        self._version = 0
        cluster.add_client("operator", OPERATOR, lambda _, message: self._answers.append(message))
        cluster.start()
        self.run(5_000)
        for node in cluster.node_ids[nodes:]:
            self.ask(lambda number, node=node: TagNode(  # type: ignore[misc]
                number, node_name(node), NodeTag.TEMPORARY_OFFLINE, 5_000
            ))  # fmt: skip

    def _watch(self, sender: str, receiver: str, message: Message) -> None:
        if receiver in self.cluster.nodes and sender in self.cluster.nodes:
            self.sent.add(message)
        self._send(sender, receiver, message)

    @property
    def now_ms(self) -> float:
        """Virtual time."""
        return self.cluster.scheduler.now_ms

    def run(self, ms: float) -> None:
        """Virtual time passes."""
        self.cluster.scheduler.run_until(self.now_ms + ms)

    def run_until(self, is_done: Callable[[], bool]) -> float:
        """Virtual seconds until it is so."""
        begun_ms = self.now_ms
        while not is_done():
            assert self.now_ms - begun_ms < PATIENCE_MS, f"not within {PATIENCE_MS / 1000} s"
            self.run(STEP_MS)
        return (self.now_ms - begun_ms) / 1000

    @property
    def planner(self) -> SimNode:
        """The leader of the metadata channel."""
        return self.cluster.leaders()[channel_id(self.cluster.cluster_id, 0)]

    def ask(self, build: Callable[[int], Message]) -> Message:
        """Ask the leader of the metadata channel, and wait for its answer."""
        self._answers.clear()
        self.cluster.network.send("operator", self.planner.node, build(1))
        self.run_until(lambda: bool(self._answers))
        answer = self._answers[0]
        assert isinstance(answer, Done), answer
        return answer

    # --- what costs are asked about ---------------------------------------------------------------

    def create(self) -> dict[str, Any]:
        """Create the table; until every channel has a leader, and until leaders are even."""
        self.sent, begun = Sent(), time.process_time()
        self.cluster.create_table(self.channels)
        ready_s = self.run_until(self._is_ready)
        per_channel = {
            kind: round(count / self.channels, 1)
            for kind, count in self.sent.messages.most_common()
            if kind not in ("Heartbeat", "LagReport") and count >= self.channels / 10
        }
        at_once = self.most_led()
        even_s = self.even()
        return {
            "all channels have leaders after, s": ready_s,
            "messages per channel until then": per_channel,
            "most leaders of a node then": at_once,
            "leaders within the goal after, s (60)": ready_s + even_s,
            "most leaders of a node": f"{self.most_led()} (goal {self.goal()})",
            "processor seconds of the simulation": round(time.process_time() - begun, 1),
        }

    def _is_ready(self) -> bool:
        return bool(self.cluster.table_channels) and self.cluster.every_channel_has_a_leader()

    def most_led(self) -> int:
        """The number of channels that the busiest node leads."""
        return max(self.counts.led().values())

    def goal(self) -> int:
        """The most that a node may lead: of those that are up and have replicas."""
        catalog = self._catalog()
        hosts = {node for each in self.cluster.table_channels for node in catalog.voters_of(each)}
        able = [node for node in hosts if self.cluster.nodes[node].is_up]
        return ceil(self.channels / len(able)) + 1

    def even(self) -> float:
        """Virtual seconds until leaders are even within the goal, and the planner has done."""
        return self.run_until(self._is_even)

    def _is_even(self) -> bool:
        runner, led = self.planner.runner, self.counts.led()
        if runner is None or sum(led.values()) < self.channels or max(led.values()) > self.goal():
            return False
        status = runner.leaders.balancer.status(runner.clock.now_ms)
        return not status["under_way"] and not status["moves_left"]

    def idle(self, seconds: int) -> list[dict[str, Any]]:
        """Messages and bytes per node and second while nothing happens."""
        self.run(5_000)
        self.sent = Sent()
        self.run(seconds * 1_000)
        return self.sent.rows(len(self.cluster.node_ids), seconds)

    def restart(self) -> dict[str, Any]:
        """A node is away for ten seconds; until leaders are even again."""
        node = next(each for each in self.cluster.nodes.values() if each is not self.planner)
        node.crash("restart")
        self.run(10_000)
        node.boot()
        even_s = self.even()
        return {
            "leaders within the goal after, s (60)": even_s,
            "most leaders of a node": f"{self.most_led()} (goal {self.goal()})",
        }

    def join(self, node: NodeId) -> dict[str, Any]:
        """An empty node may take replicas from now on: plan, carry out, and even leaders."""
        self.ask(lambda number: TagNode(number, node_name(node), None, 5_000))
        catalog = self._catalog()
        self._version = catalog.version
        placed = [
            PlacedChannel(channel, catalog.voters_of(channel))
            for channel in self.cluster.table_channels
        ]
        begun = time.process_time()
        plan = plan_rebalance(placed, ClusterNodes(tuple(self.cluster.node_ids)))
        planned_s = time.process_time() - begun
        moves = tuple(
            WantedMove(each.after.channel, each.after.voters, (), each.before.voters, ())
            for each in plan.moves
        )
        self.sent = Sent()
        self.ask(lambda number: StartRebalance(number, b"s" * 16, moves, "a node joined", 5_000))
        took_s = self.run_until(lambda: self._catalog().rebalance.open is None)
        even_s = self.even()
        shares = [share.replicas for share in plan.after.values()]
        return {
            "planned in, processor s": round(planned_s, 3),
            "moves": len(moves),
            "replicas per node then": f"{min(shares)} to {max(shares)}",
            "moved after, s": took_s,
            "leaders within the goal after that, s (60)": even_s,
            "most leaders of a node": f"{self.most_led()} (goal {self.goal()})",
            **self._of_catalog(len(moves)),
        }

    def _of_catalog(self, moves: int) -> dict[str, Any]:
        changes = self._catalog().version - self._version
        self._version += changes
        kinds = [kind for kind in self.sent.messages if kind not in ("Heartbeat", "LagReport")]
        total = sum(self.sent.messages[kind] for kind in kinds)
        return {
            "changes of the catalog per move": round(changes / max(1, moves), 1),
            "other messages per move, whole cluster": round(total / max(1, moves)),
        }

    def drain(self) -> dict[str, Any]:
        """A node is emptied."""
        self._version = self._catalog().version
        node = next(each for each in self.cluster.nodes.values() if each is not self.planner)
        held = sum(node.node in self._catalog().voters_of(c) for c in self.cluster.table_channels)
        self.sent = Sent()
        self.ask(lambda number: Drain(number, node.name, True, 5_000))

        def is_empty() -> bool:
            catalog = self._catalog()
            return all(node.node not in catalog.voters_of(c) for c in self.cluster.table_channels)

        took_s = self.run_until(is_empty)
        cost = self._of_catalog(held)
        even_s = self.even()
        return {
            "replicas": held,
            "gone after, s": took_s,
            "leaders within the goal after that, s (60)": even_s,
            "most leaders of a node": f"{self.most_led()} (goal {self.goal()})",
            **cost,
        }

    def _catalog(self) -> Any:
        runner = self.planner.runner
        assert runner is not None
        return runner.controller.catalog
