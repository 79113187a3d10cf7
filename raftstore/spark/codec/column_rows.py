"""Rows of an Arrow batch as they stand in payloads, encoded by whole columns.

This is what most writes pass: a table that declares its columns, whose rows are all written the
same way. Keys and sealed values have the very bytes that ``RowEncoder`` gives them, at a part of
the time; rows that it would refuse are not for here, so that it reports why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftstore.config import KEY_BYTES_MAX, VALUE_BYTES_MAX
from raftstore.errors import SchemaError
from raftstore.protocol.payload import decode_rows, join_rows
from raftstore.rows.partitioner import key_crcs, partitions_of_crcs
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import SEAL_BYTES, value_checksums
from raftstore.rows.values import ValueCodec, array_header
from raftstore.spark.codec.arrow import ColumnReader
from raftstore.spark.codec.column_bytes import (
    Part,
    binary_heads,
    constant,
    joined,
    key_parts,
    lengths_of,
    matrix_of,
    value_parts,
)

ROWS_MIN: Final = 512
"""Fewer are encoded one by one, in less time than the many small steps take here."""
ARROW_BYTES_MAX: Final = 1 << 29
"""Of the columns of a batch, of both kinds. Arrow counts bytes up to four times of it, and one of
the kinds may come to twice of it: NULs in keys have two bytes."""
_CELL_BYTES: Final = 12
"""What a cell may have more in a row than in Arrow, and then some."""

Places = npt.NDArray[np.intp]
"""Numbers of rows."""


class PackedRows(NamedTuple):
    """Rows as they stand in a payload, key and sealed value, and their keys once more."""

    keys: pa.Array
    packed: pa.Array

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        """Return them as keys and sealed values."""
        flat = decode_rows(join_rows(len(self.packed), (_content(self.packed),)))
        return list(zip(flat[::2], flat[1::2], strict=True))  # type: ignore[arg-type]

    def take(self, places: Places) -> PackedRows:
        """Return some of them, which keep nothing of the others in memory."""
        numbers = pa.array(places)
        return PackedRows(self.keys.take(numbers), self.packed.take(numbers))


class ColumnRows(NamedTuple):
    """The rows of a batch."""

    rows: PackedRows
    sizes: npt.NDArray[np.int64]
    """Bytes of key and sealed value."""
    crcs: npt.NDArray[np.uint64]
    """Of the keys."""

    def by_partition(self, partitions: int) -> Iterator[tuple[int, Places]]:
        """Yield the partitions that have rows here, and which, in the order of the batch."""
        found = partitions_of_crcs(self.crcs, partitions).astype(np.uint16)
        order = np.argsort(found, kind="stable")
        ends = np.cumsum(np.bincount(found, minlength=partitions)).tolist()
        for partition, (start, stop) in enumerate(zip((0, *ends), ends, strict=False)):
            if start < stop:
                yield partition, order[start:stop]


def sorted_payload(pieces: Sequence[PackedRows]) -> bytes:
    """Return the payload of all rows by key; of two with one key the later stays behind."""
    keys = pa.concat_arrays([piece.keys for piece in pieces])
    if pc.all(pc.less_equal(keys[:-1], keys[1:])).as_py() is not False:
        return join_rows(len(keys), [_content(piece.packed) for piece in pieces])
    packed = pa.concat_arrays([piece.packed for piece in pieces])
    return join_rows(len(keys), (_content(packed.take(pc.array_sort_indices(keys))),))


def _content(array: pa.Array) -> memoryview:
    """Return the bytes of all rows of an array of binary, which is no slice of another."""
    assert not array.offset
    ends = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)
    return memoryview(array.buffers()[2])[ends[0] : ends[-1]]


class ColumnEncoder:
    """Turns Arrow batches into rows by whole columns."""

    def __init__(self, table: TableSchema, schema_json: str) -> None:
        """Take the table's schema, and the DataFrame's as ``df.schema.json()`` writes it."""
        names = [field["name"] for field in msgspec.json.decode(schema_json)["fields"]]
        self._table: Final = table
        self._schema_json: Final = schema_json
        self._names: Final = names
        self._is_for_here: Final = (
            bool(table.value_columns)
            and len(set(names)) == len(names)
            and set(table.key_columns) <= set(names) <= set(table.columns)
        )
        self._value_header: Final = array_header(len(table.value_columns))
        self._codec: Final = ValueCodec()

    def encode(self, batch: pa.RecordBatch) -> ColumnRows | None:
        """Return the rows of a batch in its order; None when they are to be looked at one by one.

        They are if one of them cannot be written, too: the look at single rows finds which.
        """
        if not self._is_for_here or batch.num_rows < ROWS_MIN:
            return None
        added = batch.num_rows * _CELL_BYTES * (len(self._table.columns) + 3)
        if batch.nbytes + added > ARROW_BYTES_MAX:
            return None
        columns = dict(zip(self._names, batch.columns, strict=True))
        keys = self._keys(columns)
        if keys is None:
            return None
        values = self._values(columns, batch)
        if values is None:
            return None
        return _sealed(keys, values)

    def _keys(self, columns: Mapping[str, pa.Array]) -> pa.Array | None:
        parts: list[Part] = []
        for name, kind in zip(self._table.key_columns, self._table.key_types, strict=True):
            found = key_parts(columns[name], kind)
            if found is None:
                return None
            parts += found
        keys = joined(parts)
        return keys if lengths_of(keys).max() <= KEY_BYTES_MAX else None

    def _values(self, columns: Mapping[str, pa.Array], batch: pa.RecordBatch) -> pa.Array | None:
        rows = batch.num_rows
        parts: list[Part] = [constant(self._value_header, rows)]
        for name in self._table.value_columns:
            column = columns[name] if name in columns else pa.nulls(rows)
            found = value_parts(column) or self._packed(name, batch)
            if found is None:
                return None
            parts += found
        values = joined(parts)
        return values if lengths_of(values).max() <= VALUE_BYTES_MAX else None

    def _packed(self, name: str, batch: pa.RecordBatch) -> list[Part] | None:
        """Pack the values of one column one by one, as those of decimals and arrays have to be."""
        try:
            [values] = ColumnReader(self._schema_json, (name,)).read(batch).values()
            cells = self._codec.encode_cells(values)
        except (SchemaError, ValueError, OverflowError, TypeError, RecursionError):
            return None
        if sum(map(len, cells)) > ARROW_BYTES_MAX // len(self._table.value_columns):
            return None
        return [pa.array(cells, pa.binary())]


def _sealed(keys: pa.Array, values: pa.Array) -> ColumnRows:
    crcs = key_crcs(keys.to_pylist())
    seals = np.fromiter(value_checksums(values.to_pylist(), crcs), ">u4", len(crcs))
    key_lengths, sealed_lengths = lengths_of(keys), lengths_of(values) + SEAL_BYTES
    parts = (
        binary_heads(key_lengths),
        keys,
        binary_heads(sealed_lengths),
        matrix_of(seals),
        values,
    )
    packed = PackedRows(keys, joined(parts))
    return ColumnRows(packed, key_lengths + sealed_lengths, np.array(crcs, np.uint64))
