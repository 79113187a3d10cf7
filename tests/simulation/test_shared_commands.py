"""Commands that share a record in simulated worlds: answers, retries, stops and questions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftstore.client.writes.kinds import Write
from raftstore.errors import RequestError
from raftstore.machine import StateMachine
from raftstore.protocol.machines import encode_command
from raftstore.protocol.message import Done, Message
from raftstore.protocol.publish import PubAck
from raftstore.protocol.shared_commands import (
    CommandFate,
    CommandFateAnswer,
    CommandsAck,
    encode_commands,
)
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import draw_options
from raftstore.types import Outcome, RecordKind, make_guid
from tests.simulation.test_channelsets import INT, WAIT_MS, Counter, Tally, World, calm


def together(world: World, values: list[int], timeout_ms: float = WAIT_MS) -> PubAck | RequestError:
    """Send several numbers in one record."""
    payload = encode_commands(encode_command(b"k", INT.encode(value)) for value in values)
    write = Write(world.channel, RecordKind.MACHINE_COMMANDS, payload, len(values))
    return world.send(write, timeout_ms)


def totals(answer: PubAck | RequestError) -> list[int]:
    """The results of a record whose commands were all taken."""
    assert isinstance(answer, CommandsAck), answer
    assert not any(end.is_rejected for end in answer.ends)
    return [int(INT.decode(end.result)) for end in answer.ends]


def asked(world: World, ack: PubAck, place: int) -> CommandFateAnswer:
    """The leader's word on a command of the record."""
    found: list[Message] = []
    world.cluster.add_client("asking", 79, lambda _, message: found.append(message))
    world.wait(lambda: world.cluster.believed_leader(world.channel) is not None)
    leader = world.cluster.believed_leader(world.channel)
    assert leader is not None
    question = CommandFate(5, world.channel, ack.guid, 1_000, place)
    world.cluster.network.send("asking", leader[0], question)
    world.wait(lambda: bool(found))
    (answer,) = found
    assert isinstance(answer, CommandFateAnswer), answer
    return answer


@pytest.mark.parametrize("code", [Counter, Tally])
@pytest.mark.parametrize("seed", [3, 11])
def test_every_command_of_a_record_counts_once_whatever_fails(
    code: type[StateMachine], seed: int
) -> None:
    """Results are those of an order in which each was applied once, and all of them together."""
    world = World(code, replace(draw_options(seed), partitions=1, seed=seed))
    nemesis = Nemesis(world.cluster, world.cluster.options)
    nemesis.start()
    known, doubted = 0, 0
    for _ in range(30):
        answer = together(world, [1, 1, 1], timeout_ms=3_000.0)
        if isinstance(answer, CommandsAck):
            known += 3
            first, second, third = totals(answer)
            assert (second, third) == (first + 1, first + 2)
            assert known <= third <= known + doubted
        elif isinstance(answer, RequestError) and answer.outcome is Outcome.UNKNOWN:
            doubted += 3
    nemesis.heal()
    assert known <= world.total(0) <= known + doubted
    world.wait(world.cluster.replicas_are_equal)
    world.cluster.check_final()
    assert known


def test_the_end_of_a_command_is_known_after_every_node_was_restarted() -> None:
    """It is in the state by its seq; of a place that the record does not have there is none."""
    world = World(Counter, calm())
    world.total(1)
    ack = together(world, [5, 6, 7])
    assert totals(ack) == [6, 12, 19]
    assert isinstance(ack, PubAck)
    world.restart(Counter)
    assert world.total(0) == 19
    answer = asked(world, ack, 2)
    assert answer.end is not None
    assert (answer.fate, answer.seq, INT.decode(answer.end.result)) == (
        "committed", ack.base_seq + 1, 12,
    )  # fmt: skip
    for place in (0, 4, 2**31 - 1):  # nothing is known of a command that there never was
        answer = asked(world, ack, place)
        assert (answer.fate, answer.end) == ("unknown", None)
        assert answer.reason == f"the record has 3 commands, and none at place {place}"


def test_a_record_that_nobody_has_is_not_applied_and_refused_from_then_on() -> None:
    """So the command may be sent again as a record of its own."""
    world = World(Counter, calm())
    world.total(1)
    ack = together(world, [1, 2])
    assert isinstance(ack, PubAck)
    unknown = replace_guid(ack)
    answer = asked(world, unknown, 1)
    assert (answer.fate, answer.end) == ("not_applied", None)


def replace_guid(ack: PubAck) -> PubAck:
    """The ack of a record that was never sent."""
    return PubAck(
        ack.channel, ack.term, make_guid(b"stranger", 7), ack.base_seq, ack.last_seq,
        ack.record_term, ack.durability, ack.replicas_acked,
    )  # fmt: skip


def test_a_stop_within_a_record_names_its_command_and_a_skip_is_of_that_one() -> None:
    """Nothing of the record is applied before, all but that command after it."""
    world = World(Counter, calm())
    assert world.total(1) == 1
    answer = together(world, [2, 666, 4], timeout_ms=1_500.0)
    assert isinstance(answer, RequestError)
    stops = world.stops()
    assert len(stops) == 3
    seqs = {int(stop.partition(":")[0]) for stop in stops}
    (seq,) = seqs
    assert isinstance(world.skip(seq), Done)
    assert world.stops() == []
    assert world.total(0) == 7
    world.wait(world.cluster.replicas_are_equal)
    world.cluster.check_final()
