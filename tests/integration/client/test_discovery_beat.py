"""The slow beat of discovery: one node at a time, and all of them when it does not answer (P14)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from raftstore.aio import AsyncClient
from raftstore.client.cluster.links import NodeLink
from raftstore.types import node_name
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import QUICK, play

BEATING = replace(QUICK, refresh_interval_ms=1)
PATIENCE_S = 10.0


def beats(count: int, *, dead: str = "") -> tuple[list[str], int]:
    """The nodes asked by so many beats, and how often all were asked besides."""
    asked: list[str] = []
    rounds = 0

    async def scene(_: FakeCluster, client: AsyncClient) -> None:
        discovery, enough = client._context.discovery, asyncio.Event()

        async def ask_one(link: NodeLink, *, with_lags: bool) -> bool:
            assert not with_lags
            if len(asked) < count:
                asked.append(node_name(link.node))
            else:
                enough.set()
            return asked[-1] != dead

        def want_leaders() -> None:
            nonlocal rounds
            rounds += not enough.is_set()

        discovery._ask_one = ask_one  # type: ignore[method-assign]
        discovery.want_leaders = want_leaders  # type: ignore[method-assign]
        async with asyncio.timeout(PATIENCE_S):
            await enough.wait()

    play(scene, BEATING)
    return asked, rounds


def test_idle_client_asks_one_node_at_a_time() -> None:
    """With a thousand channels an answer takes each side some ten milliseconds."""
    asked, rounds = beats(6)
    assert sorted(asked[:3]) == ["n1", "n2", "n3"]
    assert asked[3:] == asked[:3]
    assert rounds == 0


def test_node_that_does_not_answer_a_beat_makes_the_client_ask_all() -> None:
    """A catalog must not grow old because its turn came to a dead node."""
    asked, rounds = beats(6, dead="n2")
    assert asked.count("n2") == 2
    assert rounds >= 2
