"""A calm simulated cluster whose logs are cut by hand: followers then need replica snapshots."""

from __future__ import annotations

from collections.abc import Callable

from raftstore.config import KIB, NodeSettings, ReplicationSettings, SnapshotSettings
from raftstore.core.folds import advance
from raftstore.ports.tables import Barrier
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import STORAGE, SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId
from tests.unit.engine.engine_world import publish, run

SMALL_CHUNKS = SnapshotSettings(chunk_bytes_max=2 * KIB)


def world_of(
    seed: int = 1,
    *,
    scrub: bool = False,
    replication: ReplicationSettings | None = None,
    in_files: bool = False,
) -> SnapshotWorld:
    """Three replicas with some rows, and snapshots of several chunks: of pairs, or of files."""
    settings = NodeSettings(
        name="",
        data_dir="",
        storage=STORAGE,
        snapshot=SMALL_CHUNKS,
        replication=replication or ReplicationSettings(),
    )
    options = SimOptions(seed=seed, partitions=1, evict_percent=0, scrub=scrub)
    cluster = SimCluster(options, settings)
    for node in cluster.nodes.values():
        node.tables.has_links = in_files
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    world = SnapshotWorld(cluster, cluster.table_channels[0])
    cluster.add_client("writer", 901, world.answer)
    world.write(20)
    return world


class SnapshotWorld:
    """One channel of three replicas."""

    def __init__(self, cluster: SimCluster, channel: ChannelId) -> None:
        self.cluster = cluster
        self.channel = channel
        self.counter = 0

    @property
    def leader(self) -> SimNode:
        """The node that leads the channel."""
        return self.cluster.leaders()[self.channel]

    def followers(self) -> list[SimNode]:
        """Nodes that run and do not lead it."""
        leader = self.leader
        return [n for n in self.cluster.nodes.values() if n.is_up and n is not leader]

    def write(self, count: int, size: int = 200) -> None:
        """So many rows, of keys of their own, committed and applied where the channel lives."""
        for _ in range(count):
            if not self.has_leader():
                break
            self.counter += 1
            key = b"%06d" % self.counter
            payload = encode_rows([(key, seal(key, bytes(size)))])
            message = publish(self.cluster, self.leader, self.channel, self.counter, payload)
            self.cluster.network.send("writer", self.leader.node, message)
            run(self.cluster, 2)
        run(self.cluster, 500)

    def answer(self, _sender: NodeId, _message: Message) -> None:
        """Outcomes are not looked at."""

    def cut(self, node: SimNode) -> None:
        """Move the base of the node's log up to what its table has durably applied.

        By hand: the log gets it while the channel waits to be opened anew, as with another one's
        base. A node that ends meanwhile has or has not done it.
        """
        life, barriers = node.runner, list[Barrier]()
        assert life is not None
        runner = life.channels[self.channel]
        node.tables.start_barrier(self.channel, lambda barrier, _: barriers.append(barrier))
        node._after_step()
        self.until(lambda: bool(barriers) or node.runner is not life)
        runner.pause()
        run(self.cluster, 200)
        if node.runner is not life or life.channels.get(self.channel) is not runner:
            return
        base, until = node.log.base(self.channel), barriers[0].base_max
        records = [each for each in node.log.records(self.channel) if each.last_seq <= until]
        node.log.rebase(self.channel, advance(base, records))
        node._after_step()
        run(self.cluster, 200)
        if node.runner is life:
            life.controller.reopen(runner, node.clock.now_ms())
            node._after_step()

    def has_leader(self) -> bool:
        """Whether some node leads the channel."""
        return self.channel in self.cluster.leaders()

    def may_cut(self, node: SimNode) -> bool:
        """Whether the node's log and table are whole, and something may be cut off the log."""
        assert node.runner is not None
        runner = node.runner.channels.get(self.channel)
        if runner is None or runner.core.is_recovering or runner.is_paused:
            return False
        return node.tables.applied_seq(self.channel) > runner.core.base.seq

    def cut_all(self) -> None:
        """The same on every node that runs; afterwards one leads again."""
        for node in self.cluster.nodes.values():
            if node.is_up:
                self.cut(node)
        self.settle()

    def until(self, done: Callable[[], bool], ms: float = 20_000) -> None:
        """Let time pass until it is so."""
        until = self.cluster.scheduler.now_ms + ms
        while not done():
            assert self.cluster.scheduler.now_ms < until, self.cluster.positions()
            run(self.cluster, 1)

    def settle(self, ms: float = 20_000) -> None:
        """Wait until all replicas that run are equal."""
        until = self.cluster.scheduler.now_ms + ms
        while self.cluster.scheduler.now_ms < until:
            run(self.cluster, 100)
            if self.channel in self.cluster.leaders() and self.is_whole():
                return
        raise AssertionError(self.cluster.positions())

    def is_whole(self) -> bool:
        """Whether all that run hold the same and lack nothing."""
        found = set()
        for node in self.cluster.nodes.values():
            if node.runner is None:
                continue
            core = node.runner.channels[self.channel].core
            if core.is_recovering or core.commit_seq != core.last_seq or core.lacks_rows:
                return False
            found.add((core.last_seq, node.tables.content_hash(self.channel)))
        return len(found) == 1

    def count(self, name: str) -> list[int]:
        """How many events of this name there are from now on, counted up."""
        counted, trace = [0], self.cluster.trace

        def counting(told: str, **fields: object) -> None:
            counted[0] += told == name
            trace(told, **fields)

        self.cluster.trace = counting  # type: ignore[method-assign]
        return counted

    def told(self, name: str) -> list[str]:
        """Lines of the events of this name."""
        return [line for line in self.cluster.lines if f" {name} " in f" {line} "]
