"""Which keys a query needs: filters that Spark hands over, as ranges of encoded keys.

Keys are encoded so that their bytes have the order of their values, column after column, and Spark
orders values as they do: code points, unsigned bytes, NaN above infinity and equal to itself, -0.0
equal to 0.0. So equality on the first columns of the key and a range or a prefix on the next is a
range of bytes. What a plan *takes* holds for every row that it reads and for none that it leaves
out; every other filter is handed back to Spark, and so is one whose value the column cannot hold.

Pure, and without pyspark: filters are known by the names of their classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from raftstore.config import KEY_BYTES_MAX
from raftstore.errors import SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.columns import ColumnType, parse_column_type
from raftstore.rows.keys import after_prefix
from raftstore.rows.partitioner import partition_of

KEYS_MAX: Final = 100_000
"""A plan names so many keys at most; a longer list is read as the range that it is in."""
RANGES_MAX: Final = 1_000
"""Ranges of a plan, each of which is read in every partition by itself."""
_TEXT_END: Final = 2
"""Bytes that end an encoded text."""


class KeyRange(NamedTuple):
    """Encoded keys of [start, stop); b"" as stop is open."""

    start: bytes
    stop: bytes


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """The part of a table to read: ``keys`` alone, or, when that is None, all of ``ranges``."""

    ranges: tuple[KeyRange, ...] = (KeyRange(b"", b""),)
    """Ascending, none within another."""
    keys: tuple[bytes, ...] | None = None

    @property
    def is_of_nothing(self) -> bool:
        """Whether no row can be in it."""
        return not self.keys and not self.ranges

    def keys_of(self, partitions: int) -> dict[int, tuple[bytes, ...]]:
        """Return the keys of each partition that has any."""
        found: dict[int, list[bytes]] = {}
        for key in self.keys or ():
            found.setdefault(partition_of(key, partitions), []).append(key)
        return {number: tuple(found[number]) for number in sorted(found)}


EVERYTHING: Final = FilterPlan()


@dataclass(slots=True)
class _Column:
    """The filters on one column of the key, in its encoded form."""

    kind: ColumnType
    values: frozenset[bytes] | None = None
    """It is one of these; None: of any value."""
    start: bytes = b""
    stop: bytes = b""
    filters: list[Any] = field(default_factory=list)
    """Those that are said here."""

    def take(self, given: Any) -> bool:
        """Take a filter in; False, and nothing changed, when it cannot be said exactly."""
        take = _TAKERS.get(type(given).__name__)
        try:
            if take is None or not take(self, getattr(given, "value", None)):
                return False
        except (SchemaError, TypeError, ValueError, OverflowError):
            return False  # no value of the column; what that means is for Spark to say
        self.filters.append(given)
        return True

    def encoded(self, value: Any) -> bytes:
        """Encode a value of the column; raises for what it cannot hold."""
        assert self.kind.encode is not None
        checked = self.kind.check(value)
        # Only single precision changes a value; NaN differs from itself.
        if isinstance(checked, float) and not math.isnan(checked) and checked != value:
            raise ValueError("no value of the column is exactly this")
        encoded = self.kind.encode(checked)
        if len(encoded) > KEY_BYTES_MAX:
            raise ValueError("longer than any key")
        return encoded

    def is_one_of(self, values: Iterable[Any]) -> bool:
        """Say that it is one of these; null is no key, and equal to nothing."""
        found = frozenset(self.encoded(value) for value in values if value is not None)
        self.values = found if self.values is None else self.values & found
        return True

    def is_within(self, start: bytes, stop: bytes) -> bool:
        """Say that its bytes are of [start, stop)."""
        self.start = max(self.start, start)
        if stop:
            self.stop = min(self.stop, stop) if self.stop else stop
        return True

    def chosen(self) -> list[bytes] | None:
        """The values that it may have, in order; None when they are not counted."""
        if self.values is None:
            return None
        return sorted(each for each in self.values if self._holds(each))

    def _holds(self, encoded: bytes) -> bool:
        return self.start <= encoded and (not self.stop or encoded < self.stop)


def _begins_with(column: _Column, text: Any) -> bool:
    if column.kind.name != "string":
        return False
    start = column.encoded(text)[:-_TEXT_END]
    return column.is_within(start, after_prefix(start))


def _equals(column: _Column, value: Any) -> bool:
    return value is not None and column.is_one_of((value,))


_TAKERS: Final[Mapping[str, Callable[[_Column, Any], bool]]] = {
    "EqualTo": _equals,
    "EqualNullSafe": _equals,
    "In": lambda column, values: column.is_one_of(values),
    "LessThan": lambda column, value: column.is_within(b"", column.encoded(value)),
    "LessThanOrEqual": lambda column, value: column.is_within(
        b"", after_prefix(column.encoded(value))
    ),
    "GreaterThan": lambda column, value: column.is_within(after_prefix(column.encoded(value)), b""),
    "GreaterThanOrEqual": lambda column, value: column.is_within(column.encoded(value), b""),
    "StringStartsWith": _begins_with,
}


def plan_filters(filters: Sequence[Any], table: TableInfo) -> tuple[FilterPlan, list[Any]]:
    """Return what to read for a query with all these filters, and those that Spark has to apply."""
    columns = _key_columns(table)
    always = []
    for given in filters:
        path: tuple[str, ...] = getattr(given, "attribute", ())
        column = columns.get(path[0]) if len(path) == 1 else None
        if column is not None and type(given).__name__ == "IsNotNull":
            always.append(given)  # no column of a key is null
        elif column is not None:
            column.take(given)
    plan, taken = _plan([columns.get(name) for name in table.key_columns])
    taken_ids = {id(given) for given in (*always, *taken)}
    return plan, [given for given in filters if id(given) not in taken_ids]


def _plan(columns: Sequence[_Column | None]) -> tuple[FilterPlan, list[Any]]:
    """Return the plan and the filters that it takes."""
    prefixes, taken = [b""], list[Any]()
    for number, column in enumerate(columns):
        if column is None:
            return _ranges(prefixes, b"", b""), taken
        values = column.chosen()
        is_last = number + 1 == len(columns)
        if values is not None and len(prefixes) * len(values) <= (
            KEYS_MAX if is_last else RANGES_MAX
        ):
            taken += column.filters
            prefixes = [prefix + value for prefix in prefixes for value in values]
            continue
        if values is None:
            taken += column.filters
            return _ranges(prefixes, column.start, column.stop), taken
        return _ranges(prefixes, values[0], after_prefix(values[-1])), taken
    return FilterPlan((), tuple(key for key in prefixes if len(key) <= KEY_BYTES_MAX)), taken


def _ranges(prefixes: Sequence[bytes], start: bytes, stop: bytes) -> FilterPlan:
    """Return the plan of keys that begin with a prefix and go on in [start, stop)."""
    if not prefixes or (stop and start >= stop):
        return FilterPlan((), ())
    return FilterPlan(
        tuple(
            KeyRange(prefix + start, prefix + stop if stop else after_prefix(prefix))
            for prefix in prefixes
        )
    )


def _key_columns(table: TableInfo) -> dict[str, _Column]:
    """Return the columns of the key whose filters can be decided by their bytes.

    A column without a declared type may hold 1 and 1.0, which are two keys and equal for Spark.
    Padded and collated texts are equal to others, too.
    """
    columns = {}
    fields = msgspec.json.decode(table.schema_json)["fields"] if table.schema_json else ()
    for spec in fields:
        kind, name = spec["type"], spec["name"]
        is_plain = isinstance(kind, str) and (kind in _PLAIN or _DECIMAL.fullmatch(kind))
        if name in table.key_columns and is_plain and not _is_collated(spec):
            columns[name] = _Column(parse_column_type(kind))
    return columns


def _is_collated(spec: Mapping[str, Any]) -> bool:
    return any("COLLATION" in name.upper() for name in spec.get("metadata") or ())


_PLAIN: Final = frozenset(
    (
        *("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary"),
        *("date", "timestamp", "timestamp_ntz"),
    )
)
_DECIMAL: Final = re.compile(r"decimal(\(.*\))?")
