"""State machines of users: their records, the answers to commands, queries, and what code nodes
have.

MACHINE_COMMAND ``[key, command]``, MACHINE_STEP ``[step, argument]``, both msgpack lists: the step
``skip`` makes the command of that seq nothing, ``version`` has a version of the machine in force
from this record on. Nodes below ``raftstore.policy.levels.MACHINE_LEVEL`` know none of these.
MACHINE_LIMITS ``[number]``: from this record on that set of limits of commands is in force
(``MACHINE_LIMITS_LEVEL``). What a command may do is decided by the place in the log, not by the
version of a node: replicas of several versions decide alike.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from raftstore.config import KEY_BYTES_MAX
from raftstore.errors import DecodeError
from raftstore.machine import COMMAND_BYTES_MAX
from raftstore.protocol.message import Message, Request
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import ReadRequest, Served
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    INT63_MAX,
    ChannelId,
    Count63,
    RecordKind,
    RequestId,
    Seq,
    Small31,
    TimeoutMs,
)

MACHINE_KINDS: Final = (
    RecordKind.MACHINE_COMMAND,
    RecordKind.MACHINE_STEP,
    RecordKind.MACHINE_COMMANDS,
    RecordKind.MACHINE_RESTORE,
    RecordKind.MACHINE_LIMITS,
)
"""Kinds of records that only channels with a user's machine have."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_COMMAND: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes])
LIMITS: Final = 2
"""The newest set of limits of commands. 0, with which a partition begins: keys, values, results and
the number of keys are bounded. 1: the bytes that a record writes, and how deep values are nested in
each other, too (``raftstore.machine``). ``TOGETHER_LIMITS``: the same, and what the commands that
share a record leave behind is kept together."""
JUDGING_LIMITS: Final = 1
"""The newest set by which commands end otherwise than before; a backup names no newer one, so that
every version that judges alike restores it."""
TOGETHER_LIMITS: Final = 2
_LIMITS: Final = msgspec.msgpack.Decoder(tuple[Small31])
_STEP: Final = msgspec.msgpack.Decoder(tuple[str, int])


class Step(StrEnum):
    """The steps that there are; the argument is a seq or a version."""

    SKIP = "skip"
    VERSION = "version"


class MachineStep(NamedTuple):
    """A decoded MACHINE_STEP."""

    step: Step
    argument: int


class CommandEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a command, as it is kept and as it is answered: a result, a rejection with its
    reason, or that an operator had it skipped."""

    result: bytes = b""
    is_rejected: bool = False
    reason: str = ""
    is_skipped: bool = False


class CommandAck(PubAck, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> publisher, in the place of PubAck: the command is applied. ``result`` is what the
    machine made of it, encoded; ``is_rejected``: it refused the command for ``reason``, and nothing
    of it is in the state. ``is_skipped``: an operator had it skipped, as ``reason`` says."""

    result: bytes = b""
    is_rejected: bool = False
    reason: str = ""
    is_skipped: bool = False


class AskMachine(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node: which code do you have for this machine? ``question`` comes back."""

    question: RequestId
    machine: str


class MachineCode(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer: the version of the sender's code and the oldest that it still is, or why it
    cannot load it (``problem``; empty: it can)."""

    question: RequestId
    machine: str
    version: Small31
    oldest_version: Small31
    problem: str = ""


MachineMessage = AskMachine | MachineCode


class MachineQuery(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Ask the machine of one channel; the fields on consistency are those of Get."""

    channel: ChannelId
    key: bytes
    request: bytes
    level: str
    max_lag: Count63 | None
    min_seq: Seq
    timeout_ms: TimeoutMs
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None


ReplicaRead = ReadRequest | MachineQuery
"""The requests that a replica answers by the rules of reads."""


class MachineAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The machine's answer, encoded, and where it was asked; ``is_rejected``: it refused the
    question for ``reason``."""

    request_id: RequestId
    answer: bytes
    served: Served
    is_rejected: bool = False
    reason: str = ""


class SkipCommand(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: the command at ``seq``, at which the machine of the channel stopped, becomes
    nothing. To the channel's leader; answered with Done when it is applied there."""

    channel: ChannelId
    seq: Seq
    timeout_ms: TimeoutMs = 5000


def encode_command(key: bytes, command: bytes) -> bytes:
    """Encode the payload of a MACHINE_COMMAND."""
    return _ENCODER.encode((key, command))


def decode_command(payload: bytes | memoryview) -> tuple[bytes, bytes]:
    """Return (key, command); raise DecodeError on anything malformed."""
    try:
        return _COMMAND.decode(payload)
    except msgspec.MsgspecError as error:
        text = f"a payload of {len(payload)} bytes is no command of a state machine: {error}"
        raise DecodeError(text) from error


def encode_step(step: Step, argument: int) -> bytes:
    """Encode the payload of a MACHINE_STEP."""
    return _ENCODER.encode((step.value, argument))


def decode_step(payload: bytes | memoryview) -> MachineStep:
    """Return the step; raise DecodeError on anything malformed, and of an unknown step."""
    try:
        name, argument = _STEP.decode(payload)
        step = Step(name)
    except ValueError as error:  # of msgspec, of a text that is no UTF-8, or of the enumeration
        text = f"a payload of {len(payload)} bytes is no step of a state machine: {error}"
        raise DecodeError(text) from error
    if not 0 <= argument <= INT63_MAX:
        raise DecodeError(f"a step {name} of a state machine has the argument {argument}")
    return MachineStep(step, argument)


def encode_limits(number: int) -> bytes:
    """Encode the payload of a MACHINE_LIMITS."""
    return _ENCODER.encode((number,))


def decode_limits(payload: bytes | memoryview) -> int:
    """Return the number of the limits; raise DecodeError on anything malformed."""
    try:
        return _LIMITS.decode(payload)[0]
    except msgspec.MsgspecError as error:
        text = f"a payload of {len(payload)} bytes names no limits of commands: {error}"
        raise DecodeError(text) from error


def check_command(kind: RecordKind, payload: bytes, rows: int) -> None:
    """Raise DecodeError unless a publisher may have this applied to a state machine.

    A leader asks before it sequences a payload, as of tables (``payload.check_payload``).
    """
    if kind is not RecordKind.MACHINE_COMMAND:
        raise DecodeError(
            f"a channel set takes commands, not records of kind {kind:d}; rows are written to a "
            "table (create_table)"
        )
    if rows != 1:
        raise DecodeError(f"a command occupies 1 seq, not {rows}")
    check_one_command(payload)


def check_one_command(payload: bytes) -> None:
    """Raise DecodeError unless it is the payload of a command within the limits."""
    key, command = decode_command(payload)
    if len(key) > KEY_BYTES_MAX:
        raise DecodeError(f"a key of {len(key)} bytes is over the limit of {KEY_BYTES_MAX}")
    if len(command) > COMMAND_BYTES_MAX:
        raise DecodeError(
            f"a command of {len(command)} bytes is over the limit of {COMMAND_BYTES_MAX}; send "
            "less at once"
        )
