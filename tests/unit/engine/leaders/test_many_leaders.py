"""Even leaders of thousands of channels: the planner's main loop has other things to do, too."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from raftstore.config import RebalanceSettings
from raftstore.engine.leaders.balancer import LOOKED_AT_MS, LeaderBalancer
from raftstore.policy.placement import place_table
from raftstore.state_machines.catalog import TableEntry, create_table_command
from raftstore.types import ChannelId, NodeId, Term, node_id
from tests.unit.state_machines.catalog_rows import CatalogRows

NODES = tuple(node_id(f"n{number:02}", bytes([number + 1]) * 16) for number in range(10))
CHANNELS = 1_000
HAND_OVER_MS = 30


class Planner:
    """A node that plans, and hand-overs that each take a moment."""

    def __init__(self) -> None:
        self.now_ms = 0
        placed = place_table(partitions=CHANNELS, replicas=3, nodes=NODES)
        rows = CatalogRows(*NODES)
        entry = TableEntry("t", b"a-table-of-many!", ("k",), CHANNELS, 3, "fsync", None, "", placed)
        assert rows.command(create_table_command(entry)) is None
        draw = random.Random(1)
        self.leaders: dict[ChannelId, NodeId] = {
            channel: draw.choice(group)
            for channel, group in zip(entry.channels, placed, strict=True)
        }
        self.moving: list[tuple[int, NodeId, ChannelId]] = []
        self.looks = 0
        parts: Any = SimpleNamespace(
            is_planner=True, planner=NODES[0], me=NODES[0], knows_moves=bool,
            controller=SimpleNamespace(
                catalog=rows.catalog, metadata_channel=b"m",
                leader_of=lambda channel: (self.leaders[channel], Term(1)),
            ),
            watch=SimpleNamespace(
                peers=NODES[1:], is_up=bool, health=SimpleNamespace(since_ms=lambda _: 0)
            ),
            node=SimpleNamespace(tell=lambda *_, **__: None),
        )  # fmt: skip
        kept: Any = SimpleNamespace(kept=self.look)
        self.balancer = LeaderBalancer(parts, RebalanceSettings(), self.ask, kept)
        self.balancer.leader_changed(ChannelId(b"m"), 0)

    def look(self, *_: object) -> list[Any]:
        """Each look asks what operators had given away."""
        self.looks += 1
        return []

    def ask(self, node: NodeId, message: Any) -> None:
        """A hand-over begins."""
        takes_ms = HAND_OVER_MS + len(self.moving) * 2
        self.moving.append((self.now_ms + takes_ms, node, message.channel))
        self.moving.sort()

    def run(self, ms: int) -> None:
        """Time passes."""
        for _ in range(ms):
            self.now_ms += 1
            while self.moving and self.moving[0][0] <= self.now_ms:
                _, node, channel = self.moving.pop(0)
                self.leaders[channel] = node
                self.balancer.leader_changed(channel, self.now_ms)
            if self.balancer.deadlines.next_ms <= self.now_ms:
                self.balancer.on_timer(self.now_ms)

    def most(self) -> int:
        """Of what one node leads."""
        led = list(self.leaders.values())
        return max(map(led.count, NODES))


def test_hand_overs_that_end_together_are_one_look() -> None:
    """A look goes over all channels; one for each move would leave no time for anything else."""
    planner = Planner()
    planner.run(19_900)
    before, began_at = planner.most(), planner.looks
    planner.run(10_000)
    assert planner.most() <= CHANNELS // len(NODES) + 1 < before
    moved = planner.balancer.moved_total
    assert moved > 20
    assert planner.looks - began_at <= moved // 2 + 12
    assert HAND_OVER_MS > CHANNELS // LOOKED_AT_MS
