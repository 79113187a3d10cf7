"""Requests for states by commit: each waits for its own commit and seq, and is answered once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import ReadSettings
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reads.commit_reads import CommitReads
from raftstore.errors import Refusal, UnavailableError
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import Served
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.protocol.table_settings import DEFAULT_SETTINGS
from raftstore.state_machines.batches.staging import BatchHead
from raftstore.state_machines.state_keys import BATCH_HEAD, packed
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id

FIRST, SECOND = (channel_id(b"t" * 16, number) for number in range(2))
CLIENT, OTHER = 5, 6
SERVED = Served(NodeId("n1"), FIRST, Term(1), Seq(0), 0, 0, "any")


class Snapshot:
    """A state that is held until it is closed."""

    def __init__(self, applied: int) -> None:
        self.applied_seq = Seq(applied)
        self.closed = 0

    def close(self) -> None:
        """Give it back."""
        self.closed += 1


class Bench:
    """Two channels whose applied commit and seq the test moves."""

    def __init__(self, most: int = 10) -> None:
        self.runners: dict[ChannelId, Any] = {
            channel: SimpleNamespace(
                channel=channel,
                name=f"t/{number}",
                is_reopened=False,
                table_settings=DEFAULT_SETTINGS,
                commands=None,
            )
            for number, channel in enumerate((FIRST, SECOND))
        }
        self.heads = {FIRST: BatchHead(), SECOND: BatchHead()}
        self.applied = {FIRST: 0, SECOND: 0}
        self.versions: dict[int, Snapshot] = {}
        self.newest: list[Snapshot] = []
        self.refusal: Refusal | None = None
        self.kept: list[tuple[Any, ...]] = []
        self.pin: int | str = 44
        self.answers: list[tuple[int, Message]] = []
        self.scans = self
        me: Any = self
        self.settings = ReadSettings(waiting_reads_max=most)
        self.reads = CommitReads(self.runners, me, me, me, self.settings)

    # --- what it works with -----------------------------------------------------------------------

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """The head of the channel."""
        assert key == BATCH_HEAD
        return packed(self.heads[channel])

    def applied_seq(self, channel: ChannelId) -> Seq:
        """How far it is applied."""
        return Seq(self.applied[channel])

    def snapshot_at(self, channel: ChannelId, commit: int) -> Snapshot | None:
        """A state that was kept of before."""
        assert channel == FIRST
        return self.versions.get(commit)

    def snapshot(self, channel: ChannelId) -> Snapshot:
        """The newest state."""
        self.newest.append(Snapshot(self.applied[channel]))
        return self.newest[-1]

    def serving_refusal(self, runner: Any) -> Refusal | None:
        """Why the first channel serves nothing."""
        return self.refusal if runner.channel == FIRST else None

    def served_at(self, level: str, runner: Any) -> Served:
        """How fresh the answer is."""
        assert level == "any"
        assert runner is self.runners[runner.channel]
        return SERVED

    def keep(self, *of: Any) -> int | str:
        """Pin a state."""
        self.kept.append(of)
        return self.pin

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""
        self.answers.append((client, message))

    # --- what the test does -----------------------------------------------------------------------

    def ask(self, number: int, client: int = CLIENT, now_ms: int = 0, **fields: Any) -> None:
        """A request."""
        asked: dict[str, Any] = {
            "channel": FIRST, "as_of": 0, "keep": False, "min_commit": 0, "timeout_ms": 100,
        }  # fmt: skip
        self.reads.on_request(client, OpenSnapshot(number, **asked | fields), now_ms)

    def apply(self, commit: int, seq: int, channel: ChannelId = FIRST, now_ms: int = 10) -> None:
        """The channel moved."""
        self.heads[channel] = BatchHead(commit, seq, (commit, 9))
        self.applied[channel] = seq
        self.reads.on_applied(self.runners[channel], now_ms)

    def take(self) -> list[tuple[int, int, str]]:
        """Client, request and code of the answers since; no code for a state."""
        taken, self.answers = self.answers, []
        told = []
        for client, message in taken:
            assert isinstance(message, SnapshotAnswer | Failed)
            code = message.code if isinstance(message, Failed) else ""
            told.append((client, message.request_id, code))
        return told

    def is_empty(self) -> bool:
        """Nothing waits, and nothing is left of what did."""
        reads = self.reads
        nothing = not reads.waiting and not reads.waiting.shares.total
        return nothing and not len(reads._commits) and not len(reads._seqs)


def the_answer(bench: Bench) -> SnapshotAnswer:
    """The one answer."""
    [(_, answer)] = bench.answers
    bench.answers.clear()
    assert isinstance(answer, SnapshotAnswer)
    return answer


def text_of(bench: Bench) -> str:
    """Of the one refusal."""
    [(_, answer)] = bench.answers
    assert isinstance(answer, Failed)
    return answer.message


def test_state_that_is_applied_is_told_at_once() -> None:
    """With its commit, the vector published with it, and its position."""
    bench = Bench()
    bench.apply(3, 40)
    bench.ask(1, min_commit=3, min_seq=Seq(40))
    answer = the_answer(bench)
    assert (answer.request_id, answer.commit, answer.vector) == (1, 3, (3, 9))
    assert (answer.pin, answer.applied_seq, answer.served) == (0, 40, SERVED)
    assert answer.life_ms == bench.settings.scan_pin_life_ms
    assert bench.kept == []
    assert bench.is_empty()


@pytest.mark.parametrize("fields", [{"min_commit": 3}, {"as_of": 3}])
def test_commit_is_waited_for(fields: dict[str, int]) -> None:
    """No seq before it is an answer."""
    bench = Bench()
    bench.apply(2, 40)
    bench.ask(1, **fields)
    bench.apply(2, 50)
    assert bench.take() == []
    assert len(bench.reads._commits) == 1
    bench.apply(3, 51)
    assert bench.take() == [(CLIENT, 1, "")]
    assert bench.is_empty()
    bench.apply(4, 52)
    assert bench.take() == []


def test_seq_is_waited_for_when_its_commit_is_applied() -> None:
    """A batch is applied before rows that came behind it."""
    bench = Bench()
    bench.ask(1, min_commit=3, min_seq=Seq(60))
    bench.apply(3, 51)
    assert bench.take() == []
    assert (len(bench.reads._commits), len(bench.reads._seqs)) == (0, 1)
    bench.apply(3, 59)
    assert bench.take() == []
    bench.apply(3, 60)
    assert bench.take() == [(CLIENT, 1, "")]
    assert bench.is_empty()


def test_request_whose_commit_is_applied_waits_for_its_seq_alone() -> None:
    """It is not looked at for every commit that follows."""
    bench = Bench()
    bench.apply(3, 40)
    bench.ask(1, min_commit=3, min_seq=Seq(41))
    assert (len(bench.reads._commits), len(bench.reads._seqs)) == (0, 1)
    bench.apply(3, 41)
    assert bench.take() == [(CLIENT, 1, "")]


def test_only_requests_of_the_channel_that_moved_are_answered() -> None:
    """Commits of two channels have the same numbers."""
    bench = Bench()
    bench.ask(1, min_commit=3)
    bench.apply(3, 50, SECOND)
    assert bench.take() == []
    assert bench.reads.holds_for(CLIENT)
    assert not bench.reads.holds_for(OTHER)


def test_state_of_before_is_the_one_that_was_kept() -> None:
    """The vector of that commit is with its reader; a state that is not pinned is given back."""
    bench = Bench()
    bench.versions[2] = Snapshot(35)
    bench.apply(3, 40)
    bench.ask(1, as_of=2)
    answer = the_answer(bench)
    assert (answer.commit, answer.vector, answer.applied_seq, answer.pin) == (2, (), 35, 0)
    assert bench.versions[2].closed == 1


def test_state_of_before_that_is_not_kept_is_refused_once() -> None:
    """Never mixed with a newer one."""
    bench = Bench()
    bench.apply(3, 40)
    bench.ask(1, as_of=2)
    assert "has applied commit 3 and keeps the state of commit 2 no longer" in text_of(bench)
    assert bench.take() == [(CLIENT, 1, "snapshot_expired")]
    assert bench.is_empty()


@pytest.mark.parametrize("as_of", [0, 2, 3])
def test_state_is_pinned_for_its_client(as_of: int) -> None:
    """The newest, or the one of the commit."""
    bench = Bench()
    bench.versions[2] = Snapshot(35)
    bench.apply(3, 40)
    bench.ask(1, as_of=as_of, keep=True, idle_ms=700, now_ms=15)
    answer = the_answer(bench)
    held = bench.versions[2] if as_of == 2 else bench.newest[0]
    assert bench.kept == [(CLIENT, bench.runners[FIRST], held, 15, 700)]
    assert (answer.pin, answer.applied_seq) == (44, 35 if as_of == 2 else 40)
    assert held.closed == 0


def test_state_that_finds_no_place_is_given_back_and_refused() -> None:
    """Pins are bounded."""
    bench = Bench()
    bench.pin = "too many pins"
    bench.ask(1, keep=True)
    assert text_of(bench) == "too many pins"
    assert bench.take() == [(CLIENT, 1, "overloaded")]
    assert [each.closed for each in bench.newest] == [1]


def test_channel_that_is_not_here_is_refused_once() -> None:
    """Its placement is another one."""
    bench = Bench()
    bench.ask(1, channel=channel_id(b"x" * 16, 0))
    assert bench.take() == [(CLIENT, 1, "unknown_channel")]
    assert bench.is_empty()


def test_channel_that_stops_serving_refuses_what_waits_for_it() -> None:
    """S0.3, S13: at once, and nothing of another channel."""
    bench = Bench()
    bench.ask(1, min_commit=3)
    bench.ask(2, channel=SECOND, min_commit=3)
    bench.refusal = Refusal(UnavailableError, "histories differ")
    bench.reads.on_applied(bench.runners[FIRST], 10)
    assert text_of(bench) == "histories differ"
    assert bench.take() == [(CLIENT, 1, "unavailable")]
    bench.reads.on_applied(bench.runners[SECOND], 10)
    bench.ask(3)
    assert bench.take() == [(CLIENT, 3, "unavailable")]
    assert len(bench.reads.waiting) == 1


def test_request_is_refused_at_its_deadline_with_what_is_applied() -> None:
    """Another replica may have more; a patience of nothing is one of a millisecond."""
    bench = Bench()
    bench.apply(2, 40)
    bench.ask(1, min_commit=3, min_seq=Seq(7))
    assert bench.reads.waiting.deadlines.next_ms == 100
    bench.reads.on_timer(99)
    assert bench.answers == []
    bench.reads.on_timer(100)
    assert text_of(bench) == (
        "channel t/0 has applied commit 2 and seq 40, not commit 3 and seq 7 within 100 ms; ask "
        "another replica"
    )
    assert bench.take() == [(CLIENT, 1, "not_up_to_bound")]
    assert bench.is_empty()
    bench.ask(2, min_commit=3, timeout_ms=0, now_ms=200)
    assert bench.reads.waiting.deadlines.next_ms == 201


def test_requests_of_a_dropped_table_are_refused() -> None:
    """Those of others wait on."""
    bench = Bench()
    bench.ask(1, min_commit=3)
    bench.ask(2, channel=SECOND, min_commit=3)
    bench.reads.on_channel_closed(bench.runners[FIRST])
    assert text_of(bench) == "the table was dropped"
    assert bench.take() == [(CLIENT, 1, "unknown_channel")]
    bench.reads.on_channel_closed(bench.runners[FIRST])
    assert bench.take() == []
    bench.apply(3, 50, SECOND, now_ms=20)
    assert [request for _, request, _ in bench.take()] == [2]


def test_requests_outlive_a_channel_that_is_opened_anew() -> None:
    """Another replica's table may hold the commit; or not yet, or it serves nothing."""
    bench = Bench()
    for number, commit in ((1, 3), (2, 4), (3, 5)):
        bench.ask(number, min_commit=commit)
    before = bench.runners[FIRST]
    before.is_reopened = True
    bench.reads.on_channel_closed(before)
    assert bench.take() == []
    bench.runners[FIRST] = SimpleNamespace(**{**vars(before), "is_reopened": False})
    bench.heads[FIRST], bench.applied[FIRST] = BatchHead(3), 50
    bench.reads.on_channel_opened(bench.runners[SECOND], 20)
    assert bench.take() == []
    bench.reads.on_channel_opened(bench.runners[FIRST], 20)
    assert bench.take() == [(CLIENT, 1, "")]
    bench.apply(4, 60)
    assert bench.take() == [(CLIENT, 2, "")]
    bench.refusal = Refusal(UnavailableError, "it recovers")
    bench.reads.on_channel_opened(bench.runners[FIRST], 20)
    assert bench.take() == [(CLIENT, 3, "unavailable")]
    assert bench.is_empty()


def test_requests_end_with_their_client() -> None:
    """Nothing is answered any more, and their places are free."""
    bench = Bench()
    bench.ask(1, min_commit=3)
    bench.ask(2, min_commit=0, min_seq=Seq(9))
    bench.ask(3, OTHER, min_commit=3)
    bench.reads.on_client_gone(CLIENT)
    assert not bench.reads.holds_for(CLIENT)
    bench.apply(3, 50)
    assert bench.take() == [(OTHER, 3, "")]
    assert bench.is_empty()
    assert bench.reads.waiting.deadlines.next_ms == NEVER_MS


def test_requests_of_one_client_are_bounded() -> None:
    """More than that is refused and waits for nothing; an answer at once needs no place."""
    bench = Bench(most=2)
    for number in (1, 2, 3):
        bench.ask(number, min_commit=3)
    assert "the limit of one client is 2 (read.waiting_reads_max)" in text_of(bench)
    assert "holds 2 reads waiting for a commit" in text_of(bench)
    assert bench.take() == [(CLIENT, 3, "overloaded")]
    bench.ask(4)
    assert bench.take() == [(CLIENT, 4, "")]
    bench.apply(3, 50)
    assert bench.take() == [(CLIENT, 1, ""), (CLIENT, 2, "")]


def test_largest_holder_gives_up_its_newest_request_for_others() -> None:
    """It learns that; the place is the other client's."""
    bench = Bench(most=2)
    for number, client in ((1, CLIENT), (2, CLIENT), (3, OTHER), (4, OTHER), (5, 7)):
        bench.ask(number, client, min_commit=3)
    [(client, request, code)] = bench.take()
    assert (client, request, code) == (CLIENT, 2, "overloaded")
    bench.apply(3, 50)
    assert sorted(request for _, request, _ in bench.take()) == [1, 3, 4, 5]
    assert bench.is_empty()
