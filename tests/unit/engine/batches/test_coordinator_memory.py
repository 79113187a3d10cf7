"""A coordinator's volatile state follows its applied state, is bounded and causes no idle work."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from raftstore.config import BatchSettings
from raftstore.engine.batches.coordinated_table import CoordinatedTable
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_runner import NodeRunner
from raftstore.ports.tables import TableStore
from raftstore.protocol.admin import StepDown
from raftstore.protocol.batches import ALREADY, APPEND, ChannelPart, Manifest, Writers
from raftstore.protocol.publish import PubReject
from raftstore.state_machines.batches.coordinator import apply_txn
from raftstore.state_machines.batches.txn_records import (
    AnyStep,
    Begin,
    Commit,
    Trim,
    decode_step,
    encode_step,
)
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, RecordKind, channel_id, make_guid
from tests.batch_bench import DictState
from tests.core_bench import record
from tests.unit.engine.batch_world import BatchWorld
from tests.unit.engine.engine_world import ask, run

SETTINGS = BatchSettings()


class _Tables:
    """The state of one channel."""

    def __init__(self) -> None:
        self.state = DictState()
        self.seq = 0

    def state_get(self, _channel: ChannelId, key: bytes) -> bytes | None:
        return self.state.get(key)

    def state_scan(
        self, _channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        return self.state.scan(start, stop, limit)

    def apply(self, step: AnyStep) -> None:
        """One record of the coordinator."""
        self.seq += 1
        made = record(self.seq, kind=RecordKind.TXN, payload=encode_step(step))
        self.state.write(apply_txn(made, self.state).state_writes)


@pytest.fixture
def tables() -> _Tables:
    """A decided batch that waits for partition 1."""
    made = _Tables()
    made.apply(Begin("w", 1, b"u" * 16, "", one_shot=False, ttl_ms=1_000, partitions=2))
    part = ChannelPart(1, 1, 1, 10, 5)
    made.apply(Commit("w", 1, 1, Manifest(APPEND, ((0, 0),), (part,), 1), b"d", 0))
    return made


@pytest.fixture
def table(tables: _Tables) -> CoordinatedTable:
    """The coordinator's state after it pushed one commit to its channel."""
    runner = SimpleNamespace(channel=channel_id(b"t" * 16, 0), elector=SimpleNamespace(term=3))
    made = CoordinatedTable(cast(ChannelRunner, runner), cast(TableStore, tables), SETTINGS)
    made.scan_writers(0)
    assert [partition for partition, _ in made.next_pushes(0)] == [1]
    return made


def test_commit_that_waits_for_a_channel_wakes_nobody_but_to_push(table: CoordinatedTable) -> None:
    """However long it waits: a moment that is past, and stays so, would keep the node busy."""
    now_ms = 0
    for _ in range(100):
        due_ms = table.next_deadline_ms(now_ms)
        assert due_ms is not None
        assert due_ms > now_ms
        now_ms = due_ms
        assert not table.trim_due(now_ms)
        list(table.next_pushes(now_ms))
    assert now_ms > 2 * SETTINGS.ask_ms


def test_acknowledgement_is_written_down_after_a_while(table: CoordinatedTable) -> None:
    """Nothing else is pushed then, and the outbox of an idle table becomes empty."""
    table.stepped_ms = 1_000
    assert table.ack(1, 1)
    assert table.next_deadline_ms(1_000) == 1_000 + SETTINGS.ask_ms
    assert table.news() == ((1, 1),)
    assert table.trim_due(1_000 + SETTINGS.ask_ms)


def test_push_ends_with_what_an_earlier_leader_wrote_down(
    table: CoordinatedTable, tables: _Tables
) -> None:
    """Its record is applied late: then the answer is waited for no more, and may never come."""
    tables.apply(Trim(((1, 1),)))
    table.refresh()
    assert table.pushes == {}
    assert table.next_deadline_ms(10**6) is None
    assert table.is_everywhere(1)


def test_attempts_are_remembered_while_they_are_open(table: CoordinatedTable) -> None:
    """One for each writer, and none that is decided, whatever their time to live."""
    for attempt in range(2, 1_000):
        table.touch(attempt, "other", 10**12, 0)
    table.touch(5, "other", 1, 0)  # reported late
    assert table.take_expired(10**6) == []
    table.settle(5)
    table.ack(1, 1)
    assert table.next_deadline_ms(0) == min(10**12, SETTINGS.ask_ms)
    table.settle(999)
    table.stepped_ms = 10**13
    assert table.next_deadline_ms(0) == 10**13 + SETTINGS.ask_ms


@pytest.mark.slow
def test_end_of_an_attempt_is_asked_for_until_it_is_ended() -> None:
    """A leader that refuses records for a moment refuses that one, too."""
    world = BatchWorld.start()
    proposals = _runner(world.leader(0)).controller.proposals
    propose, refused = proposals.propose, list[bytes]()

    def refusing(
        runner: ChannelRunner,
        payload: bytes,
        on_outcome: Callable[..., None],
        now_ms: int,
        **_more: object,
    ) -> None:
        refused.append(payload)
        reject = PubReject(
            runner.channel, runner.elector.term, make_guid(b"session!", 1), "overloaded", "full"
        )
        on_outcome(reject, now_ms)

    world.tell(world.begin_request(1, ttl_ms=20_000))
    proposals.propose = refusing  # type: ignore[method-assign]
    run(world.cluster, 25_000)
    assert [type(decode_step(payload)).__name__ for payload in refused] == ["Close"]
    proposals.propose = propose  # type: ignore[method-assign]
    run(world.cluster, 2 * SETTINGS.ask_ms)
    [answer] = world.tell(Writers(900, world.channels[0], 1_000))
    assert answer.writers[0].open_attempt == -1  # type: ignore[attr-defined]


@pytest.mark.slow
def test_success_waits_also_when_the_state_is_ahead_of_what_was_reported() -> None:
    """Rule 5: the thread that applies is a step ahead of the one that learns of it."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"b": b"2"})
    coordinator = world.leader(0)
    reported: list[Callable[[], None]] = []
    runner, send = _runner(coordinator), world.cluster.network.send
    on_applied = runner.on_applied

    def later(*told: object) -> None:
        reported.append(lambda: on_applied(*told))  # type: ignore[arg-type]

    def without_partition_1(sender: str, receiver: str, message: object) -> None:
        if getattr(message, "channel", None) != world.channels[1]:
            send(sender, receiver, message)  # type: ignore[arg-type]

    world.cluster.network.send = without_partition_1  # type: ignore[method-assign]
    runner.on_applied = later  # type: ignore[method-assign,assignment]
    commit = world.commit_request(attempt, 1)
    committing = ask(world.cluster, coordinator, commit)
    run(world.cluster, 1_000)
    replaying = ask(world.cluster, coordinator, world.begin_request(1, b"b" * 16), commit)
    run(world.cluster, 1_000)
    assert reported
    assert (committing, replaying) == ([], [])
    runner.on_applied = on_applied  # type: ignore[method-assign]
    world.cluster.network.send = send  # type: ignore[method-assign]
    for report in reported:
        report()
    run(world.cluster, 20_000)
    assert world.begin(1, b"c" * 16).verdict == ALREADY
    assert world.get(1, b"b") == [b"2"]


def _runner(node: SimNode) -> NodeRunner:
    assert node.runner is not None
    return node.runner


class _Brake:
    """Applies on a node only as many steps as it is asked to."""

    def __init__(self, node: SimNode) -> None:
        self.node, self.steps, self.go_on = node, 0, node._start_apply
        node._start_apply = self._start  # type: ignore[method-assign]

    def _start(self) -> None:
        if self.steps:
            self.steps -= 1
            self.go_on()

    def release(self, steps: int) -> None:
        """Some more."""
        self.steps = steps
        if self.node.is_up:
            self.node._after_step()


@pytest.mark.slow
def test_first_batch_of_a_table_is_applied_by_a_leader_that_applies_it_late() -> None:
    """L1: without a driver, too; its leadership begins while earlier records are not applied."""
    world = BatchWorld.start()
    coordinator = world.leader(0)
    # It leads the other channel itself: who applies late could not say that the rows are there.
    move = StepDown(1, world.channels[1], coordinator.node, timeout_ms=5_000)
    ask(world.cluster, world.leader(1), move)
    run(world.cluster, 5_000)
    assert world.leader(1) is coordinator
    brakes = [_Brake(node) for node in world.cluster.nodes.values() if node is not coordinator]
    world.stage(99, 0, {b"x": b"1"}, writer="other")  # applied before anything of a batch is
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"b": b"2"})
    _Brake(coordinator)  # it decides the batch, and pushes it to no channel
    ask(world.cluster, coordinator, world.commit_request(attempt, 1))
    end = world.seqs(0)
    core = _runner(coordinator).channels[world.channels[0]].core
    while core.commit_seq <= end:
        run(world.cluster, 1)
    coordinator.crash("test")
    run(world.cluster, 30_000)
    assert world.leader(0) is not coordinator
    for steps in (1, 1, 10**6):
        for brake in brakes:
            brake.release(steps)
        run(world.cluster, 5_000)
    assert world.get(1, b"b") == [b"2"]
