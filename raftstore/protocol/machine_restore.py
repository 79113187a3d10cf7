"""The state of a user's state machine on its way in from a backup (docs/decisions/0042).

MACHINE_RESTORE is a msgpack list, a ``RestorePortion``: portions of one partition are numbered from
0, and each is applied once, in this order, by every replica of the partition. The last one has the
facts about the machine; with it the partition is whole. Nodes below
``raftstore.policy.levels.MACHINE_RESTORE_LEVEL`` know none of these.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from raftstore.config import MIB
from raftstore.errors import DecodeError
from raftstore.machine import STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX
from raftstore.protocol.machines import check_one_command
from raftstore.rows.sealing import SEAL_BYTES, check_seal
from raftstore.types import Count63, Guid, Seq, Small31, Term, TimestampMs

TOKEN_BYTES: Final = 16
"""Of the token of a restore; its text is ``table_settings.RESTORE_TOKEN``."""
PORTION_BYTES_MAX: Final = 4 * MIB
"""Of the payload of a portion; who makes one ends it behind the entry that reaches 1 MiB."""
CHUNKS_MAX: Final = 2**32 - 1
"""Of the snapshot of a machine in memory."""


class RestoredCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command of a machine in memory since its snapshot, as the machine got it."""

    seq: Seq
    term: Term
    timestamp_ms: TimestampMs
    guid: Guid
    version: Small31
    payload: bytes
    """As of a MACHINE_COMMAND."""


class RestoredHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The facts about a machine in the state of the backup, and what must never come again."""

    version: Small31
    """In force."""
    commands: Count63
    time_ms: TimestampMs
    """Of the last command: later ones are not earlier than it."""
    seq: Seq
    """Of the last command, as the machine was given it."""
    seq_base: Seq
    """Added to the seqs of the log here: the machine's seqs go on behind all that were given."""
    term_base: Term
    """The same of terms."""
    rows: Count63
    """Keys of the state in all portions, as the next two count what else is in them."""
    chunks: Count63
    journal: Count63
    limits: Small31 = 0
    """Limits of commands that were in force at the source; 0: none that came into force."""
    limits_behind: Seq = Seq(0)
    """Behind which seq they were, as the machine was given it."""


class RestorePortion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of the state of one partition."""

    token: Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
    """Of the restore that the channel set is marked with."""
    number: Count63
    rows: tuple[tuple[bytes, bytes], ...] = ()
    """Keys of the state and their values, each with its seal."""
    chunks: tuple[tuple[Count63, bytes], ...] = ()
    """Of the snapshot of a machine in memory, by number."""
    journal: tuple[RestoredCommand, ...] = ()
    """Commands of a machine in memory behind that snapshot."""
    head: RestoredHead | None = None
    """With the last portion."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_PORTION: Final = msgspec.msgpack.Decoder(RestorePortion)


def encode_portion(portion: RestorePortion) -> bytes:
    """Encode the payload of a MACHINE_RESTORE."""
    return _ENCODER.encode(portion)


def decode_portion(payload: bytes | memoryview) -> RestorePortion:
    """Return the portion; raise DecodeError on anything malformed."""
    try:
        return _PORTION.decode(payload)
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        text = f"a payload of {len(payload)} bytes is no portion of a restored state: {error}"
        raise DecodeError(text) from error


def check_portion(payload: bytes, rows: int) -> None:
    """Raise DecodeError or CorruptRecordError unless a client may have this applied."""
    if rows != 1:
        raise DecodeError(f"a portion of a restored state occupies 1 seq, not {rows}")
    if len(payload) > PORTION_BYTES_MAX:
        raise DecodeError(
            f"a portion of a restored state has {len(payload)} bytes, at most {PORTION_BYTES_MAX} "
            "are allowed; send less at once"
        )
    portion = decode_portion(payload)
    for key, sealed in portion.rows:
        if not 0 < len(key) <= STATE_KEY_BYTES_MAX:
            raise DecodeError(
                f"a key of a restored state has {len(key)} bytes, 1 to {STATE_KEY_BYTES_MAX} are "
                "allowed"
            )
        _check_size(f"the value of {key!r:.80}", len(sealed) - SEAL_BYTES)
        check_seal(key, sealed)
    for number, chunk in portion.chunks:
        if number > CHUNKS_MAX:
            raise DecodeError(f"a snapshot has no chunk {number}, {CHUNKS_MAX} is the last")
        _check_size(f"chunk {number} of a snapshot", len(chunk))
    for command in portion.journal:
        check_one_command(command.payload)


def _check_size(what: str, size: int) -> None:
    if not 0 <= size <= STATE_VALUE_BYTES_MAX:
        raise DecodeError(f"{what} has {size} bytes, at most {STATE_VALUE_BYTES_MAX} are allowed")


def token_of_portion(payload: bytes) -> str:
    """Return the token of a portion as text; DecodeError when it is none."""
    return decode_portion(payload).token.hex()
