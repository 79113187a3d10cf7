"""Answers to commands of users' machines, where the machine has stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.channel.user_commands import SLOW_MS, PublishJudge, UserCommands
from raftstore.errors import Refusal, UnavailableError
from raftstore.ports.machine import MachineStop
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.protocol.records import Record
from raftstore.protocol.table_settings import TableSettings
from raftstore.record_machine import QueryAtWork
from raftstore.state_machines.witness import WitnessMachine
from raftstore.types import Guid, NodeId, RecordKind, Seq, Term, channel_id, guid_text

CHANNEL = channel_id(b"t" * 16, 0)
GUID = Guid(b"g" * 16)


def late(code: str) -> PubReject:
    """The core's answer to a publisher."""
    return PubReject(CHANNEL, Term(1), GUID, code, "seq 4 was not applied here within 2000 ms")


def test_a_command_that_waits_behind_a_stop_learns_what_it_waits_for() -> None:
    """Its outcome stays unknown, as it is in the log."""
    anything: Any = SimpleNamespace()
    commands = UserCommands(anything, anything, CHANNEL, "c/0", anything)
    message = late("quorum_timeout")
    assert commands.answer(5, message) is message
    commands.stop = MachineStop(Seq(4), GUID, "ValueError: boom")
    answer = commands.answer(5, message)
    assert isinstance(answer, PubReject)
    assert answer.code == "quorum_timeout"
    assert "within 2000 ms; c/0: the state machine stopped at seq 4" in answer.message
    assert "ValueError: boom; install code that can apply it" in answer.message
    assert "(raftstore machine skip c 0 4)" in answer.message
    refused = late("overloaded")
    assert commands.answer(5, refused) is refused


class Slow:
    """A machine that is at something, on another thread; the test's clock."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        parts: Any = SimpleNamespace(
            tell=lambda name, **fields: self.events.append((name, fields)),
            clock=SimpleNamespace(now_ms=1_000),
        )
        self.clock = parts.clock
        self.machine: Any = SimpleNamespace(at_work=None)
        anything: Any = SimpleNamespace()
        self.commands = UserCommands(self.machine, parts, CHANNEL, "c/0", anything)

    def after(self, elapsed_ms: int) -> list[str]:
        """Look again; the events that this leads to."""
        self.clock.now_ms += elapsed_ms
        before = len(self.events)
        self.commands.watch(self.clock.now_ms)
        return [name for name, _ in self.events[before:]]


def a_command(seq: int = 4) -> Record:
    """One that the machine may be at."""
    kind = RecordKind.MACHINE_COMMAND
    return Record(Term(1), Seq(seq), 1, GUID, 0, b"", kind, b"")


def test_a_command_that_does_not_end_is_told_once_and_its_callers_learn_of_it() -> None:
    """With its place and name, and since when; and that it has ended after all."""
    slow = Slow()
    assert slow.after(0) == []
    slow.machine.at_work = a_command()
    assert slow.after(0) == slow.after(SLOW_MS - 1) == []
    assert slow.commands.answer(5, late("quorum_timeout")) == late("quorum_timeout")
    assert slow.after(1) == ["machine_slow"]
    fields = slow.events[-1][1]
    assert fields["seq"] == 4
    assert fields["command"] == guid_text(CHANNEL, GUID)
    assert fields["for_ms"] == SLOW_MS
    assert slow.after(5_000) == []
    answer = slow.commands.answer(5, late("quorum_timeout"))
    assert isinstance(answer, PubReject)
    assert answer.message.startswith(
        "seq 4 was not applied here within 2000 ms; c/0: the state machine has been at seq 4 "
        f"(command {guid_text(CHANNEL, GUID)}) for 7 s, and all that this node applies waits"
    )
    slow.machine.at_work = None
    assert slow.after(1_000) == ["machine_slow_ended"]
    assert slow.events[-1][1] == {"channel": "c/0", "for_ms": 8_000}
    assert slow.commands.slowness(slow.clock.now_ms) == ""


def test_many_commands_one_after_the_other_are_not_one_that_takes_long() -> None:
    """The machine is always at work, and never at the same for long."""
    slow = Slow()
    for number in range(9):
        slow.machine.at_work = a_command(number)
        assert slow.after(SLOW_MS) == []
    slow.machine.at_work = QueryAtWork(b"k")
    assert slow.after(0) == []
    assert slow.after(SLOW_MS) == ["machine_slow"]
    assert "has been at a query for 2 s" in slow.events[-1][1]["reason"]
    slow.machine.at_work = QueryAtWork(b"k")
    assert slow.after(0) == ["machine_slow_ended"]


@pytest.mark.parametrize("kind", [RecordKind.MACHINE_COMMAND, RecordKind.MACHINE_COMMANDS])
@pytest.mark.parametrize("refusal", [None, Refusal(UnavailableError, "a witness leads (W4)")])
def test_a_witness_that_leads_refuses_no_command_for_what_it_is(
    kind: RecordKind, refusal: Refusal | None
) -> None:
    """W4: it sequences nothing, for the moment, which clients try again; a command that no such
    channel takes would be refused for good."""
    channel = SimpleNamespace(commands=None, table_settings=TableSettings())
    judge = PublishJudge(WitnessMachine(), channel, lambda *_: None)
    message = PubMsg(CHANNEL, Term(1), NodeId("n1@00"), GUID, bytes(16), 1, kind, b"anything")
    assert judge.judged(message, refusal, is_client=True) is refusal
