"""Limits of commands come into force at one place of the log, at replicas of every version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import raftstore
from raftstore.errors import DecodeError, StateLimitError
from raftstore.machine import (
    COMMAND_WRITE_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
    CommandContext,
    MemoryMachine,
    StateMachine,
    codec,
)
from raftstore.protocol.machine_restore import (
    RestoredCommand,
    RestoredHead,
    RestorePortion,
    encode_portion,
)
from raftstore.protocol.machines import LIMITS, decode_limits, encode_command, encode_limits
from raftstore.protocol.shared_commands import CROWDED_OUT
from raftstore.record_machine import CommandEnd
from raftstore.state_machines.machine_state import kept_ends
from raftstore.testing import LocalMachine
from raftstore.types import Guid, RecordKind, Seq, Term
from tests.machine_bench import MachineBench
from tests.unit.state_machines.test_shared_commands import applied

MIB = 1024 * 1024
NUMBERS = codec(list[int])
VALUE = bytes(STATE_VALUE_BYTES_MAX)


class Writer(StateMachine):
    """Puts values of so many bytes, each under its place; below 0: removes; goes on over limits."""

    commands = results = NUMBERS

    def apply(self, command: list[int], context: CommandContext) -> list[int]:
        """Give back the number of those that were too much."""
        over = 0
        for place, size in enumerate(command):
            key = b"%s%03d" % (context.key, place % 100)
            try:
                if size < 0:
                    context.state.delete(key)
                else:
                    context.state.put(key, VALUE[:size])
            except StateLimitError:
                if command[0] != 7:
                    raise
                over += 1
        return [over]


class Deep(StateMachine):
    """Keeps whatever it is given, and gives it back."""

    commands = results = raftstore.JSON

    def apply(self, command: Any, context: CommandContext) -> Any:
        """Give back the value itself."""
        context.state.put(b"k", raftstore.JSON.encode(command))
        return command


class Remembering(MemoryMachine):
    """The same in memory."""

    commands = codec(Any)

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def apply(self, command: Any, context: CommandContext) -> bytes:
        """Give back the number of them."""
        self.kept.append(command)
        return b"%d" % len(self.kept)

    def snapshot(self) -> Iterable[bytes]:
        """One chunk."""
        return [self.commands.encode(self.kept)]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become that."""
        (chunk,) = chunks
        self.kept = self.commands.decode(chunk)


def sizes(*given: int) -> bytes:
    """A command to write so much."""
    return NUMBERS.encode(list(given))


def nested(levels: int) -> bytes:
    """Lists in each other, as JSON."""
    return b"[" * levels + b"]" * levels


def ends(bench: MachineBench, commands: Sequence[bytes]) -> list[str]:
    """The ends of the commands of a record."""
    return [_end(each) for each in applied(bench, commands)]


def _end(kept: CommandEnd) -> str:
    if kept.reason == CROWDED_OUT:
        return "crowded out"
    return "rejected" if kept.is_rejected else "taken"


FULL = [MIB] * 15 + [MIB - 16 * 4]
"""With its keys of four bytes exactly as much as a command may write."""


def test_a_command_may_write_so_many_bytes_and_no_more() -> None:
    """Keys count, what is written twice counts once, and nothing of what is over it stays."""
    bench = MachineBench(Writer)
    bench.limit()
    assert not bench.command(sizes(*FULL)).is_rejected
    assert sum(len(key) + len(value) for key, value in bench.rows.items()) == 16 * MIB
    bench.rows.clear()
    kept = bench.command(sizes(*FULL, -1))
    assert kept.reason == (
        f"a command writes {COMMAND_WRITE_BYTES_MAX + 4} bytes of keys and values, at most "
        f"{COMMAND_WRITE_BYTES_MAX} are allowed; write less at once"
    )
    assert bench.rows == {}
    again = [MIB] * 15 + [-1] * 85 + [MIB - 400] + [3] * 14
    assert not bench.command(sizes(*again)).is_rejected, "the first ones were written anew"


def test_a_machine_that_goes_on_has_not_gone_over_the_limit() -> None:
    """A refused value is not counted, and a smaller value has room."""
    bench = MachineBench(Writer)
    bench.limit()
    kept = bench.command(sizes(7, *[MIB] * 20, 100))
    assert NUMBERS.decode(kept.result) == [5]
    assert sum(map(len, bench.rows.values())) == 15 * MIB + 7 + 100


def test_before_they_are_in_force_commands_are_applied_as_by_the_version_before() -> None:
    """The same by a replica that applies them late, or again: their place in the log decides."""
    large, deep = sizes(*[MIB] * 17), nested(201)
    for code, command in ((Writer, large), (Deep, deep)):
        bench = MachineBench(code)
        assert not bench.command(command).is_rejected
        bench.restart()
        assert not bench.command(command).is_rejected
        assert bench.limit() is None
        assert bench.command(command).is_rejected
        bench.restart()
        assert bench.command(command).is_rejected


def test_state_and_results_are_those_of_older_versions_until_they_are_in_force() -> None:
    """S13: replicas of both compare what they store, byte by byte."""
    bench = MachineBench(Writer)
    bench.command(sizes(1))
    applied(bench, [sizes(1), sizes(2)])
    assert sorted({key[:2] for key in bench.state}) == [b"\x02\x08", b"\x02\x09"]
    head = dict(bench.state)[b"\x02\x08"]
    bench.limit()
    assert bench.state[b"\x02\x08"] == head
    assert b"\x02\x0d" in bench.state
    assert bench.user.limits_in_force(bench.state.get) == LIMITS


def test_a_machine_in_memory_applies_again_what_it_had_taken() -> None:
    """Its commands are kept behind its snapshot, from before the limits and from behind them."""
    deep = b"\x91" * 250 + b"\xc0"
    bench = MachineBench(Remembering)
    assert bench.command(deep).result == b"1"
    bench.limit()
    assert bench.command(deep).is_rejected
    bench.restart()
    assert bench.command(b"\xc0").result == b"2"
    assert bench.user._is_limited(bench.user._limits.behind) is False


def test_a_snapshot_of_values_from_before_is_taken_and_restored() -> None:
    """The state is what it is."""
    deep = b"\x91" * 250 + b"\xc0"
    bench = MachineBench(Remembering, raftstore.record_machine.MachineRules(journal_bytes=1))
    bench.command(deep)
    bench.limit()
    assert bench.command(b"\xc0").result == b"2"
    assert bench.head.chunks == 1
    bench.restart()
    assert bench.command(b"\xc0").result == b"3"


def test_commands_of_a_record_write_no_more_together_than_one_may() -> None:
    """A command without room is crowded out, with all behind it, and changes nothing."""
    bench = MachineBench(Writer)
    bench.limit()
    half = [MIB] * 8
    assert ends(bench, [sizes(1), sizes(*half), sizes(*half), sizes(1)]) == [
        "taken", "taken", "crowded out", "crowded out",
    ]  # fmt: skip
    assert len(bench.rows) == 8
    assert ends(bench, [sizes(*FULL), sizes(-1)]) == ["taken", "crowded out"]
    assert ends(bench, [sizes(*half), sizes(*half, *half, *half), sizes(1)]) == [
        "taken", "rejected", "taken",
    ], "a refused one takes no room"  # fmt: skip
    assert not bench.command(sizes(*half)).is_rejected


def test_commands_of_a_record_from_before_are_bounded_by_nothing() -> None:
    """As the version before applied them."""
    bench = MachineBench(Writer)
    assert ends(bench, [sizes(*[MIB] * 17)] * 2) == ["taken", "taken"]


def test_limits_come_into_force_once_and_unknown_ones_stop_the_partition() -> None:
    """A node of an older version says what it lacks, and applies nothing by other rules."""
    bench = MachineBench(Writer)
    assert bench.limit() is None
    stored = dict(bench.state)
    assert bench.limit() is None
    assert bench.state == stored
    said = bench.limit(LIMITS + 1)
    assert said is not None
    assert f"knows {LIMITS}; install a newer one" in said


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\x91\xff", b"\x92\x01\x01", b"\x91\xa1a"])
def test_nonsense_names_no_limits(payload: bytes) -> None:
    """A client may send nothing that does."""
    with pytest.raises(DecodeError):
        decode_limits(payload)
    with pytest.raises(DecodeError, match="takes commands, not records of kind 17"):
        MachineBench(Writer).user.check(RecordKind.MACHINE_LIMITS, encode_limits(1), 1)


def test_the_test_kit_has_the_same_bound() -> None:
    """LocalMachine is what users test with."""
    local = LocalMachine(Writer)
    local.command("k", FULL)
    with pytest.raises(raftstore.RejectedError, match="writes 16777220 bytes"):
        local.command("k", [*FULL, -1])
    local.command("k", FULL)


DEEP = b"\x91" * 250 + b"\xc0"


@pytest.mark.parametrize(
    ("limits", "behind", "counted"),
    [(0, 0, b"3"), (1, 5, b"3"), (1, 4, b"2")],
    ids=["none at the source", "behind the command", "in front of it"],
)
def test_commands_of_a_backup_are_applied_again_as_they_were_at_its_source(
    limits: int, behind: int, counted: bytes
) -> None:
    """Their places are those of the source's log, and the limits that were in force there count,
    also when others come into force here."""
    journal = (
        RestoredCommand(Seq(5), Term(3), 1_000, Guid(bytes(16)), 1, encode_command(b"k", DEEP)),
        RestoredCommand(Seq(6), Term(3), 1_001, Guid(bytes(16)), 1, encode_command(b"k", b"\xc0")),
    )
    head = RestoredHead(
        version=1, commands=2, time_ms=1_001, seq=Seq(6), seq_base=Seq(100), term_base=Term(9),
        rows=0, chunks=0, journal=2, limits=limits, limits_behind=Seq(behind),
    )  # fmt: skip
    bench = MachineBench(Remembering, from_backup=True)
    portion = encode_portion(RestorePortion(bytes(16), 0, journal=journal, head=head))
    assert bench.apply(bench.record(RecordKind.MACHINE_RESTORE, portion)).failure is None
    assert bench.user.limits_in_force(bench.state.get) == limits
    bench.limit()
    assert bench.command(DEEP).is_rejected
    bench.restart()
    assert bench.command(b"\xc0").result == counted


def test_limits_that_are_not_known_here_restore_nothing() -> None:
    """A backup of a newer version: its commands would end otherwise than they did."""
    head = RestoredHead(1, 0, 0, Seq(0), Seq(0), Term(0), 0, 0, 0, LIMITS + 1)
    bench = MachineBench(Remembering, from_backup=True)
    portion = encode_portion(RestorePortion(bytes(16), 0, head=head))
    answer = bench.apply(bench.record(RecordKind.MACHINE_RESTORE, portion)).answer
    assert answer is not None
    assert "restore it with a newer raftstore" in kept_ends(answer)[0].reason
    assert not bench.user.is_whole(bench.state.get)
