"""Only some columns of a row. Done where values are decoded: nodes know no columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raftstore.errors import SchemaError
from raftstore.rows.schema import TableSchema


class Projection:
    """The columns a read asked for; all of them unless it names some.

    A column that the table declares not to have is refused. Without a schema any name may be asked
    for, and a row that has no such column comes without it.
    """

    def __init__(self, schema: TableSchema, columns: Sequence[str] | None) -> None:
        known = schema.columns if schema.value_columns else ()
        unknown = [name for name in columns or () if known and name not in known]
        if unknown:
            raise SchemaError(
                f"the table has no column {unknown[0]!r} (there are: {', '.join(known)})"
            )
        self._columns = columns
        self.is_of_all = columns is None
        self.is_of_keys = columns is not None and set(columns) <= set(schema.key_columns)
        """Only key columns are wanted: values need not travel."""

    @classmethod
    def chosen(cls, schema: TableSchema, columns: Sequence[str] | None) -> Projection:
        """Return the projection, the same one for all reads that want every column."""
        return _EVERYTHING if columns is None else cls(schema, columns)

    def of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with the columns asked for, in the order asked for."""
        if self._columns is None:
            return dict(row)
        return {name: row[name] for name in self._columns if name in row}


_EVERYTHING: Final = Projection(TableSchema(("any",)), None)
