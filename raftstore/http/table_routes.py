"""Tables: list, look at, create, remove."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from raftstore.http.errors import bad_request
from raftstore.http.json_shapes import Ok, TableBody, TablesBody, table_body
from raftstore.http.queries import Count63, Duration, Timed, duration_ms
from raftstore.http.roles import Role
from raftstore.http.routes import Answer, Call, Route
from raftstore.types import DurabilityName


class NewTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/tables."""

    name: Annotated[
        str,
        Meta(
            description="1 to 128 letters (a to z, A to Z), digits, _, . and -; the first of them "
            "a letter or digit."
        ),
    ]
    key: Annotated[
        str | list[str], Meta(description="Name of the key column, or of several in order.")
    ]
    partitions: Annotated[int, Meta(ge=1, le=4096)] = 8
    replicas: Annotated[int, Meta(ge=1, le=255)] = 3
    schema: Annotated[
        Any, Meta(description="Spark's schema JSON, as an object or as text; none: any columns.")
    ] = None
    max_lag: (
        Annotated[Count63, Meta(description="Bound of bounded reads that name none, in rows.")]
        | None
    ) = None
    durability: Annotated[
        DurabilityName, Meta(description="When a replica counts a write as stored; fixed for ever.")
    ] = "fsync"
    if_not_exists: bool = False
    retention_bytes: (
        Annotated[
            Count63,
            Meta(description="Log of each partition that is kept; null: as each node is set."),
        ]
        | None
    ) = None
    retention_records: Annotated[Count63, Meta(description="The same in records.")] | None = None
    retention_age: (
        Annotated[
            Duration,
            Meta(description="Records of the log that are older go; 0s: none for their age."),
        ]
        | None
    ) = None
    ttl: (
        Annotated[Duration, Meta(description="Rows live so long that are written without a ttl.")]
        | None
    ) = None


class TableChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of PATCH: only what is to change; null removes a bound."""

    max_lag: Count63 | msgspec.UnsetType | None = msgspec.UNSET
    """Rows."""
    max_staleness: Duration | msgspec.UnsetType | None = msgspec.UNSET
    max_batches_behind: Count63 | msgspec.UnsetType | None = msgspec.UNSET
    """Micro-batches."""
    max_replica_lag: Count63 | msgspec.UnsetType | None = msgspec.UNSET
    """Rows; writes wait for a live replica that is further behind."""
    standby_reads: bool | msgspec.UnsetType = msgspec.UNSET
    """false: only the leader serves reads that name no bound or level themselves."""
    replicas: Annotated[int, Meta(ge=1, le=255)] | msgspec.UnsetType = msgspec.UNSET
    """Of each partition; they come and go one after the other, behind the answer."""
    retention_bytes: Count63 | msgspec.UnsetType | None = msgspec.UNSET
    """Log of each partition that is kept; null: as each node is set."""
    retention_records: Count63 | msgspec.UnsetType | None = msgspec.UNSET
    """The same in records."""
    retention_age: Duration | msgspec.UnsetType | None = msgspec.UNSET
    """Records of the log that are older go; 0s: none for their age."""
    ttl: Duration | msgspec.UnsetType | None = msgspec.UNSET
    """Rows live so long that are written without a ttl; null: for ever."""


async def tables(call: Call) -> Answer:
    """List the tables."""
    found = await (await call.client()).tables(timeout=call.left_s)
    return Answer(TablesBody([table_body(info) for info in found]))


async def table(call: Call) -> Answer:
    """Look at one table."""
    info = await (await call.client()).table_info(call.path["table"], timeout=call.left_s)
    return Answer(table_body(info))


async def create_table(call: Call) -> Answer:
    """Create a table; every channel has a leader when this is answered."""
    wanted: NewTable = call.body
    schema = wanted.schema
    if schema is not None and not isinstance(schema, str):
        schema = msgspec.json.encode(schema).decode()
    info = await (await call.client()).create_table(
        wanted.name,
        key=wanted.key,
        partitions=wanted.partitions,
        replicas=wanted.replicas,
        schema=schema,
        max_lag=wanted.max_lag,
        durability=wanted.durability,
        if_not_exists=wanted.if_not_exists,
        timeout=call.left_s,
        retention_bytes=wanted.retention_bytes,
        retention_records=wanted.retention_records,
        retention_age=_seconds("retention_age", wanted.retention_age),
        ttl=_seconds("ttl", wanted.ttl),
    )
    return Answer(table_body(info), HTTPStatus.CREATED)


async def edit_table(call: Call) -> Answer:
    """Change settings, the bounds of reads that name none, and the bound of replicas."""
    wanted: TableChanges = call.body
    changes: dict[str, Any] = {
        name: value
        for name in wanted.__struct_fields__
        if (value := getattr(wanted, name)) is not msgspec.UNSET
    }
    if not changes:
        names = ", ".join(wanted.__struct_fields__)
        raise bad_request(f"nothing is to be changed; give one of {names}")
    for name in ("max_staleness", "retention_age", "ttl"):
        if name in changes:
            changes[name] = _seconds(name, changes[name])
    info = await (await call.client()).alter_table(
        call.path["table"], timeout=call.left_s, **changes
    )
    return Answer(table_body(info))


def _seconds(name: str, given: str | None) -> float | None:
    return None if given is None else duration_ms(name, given) / 1000


async def drop_table(call: Call) -> Answer:
    """Remove a table with all its rows."""
    await (await call.client()).drop_table(call.path["table"], timeout=call.left_s)
    return Answer(Ok())


ROUTES: Final = (
    Route("GET", "/v1/tables", "All tables in name order.", tables, Timed, TablesBody),
    Route(
        "POST",
        "/v1/tables",
        "Create a table; every channel has a leader when this is answered.",
        create_table,
        Timed,
        TableBody,
        body=NewTable,
        success=(201,),
        errors=(409, 504),
        role=Role.ADMIN,
        is_write=True,
    ),
    Route(
        "GET",
        "/v1/tables/{table}",
        "One table: definition, placement, leaders.",
        table,
        Timed,
        TableBody,
        errors=(404,),
    ),
    Route(
        "PATCH",
        "/v1/tables/{table}",
        "Change settings, the bounds of reads that name none, and the bound of replicas.",
        edit_table,
        Timed,
        TableBody,
        body=TableChanges,
        errors=(404, 412, 504),
        role=Role.ADMIN,
        is_write=True,
    ),
    Route(
        "DELETE",
        "/v1/tables/{table}",
        "Remove a table with all its rows.",
        drop_table,
        Timed,
        Ok,
        errors=(404, 504),
        role=Role.ADMIN,
        is_write=True,
    ),
)
