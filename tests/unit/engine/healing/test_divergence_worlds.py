"""A replica with another history than the others: found, judged by the quorum, healed (S13, N5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raftstore.engine.healing.divergence import Stage
from raftstore.policy.levels import CHAIN_HASH_LEVEL
from raftstore.protocol.records import Record
from raftstore.record_machine import Row
from raftstore.rows.sealing import seal
from raftstore.storage.log import recovery
from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Role, Seq
from tests.snapshot_world import SnapshotWorld, world_of
from tests.unit.engine.engine_world import run

pytestmark = pytest.mark.slow


class OtherHistory:
    """From its next start on some records of a node are others than they were, and so is a row.

    No checksum shows it: the log reads them as they would be if they had been written so.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: SnapshotWorld) -> None:
        self._patch = monkeypatch
        self._world = world
        self._places: dict[tuple[int, int], None] = {}
        records, heads = SimLog.records, SimLog.heads

        def other_records(log: SimLog, channel: ChannelId) -> Iterator[Record]:
            yield from (self._other(log, channel, each) for each in records(log, channel))

        def other_heads(log: SimLog, channel: ChannelId, *of: Any, **more: Any) -> list[Record]:
            return [self._other(log, channel, each) for each in heads(log, channel, *of, **more)]

        monkeypatch.setattr(SimLog, "records", other_records)
        monkeypatch.setattr(SimLog, "heads", other_heads)

    def strike(self, node: SimNode, *numbers: int) -> list[Seq]:
        """Restart the node with these of its records changed; their seqs."""
        channel = self._world.channel
        index = node.log.index_of(channel)
        assert index is not None
        for number in numbers:
            self._places[id(node.store.files), index.positions[number]] = None
        seqs = [Seq(index.base_seqs[number]) for number in numbers]
        key = next(iter(node.tables._tables[channel].rows))
        node.kill("its history becomes another")
        row = node.tables._tables[channel].rows[key]
        node.tables._tables[channel].put(key, Row(key, seal(key, b"wrong"), row.seq))
        run(self._world.cluster, 100)
        node.boot()
        return seqs

    def _other(self, log: SimLog, channel: ChannelId, record: Record) -> Record:
        index = log.index_of(channel)
        if channel != self._world.channel or index is None:
            return record
        position = index.positions[index.locate(record.base_seq)]
        if (id(log.files), position) in self._places:
            return msgspec.structs.replace(record, digest=bytes(16))
        return record


def runner_of(world: SnapshotWorld, node: SimNode) -> Any:
    """The replica of the world's channel on a node."""
    assert node.runner is not None
    return node.runner.channels[world.channel]


def stage_of(world: SnapshotWorld, node: SimNode) -> Stage | None:
    """How far the node's dispute about the world's channel is."""
    assert node.runner is not None
    dispute = node.runner.healing.divergences.open.get(world.channel)
    return None if dispute is None else dispute.stage


def is_healed(world: SnapshotWorld, node: SimNode) -> bool:
    """Whether the node says that its replica is whole again."""
    return node.runner is not None and node.runner.healing.divergences.healed_total > 0


@pytest.mark.parametrize("trimmed", [False, True])
def test_minority_is_quarantined_and_whole_again(
    monkeypatch: pytest.MonkeyPatch, trimmed: bool
) -> None:
    """S13: found within one report, located, and refetched; the others go on all the time."""
    world = world_of()
    if trimmed:
        world.cut_all()
        world.write(12)
    node = world.followers()[0]
    leader, life = world.leader, world.leader.runner
    located = world.count("divergence_located")
    quarantined = world.count("replica_quarantined")
    seqs = OtherHistory(monkeypatch, world).strike(node, 5, 8)
    world.until(lambda: quarantined[0] > 0, 5_000)
    runner = runner_of(world, node)
    assert runner.stopped_reason is not None
    assert not runner.core.may_vote()
    world.until(lambda: is_healed(world, node), 30_000)
    world.settle()
    assert world.leader is leader
    assert leader.runner is life
    assert runner_of(world, leader).stopped_reason is None
    assert quarantined == [1]
    assert located == [1]
    [line] = world.told("divergence_located")
    assert f"differs_at={seqs[0]}" in line
    assert f"equal_to={seqs[0] - 1}" in line
    world.write(3)
    node.kill("again")
    run(world.cluster, 500)
    node.boot()
    world.settle()


@pytest.mark.parametrize("is_read_by_older", [False, True])
def test_crash_while_it_is_refetched_leaves_it_recovering(
    monkeypatch: pytest.MonkeyPatch, is_read_by_older: bool
) -> None:
    """S0.3: log and table are gone, and what it promised is not: it neither votes nor serves before
    it holds as much again. Versions up to level 5 do not learn that from an empty base."""
    if is_read_by_older:
        monkeypatch.setattr(recovery, "EMPTY_BASE", None)
    world = world_of()
    node = world.followers()[0]
    OtherHistory(monkeypatch, world).strike(node, 5)
    world.until(lambda: stage_of(world, node) is Stage.REFETCHING, 20_000)
    node.kill("while it refetches")
    for other in world.cluster.nodes.values():
        if other is not node:
            world.cluster.network.cut(other.node, node.node)
            world.cluster.network.cut(node.node, other.node)
    node.boot()
    run(world.cluster, 1_000)
    runner = runner_of(world, node)
    assert runner.core.is_recovering
    assert not runner.core.may_vote()
    world.cluster.network.heal()
    world.cluster.reconnect_all()
    world.settle()


def lead_with_another_history(
    monkeypatch: pytest.MonkeyPatch, world: SnapshotWorld, node: SimNode
) -> None:
    """Start the node with a history of its own, and have it elected before the third one is back,
    without which there is no quorum against it."""
    third, other = world.followers()
    third.kill("away")
    other.kill("started anew beside the other history")
    OtherHistory(monkeypatch, world).strike(node, 4)
    other.boot()
    monkeypatch.setattr(runner_of(world, other).core, "may_stand", lambda: False)
    world.until(world.has_leader)
    assert world.leader is node, "the other one may not stand"
    third.boot()


def test_leader_that_differs_steps_down_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """S13: two equal followers against their leader: it leads no more when it is quarantined,
    another one leads, and it is healed like any."""
    world = world_of()
    node = world.leader
    lead_with_another_history(monkeypatch, world, node)
    runner, term = runner_of(world, node), runner_of(world, node).elector.term
    quarantined = world.count("replica_quarantined")
    world.until(lambda: quarantined[0] > 0, 20_000)
    assert runner.stopped_reason is not None
    assert runner.elector.role is not Role.LEADER, "it steps down first of all"
    world.until(world.has_leader)
    assert world.leader is not node
    assert world.leader.runner is not None
    assert runner_of(world, world.leader).elector.term > term
    world.until(lambda: is_healed(world, node), 30_000)
    world.settle()
    assert runner_of(world, node).stopped_reason is None


def test_channel_stops_without_a_majority_for_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """S13: of two replicas that differ nobody knows which one is wrong: neither serves, and both
    say so; the third one shows it when it is back."""
    world = world_of()
    third, node = world.followers()
    third.kill("away")
    run(world.cluster, 2_000)
    OtherHistory(monkeypatch, world).strike(node, 5)
    up = [each for each in world.cluster.nodes.values() if each.is_up]
    world.until(lambda: all(runner_of(world, each).stopped_reason for each in up), 20_000)
    run(world.cluster, 5_000)
    for each in up:
        runner = runner_of(world, each)
        assert "no quorum has one chain hash" in runner.stopped_reason
        assert runner.elector.role is not Role.LEADER
        assert not runner.core.may_vote()
    third.boot()
    world.until(lambda: is_healed(world, node), 60_000)
    world.settle()


def test_older_nodes_cannot_judge_so_the_channel_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """S13 as it was: during an upgrade two histories that differ are left for a person."""
    world = world_of()
    node = world.followers()[0]
    assert node.runner is not None
    monkeypatch.setitem(node.runner.levels.by_node, world.leader.node, CHAIN_HASH_LEVEL - 1)
    runner = runner_of(world, node)
    runner.on_peer_hash(NodeId("n9"), runner.core.commit_seq, b"another history.", 0)
    assert "cannot judge" in runner.stopped_reason


def test_wrong_word_of_a_peer_costs_a_moment() -> None:
    """S13: a peer that reports another hash than a quorum is wrong, and this replica goes on."""
    world = world_of()
    node = world.followers()[0]
    runner = runner_of(world, node)
    wrong, now_ms = b"another history.", node.clock.now_ms()
    runner.on_peer_hash(world.leader.node, runner.core.commit_seq, wrong, now_ms)
    assert runner.core.is_disputed
    node._after_step()
    world.until(lambda: not runner.core.is_disputed, 5_000)
    assert runner.stopped_reason is None
    assert node.runner is not None
    assert node.runner.healing.divergences.open == {}
    assert world.told("replica_diverged")
