"""Queries of users' machines: which state is asked, what is answered, and what bounds them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import ReadSettings
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reads.machine_queries import PAGE_ROWS, MachineQueries, SnapshotView
from raftstore.errors import (
    CorruptRecordError,
    RejectedError,
    UnavailableError,
    UnknownMachineError,
)
from raftstore.machine import (
    RESULT_BYTES_MAX,
    CommandContext,
    MemoryMachine,
    QueryContext,
    StateMachine,
)
from raftstore.protocol.machines import MachineAnswer, MachineQuery, encode_command
from raftstore.protocol.message import Failed, Message, failed
from raftstore.protocol.reads import Served
from raftstore.protocol.records import Record
from raftstore.record_machine import MachineSource
from raftstore.state_machines.user_machine import UserMachine
from raftstore.testing.sim_snapshots import SimSnapshot
from raftstore.testing.sim_tables import SimTables
from raftstore.types import Guid, NodeId, RecordKind, Seq, Term, channel_id

ME = NodeId("n1")
CHANNEL = channel_id(b"t" * 16, 0)
CLIENT, OTHER = 5, 6
COMMITTED = 10


class Notes(StateMachine):
    """Keeps the last command of each key; answers by the words of a request."""

    def apply(self, command: Any, context: CommandContext) -> Any:
        """Keep it."""
        context.state.put(context.key, command)
        return b""

    def query(self, request: Any, context: QueryContext) -> Any:
        """Answer, refuse or fail as it is asked to."""
        match request:
            case b"refuse":
                raise RejectedError("not that one")
            case b"fail":
                raise ZeroDivisionError("by nothing")
            case b"exit":
                raise SystemExit(3)
            case b"much":
                return b"x" * (RESULT_BYTES_MAX + 1)
            case b"where":
                return repr((context.seq, context.partition, context.version)).encode()
            case b"count":
                return b"%d" % len(list(context.state.range(limit=5_000)))
        return context.state.get(context.key) or b"nothing"


class Memory(MemoryMachine):
    """The same in an attribute."""

    def __init__(self) -> None:
        self.last = b"nothing"

    def apply(self, command: Any, context: CommandContext) -> Any:
        """Keep it."""
        del context
        self.last = command
        return b""

    def query(self, request: Any, context: QueryContext) -> Any:
        """The last command."""
        del request, context
        return self.last

    def snapshot(self) -> Iterable[bytes]:
        """All of it."""
        return [self.last]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """All of it."""
        self.last = b"".join(chunks)


class Bench:
    """One channel with a machine on simulated tables; the test is the clock and all threads."""

    def __init__(self, machine: Any = Notes, **settings: int) -> None:
        self.tables = SimTables()
        self.problem: UnknownMachineError | None = None
        self.code = machine
        self.machine = UserMachine(self._load, partition=3, first_version=1)
        self.tables.open_channel(CHANNEL, self.machine)
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            name="c/0",
            commands=SimpleNamespace(machine=self.machine),
            is_reopened=False,
            elector=SimpleNamespace(leader=ME),
        )
        self.refusal: Any = None
        self.answers: list[tuple[int, Message]] = []
        me: Any = self
        self.queries = MachineQueries(self.tables, me, me, ReadSettings(**settings))
        self.seq = 0

    def _load(self) -> MachineSource:
        if self.problem is not None:
            raise self.problem
        return MachineSource("notes", self.code, 1, 1)

    def answer(self, client: int, message: Message) -> None:
        """Keep the answer for the test."""
        self.answers.append((client, message))

    def serving_refusal(self, runner: Any) -> Any:
        """Why nothing is served now."""
        assert runner is self.runner
        return self.refusal

    def served(self, request: Any, runner: Any, applied: Seq) -> Served:
        """Behind by what is not applied."""
        return Served(ME, runner.channel, Term(1), applied, COMMITTED - applied, 0, request.level)

    def fail(
        self, client: int, request: Any, error: Any, message: str, *, leader: Any = None
    ) -> None:
        """A refusal."""
        self.answer(client, failed(request.request_id, error, message, leader_hint=leader))

    # --- what a test does -------------------------------------------------------------------------

    def command(self, command: bytes, key: bytes = b"k") -> None:
        """Commit and apply a command."""
        self.seq += 1
        guid = Guid(self.seq.to_bytes(16, "big"))
        payload = encode_command(key, command)
        record = Record(
            Term(1), Seq(self.seq), 1, guid, 1_000, bytes(16), RecordKind.MACHINE_COMMAND, payload
        )
        self.tables.apply(CHANNEL, [record])
        self.tables.apply_next()

    def ask(self, request: bytes = b"", client: int = CLIENT, number: int = 1) -> None:
        """Begin a query."""
        query = MachineQuery(number, CHANNEL, b"k", request, "any", None, Seq(0), 500)
        self.queries.begin(client, query, self.runner, 500)

    def work(self) -> None:
        """All other threads do what they have to do."""
        while self.tables.has_reads():
            self.tables.read_next()(0)

    def said(self, request: bytes = b"") -> MachineAnswer:
        """Ask, and return the one answer."""
        self.ask(request)
        self.work()
        [(client, answer)] = self.answers
        assert client == CLIENT
        assert isinstance(answer, MachineAnswer)
        self.answers.clear()
        return answer

    def code_of(self) -> str:
        """The code of the one refusal."""
        [(_, answer)] = self.answers
        assert isinstance(answer, Failed)
        self.answers.clear()
        return answer.code

    def is_empty(self) -> bool:
        """Nothing is held for anybody."""
        queries = self.queries
        holders = [client for client in (CLIENT, OTHER) if queries.holds_for(client)]
        nothing = queries.deadlines.next_ms == NEVER_MS and not queries._under_way
        return nothing and not holders and not self.tables.open_snapshots


def test_a_machine_on_the_disk_is_asked_of_the_state_of_the_moment() -> None:
    """Given a command between the question and the answer, the answer and its position are of
    before it."""
    bench = Bench()
    bench.command(b"first")
    bench.ask()
    bench.command(b"second")
    bench.work()
    [(_, answer)] = bench.answers
    assert isinstance(answer, MachineAnswer)
    assert (answer.answer, answer.served.applied_seq, answer.served.lag) == (b"first", 1, 9)
    assert bench.is_empty()


def test_a_machine_in_memory_is_asked_between_commands() -> None:
    """Its answer is of the state that it has then, and so are position and lag."""
    bench = Bench(Memory)
    bench.command(b"first")
    bench.ask()
    bench.command(b"second")
    bench.command(b"third")
    bench.work()
    [(_, answer)] = bench.answers
    assert isinstance(answer, MachineAnswer)
    assert (answer.answer, answer.served.applied_seq, answer.served.lag) == (b"third", 3, 7)
    assert bench.is_empty()


@pytest.mark.parametrize("machine", [Notes, Memory])
def test_code_is_imported_on_no_thread_but_that_of_queries(machine: Any) -> None:
    """An import may take for ever: to begin a query asks for none, and a machine that turns out to
    be in memory is asked between commands, of its state and never of a new object's."""
    bench = Bench(machine)
    bench.command(b"first")
    restarted = UserMachine(bench._load, partition=3, first_version=1)
    bench.runner.commands.machine = restarted
    bench.problem = UnknownMachineError("it is being imported")
    bench.ask()
    assert (bench.answers, restarted.is_in_memory) == ([], None)
    bench.problem = None
    bench.command(b"second")
    bench.work()
    [(_, answer)] = bench.answers
    assert isinstance(answer, MachineAnswer)
    expected = (b"second", 2) if machine is Memory else (b"first", 1)
    assert (answer.answer, answer.served.applied_seq) == expected
    assert restarted.is_in_memory is (machine is Memory)
    assert bench.is_empty()


def test_a_machine_that_turns_out_to_be_in_memory_is_not_asked_once_it_stopped_serving() -> None:
    """S13: it is refused when it comes back from the thread of queries."""
    bench = Bench(Memory)
    bench.ask()
    bench.refusal = (UnavailableError, "disputed")
    bench.work()
    assert bench.code_of() == "unavailable"
    assert bench.is_empty()


def test_context_says_what_the_state_is_of() -> None:
    """Seq of the last command, partition, version in force."""
    bench = Bench()
    bench.command(b"first")
    assert bench.said(b"where").answer == b"(1, 3, 1)"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (b"refuse", "not that one"),
        (b"fail", "ZeroDivisionError: by nothing (test_machine_queries.py:"),
        (b"exit", "SystemExit: 3"),
        (b"much", f"at most {RESULT_BYTES_MAX} are allowed"),
    ],
)
def test_whatever_a_query_raises_is_an_answer(request_: bytes, reason: str) -> None:
    """The node goes on, and the next query is answered."""
    bench = Bench()
    bench.command(b"first")
    answer = bench.said(request_)
    assert answer.is_rejected
    assert reason in answer.reason
    assert bench.said().answer == b"first"
    assert bench.is_empty()


@pytest.mark.parametrize("machine", [Notes, Memory])
def test_missing_code_is_an_error_of_its_own(machine: Any) -> None:
    """It says what this node lacks; the client may ask another."""
    bench = Bench(machine)
    bench.problem = UnknownMachineError("notes is not installed")
    bench.ask()
    bench.work()
    assert bench.code_of() == "unknown_machine"
    assert bench.is_empty()


def test_a_query_without_an_answer_in_time_is_refused() -> None:
    """Its later answer is for nobody, and the snapshot is closed."""
    bench = Bench()
    bench.ask()
    assert bench.queries.deadlines.next_ms == 500
    bench.queries.on_timer(500)
    assert bench.code_of() == "query_error"
    assert bench.tables.open_snapshots == 1
    bench.work()
    assert bench.answers == []
    assert bench.is_empty()


def test_a_client_that_is_gone_has_nothing_asked() -> None:
    """Its question is not put to the machine any more."""
    bench = Bench()
    bench.command(b"first")
    asked: list[bytes] = []
    bench.machine.query = lambda *given: asked.append(given[0])  # type: ignore[method-assign, assignment, func-returns-value, return-value]
    bench.ask()
    bench.queries.on_client_gone(CLIENT)
    bench.work()
    assert (asked, bench.answers) == ([], [])
    assert bench.is_empty()


def test_queries_that_wait_are_bounded_for_each_client() -> None:
    """One more is refused at once, and others have their own share."""
    bench = Bench(scans_queued_max=2)
    for number in range(3):
        bench.ask(number=number)
    assert bench.code_of() == "overloaded"
    bench.ask(client=OTHER)
    bench.work()
    assert len(bench.answers) == 3
    assert bench.is_empty()


def test_queries_that_nobody_waits_for_count_until_they_are_over() -> None:
    """Given a machine that takes too long, no more of it is begun than the limit."""
    bench = Bench(scans_queued_max=1)
    for _ in range(2):
        bench.ask()
        bench.queries.on_client_gone(CLIENT)
    bench.ask()
    assert bench.code_of() == "overloaded"
    bench.work()
    bench.said()
    assert bench.is_empty()


def test_nothing_of_a_closed_channel_is_answered() -> None:
    """S0.8: the channel set was dropped while the machine was asked."""
    bench = Bench()
    bench.ask()
    bench.queries.on_channel_closed(bench.runner)
    assert bench.code_of() == "unknown_channel"
    bench.work()
    assert bench.answers == []
    assert bench.is_empty()


def test_nothing_is_answered_from_what_stopped_serving_meanwhile() -> None:
    """S13: a state that may be wrong by now is no answer."""
    bench = Bench()
    bench.ask()
    bench.refusal = (UnavailableError, "disputed")
    bench.work()
    assert bench.code_of() == "unavailable"
    assert bench.is_empty()


def test_a_broken_table_is_no_answer_whatever_the_machine_makes_of_it() -> None:
    """S0.4: damage ends the node, or has the table replaced, and is no business of the machine."""

    class Swallowing(Notes):
        def query(self, request: Any, context: QueryContext) -> Any:
            try:
                return context.state.get(b"k")
            except Exception:  # noqa: BLE001 - as careless code does
                return b"never mind"

    bench = Bench(Swallowing)
    bench.ask()
    assert bench.tables.open_snapshots == 1

    def damaged(*_of: object) -> Any:
        raise CorruptRecordError("the row is damaged")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimSnapshot, "page", damaged)
        with pytest.raises(CorruptRecordError, match="the row is damaged"):
            bench.work()
    assert bench.answers == []


def test_the_state_of_a_query_that_has_ended_can_be_read_no_more() -> None:
    """Its snapshot is closed."""
    kept: list[Any] = []

    class Keeping(Notes):
        def query(self, request: Any, context: QueryContext) -> Any:
            kept.append(context.state)
            return b""

    bench = Bench(Keeping)
    bench.said()
    with pytest.raises(RuntimeError, match="the state of a query that has ended"):
        kept[0].get(b"k")


def test_a_range_goes_over_pages() -> None:
    """A view reads so many keys at a time, and gives all that were asked for."""
    bench = Bench()
    count = PAGE_ROWS + 5
    for number in range(count):
        bench.command(b"v", b"%05d" % number)
    assert bench.said(b"count").answer == b"%d" % count
    view = SnapshotView(bench.tables.snapshot(CHANNEL))
    keys = [key for key, _ in view.range(b"00003", b"01003", limit=1_000)]
    assert (len(keys), keys[0], keys[-1]) == (1_000, b"00003", b"01002")
    assert list(view.range(b"00003", limit=0)) == []
    assert [key for key, _ in view.range(b"01001")] == [b"%05d" % n for n in range(1_001, count)]
