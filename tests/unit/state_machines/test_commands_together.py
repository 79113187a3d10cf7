"""Commands of a record leave one result and one entry of the journal behind together, and each of
them is still a command by itself (limits of 2)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from raftstore.errors import NewerFormatError
from raftstore.machine import StateMachine
from raftstore.protocol.machines import CommandEnd
from raftstore.record_machine import DEFAULT_RULES, MachineRules, StateReader
from raftstore.state_machines.machine_journal import JournalEntry, entries_one_by_one
from raftstore.state_machines.machine_state import LimitsInForce, read_limits
from raftstore.state_machines.state_keys import (
    JOURNAL,
    MACHINE_LIMITS,
    RESULTS,
    journal_key,
    result_key,
    unpacked,
)
from raftstore.types import Seq, make_guid
from tests.machine_bench import MachineBench
from tests.unit.state_machines.test_shared_commands import applied, failed
from tests.unit.state_machines.test_user_machine import INT, Counter, Tally, number


def opened(
    machine: type[StateMachine], rules: MachineRules = DEFAULT_RULES, limits: int = 2
) -> MachineBench:
    """A partition with these limits; the next command is at seq 1."""
    bench = MachineBench(machine, rules)
    bench.seq = -1
    assert bench.limit(limits) is None
    return bench


def keys(bench: MachineBench, prefix: bytes) -> list[bytes]:
    """The keys of this sort."""
    return sorted(key for key in bench.state if key.startswith(prefix))


def values(count: int) -> list[bytes]:
    """So many commands that add 1."""
    return [number(1)] * count


def test_a_record_leaves_one_result_and_one_entry_of_the_journal() -> None:
    """Each of its commands has its end at its seq all the same, between others."""
    bench = opened(Tally)
    first = bench.command(number(1))
    ends = applied(bench, [number(2), number(3), number(4)])
    last = bench.command(number(5))
    assert keys(bench, RESULTS) == [result_key(1), result_key(4), result_key(5)]
    assert keys(bench, JOURNAL) == [journal_key(1), journal_key(4), journal_key(5)]
    assert [bench.result(seq) for seq in range(1, 6)] == [first, *ends, last]
    assert (bench.result(0), bench.result(6)) == (None, None)
    assert (bench.head.results, bench.head.journal, bench.head.commands) == (5, 5, 5)
    assert bench.head.result_bytes == sum(len(bench.state[key]) for key in keys(bench, RESULTS))


def test_the_ends_of_a_record_are_read_in_one_look() -> None:
    """However they are kept: results of 128 commands may have 8 MiB, and a retry of the record must
    not read all of it once for each of them. Where one is gone, none is given."""
    for limits in (1, 2):
        bench = opened(Tally, MachineRules(results_kept=4), limits)
        ends = applied(bench, values(3))
        state, scans = bench.view().state, 0

        class Counted:
            get = state.get

            def scan(
                self, start: bytes, stop: bytes, limit: int, state: StateReader = state
            ) -> list[tuple[bytes, bytes]]:
                nonlocal scans
                scans += 1
                return state.scan(start, stop, limit)

        assert bench.user.kept_ends(Seq(1), Seq(3), Counted()) == ends
        assert scans == 1
        applied(bench, values(2))
        assert bench.user.kept_ends(Seq(1), Seq(3), bench.view().state) is None
        assert bench.user.kept_ends(Seq(4), Seq(5), bench.view().state) is not None


def test_versions_before_stop_at_it() -> None:
    """They would take the result of three commands for that of the last one, and keep those of the
    next record otherwise than the other replicas."""
    bench = opened(Tally)
    applied(bench, values(3))
    written = (
        (MACHINE_LIMITS, LimitsInForce), (result_key(3), CommandEnd), (journal_key(3), JournalEntry)
    )  # fmt: skip
    for key, kind in written:
        with pytest.raises(NewerFormatError, match="run a newer version"):
            unpacked(bench.state[key], kind)


def test_commands_lead_to_the_same_however_they_are_kept() -> None:
    """Alone or in records, with what is kept together or one by one, over restarts in between."""
    for seed in range(60):
        draw = random.Random(seed)
        machine = draw.choice([Counter, Tally])
        rules = MachineRules(journal_bytes=draw.choice([100, 400, 2_000]))
        benches = [opened(machine, rules, limits) for limits in (1, 2)]
        alone = opened(machine, rules)
        for _ in range(12):
            commands = [number(draw.randint(-3, 9)) for _ in range(draw.choice([1, 2, 3, 9]))]
            expected = [alone.command(each) for each in commands]
            for bench in benches:
                one = len(commands) == 1
                ends = [bench.command(commands[0])] if one else applied(bench, commands)
                assert ends == expected, seed
                if draw.random() < 0.3:
                    bench.restart()
        for bench in (alone, *benches):
            bench.restart()
            assert bench.rows.get(b"k") == alone.rows.get(b"k"), seed
            found = [bench.result(seq) for seq in range(1, bench.seq + 1)]
            assert found == [alone.result(seq) for seq in range(1, alone.seq + 1)], seed
            assert bench.head.commands == alone.head.commands, seed
        last = alone.command(number(0))
        assert [bench.command(number(0)) for bench in benches] == [last, last], seed


def test_a_skipped_command_of_a_record_stays_skipped_after_a_restart() -> None:
    """The entry of the record names it; the machine in memory never gets it."""
    bench = opened(Tally)
    commands = [number(2), number(666), number(3)]
    assert failed(bench, commands).failed_at == (Seq(2), make_guid(b"together", 1 + 2))
    bench.user.skip(Seq(2))
    assert [end.is_skipped for end in applied(bench, commands)] == [False, True, False]
    assert bench.head.journal == 2
    bench.restart()
    assert INT.decode(bench.command(number(0)).result) == 5


def test_a_record_of_which_every_command_was_skipped_leaves_no_entry() -> None:
    """There is nothing to apply again."""
    bench = opened(Tally)
    for seq in (1, 2):
        bench.user.skip(Seq(seq))
    applied(bench, [number(666)] * 2)
    assert (keys(bench, JOURNAL), bench.head.journal) == ([], 0)
    bench.restart()
    assert INT.decode(bench.command(number(0)).result) == 0


def test_a_snapshot_is_taken_behind_a_whole_record() -> None:
    """It holds the record, and all entries before are gone with it."""
    bench = opened(Tally, MachineRules(journal_bytes=200))
    for _ in range(3):
        applied(bench, values(5))
    assert bench.head.chunks
    assert (len(keys(bench, JOURNAL)), bench.head.journal) in {(0, 0), (1, 5)}
    bench.restart()
    assert INT.decode(bench.command(number(0)).result) == 15


def test_results_of_a_record_are_removed_together_the_newest_never() -> None:
    """S6.7: also by a process that reads them anew; each counts as many as its commands are."""
    bench = opened(Counter, MachineRules(results_kept=5))
    applied(bench, values(2))
    bench.command(number(1))
    applied(bench, values(2))
    assert [seq for seq in range(1, 6) if bench.result(seq)] == [1, 2, 3, 4, 5]
    bench.restart()
    bench.command(number(1))
    assert [seq for seq in range(1, 7) if bench.result(seq)] == [3, 4, 5, 6]
    assert (bench.head.results, bench.head.first_result) == (4, 3)
    applied(bench, values(7))
    assert [seq for seq in range(1, 14) if bench.result(seq)] == list(range(7, 14))
    assert (bench.head.results, bench.head.first_result) == (7, 7)
    assert bench.head.result_bytes == sum(len(bench.state[key]) for key in keys(bench, RESULTS))


def test_limits_that_are_raised_leave_the_place_of_those_before() -> None:
    """Commands that a machine in memory took under limits of 1 are applied again under them."""
    bench = opened(Tally, limits=1)
    bench.command(number(1))
    assert bench.limit(2) is None
    assert bench.user.limits_in_force(bench.state.get) == 2
    ends = applied(bench, values(2))
    bench.restart()
    assert [bench.result(seq) for seq in (3, 4)] == ends
    limits = read_limits(bench.state.get)
    assert (limits.number, limits.behind) == (2, 0)


def test_a_backup_has_the_commands_of_an_entry_one_by_one() -> None:
    """As every version reads them, with the guids and seqs that the machine got."""
    benches: Sequence[MachineBench] = [opened(Tally, limits=limits) for limits in (1, 2)]
    entries = []
    for bench in benches:
        bench.command(number(4))
        applied(bench, [number(5), number(6)])
        found = [entries_one_by_one(key, bench.state[key]) for key in keys(bench, JOURNAL)]
        entries.append([each for some in found for each in some])
    assert entries[0] == entries[1]
    assert [seq for seq, _ in entries[1]] == [1, 2, 3]
    assert entries[1][1][1].guid == make_guid(b"together", 2 + 1)
