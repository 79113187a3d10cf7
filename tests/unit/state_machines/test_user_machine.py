"""A user's machine behind a channel: what is written of a command, a rejection and a failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from raftstore.errors import CorruptRecordError, NewerFormatError, RejectedError
from raftstore.machine import (
    COMMAND_WRITES_MAX,
    RESULT_BYTES_MAX,
    STATE_KEY_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
    CommandContext,
    MemoryMachine,
    QueryContext,
    StateMachine,
    codec,
)
from raftstore.protocol.machines import Step
from raftstore.protocol.records import Record
from raftstore.record_machine import DictView, MachineRules, QueryAtWork, Row
from raftstore.state_machines.state_keys import result_key
from raftstore.types import RecordKind, Seq
from tests.machine_bench import MachineBench

INT = codec(int)


class Counter(StateMachine):
    """Adds; refuses to go below zero; fails at 666."""

    commands = results = answers = INT

    def apply(self, command: int, context: CommandContext) -> int:
        """Change the total of the key, and note who did."""
        context.state.put(b"last", context.guid)
        total = int(context.state.get(context.key) or 0) + command
        context.state.put(context.key, b"%d" % total)
        if total < 0:
            raise RejectedError(f"{total} is below zero")
        if command == 666:
            raise ValueError("no such luck")
        return total

    def query(self, request: bytes, context: QueryContext) -> int:
        """The total of the key."""
        return int(context.state.get(context.key) or 0)


class Mended(Counter):
    """The same, and it can add 666."""

    version = 2

    def apply(self, command: int, context: CommandContext) -> int:
        """As before, but for that number."""
        if command != 666:
            return super().apply(command, context)
        context.state.put(context.key, b"666")
        return 666


class Newer(Counter):
    """No node has it that is older."""

    version = oldest_version = 3


class Tally(MemoryMachine):
    """Adds in memory."""

    commands = results = INT

    def __init__(self) -> None:
        self.totals: dict[bytes, int] = {}

    def apply(self, command: int, context: CommandContext) -> int:
        """Change the total of the key."""
        self.totals[context.key] = self.totals.get(context.key, 0) + command
        if command == 666:
            raise ValueError("half done")
        return self.totals[context.key]

    def snapshot(self) -> Iterable[bytes]:
        """A chunk for each key."""
        for key, total in sorted(self.totals.items()):
            yield key + b"=%d" % total

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become that."""
        for chunk in chunks:
            key, _, total = chunk.partition(b"=")
            self.totals[key] = int(total)


def number(value: int) -> bytes:
    """A command or result as bytes."""
    return INT.encode(value)


def test_a_command_writes_state_result_and_head_in_one_batch() -> None:
    """S10: a crash finds all of a command, or nothing."""
    bench = MachineBench(Counter)
    kept = bench.command(number(5))
    assert (INT.decode(kept.result), kept.is_rejected) == (5, False)
    assert INT.decode(bench.command(number(2)).result) == 7
    assert bench.rows[b"k"] == b"7"
    assert bench.result(1) == kept
    head = bench.head
    assert (head.version, head.commands, head.seq, head.time_ms, head.results) == (
        1, 2, 2, 1_002, 2,
    )  # fmt: skip


def test_a_rejected_command_leaves_its_result_and_nothing_else() -> None:
    """A refusal is an outcome: it is kept for retries, and is all that is."""
    bench = MachineBench(Counter)
    bench.command(number(5))
    before = dict(bench.rows)
    kept = bench.command(number(-6))
    assert (kept.is_rejected, kept.reason, kept.result) == (True, "-1 is below zero", b"")
    assert bench.rows == before
    assert bench.result(2) == kept
    assert bench.head.commands == 2


def test_a_command_of_another_codec_is_rejected_and_the_machine_goes_on() -> None:
    """Nonsense of one sender stops nobody else."""
    bench = MachineBench(Counter)
    kept = bench.command(b"\xc1")
    assert kept.is_rejected
    assert kept.reason.startswith("the command is none of this machine")
    assert INT.decode(bench.command(number(1)).result) == 1


def test_a_failure_writes_nothing_and_says_what_was_raised_and_where() -> None:
    """The operator learns where to look."""
    bench = MachineBench(Counter)
    bench.command(number(1))
    rows, state = dict(bench.rows), dict(bench.state)
    reason = bench.failing(number(666))
    assert reason.startswith("ValueError: no such luck (test_user_machine.py:")
    assert (bench.rows, bench.state) == (rows, state)


def test_mended_code_goes_on_at_the_command_at_which_the_former_one_stopped() -> None:
    """Nothing behind it was applied meanwhile, so nothing is lost."""
    bench = MachineBench(Counter)
    bench.command(number(1))
    bench.failing(number(666))
    bench.restart(Mended)
    assert INT.decode(bench.command(number(666)).result) == 666


def test_a_command_that_is_skipped_becomes_nothing_but_a_result_that_says_so() -> None:
    """It counts as a command, and its sender learns what became of it."""
    bench = MachineBench(Counter)
    bench.command(number(1))
    bench.failing(number(666))
    bench.user.forget()
    bench.user.skip(Seq(2))
    kept = bench.command(number(666))
    assert (kept.is_rejected, kept.is_skipped) == (True, True)
    assert bench.rows[b"k"] == b"1"
    assert bench.step(Step.SKIP, 2) is None
    assert INT.decode(bench.command(number(1)).result) == 2


def test_a_replica_that_applied_what_the_others_skipped_says_so_and_stops() -> None:
    """Its state is not that of the others."""
    bench = MachineBench(Counter)
    bench.command(number(1))
    failure = bench.step(Step.SKIP, 1)
    assert failure is not None
    assert "seq 1 was applied here, and skipped by seq 2" in failure


def test_a_version_is_in_force_behind_its_step_and_never_a_lower_one() -> None:
    """Commands before and behind it are applied alike everywhere."""
    seen = []

    class Seeing(Counter):
        version = 2

        def apply(self, command: int, context: CommandContext) -> int:
            seen.append(context.version)
            return super().apply(command, context)

    bench = MachineBench(Seeing)
    bench.command(number(1))
    assert bench.step(Step.VERSION, 2) is None
    bench.command(number(1))
    assert bench.step(Step.VERSION, 1) is None
    bench.command(number(1))
    assert seen == [1, 2, 2]


@pytest.mark.parametrize(
    ("code", "first", "lacks"),
    [
        (Counter, 2, "version 2 is in force, and this node has 1;"),
        (Newer, 2, "version 2 is in force, and this node has 3, which goes back to 3 and no"),
    ],
)
def test_code_that_is_not_of_the_version_in_force_applies_nothing(
    code: type[StateMachine], first: int, lacks: str
) -> None:
    """It would come to another state than the others."""
    bench = MachineBench(code, first_version=first)
    assert lacks in bench.failing(number(1))
    assert bench.rows == {}


def test_code_that_cannot_be_loaded_applies_nothing() -> None:
    """Its reason is that of the stop."""

    class Broken(Counter):
        def __init__(self) -> None:
            raise RuntimeError("no licence")

    assert "RuntimeError: no licence" in MachineBench(Broken).failing(number(1))


@pytest.mark.parametrize(
    ("writes", "said"),
    [
        ([(b"", b"v")], "a key of the state has 0 bytes"),
        ([(b"k" * (STATE_KEY_BYTES_MAX + 1), b"v")], "a key of the state has 1025 bytes"),
        ([(b"%d" % n, b"") for n in range(COMMAND_WRITES_MAX + 1)], "changes more than 10000 keys"),
    ],
)
def test_a_command_over_a_limit_is_rejected(writes: list[tuple[bytes, bytes]], said: str) -> None:
    """The limits are the same everywhere, so this is no failure."""

    class Putting(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            for key, value in writes:
                context.state.put(key, value)
            return b""

    bench = MachineBench(Putting)
    kept = bench.command(b"")
    assert kept.is_rejected
    assert said in kept.reason
    assert bench.rows == {}


def test_a_result_over_the_limit_is_a_rejection() -> None:
    """It would be kept for retries."""

    class Talking(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            context.state.put(b"k", b"v")
            return b"x" * (RESULT_BYTES_MAX + 1)

    bench = MachineBench(Talking)
    assert "its result has 65537 bytes" in bench.command(b"").reason
    assert bench.rows == {}


def test_the_newest_results_are_kept_by_number_and_by_bytes_whatever_a_restart_forgets() -> None:
    """By a rule over the log alone: all replicas keep the same."""
    bench = MachineBench(Counter, MachineRules(results_kept=3))
    for _ in range(5):
        bench.command(number(1))
    bench.restart()
    bench.command(number(1))
    assert [seq for seq in range(1, 7) if bench.result(seq)] == [4, 5, 6]
    assert (bench.head.results, bench.head.first_result) == (3, 4)

    class Long(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            return bytes(1_000)

    bench = MachineBench(Long, MachineRules(result_bytes_kept=2_500))
    for _ in range(4):
        bench.command(b"")
    assert [seq for seq in range(1, 5) if bench.result(seq)] == [3, 4]


def test_results_of_any_size_are_kept_up_to_both_limits_the_newest_always() -> None:
    """S6.7: what is kept is said by the head, and a restart, which forgets what was read, does not
    change it.
    """

    class Sized(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            return bytes(int(command))

    rules = MachineRules(results_kept=4, result_bytes_kept=300)
    benches = [MachineBench(Sized, rules) for _ in range(2)]
    kept: list[tuple[int, int]] = []
    for size in (100, 10, 150, 10, 10, 120, 400, 5, 5, 5, 5, 200, 5, 90, 5, 5):
        for bench in benches:
            bench.command(b"%d" % size)
        benches[1].restart()
        seq = benches[0].seq
        kept.append((seq, len(benches[0].state[result_key(Seq(seq))])))
        while len(kept) > 4 or (len(kept) > 1 and sum(size for _, size in kept) > 300):
            kept.pop(0)
        for bench in benches:
            assert [at for at in range(1, seq + 1) if bench.result(at)] == [at for at, _ in kept]
            head = bench.head
            assert (head.results, head.first_result) == (len(kept), kept[0][0])
            assert head.result_bytes == sum(size for _, size in kept)


def test_a_range_shows_what_the_command_itself_wrote_and_removed() -> None:
    """A command sees its own writes."""
    seen: list[list[tuple[bytes, bytes]]] = []

    class Looking(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            state = context.state
            if command == b"fill":
                for name in (b"a", b"c", b"d", b"e"):
                    state.put(name, b"old")
                return b""
            state.put(b"b", b"new")
            state.put(b"c", b"new")
            state.delete(b"d")
            seen.append(list(state.range(b"a", b"z", limit=4)))
            seen.append(list(state.range(b"b", limit=2)))
            return b""

    bench = MachineBench(Looking)
    bench.command(b"fill")
    bench.command(b"look")
    old, new = b"old", b"new"
    assert seen == [
        [(b"a", old), (b"b", new), (b"c", new), (b"e", old)],
        [(b"b", new), (b"c", new)],
    ]


def test_a_broken_table_ends_the_node_whatever_the_machine_makes_of_it() -> None:
    """S0.4: damage is no business of the machine."""

    class Swallowing(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            try:
                context.state.get(b"k")
            except Exception:  # noqa: BLE001 - as careless code does
                return b"never mind"
            return b""

    bench = MachineBench(Swallowing)

    def damaged(key: bytes) -> Row | None:
        raise CorruptRecordError(f"{key!r} is damaged")

    view = bench.view()
    view.row = damaged
    bench.view = lambda: view  # type: ignore[method-assign]
    with pytest.raises(CorruptRecordError, match="is damaged"):
        bench.command(b"")


def test_identity_and_chance_of_a_command_are_the_same_at_every_replica() -> None:
    """Replicas must not part."""

    class Drawing(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            return context.new_id() + b"%d %d" % (context.time_ms, context.partition)

    one, other = MachineBench(Drawing), MachineBench(Drawing)
    drawn = [one.command(b"").result for _ in range(3)]
    assert drawn == [other.command(b"").result for _ in range(3)]
    assert len(set(drawn)) == 3
    assert drawn[0].endswith(b"1001 3")


def test_a_machine_in_memory_comes_back_from_its_commands() -> None:
    """Its state is in no row."""
    bench = MachineBench(Tally)
    for value in (1, 2, 3):
        bench.command(number(value))
    bench.restart()
    assert INT.decode(bench.command(number(4)).result) == 10
    assert bench.rows == {}


def test_a_machine_in_memory_comes_back_from_its_snapshot_and_what_came_behind() -> None:
    """Both are removed and written in one batch."""
    bench = MachineBench(Tally, MachineRules(journal_bytes=200))
    for value in range(1, 41):
        bench.command(number(value), key=b"%d" % (value % 7))
    head = bench.head
    assert (head.chunks, head.journal > 0) == (7, True)
    kept = [key for key in bench.state if key.startswith(b"\x02\x0b")]
    assert len(kept) == head.journal
    bench.restart()
    totals = [sum(n for n in range(1, 41) if n % 7 == at) for at in range(7)]
    found = [INT.decode(bench.command(number(0), key=b"%d" % at).result) for at in range(7)]
    assert found == totals


def test_a_snapshot_with_fewer_chunks_leaves_none_of_the_one_before() -> None:
    """S10: a restart would read them as part of it. A chunk may be as long as a value."""

    class Held(MemoryMachine):
        def __init__(self) -> None:
            self.held: list[bytes] = []

        def apply(self, command: bytes, context: CommandContext) -> bytes:
            before = b"".join(each[:1] for each in self.held)
            length = STATE_VALUE_BYTES_MAX if len(command) == 1 else 1
            self.held = [bytes([number]) * length for number in command]
            return before

        def snapshot(self) -> Iterable[bytes]:
            return self.held

        def restore(self, chunks: Iterable[bytes]) -> None:
            self.held = [chunk for chunk in chunks if chunk]

    bench = MachineBench(Held, MachineRules(journal_bytes=1))
    for held, before in ((b"abc", b""), (b"de", b"abc"), (b"", b"de"), (b"f", b"")):
        assert bench.command(held).result == before
        assert (bench.head.chunks, bench.head.journal) == (len(held) or 1, 0)
        bench.restart()
    assert bench.command(b"").result == b"f"


def test_what_a_failed_command_did_to_a_machine_in_memory_is_undone() -> None:
    """The object is made anew from what is stored."""
    bench = MachineBench(Tally)
    bench.command(number(1))
    assert "half done" in bench.failing(number(666))
    assert INT.decode(bench.command(number(1)).result) == 2


def test_a_snapshot_that_does_not_restore_is_a_failure_with_its_reason() -> None:
    """Nothing is applied to half a state."""

    class Lossy(Tally):
        def restore(self, chunks: Iterable[bytes]) -> None:
            raise KeyError("totals")

    bench = MachineBench(Tally, MachineRules(journal_bytes=1))
    bench.command(number(1))
    bench.restart(Lossy)
    assert "its snapshot of 1 chunks does not restore: KeyError: 'totals'" in bench.failing(
        number(1)
    )


def test_query_never_asks_a_machine_whose_restoring_failed() -> None:
    """It would answer from an empty one; the next question restores again."""
    fails = [True]

    class Lossy(Tally):
        def query(self, request: bytes, context: QueryContext) -> bytes:
            return b"%d" % self.totals.get(context.key, 0)

        def restore(self, chunks: Iterable[bytes]) -> None:
            if fails:
                raise KeyError("totals")
            super().restore(chunks)

    bench = MachineBench(Tally, MachineRules(journal_bytes=1))
    bench.command(number(7))
    bench.restart(Lossy)
    for _ in range(2):
        answer = bench.user.query_memory(b"k", b"", bench.view().state)
        assert "does not restore: KeyError" in answer.reason
    fails.clear()
    assert bench.user.query_memory(b"k", b"", bench.view().state).result == b"7"


def test_records_of_tables_are_refused() -> None:
    """They would be applied by nobody."""
    bench = MachineBench(Counter)
    record = bench.record(RecordKind.ROWS, b"")
    with pytest.raises(NewerFormatError, match="a channel set of this version cannot apply"):
        bench.user.apply(record, DictView())


def test_queries_see_the_state_and_what_they_raise_is_an_answer() -> None:
    """An error of a question stops nothing."""

    class Asked(Counter):
        def query(self, request: bytes, context: QueryContext) -> int:
            if request == b"refuse":
                raise RejectedError("not for you")
            if request == b"fail":
                raise ZeroDivisionError("oh")
            return super().query(request, context) + context.seq

    bench = MachineBench(Asked)
    bench.command(number(41))

    def asked(request: bytes) -> Any:
        return bench.user.query(b"k", request, bench, bench.state.get)

    assert INT.decode(asked(b"").result) == 42
    assert (asked(b"refuse").is_rejected, asked(b"refuse").reason) == (True, "not for you")
    assert "ZeroDivisionError: oh" in asked(b"fail").reason


def test_the_machine_says_what_it_is_at_and_nothing_behind_it() -> None:
    """Other threads look: nothing else shows a command that never ends."""
    seen: list[object] = []

    class Looking(Tally):
        queries = answers = INT

        def apply(self, command: int, context: CommandContext) -> int:
            seen.append(bench.user.at_work)
            if command == 2:
                raise RejectedError("no")
            return super().apply(command, context)

        def query(self, request: int, context: QueryContext) -> int:
            seen.append(bench.user.at_work)
            raise ValueError("no answer")

    bench = MachineBench(Looking)
    for command in (1, 2):
        bench.command(number(command))
        assert bench.user.at_work is None
    assert "half done" in bench.failing(number(666))
    assert bench.user.at_work is None
    bench.user.query_memory(b"k", number(0), DictView(state=bench.state).state)
    assert bench.user.at_work is None
    *commands, asked = seen
    places = [each.last_seq for each in commands if isinstance(each, Record)]
    assert places == [1, 2, 3, 1, 2], "it was made anew of what is kept, before it was asked"
    assert isinstance(asked, QueryAtWork)
