"""The route table as an OpenAPI 3.1 document."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from raftstore.http.errors import ErrorBody
from raftstore.http.roles import Role
from raftstore.http.routes import JSON, Route
from raftstore.version import VERSION

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_PATH_TEXTS: Final = {
    "table": "Name of the table.",
    "machine": "Name of the channel set.",
    "key": "The key as text, percent-encoded; several columns as a JSON list.",
    "guid": "As an acknowledgement or an error gave it.",
}
ERROR_TEXTS: Final = {
    400: "The request could not mean anything; the message says what is wrong.",
    401: "No credentials, or wrong ones.",
    403: "The role does not allow it, or a web page of another site asked.",
    404: "There is no such table or row.",
    405: "The path has other methods.",
    408: "The body did not come within the time of the request; nothing was done.",
    409: "The table exists with another definition, the write was reported as not applied, or some "
    "nodes are too old for it.",
    410: "The state behind the page token is gone; start again.",
    412: "The condition did not hold; nothing was written.",
    413: "The body, a key or a row is too large.",
    415: "The body is of a type that web pages may send anywhere.",
    429: "Too many queries at once, or logins that failed; try again after Retry-After.",
    500: "The node failed to answer; its log has the reason.",
    503: "No leader, no replica within the bound, or not ready; try again after Retry-After.",
    504: "The outcome of a write is unknown, or the time was up.",
}
_SCHEMES: Final = {
    "user": {
        "type": "http",
        "scheme": "basic",
        "description": "Name and password of http.users_file.",
    },
    "token": {"type": "http", "scheme": "bearer", "description": "A token of http.users_file."},
    "node": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of http.node_token_file.",
    },
}
_ALWAYS: Final = (400, 401, 403, 413, 415, 429, 500, 503, 504)
_SUCCESS_TEXTS: Final = {304: "The version is known already.", 404: "There is no such row."}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    kinds = [ErrorBody, *_kinds(routes)]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_kind = {_name(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "raftstore",
            "version": VERSION,
            "description": "Rows of replicated tables over HTTP; see docs/http-api.md.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def _kinds(routes: Sequence[Route]) -> Iterator[Any]:
    seen = {_name(ErrorBody)}
    for route in routes:
        for kind in (route.answer, route.body):
            if kind is not None and _name(kind) not in seen:
                seen.add(_name(kind))
                yield kind


def _name(kind: Any) -> str:
    return str(kind)


def path_names(route: Route) -> list[str]:
    """Return the names of the parameters in the route's path."""
    return _PARAMETER.findall(route.path)


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{re.sub('[^a-zA-Z0-9]+', '_', route.path)}",
        "summary": route.summary,
        "parameters": list(parameters(route)),
        "responses": _responses(route, schemas),
    }
    if route.role is not None:
        operation["description"] = f"Role: {route.role.value}."
        # The last one is none at all: what a node without users or a node token asks for.
        known = ("node",) if route.role is Role.NODE else ("user", "token")
        operation["security"] = [*({name: []} for name in known), {}]
    if route.body is not None:
        content = {JSON: {"schema": schemas[_name(route.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def parameters(route: Route) -> Iterator[dict[str, Any]]:
    """Return the parameters of a route, in path, query and headers."""
    for name in path_names(route):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_TEXTS[name],
            "schema": {"type": "string", "minLength": 1},
        }
    for field in msgspec.structs.fields(route.params):
        schema = _schema(field.type)
        yield {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "description": schema.pop("description", ""),
            "schema": schema,
        }
    for name, text in route.headers.items():
        yield {
            "name": name,
            "in": "header",
            "required": False,
            "description": text,
            "schema": {"type": "string"},
        }


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of a parameter; one that may be left out is never null."""
    if get_origin(kind) in (Union, types.UnionType):
        given = [part for part in get_args(kind) if part is not type(None)]
        if len(given) == 1:
            kind = given[0]
    (schema,), _ = msgspec.json.schema_components([kind])
    return dict(schema)


def _responses(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    answer = schemas[_name(route.answer)] if route.media == JSON else {"type": "string"}
    error = {"description": "", "content": {JSON: {"schema": schemas[_name(ErrorBody)]}}}
    responses: dict[str, Any] = {}
    statuses = {*_ALWAYS, *route.errors, *((429,) if route.is_query else ())}
    statuses |= {408} if route.body is not None else set()
    for status in sorted(statuses):
        responses[str(status)] = error | {"description": ERROR_TEXTS[status]}
    for status in route.success:
        text = _SUCCESS_TEXTS.get(status, route.summary)
        content = {} if status == 304 else {"content": {route.media: {"schema": answer}}}
        if str(status) in responses and status != 200:
            both = {"anyOf": [answer, schemas[_name(ErrorBody)]]}
            content = {"content": {JSON: {"schema": both}}}
            text = ERROR_TEXTS[status]
        elif status in ERROR_TEXTS:
            both = {"anyOf": [answer, schemas[_name(ErrorBody)]]}
            content = {"content": {JSON: {"schema": both}}}
        responses[str(status)] = {"description": text, **content}
    return responses
