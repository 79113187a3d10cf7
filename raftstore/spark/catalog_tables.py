"""Tables that Spark SQL knows by name: ``CREATE TABLE t USING raftstore OPTIONS (…)``.

Spark keeps the options of such a table in its catalog, but hands a Python source only those of the
query, so a source learns neither servers nor table when the name is used. What it is always handed
is the schema. So CREATE TABLE without a list of columns, which asks the source for them, notes the
options in the metadata of every column, and a read takes them from there. A write cannot, see
``refuse_write_by_name``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from raftstore.errors import ConfigError
from raftstore.spark.options import (
    OPTION_NAMES,
    SOURCE_OPTION_NAMES,
    check_names,
    folded,
    parse_options,
    parse_source_options,
)

_COPY: Final = "option."
"""Spark hands CREATE TABLE its options twice, once with this before the name, and between them the
properties of its own catalog (provider, owner, location, …)."""
_PLACE: Final = frozenset({"bootstrap.servers", "bootstrap_servers", "table", "path"})
"""A query that names one of these is about that table, whatever columns it happens to have."""
_CONSISTENCY: Final = frozenset({"level", "maxlagseq", "maxlagms", "atbatch"})
_NOTE: Final = "raftstore.table"
"""In the metadata of a column: the options of the table, as JSON, and the column's name."""


def is_create_table(given: Mapping[str, str]) -> bool:
    """Whether these options are those of CREATE TABLE."""
    return "provider" in given or any(name.startswith(_COPY) for name in given)


def create_table_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return what the user named in OPTIONS, without what Spark's catalog adds."""
    return {
        name.removeprefix(_COPY): value for name, value in given.items() if name.startswith(_COPY)
    }


def source_options_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return those of the options of a table that reading it takes."""
    return _among(given, SOURCE_OPTION_NAMES)


def check_table_options(given: Mapping[str, str]) -> None:
    """Check the options of a table, which may be for reading and for writing.

    ConfigError names an option that neither takes, or a value.
    """
    check_names(given, tuple(dict.fromkeys((*OPTION_NAMES, *SOURCE_OPTION_NAMES))))
    parse_options(_among(given, OPTION_NAMES))
    parse_source_options(source_options_of(given))


def _among(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    known = {folded(name) for name in names}
    return {name: value for name, value in given.items() if folded(name) in known}


def with_note(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns with the options of their table noted in each."""
    text = json.dumps(dict(options), sort_keys=True)
    return StructType(
        [
            StructField(
                field.name,
                field.dataType,
                field.nullable,
                {**field.metadata, _NOTE: {"options": text, "column": field.name}},
            )
            for field in schema.fields
        ]
    )


def without_note(schema: StructType) -> StructType:
    """Return the columns as other programs should see and store them."""
    return StructType(
        [
            StructField(
                field.name,
                field.dataType,
                field.nullable,
                {name: value for name, value in field.metadata.items() if name != _NOTE},
            )
            for field in schema.fields
        ]
    )


def noted_options(schema: StructType) -> dict[str, str]:
    """Return the options noted in all columns alike; empty if there are none."""
    notes: list[Any] = [field.metadata.get(_NOTE) for field in schema.fields]
    if not notes or not all(isinstance(note, dict) for note in notes):
        return {}
    texts = {note.get("options") for note in notes}
    names = [note.get("column") for note in notes]
    if len(texts) != 1 or names != schema.names:
        return {}
    options = json.loads(texts.pop())
    return {str(name): str(value) for name, value in options.items()}


def refuse_write_by_name(given: Mapping[str, str]) -> None:
    """Raise ConfigError for a write that names neither servers nor table.

    INSERT INTO the name of a table is one: the columns of a query do not show where it goes, for
    Spark (as of 4.3) leaves those read from another table as they are, its note included, where
    names and types are the same.
    """
    if not any(name.lower() in _PLACE for name in given):
        raise ConfigError(
            "[RAFTSTORE_OPTION_MISSING] bootstrap.servers is not set: add "
            '.option("bootstrap.servers", "host:port,host:port"); in SQL write INSERT INTO name '
            "WITH (`bootstrap.servers` = '…', `table` = '…') …, or make name a TEMPORARY VIEW: "
            "Spark does not say to a Python source into which table of its catalog a query goes"
        )


def read_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: its own, else those of the Spark SQL table it names.

    ConfigError: nothing names the table that is meant.
    """
    if any(name.lower() in _PLACE for name in given):
        return dict(given)
    options = noted_options(schema)
    if not options:
        raise ConfigError(
            "[RAFTSTORE_OPTION_MISSING] bootstrap.servers is not set: add "
            '.option("bootstrap.servers", "host:port,host:port"); a table of Spark SQL that was '
            "created with a list of columns, or by a query, cannot have options: create it "
            "as CREATE TABLE name USING raftstore OPTIONS (…), without columns"
        )
    noted = source_options_of(options)
    if any(name.lower() in _CONSISTENCY for name in given):
        # A query's own level, or bound, is in place of the table's and not beside it.
        noted = {name: value for name, value in noted.items() if name.lower() not in _CONSISTENCY}
    return noted | dict(given)
