"""Trimming of a node's logs: what is due, what has to be durable before, and what is never cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from raftstore.config import KIB, NodeSettings, RetentionSettings
from raftstore.ports.tables import Barrier
from raftstore.protocol.changes import Changes, ChangesAnswer
from raftstore.protocol.message import Failed
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import STORAGE, SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, Role, Seq
from tests.unit.engine.batch_world import BatchWorld
from tests.unit.engine.engine_world import ask, publish, run

pytestmark = pytest.mark.slow

RETENTION = RetentionSettings(
    enabled=True, channel_bytes=1 * KIB, channel_records=1_000, log_bytes=16 * KIB, interval_ms=50
)


class World:
    """A calm cluster with one table of one partition, whose logs are short."""

    def __init__(self, nodes: int = 3, **changed: Any) -> None:
        settings = NodeSettings(
            name="",
            data_dir="",
            storage=replace(STORAGE, segment_bytes=4 * KIB),
            retention=replace(RETENTION, **changed),
        )
        self.cluster = SimCluster(
            SimOptions(seed=1, nodes=nodes, partitions=1, evict_percent=0), settings
        )
        self.cluster.start()
        self.cluster.create_table(1)
        run(self.cluster, 10_000)
        self.channel: ChannelId = self.cluster.table_channels[0]
        self.counter = 0

    @property
    def nodes(self) -> list[SimNode]:
        """All of them."""
        return list(self.cluster.nodes.values())

    def leader(self) -> SimNode:
        """The node that leads the partition."""
        return self.cluster.leaders()[self.channel]

    def put(self, times: int = 1, value: bytes = b"v" * 100) -> None:
        """Rewrite one of ten rows so often."""
        for _ in range(times):
            self.counter += 1
            key = b"%d" % (self.counter % 10)
            payload = encode_rows([(key, seal(key, value))])
            leader = self.leader()
            ask(
                self.cluster,
                leader,
                publish(self.cluster, leader, self.channel, self.counter, payload),
            )
            run(self.cluster, 20)
        run(self.cluster, 1_000)

    def base(self, node: SimNode) -> int:
        """Where the node's log of the partition begins."""
        return int(self.runner(node).core.base.seq)

    def runner(self, node: SimNode) -> Any:
        """The partition on a node."""
        assert node.runner is not None
        return node.runner.channels[self.channel]

    def told(self, name: str) -> list[str]:
        """Lines of the trace with this event."""
        return [line for line in self.cluster.lines if f" {name} " in line]


def test_log_stays_bounded_under_updates_and_starts_as_before() -> None:
    """NATS-181: a hundred times the live rows are written, the log has the last of them; retries of
    what is gone are known all the same, and a restart finds rows and positions."""
    world = World()
    world.put(300)
    for node in world.nodes:
        assert world.base(node) > 250
        assert node.log.floor() > 5
        # The base with its retries takes 18 KiB, and two segments may be begun.
        assert node.log.size_bytes() < 28 * KIB
    before = world.runner(world.leader()).core.last_seq
    world.counter -= 300
    world.put(1)
    assert world.runner(world.leader()).core.last_seq == before, "S4.5: it was written before"
    for node in world.nodes:
        node.crash("power")
    for node in world.nodes:
        node.boot()
    run(world.cluster, 10_000)
    for node in world.nodes:
        assert world.base(node) > 250
        assert not world.runner(node).core.is_recovering
    world.counter += 300
    world.put(5)
    world.cluster.check_final()


def test_logs_are_trimmed_unless_that_is_switched_off() -> None:
    """NATS-184: by default nobody's disk fills; switched off, all is kept."""
    assert NodeSettings(name="", data_dir="").retention.enabled
    world = World(enabled=False)
    world.put(60)
    assert [world.base(node) for node in world.nodes] == [0, 0, 0]


@pytest.mark.parametrize("single_replica", [False, True])
def test_log_of_the_only_replica_is_trimmed_only_if_asked(single_replica: bool) -> None:
    """It is all that damaged tables of a single node are built from."""
    world = World(nodes=1, single_replica=single_replica)
    world.put(60)
    assert (world.base(world.nodes[0]) > 0) == single_replica


def test_s6_4_base_waits_for_the_barrier_and_stays_below_it() -> None:
    """Records applied behind a barrier may be lost in a power cut: they stay in the log."""
    world = World()
    node = world.leader()
    held: list[Any] = []
    node.tables.start_barrier = lambda channel, done: held.append((channel, done))
    world.put(40)
    assert world.base(node) == 0
    assert len(held) == 1, "one channel at a time"
    for seq in (0, 12):
        channel, done = held.pop()
        assert channel == world.channel
        done(Barrier(Seq(seq), Seq(seq)), node.clock.now_ms())
        [floor] = [one for one in floors(world, node) if one.name == "applied"]
        assert (floor.seq, floor.bytes_max) == (seq, None)
        run(world.cluster, 300)
        assert world.base(node) == seq


def test_idle_channel_does_not_keep_the_segments_of_the_others() -> None:
    """The catalog is written once: its few records are trimmed, and its base is carried."""
    world = World()
    world.put(600)
    for node in world.nodes:
        assert node.runner is not None
        assert node.runner.retention.trimmer.carried_total > 0
        assert node.log.floor() > 20
        assert node.log.size_bytes() < 80 * KIB


def floors(world: World, node: SimNode) -> Any:
    """Reasons to keep records of the partition on a node."""
    assert node.runner is not None
    return node.runner.retention.floors_of(world.runner(node), node.clock.now_ms())


def test_records_stay_for_a_replica_that_is_behind_until_there_are_too_many() -> None:
    """Beyond the bound its floor is given up, once and with its name; the others go on.

    Shows NATS-182.
    """
    world = World(slow_replica_bytes=8 * KIB)
    world.put(5)
    slow = next(node for node in world.nodes if node is not world.leader())
    position = world.runner(slow).core.commit_seq
    slow.kill("test")
    world.put(30)
    live = [node for node in world.nodes if node is not slow]
    for node in live:
        assert world.base(node) <= position
        assert [(f.seq, f.is_given_up) for f in floors(world, node) if f.owner == slow.name] == [
            (position, False)
        ]
    world.put(120)
    for node in live:
        assert world.base(node) > position
    # Of those that are up the last report may be a second old, too.
    lines = [
        line for line in world.told("retention_floor_given_up") if f"owner={slow.name}" in line
    ]
    assert len(lines) == len(live)
    assert all("floor=slow_replica" in line and f"seq={position}" in line for line in lines)


def test_s6_5_replica_that_was_never_heard_of_holds_everything() -> None:
    """It may have nothing."""
    world = World()
    node = world.leader()
    assert node.runner is not None
    node.runner.watch.positions[world.channel].clear()
    world.runner(node)
    limit, held_by = node.runner.retention.floors.lowest(
        world.runner(node), Seq(2), node.clock.now_ms()
    )
    assert (limit, held_by.name) == (0, "slow_replica")


def test_last_word_of_a_replica_from_before_a_base_holds_that_base() -> None:
    """A leader that gets acknowledgements trims by them; when it leads no more, all it has is the
    last report. That is no reason to go on without the replica."""
    world = World()
    world.put(40)
    node = next(node for node in world.nodes if node is not world.leader())
    assert node.runner is not None
    retention, runner = node.runner.retention, world.runner(node)
    known = node.runner.watch.positions[world.channel]
    for peer, position in known.items():
        known[peer] = msgspec.structs.replace(position, applied_seq=Seq(1))
    limit, held_by = retention.floors.lowest(runner, Seq(999), node.clock.now_ms())
    assert limit <= runner.core.base.seq
    assert held_by is not None
    assert held_by.name == "slow_replica"


def read_changes(world: World, node: SimNode, after: int) -> Any:
    """The answer to a reader of changes."""
    request = Changes(1, world.channel, Seq(after), 0, Seq(0), 10, 1 << 20, 1_000)
    answers = ask(world.cluster, node, request)
    run(world.cluster, 20)
    return answers[-1]


def test_records_stay_for_a_reader_of_changes_that_asks_here() -> None:
    """While it asks, and no longer."""
    world = World(reader_idle_ms=3_000)
    world.put(4)
    node = world.leader()
    for _ in range(8):
        assert isinstance(read_changes(world, node, 3), ChangesAnswer)
        world.put(5)
    assert world.base(node) <= 3
    others = [world.base(other) for other in world.nodes if other is not node]
    assert min(others) > 3
    run(world.cluster, 4_000)
    assert world.base(node) > 3
    gone = read_changes(world, node, 3)
    assert isinstance(gone, Failed)
    assert gone.code == "data_loss"


def test_slow_reader_of_changes_is_given_up_and_hears_it() -> None:
    """One reader must not fill a disk."""
    world = World(reader_bytes=4 * KIB)
    world.put(2)
    node = world.leader()
    for _ in range(12):
        answer = read_changes(world, node, 1)
        world.put(5)
    assert isinstance(answer, Failed)
    assert answer.code == "data_loss"
    [line] = world.told("retention_floor_given_up")
    assert "floor=reader_of_changes" in line


def test_stopped_replica_keeps_its_log() -> None:
    """S13: it is what the others are compared with."""
    world = World()
    world.put(3)
    node = next(node for node in world.nodes if node is not world.leader())
    world.runner(node)._on_broken("a test says so")
    world.put(60)
    assert world.base(node) == 0
    assert world.base(world.leader()) > 0


def test_old_records_go_however_few_there_are() -> None:
    """By the timestamps that the leader gave them."""
    world = World(channel_bytes=1024 * KIB, log_bytes=1024 * KIB, age_ms=20_000)
    world.put(3)
    run(world.cluster, 10_000)
    young = world.runner(world.leader()).core.last_seq
    world.put(3)
    run(world.cluster, 12_000)
    assert [world.base(node) for node in world.nodes] == [young] * 3


def test_work_of_a_channel_that_is_closed_meanwhile_is_dropped() -> None:
    """Its barrier and its records are of another life of it."""
    world = World()
    node = world.leader()
    held: list[Any] = []
    node.tables.start_barrier = lambda channel, done: held.append(done)
    world.put(40)
    assert node.runner is not None
    node.runner.retention.channel_closed(world.runner(node))
    held.pop()(Barrier(Seq(12), Seq(12)), node.clock.now_ms())
    run(world.cluster, 40)
    assert world.base(node) == 0


def test_i1_open_attempt_holds_the_base_until_its_batch_is_applied() -> None:
    """S6.5: its rows are in the log alone; a power cut of all must not lose them."""
    world = BatchWorld.start(partitions=1, retention=True)
    opened = world.begin(0)
    world.stage(opened.attempt, 0, {b"staged": b"row"})
    [refs] = world.staged.values()
    for number in range(40):
        world.begin(number, writer=f"other {number}")
    for node in world.cluster.nodes.values():
        base = node.runner.channels[world.channels[0]].core.base.seq
        assert 0 < base < refs[0].base_seq
        told = node.runner.retention.floors_of(
            node.runner.channels[world.channels[0]], node.clock.now_ms()
        )
        assert "open_attempts" in [floor.name for floor in told]
        node.crash("power")
    for node in world.cluster.nodes.values():
        node.boot()
    run(world.cluster, 10_000)
    world.commit(opened.attempt, 0)
    for number in range(40):
        world.begin(number, writer=f"more {number}")
    for node in world.cluster.nodes.values():
        runner = node.runner.channels[world.channels[0]]
        assert runner.core.base.seq > refs[0].last_seq
        assert node.tables.get(world.channels[0], b"staged") is not None
    assert any(
        node.runner.channels[world.channels[0]].elector.role is Role.LEADER
        for node in world.cluster.nodes.values()
    )
