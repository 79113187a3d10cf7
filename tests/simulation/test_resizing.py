"""Worlds in which a table gets five replicas and three again while clients write and read, nodes
are killed and the network is cut: nothing acknowledged is lost, and the number is reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftstore.protocol.admin import EditTable
from raftstore.protocol.message import Done, Message
from raftstore.testing.options import draw_options
from raftstore.testing.simulation import BIRTH_MS_MAX, Simulation
from raftstore.types import NodeId, channel_id

SEEDS = (1, 2, 5)
STEPS = (5, 3)
SETTLED_MS_MAX = 60_000


class Resizer:
    """Asks the leader of the metadata channel for one number after the other, until each is taken;
    the next one comes while the orders of the one before may be open."""

    def __init__(self, world: Simulation, pause_ms: float) -> None:
        self._cluster = world.cluster
        self._left = list(STEPS)
        self._pause_ms = pause_ms
        self.taken = 0
        self._cluster.add_client("resizer", 779, self._answered)
        self._cluster.scheduler.after(BIRTH_MS_MAX, self._ask)  # within it every table is made

    def _ask(self) -> None:
        if not self._left:
            return
        found = self._cluster.believed_leader(channel_id(self._cluster.cluster_id, 0))
        if found is not None and self._cluster.table_channels:
            uuid = self._cluster.table_channels[0][:16]
            request = EditTable(len(STEPS), "t", uuid, {"replicas": self._left[0]}, 1_000)
            self._cluster.network.send("resizer", found[0], request)
        self._cluster.scheduler.after(400.0, self._ask)

    def _answered(self, sender: NodeId, message: Message) -> None:
        del sender
        if isinstance(message, Done) and self._left:
            self.taken += 1
            self._left.pop(0)
            # Answers to what was asked twice are of the number before: it is asked for again then.
            if self._left:
                left, self._left = self._left, []
                self._cluster.scheduler.after(self._pause_ms, self._go_on, left)

    def _go_on(self, left: list[int]) -> None:
        self._left = left
        self._ask()


def resized(world: Simulation, replicas: int) -> bool:
    """Whether every partition has so many voters, and no node thinks otherwise."""
    for node in world.cluster.nodes.values():
        assert node.runner is not None
        catalog = node.runner.controller.catalog
        table = catalog.tables["t"]
        if table.is_resizing or table.replicas != replicas:
            return False
        if any(len(catalog.voters_of(channel)) != replicas for channel in table.channels):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_come_and_go_under_writes_and_faults(seed: int) -> None:
    """Three, five and three again, some of it at once."""
    options = replace(
        draw_options(seed), nodes=5, replicas=3, partitions=3, operations=400, damage_percent=0.0,
        rolling_upgrades=False, durability="fsync",
    )  # fmt: skip
    world = Simulation(options)
    resizer = Resizer(world, pause_ms=2_500.0)
    verdict = world.run()
    assert verdict.violation is None, verdict.violation
    assert verdict.void is None
    scheduler = world.cluster.scheduler
    until_ms = scheduler.now_ms + SETTLED_MS_MAX
    scheduler.run_until(until_ms, lambda: resizer.taken == len(STEPS) and resized(world, STEPS[-1]))
    assert resizer.taken == len(STEPS)
    assert resized(world, STEPS[-1])
    assert world.cluster.replicas_are_equal()
    assert verdict.crashes > 0
