"""Content hashes are computed one after another; each request is answered once, or refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from raftstore.config import ReadSettings
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reports.content_hashes import ContentHashes
from raftstore.protocol.admin import ContentHash, ContentHashAnswer
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import Served
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id

ME = NodeId("n1")
WAIT_MS = 1_000
FIRST, SECOND = (channel_id(b"t" * 16, number) for number in range(2))


class Bench:
    """A node with two channels, whose table store computes a hash when the test says so."""

    def __init__(self, most: int = 10) -> None:
        self.me = ME
        self.channels: Any = {
            channel: SimpleNamespace(
                name=f"t/{number}",
                unserved_until=0,
                has_rows=True,
                is_reopened=False,
                elector=SimpleNamespace(term=Term(7)),
            )
            for number, channel in enumerate((FIRST, SECOND))
        }
        self.tables: Any = SimpleNamespace(start_content_hash=self._start)
        self.started: list[tuple[ChannelId, Callable[[bytes, int, Seq], None]]] = []
        self.answers: list[tuple[int, Message]] = []
        settings = ReadSettings(content_hashes_max=most)
        self.hashes = ContentHashes(
            ME, self.channels, self.tables, self.lag, cast("Any", self), settings, wait_ms=WAIT_MS
        )

    def _start(self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]) -> None:
        self.started.append((channel, done))

    def answer(self, client: int, message: Message) -> None:
        """Keep the answer for the test."""
        self.answers.append((client, message))

    def lag(self, runner: object, applied: Seq) -> tuple[int | None, int | None]:
        """So far behind is a state of that position."""
        assert runner is not None
        return 100 - applied, 30

    def ask(self, client: int, number: int, channel: ChannelId = FIRST, now_ms: int = 0) -> None:
        """A client's request."""
        self.hashes.on_request(client, ContentHash(number, channel), now_ms)

    def finish(self, index: int, digest: bytes = b"digest") -> None:
        """The table store is done with what it was asked for."""
        self.started[index][1](digest, 3, Seq(90))

    def take(self) -> list[tuple[int, int, str]]:
        """Client, request and code of what was answered since; no code for a hash."""
        taken, self.answers = self.answers, []
        told = []
        for client, message in taken:
            assert isinstance(message, ContentHashAnswer | Failed)
            code = message.code if isinstance(message, Failed) else ""
            told.append((client, message.request_id, code))
        return told

    def drop(self, channel: ChannelId) -> None:
        """Its table is dropped."""
        del self.channels[channel]


def test_answer_tells_the_hash_and_the_state_it_is_of() -> None:
    """S7.3: its position, and how far behind that is when it is answered."""
    bench = Bench()
    bench.ask(5, 1, SECOND)
    assert [channel for channel, _ in bench.started] == [SECOND]
    assert bench.answers == []
    bench.finish(0)
    served = Served(ME, SECOND, Term(7), Seq(90), 10, 30, "any")
    assert bench.answers == [(5, ContentHashAnswer(1, b"digest", 3, served))]


def test_one_is_computed_and_the_others_follow_in_order() -> None:
    """A hash reads a whole channel; two at a time would slow everything else down."""
    bench = Bench()
    for number, channel in enumerate((FIRST, SECOND, FIRST)):
        bench.ask(5, number, channel)
    for index, channel in enumerate((FIRST, SECOND, FIRST)):
        assert [started for started, _ in bench.started[index:]] == [channel]
        assert bench.take() == []
        bench.finish(index)
        assert bench.take() == [(5, index, "")]
    bench.ask(6, 9)
    assert len(bench.started) == 4


def test_channel_that_is_not_here_or_not_whole_is_refused() -> None:
    """S10: what a stop cut in two is no state that anybody should compare."""
    bench = Bench()
    bench.ask(5, 1, channel_id(b"o" * 16, 0))
    assert bench.take() == [(5, 1, "unknown_channel")]
    bench.channels[FIRST].unserved_until = Seq(9)
    bench.ask(5, 2)
    assert bench.take() == [(5, 2, "unavailable")]
    bench.ask(5, 3, SECOND)
    bench.finish(0)
    assert bench.take() == [(5, 3, "")]
    assert len(bench.started) == 1


def test_refusals_say_what_is_to_be_done() -> None:
    """Each to its request, with a sentence; none of them is computed later."""
    bench = Bench(most=1)
    bench.ask(5, 1)
    bench.ask(5, 2)
    bench.channels[SECOND].unserved_until = Seq(9)
    bench.ask(6, 3, SECOND)
    full, cut = (message for _, message in bench.answers)
    assert isinstance(full, Failed)
    assert isinstance(cut, Failed)
    assert (full.code, "1 content hashes" in full.message) == ("overloaded", True)
    assert "read.content_hashes_max" in full.message
    assert (cut.code, "t/1 repeats an apply" in cut.message) == ("unavailable", True)
    bench.finish(0)
    assert len(bench.started) == 1


def test_largest_holder_gives_its_newest_up_for_others() -> None:
    """All clients together have twice what one may; who comes with less takes from it."""
    bench = Bench(most=3)
    for number in range(3):
        bench.ask(5, number)
    for client in (6, 7, 8):
        bench.ask(client, 10 + client)
    assert bench.take() == []
    bench.ask(9, 19)
    assert bench.take() == [(5, 2, "overloaded")]
    for index in range(6):
        bench.finish(index)
    assert bench.take() == [
        (5, 0, ""),
        (5, 1, ""),
        (6, 16, ""),
        (7, 17, ""),
        (8, 18, ""),
        (9, 19, ""),
    ]


def test_request_is_refused_at_its_deadline_and_its_hash_told_to_nobody() -> None:
    """Never a hang: others may come first. What follows it is computed all the same."""
    bench = Bench()
    bench.ask(5, 1, now_ms=100)
    bench.ask(6, 2, now_ms=300)
    assert bench.hashes.waiting.deadlines.next_ms == 100 + WAIT_MS
    bench.hashes.on_timer(99 + WAIT_MS)
    assert bench.answers == []
    bench.hashes.on_timer(100 + WAIT_MS)
    [(client, refused)] = bench.answers
    assert isinstance(refused, Failed)
    assert (client, refused.request_id, refused.code) == (5, 1, "query_error")
    assert f"within {WAIT_MS} ms" in refused.message
    assert bench.hashes.waiting.deadlines.next_ms == 300 + WAIT_MS
    bench.answers.clear()
    bench.finish(0)
    assert bench.take() == []
    bench.finish(1)
    assert bench.take() == [(6, 2, "")]
    assert bench.hashes.waiting.deadlines.next_ms == NEVER_MS


def test_client_that_is_gone_leaves_the_queue() -> None:
    """When a client is gone, the hash in progress is reported to no client and its queued ones are
    not computed.
    """
    bench = Bench()
    for number in range(3):
        bench.ask(5, number)
    bench.ask(6, 9)
    bench.hashes.on_client_gone(5)
    bench.finish(0)
    assert bench.take() == []
    assert len(bench.started) == 2
    bench.finish(1)
    assert bench.take() == [(6, 9, "")]
    assert len(bench.started) == 2


def test_dropped_tables_are_refused_whenever_they_went() -> None:
    """S0.8: before their turn, and while they were computed; those behind them are not held up."""
    bench = Bench()
    for number, channel in enumerate((FIRST, FIRST, FIRST, SECOND)):
        bench.ask(5, number, channel)
    bench.drop(FIRST)
    bench.finish(0)
    assert bench.take() == [
        (5, 0, "unknown_channel"),
        (5, 1, "unknown_channel"),
        (5, 2, "unknown_channel"),
    ]
    assert [channel for channel, _ in bench.started] == [FIRST, SECOND]
    bench.finish(1)
    assert bench.take() == [(5, 3, "")]
    assert len(bench.hashes.waiting) == 0


def test_channel_that_was_opened_again_meanwhile_is_another() -> None:
    """S0.8: who asked for the one of before does not get the new one."""
    bench = Bench()
    bench.ask(5, 1)
    bench.channels[FIRST] = SimpleNamespace(**vars(bench.channels[FIRST]))
    bench.finish(0)
    assert bench.take() == [(5, 1, "unknown_channel")]
    bench.ask(5, 2)
    bench.finish(1)
    assert bench.take() == [(5, 2, "")]


def test_channel_that_is_opened_anew_was_not_dropped() -> None:
    """Its table was replaced while the hash was computed: to be asked again."""
    bench = Bench()
    bench.ask(5, 1)
    before = bench.channels[FIRST]
    before.is_reopened = True
    bench.channels[FIRST] = SimpleNamespace(**{**vars(before), "is_reopened": False})
    bench.finish(0)
    assert bench.take() == [(5, 1, "unavailable")]
