"""A replica that stores four of five records in time: it says so within its bound, is sent every
record once, and is steady soon after the writers pause; whole nodes on simulated disks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftstore.config import (
    KIB,
    CatchUpSettings,
    NodeSettings,
    ReplicationSettings,
    RetentionSettings,
    SnapshotSettings,
)
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.replica_snapshots import SnapshotChunk
from raftstore.protocol.replication import MsgSync, MsgSyncRequest
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import STORAGE, SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, FollowerMode, node_name
from tests.unit.engine.engine_world import ask, publish, run

WINDOW_MS, WINDOWS = 1_000, 3
WRITES_PER_S = 100
SYNC_MS = 46.0
"""Two batches of two records wait for each sync of the disk: some 80 records a second."""
SETTINGS = NodeSettings(
    name="",
    data_dir="",
    storage=STORAGE,
    replication=ReplicationSettings(sync_batch_records_max=2, live_queue_messages_max=16),
    catchup=CatchUpSettings(slow_windows=WINDOWS, slow_window_ms=WINDOW_MS),
)


class Throttled:
    """A follower whose disk was slow when it came back, and writers that go on."""

    def __init__(self, settings: NodeSettings = SETTINGS) -> None:
        options = SimOptions(seed=1, partitions=1, evict_percent=0)
        self.cluster = cluster = SimCluster(options, settings)
        cluster.start()
        cluster.create_table(1)
        run(cluster, 10_000)
        self.channel: ChannelId = cluster.table_channels[0]
        self.leader: SimNode = cluster.leaders()[self.channel]
        self.slow = next(n for n in cluster.nodes.values() if n is not self.leader)
        self.written = 0
        self.sent_records = self.under_way = self.under_way_most = self.copied_bytes = 0
        self._watch()

    def _watch(self) -> None:
        send = self.cluster.network.send

        def counted(sender: str, receiver: str, message: Message) -> None:
            if sender == self.slow.node and isinstance(message, MsgSyncRequest):
                self.under_way += message.channel == self.channel
            if receiver == self.slow.node and isinstance(message, MsgSync):
                self.under_way -= message.channel == self.channel
                if message.channel == self.channel:
                    self.sent_records += len(message.records)
            if receiver == self.slow.node and isinstance(message, SnapshotChunk):
                self.copied_bytes += sum(len(key) + len(value) for key, value in message.pairs)
            self.under_way_most = max(self.under_way_most, self.under_way)
            send(sender, receiver, message)

        self.cluster.network.send = counted  # type: ignore[method-assign]

    def write(self, seconds: float, keys: int = 1_000_000) -> None:
        """At a constant rate; nobody waits for the answers."""
        for _ in range(int(seconds * WRITES_PER_S)):
            self.written += 1
            key = b"k%d" % (self.written % keys)
            payload = encode_rows([(key, seal(key, b"value"))])
            message = publish(self.cluster, self.leader, self.channel, self.written, payload)
            ask(self.cluster, self.leader, message)
            run(self.cluster, 1_000 / WRITES_PER_S)

    def told(self, node: SimNode, name: str) -> list[dict[str, object]]:
        """Events of one node."""
        return list(node.runner.ring.newest(name, 100))


@pytest.mark.slow
def test_throttled_replica_says_so_is_sent_everything_once_and_ends_within_its_bound() -> None:
    """NATS-147, NATS-150 and what others learnt: an endless resync costs the leader more than it
    brings the replica. Commits go on meanwhile, and its acknowledgements count as ever.
    """
    world = Throttled()
    world.slow.crash("test")
    world.write(1.0)
    world.slow.boot()
    world.slow.extra_sync_ms = SYNC_MS
    end_before = world.leader.runner.channels[world.channel].core.last_seq
    world.write((WINDOWS + 3) * WINDOW_MS / 1_000)
    core = world.slow.runner.channels[world.channel].core
    led = world.leader.runner.channels[world.channel].core
    assert core.mode is FollowerMode.CATCHING_UP
    view = core.catch_up()
    assert view is not None
    assert view.cannot_complete
    assert view.is_far
    assert 0.7 * WRITES_PER_S <= view.rows_per_s <= 0.9 * WRITES_PER_S
    (told,) = world.told(world.slow, "cannot_complete")
    assert told["action"] == "retire"
    (heard,) = world.told(world.leader, "replica_cannot_complete")
    assert heard["replica"] == node_name(world.slow.node)
    assert heard["rows_behind"] == told["rows_behind"]
    assert world.told(world.slow, "catch_up"), "its pace is told"
    assert led.progress()[world.slow.node].match_seq > end_before, "it acknowledges what it stored"
    assert led.commit_seq >= led.last_seq - 2, "nobody waits for it"
    behind = led.last_seq - core.verified_seq
    run(world.cluster, 1.5 * 1_000 * behind / (0.8 * WRITES_PER_S))
    assert core.mode is FollowerMode.STEADY
    run(world.cluster, 3 * SYNC_MS)
    assert core.durable_seq == led.last_seq
    assert not led.progress()[world.slow.node].cannot_complete
    assert world.sent_records <= world.written + 8, "history was sent again"
    assert world.under_way_most <= 2


@pytest.mark.slow
def test_node_of_a_throttled_replica_ends_where_that_is_asked_for() -> None:
    """NATS-195: with exit code 75 on real nodes; here its driver is notified, once."""
    catchup = replace(SETTINGS.catchup, slow_action="exit")
    world = Throttled(replace(SETTINGS, catchup=catchup))
    world.slow.crash("test")
    world.write(1.0)
    world.slow.boot()
    world.slow.extra_sync_ms = SYNC_MS
    ended: list[str] = []
    world.slow.runner.catch_ups._give_up = ended.append
    world.write((WINDOWS + 2) * WINDOW_MS / 1_000)
    (reason,) = ended
    assert "falls further behind its leader all the time" in reason


KEYS = 400
PAUSE_MS_MAX = 20_000
SHORT_LOGS = replace(
    SETTINGS,
    storage=replace(STORAGE, segment_bytes=4 * KIB),
    retention=RetentionSettings(
        channel_bytes=4 * KIB,
        channel_records=100,
        log_bytes=16 * KIB,
        slow_replica_bytes=8 * KIB,
        interval_ms=50,
    ),
    snapshot=SnapshotSettings(
        chunk_bytes_max=1 * KIB,
        second_bytes_max=8 * KIB,
        request_ms=400,
        retry_ms=100,
        pause_ms_max=PAUSE_MS_MAX,
    ),
)
"""A copy takes longer than logs keep what is written meanwhile, so that none is of use before the
writers pause."""


@pytest.mark.slow
def test_throttled_replica_is_not_copied_to_without_end_when_logs_are_short() -> None:
    """NATS-150, S6.6: where every copy comes too late each one costs as much as the first, so they
    come half as often each time; the replica says that it cannot complete, and is steady soon after
    the writers pause.
    """
    world = Throttled(SHORT_LOGS)
    world.write(KEYS / WRITES_PER_S, KEYS)
    world.slow.crash("test")
    world.write(3.0, KEYS)
    world.slow.boot()
    world.slow.extra_sync_ms = SYNC_MS
    world.write(35.0, KEYS)
    receiver = world.slow.runner.snapshots.receiver
    finished = world.told(world.slow, "replica_snapshot_finished")
    table_bytes = world.leader.tables.table_bytes(world.channel)
    assert 3 <= len(finished) <= 5, "each pause is twice as long as the one before"
    assert world.copied_bytes <= 6 * 2 * table_bytes
    assert len(world.told(world.slow, "cannot_complete")) == 1
    assert len(world.told(world.leader, "replica_cannot_complete")) == 1
    assert "did not bring it to its leader's end" in receiver.progress(
        world.channel, world.slow.clock.now_ms()
    )
    led = world.leader.runner.channels[world.channel].core
    assert led.commit_seq >= led.last_seq - 2, "nobody waits for it"
    run(world.cluster, PAUSE_MS_MAX + 15_000)
    core = world.slow.runner.channels[world.channel].core
    assert core.mode is FollowerMode.STEADY
    assert core.durable_seq == led.last_seq
    assert receiver.progress(world.channel, world.slow.clock.now_ms()) == ""
    hashes = {node.tables.content_hash(world.channel) for node in world.cluster.nodes.values()}
    assert len(hashes) == 1
