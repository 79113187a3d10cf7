"""Arrow columns as Python values, exactly: what a Spark row means, column by column.

Whole columns are converted at once because that is several times faster than row by row. Most types
need nothing but Arrow's own conversion; the others are converted by their Spark type, since Arrow
shows a map as a list of pairs and a variant as a struct.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from raftstore.errors import SchemaError
from raftstore.rows.values import Variant
from raftstore.spark.codec.fast_values import packed_counts

Convert = Callable[[Any], Any]
"""Turn Arrow's Python value (never None) into the one a row holds."""

_YEAR_LIMITS: Final = "years 1 to 9999"


class ColumnReader:
    """Reads the columns of one DataFrame's Arrow batches. Build it once per task."""

    def __init__(
        self, schema_json: str, only: Collection[str] = (), packed: Collection[str] = ()
    ) -> None:
        """Take the schema as ``df.schema.json()`` writes it; ``only``: leave others unread.

        ``packed``: columns that are going to be packed as they are read, and never looked at.
        """
        fields = msgspec.json.decode(schema_json)["fields"]
        self._packed: Final = frozenset(packed)
        self._columns: Final = tuple(
            (position, field["name"], _conversion(field["type"]))
            for position, field in enumerate(fields)
            if not only or field["name"] in only
        )

    def read(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Return the columns by name, each with one value a row."""
        return {
            name: self._read(name, batch.column(position), convert)
            for position, name, convert in self._columns
        }

    def _read(self, name: str, column: pa.Array, convert: Convert | None) -> list[Any]:
        packed = packed_counts(column) if name in self._packed else None
        return _values(name, column, convert) if packed is None else packed


def _values(name: str, column: pa.Array, convert: Convert | None) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # The same instants, but converted without looking up a zone for each.
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"column {name!r} has a text that is no UTF-8 ({error}): cast the column to binary"
        ) from error
    except (ValueError, OverflowError) as error:
        raise SchemaError(
            f"column {name!r} has a {column.type} that Python cannot hold ({error}): "
            f"dates and times are stored for {_YEAR_LIMITS} only"
        ) from error
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _conversion(spec: Any) -> Convert | None:
    """Return what a Spark type needs beyond Arrow's conversion; None for nothing."""
    if spec == "variant":
        return _variant
    if not isinstance(spec, Mapping):
        return None
    if spec["type"] == "udt":
        return _conversion(spec["sqlType"])
    if spec["type"] == "array":
        return _array_conversion(_conversion(spec["elementType"]))
    if spec["type"] == "map":
        return _map_conversion(_conversion(spec["keyType"]), _conversion(spec["valueType"]))
    return _struct_conversion(
        {field["name"]: _conversion(field["type"]) for field in spec["fields"]}
    )


def _variant(value: Mapping[str, bytes]) -> Variant:
    return Variant(value["value"], value["metadata"])


def _array_conversion(element: Convert | None) -> Convert | None:
    if element is None:
        return None
    return lambda values: [_apply(element, value) for value in values]


def _map_conversion(key: Convert | None, value: Convert | None) -> Convert:
    def convert(pairs: list[tuple[Any, Any]]) -> dict[Hashable, Any]:
        return {_hashable(_apply(key, name)): _apply(value, item) for name, item in pairs}

    return convert


def _struct_conversion(fields: Mapping[str, Convert | None]) -> Convert | None:
    converted = {name: convert for name, convert in fields.items() if convert is not None}
    if not converted:
        return None

    def convert(struct: dict[str, Any]) -> dict[str, Any]:
        return struct | {name: _apply(part, struct[name]) for name, part in converted.items()}

    return convert


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _hashable(key: Any) -> Hashable:
    """Keys of maps may be arrays or structs in Spark; as keys of a dict they become tuples.

    And instants are given in UTC: in the session's own zone the two of an hour that is there twice
    differ in ``fold`` alone, so they are equal, and one of them would be lost.
    """
    if isinstance(key, datetime) and key.tzinfo is not None:
        return key.astimezone(UTC)
    if isinstance(key, list):
        return tuple(map(_hashable, key))
    if isinstance(key, dict):
        return tuple((name, _hashable(value)) for name, value in key.items())
    return key  # type: ignore[no-any-return]
