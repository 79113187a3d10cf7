"""Checkpoints of a node by themselves: who is answered when, and with what (S0.6, NATS-017)."""

from __future__ import annotations

from typing import Any

from raftstore.engine.channel.durable_tracker import DurableTracker
from raftstore.engine.channel.promised_durability import PromisedDurability
from raftstore.engine.checkpoints import WAITING_MAX, Checkpoints
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.errors import OverloadedError
from raftstore.protocol.admin import Checkpoint, CheckpointAnswer
from raftstore.protocol.message import Failed, Message
from raftstore.types import Durability, RequestId, Seq, channel_id

CLIENT, OTHER = 5, 6
TABLE = b"orders-table-id!"


class Channel:
    """A runner, as a checkpoint knows it, with the production promise on a log that is counted."""

    def __init__(self, bench: Bench, partition: int, durability: Durability) -> None:
        self.channel = channel_id(TABLE, partition)
        self.durable = DurableTracker(durability, in_force=durability)
        log: Any = bench
        self.promised = PromisedDurability(log, self.channel, self.durable)

    def checkpoint(self, done: Any) -> None:
        """As ``ChannelRunner`` does."""
        self.promised.take_back(done)


class Bench:
    """A node's checkpoints, its channels, and its log's operations."""

    def __init__(self, *durabilities: Durability) -> None:
        self.operation = 0
        self.answers: list[tuple[int, Message]] = []
        self.events: list[int] = []
        self.channels = [Channel(self, at, each) for at, each in enumerate(durabilities)]
        runners: Any = {each.channel: each for each in self.channels}
        self.checkpoints = Checkpoints(
            runners,
            lambda client, message: self.answers.append((client, message)),
            lambda name, **fields: self.events.append(fields["channels"]),
        )

    def promise(self, channel: Any, durability: Durability) -> int:
        """The log's: another operation."""
        assert durability is Durability.FSYNC
        self.operation += 1
        return self.operation

    def ask(self, client: int, number: int) -> None:
        """A request."""
        self.checkpoints.on_request(client, Checkpoint(RequestId(number)))

    def sync(self, at: int, operation: int, seq: int) -> None:
        """The log of one channel is durable up to a seq by this operation."""
        channel = self.channels[at]
        channel.durable.durable_seq = Seq(seq)
        channel.promised.on_durable(operation)

    def answered(self) -> list[tuple[int, int, list[int]]]:
        """Client, request and seqs of the answers since the last call."""
        answers, self.answers = self.answers, []
        return [
            (client, answer.request_id, [seq for _, seq in answer.durable])
            for client, answer in answers
            if isinstance(answer, CheckpointAnswer)
        ]


def test_answer_comes_when_the_last_channel_is_synced_and_names_what_is() -> None:
    """Tables that ask for fsync have nothing to sync, and are not named."""
    bench = Bench(Durability.BUFFERED, Durability.FSYNC, Durability.MEMORY)
    bench.ask(CLIENT, 7)
    bench.sync(0, 1, 30)
    bench.sync(2, 1, 8)
    assert (bench.answered(), bench.events) == ([], [])
    assert bench.checkpoints.holds_for(CLIENT)
    bench.sync(2, 2, 9)
    assert bench.answered() == [(CLIENT, 7, [30, 9])]
    assert bench.events == [2]
    assert not bench.checkpoints.holds_for(CLIENT)


def test_nothing_is_promised_from_the_request_on() -> None:
    """S0.6: what comes behind it counts once it is durable, until the mark says otherwise."""
    bench = Bench(Durability.MEMORY)
    bench.ask(CLIENT, 1)
    assert bench.channels[0].durable.in_force is Durability.FSYNC


def test_request_that_comes_meanwhile_is_answered_by_the_next_checkpoint() -> None:
    """The one under way may have begun before something that it asks for was acknowledged."""
    bench = Bench(Durability.BUFFERED)
    bench.ask(CLIENT, 1)
    bench.ask(OTHER, 2)
    bench.ask(OTHER, 3)
    bench.sync(0, 1, 10)
    assert bench.answered() == [(CLIENT, 1, [10])]
    bench.sync(0, 2, 11)
    assert bench.answered() == [(OTHER, 2, [11]), (OTHER, 3, [11])]
    assert bench.operation == 2


def test_channel_that_is_closed_is_waited_for_no_longer_and_not_named() -> None:
    """Its table was dropped, or it is opened anew."""
    bench = Bench(Durability.BUFFERED, Durability.BUFFERED)
    bench.ask(CLIENT, 1)
    bench.sync(1, 2, 4)
    bench.channels[0].promised.close()
    assert bench.answered() == [(CLIENT, 1, [4])]


def test_node_without_such_tables_answers_at_once() -> None:
    """There is nothing to wait for."""
    bench = Bench(Durability.FSYNC)
    bench.ask(CLIENT, 1)
    assert bench.answered() == [(CLIENT, 1, [])]


def test_signal_ends_in_an_event() -> None:
    """It comes from the process itself, which gets no answer."""
    bench = Bench(Durability.MEMORY)
    bench.ask(CLIENT_HANDLE_SELF, 0)
    bench.sync(0, 1, 3)
    assert (bench.answers, bench.events) == ([], [1])


def test_what_a_client_has_the_node_hold_is_bounded_and_ends_with_it() -> None:
    """A disk that hangs ends no checkpoint; the others' requests wait for one more only."""
    bench = Bench(Durability.BUFFERED)
    for number in range(WAITING_MAX + 1):
        bench.ask(CLIENT, number)
    [(client, refused)] = bench.answers
    assert isinstance(refused, Failed)
    assert (client, refused.request_id, refused.code) == (CLIENT, WAITING_MAX, OverloadedError.code)
    bench.answers.clear()
    bench.ask(OTHER, 99)
    bench.checkpoints.on_client_gone(CLIENT)
    assert not bench.checkpoints.holds_for(CLIENT)
    assert bench.operation == 1
    bench.sync(0, 1, 3)
    bench.sync(0, 2, 4)
    assert bench.answered() == [(OTHER, 99, [4])]
