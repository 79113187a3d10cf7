"""Definitions of tables and their changes: checked before anything is sent."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from raftstore.client.arguments import Ttl, lifetime_ms, texts, whole
from raftstore.client.reads.read_spec import count_of, duration_ms
from raftstore.config import PARTITIONS_MAX, REPLICAS_MAX
from raftstore.errors import ArgumentError, SchemaError
from raftstore.machine import StateMachine
from raftstore.machine_lint import lint_machine
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.table_settings import TableSettings, restoring_problem, setting_problem
from raftstore.rows.ddl import EXAMPLE, schema_of_ddl, schema_of_mapping
from raftstore.rows.schema import TableSchema
from raftstore.types import DURABILITIES

CLIENT: Final = __name__.removesuffix("definitions")
"""Begins the names of the client's modules."""


class SettingsGiven(TypedDict, total=False):
    """Settings of a table, as ``create_table`` and ``alter_table`` take them; None: each node
    decides."""

    retention_bytes: int | None
    """Log of each partition that is kept for replicas and readers of changes that are behind."""
    retention_records: int | None
    """The same in records."""
    retention_age: float | None
    """Seconds after which records of the log go, however few there are; 0: never for their age."""
    ttl: Ttl
    """How long rows live that are written without a ttl of their own, in seconds or as a
    timedelta; None: for ever."""
    restoring: str | None
    """Token of the restore that fills the table (``raftstore.backup``): until ``alter_table``
    removes it, the table serves nobody and takes only that restore's batches."""


class TableEdits(SettingsGiven, total=False):
    """The changes that ``alter_table`` makes; None removes a bound."""

    max_lag: int | None
    """Rows."""
    max_staleness: float | None
    """Seconds."""
    max_batches_behind: int | None
    max_replica_lag: int | None
    """Rows."""
    standby_reads: bool
    replicas: int
    """How many each partition is to have; they come and go one after the other, behind the
    answer."""
    add_columns: Any
    """A schema, as ``create_table`` takes it, of the columns to append."""


_PROPERTIES: Final = {
    "max_lag": "rows",
    "max_staleness": "seconds",
    "max_batches_behind": "micro-batches",
    "max_replica_lag": "rows",
    "standby_reads": "",
    "replicas": "",
    "add_columns": "",
    **dict.fromkeys(SettingsGiven.__annotations__, ""),
}


def _setting(name: str, given: Any) -> dict[str, Any]:
    """Return a setting by its name and in its unit on the wire; ArgumentError if it cannot be."""
    if name == "retention_age":
        milliseconds = duration_ms(name, given)
        if milliseconds == 0 and given:
            raise ArgumentError(
                f"retention_age={given!r} is less than a millisecond; give 0.001 seconds or more, "
                "or 0 to keep records whatever their age"
            )
        name, given = "retention_age_ms", milliseconds
    elif name == "ttl":
        name, given = "ttl_ms", lifetime_ms(given) or None
    elif name == "restoring":
        if (problem := restoring_problem(given)) is not None:
            raise ArgumentError(problem)
        return {name: given}
    if (problem := setting_problem(name, given)) is not None:
        raise ArgumentError(problem)
    return {name: given}


def table_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Check the properties that ``edit_table`` changes; ArgumentError names what cannot be."""
    if not changes:
        raise ArgumentError(f"nothing is to be changed; give {', '.join(_PROPERTIES)}")
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in _PROPERTIES:
            raise ArgumentError(
                f"a table has no property {name!r}; there are {', '.join(_PROPERTIES)}"
            )
        if name in SettingsGiven.__annotations__:
            checked |= _setting(name, value)
            continue
        if name == "standby_reads":
            if type(value) is not bool:
                raise ArgumentError(f"standby_reads={value!r} is neither True nor False")
            checked[name] = value
        elif name == "replicas":
            checked[name] = whole(name, value, 1, REPLICAS_MAX)
        elif name == "add_columns":
            checked[name] = schema_text(value)
        elif name == "max_staleness":
            checked["max_staleness_ms"] = duration_ms(name, value)
        else:
            checked[name] = count_of(name, value, _PROPERTIES[name])
    return checked


def table_definition(
    *,
    key: str | Sequence[str],
    partitions: int,
    replicas: int,
    schema: Any,
    durability: str,
    max_lag: int | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Check what can be checked here and return the fields of CreateTable.

    ``schema``: None, or what ``schema_text`` takes; ``settings``: those of ``SettingsGiven``.
    Raises ArgumentError or SchemaError.
    """
    if durability not in DURABILITIES:
        names = ", ".join(DURABILITIES)
        raise ArgumentError(f"durability={durability!r:.80} is not known; use one of {names}")
    whole("partitions", partitions, 1, PARTITIONS_MAX)
    whole("replicas", replicas, 1, REPLICAS_MAX)
    if isinstance(max_lag, int) and max_lag < 0:
        raise ArgumentError(f"max_lag={max_lag} is negative; use 0 or more rows")
    count_of("max_lag", max_lag, "rows")
    key_columns = texts("key", key)
    schema_json = "" if schema is None else schema_text(schema)
    TableSchema(key_columns, schema_json)
    own: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in SettingsGiven.__annotations__:
            known = ", ".join(SettingsGiven.__annotations__)
            raise ArgumentError(f"a new table takes no {name!r}; its settings are {known}")
        own |= _setting(name, value)
    return {
        "key_columns": key_columns,
        "partitions": partitions,
        "replicas": replicas,
        "durability": durability,
        "max_lag": max_lag,
        "schema_json": schema_json,
        "settings": TableSettings(**own),
    }


def check_is_table(info: TableInfo) -> None:
    """Raise SchemaError for a channel set: what is behind it is no rows of anybody."""
    if info.machine:
        raise SchemaError(
            f"{info.name!r} is a channel set of the machine {info.machine}, and has no rows to "
            "read or write; send commands and queries (client.channelset, `raftstore machine`)"
        )


def warn_of_findings(machine: object) -> None:
    """Issue a UserWarning for each line of a machine's class by which replicas may come to differ;
    of a name nothing is known here. To be called as ``warn_of_even_replicas``."""
    if isinstance(machine, type) and issubclass(machine, StateMachine):
        for finding in lint_machine(machine):
            warnings.warn(str(finding), stacklevel=_level_of_caller())


def warn_of_even_replicas(replicas: int) -> None:
    """Issue a UserWarning at the caller's line if one replica fewer would survive as much.

    To be called while the caller waits for a coroutine to be made: once an event loop runs it, the
    line that asked for it may be in another thread. A number that is refused later is no concern.
    """
    if replicas in range(2, REPLICAS_MAX + 1, 2):
        warnings.warn(
            f"{replicas} replicas survive the loss of {replicas // 2 - 1} nodes, no more than "
            f"{replicas - 1} do: a majority of {replicas} is {replicas // 2 + 1}; use "
            f"{replicas - 1} or {replicas + 1}",
            stacklevel=_level_of_caller(),
        )


def _level_of_caller() -> int:
    """Return the ``stacklevel`` with which our caller names the first line outside the client: how
    many of the client's own frames are between differs between asyncio and blocking."""
    level = 1
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way, without text of the whole stack
    while frame.f_back is not None and f"{frame.f_globals['__name__']}.".startswith(CLIENT):
        frame = frame.f_back
        level += 1
    return level


def schema_text(schema: Any) -> str:
    """Return Spark's schema JSON of what is that already, has a ``json()`` method, or names columns
    and types: a dict, or a text as in Spark SQL (``rows.ddl``)."""
    if isinstance(schema, str):
        is_json = not schema or schema.lstrip().startswith(("{", "[", '"'))
        return schema if is_json else schema_of_ddl(schema)
    if isinstance(schema, Mapping):
        return schema_of_mapping(schema)
    if not callable(getattr(schema, "json", None)):
        raise ArgumentError(
            f"{schema!r:.80} is no schema; give one of Spark's, its json(), or as in {EXAMPLE}"
        )
    return str(schema.json())
