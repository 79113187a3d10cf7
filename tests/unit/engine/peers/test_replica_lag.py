"""BLOG-31, which the article asked for: a bound on how far a replica may fall behind."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import ReplicationSettings
from raftstore.engine.node_runner import REPLICATION_KINDS
from raftstore.protocol.admin import EditTable, Events, EventsAnswer, StepDown
from raftstore.protocol.message import Done, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import Outcome
from tests.unit.engine.engine_world import ask, calm_cluster, error_class, publish, run

BOUND = 3
PATIENCE_MS = ReplicationSettings().lag_patience_ms


class Scene:
    """A calm cluster whose table bounds its replicas' lag, and a disk that can stand still."""

    def __init__(self, bound: int | None) -> None:
        self.cluster, self.channel = calm_cluster()
        self.leader = self.cluster.leaders()[self.channel]
        self.slow = next(node for node in self.cluster.nodes.values() if node is not self.leader)
        self._written = 0
        if bound is not None:
            [done] = self.edit(max_replica_lag=bound)
            assert isinstance(done, Done)

    def edit(self, **changes: Any) -> list[Message]:
        """Change the table's properties, as an operator does."""
        node = self.cluster.leaders()[self.runner(self.leader).metadata_channel]
        table = self.runner(node).controller.catalog.table_of(self.channel)
        assert table is not None
        answers = ask(self.cluster, node, EditTable(1, table.name, table.uuid, changes, 2_000))
        run(self.cluster, 1_000)
        return answers

    @staticmethod
    def runner(node: SimNode) -> Any:
        """The node that runs there."""
        assert node.runner is not None
        return node.runner

    def write(self) -> PubAck | PubReject:
        """One row more; its answer."""
        self._written += 1
        key = b"k%d" % self._written
        payload = encode_rows([(key, seal(key, b"\x91\x01"))])
        message = publish(self.cluster, self.leader, self.channel, self._written, payload)
        answers = ask(self.cluster, self.leader, message)
        run(self.cluster, 200)
        [answer] = answers
        assert isinstance(answer, (PubAck, PubReject))
        return answer

    def stall(self) -> None:
        """The slow replica stores nothing any more; everything else of it goes on."""
        self.slow._start_sync = lambda: None  # type: ignore[method-assign]

    def go_on(self) -> None:
        """Its disk works again."""
        del self.slow._start_sync  # type: ignore[method-assign]
        self.slow._start_sync()

    def events(self) -> list[str]:
        """The leader's events about replicas that lag, in order."""
        types = ("replica_waited_for", "replica_left_behind", "replica_within_bound")
        answers = ask(self.cluster, self.leader, Events(9, 0, types, 100))
        run(self.cluster, 100)
        [answer] = answers
        assert isinstance(answer, EventsAnswer)
        return [event["type"] for event in answer.events]


@pytest.fixture
def scene() -> Scene:
    """With the bound."""
    return Scene(BOUND)


def test_blog_31_writes_wait_for_a_live_replica_that_is_further_behind(scene: Scene) -> None:
    """The publisher is asked to come back, and nothing of the write is kept (NOT_APPLIED)."""
    scene.stall()
    for _ in range(BOUND + 1):  # at the bound is within it
        assert isinstance(scene.write(), PubAck)
    refused = scene.write()
    assert isinstance(refused, PubReject)
    assert refused.code == "overloaded"
    assert error_class(refused.code).outcome is Outcome.NOT_APPLIED
    assert "4 rows behind, the table's max_replica_lag is 3" in refused.message
    assert scene.events() == ["replica_waited_for"]
    assert scene.runner(scene.leader).lag_guard.refused == 1

    scene.go_on()
    run(scene.cluster, 1_000)
    assert isinstance(scene.write(), PubAck)
    assert scene.events() == ["replica_waited_for", "replica_within_bound"]


def test_replica_that_stays_behind_is_left_until_it_has_caught_up(scene: Scene) -> None:
    """One sick disk slows a table down for ``replication.lag_patience_ms``, never longer."""
    scene.stall()
    for _ in range(BOUND + 2):
        scene.write()
    run(scene.cluster, PATIENCE_MS)
    for _ in range(5):
        assert isinstance(scene.write(), PubAck)
    assert scene.events() == ["replica_waited_for", "replica_left_behind"]

    scene.go_on()
    run(scene.cluster, 1_000)
    assert isinstance(scene.write(), PubAck)
    assert scene.events()[-1] == "replica_within_bound"
    scene.stall()
    for _ in range(BOUND + 1):
        assert isinstance(scene.write(), PubAck)
    assert isinstance(scene.write(), PubReject), "it is waited for again"


def test_dead_replica_is_not_waited_for(scene: Scene) -> None:
    """It catches up when it is back; until then a quorum writes on as ever."""
    scene.slow.crash("test")
    run(scene.cluster, 5_000)
    for _ in range(3 * BOUND):
        assert isinstance(scene.write(), PubAck)
    assert scene.events() == []


def test_new_leader_waits_for_nobody_of_whom_it_has_heard_nothing(scene: Scene) -> None:
    """S3.4: its followers' matches start at nothing, which is no measure of how far they are."""
    for _ in range(3 * BOUND):
        assert isinstance(scene.write(), PubAck)
    before, send = scene.leader, scene.cluster.network.send

    def without_acks(sender: str, receiver: str, message: Message) -> None:
        if sender != scene.slow.node or type(message) not in REPLICATION_KINDS:
            send(sender, receiver, message)

    scene.cluster.network.send = without_acks  # type: ignore[method-assign]
    third = next(node for node in scene.cluster.nodes.values() if node not in (before, scene.slow))
    ask(scene.cluster, before, StepDown(5, scene.channel, third.node, 2_000))
    run(scene.cluster, 3_000)
    scene.leader = scene.cluster.leaders()[scene.channel]
    assert scene.leader is third
    assert isinstance(scene.write(), PubAck)


def test_table_without_the_bound_waits_for_no_replica() -> None:
    """The default: the quickest majority writes, and reads avoid replicas that are behind."""
    scene = Scene(None)
    scene.stall()
    for _ in range(5 * BOUND):
        assert isinstance(scene.write(), PubAck)


def test_bound_that_is_removed_holds_nobody_back(scene: Scene) -> None:
    """``raftstore table edit --max-replica-lag none`` works while writers wait."""
    scene.stall()
    for _ in range(BOUND + 1):
        scene.write()
    assert isinstance(scene.write(), PubReject)
    scene.edit(max_replica_lag=None)
    assert isinstance(scene.write(), PubAck)
