"""Rows of Arrow batches as the records of a table's partitions. Runs in each task.

Most batches are encoded by whole columns (``column_rows``), the others row by row, to the same
bytes. Rows are split by the partitioner that every client uses, gathered per partition, and cut
into records by number of rows and bytes. Inside a record rows are sorted by key: LevelDB takes
ascending keys several times faster than random ones.

Two rows with one key in one task: the later one wins, because a record keeps their order and the
client keeps the order of a partition's records. Between tasks the order is undefined, as it is in
the DataFrame itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from raftstore.config import MIB
from raftstore.errors import PayloadTooLargeError, SchemaError
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.staged import INSERT, UPSERT
from raftstore.rows.partitioner import partitions_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal_rows
from raftstore.spark.codec.arrow import ColumnReader
from raftstore.spark.codec.column_rows import ColumnRows, PackedRows, Places, sorted_payload

GATHERED_BYTES_MAX: Final = 64 * MIB
"""Rows a task holds back over all partitions; beyond it the largest partition's are sent early."""

PACKED_ROWS_MIN: Final = 32
"""Rows of a batch for each partition; fewer are gathered one by one, which takes less time."""

_ROW_BYTES: Final = 12
"""msgpack's headers of a key and a value, at most."""

_by_key: Final = itemgetter(0)

Row = tuple[bytes, bytes | None]
"""A key and its sealed value; None deletes."""


class InsertRow(tuple[bytes, bytes | None]):
    """A row among others that leaves alone what is there."""

    __slots__ = ()

    def __new__(cls, key: bytes, sealed: bytes | None) -> Self:
        """Take what any row has."""
        return tuple.__new__(cls, (key, sealed))


class Chunk(NamedTuple):
    """The payload of one record: ``rows`` rows of one partition, all written in one ``mode``
    (``protocol.staged``)."""

    partition: int
    payload: bytes
    rows: int
    mode: int = UPSERT


def _size(rows: Iterable[Row]) -> int:
    """Bytes that rows take in a payload, at most."""
    return sum([len(key) + len(sealed or b"") + _ROW_BYTES for key, sealed in rows])


class RowEncoder:
    """Turns Arrow batches into keys and sealed values, column by column."""

    def __init__(self, table: TableSchema, schema_json: str, *, delete: bool) -> None:
        self._table = table
        only = table.key_columns if delete else ()
        self._reader = ColumnReader(schema_json, only, packed=table.value_columns)
        self._plain_reader = ColumnReader(schema_json, only)
        self._delete = delete

    def encode(self, batch: pa.RecordBatch, places: Sequence[int] = ()) -> list[Row]:
        """Return the rows of a batch in its order; raise SchemaError for one that does not fit.

        ``places``: where the rows stood in the batch that they were taken from, for errors.
        """
        if not batch.num_rows:
            return []
        columns = self._reader.read(batch)
        for name in self._table.key_columns:
            if None in columns[name]:
                row = columns[name].index(None)
                row = places[row] if places else row
                raise SchemaError(
                    f"[RAFTSTORE_KEY_NULL] the key column {name!r} is null in row {row} of a "
                    "batch: a key is never null; filter such rows out before writing"
                )
        try:
            return self._encoded(columns)
        except PayloadTooLargeError as error:
            raise self._named(self._plain_reader.read(batch), error) from error

    def _encoded(self, columns: dict[str, list[Any]]) -> list[Row]:
        if self._delete:
            given = zip(*(columns[name] for name in self._table.key_columns), strict=True)
            return [(self._table.encode_key(key), None) for key in given]
        if self._table.value_columns:
            keys, values = self._table.encode_columns(columns)
        else:
            rows = map(self._table.row_to_key_value, _as_rows(columns))
            keys, values = map(list, zip(*rows, strict=True))
        return list(seal_rows(keys, values))

    def _named(
        self, columns: dict[str, list[Any]], error: PayloadTooLargeError
    ) -> PayloadTooLargeError:
        """Return the same error with the key of the row: whole columns do not show it."""
        for row in _as_rows(columns):
            try:
                self._table.row_to_key_value(row)
            except PayloadTooLargeError as reason:
                key = ", ".join(f"{name}={row[name]!r:.100}" for name in self._table.key_columns)
                return PayloadTooLargeError(
                    f"[RAFTSTORE_VALUE_TOO_LARGE] the row with the key {key}: {reason}",
                    size=reason.size,
                    limit=reason.limit,
                )
        return error


def _as_rows(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    names = tuple(columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


class _Held:
    """Rows of one partition that wait for others, in the order in which they came."""

    __slots__ = ("count", "packed", "rows", "size")

    def __init__(self) -> None:
        """Begin with none."""
        self.rows: list[Row] = []
        self.packed: list[PackedRows] = []
        """Of batches encoded by columns; there are only these, or only ``rows``."""
        self.count = 0
        self.size = 0

    def unpack(self) -> None:
        """Make rows of what is packed, so that others may stand behind it."""
        self.rows += [row for piece in self.packed for row in piece.rows()]
        self.packed = []


class Chunker:
    """Gathers rows by partition and cuts them into chunks of bounded size."""

    def __init__(
        self, partitions: int, *, rows_max: int, bytes_max: int, mode: int = UPSERT
    ) -> None:
        self._mode = mode
        self._partitions = partitions
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held = [_Held() for _ in range(partitions)]
        self._gathered_bytes = 0

    def add(self, rows: list[Row] | ColumnRows) -> Iterator[Chunk]:
        """Take rows and yield the chunks that became full."""
        if isinstance(rows, ColumnRows):
            if len(rows.sizes) < self._partitions * PACKED_ROWS_MIN:
                yield from self._gather_rows(rows.rows.rows())
            else:
                for partition, places in rows.by_partition(self._partitions):
                    yield from self._gather_packed(partition, rows, places)
        else:
            yield from self._gather_rows(rows)
        while self._gathered_bytes > GATHERED_BYTES_MAX:
            yield from self._cut(
                max(range(self._partitions), key=lambda partition: self._held[partition].size)
            )

    def _gather_rows(self, rows: list[Row]) -> Iterator[Chunk]:
        arrived: list[list[Row]] = [[] for _ in range(self._partitions)]
        into = [new.append for new in arrived]
        places = partitions_of(map(_by_key, rows), self._partitions)
        for place, row in zip(places, rows, strict=True):
            into[place](row)
        for partition, new in enumerate(arrived):
            if new:
                yield from self._gather(partition, new)

    def _gather(self, partition: int, new: list[Row]) -> Iterator[Chunk]:
        held = self._held[partition]
        held.unpack()
        size = _size(new)
        if held.count + len(new) <= self._rows_max and held.size + size <= self._bytes_max:
            held.rows += new
            self._count(held, len(new), size)
            return
        for row in new:
            size = _size((row,))
            full = held.count >= self._rows_max
            if held.count and (full or held.size + size > self._bytes_max):
                yield from self._cut(partition)
                held = self._held[partition]
            held.rows.append(row)
            self._count(held, 1, size)

    def _gather_packed(self, partition: int, batch: ColumnRows, places: Places) -> Iterator[Chunk]:
        """Do the same for rows of a batch: they are cut before the same ones."""
        if self._held[partition].rows:
            yield from self._gather(partition, batch.rows.take(places).rows())
            return
        ends = np.cumsum(batch.sizes[places] + _ROW_BYTES)
        start = taken = 0
        while start < len(places):
            held = self._held[partition]
            stop = int(np.searchsorted(ends, taken + self._bytes_max - held.size, "right"))
            stop = min(stop, start + self._rows_max - held.count)
            stop = max(stop, start if held.count else start + 1)
            if start < stop:
                held.packed.append(batch.rows.take(places[start:stop]))
                self._count(held, stop - start, int(ends[stop - 1]) - taken)
                start, taken = stop, int(ends[stop - 1])
            if stop < len(places):
                yield from self._cut(partition)

    def _count(self, held: _Held, rows: int, size: int) -> None:
        held.count += rows
        held.size += size
        self._gathered_bytes += size

    def rest(self) -> Iterator[Chunk]:
        """Yield what is left, however small."""
        for partition, held in enumerate(self._held):
            if held.count:
                yield from self._cut(partition)

    def _cut(self, partition: int) -> Iterator[Chunk]:
        held, self._held[partition] = self._held[partition], _Held()
        self._gathered_bytes -= held.size
        if held.packed:
            yield Chunk(partition, sorted_payload(held.packed), held.count, self._mode)
            return
        inserts, others = _apart(held.rows)
        # Inserts first: what stands behind them in the batch is written over them.
        for mode, part in ((INSERT, inserts), (self._mode, others)):
            if part:
                # Stable: of two rows with one key the later stays behind the earlier, and wins.
                part.sort(key=_by_key)
                yield Chunk(partition, encode_rows(part), len(part), mode)


def _apart(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Split inserts from the other rows; no insert stays behind another row of its key.

    Such a one is judged by what that row left: after an upsert or a delete in the same batch it is
    written like an upsert, as it would be in a chunk of its own
    (``state_machines.batches.staging.rows_of``).
    """
    if InsertRow not in set(map(type, rows)):
        return [], rows
    inserts: list[Row] = []
    others: list[Row] = []
    touched: set[bytes] = set()
    for row in rows:
        if type(row) is InsertRow and row[0] not in touched:
            inserts.append(row)
        else:
            touched.add(row[0])
            others.append(row)
    return inserts, others
