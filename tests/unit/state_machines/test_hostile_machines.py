"""Machines that do what their contract does not foresee: a partition stops, and never a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

import raftstore
from raftstore.errors import CorruptRecordError, RejectedError, StateLimitError
from raftstore.machine import (
    COMMAND_WRITES_MAX,
    CommandContext,
    MemoryMachine,
    QueryContext,
    StateMachine,
    codec,
)
from raftstore.protocol.machines import encode_command
from raftstore.record_machine import MachineRules
from raftstore.state_machines.base import NO_CHANGE
from raftstore.state_machines.command_state import RANGE_ROWS
from raftstore.types import RecordKind
from tests.machine_bench import MachineBench


class OwnError(BaseException):
    """Derived from what most code lets through."""


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Raising(StateMachine):
    """Raises what it is asked to."""

    raised: BaseException

    def apply(self, command: bytes, context: CommandContext) -> bytes:
        """Raise it."""
        raise self.raised

    def query(self, request: bytes, context: QueryContext) -> bytes:
        """Raise it."""
        raise self.raised


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OwnError("mine"), "OwnError: mine"),
        (SystemExit(1), "SystemExit: 1"),
        (CorruptRecordError("of its own data"), "CorruptRecordError: of its own data"),
        (GeneratorExit("ended"), "GeneratorExit: ended"),
        (asyncio.CancelledError("gone"), "CancelledError: gone"),
        (Unspeakable(), "Unspeakable: (its text raised ZeroDivisionError)"),
        (ValueError("half \udc80"), "ValueError: half \\udc80"),
    ],
)
def test_whatever_is_raised_is_a_failure_and_in_a_query_an_answer(
    error: BaseException, said: str
) -> None:
    """The thread that applies, and the one of long reads, are those of all channels."""

    class Now(Raising):
        raised = error

    bench = MachineBench(Now)
    assert bench.failing(b"").startswith(said)
    answer = bench.user.query(b"k", b"", bench, bench.state.get)
    assert answer.is_rejected
    assert answer.reason.startswith(said)


def test_an_interrupt_that_a_machine_raises_is_its_error_and_ends_no_node() -> None:
    """It would end every replica again at each restart; Ctrl-C reaches no thread of a node."""

    class Interrupting(Raising):
        raised = KeyboardInterrupt("its own")

    bench, said = MachineBench(Interrupting), "KeyboardInterrupt: its own"
    try:
        stopped = bench.failing(b"")
        answer = bench.user.query(b"k", b"", bench, bench.state.get)
    except KeyboardInterrupt:  # pytest itself would end by it
        pytest.fail("it went on to the thread")
    assert stopped.startswith(said)
    assert answer.is_rejected
    assert answer.reason.startswith(said)


def test_somebody_at_a_terminal_stops_a_simulation() -> None:
    """It is no failure of the machine that runs in that moment."""

    class Interrupted(Raising):
        raised = KeyboardInterrupt()

    bench = MachineBench(Interrupted, MachineRules(is_interruptible=True))
    with pytest.raises(KeyboardInterrupt):
        bench.failing(b"")
    with pytest.raises(KeyboardInterrupt):
        bench.user.query(b"k", b"", bench, bench.state.get)


@pytest.mark.parametrize(
    ("reason", "said"),
    [("half \udc80", "half \\udc80"), ("x" * 5_000, "x" * 1_000 + "…")],
)
def test_any_reason_of_a_rejection_can_be_kept(reason: str, said: str) -> None:
    """It is text of somebody else's, and goes into the state and over the network."""

    class Refusing(Raising):
        raised = RejectedError(reason)

    assert MachineBench(Refusing).command(b"").reason == said


class Worded:
    """A codec of somebody else's."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def encode(self, value: Any) -> Any:
        """Text where bytes belong."""
        return str(value)

    def decode(self, data: bytes) -> Any:
        """Raise what it is made to raise, or give text."""
        if self._error is not None:
            raise self._error
        return data.decode()


class Echo(StateMachine):
    """Gives back what it gets."""

    commands: Any = Worded()

    def apply(self, command: str, context: CommandContext) -> bytes:
        """As it came."""
        return command.encode()


def test_bytes_that_a_codec_cannot_read_are_rejected_whatever_value_error_it_raises() -> None:
    """Any client can send bytes; they must not stop the others."""
    bench = MachineBench(Echo)
    kept = bench.command(b"\xff")
    assert kept.is_rejected
    assert "the command is none of this machine: 'utf-8' codec" in kept.reason
    assert bench.command(b"fine").result == b"fine"


def test_a_codec_that_fails_stops_the_partition_and_no_node() -> None:
    """Its error may not be the same everywhere: memory, say, that one node does not have."""

    class Lacking(Echo):
        commands = Worded(MemoryError("none left"))

    bench = MachineBench(Lacking)
    said = bench.failing(b"x")
    assert said.startswith("the codec of its commands raised MemoryError: none left")

    class Wordy(StateMachine):
        results: Any = Worded()

        def apply(self, command: bytes, context: CommandContext) -> str:
            return "text"

    assert "str where bytes belong: 'text'" in MachineBench(Wordy).failing(b"")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_command_nested_too_deeply_is_rejected(opening: bytes) -> None:
    """A few bytes of any client, from which a parser without bounds gives up."""

    class Loose(StateMachine):
        commands = raftstore.JSON

        def apply(self, command: Any, context: CommandContext) -> bytes:
            return b"read"

    bench = MachineBench(Loose)
    bench.limit()
    assert "nested more than 200 deep" in bench.command(opening * 100_000).reason
    assert bench.command(b"[" * 200 + b"]" * 200).result == b"read"
    assert bench.command(b'["' + b"[" * 500 + b'\\"[", []]').result == b"read"

    class Packed(Loose):
        commands = codec(Any)

    packed = MachineBench(Packed)
    packed.limit()
    assert "nested more than 200 deep" in packed.command(b"\x91" * 100_000).reason
    assert "nested more than 200 deep" in packed.command(b"\x91" * 201 + b"\xc0").reason
    assert packed.command(b"\x91" * 200 + b"\xc0").result == b"read"
    assert packed.command(b"\xc5\x01\xf4" + b"\x91" * 500).result == b"read"


class Shadowing(StateMachine):
    """Has attributes of its own under names of the contract, as careless code does."""

    commands = results = codec(int)

    def __init__(self) -> None:
        self.version = "1.2"  # type: ignore[misc, assignment]
        self.commands: Any = []  # type: ignore[misc]
        self.results: Any = {}  # type: ignore[misc]

    def apply(self, command: int, context: CommandContext) -> int:
        """The next number."""
        return command + 1


def test_attributes_of_an_object_hide_nothing_that_its_class_declares() -> None:
    """Version and codecs are those of the class."""
    assert codec(int).decode(MachineBench(Shadowing).command(codec(int).encode(6)).result) == 7


class Keeping(StateMachine):
    """Keeps the state of its first command."""

    def __init__(self) -> None:
        self.state: Any = None

    def apply(self, command: bytes, context: CommandContext) -> bytes:
        """Use the one that was kept."""
        self.state = self.state or context.state
        if command == b"get":
            self.state.get(b"k")
        elif command == b"range":
            list(self.state.range())
        else:
            self.state.put(b"k", command)
        return b""


@pytest.mark.parametrize("command", [b"get", b"range", b"put"])
def test_the_state_of_a_command_that_has_ended_can_be_used_no_more(command: bytes) -> None:
    """A value put into it would be lost in silence."""
    bench = MachineBench(Keeping)
    bench.command(b"first")
    assert "the state of a command that has ended" in bench.failing(command)
    assert bench.rows == {b"k": b"first"}


def test_a_range_is_of_the_moment_in_which_it_was_asked_for() -> None:
    """A loop that writes as it goes along loses no key, and finds none twice."""
    seen: list[list[bytes]] = []

    class Looping(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            state = context.state
            if command == b"fill":
                for name in (b"a", b"b", b"c"):
                    state.put(name, b"old")
                return b""
            found = []
            for key, value in state.range():
                found.append(key + value)
                state.put(b"b", b"new")
                state.put(b"d", b"new")
                state.delete(b"c")
            seen.append(found)
            seen.append([key + value for key, value in state.range()])
            return b""

    bench = MachineBench(Looping)
    bench.command(b"fill")
    bench.command(b"loop")
    assert seen == [[b"aold", b"bold", b"cold"], [b"aold", b"bnew", b"dnew"]]


def test_a_range_reads_no_more_than_is_taken_of_it() -> None:
    """Its limit may be any number, and a partition larger than memory."""
    reads: list[int] = []

    class First(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            if command:
                for number in range(2 * RANGE_ROWS + 10):
                    context.state.put(b"%05d" % number, b"")
                return b""
            reads.clear()
            found = context.state.range(limit=10**12)
            next(found)
            first = len(reads)
            return b"%d %d %d" % (first, 1 + len(list(found)), len(reads))

    bench = MachineBench(First)
    bench.command(b"fill")
    stored = bench.range

    def counted(start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        reads.append(limit)
        return stored(start, stop, limit)

    bench.range = counted  # type: ignore[method-assign]
    assert bench.command(b"").result == b"1 %d 3" % (2 * RANGE_ROWS + 10)


def test_a_machine_that_swallows_a_limit_has_not_gone_over_it() -> None:
    """A write that is refused is none."""

    class Swallowing(StateMachine):
        def apply(self, command: bytes, context: CommandContext) -> bytes:
            for number in range(COMMAND_WRITES_MAX + 5):
                try:
                    context.state.put(b"%d" % number, b"")
                except StateLimitError:
                    context.state.put(b"0", b"again")  # a key that it has written already
            return b""

    bench = MachineBench(Swallowing)
    bench.command(b"")
    assert (len(bench.rows), bench.rows[b"0"]) == (COMMAND_WRITES_MAX, b"again")


class Text(MemoryMachine):
    """Appends; its snapshot is what a test makes of it."""

    def __init__(self) -> None:
        self.text = b""

    def apply(self, command: bytes, context: CommandContext) -> bytes:
        """Append."""
        self.text += command
        return self.text

    def snapshot(self) -> Iterable[bytes]:
        """All of it."""
        return [self.text]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """All of it."""
        self.text = b"".join(chunks)


class Flat(Text):
    """Gives the bytes themselves, which are numbers one by one."""

    def snapshot(self) -> Any:
        """As careless code does."""
        return self.text


class Unreadable(Text):
    """Cannot read what it wrote."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        """As careless code does."""
        raise KeyError("text")


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (Flat, "its snapshot cannot be taken: TypeError: int where bytes belong: 97"),
        (Unreadable, "its snapshot of 1 chunks does not restore: KeyError: 'text'"),
    ],
)
def test_a_snapshot_that_is_none_replaces_no_command(machine: type[Text], said: str) -> None:
    """The commands are there until one restores; mended code goes on where this one stopped."""
    bench = MachineBench(machine, MachineRules(journal_bytes=200))
    sent = b""
    result = NO_CHANGE
    for _ in range(10):
        before = dict(bench.state)
        result = bench.apply(bench.record(RecordKind.MACHINE_COMMAND, encode_command(b"k", b"a")))
        if result.failure is not None:
            break
        sent += b"a"
    assert result.failure is not None
    assert said in result.failure
    assert bench.state == before
    bench.seq -= 1
    bench.restart(Text)
    assert bench.command(b"b").result == sent + b"b"
