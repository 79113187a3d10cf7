"""Runs one test: three fake nodes, a table, a client with short times, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.settings import ClientSettings
from tests.integration.client.fake_cluster import Channel, FakeCluster

QUICK = ClientSettings(
    timeout_ms=5_000,
    connect_timeout_ms=500,
    reconnect_min_ms=5,
    reconnect_max_ms=20,
    warm_up_ms=2_000,
    retry_min_ms=2,
    retry_max_ms=10,
    grace_ms=10,
    suspect_ms=30,
    resend_ms=200,
    refresh_min_ms=5,
    seek_ms=10,
    hedge_ms=20,
)
PATIENT = replace(QUICK, suspect_ms=5_000, hedge_ms=5_000)
"""For tests that check who was asked: a machine that pauses for a moment makes nobody silent."""
Test = Callable[[FakeCluster, AsyncClient], Awaitable[None]]


def play(test: Test, settings: ClientSettings = QUICK, partitions: int = 1) -> None:
    """Run a test with three nodes, a table "t" led by n1, and a client."""

    async def run() -> None:
        async with FakeCluster() as cluster:
            cluster.add_table("t", partitions)
            async with await aio.connect(cluster.endpoints, settings=settings) as client:
                await test(cluster, client)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def only_channel(cluster: FakeCluster, table: str = "t") -> Channel:
    """The channel of a table that has one partition."""
    (info,) = cluster.tables[table].channels
    return cluster.channels[info.channel]
