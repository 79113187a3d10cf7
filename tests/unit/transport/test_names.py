"""A name server that does not answer delays the callers that need that name, and no others."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from raftstore.transport.names import NameLookups, lookups


class NameServer:
    """Stands for getaddrinfo: some names hang until it is healed."""

    def __init__(self) -> None:
        self.healed = threading.Event()
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, port: object, **_named: object) -> list[Any]:
        """As socket.getaddrinfo."""
        self.asked.append(host)
        if host.startswith("hangs"):
            self.healed.wait(5.0)
        if host.startswith("none"):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 0))] * 2


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """A name server of the test's."""
    made = NameServer()
    monkeypatch.setattr("raftstore.transport.names.socket.getaddrinfo", made.getaddrinfo)
    yield made
    made.healed.set()


def test_addresses_are_not_looked_up(server: NameServer) -> None:
    """Most clusters are configured by addresses."""

    async def run() -> None:
        names = NameLookups()
        assert await names.addresses("10.1.2.3") == ["10.1.2.3"]
        assert await names.addresses("::1") == ["::1"]

    asyncio.run(run())
    assert server.asked == []


def test_name_that_hangs_has_one_thread_and_delays_no_other(server: NameServer) -> None:
    """Asked again and again by a dialler, and by more diallers than an executor has threads."""

    async def run() -> None:
        hanging = [f"hangs{number}" for number in range(40)]
        for name in hanging * 3:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await lookups().addresses(name)
        assert sorted(server.asked) == sorted(hanging)
        async with asyncio.timeout(2.0):
            assert await lookups().addresses("n1.example") == ["10.0.0.7"]

    # The loop ends although the threads hang still: nobody waits for them.
    asyncio.run(run())
    assert not server.healed.is_set()


def test_look_up_that_ends_late_serves_later_callers(server: NameServer) -> None:
    """The next attempt of the dialler takes what the first one waited for."""

    async def run() -> None:
        names = NameLookups()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await names.addresses("hangs")
        second = asyncio.ensure_future(names.addresses("hangs"))
        await asyncio.sleep(0)
        server.healed.set()
        async with asyncio.timeout(2.0):
            assert await second == ["10.0.0.7"]
        assert server.asked == ["hangs"]
        with pytest.raises(OSError, match="no such name"):
            await names.addresses("none")

    asyncio.run(run())
