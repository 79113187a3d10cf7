"""The end of outcomes: what became of old records is removed when nobody may ask for it any more.

What a BATCH_APPLY record applied (``02 02``) and what became of writes that the rows of then
decided (``02 03``, ``outcomes``) is kept for readers of changes, who need the records, too. Where
logs are trimmed nobody can read them, so the leader has them removed by a TRIM_OUTCOMES record: it
names them, a bounded number, and states the seq up to which outcomes are *trimmed*. Every replica
that applies the record removes the same and remembers that seq (``02 07``), whatever its own log
still has: what is removed is a function of the committed prefix (S6.7), so contents stay equal by
hash, and a reader below that seq is refused by every replica, never led past what is gone (S6.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from raftstore.config import MIB
from raftstore.errors import DecodeError
from raftstore.protocol.records import Record
from raftstore.protocol.trimming import OUTCOMES_MAX, decode_trim
from raftstore.record_machine import (
    ApplyResult,
    RecordMachine,
    RecordView,
    StateReader,
    StateWrites,
)
from raftstore.state_machines.base import refuse_payload
from raftstore.state_machines.state_keys import (
    APPLIED_BATCHES,
    OUTCOMES,
    TRIMMED,
    applied_batch_key,
    outcome_key,
    packed,
    seq_of_outcome,
    unpacked,
)
from raftstore.types import RecordKind, Seq

SCANNED_BYTES_MAX: Final = 2 * MIB
"""Bytes of outcomes that a leader reads to name them, but for the last scan."""
SCAN_PAIRS: Final = 4
"""Outcomes of one scan: each may have a MiB of rows, which a merge led to."""
SMALL_BYTES: Final = 4_096
"""Of one scan: as long as it reads no more, the next one may be larger."""

Scan = Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]]


class Trimmed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Outcomes of records up to this seq are answered to nobody any more."""

    seq: int


class OutcomesMachine(RecordMachine):
    """The part of a table's machine that removes old outcomes."""

    KINDS: ClassVar = frozenset({RecordKind.TRIM_OUTCOMES})

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Remove what the record names."""
        return ApplyResult((), state_writes=trim_outcomes(record, view.state))


def trimmed_to(get: Callable[[bytes], bytes | None]) -> Seq:
    """The seq up to which outcomes are trimmed in a state; 0: none was ever."""
    stored = get(TRIMMED)
    return Seq(0 if stored is None else unpacked(stored, Trimmed).seq)


def trim_outcomes(record: Record, state: StateReader) -> StateWrites:
    """Compute what a committed TRIM_OUTCOMES record changes in the state beside the rows.

    Raises CorruptRecordError for one that names anything but outcomes of records up to its seq,
    which lies in front of the record itself.
    """
    try:
        to_seq, keys = decode_trim(record.payload)
        if to_seq >= record.base_seq:
            raise DecodeError(f"it trims outcomes up to seq {to_seq}, which comes behind it")
        for key in keys:
            seq = seq_of_outcome(key)
            if seq is None or seq > to_seq:
                raise DecodeError(f"{key.hex()} is no outcome of a record up to seq {to_seq}")
    except DecodeError as error:
        raise refuse_payload(record, error) from error
    # S6.6: it never goes back under another leader: what is gone stays refused.
    newest = max(to_seq, trimmed_to(state.get))
    return (*((key, None) for key in keys), (TRIMMED, packed(Trimmed(newest))))


def has_outcomes(scan: Scan, to_seq: Seq) -> bool:
    """Whether there is any outcome of a record up to this seq."""
    return any(scan(start, stop, 1) for start, stop in outcome_ranges(to_seq))


def old_outcomes(
    scan: Scan, to_seq: Seq, *, after: bytes = b"", bytes_max: int = SCANNED_BYTES_MAX
) -> list[bytes]:
    """Keys behind ``after`` of outcomes of records up to this seq, in their order, bounded by their
    number and by the bytes of what is read; ``scan`` reads the state beside the rows."""
    found: list[bytes] = []
    size = 0
    for first, stop in outcome_ranges(to_seq):
        start, limit = max(first, after + b"\x00"), SCAN_PAIRS
        while start < stop and size < bytes_max and len(found) < OUTCOMES_MAX:
            limit = min(limit, OUTCOMES_MAX - len(found))
            pairs = scan(start, stop, limit)
            found += [key for key, _ in pairs]
            read = sum(len(key) + len(value) for key, value in pairs)
            size += read
            if len(pairs) < limit:
                break
            start = pairs[-1][0] + b"\x00"
            limit = 2 * limit if read <= SMALL_BYTES else SCAN_PAIRS
    return found


def outcome_ranges(to_seq: Seq) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """The ranges [start, stop) of keys of outcomes of records up to this seq."""
    behind = to_seq + 1
    return (APPLIED_BATCHES, applied_batch_key(behind)), (OUTCOMES, outcome_key(behind))
