"""State of the coordinator of a table's micro-batches, and questions about it.

The state lies beside the rows of partition 0 (``state_keys``) and is a pure function of that
channel's log. Commits are numbered n = 1, 2, … over all writers of the table, attempts likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from raftstore.protocol.batches import Manifest, WriterView
from raftstore.protocol.staged import BatchApply
from raftstore.record_machine import StateReader
from raftstore.state_machines.batches.staging import EVERYTHING
from raftstore.state_machines.state_keys import (
    OUTBOX,
    OUTBOX_END,
    TABLE_HEAD,
    WRITERS,
    manifest_key,
    outbox_key,
    read_state,
    unpacked,
    writer_key,
)

NOTHING_ACKED: Final[Mapping[int, int]] = MappingProxyType({})


class Open(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The one attempt of a writer that may commit."""

    attempt: int
    batch_id: int
    uuid: bytes
    ttl_ms: int


class Last(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest batch of a writer that was decided."""

    batch_id: int
    attempt: int
    n: int
    digest: bytes
    rows: int


class WriterState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A writer. ``lineage`` None: that of its next BEGIN. ``kept_n`` of a one-shot writer: its
    commit, by which it is remembered, or 0; ``ts_ms``: of the newest change, to be shown."""

    open: Open | None
    last: Last | None
    lineage: str | None
    one_shot: bool
    ts_ms: int
    kept_n: int = 0


class TableHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counters of the table, and per partition the newest commit that touches it (0: none).
    ``one_shots``: one-shot writers that are remembered."""

    next_attempt: int
    next_commit: int
    tail: tuple[int, ...]
    one_shots: int = 0

    @property
    def partitions(self) -> int:
        """As the first BEGIN stated it; it never changes."""
        return len(self.tail)


class OutboxEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit that the partitions in ``waiting`` are not known to have applied."""

    n: int
    writer: str
    batch_id: int
    attempt: int
    digest: bytes
    rows: int
    decided_ms: int
    waiting: tuple[int, ...]


class Decided(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The large part of a commit in the outbox. ``prevs``: for each part of the manifest the commit
    before it in that partition."""

    manifest: Manifest
    vector: tuple[int, ...]
    prevs: tuple[int, ...]


# --- questions ------------------------------------------------------------------------------------


def read_table(state: StateReader) -> TableHead | None:
    """The table's head; None before its first BEGIN."""
    return read_state(state, TABLE_HEAD, TableHead)


def read_writer(writer: str, state: StateReader) -> WriterState | None:
    """A writer; None if there is no such."""
    return read_state(state, writer_key(writer), WriterState)


def read_decided(n: int, state: StateReader) -> Decided | None:
    """Manifest and vector of a commit in the outbox."""
    return read_state(state, manifest_key(n), Decided)


def outbox(state: StateReader) -> list[OutboxEntry]:
    """Commits that are not known to be applied everywhere, oldest first."""
    return [
        unpacked(stored, OutboxEntry) for _, stored in state.scan(OUTBOX, OUTBOX_END, EVERYTHING)
    ]


def still_waiting(entry: OutboxEntry, acked: Mapping[int, int]) -> tuple[int, ...]:
    """Partitions of the commit that have not applied it, given the newest they said they have."""
    return tuple(part for part in entry.waiting if acked.get(part, 0) < entry.n)


def waiting_for(
    n: int, state: StateReader, acked: Mapping[int, int] = NOTHING_ACKED
) -> tuple[int, ...]:
    """Partitions that are not known to have applied decided commit ``n``; empty: it is everywhere.

    ``acked`` are the answers that the leader got since, in memory.
    """
    entry = read_state(state, outbox_key(n), OutboxEntry)
    return () if entry is None else still_waiting(entry, acked)


def floor_for(writer: str, partition: int, state: StateReader) -> int:
    """F: the writer's attempts up to this one are finished for the partition (rule 6).

    Nothing of them will ever be listed by a commit that the partition still has to apply. It never
    falls, so an old or doubled answer does no harm; only acknowledgements in the log count here.
    """
    head = read_table(state)
    if head is None:
        return 0
    found = read_writer(writer, state)
    unfinished = head.next_attempt
    # I1: rows of the attempt that may still commit stay.
    if found is not None and found.open is not None:
        unfinished = found.open.attempt
    # I1: so do rows of a decided commit until the partition has applied it.
    for entry in outbox(state):
        if entry.writer == writer and partition in entry.waiting:
            unfinished = min(unfinished, entry.attempt)
    assert 1 <= unfinished <= head.next_attempt, (
        f"attempt {unfinished} of writer {writer!r}, the next one is {head.next_attempt} (I1)"
    )
    return unfinished - 1


def apply_for(entry: OutboxEntry, decided: Decided, partition: int) -> BatchApply | None:
    """The coordinator's push to a partition for this commit; None if it is not touched."""
    for part, prev in zip(decided.manifest.parts, decided.prevs, strict=True):
        if part.partition == partition:
            assert prev < entry.n, f"commit {entry.n} would be applied behind {prev} (rule 4)"
            return BatchApply(
                n=entry.n,
                prev=prev,
                writer=entry.writer,
                batch_id=entry.batch_id,
                attempt=entry.attempt,
                mode=decided.manifest.mode,
                winners=decided.manifest.winners,
                part=part,
                vector=decided.vector,
                decided_ms=entry.decided_ms,
            )
    return None


def writers(state: StateReader, after: str, limit: int) -> list[tuple[str, WriterState]]:
    """At most ``limit`` writers behind ``after`` ("": from the first), by the bytes of the name."""
    start = writer_key(after) + b"\x00" if after else WRITERS
    return [
        (key[len(WRITERS) :].decode(), unpacked(stored, WriterState))
        for key, stored in state.scan(start, OUTBOX, limit)
    ]


def view_of(name: str, found: WriterState) -> WriterView:
    """A writer as operators see it."""
    last, now = found.last, found.open
    assert last is None or now is None or now.attempt > last.attempt, (
        f"attempt {now.attempt} of writer {name!r} is open behind {last} (rule 1)"
    )
    return WriterView(
        writer=name,
        last_batch=-1 if last is None else last.batch_id,
        last_attempt=-1 if last is None else last.attempt,
        last_n=-1 if last is None else last.n,
        open_batch=-1 if now is None else now.batch_id,
        open_attempt=-1 if now is None else now.attempt,
        lineage=found.lineage,
        one_shot=found.one_shot,
        at_ms=found.ts_ms,
    )
