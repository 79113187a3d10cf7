"""One request from socket to answer: path, role, limit, parameters, body, deadline, errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from raftstore.errors import OperationInDoubtError, OverloadedError, QueryError, RequestTimeoutError
from raftstore.http.cluster_routes import ROUTES as CLUSTER_ROUTES
from raftstore.http.errors import HttpError, bad_request, describe
from raftstore.http.gateway import Gateway
from raftstore.http.insight_routes import ROUTES as INSIGHT_ROUTES
from raftstore.http.machine_routes import ROUTES as MACHINE_ROUTES
from raftstore.http.metrics import ROUTES as METRICS_ROUTES
from raftstore.http.openapi import document
from raftstore.http.origins import Origins
from raftstore.http.queries import Timed, duration_ms, parse_parameters
from raftstore.http.ready import ROUTES as READY_ROUTES
from raftstore.http.rebalance_routes import ROUTES as REBALANCE_ROUTES
from raftstore.http.routes import JSON, Answer, Call, Route
from raftstore.http.row_routes import ROUTES as ROW_ROUTES
from raftstore.http.table_routes import ROUTES as TABLE_ROUTES
from raftstore.http.wrong_values import wrong_body
from raftstore.rows.json_levels import JSON_LEVELS_MAX, is_too_deep
from raftstore.rows.key_text import JSON_ERRORS

logger = logging.getLogger("raftstore.http")

GRACE_S: Final = 0.05
"""The client's own deadline comes first: its error says more than ours."""


async def openapi(call: Call) -> Answer:
    """Describe everything that is served."""
    del call
    return Answer(document(ROUTES))


ROUTES: Final[tuple[Route, ...]] = (
    *ROW_ROUTES,
    *TABLE_ROUTES,
    *INSIGHT_ROUTES,
    *MACHINE_ROUTES,
    *CLUSTER_ROUTES,
    *REBALANCE_ROUTES,
    *READY_ROUTES,
    *METRICS_ROUTES,
    Route(
        "GET",
        "/openapi.json",
        "This interface as an OpenAPI 3.1 document.",
        openapi,
        Timed,
        dict[str, Any],
        role=None,
    ),
)


class _KeyConvertor(Convertor[str]):
    """The rest of the path, whatever it contains, line ends included; empty, too."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("key", _KeyConvertor())


def build_app(gateway: Gateway, routes: Sequence[Route] = ROUTES) -> ASGIApp:
    """Return the ASGI application.

    Starlette finds a route by trying them in turn, within middlewares of its own: a third of the
    time of a read of one key. What is asked most is therefore looked at before.
    """
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    server = _Server(gateway)
    app = Starlette(
        routes=[
            StarletteRoute(path, server.endpoint(methods), methods=list(methods))
            for path, methods in by_path.items()
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    # A path with "/" behind it, or without, may be another one: that of the empty key, or of the
    # whole table. Nobody's write is sent there.
    app.router.redirect_slashes = False
    hot = [(route, *compile_path(route.path)[::2]) for route in routes if route.is_hot]

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            for route, pattern, convertors in hot:
                found = pattern.match(scope["path"])
                if found is not None:
                    named = found.groupdict().items()
                    scope["path_params"] = {
                        name: convertors[name].convert(value) for name, value in named
                    }
                    response = await server.serve(route, Request(scope, receive, send))
                    await response(scope, receive, send)
                    return
        await app(scope, receive, send)

    return serve


class _Server:
    """Runs the handlers of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._origins = Origins(gateway.http, is_open=gateway.guard.is_open)
        self._queries = 0
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}

    def endpoint(self, methods: dict[str, Route]) -> Any:
        """Return Starlette's endpoint of one path."""

        async def serve(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await self.serve(methods[method], request)

        return serve

    async def serve(self, route: Route, request: Request) -> Response:
        """Answer one request of a route; every error becomes an answer."""
        try:
            return _response(await self._within_time(route, request))
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it
        except Exception as error:  # noqa: BLE001 - every error becomes an answer
            return _error_response(error)

    async def _admitted(self, route: Route, call: Call) -> Answer:
        """Go on unless too many queries are under way: of one too many no body is read."""
        if not route.is_query:
            return await self._read_and_handled(route, call)
        limit = self._gateway.query.concurrent_max
        if self._queries >= limit:
            raise OverloadedError(
                f"{self._queries} queries are under way at this node, the limit is {limit} "
                "(query.concurrent_max); retry later, or ask another node"
            )
        self._queries += 1
        try:
            return await self._read_and_handled(route, call)
        finally:
            self._queries -= 1

    async def _within_time(self, route: Route, request: Request) -> Answer:
        path = _path(request)
        params: Any = parse_parameters(route.params, request.query_params.multi_items())
        now_s = asyncio.get_running_loop().time()
        timeout_s = self._timeout_s(params)
        timer = asyncio.timeout(timeout_s + GRACE_S)
        call = Call(self._gateway, request, path, params, None, now_s + timeout_s, timer)
        try:
            async with timer:
                self._origins.check(route, request)
                await call.check_role(route.role)
                return await self._admitted(route, call)
        except TimeoutError as error:
            text = f"{route.method} {request.url.path}: no answer within its time"
            if route.is_write:
                raise OperationInDoubtError(f"{text}; it may have been done") from error
            raise QueryError(f"{text}; give more time") from error

    async def _read_and_handled(self, route: Route, call: Call) -> Answer:
        if route.body is None:
            return await route.handler(call)
        try:
            body = await self._body(route, call.request)
        except asyncio.CancelledError:
            if not call.timer.expired():
                raise
            # Nothing was begun: this is no write in doubt.
            raise HttpError(
                HTTPStatus.REQUEST_TIMEOUT,
                RequestTimeoutError.code,
                f"{route.method} {call.request.url.path}: the body did not come within the time "
                "of the request, so nothing was done; send it faster, or give more time (timeout)",
                {"Connection": "close"},
            ) from None
        return await route.handler(self._with_body(call, body))

    def _with_body(self, call: Call, body: Any) -> Call:
        """Return the call with its body, whose own time counts from when the request came."""
        if not isinstance(body, Timed) or body.timeout is None:
            return replace(call, body=body)
        added_s = self._timeout_s(body) - self._timeout_s(call.params)
        call = replace(call, body=body, deadline_s=call.deadline_s + added_s)
        call.timer.reschedule(call.deadline_s + GRACE_S)
        return call

    def _timeout_s(self, given: Any) -> float:
        """Return the time of a request: what it asks for, within what the node allows."""
        http = self._gateway.http
        if not isinstance(given, Timed) or given.timeout is None:
            return min(self._gateway.query.routing_timeout_ms, http.timeout_max_ms) / 1000
        asked_ms = duration_ms("timeout", given.timeout)
        if not 1 <= asked_ms <= http.timeout_max_ms:
            raise bad_request(
                f"the parameter 'timeout' is {given.timeout!r:.40}; allowed is 1ms to "
                f"{http.timeout_max_ms}ms (http.timeout_max)"
            )
        return asked_ms / 1000

    async def _body(self, route: Route, request: Request) -> Any:
        limit = self._gateway.http.body_bytes_max
        read = bytearray()
        async for part in request.stream():
            read += part
            if len(read) > limit:
                raise HttpError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    "payload_too_large",
                    f"the body is longer than {limit} bytes (http.body_bytes_max); send less",
                    {"Connection": "close"},
                )
        try:
            body = self._decoder(route).decode(bytes(read))
        except JSON_ERRORS as error:
            raise wrong_body(route.path, route.body, bytes(read), error) from error
        if is_too_deep(bytes(read)):
            raise bad_request(
                f"the body has more than {JSON_LEVELS_MAX} lists and objects within each other; "
                "keep what is deeper as one text or binary value"
            )
        return body

    def _decoder(self, route: Route) -> msgspec.json.Decoder[Any]:
        name = f"{route.method} {route.path}"
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = msgspec.json.Decoder(route.body)
        return decoder


def _path(request: Request) -> dict[str, str]:
    """Return the path's parameters; what is no UTF-8 would not come back as it was sent."""
    scope = request.scope
    for what, raw in (("path", scope.get("raw_path")), ("query string", scope["query_string"])):
        try:
            unquote_to_bytes(raw or b"").decode()
        except UnicodeDecodeError as error:
            raise bad_request(f"the {what} is no UTF-8 text: {error}") from error
    return dict(request.path_params)


def _response(answer: Answer) -> Response:
    headers = dict(answer.headers)
    if answer.status is HTTPStatus.NOT_MODIFIED:
        return Response(status_code=answer.status, headers=headers)
    content = answer.body
    if not isinstance(content, bytes):
        content = msgspec.json.encode(content)
    return Response(content, answer.status, headers, answer.media)


def _error_response(error: Exception) -> Response:
    status, body, headers = describe(error)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("request failed", exc_info=error)
    return Response(msgspec.json.encode(body), status, headers, JSON)


async def _refused(request: Request, error: Exception) -> Response:
    """Answer what Starlette refuses by itself: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    texts = {
        HTTPStatus.NOT_FOUND: "there is nothing at this path; see /openapi.json",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is no method of this path; "
        f"it has {(error.headers or {}).get('Allow', 'none')}",
    }
    code = "not_found" if status is HTTPStatus.NOT_FOUND else "method_not_allowed"
    text = texts.get(status, str(error.detail))
    return _error_response(HttpError(status, code, text, error.headers))


async def _failed(request: Request, error: Exception) -> Response:
    del request
    return _error_response(error)
