"""Where a channel keeps what is not a row, relative to the channel's id.

=================================  =================================================================
``02 00``                          head: newest applied batch (``batches.staging.BatchHead``)
``02 01 hash16 a8 p4 t8 k4``       staged chunk ``k`` of a task attempt, under attempt ``a`` of the
                                   writer whose name has this hash (``batches.staging.ChunkRef``)
``02 02 seq8``                     the batch that the BATCH_APPLY record with this last seq applied
``02 03 seq8 k4 i4``               what became of the record with this last seq where the rows of
                                   then decided: of chunk ``k`` of a batch, piece ``i``
                                   (``outcomes``)
``02 04``                          the store's own: a batch is being applied
``02 05 expiry8 key``              a row that expires (``state_machines.expiry``)
``02 06``                          the channel time, if rows of the channel ever had an expiry
``02 07``                          up to which seq outcomes are trimmed (``trimmed_outcomes``)
``02 08``                          head of a user's machine (``machine_state.MachineHead``)
``02 09 seq8``                     what it made of the command at this seq, or of those of a record
                                   that ends there (``machine_state``)
``02 0a n4``                       chunk ``n`` of the snapshot of a machine in memory
``02 0b seq8``                     a command that came behind that snapshot, or those of a record
                                   (``machine_journal``)
``02 0c``                          of a machine whose state came from a backup: how far it has come,
                                   and where it goes on (``machine_origin.MachineOrigin``)
``02 0d``                          which limits of commands are in force (``machine_state``)
``03 00``                          coordinator: the table's head
``03 01 writer``                   coordinator: a writer
``03 02 n8``                       coordinator: commit ``n`` is not applied everywhere (outbox)
``03 03 n8``                       coordinator: its manifest and vector, read by who sends it only
``03 04 n8 writer``                coordinator: a one-shot writer that is remembered, by its commit
=================================  =================================================================

Numbers are big-endian, so the order of the keys is theirs. Every value is ``[format u8][msgpack]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final, TypeVar

import msgspec

from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.record_machine import StateReader
from raftstore.types import Seq

STAGING: Final = b"\x02"
COORDINATOR: Final = b"\x03"
BATCH_HEAD: Final = b"\x02\x00"
CHUNKS: Final = b"\x02\x01"
CHUNKS_END: Final = b"\x02\x02"
APPLIED_BATCHES: Final = b"\x02\x02"
OUTCOMES: Final = b"\x02\x03"
EXPIRIES: Final = b"\x02\x05"
CHANNEL_TIME: Final = b"\x02\x06"
TRIMMED: Final = b"\x02\x07"
MACHINE_HEAD: Final = b"\x02\x08"
RESULTS: Final = b"\x02\x09"
RESULTS_END: Final = b"\x02\x0a"
MACHINE_CHUNKS: Final = b"\x02\x0a"
MACHINE_CHUNKS_END: Final = b"\x02\x0b"
JOURNAL: Final = b"\x02\x0b"
JOURNAL_END: Final = b"\x02\x0c"
MACHINE_ORIGIN: Final = b"\x02\x0c"
MACHINE_LIMITS: Final = b"\x02\x0d"
TABLE_HEAD: Final = b"\x03\x00"
WRITERS: Final = b"\x03\x01"
OUTBOX: Final = b"\x03\x02"
OUTBOX_END: Final = b"\x03\x03"
MANIFESTS: Final = b"\x03\x03"
ENDS: Final = b"\x03\x04"
ENDS_END: Final = b"\x03\x05"
"""The beginnings of the keys above."""
UNHASHED: Final = (OUTCOMES,)
"""Not compared between replicas: versions before this one did not write it down, and their rows are
the same."""

STATE_FORMAT: Final = 1
TOGETHER_FORMAT: Final = 2
"""Of what commands that shared a record left behind together; versions without it stop at them."""
HASH_BYTES: Final = 16
SCANNED_AT_ONCE: Final = 1_000
"""Values read at a time where all of a kind are read."""

_PREFIX: Final = bytes((STATE_FORMAT,))
_TOGETHER_PREFIX: Final = bytes((TOGETHER_FORMAT,))
_CHUNK: Final = Struct(">QIQI")
_OUTCOME: Final = Struct(">QII")

APPLIED_BATCH_KEY_BYTES: Final = 2 + 8
OUTCOME_KEY_BYTES: Final = 2 + _OUTCOME.size

Kind = TypeVar("Kind", bound=msgspec.Struct)

_ENCODER: Final = msgspec.msgpack.Encoder()


@lru_cache(maxsize=256)
def writer_hash(writer: str) -> bytes:
    """16 bytes that stand for a writer's name in keys of chunks."""
    return blake2b(writer.encode(), digest_size=HASH_BYTES).digest()


def chunks_of(writer: str) -> bytes:
    """The prefix of the keys of all staged chunks of a writer."""
    return CHUNKS + writer_hash(writer)


def chunk_key(
    writer: str, attempt: int, partition_id: int, task_attempt_id: int, number: int
) -> bytes:
    """The key of one staged chunk."""
    return chunks_of(writer) + _CHUNK.pack(attempt, partition_id, task_attempt_id, number)


def applied_batch_key(last_seq: int) -> bytes:
    """The key of what a BATCH_APPLY record applied."""
    return APPLIED_BATCHES + last_seq.to_bytes(8, "big")


def outcome_key(last_seq: int, chunk: int = 0, piece: int = 0) -> bytes:
    """The key of what became of a record, or of one chunk of a batch."""
    return OUTCOMES + _OUTCOME.pack(last_seq, chunk, piece)


def seq_of_outcome(key: bytes) -> Seq | None:
    """The last seq of the record that such a key is of; None: it is no key of an outcome, nor of
    what a BATCH_APPLY record applied."""
    is_outcome = key[:2] == OUTCOMES and len(key) == OUTCOME_KEY_BYTES
    is_batch = key[:2] == APPLIED_BATCHES and len(key) == APPLIED_BATCH_KEY_BYTES
    return Seq(int.from_bytes(key[2:10], "big")) if is_outcome or is_batch else None


def result_key(seq: int) -> bytes:
    """The key of what a user's machine made of the command at this seq, or of the commands of a
    record of which it is the last."""
    return RESULTS + seq.to_bytes(8, "big")


def seq_of_key(key: bytes) -> Seq:
    """The seq in the key of a result or of an entry of the journal."""
    return Seq(int.from_bytes(key[2:], "big"))


def journal_key(seq: int) -> bytes:
    """The key of a command that a machine in memory applied since its snapshot, or of the commands
    of a record of which it is the last."""
    return JOURNAL + seq.to_bytes(8, "big")


def machine_chunk_key(number: int) -> bytes:
    """The key of a chunk of the snapshot of a machine in memory."""
    return MACHINE_CHUNKS + number.to_bytes(4, "big")


def writer_key(writer: str) -> bytes:
    """The key of a writer at the coordinator."""
    return WRITERS + writer.encode()


def outbox_key(n: int) -> bytes:
    """The key of a commit that some channel has not applied."""
    return OUTBOX + n.to_bytes(8, "big")


def manifest_key(n: int) -> bytes:
    """The key of that commit's manifest."""
    return MANIFESTS + n.to_bytes(8, "big")


def end_key(n: int, writer: str) -> bytes:
    """The key by which a one-shot writer is found when its commit is the oldest of them."""
    return ENDS + n.to_bytes(8, "big") + writer.encode()


def packed(value: msgspec.Struct) -> bytes:
    """Return the stored form of a value."""
    return _PREFIX + _ENCODER.encode(value)


def packed_together(value: msgspec.Struct) -> bytes:
    """Return the stored form of what commands that shared a record left behind together."""
    return _TOGETHER_PREFIX + _ENCODER.encode(value)


def is_together(stored: bytes) -> bool:
    """Whether it is of commands that shared a record."""
    return stored[:1] == _TOGETHER_PREFIX


def unpacked(stored: bytes, kind: type[Kind], newest: int = STATE_FORMAT) -> Kind:
    """Return the value; NewerFormatError or CorruptRecordError when this version cannot.
    ``newest``: the format of such values that this version reads."""
    if stored[:1] > bytes((newest,)):
        raise NewerFormatError(
            f"a {kind.__name__} is stored in format {stored[0]}, this version reads "
            f"{newest}; run a newer version on this node"
        )
    try:
        return msgspec.msgpack.decode(memoryview(stored)[1:], type=kind)
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        raise CorruptRecordError(
            f"a stored {kind.__name__} cannot be read: {error}; compare with another replica"
        ) from error


def read_state(state: StateReader, key: bytes, kind: type[Kind]) -> Kind | None:
    """The value of a key, if there is one."""
    stored = state.get(key)
    return None if stored is None else unpacked(stored, kind)


def scanned(state: StateReader, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All pairs of [start, stop), some at a time."""
    while found := state.scan(start, stop, SCANNED_AT_ONCE):
        yield from found
        start = found[-1][0] + b"\0"
