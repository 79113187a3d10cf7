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

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError
from raftstore.http.accepting import HttpServer
from raftstore.http.app import build_app
from raftstore.http.auth import Guard
from raftstore.http.connection import BoundedHttpProtocol
from raftstore.http.gateway import NodeGateway
from raftstore.node.http_port import HttpService, LiveFacts
from raftstore.transport.endpoints import format_endpoint

logger = logging.getLogger("raftstore.http")

KEEP_ALIVE_S: Final = 15
DRAIN_S: Final = 2
STOP_S: Final = 5.0
"""The thread is given up after this; the process ends with it."""


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
        self._server = HttpServer(
            config,
            self._listener,
            self._facts.files,
            handshake_s=http.tls_handshake_ms / 1000,
        )
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
