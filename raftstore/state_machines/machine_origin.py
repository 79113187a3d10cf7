"""A user's machine whose state came from a backup: how it comes in, and where it goes on.

Portions are applied in their order, each once; anything else leaves the state as it is, so a
restore that died is gone on with by another one of the same backup. Only the last portion, if all
that it counts is there, makes the machine one that can be asked and commanded.

Seqs, terms and times of the log here begin anew, and a machine may have given some of the source's
to others (a token by which a store fences, say). So the machine is given those of the log behind
all that it was ever given (docs/decisions/0042).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from raftstore.protocol.machine_restore import RestoredCommand, RestoredHead, RestorePortion
from raftstore.protocol.machines import LIMITS, CommandEnd
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, StateReader
from raftstore.state_machines.machine_journal import JournalEntry
from raftstore.state_machines.machine_state import LimitsInForce, MachineHead
from raftstore.state_machines.state_keys import (
    MACHINE_HEAD,
    MACHINE_LIMITS,
    MACHINE_ORIGIN,
    journal_key,
    machine_chunk_key,
    packed,
    result_key,
    unpacked,
)
from raftstore.types import Count63, Seq, Term

NOT_WHOLE: Final = "its state is on its way in from a backup, and not whole"


class MachineOrigin(msgspec.Struct, frozen=True):
    """The restore by which the state of a partition came, or comes."""

    token: bytes
    portions: Count63 = 0
    """That were applied."""
    rows: Count63 = 0
    chunks: Count63 = 0
    snapshot_bytes: Count63 = 0
    journal: Count63 = 0
    journal_bytes: Count63 = 0
    """In these portions."""
    end_seq: Seq = Seq(0)
    """Of the record with the last portion; 0: it has not come, and the state is not whole."""
    seq_base: Seq = Seq(0)
    term_base: Term = Term(0)
    """Added to what the log here says (``RestoredHead``)."""

    @property
    def is_whole(self) -> bool:
        """Whether all portions were applied."""
        return self.end_seq > 0


def read_origin(get: Callable[[bytes], bytes | None]) -> MachineOrigin | None:
    """The origin as it is stored; None: no portion was applied yet."""
    stored = get(MACHINE_ORIGIN)
    return None if stored is None else unpacked(stored, MachineOrigin)


def apply_portion(portion: RestorePortion, record: Record, state: StateReader) -> ApplyResult:
    """Apply one portion if it is the next one; the answer says what became of it."""
    origin = read_origin(state.get) or MachineOrigin(portion.token)
    if portion.token == origin.token and portion.number < origin.portions:
        return ApplyResult((), answer=packed(CommandEnd()))
    if portion.token != origin.token:
        return _refused(f"the state here is that of restore {origin.token.hex()}")
    if origin.is_whole or portion.number != origin.portions:
        last = ", the last of them" if origin.is_whole else ""
        return _refused(
            f"{origin.portions} portions were applied{last}, so {portion.number} is not next"
        )
    beside: list[tuple[bytes, bytes | None]] = [
        (machine_chunk_key(number), b"\x01" + chunk) for number, chunk in portion.chunks
    ]
    entries = [(command.seq, packed(_entry(command))) for command in portion.journal]
    beside += [(journal_key(seq), entry) for seq, entry in entries]
    grown = replace(
        origin,
        portions=origin.portions + 1,
        rows=origin.rows + len(portion.rows),
        chunks=origin.chunks + len(portion.chunks),
        snapshot_bytes=origin.snapshot_bytes + sum(len(chunk) for _, chunk in portion.chunks),
        journal=origin.journal + len(entries),
        journal_bytes=origin.journal_bytes + sum(len(entry) for _, entry in entries),
    )
    result = CommandEnd()
    if (head := portion.head) is not None:
        counted, there = _counts(head), (grown.rows, grown.chunks, grown.journal)
        if counted != there:
            return _refused(
                f"the portions hold {there} keys, chunks and commands, and the last one says "
                f"{counted}"
            )
        if head.limits > LIMITS:
            return _refused(
                f"limits {head.limits} of commands were in force at the source, the version here "
                f"knows those up to {LIMITS}; restore it with a newer raftstore"
            )
        if head.limits:
            # Commands of its journal are applied again as they were at the source.
            in_force = LimitsInForce(head.limits, head.limits_behind)
            beside.append((MACHINE_LIMITS, packed(in_force)))
        end = packed(result)
        grown = replace(
            grown, end_seq=record.last_seq, seq_base=head.seq_base, term_base=head.term_base
        )
        beside.append((result_key(record.last_seq), end))
        beside.append((MACHINE_HEAD, packed(_head(head, grown, len(end)))))
    beside.append((MACHINE_ORIGIN, packed(grown)))
    return ApplyResult(portion.rows, state_writes=beside, answer=packed(result))


def kept_of_portion(seq: Seq, get: Callable[[bytes], bytes | None]) -> CommandEnd | None:
    """The end of a record of a client whose result is not kept: before the state was whole all of
    them were portions."""
    origin = read_origin(get)
    is_portion = origin is not None and (not origin.is_whole or seq <= origin.end_seq)
    return CommandEnd() if is_portion else None


def as_the_machine_sees(record: Record, origin: MachineOrigin | None, head: MachineHead) -> Record:
    """The command with the seq, term and time that the machine is given."""
    if origin is None:
        return record
    seq = seen_seq(record.last_seq, origin)
    return Record(
        Term(record.term + origin.term_base), seq, 1, record.guid,
        max(record.timestamp_ms, head.time_ms), b"", record.kind, record.payload,
    )  # fmt: skip


def seen_seq(seq: Seq, origin: MachineOrigin | None) -> Seq:
    """A seq of the log as the machine is given it."""
    return seq if origin is None else Seq(seq + origin.seq_base)


def _counts(head: RestoredHead) -> tuple[int, int, int]:
    return head.rows, head.chunks, head.journal


def _head(head: RestoredHead, origin: MachineOrigin, result_bytes: int) -> MachineHead:
    return MachineHead(
        version=head.version,
        commands=head.commands,
        time_ms=head.time_ms,
        seq=head.seq,
        results=1,
        result_bytes=result_bytes,
        first_result=origin.end_seq,
        chunks=origin.chunks,
        snapshot_bytes=origin.snapshot_bytes,
        journal=origin.journal,
        journal_bytes=origin.journal_bytes,
    )


def _entry(command: RestoredCommand) -> JournalEntry:
    return JournalEntry(
        command.term, command.timestamp_ms, command.guid, command.version, command.payload
    )


def _refused(reason: str) -> ApplyResult:
    return ApplyResult((), answer=packed(CommandEnd(is_rejected=True, reason=reason)))
