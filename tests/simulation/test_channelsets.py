"""State machines of users in simulated clusters: exactly once, stops, skips and versions."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from raftstore.client.writes.kinds import Write
from raftstore.config import LEVEL
from raftstore.engine.catalog.machine_steps import ASK_AGAIN_MS, REPORTS_MISSED_MAX
from raftstore.errors import (
    GuidExpiredError,
    MachineStoppedError,
    RequestError,
    SchemaError,
    UnknownMachineError,
)
from raftstore.machine import MemoryMachine, StateMachine
from raftstore.policy.levels import MACHINE_LIMITS_LEVEL, newest_limits
from raftstore.ports.machine import NoMachines
from raftstore.ports.tables import TableStore
from raftstore.protocol.machines import (
    LIMITS,
    CommandAck,
    SkipCommand,
    Step,
    encode_command,
    encode_step,
)
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.record_machine import MachineRules, MachineSource
from raftstore.rows.sealing import seal
from raftstore.state_machines.machine_state import read_head, read_limits
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import SimOptions, draw_options
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_publisher import SimPublisher
from raftstore.types import NodeId, Outcome, RecordKind, Role, Seq
from tests.unit.state_machines.test_user_machine import INT, Counter, Mended, Tally

pytestmark = pytest.mark.slow

WAIT_MS = 60_000.0
RULES = MachineRules(results_kept=40, journal_bytes=400)
"""So few that results go and snapshots come within a world."""


class Installed(NoMachines):
    """ports.Machines of all nodes of a world; what is installed may be changed."""

    def __init__(self, code: type[StateMachine]) -> None:
        self.rules = RULES
        self.code = code

    def load(self, name: str) -> MachineSource:
        """The code, whatever it is called."""
        if name == "missing:Class":
            raise UnknownMachineError("no module named 'missing'")
        return MachineSource(name, self.code, self.code.version, self.code.oldest_version)


class World:
    """One channel set of one partition, with one sender of commands."""

    def __init__(self, code: type[StateMachine], options: SimOptions, level: int = LEVEL) -> None:
        self.machines = Installed(code)
        self.cluster = cluster = SimCluster(options, machines=self.machines)
        self.publisher = SimPublisher(cluster, random.Random(options.seed), self._deliver)
        self.answers: list[Message] = []
        cluster.add_client("publisher", 1, self._on_message)
        cluster.add_client("operator", 77, lambda _, message: self.answers.append(message))
        for node in cluster.nodes.values():
            node.level = level
        cluster.start()
        cluster.create_table(1, "counters:Counter")
        self.wait(lambda: bool(cluster.table_channels))
        (self.channel,) = cluster.table_channels

    def wait(self, ready: Callable[[], bool]) -> None:
        """Until it is so."""
        scheduler = self.cluster.scheduler
        scheduler.run_until(scheduler.now_ms + WAIT_MS, ready)
        assert ready()

    def run(self, for_ms: float) -> None:
        """Let so much time pass."""
        scheduler = self.cluster.scheduler
        scheduler.run_until(scheduler.now_ms + for_ms, lambda: False)

    def _deliver(self, node: NodeId, message: PubMsg) -> None:
        self.cluster.network.send("publisher", node, message)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self.cluster.oracle.on_ack(message.channel, message)
        self.publisher.on_message(sender, message)

    def send(self, write: Write, timeout_ms: float = WAIT_MS) -> PubAck | RequestError:
        """Publish; the outcome."""
        ends: list[PubAck | RequestError] = []
        self.publisher.publish(write, timeout_ms, ends.append)
        self.wait(lambda: bool(ends))
        return ends[0]

    def command(self, value: int, timeout_ms: float = WAIT_MS) -> PubAck | RequestError:
        """Send a number to the counter."""
        payload = encode_command(b"k", INT.encode(value))
        return self.send(Write(self.channel, RecordKind.MACHINE_COMMAND, payload, 1), timeout_ms)

    def total(self, value: int) -> int:
        """Send a number that is taken; the sum."""
        answer = self.command(value)
        assert isinstance(answer, CommandAck), answer
        assert not answer.is_rejected, answer.reason
        return int(INT.decode(answer.result))

    def skip(self, seq: int) -> Done | Failed:
        """Ask the leader to skip the command at a seq."""
        self.answers.clear()
        self.wait(lambda: self.cluster.believed_leader(self.channel) is not None)
        leader = self.cluster.believed_leader(self.channel)
        assert leader is not None
        self.cluster.network.send("operator", leader[0], SkipCommand(9, self.channel, Seq(seq)))
        self.wait(lambda: bool(self.answers))
        answer = self.answers[0]
        assert isinstance(answer, Done | Failed)
        self.run(500.0)
        return answer

    def restart(self, code: type[StateMachine], levels: Sequence[int] = (LEVEL,) * 3) -> None:
        """All nodes end, and come back with other code, or as another version of raftstore."""
        self.machines.code = code
        for node in self.cluster.node_ids:
            self.cluster.nodes[node].kill("another version comes")
        for node, level in zip(self.cluster.node_ids, levels, strict=True):
            self.cluster.nodes[node].level = level
            self.cluster.nodes[node].boot()

    def limits(self) -> list[int]:
        """The limits of commands in force at each node."""
        return [
            read_limits(partial(tables.state_get, self.channel)).number for tables in self._tables()
        ]

    def applied(self) -> list[Seq]:
        """The applied seq of each node."""
        return [tables.applied_seq(self.channel) for tables in self._tables()]

    def _tables(self) -> list[TableStore]:
        runners = [self.cluster.nodes[node].runner for node in self.cluster.node_ids]
        return [runner.parts.tables for runner in runners if runner is not None]

    def lines(self) -> list[str]:
        """The events of the world."""
        return self.cluster.lines

    def stops(self) -> list[str]:
        """Where and why machines are stopped, at each node."""
        found = []
        for node in self.cluster.node_ids:
            runner = self.cluster.nodes[node].runner
            commands = runner and runner.channels[self.channel].commands
            if commands and commands.stop is not None:
                found.append(f"{commands.stop.seq}: {commands.stop.reason}")
        return found

    def metric(self, name: str) -> list[float]:
        """The value of a metric at each node."""
        runners = [self.cluster.nodes[node].runner for node in self.cluster.node_ids]
        samples = [runner.reports.metrics()[0] for runner in runners if runner is not None]
        return [value for each in samples for sample, _, value in each if sample == name]


def calm(seed: int = 1) -> SimOptions:
    """A world without faults."""
    return SimOptions(seed=seed, nodes=3, partitions=1)


@pytest.mark.parametrize("code", [Counter, Tally])
@pytest.mark.parametrize("seed", [3, 11])
def test_every_command_counts_once_whatever_fails(code: type[StateMachine], seed: int) -> None:
    """N6: the state is at least what was acknowledged, and at most that and what is in doubt;
    results are those of an order in which each command was applied once."""
    world = World(code, replace(draw_options(seed), partitions=1, seed=seed))
    nemesis = Nemesis(world.cluster, world.cluster.options)
    nemesis.start()
    known, doubted = 0, 0
    for _ in range(40):
        answer = world.command(1, timeout_ms=3_000.0)
        if isinstance(answer, CommandAck):
            known += 1
            total = INT.decode(answer.result)
            assert known <= total <= known + doubted
        elif isinstance(answer, RequestError) and answer.outcome is Outcome.UNKNOWN:
            doubted += 1
    nemesis.heal()
    assert known <= world.total(0) <= known + doubted
    world.wait(world.cluster.replicas_are_equal)
    world.cluster.check_final()
    assert known


def test_a_result_is_the_same_after_every_node_was_restarted() -> None:
    """It is in the state, so a retry that comes later is answered alike."""
    world = World(Counter, calm())
    payload = encode_command(b"k", INT.encode(5))
    write = Write(world.channel, RecordKind.MACHINE_COMMAND, payload, 1)
    first = world.send(write)
    assert isinstance(first, CommandAck)
    world.total(1)
    world.restart(Counter)
    sent = retry_of(world, first, write)
    assert isinstance(sent, CommandAck)
    assert (sent.result, sent.last_seq) == (first.result, first.last_seq)
    assert world.total(0) == 6


def test_a_retry_behind_the_kept_results_is_unknown_and_never_applied_again() -> None:
    """S4.5: the log knows the guid for longer than the machine keeps its result, and behind both
    windows it is still no new command: its sender is answered that the outcome is unknown."""
    world = World(Counter, calm())
    payload = encode_command(b"k", INT.encode(5))
    write = Write(world.channel, RecordKind.MACHINE_COMMAND, payload, 1)
    first = world.send(write)
    assert isinstance(first, CommandAck)
    for _ in range(RULES.results_kept - 1):
        world.total(0)
    kept = retry_of(world, first, write)
    assert isinstance(kept, CommandAck), "the oldest that is kept"
    assert kept.result == first.result
    world.total(0)
    gone = retry_of(world, first, write)
    assert isinstance(gone, PubReject)
    assert gone.code == GuidExpiredError.code
    assert GuidExpiredError.outcome is Outcome.UNKNOWN
    assert f"the command was applied at seq {first.last_seq}" in gone.message
    world.restart(Counter)
    again = retry_of(world, first, write)
    assert isinstance(again, PubReject)
    assert again.code == GuidExpiredError.code
    assert world.total(0) == 5, "it was applied once"


def retry_of(world: World, ack: PubAck, write: Write) -> Message:
    """Send the same again by hand, to the present leader; its answer about the write."""
    found: list[Message] = []
    world.cluster.add_client("late", 78, lambda _, message: found.append(message))
    digest = hashlib.blake2b(write.payload, digest_size=16).digest()
    for attempt in range(1, 40):
        leader = world.cluster.believed_leader(world.channel)
        if leader is not None:
            message = PubMsg(
                world.channel, leader[1], leader[0], ack.guid, digest, 1,
                RecordKind.MACHINE_COMMAND, write.payload, attempt=attempt,
            )  # fmt: skip
            world.cluster.network.send("late", leader[0], message)
        world.run(500.0)
        known = [m for m in found if isinstance(m, CommandAck) or _is_final(m)]
        if known:
            return known[0]
    raise AssertionError(f"nobody answered: {found}")


def _is_final(message: Message) -> bool:
    return isinstance(message, PubReject) and message.code == GuidExpiredError.code


def test_a_command_that_cannot_be_applied_stops_its_partition_until_the_code_is_mended() -> None:
    """No node ends, nothing behind it is applied, new commands are refused with the reason, and
    mended code goes on where the former stopped."""
    world = World(Counter, calm())
    assert world.total(1) == 1
    stuck = world.command(666, timeout_ms=4_000.0)
    assert isinstance(stuck, RequestError)
    assert stuck.outcome is Outcome.UNKNOWN
    world.wait(lambda: len(world.stops()) == 3)
    assert len(set(world.stops())) == 1
    assert "ValueError: no such luck" in world.stops()[0]
    refused = world.command(1, timeout_ms=1_000.0)
    assert isinstance(refused, RequestError)
    assert "the state machine stopped at seq" in str(refused)
    assert isinstance(refused, MachineStoppedError) or refused.code == "timeout"
    assert world.metric("raftstore_machine_partitions_stopped") == [1.0] * 3
    world.restart(Mended)
    assert world.total(1) == 667
    assert world.stops() == []
    assert world.metric("raftstore_machine_partitions_stopped") == [0.0] * 3
    assert world.metric("raftstore_machine_partitions") == [1.0] * 3


def test_limits_come_into_force_when_the_last_node_knows_them() -> None:
    """A node of the version before applies commands meanwhile as it always did, and so do all."""
    world = World(Counter, calm(), level=MACHINE_LIMITS_LEVEL - 1)
    world.restart(Counter, levels=(LEVEL, LEVEL, MACHINE_LIMITS_LEVEL - 1))
    world.run(3 * ASK_AGAIN_MS)
    world.total(1)
    assert world.limits() == [0, 0, 0]
    older = MACHINE_LIMITS_LEVEL
    world.restart(Counter, levels=(LEVEL, older, LEVEL))
    world.wait(lambda: world.limits() == [newest_limits([older])] * 3)
    world.run(3 * ASK_AGAIN_MS)
    assert world.limits() == [newest_limits([older])] * 3 != [LIMITS] * 3
    world.restart(Counter, levels=(LEVEL,) * 3)
    world.wait(lambda: world.limits() == [LIMITS] * 3)
    assert world.total(1) == 2
    world.wait(world.cluster.replicas_are_equal)
    before = world.applied()
    world.run(3 * ASK_AGAIN_MS)
    assert world.applied() == before, "they are proposed once"


def test_an_operator_has_a_command_skipped_at_every_replica() -> None:
    """All of them go on, and only the command at which they stand may be named."""
    world = World(Tally, calm())
    assert world.total(1) == 1
    world.command(666, timeout_ms=4_000.0)
    world.wait(lambda: len(world.stops()) == 3)
    seq = int(world.stops()[0].partition(":")[0])
    wrong = world.skip(seq + 1)
    assert isinstance(wrong, Failed)
    assert f"stopped at seq {seq}, so seq {seq + 1} is not skipped" in wrong.message
    answers = [world.skip(seq) for _ in range(20) if world.stops()]
    assert isinstance(answers[-1], Done), answers
    assert world.total(1) == 2
    world.wait(world.cluster.replicas_are_equal)
    assert world.stops() == []
    world.restart(Tally)
    assert world.total(1) == 3


def with_one_away() -> tuple[World, int, NodeId]:
    """A world whose machines stopped; then a follower ended, and mended code was installed."""
    world = World(Counter, calm())
    world.command(666, timeout_ms=4_000.0)
    world.wait(lambda: len(world.stops()) == 3)
    seq = int(world.stops()[0].partition(":")[0])
    leader = world.cluster.believed_leader(world.channel)
    assert leader is not None
    other = next(node for node in world.cluster.node_ids if node != leader[0])
    world.cluster.nodes[other].kill("mended code comes")
    world.machines.code = Mended
    return world, seq, other


def test_a_replica_that_can_apply_what_stopped_the_others_is_given_the_leadership() -> None:
    """S9: commands are taken again before the other nodes are restarted."""
    world, _, other = with_one_away()
    world.cluster.nodes[other].boot()
    runner = world.cluster.nodes[other].runner
    assert runner is not None
    world.run(15_000.0)
    assert runner.channels[world.channel].elector.role is Role.LEADER
    assert world.total(1) == 667
    assert len(world.stops()) == 2


def test_a_replica_that_applied_what_others_skipped_gets_their_state() -> None:
    """It says so where the log says it, and is healed like one with a damaged table."""
    world, seq, other = with_one_away()
    leader = world.cluster.believed_leader(world.channel)
    assert leader is not None
    runner = world.cluster.nodes[leader[0]].runner
    assert runner is not None
    runner.controller.proposals.propose(
        runner.channels[world.channel], encode_step(Step.SKIP, seq), lambda _answer, _ms: None,
        runner.clock.now_ms, kind=RecordKind.MACHINE_STEP,
    )  # fmt: skip
    world.wait(lambda: not world.stops())
    world.cluster.nodes[other].boot()
    world.wait(lambda: any("table_damaged" in line for line in world.lines()))
    world.wait(world.cluster.replicas_are_equal)
    assert world.total(1) == 1
    assert any("table_damaged" in line and "and skipped by" in line for line in world.lines())


def test_a_command_is_not_skipped_by_what_a_replica_said_before() -> None:
    """A node that is away may have been given mended code, whatever it reported last."""
    world, seq, _ = with_one_away()
    world.run(REPORTS_MISSED_MAX * 1_000.0 + 500.0)
    refused = world.skip(seq)
    assert isinstance(refused, Failed)
    assert f"did not report within 3000 ms whether it can apply seq {seq}" in refused.message


def test_leader_whose_node_lacks_the_code_hands_over_to_one_that_has_it() -> None:
    """S9: its command is answered by the next leader, and leads stay there."""
    world = World(Counter, calm())
    assert world.total(1) == 1
    leader = world.cluster.believed_leader(world.channel)
    assert leader is not None
    node = world.cluster.nodes[leader[0]]
    assert node.runner is not None
    machine = node.runner.channels[world.channel].commands.machine
    machine.forget()
    machine._load = lambda: NoMachines().load("counters:Counter")
    assert world.total(2) == 3
    after = world.cluster.believed_leader(world.channel)
    assert after is not None
    assert after[0] != leader[0]
    world.run(20_000.0)
    assert world.cluster.believed_leader(world.channel) == after
    assert world.total(3) == 6


def test_a_version_comes_into_force_when_every_replica_has_it() -> None:
    """The code was replaced on all nodes; what is in force is said by the log."""
    world = World(Counter, calm())
    assert world.total(1) == 1
    world.restart(Mended)

    def in_force() -> int:
        runner = world.cluster.nodes[world.cluster.node_ids[0]].runner
        assert runner is not None
        tables = runner.ports.tables
        head = read_head(lambda key: tables.state_get(world.channel, key))
        return 0 if head is None else head.version

    world.total(1)
    world.wait(lambda: in_force() == 2)
    world.restart(Counter)
    world.command(1, timeout_ms=3_000.0)
    world.wait(lambda: len(world.stops()) == 3)
    assert "version 2 is in force, and this node has 1" in world.stops()[0]


def test_rows_are_refused_by_a_channel_set() -> None:
    """They would be applied by nobody; the remedy is in the message."""
    world = World(Counter, calm())
    payload = encode_rows([(b"k", seal(b"k", b"v"))])
    refused = world.send(Write(world.channel, RecordKind.ROWS, payload, 1))
    assert isinstance(refused, SchemaError)
    assert "a channel set takes commands, not records of kind 1" in str(refused)


def test_records_of_tables_are_not_even_proposed_by_a_leader() -> None:
    """Committed they would end every node: a client that takes a channel set for a table must not
    be able to have a step of its coordinator written."""
    world = World(Counter, calm())
    assert world.total(1) == 1
    leader = world.cluster.believed_leader(world.channel)
    assert leader is not None
    runner = world.cluster.nodes[leader[0]].runner
    assert runner is not None
    found: list[PubAck | PubReject] = []
    runner.controller.proposals.propose(
        runner.channels[world.channel], b"", lambda answer, _: found.append(answer),
        runner.clock.now_ms, kind=RecordKind.TXN,
    )  # fmt: skip
    assert isinstance(found[0], PubReject)
    assert found[0].message == "a channel set takes no records of kind 8"
    assert world.total(1) == 2


def test_machines_in_memory_are_those_that_keep_their_commands() -> None:
    """The worlds above run one of each kind."""
    assert issubclass(Tally, MemoryMachine)
    assert not issubclass(Counter, MemoryMachine)
