"""Limits of table definitions: checked before they reach the catalog."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from raftstore.config import PARTITIONS_MAX, REPLICAS_MAX
from raftstore.errors import SchemaError
from raftstore.protocol.admin import CreateTable
from raftstore.protocol.reads import Bounds
from raftstore.protocol.table_settings import (
    SETTING_LIMITS,
    TableSettings,
    setting_problem,
    settings_problem,
)
from raftstore.rows.schema import TableSchema
from raftstore.rows.schema_growth import grown_schema
from raftstore.state_machines.catalog import Catalog, TableEntry
from raftstore.types import DURABILITIES, Durability, node_name

TABLE_NAME_CHARS_MAX = 128
TABLE_NAME: Final = re.compile(
    rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{TABLE_NAME_CHARS_MAX - 1}}}", re.ASCII
)
"""Names stand in paths, in ``:scan`` and in lists by commas: one that means something else there
would be another table, or part of one."""
MACHINE_NAME_CHARS_MAX: Final = 256
"""Of a state machine: ``package.module:Class``, or an entry point's name."""
BOUND_MAX: Final = 2**63 - 1
BOUNDS_OF_A_TABLE: Final = {
    "max_lag": "rows",
    "max_staleness_ms": "milliseconds",
    "max_batches_behind": "micro-batches",
}
"""Properties that bound reads, and what they count."""
COUNTED: Final = {**BOUNDS_OF_A_TABLE, "max_replica_lag": "rows"}
"""Properties that are numbers, and what they count."""
ADD_COLUMNS: Final = "add_columns"
"""Columns to append: a schema as ``df.schema.json()`` writes it."""
REPLICAS: Final = "replicas"
"""How many each partition is to have; they come and go one after the other."""
RESTORING: Final = "restoring"
"""Is removed when the table is whole, and never set again: a table that was served stays so."""
EDITABLE: Final = (*COUNTED, *SETTING_LIMITS, "standby_reads", REPLICAS, ADD_COLUMNS, RESTORING)


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
        settings=msgspec.structs.replace(
            request.settings,
            from_backup=bool(request.machine) and request.settings.restoring is not None,
        ),
        machine=request.machine,
    )


def name_problem(name: str) -> str | None:
    """The fault of a new table's name, or None; old tables may have any name."""
    if TABLE_NAME.fullmatch(name):
        return None
    return (
        f"table name {name!r:.200} is not usable: give 1 to {TABLE_NAME_CHARS_MAX} letters (a to "
        "z, A to Z), digits, '_', '.' and '-', the first of them a letter or digit"
    )


def definition_problem(request: CreateTable, *, is_new: bool) -> str | None:
    """The fault of a table definition, or None."""
    if is_new and (problem := name_problem(request.name)) is not None:
        return problem
    if request.machine and (problem := _channelset_problem(request)) is not None:
        return problem
    if not request.machine and (problem := _keys_problem(request)) is not None:
        return problem
    return _counts_problem(request)


def _keys_problem(request: CreateTable) -> str | None:
    if not request.key_columns or len(set(request.key_columns)) != len(request.key_columns):
        return f"key columns {request.key_columns!r} must name at least one column, each once"
    try:
        TableSchema(request.key_columns, request.schema_json)
    except SchemaError as error:
        return str(error)
    return None


def _channelset_problem(request: CreateTable) -> str | None:
    """The first thing asked for that a table can have, and a channel set cannot."""
    if len(request.machine) > MACHINE_NAME_CHARS_MAX:
        return (
            f"the machine's name has {len(request.machine)} characters, at most"
            f" {MACHINE_NAME_CHARS_MAX} are allowed"
        )
    if request.durability != Durability.FSYNC.label:
        return (
            f"channel set {request.name!r} asks for durability {request.durability!r:.80}: a "
            "command is applied exactly once only if it is durable, so give fsync"
        )
    for what, value in (
        ("key columns", request.key_columns),
        ("a schema", request.schema_json),
        ("a lifetime of rows (ttl)", request.settings.ttl_ms),
    ):
        if value not in ((), "", None):
            return (
                f"channel set {request.name!r} has a state machine, and so no {what}: give none, "
                "or create a table"
            )
    if (request.settings.restoring is None) != (request.machine_versions is None):
        return (
            f"channel set {request.name!r} is created with the versions of a state that is restored"
            " into it, or with neither; give both"
        )
    return None


def _counts_problem(request: CreateTable) -> str | None:
    if not 1 <= request.partitions <= PARTITIONS_MAX:
        return f"partitions={request.partitions} is outside 1..{PARTITIONS_MAX}"
    if not 1 <= request.replicas <= REPLICAS_MAX:
        return f"replicas={request.replicas} is outside 1..{REPLICAS_MAX}"
    if request.durability not in DURABILITIES:
        names = ", ".join(DURABILITIES)
        return f"durability {request.durability!r:.80} is not known; use one of {names}"
    if request.max_lag is not None and request.max_lag < 0:
        return f"max_lag={request.max_lag} is negative; use 0 or more rows"
    return settings_problem(request.settings)


def edit_problem(changes: Mapping[str, Any]) -> str | None:
    """The fault of changes of a table's properties, or None."""
    if not changes:
        return f"no property to change was named; there are {', '.join(EDITABLE)}"
    for name, value in changes.items():
        if name == "durability":
            # The replicas would learn of it at different moments, and acknowledgements name one.
            return (
                "durability is fixed when a table is created; create another table with "
                f"durability={value!r:.80} and copy the rows, as with `raftstore export` and "
                "`raftstore import`"
            )
        if name not in EDITABLE:
            return f"a table has no property {name!r} to change; use one of {', '.join(EDITABLE)}"
        may_be_none = value is None and name != REPLICAS
        problem = None if may_be_none else _value_problem(name, value)
        if problem is not None:
            return problem
    return None


def _value_problem(name: str, value: Any) -> str | None:
    if name in SETTING_LIMITS:
        return setting_problem(name, value)
    if name == REPLICAS:
        is_whole = type(value) is int and 1 <= value <= REPLICAS_MAX
        return None if is_whole else f"replicas={value!r:.80} is outside 1..{REPLICAS_MAX}"
    if name == RESTORING:
        return f"restoring={value!r:.80} cannot be set, a table is created with it; give none"
    if name == ADD_COLUMNS:
        if not isinstance(value, str):
            return f"add_columns={value!r:.80} is no schema; give the text of df.schema.json()"
    elif name == "standby_reads":
        if not isinstance(value, bool):
            return f"standby_reads={value!r} is neither true nor false"
    elif type(value) is not int or not 0 <= value <= BOUND_MAX:
        return f"{name}={value!r} is no number of {COUNTED[name]}; use 0 or more"
    return None


def edited_entry(entry: TableEntry, changes: Mapping[str, Any]) -> TableEntry:
    """The entry with these changes; None is what a table has that was never set.

    Raises SchemaError for columns that cannot be appended to this table, and for what a channel set
    cannot have.
    """
    if entry.machine and (of_tables := sorted({ADD_COLUMNS, "ttl_ms"} & changes.keys())):
        raise SchemaError(f"it is a channel set, which has no {of_tables[0]}; only tables do")
    schema_json = entry.schema_json
    if (added := changes.get(ADD_COLUMNS)) is not None:
        schema_json = grown_schema(entry.key_columns, schema_json, added)
    standby_reads = changes.get("standby_reads", entry.standby_reads)
    bounds = {name: changes.get(name, getattr(entry, name)) for name in COUNTED}
    return msgspec.structs.replace(
        entry,
        replicas=changes.get(REPLICAS, entry.replicas),
        standby_reads=True if standby_reads is None else standby_reads,
        schema_json=schema_json,
        settings=_edited_settings(entry.settings, changes),
        **bounds,
    )


def resized(entry: TableEntry, catalog: Catalog, channels_max: int) -> TableEntry:
    """An edited entry, marked as resizing unless every partition has its number of replicas.

    Raises SchemaError where more replicas are wanted than there are nodes, or room on them.
    """
    counts = [len(catalog.voters_of(channel)) for channel in entry.channels]
    missing = sum(max(0, entry.replicas - count) for count in counts)
    nodes = catalog.placeable()
    if missing and len(nodes) < entry.replicas:
        names = ", ".join(sorted(map(node_name, nodes))) or "none"
        raise SchemaError(
            f"replicas={entry.replicas} need {entry.replicas} nodes, but {len(nodes)} may have "
            f"replicas ({names}); start more nodes or ask for fewer replicas"
        )
    held = Counter(node for placed in catalog.placements() for hosts in placed for node in hosts)
    # Each node has the channel of the metadata, too.
    room = sum(max(0, channels_max - 1 - held[node]) for node in nodes)
    if missing > room:
        raise SchemaError(
            f"replicas={entry.replicas} need {missing} more replicas, and the nodes have room for "
            f"{room} (storage.channels_max is {channels_max}); add nodes, drop tables, or raise "
            "LimitNOFILE (ulimit -n) and storage.channels_max of the nodes"
        )
    is_resizing = entry.is_resizing or any(count != entry.replicas for count in counts)
    return msgspec.structs.replace(entry, is_resizing=is_resizing)


def _edited_settings(settings: TableSettings, changes: Mapping[str, Any]) -> TableSettings:
    named = {
        name: value
        for name, value in changes.items()
        if name in SETTING_LIMITS or name == RESTORING
    }
    return msgspec.structs.replace(settings, **named)


def bounds_of(entry: TableEntry) -> Bounds:
    """How far behind a bounded read of the table may be if it does not say so itself."""
    return Bounds(entry.max_lag, entry.max_staleness_ms, entry.max_batches_behind)
