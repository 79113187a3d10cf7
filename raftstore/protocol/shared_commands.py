"""Commands of users' state machines that share a record, and the answer for all of them.

MACHINE_COMMANDS is a msgpack list of the payloads that the commands would have as records of their
own (MACHINE_COMMAND). Each occupies one seq, in this order, and is a command by itself: with a
result, a rejection, and a GUID of its own, which follows from that of the record. Nodes below
``raftstore.policy.levels.SHARED_COMMANDS_LEVEL`` know none of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from raftstore.errors import DecodeError
from raftstore.protocol.machines import CommandEnd, check_one_command
from raftstore.protocol.publish import PubAck, WriteFate, WriteFateAnswer
from raftstore.protocol.records import Record
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    Guid,
    RecordKind,
    Seq,
    Small31,
    guid_parts,
    make_guid,
)

COMMANDS_PER_RECORD_MAX: Final = 128
"""So many results of ``RESULT_BYTES_MAX`` go into one answer."""

CROWDED_OUT: Final = (
    "the commands before it in its record leave no room for what it writes; send it again"
)
"""Why a command is refused that would be taken in a record of its own. Clients send it again; where
a machine gives this very reason for its own, that does no harm."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_COMMANDS: Final = msgspec.msgpack.Decoder(list[bytes])


def is_crowded_out(end: CommandEnd) -> bool:
    """Whether the command changed nothing, and would be taken in a record of its own."""
    return end.is_rejected and end.reason == CROWDED_OUT


class CommandsAck(PubAck, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> publisher, in the place of PubAck: all commands of the record are applied.
    ``ends`` are theirs, in the order of the record."""

    ends: tuple[CommandEnd, ...] = ()


class CommandFate(WriteFate, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The question for the outcome of the record with this guid, and for the end of the command at
    ``place`` in it (the first is 1)."""

    place: Small31 = 1


class CommandFateAnswer(WriteFateAnswer, frozen=True, array_like=True, gc=False, tag=tag_of):
    """In the place of WriteFateAnswer. Of a record that is committed ``seq`` is the command's, and
    ``end`` what came of it; None: it is not kept any more."""

    end: CommandEnd | None = None


def encode_commands(payloads: Iterable[bytes]) -> bytes:
    """Encode the payload of a MACHINE_COMMANDS from those of its commands."""
    return _ENCODER.encode(list(payloads))


def decode_commands(payload: bytes | memoryview) -> list[bytes]:
    """Return the payloads of the commands; raise DecodeError on anything malformed."""
    try:
        return _COMMANDS.decode(payload)
    except msgspec.MsgspecError as error:
        text = f"a payload of {len(payload)} bytes is no list of commands: {error}"
        raise DecodeError(text) from error


def check_commands(payload: bytes, rows: int) -> None:
    """Raise DecodeError unless a publisher may have these applied to a state machine."""
    found = decode_commands(payload)
    if len(found) != rows or not 1 < rows <= COMMANDS_PER_RECORD_MAX:
        raise DecodeError(
            f"a payload announced with {rows} commands holds {len(found)}; the numbers must agree, "
            f"and 2 to {COMMANDS_PER_RECORD_MAX} commands share a record"
        )
    for each in found:
        check_one_command(each)


def guid_of_place(guid: Guid, place: int) -> Guid:
    """The guid of the command at a place of the record with this guid (the first is 1). Its
    counter is taken with that of the record, so no other write of the session has it."""
    session, counter = guid_parts(guid)
    return make_guid(session, (counter + place) % 2**64)


def commands_in(record: Record) -> Iterator[Record]:
    """The commands of a record, each as a record of its own; raises DecodeError."""
    if record.kind is not RecordKind.MACHINE_COMMANDS:
        yield record
        return
    found = decode_commands(record.payload)
    if len(found) != record.rows:
        raise DecodeError(f"a record of {record.rows} commands holds {len(found)}")
    for place, payload in enumerate(found, start=1):
        yield Record(
            record.term, Seq(record.base_seq + place - 1), 1, guid_of_place(record.guid, place),
            record.timestamp_ms, b"", RecordKind.MACHINE_COMMAND, payload,
        )  # fmt: skip
