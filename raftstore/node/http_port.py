"""Between a node and its HTTP interface: facts one way, start and stop the other.

The node knows no HTTP: its composer (``raftstore.cli.node``) hands over a ``StartHttp``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError
from raftstore.transport.accepting import FileReserve
from raftstore.transport.endpoints import (
    bind_listener,
    format_endpoint,
    start_listening,
)


@dataclass(frozen=True, slots=True)
class StartPhase:
    """The phase of a node that does not serve yet."""

    name: str
    """starting, disk_full, reading_log, opening_tables, opening_channels, joining or founding."""
    text: str
    """A sentence for people: what it does, and what there is to do."""
    percent: int | None = None
    """How much of the phase is done; None: not known."""
    left_s: int | None = None
    """Seconds that the rest of it will take, by what it took so far; None: not known."""


@dataclass(slots=True)
class LiveFacts:
    """Written by the node's main loop, read by the HTTP thread: single values, so no lock.

    ``turned_ms`` is when the main loop last turned (monotonic), for /livez and nothing else.
    """

    endpoint: str = ""
    """The node's own binary endpoint, where this machine reaches it."""
    turned_ms: int = 0
    node: str = ""
    """The node's id; empty until it belongs to a cluster (S0.7)."""
    cluster_id: bytes = b""
    start: StartPhase | None = StartPhase("starting", "the node is starting; retry later")
    """None: it has started."""
    files: FileReserve = field(default_factory=lambda: FileReserve.of_process(0))

    def turned(self, now_ms: int) -> None:
        """The main loop turned."""
        self.turned_ms = now_ms

    def belongs_to(self, node: str, cluster_id: bytes) -> None:
        """The node was born; its id is written last, since it shows that the rest is known."""
        self.cluster_id = cluster_id
        self.start = None
        self.node = node


class HttpService(Protocol):
    """A running HTTP interface."""

    endpoint: str
    """host:port it listens on."""

    def stop(self) -> None:
        """Accept nothing more, finish what is under way within two seconds, end the thread."""


StartHttp = Callable[[NodeSettings, socket.socket, LiveFacts], HttpService]
"""Starts serving on a listening socket; returns at once."""


class HttpPort:
    """The HTTP interface in the life of a node: bound with the node's port, ended before it."""

    def __init__(
        self, settings: NodeSettings, start: StartHttp | None, files: FileReserve | None = None
    ) -> None:
        self._settings = settings
        self._start = start if settings.http.listen else None
        self._listener: socket.socket | None = None
        self._service: HttpService | None = None
        self.facts = LiveFacts() if files is None else LiveFacts(files=files)
        self.endpoint = ""
        """The address to advertise to others; empty: there is none."""

    def bind(self) -> None:
        """Take the port; ConfigError when it is taken or reachable without protection."""
        if self._start is None:
            return
        http = self._settings.http
        is_protected = bool(http.tls_cert and http.users_file)
        try:
            self._listener = bind_listener(
                http.listen, insecure=self._settings.insecure or is_protected
            )
            start_listening(self._listener, http.listen)
        except ConfigError as error:
            text = str(error).replace("--listen", "--http")
            raise ConfigError(f"http: {text}") from error

    def start(self, host: str, port: int) -> None:
        """Serve; the node's own port is at ``host:port``."""
        if self._start is None or self._listener is None:
            return
        self.facts.endpoint = format_endpoint(_own_host(host), port)
        self._service = self._start(self._settings, self._listener, self.facts)
        self.endpoint = self._service.endpoint

    def stop(self) -> None:
        """End serving, or give the port back; once more is fine. Takes up to some seconds."""
        service, self._service = self._service, None
        listener, self._listener = self._listener, None
        if service is not None:
            service.stop()
        elif listener is not None:
            listener.close()


def _own_host(host: str) -> str:
    """Where this machine reaches a socket that listens everywhere."""
    address = ip_address(host)
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
