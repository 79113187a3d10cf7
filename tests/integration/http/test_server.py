"""The thread that serves: TLS, its start and its end."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from raftstore.config import HttpSettings, NodeSettings
from raftstore.errors import StorageError
from raftstore.http import gateway
from raftstore.http.server import check_http, start_http
from raftstore.node.bootstrap import opening
from raftstore.node.http_port import HttpPort

TLS = Path(__file__).parents[2] / "data" / "tls"
THREAD = "raftstore-http"


@contextmanager
def serving(**http: Any) -> Iterator[HttpPort]:
    """HTTP of a node that has no cluster yet."""
    settings = NodeSettings(
        name="n1", data_dir="d", http=HttpSettings(listen="127.0.0.1:0", **http)
    )
    check_http(settings)
    port = HttpPort(settings, start_http)
    port.bind()
    port.start("127.0.0.1", 1)
    try:
        yield port
    finally:
        port.stop()
    assert THREAD not in {thread.name for thread in threading.enumerate()}


def address(port: HttpPort) -> tuple[str, int]:
    """Where it listens."""
    host, _, number = port.endpoint.rpartition(":")
    return host, int(number)


def ask(connection: http.client.HTTPConnection, target: str) -> tuple[int, Any]:
    """Status and body of a GET."""
    connection.request("GET", target)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_before_birth_the_node_is_alive_and_serves_nothing_else() -> None:
    """Before its birth the node is alive and serves nothing else: a supervisor that restarts it for
    that would do so for ever.
    """
    with serving() as port:
        connection = http.client.HTTPConnection(*address(port), timeout=10)
        assert ask(connection, "/livez") == (200, {"alive": True, "main_loop_ms_ago": None})
        for target in ("/v1/tables/t/keys/1", "/clusterStatus"):
            status, body = ask(connection, target)
            assert (status, body["error_code"]) == (503, "unavailable")
        connection.close()


def test_main_loop_that_stands_still_is_not_alive() -> None:
    """/livez looks at nothing else."""
    with serving(live_stall_ms=1_000) as port:
        connection = http.client.HTTPConnection(*address(port), timeout=10)
        port.facts.turned_ms = 1
        status, body = ask(connection, "/livez")
        assert (status, body["alive"]) == (503, False)
        connection.close()


def test_tls_is_spoken_where_a_certificate_is_set() -> None:
    """GAP-11: plain bytes get no answer, a client that trusts the certificate does."""
    with serving(tls_cert=str(TLS / "cert.pem"), tls_key=str(TLS / "key.pem")) as port:
        context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        secure = http.client.HTTPSConnection(*address(port), timeout=10, context=context)
        assert ask(secure, "/livez")[0] == 200
        secure.close()
        with socket.create_connection(address(port), timeout=10) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"alive" not in connection.recv(65_536)


def test_answers_leave_at_once() -> None:
    """Small answers in a row do not wait for acknowledgements, which take 40 ms each."""
    with serving() as port:
        connection = http.client.HTTPConnection(*address(port), timeout=10)
        took = []
        for _ in range(40):
            started = time.perf_counter()
            assert ask(connection, "/livez")[0] == 200
            took.append(time.perf_counter() - started)
        connection.close()
    assert sorted(took)[len(took) // 2] < 0.03


def test_port_that_was_bound_but_never_served_is_given_back() -> None:
    """A start that is refused later leaves nothing behind."""
    settings = NodeSettings(name="n1", data_dir="d", http=HttpSettings(listen="127.0.0.1:0"))
    port = HttpPort(settings, start_http)
    port.bind()
    port.stop()
    port.stop()
    assert HttpPort(settings, None).endpoint == ""


def test_node_that_still_opens_its_store_refuses_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A long log takes a while to read: who asks for the cluster meanwhile must not hang."""
    settings = NodeSettings(
        name="n1",
        data_dir=str(tmp_path / "n1"),
        listen="127.0.0.1:0",
        initial_cluster=(("n1", "127.0.0.1:1"),),
        http=HttpSettings(listen="127.0.0.1:0"),
    )
    http_port = HttpPort(settings, start_http)
    seen: list[tuple[int, Any]] = []

    def slow_open(*_arguments: object, **_options: object) -> NoReturn:
        connection = http.client.HTTPConnection(*address(http_port), timeout=5)
        seen.append(ask(connection, "/clusterStatus"))
        seen.append(ask(connection, "/livez"))
        connection.close()
        raise StorageError("it was slow enough")

    monkeypatch.setattr(opening, "open_store", slow_open)
    with pytest.raises(StorageError, match="slow enough"):
        asyncio.run(_opened(settings, http_port))
    assert [status for status, _ in seen] == [503, 200]
    assert seen[0][1]["error_code"] == "unavailable"
    assert THREAD not in {thread.name for thread in threading.enumerate()}


async def _opened(settings: NodeSettings, http_port: HttpPort) -> None:
    await opening.open_port_and_store(settings, http_port, asyncio.Event())


def test_node_that_does_not_answer_itself_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its main loop stands still: a refusal with the reason beats waiting for the deadline."""
    monkeypatch.setattr(gateway, "OWN_ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, serving() as port:
        port.facts.endpoint = "{}:{}".format(*silent.getsockname())
        port.facts.belongs_to("n1@" + "0" * 32, b"c" * 16)
        connection = http.client.HTTPConnection(*address(port), timeout=5)
        status, body = ask(connection, "/clusterStatus?timeout=30s")
        connection.close()
    assert status == 503
    assert "has not answered itself" in body["message"]
