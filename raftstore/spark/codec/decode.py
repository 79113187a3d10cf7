"""Stored rows as Arrow columns, exactly: the way back of ``arrow`` and ``encoding``.

A page of rows becomes one RecordBatch with the very types that Spark expects of a schema. Columns
are built one after the other, as converting a whole column is several times faster than row by row;
``column_decode`` does so without decoding the rows one by one, where all are as it expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec
import pyarrow as pa

from raftstore.client.scans.scanning import Item
from raftstore.errors import DecodeError, SchemaError
from raftstore.rows.columns import parse_column_type
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import unseal
from raftstore.rows.values import ValueCodec, Variant
from raftstore.spark.codec.column_decode import column_decoder
from raftstore.spark.codec.fast_keys import key_array
from raftstore.spark.tables import columns_of

Convert = Callable[[Any], Any]
"""Turn the value that a row holds (never None) into one that Arrow takes for the type."""


class RowDecoder:
    """Turns pages of a table into Arrow batches of one schema. Build it once per task."""

    def __init__(self, schema: TableSchema, wanted_json: str, *, is_exact: bool = False) -> None:
        """``wanted_json``: the columns wanted, as ``df.schema.json()`` writes them.

        ``is_exact``: refuse parts of nested values that Arrow makes fit by changing them, as 2.5 in
        an array of whole numbers. Older versions did not check parts when rows were written.
        """
        fields = msgspec.json.decode(wanted_json)["fields"]
        self._schema = schema
        self._columns: Final = tuple(
            (field["name"], arrow_type(field["type"]), _conversion(field["type"]))
            for field in fields
        )
        declared = columns_of(schema.schema_json) if schema.schema_json else {}
        self._declared: Final = frozenset(declared)
        self._checks: Final = {
            name: parse_column_type(spec).check
            for name, spec in (declared if is_exact else {}).items()
            if not isinstance(spec, str)
        }
        key = declared.get(schema.key_columns[0]) if len(schema.key_columns) == 1 else None
        self._key_array: Final = key_array(key) if isinstance(key, str) else None
        # Of a declared column every value is of its type; parts of nested ones may be old ones.
        is_counted = bool(schema.value_columns) and all(
            isinstance(k, str) for k in declared.values()
        )
        self._decode: Final = ValueCodec.decode_counts if is_counted else ValueCodec.decode
        kinds = {name: arrow_type(spec) for name, spec in declared.items()} if is_counted else {}
        kinds |= {name: kind for name, kind, _ in self._columns}
        self._at_once: Final = (
            column_decoder([kinds[name] for name in schema.value_columns]) if is_counted else None
        )
        self._arrow: Final = pa.schema(
            [
                pa.field(name, kind, nullable=field["nullable"])
                for field, (name, kind, _) in zip(fields, self._columns, strict=True)
            ]
        )

    @property
    def arrow(self) -> pa.Schema:
        """The columns of the batches."""
        return self._arrow

    def decode(self, items: Sequence[Item], *, has_deletes: bool = False) -> pa.RecordBatch:
        """Return rows as columns, every seal checked; SchemaError names a column that does not
        fit. ``has_deletes``: an item without a value is a delete, which has its key alone."""
        keys = [item[0] for item in items]
        columns: dict[str, Sequence[Any]] = self._keys(keys)
        found = None
        if self._at_once is not None and not has_deletes:
            found = self._at_once.decode(keys, [item[1] for item in items])
        if found is not None:
            columns |= zip(self._schema.value_columns, found, strict=False)
        else:
            columns |= self._values(items, has_deletes=has_deletes)
        absent: Sequence[Any] = (None,) * len(items)
        arrays = []
        for number, (name, kind, convert) in enumerate(self._columns):
            array = self._array(items, name, columns.get(name, absent), (kind, convert))
            if array.null_count and not self._arrow.field(number).nullable:
                raise SchemaError(
                    f"column {name!r} has nulls, which the schema given to read does not allow: "
                    "leave NOT NULL out"
                )
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _array(
        self,
        items: Sequence[Item],
        name: str,
        values: Sequence[Any],
        way: tuple[pa.DataType, Convert | None],
    ) -> pa.Array:
        """Return a column; SchemaError names the first row whose value does not fit."""
        kind, convert = way
        check = self._checks.get(name)

        def build(values: Sequence[Any]) -> pa.Array:
            if check is not None:
                values = [_apply(check, value) for value in values]
            return _array(values, kind, convert)

        where = ""
        try:
            return build(values)
        except _UNFIT as error:
            reason = error
        for item, value in zip(items, values, strict=True):
            try:
                build([value])
            except _UNFIT as error:
                reason, where = error, f" in the row with the key {self._key_text(item[0])}"
                break
        remedy = (
            "write the row anew, with what the column is declared to hold"
            if name in self._declared
            else "give the column another type in the schema to read with"
        )
        raise SchemaError(
            f"column {name!r} has a value that is no {kind}{where} ({reason}): {remedy}"
        ) from reason

    def _key_text(self, key: bytes) -> str:
        named = zip(self._schema.key_columns, self._schema.decode_key(key), strict=True)
        return ", ".join(f"{name}={value!r:.100}" for name, value in named)

    def _keys(self, keys: Sequence[bytes]) -> dict[str, Sequence[Any]]:
        """The columns of the key."""
        names = self._schema.key_columns
        found = None if self._key_array is None else self._key_array(keys)
        if found is not None:
            return {names[0]: found}
        decoded = zip(*map(self._schema.decode_key, keys), strict=True)
        return dict(zip(names, decoded, strict=True))

    def _values(self, items: Sequence[Item], *, has_deletes: bool) -> dict[str, Sequence[Any]]:
        """The columns outside the key."""
        decode = self._decode
        names = self._schema.value_columns
        kind = list if names else dict
        rows = [
            kind() if sealed is None else decode(unseal(key, sealed)) for key, sealed, _ in items
        ]
        if not has_deletes and any(sealed is None for _, sealed, _ in items):
            raise DecodeError("a node left values out; install the same raftstore on both sides")
        if not all(type(row) is kind for row in rows):
            raise DecodeError(
                "a row has another shape than its table; read it with a newer version"
            )
        if not names:
            wanted = [name for name, _, _ in self._columns]
            return {name: [row.get(name) for row in rows] for name in wanted if name in _all(rows)}
        # Shorter: written before columns were appended. Longer: a newer schema appended some.
        return dict(zip(names, zip_longest(*rows), strict=False))


def _all(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    names: set[str] = set()
    for row in rows:
        names.update(row)
    return names


def _array(values: Sequence[Any], kind: pa.DataType, convert: Convert | None) -> pa.Array:
    """Return a column; raises one of ``_UNFIT`` if a value does not fit."""
    if isinstance(values, pa.Array):
        return values
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    return pa.array(values, kind)


_UNFIT: Final = (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError)


def column_builder(name: str, spec: Any) -> Callable[[Sequence[Any]], pa.Array]:
    """Return what makes the Arrow column of values as rows hold them; ``spec``: its Spark type.

    It raises SchemaError if a value does not fit.
    """
    kind, convert = arrow_type(spec), _conversion(spec)

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            return _array(values, kind, convert)
        except _UNFIT as error:
            raise SchemaError(
                f"column {name!r} has a value that is no {kind} ({error}): give the column another "
                "type in the schema to read with"
            ) from error

    return build


# --- types ----------------------------------------------------------------------------------------


def arrow_type(spec: Any) -> pa.DataType:
    """Return the Arrow type in which Spark takes values of a type of its schema JSON."""
    if isinstance(spec, Mapping):
        return _nested_type(spec)
    if spec in _TYPES:
        return _TYPES[spec]
    if spec.startswith("decimal"):
        precision, _, scale = spec[len("decimal") :].strip("()").partition(",")
        return pa.decimal128(int(precision or 10), int(scale or 0))
    if spec.startswith(("string", "char", "varchar")):
        return pa.string()
    if spec.startswith("interval"):
        return pa.duration("us")
    if spec.startswith("time"):
        return pa.time64("ns")
    raise SchemaError(f"columns of type {spec} cannot be read from a table: cast it after reading")


def _nested_type(spec: Mapping[str, Any]) -> pa.DataType:
    if spec["type"] == "udt":
        return arrow_type(spec["sqlType"])
    if spec["type"] == "array":
        nullable = spec["containsNull"]
        return pa.list_(pa.field("element", arrow_type(spec["elementType"]), nullable=nullable))
    if spec["type"] == "map":
        return pa.map_(
            pa.field("key", arrow_type(spec["keyType"]), nullable=False),
            pa.field("value", arrow_type(spec["valueType"]), nullable=spec["valueContainsNull"]),
        )
    return pa.struct(
        [
            pa.field(field["name"], arrow_type(field["type"]), nullable=field["nullable"])
            for field in spec["fields"]
        ]
    )


_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            # Spark knows a variant from a struct by this mark.
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
    ),
}


# --- values ---------------------------------------------------------------------------------------


def _conversion(spec: Any) -> Convert | None:
    """Return what values of a type need before Arrow takes them; None for nothing."""
    if spec == "variant":
        return _variant
    if not isinstance(spec, Mapping):
        return None
    if spec["type"] == "udt":
        return _conversion(spec["sqlType"])
    if spec["type"] == "array":
        return _array_conversion(_conversion(spec["elementType"]))
    if spec["type"] == "map":
        key, value = _key_conversion(spec["keyType"]), _conversion(spec["valueType"])
        return lambda pairs: [(_apply(key, k), _apply(value, v)) for k, v in pairs.items()]
    return _struct_conversion(
        {field["name"]: _conversion(field["type"]) for field in spec["fields"]}
    )


def _key_conversion(spec: Any) -> Convert | None:
    """Keys of maps that are arrays or structs are stored as tuples, as dicts need them."""
    if not isinstance(spec, Mapping):
        return _conversion(spec)
    if spec["type"] == "udt":
        return _key_conversion(spec["sqlType"])
    if spec["type"] == "array":
        element = _key_conversion(spec["elementType"])
        return lambda values: [_apply(element, value) for value in values]
    fields = {field["name"]: _key_conversion(field["type"]) for field in spec["fields"]}
    return lambda pairs: {name: _apply(fields[name], value) for name, value in pairs}


def _variant(value: object) -> dict[str, bytes]:
    if not isinstance(value, Variant):  # parts of nested values were not always checked
        raise TypeError(f"{value!r:.60} of type {type(value).__name__} is no variant")
    return {"value": value.value, "metadata": value.metadata}


def _array_conversion(element: Convert | None) -> Convert | None:
    if element is None:
        return None
    return lambda values: [_apply(element, value) for value in values]


def _struct_conversion(fields: Mapping[str, Convert | None]) -> Convert | None:
    converted = {name: convert for name, convert in fields.items() if convert is not None}
    if not converted:
        return None

    def convert(struct: Mapping[str, Any]) -> dict[str, Any]:
        return dict(struct) | {
            name: _apply(part, struct.get(name)) for name, part in converted.items()
        }

    return convert


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)
