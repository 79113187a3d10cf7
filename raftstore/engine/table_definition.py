"""What a table may be defined as: checked before the catalog hears of it."""

from __future__ import annotations

from raftstore.config import PARTITIONS_MAX
from raftstore.errors import SchemaError
from raftstore.machines.catalog import TableEntry
from raftstore.requests import CreateTable
from raftstore.rows.schema import TableSchema

TABLE_NAME_BYTES_MAX = 128
REPLICAS_MAX = 7


def entry_of(request: CreateTable) -> TableEntry:
    """The definition asked for, without what only the catalog gives (UUID, placement)."""
    return TableEntry(
        name=request.name,
        uuid=b"",
        key_columns=request.key_columns,
        partitions=request.partitions,
        replicas=request.replicas,
        durability=request.durability,
        max_lag=request.max_lag,
        schema_json=request.schema_json,
        placement=(),
    )


def definition_problem(request: CreateTable) -> str | None:
    """What is wrong with a table definition, or None."""
    name = request.name
    if not name or len(name.encode()) > TABLE_NAME_BYTES_MAX or name.startswith("_"):
        return (
            f"table name {name!r} is not usable: 1 to {TABLE_NAME_BYTES_MAX} bytes, "
            "not starting with an underscore"
        )
    if not request.key_columns or len(set(request.key_columns)) != len(request.key_columns):
        return f"key columns {request.key_columns!r} must name at least one column, each once"
    if not 1 <= request.partitions <= PARTITIONS_MAX:
        return f"partitions={request.partitions} is outside 1..{PARTITIONS_MAX}"
    if not 1 <= request.replicas <= REPLICAS_MAX:
        return f"replicas={request.replicas} is outside 1..{REPLICAS_MAX}"
    if request.durability != "fsync":
        return f"durability {request.durability!r} is not available yet; use 'fsync'"
    if request.max_lag is not None and request.max_lag < 0:
        return f"max_lag={request.max_lag} is negative; use 0 or more rows"
    try:
        TableSchema(request.key_columns, request.schema_json)
    except SchemaError as error:
        return str(error)
    return None
