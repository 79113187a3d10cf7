"""Payloads of TXN records: the steps of a table's coordinator, and the end of staged rows.

``[format u8][msgpack]`` of one of the classes below. A record carries all that a step needs besides
the state that it meets: guards are judged when it is applied, the same on every replica (S10), so
a leader that is none any more decides nothing.

``acked`` rides on any step of the coordinator: (partition, n) says that this channel has applied
every commit up to ``n`` that touches it.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from raftstore.errors import DecodeError, NewerFormatError
from raftstore.protocol.batches import Manifest
from raftstore.types import (
    Attempt,
    BatchId,
    CommitNumber,
    Count63,
    Partition,
    PartitionCount,
)

TXN_FORMAT: Final = 1
"""Newest version of steps read here; a newer one stops the node, which could not keep the state."""

Acked = tuple[tuple[Partition, CommitNumber], ...]


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all steps."""


class Begin(Step, frozen=True, array_like=True, gc=False, tag=1):
    """Open an attempt. ``partitions`` is the table's number of them, from the catalog."""

    writer: str
    batch_id: BatchId
    uuid: bytes
    lineage: str
    one_shot: bool
    ttl_ms: Count63
    partitions: PartitionCount
    acked: Acked = ()


class Commit(Step, frozen=True, array_like=True, gc=False, tag=2):
    """Decide a batch. ``one_shots_max``: so many one-shot writers are remembered from here on."""

    writer: str
    batch_id: BatchId
    attempt: Attempt
    manifest: Manifest
    digest: bytes
    one_shots_max: Count63
    acked: Acked = ()


class Close(Step, frozen=True, array_like=True, gc=False, tag=3):
    """End an attempt that nobody will commit (its time is over, or its driver gave it up)."""

    writer: str
    attempt: Attempt
    acked: Acked = ()


class Trim(Step, frozen=True, array_like=True, gc=False, tag=4):
    """Nothing but acknowledgements."""

    acked: Acked


class Remove(Step, frozen=True, array_like=True, gc=False, tag=5):
    """Forget a writer."""

    writer: str
    acked: Acked = ()


class Adopt(Step, frozen=True, array_like=True, gc=False, tag=6):
    """Let a writer begin at any batch id, in the checkpoint ``lineage`` (None: the next one)."""

    writer: str
    lineage: str | None
    acked: Acked = ()


class Drop(Step, frozen=True, array_like=True, gc=False, tag=7):
    """In a channel's own log: staged chunks of attempts up to ``floor`` are not needed (rule 6)."""

    writer: str
    floor: Attempt


AnyStep = Begin | Commit | Close | Trim | Remove | Adopt | Drop

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[AnyStep]] = msgspec.msgpack.Decoder(cast(Any, AnyStep))


_OUT_OF_RANGE: Final = ("Expected `int` >=", "Expected `int` <=")
"""How msgspec's text begins when a number is not in the range of its type."""


def encode_step(step: AnyStep) -> bytes:
    """Return the payload of a TXN record."""
    return bytes((TXN_FORMAT,)) + _ENCODER.encode(step)


def decode_step(payload: bytes) -> AnyStep:
    """Return the step; raise NewerFormatError or DecodeError if it cannot be read."""
    if payload and payload[0] > TXN_FORMAT:
        raise NewerFormatError(
            f"a step of micro-batches is of format {payload[0]}, this version reads {TXN_FORMAT}; "
            "run a newer version on this node"
        )
    try:
        return _DECODER.decode(memoryview(payload)[1:])
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        if str(error).startswith(_OUT_OF_RANGE):
            raise DecodeError(
                f"a number of a step is outside its range: {error}", is_out_of_range=True
            ) from error
        raise DecodeError(
            f"a payload of {len(payload)} bytes is no step of micro-batches: {error}"
        ) from error


class Verdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of a step, or why it changed nothing.

    ``code`` is empty, or that of the error to answer with ``message``. ``name`` is opened, already,
    ok or done; ``n`` and ``attempt`` are 0, ``vector`` empty where they do not apply.
    """

    name: str
    code: str = ""
    message: str = ""
    attempt: Attempt = 0
    n: CommitNumber = 0
    batch_id: BatchId = 0
    vector: tuple[CommitNumber, ...] = ()
    rows: Count63 = 0


DONE: Final = Verdict("done")

_VERDICT: Final = msgspec.msgpack.Decoder(Verdict)


def encode_verdict(verdict: Verdict) -> bytes:
    """Return what travels from the state machine to the leader that had the record made."""
    return _ENCODER.encode(verdict)


def decode_verdict(answer: bytes) -> Verdict:
    """Return the verdict behind an answer of ``apply_txn``."""
    return _VERDICT.decode(answer)
