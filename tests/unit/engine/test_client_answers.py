"""The way back to clients by itself: what is counted of an answer, and what it gives back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.protocol.message import Done, Message
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.reads import Bounds, Served
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id, make_guid

HERE, GONE = (channel_id(b"t" * 16, number) for number in range(2))
CLIENT, NOW = 5, 700
GUID = make_guid(b"session!", 1)


def served(channel: ChannelId) -> Served:
    """Rows of a channel."""
    return Served(NodeId("n1@00"), channel, Term(2), Seq(3), 0, 0, "any")


class Bench:
    """Every part that learns of an answer notes it; one of two channels is still here."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.told: tuple[Served, ...] = ()
        runner: Any = SimpleNamespace(name="a/b/0", bounds=Bounds(max_staleness_ms=90))
        self.answers = ClientAnswers(
            self._part("client", "reply"),
            self._clock(),
            {HERE: runner},
            self._part("proposals", "on_answer"),
            self._part("writes", "settled"),
            self._meters(),
            self._part("failovers", "on_read", "on_write"),
            self._part("relayed", "reply"),
            SimpleNamespace(answered=lambda *_: None),  # type: ignore[arg-type] - has its own tests
        )

    def _part(self, name: str, *methods: str) -> Any:
        part = SimpleNamespace()
        for method in methods:
            setattr(part, method, self._noting(f"{name}.{method}"))
        return part

    def _noting(self, name: str) -> Any:
        return lambda *of: self.calls.append((name, *of))

    @staticmethod
    def _clock() -> Any:
        return SimpleNamespace(now_ms=NOW)

    def _meters(self) -> Any:
        meters = self._part("meters", "served_within", "write_ended")

        def answered(*of: Any) -> tuple[Served, ...]:
            self.calls.append(("meters.answered", *of))
            return self.told

        meters.answered = answered
        return meters


def test_answer_counts_for_each_channel_whose_state_it_tells() -> None:
    """A read ends what a failover kept waiting; its staleness is judged by its table's bound, if
    the table was not dropped meanwhile."""
    bench, message = Bench(), Done(1)
    bench.told = (served(HERE), served(GONE))
    bench.answers.answer(CLIENT, message)
    assert bench.calls == [
        ("meters.answered", CLIENT, message, NOW),
        ("failovers.on_read", HERE, NOW),
        ("meters.served_within", "a/b", bench.told[0], 90),
        ("failovers.on_read", GONE, NOW),
        ("client.reply", CLIENT, message),
    ]


def acked() -> PubAck:
    """A write that is committed."""
    return PubAck(HERE, Term(2), GUID, Seq(4), Seq(4), Term(2), "fsync", 2)


def rejected() -> PubReject:
    """A write that is not."""
    return PubReject(HERE, Term(2), GUID, "overloaded", "later")


@pytest.mark.parametrize("message", [acked(), rejected()], ids=["acked", "rejected"])
def test_answer_to_a_write_gives_its_room_back_and_ends_a_failover_if_it_was_done(
    message: Message,
) -> None:
    """S12: whatever became of it; only a write that is committed shows that there is a leader."""
    bench = Bench()
    assert isinstance(message, PubAck | PubReject)
    bench.answers.reply(CLIENT, message)
    done = [("failovers.on_write", HERE, NOW)] if isinstance(message, PubAck) else []
    assert bench.calls == [
        ("writes.settled", CLIENT, message),
        ("meters.write_ended", message, NOW),
        *done,
        ("client.reply", CLIENT, message),
    ]


def test_answer_to_the_node_itself_is_of_its_proposals() -> None:
    """It has no connection, and its writes are not those of clients."""
    bench, message = Bench(), acked()
    bench.answers.reply(CLIENT_HANDLE_SELF, message)
    assert bench.calls == [("proposals.on_answer", message, NOW)]


def test_answer_to_a_relayed_write_goes_back_to_the_node_that_relayed_it() -> None:
    """NATS-065: it has no connection of a client, and its room is given back."""
    bench, message = Bench(), acked()
    bench.answers.reply(CLIENT_HANDLE_SELF - 1, message)
    assert bench.calls == [
        ("writes.settled", CLIENT_HANDLE_SELF - 1, message),
        ("relayed.reply", CLIENT_HANDLE_SELF - 1, message),
    ]
