"""Outcomes of old writes go in a simulated cluster: on all replicas alike, and not too early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from raftstore.protocol.batches import TRUNCATE
from raftstore.protocol.changes import ChangeEnds, ChangeEndsAnswer, Changes, ChangesAnswer
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_conditional
from raftstore.protocol.publish import PubAck
from raftstore.protocol.trimming import encode_trim
from raftstore.rows.sealing import seal
from raftstore.state_machines.state_keys import (
    APPLIED_BATCHES,
    outcome_key,
    seq_of_outcome,
)
from raftstore.state_machines.trimmed_outcomes import trimmed_to
from raftstore.testing.sim_node import SimNode
from raftstore.types import RecordKind, Seq
from tests.unit.engine.batch_world import BatchWorld
from tests.unit.engine.channel.test_levels import reinstall
from tests.unit.engine.engine_world import ask, publish, run

TRIMMED_MS = 15_000
"""Logs are trimmed, replicas asked, records made and applied; what is held is looked at again."""


class World(BatchWorld):
    """One channel on three nodes that trim all the time."""

    @property
    def nodes(self) -> list[SimNode]:
        return list(self.cluster.nodes.values())

    @property
    def follower(self) -> SimNode:
        """One of them."""
        return next(node for node in self.nodes if node is not self.leader())

    def conditional(self, count: int) -> None:
        """Writes on a condition, of one row; none of them but the first holds."""
        for _ in range(count):
            self.counter += 1
            payload = encode_conditional(b"k", seal(b"k", b"value"), Seq(0))
            message = publish(
                self.cluster, self.leader(), self.channels[0], self.counter, payload,
                kind=RecordKind.CONDITIONAL,
            )  # fmt: skip
            [answer] = self.tell(message, ms=100)
            assert isinstance(answer, PubAck)

    def base(self, node: SimNode) -> int:
        """Of its log."""
        return node.runner.channels[self.channels[0]].core.base.seq

    def outcomes(self, node: SimNode) -> list[int]:
        """The seqs of what it keeps beside the rows for readers of changes."""
        kept = node.tables.state_scan(self.channels[0], APPLIED_BATCHES, b"\x02\x04", 10**6)
        seqs = [seq_of_outcome(key) for key, _ in kept]
        return [seq for seq in seqs if seq is not None]

    def trimmed(self, node: SimNode) -> int:
        """Up to which seq its outcomes are trimmed."""
        channel = self.channels[0]
        return trimmed_to(lambda key: node.tables.state_get(channel, key))

    def trims(self) -> int:
        """Records of the kind in the leader's log."""
        runner = self.leader().runner.channels[self.channels[0]]
        read = runner.parts.log.read(
            self.channels[0], Seq(runner.core.base.seq + 1), bytes_max=10**9,
            to_seq=runner.core.last_seq,
        )  # fmt: skip
        return sum(record.kind is RecordKind.TRIM_OUTCOMES for record in read)

    def are_equal(self) -> bool:
        """Whether all replicas hold the same, the outcomes included."""
        channel = self.channels[0]
        hashes = {node.tables.content_hash(channel) for node in self.nodes}
        kept = {tuple(self.outcomes(node)) for node in self.nodes}
        return len(hashes) == len(kept) == 1

    def ask(self, node: SimNode, message: Message) -> Any:
        """One question to any node."""
        answers = ask(self.cluster, node, message)
        run(self.cluster, 100)
        [answer] = answers
        return answer


@pytest.fixture
def world() -> Iterator[World]:
    """Three healthy nodes."""
    found = World.start(partitions=1, retention=True)
    assert isinstance(found, World)
    return found


@pytest.mark.slow
def test_s6_7_outcomes_go_on_all_replicas_behind_the_logs(world: World) -> None:
    """Those of conditional writes where no batch ever comes; then nothing is written any more."""
    world.conditional(60)
    assert world.outcomes(world.leader())
    run(world.cluster, TRIMMED_MS)
    assert world.are_equal()
    for node in world.nodes:
        assert 40 < world.trimmed(node) <= world.base(node)
        assert world.outcomes(node) == [s for s in world.outcomes(node) if s > world.trimmed(node)]
        assert len(world.outcomes(node)) <= 20
    assert sum(node.runner.retention.outcome_trimmer.trimmed_total for node in world.nodes) > 20
    end = world.seqs()
    run(world.cluster, 60_000)
    assert world.seqs() == end, "an idle channel writes nothing"


@pytest.mark.slow
def test_i1_outcomes_of_batches_go_and_later_batches_come(world: World) -> None:
    """A restart of everything comes in between, and batches that replace the table."""
    for number in range(30):
        mode = {"mode": TRUNCATE} if number % 7 == 6 else {}
        opened = world.begin(number)
        world.stage(opened.attempt, 0, {b"%d" % number: b"row"})
        world.commit(opened.attempt, number, **mode)
        if number == 15:
            for node in world.nodes:
                node.crash("power")
            for node in world.nodes:
                node.boot()
            run(world.cluster, 10_000)
    run(world.cluster, TRIMMED_MS)
    assert world.are_equal()
    assert all(world.trimmed(node) > 0 for node in world.nodes)
    assert all(len(world.outcomes(node)) < 10 for node in world.nodes)
    assert world.get(0, b"26", b"28", b"29") == [None, b"row", b"row"]


@pytest.mark.slow
def test_s6_6_every_replica_refuses_changes_whose_outcomes_are_trimmed(world: World) -> None:
    """The one whose log still has the records, too; behind them all answer the same."""
    world.conditional(60)
    run(world.cluster, TRIMMED_MS)
    channel, trimmed = world.channels[0], world.trimmed(world.leader())
    for node in world.nodes:
        assert node.runner is not None
        runner = node.runner.channels[channel]
        first = max(trimmed, runner.core.base.seq)
        refused = world.ask(node, Changes(9, channel, Seq(first - 1), 0, Seq(0), 9, 10**6, 1_000))
        assert isinstance(refused, Failed)
        assert refused.code == "data_loss"
        assert f"the oldest begin behind seq {first};" in refused.message
        ends = world.ask(node, ChangeEnds(10, channel, Seq(0), Seq(0), 0, 1_000))
        assert isinstance(ends, ChangeEndsAnswer)
        assert ends.first == first
        told = world.ask(node, Changes(11, channel, ends.first, 0, Seq(0), 9, 10**6, 1_000))
        assert isinstance(told, ChangesAnswer)
        assert told.after == ends.applied


@pytest.mark.slow
def test_reader_at_a_follower_holds_the_outcomes_of_its_log(world: World) -> None:
    """The leader's own log is trimmed meanwhile; a reader that went away holds nothing."""
    channel, follower = world.channels[0], world.follower
    assert follower.runner is not None
    follower.runner.retention.floors._settings = replace(
        follower.runner.retention.floors._settings, reader_bytes=10**6, log_bytes_max=10**6
    )
    start = world.seqs()
    for _ in range(3):
        told = world.ask(follower, Changes(9, channel, Seq(start), 0, Seq(0), 1, 1, 1_000))
        assert isinstance(told, ChangesAnswer)
        world.conditional(30)
    run(world.cluster, TRIMMED_MS)
    assert world.base(world.leader()) > start >= world.base(follower)
    assert world.trimmed(follower) <= start
    told = world.ask(follower, Changes(9, channel, Seq(start), 0, Seq(0), 999, 10**6, 1_000))
    assert isinstance(told, ChangesAnswer)
    assert told.after == world.seqs()
    run(world.cluster, 120_000)
    world.conditional(1)
    run(world.cluster, TRIMMED_MS)
    assert world.trimmed(follower) == world.trimmed(world.leader()) > start


@pytest.mark.slow
def test_replica_that_is_down_holds_nothing_and_comes_back_equal(world: World) -> None:
    """It applies the same records, or gets a table in which they are applied."""
    down = world.follower
    world.conditional(10)
    down.kill("it is away")
    run(world.cluster, 5_000)
    world.conditional(60)
    run(world.cluster, TRIMMED_MS)
    assert world.trimmed(world.leader()) > 0
    down.boot()
    run(world.cluster, TRIMMED_MS)
    assert world.are_equal()
    assert world.trimmed(down) > 0


@pytest.mark.slow
def test_outcomes_stay_while_a_node_is_of_an_older_version(world: World) -> None:
    """It would stop at the record, and is sent no question that it does not know."""
    old = world.follower
    reinstall(world.cluster, old, 5)
    world.conditional(60)
    run(world.cluster, TRIMMED_MS)
    assert world.base(world.leader()) > 0
    assert world.trims() == 0
    assert world.trimmed(world.leader()) == 0
    reinstall(world.cluster, old, 6)
    run(world.cluster, TRIMMED_MS)
    assert world.are_equal()
    assert world.trimmed(old) > 0


@pytest.mark.slow
def test_client_cannot_trim_outcomes(world: World) -> None:
    """The record is the leader's."""
    world.conditional(1)
    payload = encode_trim(Seq(1), [outcome_key(1)])
    message = publish(
        world.cluster, world.leader(), world.channels[0], 999, payload,
        kind=RecordKind.TRIM_OUTCOMES,
    )  # fmt: skip
    [answer] = world.tell(message)
    assert not isinstance(answer, PubAck)
    assert world.trims() == 0
