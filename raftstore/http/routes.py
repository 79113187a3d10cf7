"""The one table of everything that is served: routes, the OpenAPI document and the page of docs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request

from raftstore.client.asyncio_client import AsyncClient
from raftstore.http.gateway import Gateway
from raftstore.http.roles import Role

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read and checked."""

    gateway: Gateway
    request: Request
    path: Mapping[str, str]
    params: Any
    """The route's parameter struct."""
    body: Any
    """The route's body, decoded."""
    deadline_s: float
    """On the clock of the running loop."""
    timer: asyncio.Timeout
    """Ends the request a moment after its deadline."""

    @property
    def left_s(self) -> float:
        """Seconds that are left; what is asked at the very end is asked for a moment still."""
        return max(0.001, self.deadline_s - asyncio.get_running_loop().time())

    async def check_role(self, role: Role | None) -> None:
        """Raise AuthenticationError or ForbiddenError unless the caller may have this role."""
        client = self.request.client
        authorization = self.request.headers.get("authorization")
        await self.gateway.guard.check(authorization, role, client.host if client else "")

    async def client(self) -> AsyncClient:
        """Return the node's client; a node that has just started may have to find its cluster."""
        return await self.gateway.client(self.left_s)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a handler; its body is a struct or JSON-shaped, or bytes of ``media``."""

    body: Any
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    media: str = JSON


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. ``errors`` are statuses besides those that every route may have."""

    method: str
    path: str
    summary: str
    handler: Handler
    params: type
    answer: Any
    body: Any = None
    success: tuple[int, ...] = (200,)
    errors: tuple[int, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers with their meaning."""
    role: Role | None = Role.READ
    """None: for everybody."""
    is_query: bool = False
    """Counts against query.concurrent_max."""
    is_write: bool = False
    """When its time is up, the outcome is unknown."""
    media: str = JSON
    is_hot: bool = False
    """A GET that is looked for before all others."""

    @property
    def name(self) -> str:
        """The operation's id: the handler's name."""
        return f"{self.handler.__name__}_{self.method.lower()}"
