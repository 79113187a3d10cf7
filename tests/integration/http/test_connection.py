"""Bounds of connections: how many, how long without a request, how much of a head; refusals."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from raftstore.http import connection, server
from raftstore.http.connection import BoundedHttpProtocol
from tests.integration.http.test_server import address, ask, serving

PUT = b"PUT /v1/tables/t/keys/1?timeout=60s HTTP/1.1\r\nexpect: 100-continue\r\n"
ENDLESS = PUT + b"content-length: 9\r\n\r\n"
"""A request that is under way until its body comes."""
CHUNKED = PUT + b"transfer-encoding: chunked\r\n\r\n"


@contextmanager
def opened(where: tuple[str, int], sent: bytes = b"") -> Iterator[socket.socket]:
    """A socket that has sent something."""
    with socket.create_connection(where, timeout=10) as made:
        made.sendall(sent)
        yield made


@contextmanager
def busy(where: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection whose request is under way, and the server knows."""
    with opened(where, ENDLESS) as made:
        assert made.recv(65_536).startswith(b"HTTP/1.1 100")
        yield made


# --- time and size -------------------------------------------------------------------------------


def test_head_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a byte now and then must not keep a connection for ever."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.1)
    with serving() as port:
        for sent in (b"", b"GET /livez HTTP/1.1\r\nx: y"):
            with opened(address(port), sent) as made:
                assert made.recv(1) == b""
        # A whole head in time, and the connection stays.
        kept = http.client.HTTPConnection(*address(port), timeout=10)
        assert ask(kept, "/livez")[0] == 200
        kept.close()


def test_head_and_body_of_an_answer_leave_in_one_write() -> None:
    """Each system call gives Python's lock away, which the node's own thread then keeps."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def run() -> list[bytes]:
        state, wire = ServerState(), Wire()
        made = BoundedHttpProtocol(uvicorn.Config(answer), state, {})
        made.connection_made(wire)
        made.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.gather(*state.tasks)
        await asyncio.sleep(0)  # the turn in which the answer was made ends
        made.connection_lost(None)
        return wire.writes

    (written,) = asyncio.run(run())
    assert written.startswith(b"HTTP/1.1 200")
    assert written.endswith(b"\r\n\r\nok")


def spoken(*parts: bytes) -> bytes:
    """Bytes that a connection answers at once to parts that come one by one."""

    async def run() -> bytes:
        state = ServerState()
        wire = Wire()
        made = BoundedHttpProtocol(uvicorn.Config(_unanswered), state, {})
        made.connection_made(wire)
        for part in parts:
            made.data_received(part)
        made.connection_lost(None)
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        return bytes(wire.written)

    return asyncio.run(run())


async def _unanswered(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive, send
    await asyncio.Event().wait()


class Wire(asyncio.Transport):
    """A transport that keeps what was written."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})
        self.writes: list[bytes] = []
        self.is_closed = self.has_ended = False

    @property
    def written(self) -> bytes:
        """All of it."""
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        """Keep it."""
        assert not self.has_ended
        self.writes.append(bytes(data))

    def close(self) -> None:
        """Nothing more is read or written."""
        self.get_extra_info("socket").close()
        self.is_closed = True

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.is_closed

    def can_write_eof(self) -> bool:
        """As with TCP."""
        return True

    def write_eof(self) -> None:
        """Nothing more is written."""
        assert not self.is_closed
        self.has_ended = True

    def pause_reading(self) -> None:
        """The test sends what it sends."""

    def resume_reading(self) -> None:
        """Likewise."""


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body)


LONG = b"y" * 33_000
HEADS = [
    (b"GET /" + LONG + LONG,),
    (b"GET /", LONG, LONG),
    (b"GET / HTTP/1.1\r\nx: " + LONG + LONG,),
    (b"GET / HTTP/1.1\r\nx: ", LONG, LONG),
    (b"GET / HTTP/1.1\r\nx: " + LONG + b"\r\nx: " + LONG + b"\r\n\r\n",),
    (CHUNKED, b"0\r\nx: ", LONG, LONG),
    (CHUNKED, b"3;", LONG, LONG),
    (b"\r\n" * 33_000,),
]


@pytest.mark.parametrize("parts", HEADS)
def test_head_beyond_its_limit_is_refused(parts: tuple[bytes, ...]) -> None:
    """Given a head, a line or the text between parts of a body without an end, the request is
    refused at its limit: it cannot fill the memory of a node.
    """
    status, headers, body = parsed(spoken(*parts))
    assert (status, headers["content-type"]) == (400, "application/json")
    assert "longer than 65536 bytes" in body["message"]


def test_requests_that_wait_for_earlier_answers_are_bounded() -> None:
    """One read holds thousands of them, each of which costs a hundred times its bytes."""
    few = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * (connection.PIPELINED_MAX + 1)
    assert spoken(few) == b""
    status, headers, body = parsed(spoken(few + few))
    assert (status, headers["connection"]) == (400, "close")
    assert "more than 64 requests were sent before their answers" in body["message"]


def test_answer_to_an_earlier_request_does_not_follow_a_refusal() -> None:
    """It was being worked on when too many others were sent behind it."""

    async def run() -> bytes:
        go_on, state, wire = asyncio.Event(), ServerState(), Wire()

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            del scope, receive
            await go_on.wait()
            headers = [(b"content-length", b"2")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"ok"})

        made = BoundedHttpProtocol(uvicorn.Config(answer), state, {})
        made.connection_made(wire)
        made.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
        go_on.set()
        await asyncio.gather(*state.tasks)
        await asyncio.sleep(0)
        made.connection_lost(None)
        return wire.written

    assert parsed(asyncio.run(run()))[0] == 400


def test_refusal_reaches_a_client_that_is_still_sending() -> None:
    """Closing on what it sends would reset the connection, and the reason would be lost."""
    with serving() as port, opened(address(port), b"GET / HTTP/1.1\r\nx: ") as made:
        made.sendall(b"y" * 4_000_000)
        got = b""
        while part := made.recv(65_536):
            got += part
        assert parsed(got)[0] == 400


def test_body_and_requests_in_a_row_are_no_part_of_a_head() -> None:
    """The limit is that of one head: what else comes in the same breath has its own."""
    head = b" / HTTP/1.1\r\nx: " + LONG + b"\r\n"
    first = b"PUT" + head + b"content-length: 99000\r\n\r\n" + LONG * 3
    assert spoken(first + b"GET" + head + b"\r\n" + b"GET" + head + b"\r\n") == b""
    assert spoken(b"GET" + head, b"z: " + LONG[:30_000], b"\r\n\r\n") == b""


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("GET /v1/tables/é HTTP/1.1\r\n\r\n", "a path is percent-encoded"),
        ("hello\r\n\r\n", "the request is no HTTP/1.1"),
    ],
)
def test_what_is_no_http_is_refused_like_everything_else(sent: str, words: str) -> None:
    """A client reads one form of errors, whichever part found the fault."""
    status, headers, body = parsed(spoken(sent.encode()))
    assert (status, headers["connection"], body["error_code"]) == (400, "close", "bad_request")
    assert words in body["message"]


@pytest.mark.slow
def test_body_after_its_answer_does_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a client that was answered early and sends on, its connection counts as idle and is
    closed in time.
    """
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 1)
    sent = b"POST /livez HTTP/1.1\r\ncontent-length: 999999999\r\n\r\n"
    with serving() as port, opened(address(port), sent) as made:
        assert made.recv(65_536).startswith(b"HTTP/1.1 405")
        made.settimeout(0.05)
        is_open = True
        for _ in range(400):  # far longer than it is kept
            try:
                made.sendall(b"z")
                is_open = made.recv(1) != b""
            except TimeoutError:
                continue
            except ConnectionError:
                is_open = False
            if not is_open:
                break
        assert not is_open


# --- how many ------------------------------------------------------------------------------------


def test_connection_that_is_idle_makes_room_for_a_new_one() -> None:
    """Sockets that say nothing must not make a node look dead, nor end requests of others."""
    with serving(connections_max=2) as port:
        kept = http.client.HTTPConnection(*address(port), timeout=10)
        assert ask(kept, "/livez")[0] == 200
        with opened(address(port)) as silent, busy(address(port)):
            assert kept.sock.recv(1) == b""  # idle for longer than the silent one
            kept.close()
            with busy(address(port)):
                assert silent.recv(1) == b""


def test_connections_beyond_the_limit_may_probe_and_nothing_else() -> None:
    """A node with too much to do is alive: who asks that must be answered."""
    with serving(connections_max=2) as port, busy(address(port)), busy(address(port)):
        probe = http.client.HTTPConnection(*address(port), timeout=10)
        assert ask(probe, "/livez")[0] == 200
        probe.request("GET", "/openapi.json")
        answer = probe.getresponse()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.headers["connection"] == "close"
        body = json.loads(answer.read())
        assert (body["error_code"], body["outcome"]) == ("unavailable", "not_applied")
        assert "http.connections_max" in body["message"]


def test_connections_beyond_those_of_probes_are_refused_until_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They get that answer at once; those that are open go on."""
    monkeypatch.setattr(connection, "PROBE_CONNECTIONS", 0)
    with serving(connections_max=1) as port:
        with busy(address(port)) as under_way:
            with opened(address(port)) as refused:
                got = b""
                while part := refused.recv(65_536):
                    got += part
                status, headers, body = parsed(got)
                assert (status, headers["retry-after"]) == (503, "1")
                assert body["retriable"] is True
            under_way.sendall(b"123456789")
            assert under_way.recv(65_536).startswith(b"HTTP/1.1 400")
        again = http.client.HTTPConnection(*address(port), timeout=10)
        assert ask(again, "/openapi.json")[0] == 200
        again.close()
