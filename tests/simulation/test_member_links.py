"""Simulated nodes refuse peers that they do not know, as real ones do (S0.1, S0.7, M27)."""

from __future__ import annotations

import random

import pytest

from raftstore.engine.catalog.controller import CatalogController
from raftstore.protocol.members import JoinAccepted
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_operator import SimJoin, SimOperator
from raftstore.types import NodeId, channel_id, node_name
from tests.unit.engine.engine_world import run


class Scene:
    """Five calm nodes. One is away while another one's disk is lost and its place taken by a new
    one, which leads the metadata channel when the first comes back."""

    def __init__(self, name: str) -> None:
        """``name`` of the new node; empty: that of the lost one."""
        self.cluster = SimCluster(
            SimOptions(seed=3, nodes=5, partitions=1, evict_percent=0, member_changes=True)
        )
        self.cluster.start()
        self.cluster.create_table(1)
        run(self.cluster, 10_000)
        self.metadata = channel_id(self.cluster.cluster_id, 0)
        others = [node for node in self.cluster.nodes.values() if node is not self.planner]
        self.away, lost = others[:2]
        self.away.kill("it is away")
        lost.kill("its disk is lost")
        lost.lose("its disk is lost")
        run(self.cluster, 10_000)
        self.joined: list[tuple[NodeId, JoinAccepted]] = []
        operator = SimOperator(self.cluster, random.Random(1))
        SimJoin(operator, name or lost.name, lost.node, self._on_joined, self._on_refused)
        run(self.cluster, 20_000)
        self.newcomer = self.cluster.add_node(*self.joined[-1])
        self.newcomer.boot()
        run(self.cluster, 60_000)
        runner = self.planner.runner
        assert runner is not None
        now_ms = self.planner.clock.now_ms()
        runner.channels[self.metadata].request_hand_over(self.newcomer.node, "asked", now_ms)
        runner.on_timer(now_ms)
        run(self.cluster, 5_000)
        assert self.planner is self.newcomer

    @property
    def planner(self) -> SimNode:
        """The leader of the metadata channel."""
        return self.cluster.leaders()[self.metadata]

    def _on_joined(self, node: NodeId, answer: JoinAccepted) -> None:
        self.joined.append((node, answer))

    def _on_refused(self, join: SimJoin) -> None:
        raise AssertionError(join)

    def knows_newcomer(self) -> bool:
        """Whether the one that was away has the catalog that names the new one."""
        runner = self.away.runner
        assert runner is not None
        entry = runner.controller.catalog.nodes.get(node_name(self.newcomer.node))
        return entry is not None and entry.node == self.newcomer.node


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n8", ""])
def test_node_that_was_away_comes_back_under_a_leader_that_it_does_not_know(name: str) -> None:
    """S0.7: the catalog that names the leader can come from the leader alone."""
    scene = Scene(name)
    scene.away.boot()
    assert not scene.knows_newcomer()
    run(scene.cluster, 5_000)
    assert scene.knows_newcomer()


@pytest.mark.slow
def test_node_that_believes_no_stranger_never_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that such worlds are there to find."""
    monkeypatch.setattr(CatalogController, "on_stranger", lambda *_: None)
    scene = Scene("n8")
    scene.away.boot()
    run(scene.cluster, 20_000)
    assert scene.planner is scene.newcomer
    assert not scene.knows_newcomer()
