"""First contact: how long a node may take to say who it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from raftstore.client.cluster import discovery
from raftstore.client.cluster.discovery import Discovery
from raftstore.client.cluster.links import Links, NodeLink
from raftstore.client.cluster.topology import Topology
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


def test_rounds_that_follow_each_other_pause_longer_up_to_a_bound() -> None:
    """A planned change of leader is over in some 15 ms, and a long search asks no more often for
    that; after a calm time the next search is quick again."""

    class NoLinks:
        @staticmethod
        def queries() -> list[NodeLink]:
            return []

    async def run() -> None:
        now_ms = 0
        asker = Discovery(
            ["127.0.0.1:1"],
            Topology(),
            cast(Links, NoLinks()),
            settings=ClientSettings(refresh_first_ms=5, refresh_min_ms=25),
            now_ms=lambda: now_ms,
            on_answer=lambda _: None,
        )
        began: list[int] = []
        for now_ms in [*range(1_000, 1_110), *range(1_400, 1_406)]:
            asker.want_leaders()
            if asker._round is not None:
                began.append(now_ms)
                await asyncio.wait({asker._round})
        assert began == [1_000, 1_005, 1_015, 1_035, 1_060, 1_085, 1_400, 1_405]
        await asker.close()

    asyncio.run(run())
