"""Rows by key: read, write, remove, many at once, ranges, and POST /query."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import UNSET

from raftstore.client.position import Position
from raftstore.errors import SchemaError
from raftstore.http.errors import bad_request
from raftstore.http.json_shapes import (
    CountAnswer,
    RowAnswer,
    RowsAnswer,
    Written,
    provenance_headers,
    row_answer,
    served_by,
    written,
)
from raftstore.http.queries import (
    MultiGet,
    QueryBody,
    RangeParams,
    Reading,
    ScanBody,
    ScanParams,
    Timed,
    Writing,
    parse_statement,
    reading_of,
)
from raftstore.http.roles import Role
from raftstore.http.routes import Answer, Call, Route
from raftstore.rows.key_text import JsonRows

KEY_PATH: Final = "/v1/tables/{table}/keys/{key:key}"
_IF_MATCH: Final = {
    "If-Match": "The row's ETag: write only if the row still is this version.",
    "If-None-Match": "Only *: write only if there is no row with this key.",
}


async def rows_of(call: Call, table: str) -> JsonRows:
    """Return the translator of a table's rows; UnknownTableError if there is no such table."""
    info = await (await call.client()).table(table).definition(timeout=call.left_s)
    return _translator(info.key_columns, info.schema_json)


@lru_cache(maxsize=256)
def _translator(key_columns: tuple[str, ...], schema_json: str) -> JsonRows:
    return JsonRows(key_columns, schema_json)


# --- one row -------------------------------------------------------------------------------------


async def row(call: Call) -> Answer:
    """Read one row."""
    rows = await rows_of(call, call.path["table"])
    key = rows.key_from_text(call.path["key"])
    options = call.params.options(call.left_s)
    result = await (await call.client()).table(call.path["table"]).get_result(key, **options)
    headers = provenance_headers([result], result.applied_position)
    if result.position is not None:
        headers["ETag"] = f'"{result.position}"'
        if _is_known(call, result.position):
            return Answer(None, HTTPStatus.NOT_MODIFIED, headers)
    body = row_answer(result, _shown(rows, result.value))
    return Answer(body, HTTPStatus.OK if body.found else HTTPStatus.NOT_FOUND, headers)


def _is_known(call: Call, version: Position) -> bool:
    """If-None-Match of a read: the caller has this version already."""
    given = call.request.headers.get("if-none-match")
    if given is None:
        return False
    if given.strip() == "*":
        return True
    for tag in given.split(","):
        try:
            if Position.parse(tag.strip().removeprefix("W/").strip('"')) == version:
                return True
        except SchemaError:
            continue  # a tag of another form matches nothing
    return False


async def put_row(call: Call) -> Answer:
    """Insert or replace one row."""
    rows = await rows_of(call, call.path["table"])
    key = rows.key_from_text(call.path["key"])
    if not isinstance(call.body, dict):
        raise bad_request("the body is no JSON object; a row is an object of its columns")
    values = rows.row_from_json(call.body)
    columns = _key_columns(rows, key)
    encoded = rows.encoded_key(columns)
    for name, value in columns.items():
        # Encoded, since 1 is 1.0 in a column of doubles, and JavaScript writes no other.
        if name in values and rows.encoded_key(columns | {name: values[name]}) != encoded:
            raise SchemaError(
                f"column {name!r} is {values[name]!r:.60} in the body and {value!r:.60} in the "
                "path; leave the key out of the body"
            )
        values[name] = value
    if_absent, if_position = _conditions(call)
    table = (await call.client()).table(call.path["table"])
    ack = await table.put(
        values,
        if_absent=if_absent,
        if_position=if_position,
        ttl=call.params.ttl_s,
        timeout=call.left_s,
    )
    headers = {"ETag": f'"{ack.position}"', "X-Raftstore-Position": str(ack.position)}
    return Answer(written(ack), headers=headers)


async def delete_row(call: Call) -> Answer:
    """Remove one row; removing one that is not there is no error."""
    rows = await rows_of(call, call.path["table"])
    key = rows.key_from_text(call.path["key"])
    if_absent, if_position = _conditions(call)
    if if_absent:
        raise bad_request("If-None-Match has no meaning when a row is removed; use If-Match")
    ack = await (
        (await call.client())
        .table(call.path["table"])
        .delete(key, if_position=if_position, timeout=call.left_s)
    )
    return Answer(written(ack), headers={"X-Raftstore-Position": str(ack.position)})


def _key_columns(rows: JsonRows, key: Any) -> dict[str, Any]:
    if isinstance(key, Mapping):
        return dict(key)
    values = key if len(rows.key_columns) > 1 else (key,)
    return dict(zip(rows.key_columns, values, strict=True))


def _conditions(call: Call) -> tuple[bool, str | None]:
    """Read If-Match and If-None-Match of a write: (only if absent, only at this version)."""
    match = call.request.headers.getlist("if-match")
    none_match = call.request.headers.getlist("if-none-match")
    if len(match) + len(none_match) > 1:
        raise bad_request("give one of If-Match and If-None-Match, once")
    if none_match:
        if none_match[0].strip() != "*":
            raise bad_request("If-None-Match of a write takes only *; use If-Match for a version")
        return True, None
    if not match:
        return False, None
    tag = match[0].strip()
    if len(tag) < 2 or not (tag.startswith('"') and tag.endswith('"')) or "," in tag:
        raise bad_request(
            f"If-Match is {tag!r:.60}; give one ETag with its quotes, as a read of the row gave it"
        )
    return False, tag[1:-1]


# --- many rows -----------------------------------------------------------------------------------


async def mget(call: Call) -> Answer:
    """Read many rows, each partition once."""
    rows = await rows_of(call, call.path["table"])
    keys = [rows.key_from_json(key) for key in call.body.keys]
    return await _many(call, call.path["table"], rows, keys, call.body)


async def _many(
    call: Call, table: str, rows: JsonRows, keys: list[Any], reading: Reading
) -> Answer:
    options = reading.options(call.left_s)
    results = await (await call.client()).table(table).get_many_results(keys, **options)
    # Rows of one partition that do not fit into one answer may come from two replicas, of which
    # either may be behind: a read that goes on from the position must not go back behind any row.
    states = {(result.partition, result.node, result.applied_seq): result for result in results}
    position = Position()
    for result in states.values():
        position |= result.applied_position
    body = RowsAnswer(
        rows=[_shown(rows, result.value) for result in results],
        position=str(position),
        served=[served_by(states[state], state[0]) for state in sorted(states)],
    )
    return Answer(body, headers=provenance_headers(tuple(states.values()), position))


async def scan_body(call: Call) -> Answer:
    """Read a range or prefix; keys as JSON."""
    rows = await rows_of(call, call.path["table"])
    body: ScanBody = call.body
    prefix = body.prefix if isinstance(body.prefix, str) else _bound(rows, body.prefix)
    bounds = {
        "start": _bound(rows, body.start),
        "stop": _bound(rows, body.stop),
        "prefix": prefix,
    }
    return await _scan(call, call.path["table"], rows, bounds, body)


async def scan(call: Call) -> Answer:
    """Read a range or prefix; keys as text."""
    rows = await rows_of(call, call.path["table"])
    return await _scan(call, call.path["table"], rows, _bounds(rows, call.params), call.params)


async def count(call: Call) -> Answer:
    """Count the rows of a range."""
    table: str = call.path["table"]
    rows = await rows_of(call, table)
    options = call.params.options(call.left_s)
    found = await (await call.client()).table(table).count(**_bounds(rows, call.params), **options)
    body = CountAnswer(
        rows=found.rows,
        position=str(found.position),
        served=[served_by(part, part.partition) for part in found.served],
    )
    return Answer(body, headers=provenance_headers(found.served, found.position))


def _bounds(rows: JsonRows, params: RangeParams) -> dict[str, Any]:
    prefix: Any = params.prefix
    if prefix is not None and prefix.startswith("["):
        prefix = rows.bound_from_text(prefix)
    return {
        "start": None if params.start is None else rows.bound_from_text(params.start),
        "stop": None if params.stop is None else rows.bound_from_text(params.stop),
        "prefix": prefix,
    }


def _bound(rows: JsonRows, given: Any) -> Any:
    return None if given is None else rows.bound_from_json(given)


async def _scan(
    call: Call,
    table: str,
    rows: JsonRows,
    bounds: Mapping[str, Any],
    page: ScanBody | ScanParams,
) -> Answer:
    options = page.options(call.left_s)
    found = await (
        (await call.client())
        .table(table)
        .page(**bounds, limit=page.limit, token=page.token, keys_only=page.keys_only, **options)
    )
    body = RowsAnswer(
        rows=[_shown(rows, row) for row in found.rows],
        position=str(found.position),
        served=[served_by(part, part.partition) for part in found.served],
        next=found.next_token,
    )
    return Answer(body, headers=provenance_headers(found.served, found.position))


def _shown(rows: JsonRows, row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else rows.row_to_json(row)


# --- POST /query ---------------------------------------------------------------------------------


async def query(call: Call) -> Answer:
    """Read by key, keys, prefix or range; or by the one statement (BLOG-23)."""
    body: QueryBody = call.body
    if body.ksql is not None:
        table, text = parse_statement(body.ksql)
        _check_given(body, "ksql", "streamsProperties")
        rows = await rows_of(call, table)
        reading = reading_of(body.streamsProperties, body.timeout)
        return await _many(call, table, rows, [rows.key_from_text(text)], reading)
    if body.table is None:
        raise bad_request("table is missing; give table and key, or ksql")
    asked = [
        name
        for name, is_given in (
            ("key", body.key is not UNSET),
            ("keys", body.keys is not None),
            ("prefix", body.prefix is not UNSET),
            ("range", body.range is not None),
        )
        if is_given
    ]
    if len(asked) != 1:
        raise bad_request(
            f"give exactly one of key, keys, prefix and range, not {', '.join(asked) or 'none'}"
        )
    pages = ("limit", "token") if asked[0] in ("prefix", "range") else ()
    _check_given(body, "table", asked[0], "properties", *pages)
    rows = await rows_of(call, body.table)
    reading = reading_of(body.properties, body.timeout)
    if body.keys is not None or body.key is not UNSET:
        given = [body.key] if body.keys is None else body.keys
        keys = [rows.key_from_json(key) for key in given]
        return await _many(call, body.table, rows, keys, reading)
    found = body.range
    limit = {} if body.limit is UNSET else {"limit": body.limit}
    page = msgspec.convert({**msgspec.to_builtins(reading), **limit, "token": body.token}, ScanBody)
    prefix = None if body.prefix is UNSET else body.prefix
    bounds = {
        "start": None if found is None else _bound(rows, found.start),
        "stop": None if found is None else _bound(rows, found.stop),
        "prefix": prefix if isinstance(prefix, str) else _bound(rows, prefix),
    }
    return await _scan(call, body.table, rows, bounds, page)


def _check_given(body: QueryBody, *used: str) -> None:
    """Refuse fields that have no meaning beside the others, rather than ignore them."""
    for name in QueryBody.__struct_fields__:
        if name in (*used, "timeout") or getattr(body, name) in (None, UNSET, {}):
            continue
        raise bad_request(f"{name} has no meaning beside {used[0]}; there are {', '.join(used)}")


ROUTES: Final = (
    Route(
        "GET",
        KEY_PATH,
        "Read one row. 404 with found=false when there is none; 304 when If-None-Match names its "
        "version.",
        row,
        Reading,
        RowAnswer,
        success=(200, 304, 404),
        headers={"If-None-Match": "ETag of a version that is known already."},
        is_query=True,
        is_hot=True,
    ),
    Route(
        "PUT",
        KEY_PATH,
        "Insert or replace one row; answered when a quorum has it durably.",
        put_row,
        Writing,
        Written,
        body=dict[str, Any],
        errors=(404, 409, 412, 413, 429, 504),
        headers=_IF_MATCH,
        role=Role.WRITE,
        is_write=True,
    ),
    Route(
        "DELETE",
        KEY_PATH,
        "Remove one row; removing one that is not there is no error.",
        delete_row,
        Timed,
        Written,
        errors=(404, 409, 412, 429, 504),
        headers={"If-Match": _IF_MATCH["If-Match"]},
        role=Role.WRITE,
        is_write=True,
    ),
    Route(
        "POST",
        "/v1/tables/{table}:mget",
        "Read many rows by key, each partition at one position. 413 when the rows take more than "
        "16 MiB: ask for fewer keys at a time.",
        mget,
        Timed,
        RowsAnswer,
        body=MultiGet,
        errors=(404,),
        is_query=True,
    ),
    Route(
        "GET",
        "/v1/tables/{table}:scan",
        "Read rows in key order: start <= key < stop, or by prefix. A page ends with limit rows or "
        "some 16 MiB of them; as long as there is a next, others follow.",
        scan,
        ScanParams,
        RowsAnswer,
        errors=(404, 410),
        is_query=True,
    ),
    Route(
        "POST",
        "/v1/tables/{table}:scan",
        "The same with keys as JSON.",
        scan_body,
        Timed,
        RowsAnswer,
        body=ScanBody,
        errors=(404, 410),
        is_query=True,
    ),
    Route(
        "GET",
        "/v1/tables/{table}:count",
        "Count the rows of a range, of the whole table without one.",
        count,
        RangeParams,
        CountAnswer,
        errors=(404,),
        is_query=True,
    ),
    Route(
        "POST",
        "/query",
        "A pull query: table with key, keys, prefix or range; or SELECT * FROM t WHERE ROWKEY='k';",
        query,
        Timed,
        RowsAnswer,
        body=QueryBody,
        errors=(404, 410),
        is_query=True,
    ),
)
