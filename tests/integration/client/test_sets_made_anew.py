"""Commands to a channel set that is dropped, and to the next one of its name: each ends with what
is known of it, and nothing of the old set is sent to the new one or answered by it (S0.8, S4.5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.errors import RequestError, UnknownTableError
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubMsg
from raftstore.types import Outcome
from tests.integration.client.fake_cluster import Channel, FakeCluster, FakeNode, silence
from tests.integration.client.fake_machines import Counter
from tests.integration.client.play import PATIENT, only_channel, play
from tests.integration.client.test_machines import sets


def make_anew(cluster: FakeCluster) -> Channel:
    """Another channel set takes the name; its channel."""
    cluster.drop_table("c")
    sets(cluster)
    return only_channel(cluster, "c")


def sent_to(cluster: FakeCluster, channel: Channel) -> int:
    """Records that any node was sent for this channel."""
    return sum(
        message.channel == channel.channel
        for node in cluster.nodes.values()
        for message in node.published
    )


async def end_of(command: Awaitable[Any]) -> RequestError:
    """The error that a command ends with."""
    with pytest.raises(RequestError) as found:
        async with asyncio.timeout(30):
            await command
    return found.value


def apply_silently(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """Commit and answer nothing."""
    assert isinstance(message, PubMsg)
    node.cluster.channels[message.channel].apply(message)


async def doubted(cluster: FakeCluster, counters: Any, *, is_shared: bool) -> str:
    """The name of a command that was applied and not answered, and whose sender gave up."""
    leader = cluster.nodes["n1"]
    leader.publish_scripts.extend([apply_silently] * 100)
    sent = [asyncio.ensure_future(counters.command("k", 1, timeout=0.5)) for _ in range(3)]
    ends = [await end_of(each) for each in sent]
    leader.publish_scripts.clear()
    assert {each.outcome for each in ends} == {Outcome.UNKNOWN}
    name = ends[-1 if is_shared else 0].guid
    assert name is not None
    assert ("." in name) is is_shared
    return name


def test_commands_under_way_end_in_doubt_when_their_set_is_dropped_and_made_anew() -> None:
    """Those that were sent may have been applied, those that waited not; the new set sees none."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c", machine=Counter)
        assert await counters.command("warm", 1) == 1
        leader = cluster.nodes["n1"]
        before = len(leader.published)
        leader.publish_scripts.extend([silence] * 50)
        running = [asyncio.ensure_future(counters.command("k", n)) for n in range(60)]
        await cluster.until(lambda: len(leader.published) > before + 1)
        new = make_anew(cluster)
        await client.tables()
        ends = [await end_of(each) for each in running]
        in_doubt = [each for each in ends if each.outcome is Outcome.UNKNOWN]
        assert 1 < len(in_doubt) <= len(ends)
        for each in ends:
            assert "was dropped" in str(each)
            assert (each.guid is not None) is (each.outcome is Outcome.UNKNOWN)
            assert isinstance(each, UnknownTableError) or each.outcome is Outcome.UNKNOWN
        leader.publish_scripts.clear()
        assert sent_to(cluster, new) == 0
        assert await counters.command("k", 5) == 5

    play(test, PATIENT)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_anew", [False, True])
def test_command_given_again_after_the_drop_stays_in_doubt_and_is_sent_to_nobody(
    *, is_shared: bool, is_known: bool, is_anew: bool
) -> None:
    """It may have been applied before. ``is_known``: the client has heard of the drop."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c", machine=Counter)
        name = await doubted(cluster, counters, is_shared=is_shared)
        new = None
        if is_anew:
            new = make_anew(cluster)
        else:
            cluster.drop_table("c")
        if is_known:
            await client.tables()
        error = await end_of(counters.command("k", 1, guid=name))
        assert (error.outcome, error.guid) == (Outcome.UNKNOWN, name)
        said = "another channel set" if is_anew and is_known else "dropped"
        assert said in str(error)
        fate = await end_of(client.fate(name))
        assert isinstance(fate, UnknownTableError)
        if new is not None:
            assert sent_to(cluster, new) == 0
            assert await counters.command("k", 5) == 5

    play(test, PATIENT)


def test_command_of_a_set_that_is_newer_than_the_catalog_known_here_is_given_again() -> None:
    """Another process saw that the set was made anew, and this one did not yet."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c", machine=Counter)
        assert await counters.command("k", 1) == 1
        make_anew(cluster)
        async with await aio.connect(cluster.endpoints, settings=PATIENT) as other:
            done = await other.channelset("c", machine=Counter).command_result("k", 7)
        again = await counters.command_result("k", 7, guid=done.guid)
        assert (again.result, again.seq) == (done.result, done.seq)

    play(test, PATIENT)


def test_command_given_again_where_a_table_has_the_name_stays_in_doubt() -> None:
    """As where nothing has it: the refusal is about this call."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c", machine=Counter)
        done = await counters.command_result("k", 1)
        cluster.drop_table("c")
        cluster.add_table("c")
        await client.tables()
        error = await end_of(counters.command("k", 1, guid=done.guid))
        assert (error.outcome, error.guid, error.retriable) == (Outcome.UNKNOWN, done.guid, False)
        assert "is a table" in str(error)

    play(test, PATIENT)


def test_command_given_again_while_nobody_says_which_sets_there_are_stays_in_doubt() -> None:
    """It may be tried once more: then it is known whether its set is there."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c", machine=Counter)
        await counters.command("k", 1)
        new = make_anew(cluster)
        async with await aio.connect(cluster.endpoints, settings=PATIENT) as other:
            done = await other.channelset("c", machine=Counter).command_result("k", 7)
        for node in cluster.nodes.values():
            node.is_silent = True
        error = await end_of(counters.command("k", 7, guid=done.guid, timeout=0.3))
        assert (error.outcome, error.guid, error.retriable) == (Outcome.UNKNOWN, done.guid, True)
        for node in cluster.nodes.values():
            node.is_silent = False
        assert await counters.command("k", 7, guid=done.guid) == 7
        assert new.seq == 1

    play(test, PATIENT)
