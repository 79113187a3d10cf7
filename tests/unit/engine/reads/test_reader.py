"""Reads by themselves: which wait for what, and that each ends once, answered or refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from raftstore.config import QuerySettings, ReadSettings
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reads.many_gets import PartId
from raftstore.engine.reads.reader import PROOFS_MAX, Reader
from raftstore.engine.shares import GIVEN_UP
from raftstore.errors import (
    MachineStoppedError,
    NoLeaderError,
    NotLeaderError,
    Refusal,
    RequestError,
)
from raftstore.protocol.machines import MachineQuery
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import Bounds, Get, GetAnswer, Scan
from raftstore.protocol.table_settings import DEFAULT_SETTINGS
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, channel_id

ME, PEER = NodeId("n1@00"), NodeId("n2@00")
FIRST, SECOND = (channel_id(b"t" * 16, number) for number in range(2))
CLIENT, OTHER, THIRD = 5, 6, 7
WAIT_MS = ReadSettings().freshness_wait_ms


class Runner:
    """One channel as reads see it."""

    def __init__(self, channel: ChannelId, number: int) -> None:
        self.channel, self.name = channel, f"t/{number}"
        self.bounds = Bounds()
        self.table_settings = DEFAULT_SETTINGS
        self.stopped_reason: str | None = None
        self.table_damage: str | None = None
        self.has_rows = True
        self.commands: Any = None
        self.unserved_until = 0
        self.is_reopened = False
        self.leader_info_heard_ms: int | None = 0
        self.elector = SimpleNamespace(role=Role.FOLLOWER, leader=PEER, term=Term(3))
        self.as_of: int | None = None
        self.core: Any = SimpleNamespace(
            commit_seq=Seq(10),
            knows_position=True,
            is_trusting=True,
            leader_is_ready=True,
            is_recovering=False,
            doubt="",
            is_disputed=False,
            proven_ms=None,
            batches_between=lambda applied, end: (0, 0),
            fresh_as_of=lambda applied: self.as_of,
            tell_batches=lambda applied: 0,
        )
        self.asked: list[tuple[Callable[[Seq], None], Callable[..., None]]] = []
        self.dropped: list[frozenset[int]] = []
        self.proofs: list[tuple[int, int]] = []

    def request_read(
        self, on_confirmed: Callable[[Seq], None], on_refused: Callable[..., None], now_ms: int
    ) -> int:
        """Have a quorum confirm the leader."""
        self.asked.append((on_confirmed, on_refused))
        return 100 + len(self.asked)

    def drop_reads(self, tokens: frozenset[int], now_ms: int) -> None:
        """Questions that are over."""
        self.dropped.append(tokens)

    def request_proof(self, until_ms: int, now_ms: int) -> None:
        """A round trip to the leader."""
        self.proofs.append((until_ms, now_ms))


class Bench:
    """A node with two channels, and a table store whose position the test moves."""

    def __init__(self, **settings: int) -> None:
        self.runners = {
            channel: Runner(channel, number) for number, channel in enumerate((FIRST, SECOND))
        }
        self.applied = {FIRST: Seq(10), SECOND: Seq(10)}
        self.answers: list[tuple[int, Message]] = []
        self.clock = SimpleNamespace(now_ms=0)
        me: Any = self
        parts: Any = SimpleNamespace(query=QuerySettings(max_lag=5), read=ReadSettings(**settings))
        self.reader = Reader(ME, me, me, me.clock, me, me, parts)

    @property
    def runner(self) -> Any:
        """The first channel."""
        return self.runners[FIRST]

    def applied_seq(self, channel: ChannelId) -> Seq:
        """How far the channel is applied."""
        return self.applied[channel]

    def get_many(self, channel: ChannelId, keys: tuple[bytes, ...], bytes_max: int) -> Any:
        """The rows of now."""
        seqs = [self.applied[channel]] * len(keys)
        return SimpleNamespace(
            values=list(keys), seqs=seqs, size=1, applied_seq=self.applied[channel]
        )

    def known_commit(self, runner: Any) -> Seq:
        """The end of the channel, as far as it is known."""
        commit: Seq = runner.core.commit_seq
        return commit

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""
        self.answers.append((client, message))

    def lead(self) -> None:
        """This node leads the first channel."""
        self.runner.elector.role, self.runner.elector.leader = Role.LEADER, ME

    def ask(self, number: int, client: int = CLIENT, now_ms: int = 0, **fields: Any) -> None:
        """A read of one key."""
        asked: dict[str, Any] = {
            "channel": FIRST, "keys": (b"k",), "level": "any", "max_lag": None, "min_seq": Seq(0),
            "timeout_ms": 1_000,
        }  # fmt: skip
        request = Get(number, **asked | fields)
        self.clock.now_ms = now_ms
        runner: Any = self.runners.get(request.channel)
        self.reader.on_request(client, request, runner, now_ms)

    def apply(self, seq: int, channel: ChannelId = FIRST) -> None:
        """The channel moves."""
        self.applied[channel] = Seq(seq)
        runner: Any = self.runners[channel]
        self.reader.on_applied(runner, (), self.clock.now_ms)

    def tick(self, now_ms: int) -> None:
        """A timer."""
        self.clock.now_ms = now_ms
        self.reader.on_timer(now_ms)

    def prove(self, as_of: int | None) -> None:
        """A round trip ended."""
        self.runner.as_of = self.runner.core.proven_ms = as_of
        self.reader.on_freshness(self.runner)

    def take(self) -> list[tuple[int, int, str]]:
        """Client, request and code of the answers since; no code for rows."""
        taken, self.answers = self.answers, []
        told = []
        for client, message in taken:
            assert isinstance(message, GetAnswer | Failed)
            code = message.code if isinstance(message, Failed) else ""
            told.append((client, message.request_id, code))
        return told

    def text(self) -> str:
        """Of the one refusal."""
        [(_, message)] = self.answers
        assert isinstance(message, Failed)
        return message.message

    def is_empty(self) -> bool:
        """Nothing waits, and nothing is left of what did."""
        reader = self.reader
        waits = reader._waits
        nothing = not reader.waiting and reader.deadlines.next_ms == NEVER_MS
        left = (waits._by_channel, waits._unproven, len(waits._positions), waits._keys.total)
        holders = [client for client in (CLIENT, OTHER, THIRD) if reader.holds_for(client)]
        return nothing and not any(left) and not waits.held.total and not holders


def test_read_waits_for_its_position_and_no_longer() -> None:
    """Given two reads for two positions, each is answered when its own is applied."""
    bench = Bench()
    bench.ask(1, min_seq=Seq(12))
    bench.ask(2, min_seq=Seq(11))
    bench.ask(3, min_seq=Seq(10))
    assert bench.take() == [(CLIENT, 3, "")]
    assert bench.reader.waiting == 2
    bench.apply(12, SECOND)
    assert bench.take() == []
    bench.apply(11)
    assert bench.take() == [(CLIENT, 2, "")]
    bench.apply(12)
    assert bench.take() == [(CLIENT, 1, "")]
    assert bench.is_empty()


def test_rows_of_a_channel_set_and_machines_of_a_table_are_refused() -> None:
    """Each is asked in its own way; a read of no key says how fresh a replica is, of either."""
    bench = Bench()
    query = MachineQuery(1, FIRST, b"k", b"", "any", None, Seq(0), 1_000)
    bench.reader.on_request(CLIENT, query, bench.runner, 0)
    assert "has no state machine" in bench.text()
    assert bench.take() == [(CLIENT, 1, "schema")]
    bench.runner.commands = SimpleNamespace(refusal=lambda: None, is_whole=True)
    bench.ask(2)
    assert "query its state machine" in bench.text()
    bench.ask(3, keys=())
    bench.reader.on_request(
        CLIENT, Scan(4, FIRST, b"", b"", 1, "any", None, Seq(0), 9), bench.runner, 0
    )
    assert bench.take() == [
        (CLIENT, 2, "schema"),
        (CLIENT, 3, ""),
        (CLIENT, 4, "schema"),
    ]
    begun: list[Any] = []
    bench.reader.machines.begin = lambda *of: begun.append(of)  # type: ignore[method-assign]
    bench.reader.on_request(CLIENT, query, bench.runner, 7)
    assert begun == [(CLIENT, query, bench.runner, 1_007)]


def test_query_behind_a_stopped_machine_is_refused_at_once() -> None:
    """Nothing behind the command is applied, so no patience brings the position."""
    bench = Bench()
    stopped = Refusal(MachineStoppedError, "stopped at seq 11")
    bench.runner.commands = SimpleNamespace(refusal=lambda: stopped, is_whole=True)
    query = MachineQuery(1, FIRST, b"k", b"", "any", None, Seq(12), 1_000)
    bench.reader.on_request(CLIENT, query, bench.runner, 0)
    assert bench.take() == [(CLIENT, 1, "machine_stopped")]
    assert bench.is_empty()


@pytest.mark.parametrize("stops", ["before", "meanwhile"])
def test_linearizable_read_of_a_stopped_machine_says_what_it_would_wait_for(stops: str) -> None:
    """The command at which it stands is committed, so the read would have to show it: no quorum is
    what is missing."""
    bench = Bench()
    bench.lead()
    stop = [Refusal(MachineStoppedError, "stopped at seq 11")] if stops == "before" else []
    bench.runner.commands = SimpleNamespace(refusal=lambda: next(iter(stop), None), is_whole=True)
    query = MachineQuery(1, FIRST, b"k", b"", "linearizable", None, Seq(0), 100)
    bench.reader.on_request(CLIENT, query, bench.runner, 0)
    if stops == "meanwhile":
        assert bench.answers == []
        stop.append(Refusal(MachineStoppedError, "stopped at seq 11"))
        bench.tick(100)
    assert bench.take() == [(CLIENT, 1, "machine_stopped")]
    assert bench.is_empty()


def test_late_read_at_the_leader_says_how_far_is_applied() -> None:
    """A quorum may have confirmed the leader long ago."""
    bench = Bench()
    bench.lead()
    bench.runner.core.commit_seq = Seq(99)
    bench.ask(1, level="linearizable", timeout_ms=100)
    bench.tick(100)
    [(_, message)] = bench.answers
    assert isinstance(message, Failed)
    assert "of 99 that are committed is all that was applied, within 100 ms" in message.message


def test_queries_of_a_closed_channel_end() -> None:
    """S0.8: what a machine was asked is forgotten with the channel, however it was closed."""
    bench = Bench()
    closed: list[Any] = []
    bench.reader.machines.on_channel_closed = closed.append  # type: ignore[method-assign]
    bench.reader.on_channel_closed(bench.runner)
    assert closed == [bench.runner]


def test_leader_answers_what_was_committed_when_the_read_came() -> None:
    """S7.0: given a commit that is not applied yet, the read waits for it."""
    bench = Bench()
    bench.lead()
    bench.runner.core.commit_seq = Seq(12)
    bench.ask(1, level="leader")
    bench.apply(11)
    assert bench.take() == []
    bench.apply(12)
    assert bench.take() == [(CLIENT, 1, "")]
    bench.runner.core.leader_is_ready = False
    bench.ask(2, level="leader")
    assert "has not committed in its term yet" in bench.text()
    assert bench.take() == [(CLIENT, 2, NoLeaderError.code)]


@pytest.mark.parametrize("level", ["leader", "linearizable"])
@pytest.mark.parametrize(
    ("leader", "error", "text"),
    [(PEER, NotLeaderError, "is led by n2, ask there"), (None, NoLeaderError, "has no leader")],
)
def test_follower_names_the_leader_if_it_knows_one(
    level: str, leader: NodeId | None, error: type[RequestError], text: str
) -> None:
    """S7.1: such a read is the leader's to answer."""
    bench = Bench()
    bench.runner.elector.leader = leader
    bench.ask(1, level=level)
    [(_, refused)] = bench.answers
    assert isinstance(refused, Failed)
    assert (refused.code, refused.leader_hint) == (error.code, leader)
    assert text in refused.message
    assert bench.is_empty()


def test_linearizable_read_waits_for_its_confirmation_and_its_position() -> None:
    """S7.1: both, whichever comes later; a second confirmation finds nothing."""
    bench = Bench()
    bench.lead()
    bench.ask(1, level="linearizable")
    [(confirmed, refused)] = bench.runner.asked
    bench.apply(11)
    assert bench.take() == []
    confirmed(Seq(12))
    assert bench.take() == []
    bench.apply(12)
    assert bench.take() == [(CLIENT, 1, "")]
    confirmed(Seq(12))
    refused(NotLeaderError, "too late")
    assert bench.take() == []
    assert bench.is_empty()
    assert bench.runner.dropped == []


def test_read_whose_leader_is_not_confirmed_is_refused_with_the_next_one() -> None:
    """S7.1: the core says why."""
    bench = Bench()
    bench.lead()
    bench.ask(1, level="linearizable")
    bench.runner.elector.leader = PEER
    bench.runner.asked[0][1](NotLeaderError, "led elsewhere")
    [(_, message)] = bench.answers
    assert isinstance(message, Failed)
    assert (message.message, message.leader_hint) == ("led elsewhere", PEER)
    assert bench.take() == [(CLIENT, 1, NotLeaderError.code)]
    assert bench.is_empty()


def test_reads_whose_deadline_has_come_are_refused_and_their_questions_dropped() -> None:
    """Each with its own reason: an unconfirmed leader, or a position that was not applied."""
    bench = Bench()
    bench.lead()
    bench.ask(1, level="linearizable", timeout_ms=100)
    bench.ask(2, min_seq=Seq(20), timeout_ms=100)
    bench.ask(3, level="linearizable", timeout_ms=200)
    bench.tick(99)
    assert bench.answers == []
    bench.tick(100)
    texts = [message.message for _, message in bench.answers if isinstance(message, Failed)]
    assert "no quorum confirmed the leader within 100 ms" in texts[0]
    assert "no quorum" not in texts[1]
    assert [number for _, number, _ in bench.take()] == [1, 2]
    assert bench.runner.dropped == [frozenset({101})]
    assert bench.reader.waiting == 1
    bench.runner.asked[0][0](Seq(1))
    assert bench.take() == []


def test_patience_of_nothing_is_a_millisecond() -> None:
    """A deadline that is over already would refuse what may come in this very turn."""
    bench = Bench()
    bench.ask(1, min_seq=Seq(20), timeout_ms=0, now_ms=50)
    assert bench.reader.deadlines.next_ms == 51


def test_reads_of_a_client_that_is_gone_end_with_it() -> None:
    """S12: and their questions at the core; those of others go on."""
    bench = Bench()
    bench.lead()
    bench.ask(1, level="linearizable")
    bench.ask(2, level="linearizable")
    bench.ask(3, min_seq=Seq(11))
    bench.ask(4, OTHER, min_seq=Seq(11))
    bench.reader.on_client_gone(CLIENT)
    assert bench.runner.dropped == [frozenset({101, 102})]
    assert not bench.reader.holds_for(CLIENT)
    bench.apply(11)
    assert bench.take() == [(OTHER, 4, "")]
    assert bench.is_empty()


def test_reads_of_a_dropped_table_are_refused() -> None:
    """Nothing of another table."""
    bench = Bench()
    bench.lead()
    bench.ask(1, level="linearizable")
    bench.ask(2, min_seq=Seq(11))
    bench.ask(3, channel=SECOND, min_seq=Seq(11))
    bench.reader.on_channel_closed(bench.runner)
    assert bench.take() == [(CLIENT, 1, "unknown_channel"), (CLIENT, 2, "unknown_channel")]
    bench.apply(11, SECOND)
    assert bench.take() == [(CLIENT, 3, "")]
    bench.ask(4, channel=channel_id(b"x" * 16, 0))
    assert bench.take() == [(CLIENT, 4, "unknown_channel")]
    assert bench.is_empty()


@pytest.mark.parametrize("is_recovering", [False, True])
def test_reads_that_wait_for_a_position_outlive_a_channel_that_is_opened_anew(
    is_recovering: bool,
) -> None:
    """Another replica's table may hold the position; a channel that serves nothing says so at
    once, and no leader answers that was asked before."""
    bench = Bench()
    bench.lead()
    bench.ask(1, level="linearizable")
    bench.ask(2, min_seq=Seq(11))
    bench.ask(3, min_seq=Seq(30))
    bench.runner.is_reopened = True
    bench.reader.on_channel_closed(bench.runner)
    assert bench.take() == [(CLIENT, 1, "unavailable")]
    opened: Any = Runner(FIRST, 0)
    opened.core.is_recovering = is_recovering
    bench.applied[FIRST] = Seq(20)
    bench.reader.on_channel_opened(opened, 5)
    if is_recovering:
        assert bench.take() == [(CLIENT, 2, "unavailable"), (CLIENT, 3, "unavailable")]
    else:
        assert bench.take() == [(CLIENT, 2, "")]
        bench.applied[FIRST] = Seq(30)
        bench.reader.on_applied(opened, (), 6)
        assert bench.take() == [(CLIENT, 3, "")]
    assert bench.is_empty()


@pytest.mark.parametrize("level", ["any", "linearizable"])
def test_largest_holder_gives_up_its_newest_read_for_others(level: str) -> None:
    """It learns that at once, once, and its question at the core is dropped."""
    bench = Bench(waiting_reads_max=2)
    bench.lead()
    for number, client in ((1, CLIENT), (2, CLIENT), (3, OTHER), (4, OTHER)):
        bench.ask(number, client, level=level, min_seq=Seq(11))
    bench.ask(9, CLIENT, min_seq=Seq(11))
    assert "the limit of one client is 2 (read.waiting_reads_max)" in bench.text()
    assert bench.take() == [(CLIENT, 9, "overloaded")]
    bench.ask(5, THIRD, level=level, min_seq=Seq(11))
    assert "holds more on the node than any other" in bench.text()
    assert bench.take() == [(CLIENT, 2, "overloaded")]
    assert bench.reader.waiting == 4
    assert bench.runner.dropped == ([frozenset({102})] if level == "linearizable" else [])
    for confirmed, _ in bench.runner.asked:
        confirmed(Seq(11))
    bench.apply(11)
    assert sorted(number for _, number, _ in bench.take()) == [1, 3, 4, 5]
    assert bench.is_empty()


def test_keys_of_waiting_reads_are_bounded() -> None:
    """By the bytes of one client, and given back with the answer."""
    bench = Bench(waiting_reads_bytes_max=10)
    bench.ask(1, keys=(b"12345", b"6789"), min_seq=Seq(11))
    bench.ask(2, keys=(b"12",), min_seq=Seq(11))
    assert "holds 9 bytes of keys and wants 2 more" in bench.text()
    assert "(read.waiting_reads_bytes_max)" in bench.text()
    assert bench.take() == [(CLIENT, 2, "overloaded")]
    bench.apply(11)
    bench.ask(3, keys=(b"1234567890",), min_seq=Seq(12))
    assert [number for _, number, _ in bench.take()] == [1]
    assert bench.reader.waiting == 1


def test_ends_of_a_waiting_range_count_like_keys() -> None:
    """S12: both ends of it."""
    bench = Bench(waiting_reads_bytes_max=10)
    scan = Scan(1, FIRST, b"12345", b"6789", 1, "any", None, Seq(11), 100)
    bench.reader.on_request(CLIENT, scan, bench.runner, 0)
    bench.ask(2, keys=(b"12",), min_seq=Seq(11))
    assert "holds 9 bytes of keys and wants 2 more" in bench.text()
    bench.tick(100)
    assert bench.is_empty()


def test_read_that_can_be_answered_at_once_takes_no_place() -> None:
    """S12: given a client whose reads fill its share, what is applied is read all the same."""
    bench = Bench(waiting_reads_max=1)
    bench.ask(1, min_seq=Seq(11))
    bench.ask(2, min_seq=Seq(10))
    assert bench.take() == [(CLIENT, 2, "")]
    bench.ask(3, min_seq=Seq(11))
    assert bench.take() == [(CLIENT, 3, "overloaded")]


def test_other_reads_of_the_node_hear_what_reads_of_rows_hear() -> None:
    """Scans, gets of many channels, and questions for the fate of a write: at the same moments."""
    bench = Bench()
    heard: list[tuple[Any, ...]] = []

    class Part:
        """Notes its calls."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, called: str) -> Callable[..., None]:
            return lambda *of: heard.append((self.name, called, *of))

    parts: Any = bench.reader
    parts.scans, parts.many, parts.write_outcomes = map(Part, ("scans", "many", "fates"))
    runner = bench.runner

    def of(act: Callable[[], None]) -> list[tuple[Any, ...]]:
        heard.clear()
        act()
        return sorted(heard, key=lambda call: call[:2])

    reader = bench.reader
    assert of(lambda: reader.on_applied(runner, (), 1)) == [("fates", "on_applied", runner)]
    assert of(lambda: reader.on_timer(7)) == [("fates", "on_timer", 7), ("scans", "on_timer", 7)]
    assert of(lambda: reader.on_channel_closed(runner)) == [
        ("fates", "on_channel_closed", runner),
        ("scans", "on_channel_closed", runner),
    ]
    assert of(lambda: reader.on_client_gone(CLIENT)) == [
        (part, "on_client_gone", CLIENT) for part in ("fates", "many", "scans")
    ]


def test_place_of_a_question_for_a_fate_is_given_up_like_that_of_a_read() -> None:
    """S12: they have one share; each is informed why by its own part, once."""
    bench = Bench()
    given: list[tuple[int, str]] = []
    parts: Any = bench.reader
    parts.write_outcomes = SimpleNamespace(give_up=lambda *of: given.append(of))
    bench.ask(1, min_seq=Seq(11))
    bench.reader._give_up(CLIENT, 999)
    assert given == [(999, GIVEN_UP)]
    assert bench.take() == []
    assert bench.reader.waiting == 1


@pytest.mark.parametrize("part", [None, PartId(8)])
def test_part_of_a_request_is_answered_to_the_request(part: PartId | None) -> None:
    """Rows and refusals alike; the client learns of all parts together."""
    bench = Bench()
    collected: list[tuple[Any, ...]] = []
    parts: Any = bench.reader
    parts.many = SimpleNamespace(collect=lambda *of: collected.append(of))
    runner = bench.runner
    get = Get(1, FIRST, (b"k",), "any", None, Seq(0), 100)
    bench.reader.on_request(CLIENT, get, runner, 0, part)
    bench.reader.on_request(CLIENT, replace(get, level="strong"), runner, 0, part)
    bench.reader.on_request(CLIENT, get, None, 0, part)
    expected = ["", "schema", "unknown_channel"]
    if part is None:
        assert [code for _, _, code in bench.take()] == expected
        assert collected == []
    else:
        assert bench.take() == []
        assert [getattr(message, "code", "") for _, message in collected] == expected
        assert {found for found, _ in collected} == {part}


# --- bounds in time -------------------------------------------------------------------------------


def test_read_with_a_bound_in_time_waits_for_one_round_trip() -> None:
    """S7.3: given one that proves the state to be new enough, it is answered."""
    bench = Bench()
    bench.ask(1, level="bounded", max_staleness_ms=50, now_ms=200)
    assert bench.runner.proofs == [(200 + WAIT_MS, 200)]
    assert bench.reader.deadlines.next_ms == 200 + WAIT_MS
    bench.prove(190)
    assert bench.take() == [(CLIENT, 1, "")]
    assert bench.is_empty()


def test_read_waits_for_a_bounded_number_of_round_trips() -> None:
    """S7.3: when the second is too old on arrival, the bound is shorter than a round trip."""
    bench = Bench()
    bench.ask(1, level="bounded", max_staleness_ms=50, now_ms=200)
    for number in range(PROOFS_MAX):
        assert bench.take() == []
        assert len(bench.runner.proofs) == 1 + number
        bench.prove(100)
    assert [number for _, number, _ in bench.take()] == [1]
    assert len(bench.runner.proofs) == PROOFS_MAX
    assert bench.is_empty()


def test_read_that_nothing_proves_in_time_is_refused_soon() -> None:
    """S7.3: not as late as at its own deadline; and another one that is late is not passed over."""
    bench = Bench()
    bench.ask(1, level="bounded", max_staleness_ms=50)
    bench.ask(2, min_seq=Seq(20), timeout_ms=WAIT_MS)
    bench.ask(3, level="bounded", max_staleness_ms=50)
    bench.tick(WAIT_MS - 1)
    assert bench.take() == []
    bench.tick(WAIT_MS)
    assert sorted(number for _, number, _ in bench.take()) == [1, 2, 3]
    assert bench.is_empty()


def test_read_whose_state_became_new_enough_meanwhile_is_answered_in_the_end() -> None:
    """S7.3: its bounds are judged once more when it has waited long enough for a proof."""
    bench = Bench()
    bench.ask(1, level="bounded", max_staleness_ms=50, now_ms=200)
    due_ms = 200 + WAIT_MS
    bench.runner.as_of = due_ms - 50
    bench.tick(due_ms)
    assert bench.take() == [(CLIENT, 1, "")]
    assert bench.is_empty()


def test_proof_counts_until_the_end_of_the_read_when_its_position_is_not_applied() -> None:
    """S7.3: given a proven end that has to be applied, no second round trip is asked for."""
    bench = Bench()
    bench.runner.core.commit_seq = Seq(12)
    bench.ask(1, level="bounded", max_staleness_ms=50, now_ms=100)
    count = len(bench.runner.proofs)
    bench.runner.core.proven_ms = 100
    bench.reader.on_freshness(bench.runner)
    assert len(bench.runner.proofs) == count
    assert bench.take() == []
    bench.runner.as_of = 100
    bench.apply(12)
    assert bench.take() == [(CLIENT, 1, "")]


@pytest.mark.parametrize(("proven_ms", "is_asked"), [(100, False), (125, False), (126, True)])
def test_proof_is_renewed_when_half_of_its_time_is_over(proven_ms: int, is_asked: bool) -> None:
    """The next read of this kind finds a new one instead of waiting for it."""
    bench = Bench()
    bench.runner.core.proven_ms = bench.runner.as_of = 1_000 - proven_ms
    bench.ask(1, level="bounded", max_staleness_ms=250, now_ms=1_000)
    assert bench.take() == [(CLIENT, 1, "")]
    assert bench.runner.proofs == ([(1_000 + WAIT_MS, 1_000)] if is_asked else [])
    bench.ask(2, level="any", now_ms=2_000)
    bench.ask(3, level="bounded", max_lag=3)
    assert len(bench.runner.proofs) == is_asked


# --- how far behind -------------------------------------------------------------------------------


def test_answer_tells_how_far_behind_its_state_is() -> None:
    """S7.3: unknown where the leader was not heard lately or this node stood still."""
    bench = Bench()
    runner, lag = bench.runner, bench.reader.lag
    runner.core.commit_seq = Seq(14)
    assert lag(runner, 30) == (4, 30)
    assert lag(runner, 30, Seq(13)) == (1, 30)
    runner.leader_info_heard_ms = 40
    assert lag(runner, 30) == (4, 0), "a clock that went back tells no age"
    runner.core.is_trusting = False
    assert lag(runner, 50) == (None, 10)
    runner.leader_info_heard_ms = None
    assert lag(runner, 50) == (None, None)
    bench.lead()
    assert lag(runner, 50) == (4, 0), "a leader knows its own end"
    runner.core.knows_position = False
    assert lag(runner, 50) == (None, None)


@pytest.mark.parametrize(
    ("asked", "table", "code"),
    [
        (4, 3, ""),
        (3, 4, "lag_exceeded"),
        (None, 3, "lag_exceeded"),
        (None, 4, ""),
        (None, None, ""),
    ],
)
def test_bounds_of_a_read_count_before_those_of_its_table_and_of_the_node(
    asked: int | None, table: int | None, code: str
) -> None:
    """BLOG-20: given a state that is 4 rows behind; the node's bound is 5."""
    bench = Bench()
    bench.runner.core.commit_seq = Seq(14)
    bench.runner.bounds = Bounds(max_lag=table)
    bench.ask(1, level="bounded", max_lag=asked)
    bench.tick(5_000)
    assert bench.take() == [(CLIENT, 1, code)]


def test_answer_tells_which_batches_it_does_not_hold() -> None:
    """S7.3: between its own state and the end that is known; none where that is unknown."""
    bench = Bench()
    runner = bench.runner
    runner.core.commit_seq = Seq(14)
    runner.core.batches_between = lambda applied, end: (applied, end)
    runner.core.tell_batches = lambda applied: 100 + applied
    runner.as_of = 40
    bench.clock.now_ms = 50
    told = bench.reader.freshness(runner)
    assert (told.batches_behind, told.staleness_ms) == ((10, 14), 10)
    served = bench.reader.served_at("any", runner, Seq(12))
    assert (served.applied_seq, served.batches_behind, served.batches) == (12, 14, 112)
    assert (served.node, served.channel, served.term, served.level) == (ME, FIRST, 3, "any")
    assert (served.lag, served.leader_info_age_ms, served.staleness_ms) == (2, 50, 10)
    runner.core.is_trusting = False
    assert bench.reader.freshness(runner).batches_behind is None
    assert bench.reader.served_at("any", runner).batches_behind is None


def test_level_that_is_none_is_refused_with_those_that_are() -> None:
    """A client's mistake is answered in full."""
    bench = Bench()
    bench.ask(1, level="strong")
    assert "unknown read level 'strong'; use one of" in bench.text()
    assert bench.take() == [(CLIENT, 1, "schema")]
