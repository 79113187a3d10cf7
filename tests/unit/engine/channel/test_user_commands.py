"""Answers to commands of users' machines, where the machine has stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftstore.engine.channel.user_commands import UserCommands
from raftstore.ports.machine import MachineStop
from raftstore.protocol.publish import PubReject
from raftstore.types import Guid, Seq, Term, channel_id

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
    refused = late("overloaded")
    assert commands.answer(5, refused) is refused
