"""The journal of a user's machine in memory: the commands that it applied since its snapshot.

A command that had a record of its own has an entry of its own. Commands that shared a record share
an entry, too, from limits of 2 on (``protocol.machines.LIMITS``).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from raftstore.protocol.records import Record
from raftstore.protocol.shared_commands import commands_in, decode_commands
from raftstore.record_machine import StateReader
from raftstore.state_machines.state_keys import (
    JOURNAL,
    JOURNAL_END,
    TOGETHER_FORMAT,
    is_together,
    packed,
    packed_together,
    scanned,
    seq_of_key,
    unpacked,
)
from raftstore.types import Guid, RecordKind, Seq, Term


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """A command as a machine in memory got it; its seq is in the key."""

    term: int
    timestamp_ms: int
    guid: bytes
    version: int
    payload: bytes


class JournalRecord(msgspec.Struct, frozen=True, array_like=True):
    """The commands of a record as a machine in memory got them; the seq of the last one is in the
    key, and the guids of all follow from the record's."""

    term: int
    timestamp_ms: int
    guid: bytes
    version: int
    payload: bytes
    skipped: tuple[int, ...] = ()
    """Places of those that it never got (the first command is 1)."""


def entry_of(seen: Record, version: int) -> bytes:
    """The entry of a command, as it is stored; ``seen``: as the machine was given it."""
    payload = bytes(seen.payload)
    return packed(JournalEntry(seen.term, seen.timestamp_ms, seen.guid, version, payload))


def entry_together(seen: Record, record: Record, version: int, skipped: tuple[int, ...]) -> bytes:
    """The entry of the commands of a record, as it is stored; ``seen``: the last one as the machine
    was given it."""
    return packed_together(
        JournalRecord(
            seen.term, seen.timestamp_ms, record.guid, version, bytes(record.payload), skipped
        )
    )


def commands_of_entry(key: bytes, stored: bytes) -> Iterator[tuple[Record, int]]:
    """The commands of an entry as the machine was given them, each with the version in force.
    Raises DecodeError, NewerFormatError or CorruptRecordError for what cannot be read."""
    seq = seq_of_key(key)
    if not is_together(stored):
        entry = unpacked(stored, JournalEntry)
        yield _record(entry, seq, 1, RecordKind.MACHINE_COMMAND), entry.version
        return
    together = unpacked(stored, JournalRecord, TOGETHER_FORMAT)
    rows = len(decode_commands(together.payload))
    record = _record(together, Seq(seq - rows + 1), rows, RecordKind.MACHINE_COMMANDS)
    for place, each in enumerate(commands_in(record), start=1):
        if place not in together.skipped:
            yield each, together.version


def entries_one_by_one(key: bytes, stored: bytes) -> Iterator[tuple[Seq, JournalEntry]]:
    """The commands of an entry as they are kept one by one."""
    for each, version in commands_of_entry(key, stored):
        yield (
            each.last_seq,
            JournalEntry(each.term, each.timestamp_ms, each.guid, version, bytes(each.payload)),
        )


def journal_of(state: StateReader) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of all entries, in the order of the log."""
    return scanned(state, JOURNAL, JOURNAL_END)


def _record(
    entry: JournalEntry | JournalRecord, base_seq: Seq, rows: int, kind: RecordKind
) -> Record:
    return Record(
        Term(entry.term), base_seq, rows, Guid(entry.guid), entry.timestamp_ms, b"", kind,
        entry.payload,
    )  # fmt: skip
