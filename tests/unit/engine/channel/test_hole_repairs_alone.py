"""Repairs of holes by themselves: which nodes are asked when, and which answers count (S0.3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import ROWS_PER_RECORD_MAX
from raftstore.core.chain import digest_of
from raftstore.engine.channel.hole_repairs import (
    ANSWER_TIMEOUT_MS,
    PAUSE_MS,
    REFILL_LEVEL,
    TELL_INTERVAL_MS,
    HoleRepairs,
)
from raftstore.engine.deadlines import NEVER_MS
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hole, LagReport, Refill, RefillRequest
from raftstore.protocol.records import Record
from raftstore.types import ChannelId, NodeId, RecordKind, Role, Seq, Term, channel_id, make_guid

CHANNEL = channel_id(b"orders-table-id!", 3)
B, C = NodeId("bb"), NodeId("cc")
HOLE = Hole(Seq(5), Seq(9), Term(3), ())
REST = Hole(Seq(7), Seq(9), Term(3), ())
BYTES_MAX = 1_000
FIRST_REQUEST = 70


def one(seq: int, payload: bytes = b"row") -> Record:
    """A record that was lost."""
    return Record(
        term=Term(3),
        base_seq=Seq(seq),
        rows=1,
        guid=make_guid(b"session!", seq),
        timestamp_ms=0,
        digest=digest_of(b"row"),
        kind=RecordKind.ROWS,
        payload=payload,
    )


class Bench:
    """A node with one channel that lacks records, and two nodes that may have them."""

    def __init__(self) -> None:
        self.others: tuple[NodeId, ...] = (B, C)
        self.left: Hole | None = HOLE
        """The records that the log lacks."""
        self.told: list[str] = []
        self.fields: list[dict[str, Any]] = []
        self.sent: list[tuple[NodeId, Message]] = []
        self.filled: list[tuple[Record, ...]] = []
        self.reopened: list[Any] = []
        self.asked_for: list[tuple[ChannelId, Hole, int]] = []
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            name="orders/3",
            hole=HOLE,
            is_paused=False,
            elector=SimpleNamespace(term=Term(4), role=Role.FOLLOWER),
            core=SimpleNamespace(term=Term(4), leader_is_ready=False),
        )
        self.channels: dict[ChannelId, Any] = {CHANNEL: self.runner}
        me: Any = self
        self.repairs = HoleRepairs(
            me,
            me,
            self.channels,
            self._tell,
            nodes_at_level=self._nodes_at_level,
            reopen=self.reopened.append,
            bytes_max=BYTES_MAX,
            first_request_id=FIRST_REQUEST,
        )

    def _tell(self, name: str, **fields: object) -> None:
        self.told.append(name)
        self.fields.append(fields)

    def _nodes_at_level(self, level: int) -> tuple[NodeId, ...]:
        assert level == REFILL_LEVEL
        return self.others

    def open_channel(self, channel: ChannelId) -> Any:
        """The channel as it is in the log."""
        assert channel == CHANNEL
        return SimpleNamespace(hole=self.left)

    def fill(self, channel: ChannelId, records: tuple[Record, ...]) -> int:
        """Put lost records back; the operation of the last."""
        assert channel == CHANNEL
        self.filled.append(records)
        return 30 + len(self.filled)

    def give_up(self, channel: ChannelId) -> int:
        """Cut what is behind the hole; its operation."""
        assert channel == CHANNEL
        return 50

    def refill(self, channel: ChannelId, hole: Hole, *, bytes_max: int) -> list[Record]:
        """The part that this log holds of the hole of another."""
        self.asked_for.append((channel, hole, bytes_max))
        return [one(5)]

    def send(self, to: NodeId, message: Message, *, after_operation: int) -> None:
        """Nothing of it depends on what is not durable yet."""
        assert after_operation == 0
        self.sent.append((to, message))

    def begin(self) -> RefillRequest:
        """Open the channel at 0; the first question."""
        self.repairs.opened(self.runner, 0)
        self.repairs.on_timer(0)
        return self.take_question()

    def take_question(self) -> RefillRequest:
        """The one question that was asked since."""
        [(_, message)] = self.sent
        self.sent.clear()
        assert isinstance(message, RefillRequest)
        return message

    def answer(self, number: int, *records: Record, term: int = 0, now_ms: int = 10) -> None:
        """An answer of the first node."""
        answer = Refill(CHANNEL, number, records, Term(term))
        self.repairs.on_message(B, answer, now_ms)


def test_nodes_are_asked_one_after_the_other_until_one_answers() -> None:
    """Each has its time to answer; which one holds the records, nobody knows."""
    bench = Bench()
    first = bench.begin()
    assert first == RefillRequest(CHANNEL, FIRST_REQUEST + 1, HOLE, BYTES_MAX)
    asked = []
    for turn in range(1, 4):
        bench.repairs.on_timer(turn * ANSWER_TIMEOUT_MS - 1)
        assert bench.sent == []
        bench.repairs.on_timer(turn * ANSWER_TIMEOUT_MS)
        asked.append(bench.sent[0][0])
        assert bench.take_question().request_id == FIRST_REQUEST + 1 + turn
    assert asked == [C, B, C]


def test_question_waits_a_moment_while_nobody_is_there_to_be_asked() -> None:
    """Nodes of the level come and go; the hole is asked for as soon as there is one."""
    bench = Bench()
    bench.others = ()
    bench.repairs.opened(bench.runner, 0)
    bench.repairs.on_timer(0)
    assert bench.sent == []
    assert bench.repairs.open[CHANNEL].asked is None
    assert bench.repairs.deadlines.next_ms == PAUSE_MS
    bench.others = (C,)
    bench.repairs.on_timer(PAUSE_MS)
    assert [to for to, _ in bench.sent] == [C]


def test_node_that_answered_is_not_taken_for_one_that_was_asked() -> None:
    """While all others are gone none is asked, however often it was before."""
    bench = Bench()
    bench.begin()
    bench.others = ()
    bench.repairs.on_timer(ANSWER_TIMEOUT_MS)
    assert bench.repairs.open[CHANNEL].asked is None
    assert bench.repairs.deadlines.next_ms == ANSWER_TIMEOUT_MS + PAUSE_MS


def test_node_that_held_the_first_half_is_asked_for_the_second_at_once() -> None:
    """It is the likeliest to hold that, too; its next answer is distinguished from the first."""
    bench = Bench()
    first = bench.begin()
    bench.left = REST
    bench.answer(first.request_id, one(5), one(6), now_ms=10)
    assert bench.filled == [(one(5), one(6))]
    [(to, _)] = bench.sent
    assert to == B
    assert bench.take_question() == RefillRequest(CHANNEL, first.request_id + 1, REST, BYTES_MAX)
    assert bench.repairs.deadlines.next_ms == 10 + ANSWER_TIMEOUT_MS
    bench.answer(first.request_id, one(5), one(6), now_ms=11)
    assert len(bench.filled) == 1, "the first question was answered before"


def test_channel_whose_hole_is_filled_is_opened_again_when_that_is_durable() -> None:
    """S0.5: once, and not before; nobody is asked any more meanwhile."""
    bench = Bench()
    first = bench.begin()
    bench.left = None
    bench.answer(first.request_id, one(5), one(6))
    assert bench.told[-1] == "hole_filled"
    assert bench.fields[-1] == {"channel": "orders/3", "peer": "bb"}
    assert bench.repairs.deadlines.next_ms == NEVER_MS
    bench.answer(first.request_id, one(5), one(6))
    bench.answer(0, one(5), one(6))
    assert len(bench.filled) == 1, "late"
    bench.repairs.on_durable(30)
    assert bench.reopened == []
    bench.repairs.on_durable(31)
    bench.repairs.on_durable(32)
    assert bench.reopened == [bench.runner]
    assert bench.repairs.open == {}


def test_hole_that_is_still_asked_for_is_no_reason_to_open_the_channel() -> None:
    """S0.3: whatever becomes durable on the node meanwhile."""
    bench = Bench()
    bench.begin()
    bench.repairs.on_durable(1_000)
    assert bench.reopened == []
    assert CHANNEL in bench.repairs.open


@pytest.mark.parametrize("number", [FIRST_REQUEST, FIRST_REQUEST + 2, 0])
def test_answer_to_another_question_changes_nothing(number: int) -> None:
    """S12: late or made up, of a repair that goes on."""
    bench = Bench()
    bench.begin()
    bench.answer(number, one(5), now_ms=10)
    bench.answer(number, term=9, now_ms=10)
    assert bench.filled == []
    assert bench.told == ["hole"]
    assert bench.repairs.deadlines.next_ms == ANSWER_TIMEOUT_MS


def test_answer_for_a_channel_without_a_hole_changes_nothing() -> None:
    """It may have been closed since it asked."""
    bench = Bench()
    first = bench.begin()
    bench.repairs.closed(bench.runner)
    bench.answer(first.request_id, one(5))
    assert bench.filled == []
    assert bench.repairs.deadlines.next_ms == NEVER_MS
    bench.repairs.on_timer(ANSWER_TIMEOUT_MS)
    assert bench.sent == []


def test_answer_counts_once() -> None:
    """A message may come twice: the next node is asked after the same pause."""
    bench = Bench()
    first = bench.begin()
    bench.answer(first.request_id, now_ms=10)
    assert bench.repairs.deadlines.next_ms == 10 + PAUSE_MS
    bench.answer(first.request_id, now_ms=90)
    bench.answer(first.request_id, one(5), now_ms=90)
    assert bench.repairs.deadlines.next_ms == 10 + PAUSE_MS
    assert bench.filled == []


def test_records_that_do_not_fit_are_refused_and_the_next_node_is_asked_after_a_pause() -> None:
    """The line says whose answer was wrong in what; the log is left alone."""
    bench = Bench()
    first = bench.begin()
    bench.answer(first.request_id, one(5, payload=b"other"), now_ms=10)
    assert bench.told == ["hole", "refill_refused"]
    assert bench.fields[-1]["channel"] == "orders/3"
    assert "not what its digest says" in bench.fields[-1]["reason"]
    assert bench.filled == []
    assert bench.repairs.deadlines.next_ms == 10 + PAUSE_MS


@pytest.mark.parametrize(("leader_term", "is_over"), [(0, False), (3, False), (4, True), (5, True)])
def test_leader_of_our_term_or_a_later_one_decides_what_nobody_holds(
    leader_term: int, is_over: bool
) -> None:
    """S0.3: it holds everything that was acknowledged; a leader of the past may not."""
    bench = Bench()
    first = bench.begin()
    bench.answer(first.request_id, term=leader_term, now_ms=10)
    assert ("hole_given_up" in bench.told) == is_over
    assert bench.repairs.deadlines.next_ms == (NEVER_MS if is_over else 10 + PAUSE_MS)
    if is_over:
        assert bench.fields[-1] == {"channel": "orders/3", "leader": "bb"}
    bench.repairs.on_durable(49)
    assert bench.reopened == []
    bench.repairs.on_durable(50)
    assert bench.reopened == ([bench.runner] if is_over else [])


def test_hole_that_nobody_fills_is_told_again_every_minute() -> None:
    """An operator who looks today sees it, and not a line for every question."""
    bench = Bench()
    bench.begin()
    for now_ms in range(ANSWER_TIMEOUT_MS, 2 * TELL_INTERVAL_MS + 1, ANSWER_TIMEOUT_MS):
        bench.repairs.on_timer(now_ms)
    assert bench.told == ["hole"] * 3


def test_channel_without_a_hole_asks_nobody() -> None:
    """It is whole, as nearly all are."""
    bench = Bench()
    bench.runner.hole = None
    bench.repairs.opened(bench.runner, 0)
    assert bench.repairs.open == {}
    assert bench.repairs.deadlines.next_ms == NEVER_MS


def test_node_that_leads_nothing_decides_nothing_about_a_channel_without_a_term() -> None:
    """S0.3: 0 is no term, and the log of a channel that never heard of any is in that one."""
    bench = Bench()
    bench.runner.elector.term = Term(0)
    first = bench.begin()
    bench.answer(first.request_id)
    assert "hole_given_up" not in bench.told


def test_message_that_no_part_takes_is_told_with_its_sender() -> None:
    """It is a mistake, of this version or of another one."""
    bench = Bench()
    bench.repairs.on_message(C, LagReport(0, ()), 0)
    assert bench.told == ["unexpected_message"]
    assert bench.fields == [{"peer": "cc", "kind": "LagReport"}]


# --- the other side -------------------------------------------------------------------------------


def asked(bench: Bench, hole: Hole, bytes_max: int) -> Refill:
    """The node's answer to another one that lost records."""
    bench.repairs.on_message(C, RefillRequest(CHANNEL, 8, hole, bytes_max), 0)
    [(to, answer)] = bench.sent
    bench.sent.clear()
    assert to == C
    assert isinstance(answer, Refill)
    return answer


@pytest.mark.parametrize(
    ("wanted", "given"), [(BYTES_MAX + 1, BYTES_MAX), (BYTES_MAX - 1, BYTES_MAX - 1)]
)
def test_answer_is_as_large_as_both_sides_allow(wanted: int, given: int) -> None:
    """A node that asks for more than a frame would be sent none at all."""
    bench = Bench()
    assert asked(bench, HOLE, wanted) == Refill(CHANNEL, 8, (one(5),), Term(0))
    assert bench.asked_for == [(CHANNEL, HOLE, given)]


def test_answer_has_a_bounded_number_of_records() -> None:
    """The bytes bound payloads alone, and records may be empty."""
    bench = Bench()
    asked(bench, HOLE._replace(to_seq=Seq(10**9)), BYTES_MAX)
    [(_, hole, _)] = bench.asked_for
    assert hole.to_seq - hole.from_seq + 1 == ROWS_PER_RECORD_MAX


@pytest.mark.parametrize(
    ("role", "is_ready", "told"),
    [(Role.LEADER, True, 6), (Role.LEADER, False, 0), (Role.FOLLOWER, True, 0), (None, True, 0)],
)
def test_only_a_leader_that_committed_in_its_term_says_that_it_leads(
    role: Role | None, is_ready: bool, told: int
) -> None:
    """S0.3: its word lets others give up records; None: the channel is not open here."""
    bench = Bench()
    if role is None:
        bench.channels.clear()
    else:
        bench.runner.elector.role = role
        bench.runner.core = SimpleNamespace(term=Term(6), leader_is_ready=is_ready)
    assert asked(bench, HOLE, BYTES_MAX).leader_term == told


def test_hole_is_reported_as_unfilled_when_as_many_answers_as_nodes_held_nothing() -> None:
    """S0.3: what all others trimmed was committed; silence and records are no such answers."""
    bench, unfilled = Bench(), list[tuple[Any, int]]()
    bench.repairs.on_unfilled = lambda runner, now_ms: unfilled.append((runner, now_ms))
    question = bench.begin()
    bench.answer(question.request_id, now_ms=10)
    now_ms = 10 + PAUSE_MS
    bench.repairs.on_timer(now_ms)
    bench.take_question()
    now_ms += ANSWER_TIMEOUT_MS
    bench.repairs.on_timer(now_ms)
    bench.left = REST
    bench.answer(bench.take_question().request_id, one(5), one(6), now_ms=now_ms)
    bench.answer(bench.take_question().request_id, now_ms=now_ms)
    assert unfilled == []
    bench.repairs.on_timer(now_ms + PAUSE_MS)
    bench.answer(bench.take_question().request_id, now_ms=now_ms + PAUSE_MS)
    assert unfilled == [(bench.runner, now_ms + PAUSE_MS)]


def test_channel_that_is_about_to_begin_behind_a_base_is_left_alone() -> None:
    """Its hole is going; and who paused it opens it anew."""
    bench = Bench()
    question = bench.begin()
    bench.runner.is_paused = True
    bench.answer(question.request_id, one(5))
    assert bench.filled == []
    bench.runner.is_paused = False
    bench.repairs.on_timer(ANSWER_TIMEOUT_MS)
    bench.left = None
    bench.answer(bench.take_question().request_id, one(5), now_ms=ANSWER_TIMEOUT_MS)
    bench.runner.is_paused = True
    bench.repairs.on_durable(31)
    assert bench.reopened == []
    assert CHANNEL not in bench.repairs.open
