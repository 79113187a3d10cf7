"""Connections of HTTP from the moment at which they are accepted: counted, and TLS in time.

asyncio reports a connection with TLS when its handshake is done, and waits a minute for it: what
has not come so far would be bounded by nothing. So sockets are accepted here, count against
http.connections_max at once, cost no buffers before their first byte, and have their handshake
ended by a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio import sslproto
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from raftstore.config import KIB
from raftstore.http.connection import PROBE_CONNECTIONS, BoundedHttpProtocol, longest_idle, no_place
from raftstore.transport.accepting import Acceptor, FileReserve

logger = logging.getLogger("raftstore.http")

PORT: Final = "http"
TLS_BUFFER_BYTES: Final = 64 * KIB
"""Of each connection with TLS, kept as long as it lasts; asyncio's own is 256 KiB."""


class CountedState(ServerState):
    """uvicorn's state of a server, with the connections that are not ready yet."""

    def __init__(self) -> None:
        super().__init__()
        self.opening: dict[BoundedHttpProtocol, asyncio.Task[None]] = {}
        """In the order in which they were accepted."""


class HttpServer(uvicorn.Server):
    """uvicorn's server behind our own way to accept."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        files: FileReserve,
        *,
        handshake_s: float,
    ) -> None:
        super().__init__(config)
        self.server_state = self._state = CountedState()
        self._listener = listener
        self._files = files
        self._handshake_s = handshake_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        del sockets
        await self.lifespan.startup()
        opening = Opening(self.config, self._state, self.lifespan.state, self._handshake_s)
        acceptor = Acceptor(self._listener, self._files, PORT, opening.begin)
        self.servers = [_Accepting(acceptor, opening)]  # type: ignore[list-item]
        self.started = True


class _Accepting:
    """The listening side that uvicorn ends when it stops, in the shape of asyncio's server."""

    def __init__(self, acceptor: Acceptor, opening: Opening) -> None:
        self._acceptor = acceptor
        self._opening = opening

    def close(self) -> None:
        """Accept nothing more; what is not ready yet has asked for nothing."""
        self._acceptor.close()
        self._opening.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""


class Opening:
    """Connections between being accepted and being ready: their place, and their handshake."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: CountedState,
        app_state: dict[str, Any],
        handshake_s: float,
    ) -> None:
        self._config = config
        self._state = state
        self._app_state = app_state
        self._handshake_s = handshake_s
        self._connections_max = config.limit_concurrency
        self._loop = asyncio.get_running_loop()
        if config.ssl is not None:
            sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES

    def begin(self, accepted: socket.socket) -> None:
        """Give an accepted socket a place and make it ready, or close it."""
        if not self._has_place():
            logger.warning(str(no_place(self._connections_max)))
            accepted.close()
            return
        protocol = BoundedHttpProtocol(self._config, self._state, self._app_state, _loop=self._loop)
        task = self._loop.create_task(self._open(protocol, accepted))
        self._state.opening[protocol] = task
        task.add_done_callback(lambda _: self._ended(protocol, accepted))

    def cancel(self) -> None:
        """End all of them."""
        for task in self._state.opening.values():
            task.cancel()

    def _has_place(self) -> bool:
        """Whether there is a place, if need be that of the connection that has waited longest."""
        limit, opening = self._connections_max, self._state.opening
        if limit is None or len(self._state.connections) + len(opening) < limit:
            return True
        idle = longest_idle(self._state.connections)
        first = next(iter(opening), None)
        if first is not None and (idle is None or first.idle_since_s <= idle.idle_since_s):
            opening.pop(first).cancel()
            return True
        if idle is not None:
            idle.give_up_place()
            return True
        return len(self._state.connections) + len(opening) < limit + PROBE_CONNECTIONS

    async def _open(self, protocol: BoundedHttpProtocol, accepted: socket.socket) -> None:
        """Hand the socket to its protocol, behind TLS where that is on."""
        context = self._config.ssl
        if context is None:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
            return
        try:
            async with asyncio.timeout(self._handshake_s):
                await _readable(self._loop, accepted)
                await self._loop.connect_accepted_socket(
                    lambda: protocol,
                    accepted,
                    ssl=context,
                    ssl_handshake_timeout=self._handshake_s,
                    ssl_shutdown_timeout=self._handshake_s,
                )
        except (TimeoutError, OSError) as error:
            logger.debug("no TLS: %s", error)

    def _ended(self, protocol: BoundedHttpProtocol, accepted: socket.socket) -> None:
        """Count a connection as ready or closed, also when its task never got a turn."""
        self._state.opening.pop(protocol, None)
        if not protocol.is_made:
            accepted.close()


async def _readable(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
    """Wait for the first byte: asyncio's TLS takes its buffers when it is made."""
    ready = loop.create_future()
    loop.add_reader(accepted, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(accepted)
