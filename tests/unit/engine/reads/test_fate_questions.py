"""Questions for the fate of a write, from the request to the one answer (N4)."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftstore.config import ReadSettings
from raftstore.core.write_outcome import WriteOutcome, WriteOutcomeFound
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reads.write_outcomes import WriteOutcomes
from raftstore.engine.shares import Shares
from raftstore.errors import QueryError, Refusal, UnavailableError
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import WriteFate, WriteFateAnswer
from raftstore.protocol.reads import Served
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, channel_id, guid_text, make_guid

ME, OTHER = NodeId("n1"), NodeId("n2")
NOW_MS = 5_000
FOUND = WriteOutcomeFound(WriteOutcome.COMMITTED, Seq(41), Term(3), "held")
PENDING = WriteOutcomeFound(WriteOutcome.PENDING)


class Channel:
    """A channel that this node leads, with what its core knows of any write."""

    def __init__(self, number: int) -> None:
        self.channel = channel_id(b"t" * 16, number)
        self.name = f"t/{number}"
        self.elector = SimpleNamespace(role=Role.LEADER, term=Term(3), leader=ME)
        self.is_reopened = False
        self.fate: WriteOutcomeFound | None = FOUND
        self.core = SimpleNamespace(tell_write_outcome=lambda _: self.fate)
        self.rounds: list[tuple[int, int]] = []
        self.dropped: list[tuple[frozenset[int], int]] = []

    def request_read(self, on_confirmed: Any, on_refused: Any, now_ms: int) -> int:
        """A round is asked for; it has the number of the question."""
        (token,) = on_confirmed.args
        assert on_refused.args == (token,)
        self.rounds.append((token, now_ms))
        return cast("int", token)

    def drop_reads(self, tokens: frozenset[int], now_ms: int) -> None:
        """Rounds that nobody waits for any more."""
        self.dropped.append((tokens, now_ms))


class Bench:
    """A node with two channels; what its clients are answered comes into a list."""

    def __init__(self, most: int = 10) -> None:
        self.me = ME
        self.now_ms = NOW_MS
        self.first, self.second = Channel(0), Channel(1)
        self.refusal: Refusal | None = None
        self.answers: list[tuple[int, Message]] = []
        held: Shares[int] = Shares("requests", "read.waiting_reads_max", self._give_up)
        settings = ReadSettings(waiting_reads_max=most)
        self.fates = WriteOutcomes(ME, *(cast("Any", self),) * 3, settings, held, count(1))

    def _give_up(self, _: int, token: int) -> None:
        self.fates.give_up(token, "others need the place")

    def answer(self, client: int, message: Message) -> None:
        """Keep the answer for the test."""
        self.answers.append((client, message))

    def serving_refusal(self, _: object) -> Refusal | None:
        """Whether the channel serves anything."""
        return self.refusal

    def served_at(self, level: str, runner: Channel) -> Served:
        """The newest state here."""
        return Served(ME, runner.channel, Term(3), Seq(50), 0, 0, level)

    def ask(
        self,
        number: int,
        channel: Channel | None = None,
        *,
        client: int = 7,
        timeout_ms: int = 1_000,
        guid: bytes | None = None,
    ) -> int:
        """A question about the write of that number; its token."""
        channel = channel or self.first
        before = len(channel.rounds)
        asked = guid if guid is not None else make_guid(b"producer", number)
        request = WriteFate(number, channel.channel, cast("Any", asked), timeout_ms)
        self.fates.on_request(client, request, cast("Any", channel), NOW_MS)
        return channel.rounds[-1][0] if len(channel.rounds) > before else 0

    def take(self) -> list[tuple[int, int, str]]:
        """Client, request and fate, or code, of what was answered since."""
        taken, self.answers = self.answers, []
        told = []
        for client, message in taken:
            assert isinstance(message, WriteFateAnswer | Failed)
            said = message.code if isinstance(message, Failed) else message.fate
            told.append((client, message.request_id, said))
        return told

    def refused(self) -> Failed:
        """The one refusal since."""
        [(_, message)] = self.answers
        self.answers = []
        assert isinstance(message, Failed)
        assert message.hosts == {"n1": message.message}
        return message


def test_answer_waits_for_a_round_and_tells_where_the_write_is() -> None:
    """S7.1: the round starts after the question came; the answer is of the leader's state."""
    bench = Bench()
    token = bench.ask(1)
    assert bench.first.rounds == [(token, NOW_MS)]
    bench.fates.on_applied(cast("Any", bench.first))
    assert bench.answers == []
    assert len(bench.fates) == 1
    bench.fates.on_confirmed(token, Seq(50))
    [(client, answer)] = bench.answers
    served = bench.served_at("linearizable", bench.first)
    assert client == 7
    assert answer == WriteFateAnswer(1, "committed", Seq(41), Term(3), "held", "", served)
    assert len(bench.fates) == 0
    assert bench.fates.open.deadlines.next_ms == NEVER_MS


@pytest.mark.parametrize("fate", [WriteOutcome.NOT_APPLIED, WriteOutcome.UNKNOWN])
def test_fates_without_a_place_are_told_with_their_reason(fate: WriteOutcome) -> None:
    """An unknown or unapplied fate has no seq; the answer gives the reason and the remedy."""
    bench = Bench()
    bench.first.fate = WriteOutcomeFound(fate)
    bench.fates.on_confirmed(bench.ask(1), Seq(50))
    [(_, answer)] = bench.answers
    assert isinstance(answer, WriteFateAnswer)
    assert (answer.fate, answer.seq) == (fate.value, 0)
    assert answer.reason


def test_write_that_is_not_committed_yet_is_waited_for() -> None:
    """Until its channel has applied it; what other channels apply is looked at by nobody."""
    bench = Bench()
    bench.first.fate = bench.second.fate = PENDING
    one, two = bench.ask(1), bench.ask(2, bench.second)
    bench.fates.on_confirmed(one, Seq(50))
    bench.fates.on_confirmed(two, Seq(50))
    assert bench.take() == []
    bench.first.fate = bench.second.fate = FOUND
    bench.fates.on_applied(cast("Any", bench.second))
    assert bench.take() == [(7, 2, "committed")]
    bench.fates.on_applied(cast("Any", bench.first))
    assert bench.take() == [(7, 1, "committed")]


def test_deadline_tells_what_is_in_the_log_as_unknown_and_what_is_unconfirmed_as_no_answer() -> (
    None
):
    """S4.1: it may still commit. Without a quorum this leader knows nothing at all."""
    bench = Bench()
    bench.first.fate = PENDING
    other, confirmed = bench.ask(2, timeout_ms=300), bench.ask(1, timeout_ms=300)
    late = bench.ask(3, timeout_ms=301)
    bench.fates.on_confirmed(confirmed, Seq(50))
    assert bench.fates.open.deadlines.next_ms == NOW_MS + 300
    bench.fates.on_timer(NOW_MS + 299)
    assert bench.answers == []
    bench.fates.on_timer(NOW_MS + 300)
    by_number = {message.request_id: message for _, message in bench.answers}  # type: ignore[attr-defined]
    assert sorted(by_number) == [1, 2]
    pending, refused = by_number[1], by_number[2]
    assert isinstance(pending, WriteFateAnswer)
    assert (pending.fate, pending.reason.endswith("ask again")) == ("unknown", True)
    assert isinstance(refused, Failed)
    assert (refused.code, refused.leader_hint) == ("query_error", ME)
    assert "t/0" in refused.message
    assert "within 300 ms" in refused.message
    assert bench.first.dropped == [(frozenset({other}), NOW_MS)]
    assert list(bench.fates.open) == [late]


def test_question_without_patience_waits_a_moment() -> None:
    """A timeout of 0 is no deadline that has passed before the question came."""
    bench = Bench()
    bench.ask(1, timeout_ms=0)
    assert bench.fates.open.deadlines.next_ms == NOW_MS + 1


def test_answer_that_comes_twice_or_too_late_changes_nothing() -> None:
    """Rounds and refusals of what is over are heard by nobody."""
    bench = Bench()
    token = bench.ask(1)
    bench.fates.on_refused(token, QueryError, "nobody confirmed it")
    refused = bench.refused()
    assert (refused.code, refused.message) == ("query_error", "nobody confirmed it")
    assert refused.leader_hint == ME
    bench.fates.on_confirmed(token, Seq(50))
    bench.fates.on_refused(token, QueryError, "again")
    bench.fates.give_up(token, "again")
    assert bench.answers == []
    assert bench.first.dropped == []


def test_leadership_that_ended_answers_nothing() -> None:
    """S7.1: a round of an earlier term says nothing of a log that may lack the write since."""
    bench = Bench()
    token = bench.ask(1)
    bench.first.elector.term = Term(4)
    bench.fates.on_confirmed(token, Seq(50))
    assert bench.refused().code == "not_leader"
    token = bench.ask(2)
    bench.first.fate = None  # the core leads no more
    bench.fates.on_confirmed(token, Seq(50))
    assert bench.refused().code == "not_leader"


def test_leader_that_has_called_too_many_writes_not_applied_says_so() -> None:
    """S5.6: each of them is remembered for the whole term."""
    bench = Bench()
    bench.first.fate = WriteOutcomeFound(WriteOutcome.OVERLOADED)
    bench.fates.on_confirmed(bench.ask(1), Seq(50))
    refused = bench.refused()
    assert (refused.code, "in this term" in refused.message) == ("overloaded", True)


def test_client_that_is_gone_is_told_nothing_and_its_rounds_end() -> None:
    """The core has places for rounds, which those who are gone must not keep; a round that is
    over has none."""
    bench = Bench()
    bench.first.fate = PENDING
    confirmed, one, two = bench.ask(1), bench.ask(2), bench.ask(3, bench.second)
    others = bench.ask(4, client=8)
    bench.fates.on_confirmed(confirmed, Seq(50))
    bench.fates.on_client_gone(7)
    assert bench.first.dropped == [(frozenset({one}), NOW_MS)]
    assert bench.second.dropped == [(frozenset({two}), NOW_MS)]
    assert list(bench.fates.open) == [others]
    bench.first.fate = FOUND
    bench.fates.on_applied(cast("Any", bench.first))
    assert bench.answers == []


def test_places_are_shared_and_the_largest_holder_gives_its_newest_up() -> None:
    """More of one client's than its share is refused; of all together the newest makes room."""
    bench = Bench(most=2)
    tokens = [bench.ask(number) for number in (1, 2)]
    assert bench.ask(3) == 0
    refused = bench.refused()
    assert (refused.code, "read.waiting_reads_max" in refused.message) == ("overloaded", True)
    for client in (8, 9):
        bench.ask(client, client=client)
    bench.ask(10, client=10)
    assert bench.take() == [(7, 2, "overloaded")]
    assert bench.first.dropped == [(frozenset({tokens[1]}), NOW_MS)]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_dropped_table_answers_its_questions_and_no_others(is_reopened: bool) -> None:
    """S0.8: at once; a channel that is opened anew was not dropped."""
    bench = Bench()
    bench.ask(1)
    bench.ask(2, bench.second)
    bench.ask(3)
    bench.first.is_reopened = is_reopened
    bench.fates.on_channel_closed(cast("Any", bench.first))
    code = "unavailable" if is_reopened else "unknown_channel"
    assert bench.take() == [(7, 1, code), (7, 3, code)]
    assert len(bench.fates) == 1


def test_question_that_no_leader_here_can_answer_is_refused_at_once() -> None:
    """GAP-08: each refusal says why, and where to ask."""
    bench = Bench()
    unknown = WriteFate(1, ChannelId(bytes(18)), make_guid(b"producer", 1), 100)
    bench.fates.on_request(7, unknown, None, NOW_MS)
    refused = bench.refused()
    assert (refused.code, refused.leader_hint) == ("unknown_channel", None)
    bench.refusal = Refusal(UnavailableError, "it recovers")
    bench.ask(1)
    assert (bench.refused().code, len(bench.fates)) == ("unavailable", 0)
    bench.refusal = None
    bench.first.elector.role = Role.FOLLOWER
    bench.first.elector.leader = OTHER
    bench.ask(2)
    refused = bench.refused()
    assert (refused.code, refused.leader_hint) == ("not_leader", OTHER)
    assert "led by n2" in refused.message
    bench.first.elector.leader = cast("Any", None)
    bench.ask(3)
    assert bench.refused().code == "no_leader"
    assert bench.first.rounds == []


@pytest.mark.parametrize(
    "guid", [make_guid(b"producer", 0), make_guid(b"producer", 1)[:-1], b"", b"x" * 40]
)
def test_guid_that_no_write_can_have_is_refused(guid: bytes) -> None:
    """Writes are counted from 1."""
    bench = Bench()
    bench.ask(1, guid=guid)
    refused = bench.refused()
    assert refused.code == "schema"
    assert guid_text(bench.first.channel, cast("Any", guid)) in refused.message
    assert bench.first.rounds == []


def test_first_write_of_a_publisher_may_be_asked_about() -> None:
    """It has the counter 1."""
    assert Bench().ask(1) > 0


def test_questions_have_tokens_of_their_own() -> None:
    """An answer reaches its own question."""
    bench = Bench()
    one, two = bench.ask(1), bench.ask(2, client=8)
    bench.fates.on_confirmed(two, Seq(50))
    assert bench.take() == [(8, 2, "committed")]
    bench.fates.on_confirmed(one, Seq(50))
    assert bench.take() == [(7, 1, "committed")]
