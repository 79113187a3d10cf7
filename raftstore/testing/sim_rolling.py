"""A cluster of a simulated world that rolls up and down between levels.

A rolling upgrade installs another version on one node after the other while clients write and all
other faults go on. It goes up, down, up and down again, and on until the world heals, which may
find nodes of several levels (``raftstore.testing.sim_levels``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from raftstore.config import LEVEL
from raftstore.policy.levels import (
    LIFETIME_LEVEL,
    MEMBERS_LEVEL,
    REFILL_LEVEL,
    SNAPSHOT_LEVEL,
    TRIM_LEVEL,
)

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster
    from raftstore.testing.sim_node import SimNode

DIRECTIONS_MIN: Final = 4
"""Up, down, up, down: a world with upgrades has seen at least these."""
HAND_OVER_MS: Final = 40.0
"""What a node that is stopped on purpose has for handing its leaderships over."""
DOWN_MS: Final = (20.0, 500.0)
BETWEEN_NODES_MS: Final = (100.0, 700.0)


class RollingUpgrades:
    """Installs other versions on one node after the other, up and down, until it is stopped."""

    def __init__(self, cluster: SimCluster, boot: Callable[[SimNode], None]) -> None:
        """``boot``: starts a node that is down, again and again until it is up."""
        self._cluster = cluster
        self._boot = boot
        # Of its own, so that worlds without upgrades stay as they are.
        self._rng = random.Random(f"levels {cluster.options.seed}")
        options = cluster.options
        self._lowest, self._highest = 0, LEVEL
        if options.jobs or options.many_bounds:
            self._lowest = 1  # what was written at level 1 stops a node of level 0
        if options.damage_percent or options.flip_percent:
            self._lowest = REFILL_LEVEL  # older versions lose what is behind a hole, as is known
        if options.retention:
            self._lowest = SNAPSHOT_LEVEL  # a log that was trimmed is refused by older versions
            # At the level of records that trim outcomes all soon have one: it comes last.
            self._highest = TRIM_LEVEL - 1
        if options.ttl_percent:
            self._lowest = LIFETIME_LEVEL  # and so are records of rows that expire
        if options.member_changes:
            self._lowest = MEMBERS_LEVEL  # a catalog in which members changed, likewise
        self._target = self._highest
        self._is_trimmed = options.retention
        self._waiting: list[SimNode] = []
        self.directions = 0
        """How often all nodes were brought to another level."""
        self.kinds: dict[str, int] = {}
        """Restarts of nodes as another version, by direction."""
        self.is_stopped = False
        level = self._rng.randrange(self._highest)
        for node in cluster.nodes.values():
            node.level = level

    @property
    def is_done(self) -> bool:
        """The cluster has rolled up and down twice."""
        return self.directions >= DIRECTIONS_MIN

    def start(self) -> None:
        """Begin upwards, after a moment."""
        self._begin_direction(self._highest)

    def stop(self) -> None:
        """Install nothing more; the levels stay as they are, several of them at once maybe."""
        self.is_stopped = True

    def _begin_direction(self, target: int) -> None:
        self._target = target
        self._waiting = list(self._cluster.nodes.values())
        self._rng.shuffle(self._waiting)
        self._cluster.trace("roll", level=target)
        self._after(BETWEEN_NODES_MS, self._next)

    def _next(self) -> None:
        if self.is_stopped:
            return
        if self._waiting:
            self._stop_node(self._waiting.pop())
            return
        self.directions += 1
        if self.is_done:
            self._highest = LEVEL
            self._lowest = max(self._lowest, TRIM_LEVEL if self._is_trimmed else 0)
        lowest, highest = self._lowest, self._highest
        is_up = self._target == highest
        down = self._rng.randrange(lowest, highest) if lowest < highest else highest
        self._begin_direction(down if is_up else highest)

    def _stop_node(self, node: SimNode) -> None:
        """As an operator does, by a hand-over first, or as a machine that restarts."""
        if node.is_up and self._rng.random() < 0.5:
            node.hand_over_all()
            self._cluster.scheduler.after(HAND_OVER_MS, self._install, node)
        else:
            self._install(node)

    def _install(self, node: SimNode) -> None:
        if self.is_stopped:
            return
        if node.level != self._target:
            how = "upgrade" if node.level < self._target else "downgrade"
            self.kinds[how] = self.kinds.get(how, 0) + 1
        node.kill(f"level {self._target}")
        node.level = self._target
        self._after(DOWN_MS, self._start, node)

    def _start(self, node: SimNode) -> None:
        self._boot(node)
        self._after(BETWEEN_NODES_MS, self._next)

    def _after(self, ms: tuple[float, float], action: Callable[..., None], *of: object) -> None:
        self._cluster.scheduler.after(self._rng.uniform(*ms), action, *of)
