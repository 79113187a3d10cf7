"""Rows in files: exactly what nodes store, and columns that others read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftstore.backup.data_files import TableFiles, shown_columns, stored_rows
from raftstore.client.definitions import schema_text
from raftstore.client.scans.scanning import Item
from raftstore.errors import BackupError
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.types import Seq
from tests.unit.backup.test_manifest import DEFINITION

TYPED = msgspec.structs.replace(
    DEFINITION,
    schema_json=schema_text("id long, price decimal(9,2), at timestamp, tags array<string>"),
)


def items_of(rows: list[dict[str, Any]], schema_json: str = "") -> list[Item]:
    """Rows as nodes have them, in the order given."""
    schema = TableSchema(("id",), schema_json)
    pairs = [schema.row_to_key_value(row) for row in rows]
    return [(key, seal(key, value), Seq(1)) for key, value in pairs]


def table_of(content: bytes) -> Any:
    """A file as any reader of Parquet has it."""
    return pq.read_table(pa.BufferReader(content))


def test_rows_come_back_byte_by_byte_with_their_expiries() -> None:
    """Bytes that a node stored are those that another one will store, whatever the columns say."""
    items = items_of([{"id": 1, "x": float("nan")}, {"id": 2, "y": b"\0"}])
    content = TableFiles(DEFINITION).encode(items, {items[1][0]: 1_700_000_000_123})
    rows = list(stored_rows(content, "f"))
    assert [(row.key, row.sealed) for row in rows] == [item[:2] for item in items]
    assert [row.expires_ms for row in rows] == [0, 1_700_000_000_123]


def test_declared_columns_have_their_types() -> None:
    """So that Spark reads them without us."""
    at = datetime(2026, 11, 23, 15, tzinfo=UTC)
    row = {"id": 1, "price": Decimal("9.50"), "at": at, "tags": ["a", None]}
    files = TableFiles(TYPED)
    content = files.encode(items_of([row], TYPED.schema_json), {})
    (found,) = table_of(content).select(files.columns).to_pylist()
    assert found == row
    assert shown_columns(content) == files.columns == ["id", "price", "at", "tags"]


def test_table_that_declares_nothing_has_its_rows_as_json() -> None:
    """As exports write them."""
    content = TableFiles(DEFINITION).encode(items_of([{"id": 1, "name": "x"}]), {})
    assert [json.loads(text) for text in table_of(content)["row"].to_pylist()] == [
        {"id": 1, "name": "x"}
    ]


def test_row_that_does_not_fit_its_table_is_whole_all_the_same() -> None:
    """Nodes do not enforce declared types: a backup that failed on such a row would be none."""
    good = items_of([{"id": 1, "price": None, "at": None, "tags": None}], TYPED.schema_json)
    key, value = TableSchema(("id",), TYPED.schema_json).row_to_key_value(
        {"id": 2, "price": None, "at": None, "tags": None}
    )
    wrong = msgspec.msgpack.encode(["no price", None, None])
    assert len(wrong) > len(value)
    items = [*good, (key, seal(key, wrong), Seq(1))]
    content = TableFiles(TYPED).encode(items, {})
    assert [row.sealed for row in stored_rows(content, "f")] == [item[1] for item in items]
    assert table_of(content)["id"].to_pylist()[0] == 1


def test_columns_named_as_ours_do_not_hide_what_is_restored() -> None:
    """A table may call a column as it likes."""
    definition = msgspec.structs.replace(
        DEFINITION, schema_json=schema_text({"id": "long", "$value": "string", "row": "string"})
    )
    items = items_of([{"id": 1, "$value": "x", "row": "y"}], definition.schema_json)
    files = TableFiles(definition)
    content = files.encode(items, {})
    assert [row.sealed for row in stored_rows(content, "f")] == [items[0][1]]
    assert files.columns == ["id", "row"]


def test_same_rows_are_the_same_file() -> None:
    """Rows that did not change are not written again."""
    items = items_of([{"id": number} for number in range(100)])
    assert TableFiles(DEFINITION).encode(items, {}) == TableFiles(DEFINITION).encode(items, {})


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100])
def test_what_is_no_file_of_ours_is_refused(content: bytes) -> None:
    """With its path."""
    with pytest.raises(BackupError, match=r"^f cannot be read as Parquet"):
        list(stored_rows(content, "f"))


def test_parquet_without_our_columns_is_refused() -> None:
    """Somebody else's file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1]}), sink)
    with pytest.raises(BackupError, match=r"^f lacks|^f cannot"):
        list(stored_rows(sink.getvalue().to_pybytes(), "f"))
