"""Clients that faults strike at their own links: what really left, and what was reported."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable

from jepsen_like.checker.repeats import RepeatWatch
from jepsen_like.checker.verdict import Validity
from jepsen_like.target.processes.clients import Clients, StruckClient
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import QUICK

Test = Callable[[FakeCluster, StruckClient, Clients], Awaitable[None]]


def _play(test: Test) -> RepeatWatch:
    """With three nodes, a table "t" led by n1, and one client."""
    repeats = RepeatWatch()

    async def run() -> None:
        async with FakeCluster() as cluster:
            cluster.add_table("t", 1)
            async with await StruckClient.connect(cluster.endpoints, settings=QUICK) as client:
                await test(cluster, client, Clients(1, repeats))

    asyncio.run(run())
    return repeats


async def _put_on(client: StruckClient) -> None:
    """Until it is killed."""
    for number in itertools.count(2):
        await _put(client, number)


async def _put(client: StruckClient, number: int) -> None:
    await client.table("t").put({"id": number})


def test_a_dying_publisher_reaches_one_follower_and_nobody_else() -> None:
    """S5.5: the frame arrives there although its sender ends at once; the leader gets nothing."""

    async def test(cluster: FakeCluster, client: StruckClient, clients: Clients) -> None:
        await _put(client, 1)
        nodes = list(cluster.nodes.values())
        await cluster.until(lambda: all(len(node.published) == 1 for node in nodes))
        driver = asyncio.ensure_future(_put_on(client))
        clients.begin(0, client, driver)
        reached = await asyncio.to_thread(clients.reach_one, 7)
        await asyncio.wait((driver,))
        assert driver.cancelled()
        await client.close()
        assert reached.is_set()
        await cluster.until(lambda: len({len(node.published) for node in nodes}) == 2)
        counts = [len(node.published) for node in nodes]
        assert sorted(counts[1:]) == [counts[0], counts[0] + 1]

    _play(test)


def test_a_client_is_itself_again_when_the_order_is_taken_back() -> None:
    """Before it came to it."""

    async def test(cluster: FakeCluster, client: StruckClient, clients: Clients) -> None:
        idle = asyncio.ensure_future(asyncio.sleep(0))
        clients.begin(0, client, idle)
        reached = await asyncio.to_thread(clients.reach_one, 0)
        await asyncio.to_thread(clients.disarm)
        await _put(client, 1)
        assert not reached.is_set()
        nodes = list(cluster.nodes.values())
        await cluster.until(lambda: all(len(node.published) == 1 for node in nodes))

    _play(test)


def test_what_is_sent_again_has_its_guid_and_goes_to_the_leader_of_now() -> None:
    """S4.5: it is applied once, and acknowledged at the same place."""

    async def test(cluster: FakeCluster, client: StruckClient, clients: Clients) -> None:
        await _put(client, 1)
        idle = asyncio.ensure_future(asyncio.sleep(0))
        clients.begin(0, client, idle)
        answered = await asyncio.to_thread(clients.publish_again, 5)
        assert await asyncio.to_thread(answered.wait, 5.0)
        first, again = cluster.nodes["n1"].published[:2]
        assert (first.guid, first.payload) == (again.guid, again.payload)
        (channel,) = (each for each in cluster.channels.values() if each.applied)
        assert len(channel.applied) == 1

    repeats = _play(test)
    assert (repeats.sent, repeats.answered) == (1, 1)
    assert repeats.verdict().validity is Validity.VALID


def test_a_repeat_that_is_told_another_place_is_a_violation() -> None:
    """A store that forgot the GUID applied it twice."""

    async def test(cluster: FakeCluster, client: StruckClient, clients: Clients) -> None:
        await _put(client, 1)
        idle = asyncio.ensure_future(asyncio.sleep(0))
        clients.begin(0, client, idle)
        for channel in cluster.channels.values():
            channel.acks.clear()
        answered: threading.Event = await asyncio.to_thread(clients.publish_again, 0)
        assert await asyncio.to_thread(answered.wait, 5.0)

    verdict = _play(test).verdict()
    assert verdict.validity is Validity.INVALID
    assert "stood at rows 1..1 of term 1, and again at rows 2..2 of term 1" in verdict.summary
