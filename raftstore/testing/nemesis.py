"""Faults of a simulated world, drawn at random: every kind a real cluster meets."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from raftstore.testing.live_faults import LiveFaults
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_damage import flip_a_record, lose_the_end
from raftstore.testing.sim_files import SYNC, WRITE
from raftstore.types import Durability

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster
    from raftstore.testing.sim_node import SimNode

HANG_MS_MAX = 8_000.0
"""The longest hang of a disk; worlds end their nodes before (``SimCluster``)."""
ERROR_OPERATIONS_MAX = 6
"""Operations on a disk before an error strikes at most."""
POWER_LOSS_AT_START = 0.1
"""How often the power goes once more while a node starts."""
START_OPERATIONS_MAX = 12
"""Operations on its disk that such a start gets to at most."""
STOP_CHANCE = 0.4
"""That a fault stops one, some or all nodes, in worlds with a table below ``fsync``."""
ROOM_BYTES = (100_000, 400_000)
"""Room for segments that a disk has left when it fills up: above the second mark of its node, below
which it takes only what frees space."""
FULL_MS = (1_000.0, 8_000.0)
"""How long it stays so."""
CLOCK_JUMP_CHANCE = 0.3
"""That a fault is a jump of a clock, in worlds with rows that expire."""
CLOCK_OFFSETS_MS = (-5_000.0, -500.0, -200.0, -50.0, 0.0, 500.0, 5_000.0, 15_000.0)
"""How far a wall clock is wrong then."""
START_PAUSE_MS = 400.0
"""Before a start that failed is tried again."""


KILLS = ("crash", "crash_all", "stops", "damage", "flip", "failpoint", "write_error")
"""Faults that end a process."""
PARTITIONS = ("partition", "one_way")


class Nemesis:
    """Injects one fault after another until it is stopped; then everything can be healed."""

    def __init__(self, cluster: SimCluster, options: SimOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._rng = cluster.rng
        self.injected = 0
        """Faults that were drawn, with those that found nothing to strike."""
        self.kinds: dict[str, int] = {}
        """Those that struck; a network that heals is none."""
        self.is_stopped = False
        self._clock_rng = random.Random(f"clocks {options.seed}")
        self._live = LiveFaults(cluster, options, self.boot)
        self._full_rng = random.Random(f"full disks of {options.seed}")
        self._stop_rng = random.Random(f"stops {options.seed}")

    def start(self) -> None:
        """Begin after a calm second, so that the cluster is born first."""
        self._cluster.scheduler.after(1_000.0, self._next)
        self._live.start()

    def heal(self) -> None:
        """No faults from now on: network perfect, every node up, disks healthy."""
        self.is_stopped = True
        self._cluster.network.heal()
        for node in self._cluster.nodes.values():
            node.store.files.mend()
            node.store.files.log_bytes_max = None
            node.disk.heal()
            node.wall_offset_ms = 0.0
            node.failpoint = None
            self.boot(node)
        self._cluster.reconnect_all()

    def _next(self) -> None:
        if self.is_stopped:
            return
        self._inject()
        self.injected += 1
        mean = self._options.fault_interval_ms
        self._cluster.scheduler.after(self._rng.expovariate(1.0 / mean), self._next)

    def _inject(self) -> None:
        if self._options.ttl_percent and self._clock_rng.random() < CLOCK_JUMP_CHANCE:
            self._run("clock_jump", self._clock_jump)
            return
        full = self._options.full_disk_percent
        if full and self._full_rng.random() * 100 < full:
            self._run("full_disk", self._fill_disk)
            return
        is_below = self._options.durability != Durability.FSYNC.label
        if is_below and self._stop_rng.random() < STOP_CHANCE:
            self._run("stops", self._stop_some)
            return
        rng = self._rng
        draw = rng.random() * 100
        damage, hang = self._options.damage_percent, self._options.hang_percent
        if hang and rng.random() * 100 < hang:
            self._run("disk_hang", self._disk_hang)
        else:
            self._inject_another(draw, damage)

    def _inject_another(self, draw: float, damage: float) -> None:  # noqa: C901 - one arm per fault
        rng = self._rng
        flip, live = self._options.flip_percent, self._options.live_flip_percent
        deaths = self._options.failpoint_percent
        if damage and rng.random() * 100 < damage:
            self._run("damage", self._damage)
        elif flip and rng.random() * 100 < flip:
            self._run("flip", self._flip)
        elif live and rng.random() * 100 < live:
            self._run("live_flip", lambda: self._live.flip(self._victim()))
        elif deaths and rng.random() * 100 < deaths:
            self._run("failpoint", lambda: self._live.die_at_a_place(self._victim()))
        elif rng.random() * 100 < self._options.write_error_percent:
            self._run("write_error", self._write_error)
        elif draw < 30:
            self._run("crash", self._crash_one)
        elif draw < 38:
            self._run("crash_all", self._crash_all)
        elif draw < 55:
            self._run("partition", self._partition)
        elif draw < 65:
            self._run("one_way", self._one_way)
        elif draw < 75:
            self._run("weather", self._weather)
        elif draw < 82:
            self._run("connection_reset", self._reset)
        elif draw < 88:
            self._run("hand_over", self._hand_over)
        else:
            self._cluster.trace("fault", kind="heal_network")
            self._cluster.network.heal_partitions()
            self._cluster.reconnect_all()

    @property
    def struck(self) -> int:
        """How many faults struck."""
        return sum(self.kinds.values())

    @property
    def has_killed_and_parted(self) -> bool:
        """Nodes ended, and some could not reach others."""
        return all(any(map(self.kinds.get, kinds)) for kinds in (KILLS, PARTITIONS))

    def _run(self, kind: str, action: Callable[[], bool]) -> None:
        self._cluster.trace("fault", kind=kind)
        if action():
            self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def _victim(self) -> SimNode:
        """A leader half of the time: faults there matter most."""
        cluster = self._cluster
        leaders = list(cluster.leaders().values())
        if leaders and self._rng.random() < 0.5:
            return self._rng.choice(leaders)
        return cluster.nodes[self._rng.choice(cluster.node_ids)]

    def _clock_jump(self) -> bool:
        """Always the same node's wall clock, as long as it stays: a quorum's are right, unless few
        voters are left."""
        node = self._cluster.nodes[self._cluster.node_ids[0]]
        was_ms, node.wall_offset_ms = node.wall_offset_ms, self._clock_rng.choice(CLOCK_OFFSETS_MS)
        self._cluster.oracle.note_clock(node.node, node.wall_offset_ms)
        return node.wall_offset_ms != was_ms

    def _stop_some(self) -> bool:
        """Processes are killed or machines lose their power, some of them a moment apart."""
        rng, scheduler = self._stop_rng, self._cluster.scheduler
        nodes = [node for node in self._cluster.nodes.values() if node.is_up]
        for node in rng.sample(nodes, rng.randint(min(1, len(nodes)), len(nodes))):
            end = node.kill if rng.random() < 0.5 else node.crash
            begun_ms = rng.choice((0.0, rng.uniform(0.0, 50.0), rng.uniform(0.0, 800.0)))
            scheduler.after(begun_ms, end, "stop of some")
            scheduler.after(begun_ms + rng.uniform(1.0, 1_500.0), self.boot, node)
        return bool(nodes)

    def _crash_one(self) -> bool:
        node = self._victim()
        was_up = node.is_up
        node.crash("fault")
        self._cluster.scheduler.after(self._rng.uniform(20.0, 2_500.0), self.boot, node)
        return was_up

    def _crash_all(self) -> bool:
        was_up = False
        for node in self._cluster.nodes.values():
            was_up |= node.is_up
            node.crash("fault on all")
            self._cluster.scheduler.after(self._rng.uniform(20.0, 1_500.0), self.boot, node)
        return was_up

    def boot(self, node: SimNode) -> None:
        """Start a node that is down. The power may go again meanwhile, or an operation fail."""
        if node.is_up or node.refused is not None:
            return
        if not self.is_stopped and node.store.rng.random() < POWER_LOSS_AT_START:
            node.store.files.end_after(node.store.rng.randrange(START_OPERATIONS_MAX))
        if not node.boot():
            self._cluster.scheduler.after(START_PAUSE_MS, self.boot, node)

    def _damage(self) -> bool:
        """Always the same node: with two damaged stores an acknowledged record may be gone."""
        node = self._cluster.nodes[self._cluster.node_ids[0]]
        if not node.is_up:
            return False
        node.damage("damaged store", lose_the_end)
        self._cluster.scheduler.after(self._rng.uniform(20.0, 1_500.0), self.boot, node)
        return True

    def _flip(self) -> bool:
        """Any node, also several at once: every record has one intact copy left."""
        node = self._victim()
        others = [each for each in self._cluster.nodes.values() if each is not node and each.is_up]
        harm = partial(
            flip_a_record,
            others=others,
            others_max=len(self._cluster.nodes) - 1,
            committed=lambda channel: self._cluster.oracle.truth(channel).last_seq,
            newest=self._options.flip_newest,
        )
        is_flipped = node.damage("flipped bit", harm)
        self._cluster.scheduler.after(self._rng.uniform(20.0, 1_500.0), self.boot, node)
        return is_flipped

    def _fill_disk(self) -> bool:
        """Another program takes nearly all of one disk, and gives it back after seconds."""
        node = self._full_rng.choice(list(self._cluster.nodes.values()))
        files = node.store.files
        if not node.is_up or files.log_bytes_max is not None:
            return False
        files.log_bytes_max = files.log_bytes() + self._full_rng.randint(*ROOM_BYTES)
        self._cluster.scheduler.after(self._full_rng.uniform(*FULL_MS), self._free_disk, node)
        return True

    def _free_disk(self, node: SimNode) -> None:
        node.store.files.log_bytes_max = None

    def _write_error(self) -> bool:
        node = self._victim()
        if not node.is_up:
            return False
        rng = node.store.rng
        node.store.files.fail(rng.choice((WRITE, SYNC)), after=rng.randrange(ERROR_OPERATIONS_MAX))
        self._await_write_error(node)
        return True

    def _disk_hang(self) -> bool:
        """For less than the patience of its node, for more, or until the node ends."""
        node = self._victim()
        if not node.is_up or node.disk.is_hanging:
            return False
        node.disk.hang()
        self._cluster.scheduler.after(self._rng.uniform(200.0, HANG_MS_MAX), self._end_hang, node)
        return True

    def _end_hang(self, node: SimNode) -> None:
        node.disk.heal()
        self.boot(node)

    def _await_write_error(self, node: SimNode) -> None:
        """The node stops at its next write (S0.4), whenever that is; somebody restarts it later."""
        self._cluster.scheduler.after(self._rng.uniform(500.0, 3_000.0), self._after_error, node)

    def _after_error(self, node: SimNode) -> None:
        if node.is_up and node.store.files.is_failing:
            self._await_write_error(node)
        else:
            self.boot(node)

    def _partition(self) -> bool:
        nodes = list(self._cluster.node_ids)
        self._rng.shuffle(nodes)
        size = self._rng.randint(1, len(nodes) // 2)
        victim = self._victim().node
        group = [victim, *(n for n in nodes if n != victim)][:size]
        others = [n for n in nodes if n not in group]
        network = self._cluster.network
        was_whole = any(not network.is_cut(a, b) for a in group for b in others)
        network.cut_groups(list(group), list(others))
        return was_whole

    def _one_way(self) -> bool:
        sender, receiver = self._rng.sample(self._cluster.node_ids, 2)
        was_whole = not self._cluster.network.is_cut(sender, receiver)
        self._cluster.network.cut(sender, receiver)
        return was_whole

    def _weather(self) -> bool:
        network = self._cluster.network
        network.loss_percent = self._rng.choice((0.0, 5.0, 30.0))
        network.duplicate_percent = self._rng.choice((0.0, 10.0, 50.0))
        network.delay_max_ms = self._rng.choice((2.0, 30.0, 250.0))
        is_fair = network.delay_max_ms == 2.0
        return bool(network.loss_percent or network.duplicate_percent or not is_fair)

    def _reset(self) -> bool:
        a, b = self._rng.sample(self._cluster.node_ids, 2)
        first, second = self._cluster.nodes[a], self._cluster.nodes[b]
        self._cluster.reset_connection(first, second)
        return first.is_up and second.is_up

    def _hand_over(self) -> bool:
        node = self._victim()
        leads = any(leader is node for leader in self._cluster.leaders().values())
        if node.runner is not None:
            node.hand_over_all()
        return leads
