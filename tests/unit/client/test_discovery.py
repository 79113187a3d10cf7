"""First contact: how long a node may take to say who it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from raftstore.client.cluster import discovery
from raftstore.client.cluster.discovery import Discovery
from raftstore.client.cluster.links import Links, NodeLink
from raftstore.client.cluster.topology import Leader, Topology
from raftstore.client.settings import ClientSettings
from raftstore.errors import ConnectTimeoutError, UnavailableError
from raftstore.protocol.admin import ChannelInfo, ClusterInfo, ClusterInfoAnswer
from raftstore.protocol.message import Message
from raftstore.types import Term, channel_id, node_id

TIME_MS = 2_000


class _SlowNode:
    """A connection that took nearly all of the time to be made, and is answered late."""

    cluster_id = b"c" * 16

    def __init__(self, on_message: Callable[[Message], None]) -> None:
        self._on_message = on_message

    def send(self, question: ClusterInfo) -> None:
        metadata = ChannelInfo(channel_id(self.cluster_id, 0), (), None, Term(0))
        node = node_id("n1", b"n" * 16)
        late = ClusterInfoAnswer(question.request_id, self.cluster_id, 0, 0, node, (), (), metadata)
        asyncio.get_running_loop().call_later(TIME_MS / 2_000, self._on_message, late)

    def close(self) -> None:
        """There is nothing to close."""

    async def wait_closed(self) -> None:
        """It is."""


def test_handshake_and_answer_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that shakes hands late has what is left of the time, not all of it once more."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        real, moved = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + moved)

        async def connect(_: str, **options: Any) -> _SlowNode:
            nonlocal moved
            moved = 0.9 * options["timeout_ms"] / 1_000
            return _SlowNode(options["on_message"])

        monkeypatch.setattr(discovery.ClientConnection, "connect", connect)
        asker = Discovery(
            ["127.0.0.1:1"],
            Topology(),
            cast(Links, None),
            settings=ClientSettings(),
            now_ms=lambda: int(loop.time() * 1_000),
            on_answer=lambda _: None,
        )
        with pytest.raises(ConnectTimeoutError, match="no answer within"):
            await asker._introduce("127.0.0.1:1", TIME_MS)
        await asker.close()

    asyncio.run(run())


def test_closed_discovery_begins_no_round_that_nobody_would_await() -> None:
    """Requests that end with the client want leaders once more, and links that are lost do, too."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        asker = Discovery(
            ["127.0.0.1:1"],
            Topology(),
            cast(Links, None),
            settings=ClientSettings(),
            now_ms=lambda: int(loop.time() * 1_000),
            on_answer=lambda _: None,
        )
        await asker.close()
        asker.want_leaders()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(UnavailableError, match="the client was closed"):
            await asker.news(int(loop.time() * 1_000) + TIME_MS)

    asyncio.run(run())


class _NoLinks:
    """Rounds that end at once: there is nobody to be asked."""

    @staticmethod
    def queries() -> list[NodeLink]:
        return []


def _asker(now_ms: Callable[[], int], topology: Topology | None = None) -> Discovery:
    settings = ClientSettings(refresh_first_ms=5, refresh_min_ms=25, seek_ms=50)
    links = cast(Links, _NoLinks())
    return Discovery(
        ["127.0.0.1:1"],
        Topology() if topology is None else topology,
        links,
        settings=settings,
        now_ms=now_ms,
        on_answer=lambda _: None,
    )


def test_rounds_that_follow_each_other_pause_longer_up_to_a_bound() -> None:
    """A planned change of leader is over in some 15 ms, and a long search asks no more often for
    that; after a calm time the next search is quick again."""

    async def run() -> None:
        now_ms = 0
        asker = _asker(lambda: now_ms)
        began: list[int] = []
        for now_ms in [*range(1_000, 1_110), *range(1_400, 1_406)]:
            asker.want_leaders()
            if asker._round is not None:
                began.append(now_ms)
                await asyncio.wait({asker._round})
        assert began == [1_000, 1_005, 1_012, 1_022, 1_037, 1_059, 1_084, 1_109, 1_400, 1_405]
        await asker.close()

    asyncio.run(run())


def test_search_for_a_successor_goes_on_while_somebody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that denied leading is searched for without further calls, until they must have
    asked again, or a successor is known."""

    async def run() -> None:
        now_ms, channel, old = 1_000, channel_id(b"c" * 16, 1), node_id("n1", b"n" * 16)
        topology = Topology()
        asker = _asker(lambda: now_ms, topology)
        delays: list[float] = []
        loop = asyncio.get_running_loop()

        def call_later(delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
            nonlocal now_ms
            delays.append(delay)
            now_ms += round(delay * 1_000)
            return loop.call_at(loop.time(), callback)

        monkeypatch.setattr(loop, "call_later", call_later)

        async def search() -> list[float]:
            delays.clear()
            asker.want_leaders()
            for _ in range(100):  # turns of the loop, of which a round takes a few
                await asyncio.sleep(0)
            assert asker._round is None
            assert asker._next_round is None
            return list(delays)

        assert await search() == [], "nobody denied anything"
        now_ms = 2_000
        topology.refute(channel, Leader(old, Term(1)), now_ms)
        assert await search() == [0.005, 0.007, 0.01, 0.015, 0.022]
        now_ms = 3_000
        topology.hint(channel, Leader(old, Term(2)), now_ms)
        assert await search() == []
        await asker.close()

    asyncio.run(run())
