"""The application on a real client of fake nodes; requests are ASGI calls, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from raftstore.aio import AsyncClient
from raftstore.client.settings import ClientSettings
from raftstore.config import HttpSettings, QuerySettings
from raftstore.errors import UnavailableError
from raftstore.http.app import build_app
from raftstore.http.auth import Guard
from raftstore.http.status_shape import KeptLayout
from raftstore.node.http_port import LiveFacts
from raftstore.protocol.message import Done, Request
from raftstore.protocol.requests import ClientAnswer
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import QUICK, play

JsonHeaders = Mapping[str, str]


@dataclass
class Reply:
    """One answer."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.content)

    @property
    def error(self) -> str:
        """The code of a refusal."""
        code: str = self.json["error_code"]
        return code


@dataclass
class FakeGateway:
    """A gateway whose own node answers what a test wants."""

    real: AsyncClient | None = None
    http: HttpSettings = field(default_factory=HttpSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    facts: LiveFacts = field(default_factory=lambda: LiveFacts(start=None))
    own: Callable[[Request], ClientAnswer] = lambda request: Done(request.request_id)
    asked: list[Request] = field(default_factory=list)
    now: int = 1_000_000

    def __post_init__(self) -> None:
        self.guard = Guard(self.http)
        self.layout = KeptLayout()

    async def client(self, within_s: float) -> AsyncClient:
        """The client, if there is one."""
        del within_s
        if self.real is None:
            raise UnavailableError("no cluster yet")
        return self.real

    async def ask_own_node(self, build: Callable[[int], Request]) -> ClientAnswer:
        """Let the test answer."""
        request = build(len(self.asked) + 1)
        self.asked.append(request)
        return self.own(request)

    def now_ms(self) -> int:
        """As the test says."""
        return self.now

    def wall_ms(self) -> int:
        """As the test says."""
        return self.now


class Http:
    """Sends requests to the application of one gateway."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.gateway = gateway
        self.app: Any = build_app(gateway)

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: JsonHeaders | None = None,
    ) -> Reply:
        """One request; ``body`` is JSON unless it is bytes."""
        content = b"" if body is None else body if isinstance(body, bytes) else _json(body)
        return await call(self.app, scope_of(method, target, headers or {}), content)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def scope_of(method: str, target: str, headers: JsonHeaders) -> dict[str, Any]:
    """An ASGI scope as uvicorn would make it."""
    raw_path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4480),
    }


async def call(app: Any, scope: dict[str, Any], body: bytes) -> Reply:
    """Run one request to its end."""
    sent: list[dict[str, Any]] = []
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Reply(sent[0]["status"], headers, content)


def play_http(
    test: Callable[[FakeCluster, Http], Awaitable[None]],
    *,
    partitions: int = 2,
    settings: ClientSettings = QUICK,
    gateway: FakeGateway | None = None,
) -> None:
    """Run a test with three nodes, a table "t", and the application."""

    async def run(cluster: FakeCluster, client: AsyncClient) -> None:
        used = gateway or FakeGateway()
        used.real = client
        await test(cluster, Http(used))

    play(run, settings, partitions)
