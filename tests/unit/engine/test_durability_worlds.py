"""Tables below ``fsync`` in simulated worlds: what each may lose, and what never (S0.6, NATS-016).

The disks are slow, so that a stop finds records that are acknowledged and not synced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from raftstore.engine.reads.read_rules import serving_refusal
from raftstore.policy.levels import DURABILITY_LEVEL
from raftstore.policy.views import readiness
from raftstore.protocol.admin import ClusterView, CreateTable
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Bounds
from raftstore.rows.sealing import seal
from raftstore.testing.invariants import InvariantError
from raftstore.testing.options import SimOptions, draw_options
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_files import _File
from raftstore.testing.sim_node import SimNode
from raftstore.testing.simulation import simulate
from raftstore.types import ChannelId, Level, NodeId
from tests.unit.engine.channel.test_levels import follower_of_all, metadata_leader, reinstall
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

SYNC_MS = 400.0


class World:
    """Three nodes with slow disks and one table of one partition."""

    def __init__(self, durability: str, seed: int = 1) -> None:
        options = SimOptions(
            seed=seed, partitions=1, evict_percent=0, durability=durability, apply_max_ms=1.0
        )
        self.cluster = SimCluster(options)
        self.cluster.start()
        self.cluster.create_table(1)
        run(self.cluster, 5_000)
        self.channel: ChannelId = self.cluster.table_channels[0]
        self.put()  # the marks have the promise behind it
        run(self.cluster, 1_000)
        for node in self.cluster.nodes.values():
            node.extra_sync_ms = SYNC_MS
        self._counter = 100

    _counter = 0

    @property
    def leader(self) -> SimNode:
        """The leader of the partition."""
        return self.cluster.leaders()[self.channel]

    def put(self) -> list[Any]:
        """Write a row; the answer comes into the list."""
        self._counter += 1
        key = b"k%d" % self._counter
        message = publish(
            self.cluster,
            self.leader,
            self.channel,
            self._counter,
            encode_rows([(key, seal(key, b"value"))]),
        )
        return ask(self.cluster, self.leader, message)

    def acknowledged(self) -> PubAck:
        """Write a row and wait, not as long as any sync takes, for its acknowledgement."""
        answers = self.put()
        run(self.cluster, SYNC_MS / 4)
        (ack,) = answers
        assert isinstance(ack, PubAck), ack
        self.cluster.oracle.on_ack(self.channel, ack)
        return ack

    def heal(self, *, without: NodeId | None = None) -> None:
        """Every node is up, with a fast disk, for a while."""
        for name, node in self.cluster.nodes.items():
            node.extra_sync_ms = 0.0
            if not node.is_up and name != without:
                node.boot()
        run(self.cluster, 5_000)

    def holders(self, ack: PubAck) -> list[str]:
        """Nodes whose log has the write."""
        found = []
        for node in self.cluster.nodes.values():
            log = node.log.read(self.channel, ack.base_seq, to_seq=ack.last_seq, bytes_max=1)
            found += [node.name for record in log if record.guid == ack.guid]
        return found


def power_off(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what was not synced survives."""
    monkeypatch.setattr(_File, "_survivors", lambda file, _: file.durable)
    node.store.batch = None
    node.crash("power")


@pytest.mark.parametrize("durability", ["buffered", "memory"])
def test_nats_016_write_is_acknowledged_before_the_sync_and_applied_behind_it(
    durability: str,
) -> None:
    """The acknowledgement names the level; a table is never ahead of its log."""
    world = World(durability)
    ack = world.acknowledged()
    assert ack.durability == durability
    for node in world.cluster.nodes.values():
        assert node.tables.applied_seq(world.channel) < ack.last_seq
        assert node.log.durable_operation() < node.log.last_operation()
    world.heal()
    for node in world.cluster.nodes.values():
        assert node.tables.applied_seq(world.channel) >= ack.last_seq


def test_at_fsync_nothing_is_acknowledged_before_a_quorum_synced_it() -> None:
    """S0.6: the default."""
    world = World("fsync")
    answers = world.put()
    run(world.cluster, SYNC_MS / 4)
    assert not answers


def test_replica_in_doubt_serves_nothing_and_says_why() -> None:
    """S0.6: in plain words, and with the nodes that it waits for."""
    world = World("memory")
    nodes = list(world.cluster.nodes.values())
    for node in nodes:
        node.kill("kill -9")
    nodes[0].boot()
    run(world.cluster, 2_000)
    assert nodes[0].runner is not None
    refusal = serving_refusal(nodes[0].runner.channels[world.channel])
    assert refusal is not None
    assert refusal.text.startswith(
        "channel t/0 is in doubt on this node: after its last stop it may lack acknowledged "
        "records (durability memory); a leader has to answer, or all replicas; "
        "no answer from n2, n3"
    )
    reports = nodes[0].runner.reports
    [told] = reports.status()["channels"]
    assert told["mode"] == "recovering"
    assert refusal.text == f"channel t/0 is {told['reason']}; ask another replica"
    view = reports.views.answer(ClusterView(1), nodes[0].clock.now_ms())
    for level in (Level.ANY, Level.BOUNDED, Level.LINEARIZABLE):
        [found] = readiness(view, level, Bounds())
        assert not found.is_ready
        assert "n1: in doubt since its last stop" in found.reason


@pytest.mark.parametrize("durability", ["buffered", "memory"])
def test_all_machines_lose_power_and_what_nobody_synced_is_lost(
    durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.6: all are in doubt, all answer, the longest log leads; nobody has to help."""
    world = World(durability)
    ack = world.acknowledged()
    for node in world.cluster.nodes.values():
        power_off(node, monkeypatch)
    world.heal()
    assert world.holders(ack) == []
    assert ack.guid in world.cluster.oracle.lost
    assert world.cluster.every_channel_has_a_leader()
    world.acknowledged()


@pytest.mark.parametrize("durability", ["buffered", "memory"])
@pytest.mark.parametrize("keeps", ["leader", "follower"])
def test_two_machines_lose_power_and_the_third_one_has_it(
    durability: str, keeps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.6: what any replica holds is not lost; without its answer nobody is elected."""
    world = World(durability)
    ack = world.acknowledged()
    leader = world.leader
    followers = [node for node in world.cluster.nodes.values() if node is not leader]
    kept = leader if keeps == "leader" else followers[0]
    for node in world.cluster.nodes.values():
        if node is not kept:
            power_off(node, monkeypatch)
    world.heal()
    assert world.holders(ack) == ["n1", "n2", "n3"]
    assert not world.cluster.oracle.lost


def test_replica_that_is_away_and_may_hold_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S0.6, S1.7: two in doubt elect nobody by themselves, and say what they wait for."""
    world = World("memory")
    ack = world.acknowledged()
    away = world.leader
    run(world.cluster, 2 * SYNC_MS)  # the leader has it on its disk
    for node in world.cluster.nodes.values():
        power_off(node, monkeypatch)
    world.heal(without=away.node)
    assert world.channel not in world.cluster.leaders()
    for node in world.cluster.nodes.values():
        if node is not away:
            assert node.runner is not None
            core = node.runner.channels[world.channel].core
            assert core.is_recovering
            assert f"no answer from {away.name}" in core.doubt
    world.heal()
    assert world.holders(ack) == ["n1", "n2", "n3"]


def test_at_buffered_killed_processes_lose_nothing_and_leave_no_doubt() -> None:
    """S0.6: the system has what was acknowledged."""
    world = World("buffered")
    ack = world.acknowledged()
    for node in world.cluster.nodes.values():
        node.kill("kill -9")
        node.boot()
        assert node.runner is not None
        assert not node.runner.channels[world.channel].core.doubt
    world.heal()
    assert world.holders(ack) == ["n1", "n2", "n3"]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_at_memory_one_killed_process_costs_nothing(role: str) -> None:
    """S0.6: two others hold what was acknowledged, or one does and is not outvoted."""
    world = World("memory")
    leader = world.leader
    victim = leader if role == "leader" else follower_of_all(world.cluster, world.channel)
    ack = world.acknowledged()
    victim.kill("kill -9")
    run(world.cluster, 50)
    victim.boot()
    assert victim.runner is not None
    assert victim.runner.channels[world.channel].core.doubt
    world.heal()
    assert world.holders(ack) == ["n1", "n2", "n3"]
    assert not victim.runner.channels[world.channel].core.doubt


def test_checker_finds_a_loss_that_may_not_be() -> None:
    """A record that no sync had and one machine lost is no loss of a quorum."""
    world = World("memory")
    ack = world.acknowledged()
    truth = world.cluster.oracle.truth(world.channel)
    lost = next(known for known in truth.records if known.record.guid == ack.guid)
    losses = world.cluster.oracle.losses
    assert losses is not None
    assert "holds it" in losses.refusal(world.channel, lost.record, lost.committed_ms)
    for node in world.cluster.nodes.values():
        node.log.truncate(world.channel, ack.base_seq)
    refused = losses.refusal(world.channel, lost.record, lost.committed_ms)
    assert refused == "only nobody stopped in a way that may cost it"
    assert not losses.may_lose(world.cluster.expected_channels()[0]), "the catalog is at fsync"


@pytest.mark.slow
def test_table_below_fsync_is_refused_while_a_node_does_not_know_it() -> None:
    """The text names the node; an unknown durability is refused with its value, too."""
    cluster, channel = calm_cluster()
    old = follower_of_all(cluster, channel)
    reinstall(cluster, old, DURABILITY_LEVEL - 1)
    leader = metadata_leader(cluster)
    wanted = CreateTable(1, "u", ("id",), 1, 3, "memory", None, "", False, timeout_ms=1_000)
    told = []
    for request in (wanted, structs.replace(wanted, durability="none")):
        answers = ask(cluster, leader, request)
        run(cluster, 2_000)
        (failed,) = answers
        assert isinstance(failed, Failed)
        told.append(failed.message)
    assert f"need level {DURABILITY_LEVEL}" in told[0]
    assert f"{old.name} is at level {DURABILITY_LEVEL - 1}" in told[0]
    assert "durability 'none' is not known; use one of fsync, buffered, memory" in told[1]
    reinstall(cluster, old, DURABILITY_LEVEL)
    answers = ask(cluster, metadata_leader(cluster), wanted)
    run(cluster, 3_000)
    assert isinstance(answers[0], Done)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "durability"), [(34, "memory"), (35, "buffered")])
def test_world_with_slow_disks_loses_no_more_than_it_may(seed: int, durability: str) -> None:
    """S0.6: processes are killed and machines lose power all along, some and all of them."""
    options = replace(
        draw_options(seed),
        durability=durability,
        rolling_upgrades=False,
        damage_percent=0.0,
        flip_percent=0.0,
        live_flip_percent=0.0,
        hang_percent=0.0,
        sync_min_ms=60.0,
        sync_max_ms=300.0,
        slow_disk=True,
    )
    assert simulate(options).violation is None


def test_loss_that_may_not_be_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """O2, with the reason."""
    world = World("memory")
    world.acknowledged()
    oracle, leader = world.cluster.oracle, world.leader
    follower = next(node for node in world.cluster.nodes.values() if node is not leader)
    assert follower.runner is not None
    runner = follower.runner.channels[world.channel]
    monkeypatch.setattr(follower.log, "read", lambda *_, **__: [])
    runner.elector._state.term += 5  # type: ignore[attr-defined]
    with pytest.raises(InvariantError, match=r"S0\.6: leader .* lacks .* holds it"):
        oracle._on_leader(follower.node, runner)
