"""A table's shape: which columns are the key, which types they have, and rows <-> (key, value).

A table without schema takes any columns: the value is a map {column: value}, and a key column may
hold any key type. A schema (Spark's JSON) of the key columns alone fixes their types and leaves the
other columns free. A schema of more columns is all of them: the value is an array of the columns
outside the key in schema order. Columns are only ever appended, so a shorter array means nulls. A
null needs no declaration: ``nullable`` of the schema is not enforced outside the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from raftstore.config import KEY_BYTES_MAX, VALUE_BYTES_MAX
from raftstore.errors import ArgumentError, DecodeError, PayloadTooLargeError, SchemaError
from raftstore.rows.columns import ANY, ColumnType, parse_column_type
from raftstore.rows.keys import decode_key, encode_column, prefix_range, text_prefix_range
from raftstore.rows.values import ValueCodec

_PLAIN: Final = (str, int, bytes)
"""The types of most keys."""


class TableSchema:
    """Turns rows of one table into keys and values and back; may be shared by threads.

    Build it once per table: the encoders of its columns are prepared here.
    """

    def __init__(self, key_columns: Sequence[str], schema_json: str = "") -> None:
        """Read the definition; raise SchemaError when it is no possible table."""
        self.key_columns: Final = tuple(key_columns)
        self.schema_json: Final = schema_json
        types = _parse_schema(schema_json)
        _check_definition(self.key_columns, types if schema_json else None)
        self.columns: Final = tuple(types) if schema_json else ()
        """Names of the declared columns in schema order; () for a table without schema."""
        self.value_columns: Final = tuple(c for c in types if c not in self.key_columns)
        """The declared ones; () for a table that takes any columns beside its key."""
        self.key_types: Final = tuple(types.get(name, ANY) for name in self.key_columns)
        self._value_types: Final = tuple(types[name] for name in self.value_columns)
        self._key_encoders: Final = tuple(_key_encoder(kind) for kind in self.key_types)
        self._known: Final = frozenset(types)
        self._restored: Final = any(kind.restore for kind in self.key_types)
        self._codec: Final = ValueCodec()

    # --- rows ------------------------------------------------------------------------------------

    def row_to_key_value(self, row: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Encode a row; raise SchemaError or PayloadTooLargeError naming the column at fault."""
        try:
            key = self.encode_key([row[name] for name in self.key_columns])
        except KeyError as error:
            raise self._missing_key_column(row, error.args[0]) from None
        except (TypeError, IndexError):
            if isinstance(row, Mapping):
                raise
            raise ArgumentError(
                f"the row {row!r:.80} is no map of columns to values; give a dict, as in "
                f"{{{self.key_columns[0]!r}: 1}}"
            ) from None
        return key, self.encode_value(row)

    def key_value_to_row(self, key: bytes, value: bytes) -> dict[str, Any]:
        """Decode a row, in schema order; key columns first where the others are not declared."""
        row = self._key_row(key)
        content = self._codec.decode(value)
        if not self.value_columns:
            if not isinstance(content, dict):
                raise DecodeError(f"the value of key {key.hex()} is no map of columns")
            row.update(content)
            return row
        if not isinstance(content, list):
            raise DecodeError(f"the value of key {key.hex()} is no list of columns")
        # Longer than the schema: a newer schema appended columns that this reader does not know.
        row |= zip(self.value_columns, content, strict=False)
        return {name: row.get(name) for name in self.columns}

    def _key_row(self, key: bytes) -> dict[str, Any]:
        values = self.decode_key(key)
        if len(values) == 1:  # most keys have one column, and reading rows is mostly this
            return {self.key_columns[0]: values[0]}
        return dict(zip(self.key_columns, values, strict=True))

    def encode_columns(
        self, columns: Mapping[str, Sequence[Any]]
    ) -> tuple[list[bytes], list[bytes]]:
        """Encode many rows given column by column (as Arrow has them): keys and values.

        For tables with declared value columns only, which are trusted to have their declared
        types; absent ones are null. Keys are checked like everywhere.
        """
        assert self.value_columns
        if unknown := [name for name in columns if name not in self._known]:
            raise self._unknown_column(unknown[0])
        if missing := [name for name in self.key_columns if name not in columns]:
            raise self._missing_key_column(columns, missing[0])
        count = len(columns[self.key_columns[0]])
        keys = self._encode_key_columns([columns[name] for name in self.key_columns])
        absent: Sequence[Any] = (None,) * count
        table = [columns.get(name, absent) for name in self.value_columns]
        rows = zip(*table, strict=True)
        packer = self._codec.borrow()
        try:
            values = list(map(packer.pack, map(list, rows)))
        except (ValueError, OverflowError, TypeError, RecursionError):
            for row in zip(*table, strict=True):
                self._pack(dict(zip(self.value_columns, row, strict=True)), list(row))
            raise
        self._codec.give_back(packer)
        if values and len(largest := max(values, key=len)) > VALUE_BYTES_MAX:
            self._refuse_size(self.key_value_to_row(keys[values.index(largest)], largest), largest)
        return keys, values

    # --- keys ------------------------------------------------------------------------------------

    def encode_key(self, values: Sequence[Any]) -> bytes:
        """Encode the values of all key columns, in their order."""
        if len(values) != len(self.key_columns):
            raise SchemaError(
                f"the key has {len(self.key_columns)} columns ({', '.join(self.key_columns)}), "
                f"but {len(values)} values were given; give one for each"
            )
        key = self._encode_leading(values)
        if len(key) > KEY_BYTES_MAX:
            raise PayloadTooLargeError(
                f"the key ({', '.join(self.key_columns)}) takes {len(key)} bytes, more than "
                f"{KEY_BYTES_MAX}; use a shorter key, such as a digest of it",
                size=len(key),
                limit=KEY_BYTES_MAX,
            )
        return key

    def key_of(self, given: Any) -> bytes:
        """Encode a key as callers write it: a value, a tuple of values, or a map by column name."""
        if type(given) in _PLAIN:  # asking whether it is a map costs more than all the rest
            return self.encode_key((given,))
        if isinstance(given, Mapping):
            for name in given:
                if name not in self.key_columns:
                    raise SchemaError(
                        f"{name!r} is not a column of the key ({', '.join(self.key_columns)}); "
                        "leave it out"
                    )
            try:
                return self.encode_key([given[name] for name in self.key_columns])
            except KeyError as error:
                raise self._missing_key_column(given, error.args[0]) from None
        if isinstance(given, tuple | list):
            return self.encode_key(given)
        return self.encode_key((given,))

    def decode_key(self, key: bytes) -> tuple[Any, ...]:
        """Return the values of the key columns."""
        values: tuple[Any, ...] = decode_key(key)
        if len(values) != len(self.key_columns):
            raise DecodeError(
                f"the key {key.hex()} has {len(values)} columns, "
                f"the table's key has {len(self.key_columns)}"
            )
        if self._restored:
            return tuple(
                kind.restore(value) if kind.restore else value
                for kind, value in zip(self.key_types, values, strict=True)
            )
        return values

    def key_prefix(self, values: Sequence[Any]) -> tuple[bytes, bytes]:
        """Return [start, stop) of all keys whose first columns are ``values``."""
        return prefix_range(self._checked_leading(values))

    def text_prefix(self, values: Sequence[Any], text: str | bytes) -> tuple[bytes, bytes]:
        """Return [start, stop) of the keys of ``values`` whose next column begins with ``text``."""
        *leading, last = self._checked_leading((*values, text))
        return text_prefix_range(tuple(leading), last)

    # --- values ----------------------------------------------------------------------------------

    def encode_value(self, row: Mapping[str, Any]) -> bytes:
        """Encode the columns of a row outside its key."""
        content: list[Any] | dict[str, Any]
        if self.value_columns:
            content = self._checked_values(row)
        else:
            content = {name: row[name] for name in row if name not in self.key_columns}
            for name in content:
                if not isinstance(name, str):
                    raise SchemaError(f"the column name {name!r} is no text; use a str")
        value = self._pack(row, content)
        if len(value) > VALUE_BYTES_MAX:
            self._refuse_size(row, value)
        return value

    def _checked_values(self, row: Mapping[str, Any]) -> list[Any]:
        values = []
        found = 0
        for name, kind in zip(self.value_columns, self._value_types, strict=True):
            value = row.get(name)
            if value is not None:
                try:
                    value = kind.check(value)
                except (TypeError, ValueError) as error:
                    raise _wrong_type(name, kind, value, error) from None
            found += name in row
            values.append(value)
        if found + len(self.key_columns) != len(row):
            for name in row:
                if name not in self._known:
                    raise self._unknown_column(name)
        return values

    def _pack(self, row: Mapping[str, Any], content: object) -> bytes:
        try:
            return self._codec.encode(content)
        except SchemaError as error:
            for name, value in row.items():
                try:
                    self._codec.encode(value)
                except SchemaError as reason:
                    raise SchemaError(f"column {name!r}: {reason}") from error
            raise

    def _refuse_size(self, row: Mapping[str, Any], value: bytes) -> NoReturn:
        sizes = {n: len(self._codec.encode(row[n])) for n in row if n not in self.key_columns}
        name = max(sizes, key=sizes.__getitem__)
        raise PayloadTooLargeError(
            f"a row takes {len(value)} bytes, more than {VALUE_BYTES_MAX}; column {name!r} "
            f"({type(row[name]).__name__}) takes {sizes[name]}; split it or store a reference",
            size=len(value),
            limit=VALUE_BYTES_MAX,
        )

    # --- parts -----------------------------------------------------------------------------------

    def _encode_leading(self, values: Sequence[Any]) -> bytes:
        try:
            if len(values) == 1:
                return self._key_encoders[0](values[0])
            columns = zip(self._key_encoders, values, strict=False)
            return b"".join([encode(value) for encode, value in columns])
        except (TypeError, ValueError, SchemaError):
            raise self._wrong_key(values) from None

    def _wrong_key(self, values: Sequence[Any]) -> SchemaError:
        """Find the key column at fault again, to name it."""
        for at, value in enumerate(values):
            name, kind = self.key_columns[at], self.key_types[at]
            if value is None:
                return _wrong_type(name, kind, value, ValueError("a key is never null"))
            try:
                self._key_encoders[at](value)
            except (TypeError, ValueError, SchemaError) as error:
                return _wrong_type(name, kind, value, error)
        raise AssertionError("a key was refused without a column at fault")

    def _checked_leading(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if len(values) > len(self.key_columns):
            raise SchemaError(
                f"a prefix of {len(values)} columns is longer than the key "
                f"({', '.join(self.key_columns)}); leave some out"
            )
        return decode_key(self._encode_leading(values)) if values else ()

    def _encode_key_columns(self, columns: list[Sequence[Any]]) -> list[bytes]:
        if len(columns) > 1:
            return [self.encode_key(values) for values in zip(*columns, strict=True)]
        try:
            keys = list(map(self._key_encoders[0], columns[0]))
        except (TypeError, ValueError, SchemaError):
            keys = [self.encode_key((value,)) for value in columns[0]]
        if keys and len(max(keys, key=len)) > KEY_BYTES_MAX:
            return [self.encode_key((value,)) for value in columns[0]]
        return keys

    def _missing_key_column(self, row: Mapping[str, Any], name: str) -> SchemaError:
        return SchemaError(
            f"the key column {name!r} is missing (given: {', '.join(map(str, row)) or 'nothing'}); "
            "every row needs all key columns"
        )

    def _unknown_column(self, name: object) -> SchemaError:
        return SchemaError(
            f"the column {name!r} is unknown; the table has {', '.join(self.columns)}"
        )


def _key_encoder(kind: ColumnType) -> Callable[[Any], bytes]:
    """Check and encoding of a key column in one call."""
    check, encode = kind.check, kind.encode
    if encode is None:
        return encode_column
    return lambda value: encode(check(value))


def _wrong_type(name: str, kind: ColumnType, value: object, reason: Exception) -> SchemaError:
    given = "null" if value is None else f"{value!r:.60} of type {type(value).__name__}"
    return SchemaError(f"column {name!r} is {kind.name}, but {given} was given: {reason}")


def check_columns(schema_json: str) -> tuple[str, ...]:
    """Return a schema's columns; raise SchemaError for one that cannot be stored."""
    return tuple(_parse_schema(schema_json))


def _parse_schema(schema_json: str) -> dict[str, ColumnType]:
    """Return the declared columns by name, in schema order."""
    if not schema_json:
        return {}
    try:
        schema = msgspec.json.decode(schema_json.encode())
        fields = [(field["name"], field["type"]) for field in schema["fields"]]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SchemaError(
            f"the schema is not the text that df.schema.json() gives ({error!r}): {schema_json:.80}"
        ) from error
    types: dict[str, ColumnType] = {}
    for name, spec in fields:
        if not isinstance(name, str) or name in types:
            raise SchemaError(f"the schema has the column {name!r} twice; column names are unique")
        try:
            types[name] = parse_column_type(spec)
        except SchemaError as error:
            raise SchemaError(f"column {name!r}: {error}") from error
        except RecursionError as error:
            raise SchemaError(f"column {name!r} is nested too deeply to be read") from error
    return types


def _check_definition(key_columns: tuple[str, ...], types: Mapping[str, ColumnType] | None) -> None:
    if not key_columns or len(dict.fromkeys(key_columns)) != len(key_columns) or "" in key_columns:
        raise SchemaError(
            f"the key columns {key_columns!r} are not usable; name one or more different columns"
        )
    for name in key_columns if types is not None else ():
        kind = types.get(name) if types is not None else None
        if kind is None:
            raise SchemaError(
                f"the key column {name!r} is not in the schema ({', '.join(types or ())}); "
                "name one of its columns"
            )
        if kind.encode is None:
            raise SchemaError(
                f"the key column {name!r} is {kind.name}, which cannot be a key; use a boolean, "
                "number, string, binary, date or timestamp column"
            )
