"""A thread of the node with its own event loop that serves HTTP (never the engine's thread)."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError
from raftstore.runtime.http_port import HttpService, LiveFacts
from raftstore.serving.app import build_app
from raftstore.serving.auth import Guard
from raftstore.serving.gateway import NodeGateway
from raftstore.transport.endpoints import format_endpoint

logger = logging.getLogger("raftstore.http")

HEAD_TIMEOUT_S: Final = 10.0
"""A connection that has not sent a whole head of a request by then is closed."""
HEAD_BYTES_MAX: Final = 64 * 1024
KEEP_ALIVE_S: Final = 15
DRAIN_S: Final = 2
STOP_S: Final = 5.0
"""The thread is given up after this; the process ends with it."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with two limits that it lacks: time and size of a request's head."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection that says nothing is closed after a while."""
        # asyncio does it for sockets made with a protocol number only. Without it the body of an
        # answer waits some 40 ms for the acknowledgement of its head.
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins: its head must be whole in time."""
        self._head_bytes = 0
        self._wait_for_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Part of the path; a head has a limit."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; a head has a limit."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole; the body has the request's deadline."""
        self._stop_waiting()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError(f"the head of the request is longer than {HEAD_BYTES_MAX} bytes")

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpThread:
    """Implements ``HttpService``."""

    def __init__(self, settings: NodeSettings, listener: socket.socket, facts: LiveFacts) -> None:
        host, port = listener.getsockname()[:2]
        self.endpoint = settings.http.advertise or format_endpoint(host, port)
        self._settings = settings
        self._listener = listener
        self._facts = facts
        self._server: uvicorn.Server | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raftstore-http", daemon=True)

    def start(self) -> None:
        """Start the thread; the listener is its own from now on."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Accept nothing more, finish what is under way within two seconds, end the thread."""
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            logger.exception("http has ended")
        finally:
            self._ready.set()
            self._listener.close()

    async def _serve(self) -> None:
        http = self._settings.http
        gateway = NodeGateway(self._settings, self._facts)
        config = uvicorn.Config(
            _asgi(build_app(gateway)),
            http=BoundedHttpProtocol,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=http.connections_max,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_certfile=http.tls_cert or None,
            ssl_keyfile=http.tls_key or None,
        )
        self._server = uvicorn.Server(config)
        gateway.start()
        self._ready.set()
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            await gateway.close()


def _asgi(app: Any) -> Callable[..., Any]:
    return app  # type: ignore[no-any-return]


def check_http(settings: NodeSettings) -> None:
    """Raise ConfigError for files of the HTTP interface that cannot be used."""
    http = settings.http
    Guard(http)
    if http.tls_cert:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(http.tls_cert, http.tls_key)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"http.tls_cert {http.tls_cert} and http.tls_key {http.tls_key} cannot be used: "
                f"{error}"
            ) from error


def start_http(settings: NodeSettings, listener: socket.socket, facts: LiveFacts) -> HttpService:
    """Serve HTTP on a listening socket in a thread of its own; returns at once."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    thread = HttpThread(settings, listener, facts)
    thread.start()
    return thread
