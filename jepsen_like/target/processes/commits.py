"""The committed log, read from the stores of nodes that were stopped after the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jepsen_like.target.batch_rows import BatchRows
from jepsen_like.target.timed_rows import span_of, time_behind, without_ttl
from jepsen_like.workload.base import Committed
from raftstore.config import StorageSettings
from raftstore.core.batches import mark_of
from raftstore.protocol.payload import decode_conditional, decode_rows
from raftstore.protocol.records import Record
from raftstore.record_machine import is_expired
from raftstore.rows.keys import decode_key
from raftstore.rows.sealing import unseal
from raftstore.rows.values import ValueCodec
from raftstore.storage.store import open_store
from raftstore.types import RecordKind, Seq, channel_id

BYTES_MAX: Final = 1 << 40
CODEC: Final = ValueCodec()


def read_commits(
    store: Path, node: str, tables: Mapping[str, tuple[bytes, int]]
) -> dict[tuple[str, int], list[Committed]]:
    """Rows that the node applied of each partition, one by one.

    ``tables``: name -> UUID and number of partitions. The node must be down, and have caught up.
    """
    opened = open_store(store, node, StorageSettings(), free_bytes_min=0)
    try:
        found = {}
        for table, (uuid, partitions) in tables.items():
            for partition in range(partitions):
                channel = channel_id(uuid, partition)
                applied = opened.tables.stored_position(channel).seq
                records = opened.log.read(channel, Seq(1), to_seq=Seq(applied), bytes_max=BYTES_MAX)
                found[table, partition] = list(_committed(records))
        return found
    finally:
        opened.close(is_clean=False)


def _committed(records: list[Record]) -> Iterator[Committed]:
    seqs: dict[bytes, tuple[int, int]] = {}
    time_ms = 0
    marked: dict[str, int] = {}
    batches = BatchRows()
    for record in records:
        pairs, expected, expires_ms = _content(record)
        is_batch = record.kind is RecordKind.BATCH_APPLY
        span = span_of(record)
        pairs = batches.of(record) or pairs
        is_conflict = False
        if expected is not None:
            present, gone_ms = seqs.get(pairs[0][0], (0, 0))
            is_conflict = (0 if is_expired(gone_ms, time_ms) else present) != expected
        time_ms = time_behind(record, time_ms)
        for key, sealed in pairs:
            value = None if sealed is None else CODEC.decode(unseal(key, sealed))["v"]
            yield Committed(
                record.last_seq, record.guid, decode_key(key)[0], value, is_conflict=is_conflict,
                is_batch=is_batch, span=span,
            )  # fmt: skip
            if is_conflict:
                continue
            if sealed is None:
                seqs.pop(key, None)
            else:
                seqs[key] = (record.last_seq, expires_ms)
        if not pairs:
            is_mark = _ends_batch(record, marked)
            yield Committed(
                record.last_seq, record.guid, None, None, is_row=False, is_mark=is_mark, span=span
            )


def _ends_batch(record: Record, marked: dict[str, int]) -> bool:
    """Whether it ends a micro-batch: a replay of the writer's newest one does not (BLOG-32)."""
    mark = mark_of(record)
    if mark is None:
        return record.kind is RecordKind.BATCH_MARK
    is_replay = marked.get(mark[0]) == mark[1]
    marked[mark[0]] = mark[1]
    return not is_replay


def _content(record: Record) -> tuple[list[tuple[bytes, bytes | None]], int | None, int]:
    """Its rows, the seq a conditional one expects, and the expiry of the rows (0: none)."""
    kind, payload, expires_ms = without_ttl(record)
    if kind is RecordKind.CONDITIONAL:
        key, sealed, expected = decode_conditional(payload)
        return [(key, sealed)], expected, expires_ms
    if kind is not RecordKind.ROWS:
        return [], None, 0
    flat: list[Any] = list(decode_rows(payload))
    return list(zip(flat[::2], flat[1::2], strict=True)), None, expires_ms
