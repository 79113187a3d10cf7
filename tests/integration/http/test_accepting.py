"""Connections that are not ready yet: counted, ended in time, and never with the last files."""

from __future__ import annotations

import gc
import http.client
import logging
import select
import socket
import ssl
from asyncio import sslproto
from contextlib import ExitStack
from typing import Any

import pytest

from raftstore.node.http_port import HttpPort
from raftstore.transport.accepting import FileReserve
from tests.integration.http.test_connection import opened
from tests.integration.http.test_server import TLS, address, ask, serving

SECURE: dict[str, Any] = {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}


def secure(port: HttpPort) -> http.client.HTTPSConnection:
    """A client that trusts the certificate."""
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    return http.client.HTTPSConnection(*address(port), timeout=10, context=context)


def is_open(made: socket.socket) -> bool:
    """Whether the server has not ended it."""
    made.setblocking(False)
    try:
        return made.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def wait_until_left(silent: list[socket.socket], count: int) -> None:
    """Wait until the server has ended all but ``count`` of them."""
    left = silent
    while len(left) > count:
        ended, _, _ = select.select(left, [], [], 10)
        assert ended, f"{len(left)} are open"
        left = [each for each in left if each not in ended or is_open(each)]


def test_silent_connections_before_tls_are_counted_and_keep_nobody_out() -> None:
    """Hundreds of them, who need no credentials, took a node's files and its memory."""
    patient = {"connections_max": 8, "tls_handshake_ms": 60_000}
    with serving(**patient, **SECURE) as port, ExitStack() as stack:
        silent = [stack.enter_context(opened(address(port))) for _ in range(300)]
        wait_until_left(silent, 8)
        # Who has sent nothing costs a socket: buffers of TLS come with the first byte.
        assert not [each for each in gc.get_objects() if isinstance(each, sslproto.SSLProtocol)]
        connection = secure(port)
        assert ask(connection, "/livez")[0] == 200
        more = [stack.enter_context(opened(address(port))) for _ in range(4)]
        assert ask(connection, "/livez")[0] == 200
        assert all(map(is_open, more))
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_tls_handshake_that_does_not_end_in_time_ends_the_connection(sent: bytes) -> None:
    """Given any part of a TLS handshake, the connection ends when its time is up, not after
    asyncio's minute.
    """
    with serving(tls_handshake_ms=100, **SECURE) as port:
        with opened(address(port), sent) as made:
            assert made.recv(1) == b""
        connection = secure(port)
        assert ask(connection, "/livez")[0] == 200
        with opened(address(port), sent) as later:  # the time of an earlier handshake is over, too
            assert later.recv(1) == b""
        assert ask(connection, "/livez")[0] == 200
        connection.close()


def test_handshake_that_fails_gives_its_place_back() -> None:
    """Garbage, and a client that goes away in the middle."""
    with serving(connections_max=2, **SECURE) as port:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"):
            for _ in range(5):
                with opened(address(port), sent):
                    pass
        connection = secure(port)
        assert ask(connection, "/livez")[0] == 200
        connection.close()


def test_connection_that_would_take_a_reserved_file_is_not_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store finds a number for its files whatever connections do; it goes on by itself."""
    with serving() as port, caplog.at_level(logging.WARNING):
        files = port.facts.files
        kept = http.client.HTTPConnection(*address(port), timeout=10)
        assert ask(kept, "/livez")[0] == 200
        files.first_reserved, before = 0, files.first_reserved
        with opened(address(port), b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n") as refused:
            wait_until_left([refused], 0)
        assert ask(kept, "/livez")[0] == 200
        assert files.refused["http"] >= 1
        assert "storage.files_reserved" in str([vars(each) for each in caplog.records])
        files.first_reserved = before
        late = http.client.HTTPConnection(*address(port), timeout=10)
        assert ask(late, "/livez")[0] == 200
        for connection in (kept, late):
            connection.close()


def test_files_of_a_process_are_counted_by_their_highest_number() -> None:
    """The system gives the lowest free number, so a reserved one means that all others are used."""
    with socket.socket() as first, socket.socket() as second:
        low, high = sorted((first, second), key=socket.socket.fileno)
        files = FileReserve(high.fileno() + 3, 3)
        assert files.is_met_by(high)
        assert not files.is_met_by(low)
