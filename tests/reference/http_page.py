"""docs/http-api.md, made from the one table of routes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from raftstore.errors import RequestError
from raftstore.http.app import ROUTES
from raftstore.http.errors import ErrorBody, status_of
from raftstore.http.openapi import ERROR_TEXTS, parameters
from raftstore.http.roles import Role
from raftstore.http.routes import Route
from raftstore.rows import json_values
from tests.reference.fields import field_texts

HEAD = """
Every node serves this interface, by default at 127.0.0.1:4480, and forwards to a node that can
answer: a plain load balancer in front is enough. `GET /openapi.json` says the same to programs.

    raftstore dev
    curl -X PUT localhost:4480/v1/tables/orders/keys/1 -d '{"total": 9.5}'
    curl 'localhost:4480/v1/tables/orders/keys/1?max_lag=100'

## What holds everywhere

* Bodies are JSON. Unknown parameters and fields, and parameters given twice, are refused with 400.
* Durations have a unit: `500ms`, `2s`. `timeout` bounds the whole request: it is answered by then,
  successful or not; the default is `query.routing_timeout_ms`, the most `http.timeout_max_ms`.
  A body that has not come by then is 408, and nothing was done.
* A client that ends its side of the connection is taken for gone, and gets no answer any more:
  keep it open until the answer is there (`nc -N` does not).
* Every read says by whom it was served and how fresh that was, in its body and in the headers
  `X-Raftstore-Served-By`, `-Position`, `-Lag`, `-Age-Ms` and `-Staleness-Ms`; of several partitions
  the headers give the worst, `unknown` if one is not known.
* `ETag` is the row's version. `If-Match: <etag>` writes only if the row still is this version,
  `If-None-Match: *` only if there is none; a lost race is 412, nothing was written.
  `If-None-Match: <etag>` of a read gives 304 while the row is this version.
* A write that is answered with 504 and outcome `unknown` may have happened. A client that goes away
  does not take its write back.
* More than `query.concurrent_max` queries at once at one node are refused at once with 429; 429 and
  503 carry `Retry-After`.
* Beyond loopback the interface needs TLS and users, or `--insecure`.
* Web pages of other sites may write nothing: a request other than a read, whose `Origin` or
  `Sec-Fetch-Site` names another site than the node, is 403 unless `http.allowed_origins` has the
  page. Without users the `Host` must be an address, a name without a dot, the host of `http.listen`
  or `http.advertise`, or in `http.allowed_hosts`. Programs such as curl send no origin; a body may
  be said to be JSON or, as by `curl -d`, a form, and is JSON in any case; `text/plain` and
  `multipart` are 415.
* Logins that fail (HTTP Basic) are paused by source address and by user name, each time for longer:
  429 with `Retry-After`. Tokens and logins that the node remembers never wait.
* With users, `/readyz` and `/healthz` say to strangers only whether the node is ready; names of
  tables, in parameters or answers, need the role read.

## Keys and values
"""


def http_page(generated: str, found: Sequence[type[RequestError]]) -> str:
    """Every method of every path, with all parameters and fields."""
    lines = ["# HTTP", "", generated, *HEAD.strip("\n").split("\n"), ""]
    lines += _values()
    lines += ["", "## Errors", "", *_errors(found)]
    lines += ["", "## Paths"]
    shown: dict[str, Any] = {}
    for route in ROUTES:
        lines += _route(route, shown)
    lines += ["", "## Answers and bodies"]
    while waiting := [kind for name, kind in shown.items() if kind is not None]:
        for kind in waiting:
            shown[kind.__name__] = None
            lines += _struct(kind, shown)
    return "\n".join([*lines, ""])


def _values() -> Iterator[str]:
    """The table of the module that encodes them, as Markdown."""
    text, _, table = (inspect.getdoc(json_values) or "").partition("=====")
    yield " ".join(text.split())
    yield ""
    yield "In paths a key of one column is its plain text where its type is declared; where it is"
    yield 'not, a JSON scalar (`1`, `true`, `"1"` with quotes for text), a tagged object, or else'
    yield "the text itself. A key of several columns is a JSON list. All of it percent-encoded."
    yield ""
    yield "```text"
    yield from ("=====" + table).rstrip().split("\n")
    yield "```"


def _errors(found: Sequence[type[RequestError]]) -> Iterator[str]:
    yield " ".join((inspect.getdoc(ErrorBody) or "").split()) + " It has these fields:"
    yield ""
    yield from _fields(ErrorBody, {})
    yield ""
    yield "| status | meaning | codes |"
    yield "|---|---|---|"
    codes: dict[int, list[str]] = {400: ["bad_request"], 404: ["not_found"], 500: ["internal"]}
    codes[405] = ["method_not_allowed"]
    codes[408] = ["timeout"]
    for cls in found:
        status = status_of(cls.__new__(cls))
        codes.setdefault(status, []).append(cls.code)
    for status, text in ERROR_TEXTS.items():
        listed = ", ".join(f"`{code}`" for code in codes.get(status, ()))
        yield f"| {status} | {text} | {listed} |"


def _route(route: Route, shown: dict[str, Any]) -> Iterator[str]:
    path = re.sub(r":\w+\}", "}", route.path)
    yield ""
    yield f"### {route.method} {path}"
    yield ""
    yield route.summary
    role = "everybody" if route.role is None else f"role {route.role.value}"
    if route.role is Role.NODE:
        role = "another node, by its token"
    yield ""
    answer = _type(route.answer, shown)
    yield f"For {role}. Answers {', '.join(map(str, route.success))} with {answer}."
    if route.body is not None:
        yield f"Body: {_type(route.body, shown)}."
    yield ""
    yield "| parameter | in | type | meaning |"
    yield "|---|---|---|---|"
    for given in parameters(route):
        kind = _schema_text(given["schema"])
        yield f"| `{given['name']}` | {given['in']} | {kind} | {given['description']} |"


def _struct(kind: type[msgspec.Struct], shown: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"### {kind.__name__}"
    yield ""
    yield " ".join((inspect.getdoc(kind) or "").split())
    yield ""
    yield from _fields(kind, shown)


def _fields(kind: type[msgspec.Struct], shown: dict[str, Any]) -> Iterator[str]:
    texts = field_texts(kind)
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(kind):
        required = "" if field.required else " (may be left out)"
        text = " ".join(texts.get(field.name, "").split())
        yield f"| `{field.encode_name}` | {_type(field.type, shown)}{required} | {text} |"


def _type(kind: Any, shown: dict[str, Any]) -> str:
    """A type for readers; the structs in it are shown further below."""
    info = msgspec.inspect.type_info(kind)
    return _info_text(info, shown)


def _info_text(info: Any, shown: dict[str, Any]) -> str:
    match info:
        case msgspec.inspect.Metadata():
            return _info_text(info.type, shown)
        case msgspec.inspect.StructType():
            if info.cls is not ErrorBody:
                shown.setdefault(info.cls.__name__, info.cls)
            return f"`{info.cls.__name__}`"
        case msgspec.inspect.UnionType():
            return " or ".join(_info_text(part, shown) for part in info.types)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return f"list of {_info_text(info.item_type, shown)}"
        case msgspec.inspect.DictType():
            return f"object of {_info_text(info.value_type, shown)}"
        case msgspec.inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in sorted(info.values))
    names = {
        "StrType": "text",
        "IntType": "number",
        "FloatType": "number",
        "BoolType": "true or false",
        "NoneType": "null",
        "AnyType": "any JSON",
    }
    return names[type(info).__name__]


def _schema_text(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    names = {"string": "text", "integer": "number", "boolean": "true or false"}
    text = names[schema["type"]]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        text += f" from {low}" + ("" if high is None or high > 2**62 else f" to {high}")
    return text
