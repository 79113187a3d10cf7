"""Commands that share a record: each is a command by itself, and all of them are one batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from raftstore.errors import CorruptRecordError, DecodeError
from raftstore.machine import COMMAND_BYTES_MAX, CommandContext, StateMachine, codec
from raftstore.protocol.machines import TOGETHER_LIMITS, Step, encode_command
from raftstore.protocol.records import Record
from raftstore.protocol.shared_commands import (
    COMMANDS_PER_RECORD_MAX,
    check_commands,
    commands_in,
    encode_commands,
    guid_of_place,
)
from raftstore.record_machine import DEFAULT_RULES, ApplyResult, CommandEnd, MachineRules
from raftstore.state_machines.state_keys import JOURNAL, RESULTS, journal_key, result_key
from raftstore.types import RecordKind, Seq, make_guid
from tests.machine_bench import MachineBench
from tests.unit.state_machines.test_user_machine import INT, Counter, Mended, Tally, number


class Ledger(StateMachine):
    """Notes who asked, in the order of the guids that it was given; removes and lists."""

    commands = codec(str)
    results = codec(list[str])

    def apply(self, command: str, context: CommandContext) -> list[str]:
        """Add or remove a name, and list all."""
        state = context.state
        if command.startswith("-"):
            state.delete(command[1:].encode())
        else:
            state.put(command.encode(), context.guid)
        return [key.decode() for key, _ in state.range()]


@pytest.fixture(params=[0, 1, TOGETHER_LIMITS])
def limits(request: pytest.FixtureRequest) -> int:
    """The limits of commands in force: below ``TOGETHER_LIMITS`` each command leaves a result and
    an entry of the journal by itself."""
    number: int = request.param
    return number


def opened(
    machine: type[StateMachine], limits: int, rules: MachineRules = DEFAULT_RULES
) -> MachineBench:
    """A partition in which these limits are in force; the next command is at seq 1."""
    bench = MachineBench(machine, rules)
    if limits:
        bench.seq = -1
        assert bench.limit(limits) is None
    return bench


def shared(bench: MachineBench, commands: Sequence[bytes], key: bytes = b"k") -> Record:
    """The next record, of several commands."""
    payload = encode_commands(encode_command(key, each) for each in commands)
    record = bench.record(
        RecordKind.MACHINE_COMMANDS, payload, make_guid(b"together", bench.seq + 1)
    )
    bench.seq += len(commands) - 1
    return replace(record, rows=len(commands))


def applied(bench: MachineBench, commands: Sequence[bytes]) -> list[CommandEnd]:
    """Their ends."""
    result = bench.apply(shared(bench, commands))
    assert result.failure is None, result.failure
    assert result.answer is not None
    return list(bench.user.ends_of(result.answer, len(commands)))


def failed(bench: MachineBench, commands: Sequence[bytes]) -> ApplyResult:
    """The result of a record that cannot be applied."""
    record = shared(bench, commands)
    result = bench.apply(record)
    assert result.failure is not None
    bench.seq -= len(commands)
    return result


def test_each_command_has_its_seq_its_guid_and_its_end(limits: int) -> None:
    """As if it had a record of its own; a rejected one leaves nothing but its end."""
    bench = opened(Counter, limits)
    bench.command(number(1))
    ends = applied(bench, [number(5), number(-100), number(2)])
    assert [(end.is_rejected, end.result) for end in ends] == [
        (False, number(6)), (True, b""), (False, number(8)),
    ]  # fmt: skip
    assert [bench.result(seq) for seq in (2, 3, 4)] == ends
    assert bench.rows == {b"k": b"8", b"last": make_guid(b"together", 2 + 3)}
    assert (bench.head.commands, bench.head.seq, bench.head.results) == (4, 4, 4)


def test_a_command_sees_what_those_before_it_in_the_record_wrote_and_removed(limits: int) -> None:
    """By key and by range, beside what was stored before."""
    bench = opened(Ledger, limits)
    encode = Ledger.commands.encode
    applied(bench, [encode("a"), encode("c")])
    ends = applied(bench, [encode("b"), encode("-a"), encode("d"), encode("-b")])
    assert [Ledger.results.decode(end.result) for end in ends] == [
        ["a", "b", "c"], ["b", "c"], ["b", "c", "d"], ["c", "d"],
    ]  # fmt: skip
    assert sorted(bench.rows) == [b"c", b"d"]


def test_commands_lead_to_the_same_together_and_one_by_one(limits: int) -> None:
    """The state does not depend on who shared a record with whom."""
    values = [3, -7, 4, 0, -2]
    together, single = opened(Counter, limits), opened(Counter, limits)
    ends = applied(together, [number(value) for value in values])
    assert [single.command(number(value)) for value in values] == ends
    assert together.rows[b"k"] == single.rows[b"k"]
    assert together.head.commands == single.head.commands


def test_a_failure_writes_nothing_of_the_record_and_names_the_command(limits: int) -> None:
    """S10: nothing is half applied; the operator and the sender learn which one it is."""
    bench = opened(Counter, limits)
    bench.command(number(1))
    rows, state = dict(bench.rows), dict(bench.state)
    result = failed(bench, [number(2), number(666), number(3)])
    assert result.failure is not None
    assert "no such luck" in result.failure
    assert result.failed_at == (Seq(3), make_guid(b"together", 2 + 2))
    assert (bench.rows, bench.state) == (rows, state)


def test_a_skipped_command_is_one_of_its_record_and_the_others_are_applied(limits: int) -> None:
    """The same where two of them have to be, one after the other."""
    bench = opened(Counter, limits)
    commands = [number(666), number(2), number(666), number(3)]
    assert failed(bench, commands).failed_at == (Seq(1), make_guid(b"together", 1 + 1))
    bench.user.skip(Seq(1))
    assert failed(bench, commands).failed_at == (Seq(3), make_guid(b"together", 1 + 3))
    bench.user.skip(Seq(3))
    ends = applied(bench, commands)
    assert [end.is_skipped for end in ends] == [True, False, True, False]
    assert bench.rows[b"k"] == b"5"
    assert bench.step(Step.SKIP, 3) is None
    assert "applied here" in str(bench.step(Step.SKIP, 2))


def test_mended_code_applies_the_whole_record(limits: int) -> None:
    """Nothing is remembered of what the first commands did before the failure."""
    bench = opened(Counter, limits)
    failed(bench, [number(2), number(666)])
    bench.restart(Mended)
    ends = applied(bench, [number(2), number(666)])
    assert [INT.decode(end.result) for end in ends] == [2, 666]


def test_a_machine_in_memory_forgets_the_first_half_of_a_record_that_failed(limits: int) -> None:
    """It becomes what its journal says, so nothing is counted twice."""
    bench = opened(Tally, limits)
    applied(bench, [number(1), number(2)])
    failed(bench, [number(10), number(666)])
    assert INT.decode(bench.command(number(0)).result) == 3
    bench.restart()
    assert INT.decode(bench.command(number(0)).result) == 3


def test_a_snapshot_taken_within_a_record_holds_what_came_before_it_there() -> None:
    """The journal goes on behind it, in the same batch."""
    bench = MachineBench(Tally, MachineRules(journal_bytes=240))
    for _ in range(3):
        applied(bench, [number(1)] * 5)
    assert bench.head.chunks
    assert bench.head.journal == 7  # it was taken at the eighth command
    bench.restart()
    assert INT.decode(bench.command(number(0)).result) == 15


def test_a_record_below_the_limits_leaves_what_the_version_before_left() -> None:
    """S13: a replica of that version beside this one leaves the same, and its state is compared."""
    for number_of in (0, 1):
        bench = opened(Tally, number_of)
        applied(bench, [number(1)] * 3)
        kept = [key for key in sorted(bench.state) if key[:2] in {RESULTS, JOURNAL}]
        assert kept == [*map(result_key, (1, 2, 3)), *map(journal_key, (1, 2, 3))]


def test_results_are_removed_within_a_record_oldest_first() -> None:
    """The same as one by one, also by a process that reads them anew in the midst of a record."""
    rules = MachineRules(results_kept=3)
    bench = MachineBench(Counter, rules)
    applied(bench, [number(1), number(1)])
    bench.restart()
    applied(bench, [number(1)] * 4)
    assert [seq for seq in range(1, 7) if bench.result(seq) is not None] == [4, 5, 6]
    assert (bench.head.results, bench.head.first_result) == (3, 4)


def test_results_of_a_record_that_failed_are_not_counted(limits: int) -> None:
    """S6.7: what is removed later is the same as at a replica that saw no failure."""
    benches = [opened(Counter, limits, MachineRules(results_kept=3)) for _ in range(2)]
    for number_of, bench in enumerate(benches):
        applied(bench, [number(1)] * 4)
        if number_of:
            failed(bench, [number(1), number(666)])
        applied(bench, [number(1)] * 2)
        bench.command(number(1))
    assert benches[0].state == benches[1].state


def test_records_that_are_no_lists_of_commands_are_refused_before_and_after_the_log() -> None:
    """By the leader with what is wrong; by a replica as damage."""
    good = encode_command(b"k", b"c")
    for payload, rows, text in (
        (b"\xc1", 2, "no list of commands"),
        (encode_commands([good, good]), 3, "announced with 3"),
        (encode_commands([good]), 1, "2 to 128"),
        (encode_commands([good] * 129), 129, "2 to 128"),
        (encode_commands([good, b"x"]), 2, "no command"),
        (encode_commands([good, encode_command(b"k", bytes(COMMAND_BYTES_MAX + 1))]), 2, "limit"),
    ):
        with pytest.raises(DecodeError, match=text):
            check_commands(payload, rows)
    check_commands(encode_commands([good] * COMMANDS_PER_RECORD_MAX), COMMANDS_PER_RECORD_MAX)
    bench = MachineBench(Counter)
    record = replace(shared(bench, [number(1), number(2)]), rows=3)
    with pytest.raises(CorruptRecordError):
        bench.apply(record)


def test_guids_of_commands_follow_that_of_their_record() -> None:
    """Every replica gives a command the same; the last counter that there is ends nobody."""
    bench = MachineBench(Counter)
    found = list(commands_in(shared(bench, [number(1), number(2)])))
    assert [each.guid for each in found] == [make_guid(b"together", 2), make_guid(b"together", 3)]
    assert [(each.base_seq, each.last_seq, each.rows) for each in found] == [(1, 1, 1), (2, 2, 1)]
    assert guid_of_place(make_guid(b"together", 2**64 - 1), 1) == make_guid(b"together", 0)
