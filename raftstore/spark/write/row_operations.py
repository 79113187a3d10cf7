"""Rows that say themselves what is done with them: ``operation=column``.

The column ``_change_type`` holds ``upsert``, ``insert`` or ``delete`` for each row, or ``expire``,
which the changes of a table have for rows whose lifetime was over: a delete. It is no column
of the table: it is taken off before rows are encoded. Rows of one task keep their order, so a key
that is written, deleted and written again in one batch ends as the last of its rows says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from raftstore.errors import SchemaError
from raftstore.rows.schema import TableSchema
from raftstore.spark.codec.encoding import InsertRow, Row, RowEncoder
from raftstore.spark.options import CHANGE_COLUMN, SinkOptions

UPSERT_ROW: Final = "upsert"
INSERT_ROW: Final = "insert"
DELETE_ROW: Final = "delete"
EXPIRE_ROW: Final = "expire"


def allowed_operations(options: SinkOptions) -> tuple[str, ...]:
    """Operations of rows: an insert needs to be judged where the batch is applied, by itself."""
    if options.isolation == "row" or options.ignore_null_values:
        return (UPSERT_ROW, DELETE_ROW)
    return (UPSERT_ROW, INSERT_ROW, DELETE_ROW)


def stored_schema(options: SinkOptions, schema_json: str) -> str:
    """The DataFrame's schema without the column of operations, if it has one.

    Raises SchemaError when the column is missing, no text, or part of the key.
    """
    if options.operation != "column":
        return schema_json
    schema = msgspec.json.decode(schema_json)
    kinds = {field["name"]: field["type"] for field in schema["fields"]}
    kind = kinds.get(CHANGE_COLUMN)
    if kind is None:
        raise SchemaError(
            f"[RAFTSTORE_SCHEMA_MISMATCH] operation=column needs the column {CHANGE_COLUMN!r}, "
            f"which the DataFrame does not have (it has {', '.join(kinds)}): add it, with "
            f"{_list(allowed_operations(options))} in each row"
        )
    if kind != "string":
        name = kind if isinstance(kind, str) else kind["type"]
        raise SchemaError(
            f"[RAFTSTORE_SCHEMA_MISMATCH] the column {CHANGE_COLUMN!r} is {name}: cast it to "
            "string before writing"
        )
    if CHANGE_COLUMN in options.key:
        raise SchemaError(
            f"[RAFTSTORE_KEY_MISMATCH] {CHANGE_COLUMN!r} is named as a key column, but with "
            "operation=column it is not stored: leave it out of the option key"
        )
    schema["fields"] = [field for field in schema["fields"] if field["name"] != CHANGE_COLUMN]
    return msgspec.json.encode(schema).decode()


class ChangeEncoder:
    """Turns Arrow batches with a column of operations into rows, in the order of the batch."""

    def __init__(self, table: TableSchema, options: SinkOptions, schema_json: str) -> None:
        """Take the schema of the DataFrame, with the column."""
        stored = stored_schema(options, schema_json)
        names = [field["name"] for field in msgspec.json.decode(schema_json)["fields"]]
        self._at: Final = names.index(CHANGE_COLUMN)
        self._allowed: Final = allowed_operations(options)
        self._writes: Final = RowEncoder(table, stored, delete=False)
        self._deletes: Final = RowEncoder(table, stored, delete=True)

    def encode(self, batch: pa.RecordBatch) -> list[Row]:
        """Return the rows; raise SchemaError for one that does not say what to do, or cannot be."""
        given = batch.column(self._at).to_pylist()
        # As changes report it: a copy of a table, made from them, lacks the row, too.
        operations = [DELETE_ROW if each == EXPIRE_ROW else each for each in given]
        for row, operation in enumerate(operations):
            if operation not in self._allowed:
                raise self._unknown(row, operation)
        rest = _without(batch, self._at)
        deleted = _rows_with(operations, (DELETE_ROW,))
        if not deleted:
            written = self._writes.encode(rest)
        else:
            kept = _rows_with(operations, (UPSERT_ROW, INSERT_ROW))
            written = self._writes.encode(rest.take(pa.array(kept, pa.int64())), kept)
        gone = self._deletes.encode(rest.take(pa.array(deleted, pa.int64())), deleted)
        return _in_order(operations, written, gone)

    def _unknown(self, row: int, operation: str | None) -> SchemaError:
        given = "null" if operation is None else repr(operation)
        return SchemaError(
            f"[RAFTSTORE_OPERATION_INVALID] {CHANGE_COLUMN} is {given:.60} in row {row} of a "
            f"batch: give {_list(self._allowed)}"
        )


def _in_order(operations: Sequence[str], written: list[Row], gone: list[Row]) -> list[Row]:
    """Put the two lists together as the operations stood."""
    if not gone and INSERT_ROW not in operations:
        return written
    writes, deletes = iter(written), iter(gone)
    rows: list[Row] = []
    for operation in operations:
        if operation == DELETE_ROW:
            rows.append(next(deletes))
        elif operation == INSERT_ROW:
            rows.append(InsertRow(*next(writes)))
        else:
            rows.append(next(writes))
    return rows


def _without(batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
    columns = [column for number, column in enumerate(batch.columns) if number != at]
    fields = [field for number, field in enumerate(batch.schema) if number != at]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _rows_with(operations: Sequence[str], wanted: Collection[str]) -> list[int]:
    return [row for row, operation in enumerate(operations) if operation in wanted]


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
