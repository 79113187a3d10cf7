"""Commands that are begun while others are under way share records: what is sent, who gets which
outcome, and how one of them is given again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import raftstore
from raftstore.aio import AsyncClient
from raftstore.client.writes.command_writes import SHARED_BYTES_MAX
from raftstore.client.writes.kinds import ROW_OVERHEAD_BYTES
from raftstore.errors import (
    ConnectionInDoubtError,
    GuidExpiredError,
    GuidReuseError,
    RejectedError,
    RequestError,
    RequestTimeoutError,
    SchemaError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.policy.levels import SHARED_COMMANDS_LEVEL
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubMsg
from raftstore.protocol.shared_commands import COMMANDS_PER_RECORD_MAX, CommandFateAnswer
from raftstore.types import Outcome, RecordKind, guid_counter
from tests.integration.client.fake_cluster import (
    FakeCluster,
    FakeNode,
    apply_and_lose,
    lose,
    publish,
    refuse,
    silence,
)
from tests.integration.client.fake_machines import LARGE, REASON, Counter
from tests.integration.client.play import PATIENT, QUICK, only_channel, play
from tests.integration.client.test_machines import sets

TOGETHER = RecordKind.MACHINE_COMMANDS
ALONE = RecordKind.MACHINE_COMMAND


def sent(cluster: FakeCluster) -> list[tuple[RecordKind, int]]:
    """The records that the leader was sent: kind and commands."""
    return [(message.kind, message.rows) for message in cluster.nodes["n1"].published]


def many(counters: Any, count: int, **options: Any) -> list[asyncio.Task[Any]]:
    """So many commands at once."""
    return [
        asyncio.ensure_future(counters.command_result(f"k{n}", n, **options)) for n in range(count)
    ]


async def warm(client: AsyncClient) -> Any:
    """A channel set that is known and connected to."""
    counters = client.channelset("c", machine=Counter)
    await counters.command("warm", 1)
    return counters


def test_commands_of_one_moment_share_a_record_and_each_has_its_own_result() -> None:
    """The first leaves at once; the others have a seq and a name of their own."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        done = await asyncio.gather(*many(counters, 10))
        assert sent(cluster)[1:] == [(ALONE, 1), (TOGETHER, 9)]
        assert [each.result for each in done] == list(range(10))
        assert [each.seq for each in done] == list(range(2, 12))
        assert len({each.guid for each in done}) == 10
        fate = await client.fate(done[4].guid)
        assert (fate.fate, fate.seq) == ("committed", done[4].seq)

    play(test, PATIENT)


def test_a_record_has_no_more_commands_than_its_answer_has_room_for() -> None:
    """No guid is used twice: those of the commands follow that of their record."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        await asyncio.gather(*many(counters, 300))
        messages = cluster.nodes["n1"].published
        assert [message.rows for message in messages][1:] == [1, COMMANDS_PER_RECORD_MAX, 128, 43]
        used = [
            guid_counter(message.guid) + place
            for message in messages
            for place in range(message.rows + 1 if message.rows > 1 else 1)
        ]
        assert len(used) == len(set(used))

    play(test, PATIENT)


def test_large_commands_and_commands_to_older_nodes_share_nothing() -> None:
    """A node below the level could not read the record."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        texts = client.channelset("c", codec=raftstore.machine.JSON)
        large = "x" * SHARED_BYTES_MAX
        tasks = [asyncio.ensure_future(texts.command("a", large, timeout=0.2)) for _ in range(4)]
        cluster.nodes["n1"].publish_scripts.extend([silence] * 100)
        await asyncio.gather(*tasks, return_exceptions=True)
        cluster.nodes["n1"].publish_scripts.clear()
        cluster.nodes["n2"].level = SHARED_COMMANDS_LEVEL - 1
        async with await raftstore.aio.connect(cluster.endpoints, timeout=5) as other:
            await asyncio.gather(*many(other.channelset("c", machine=Counter), 6))
        assert len(sent(cluster)) >= 10
        assert {kind for kind, _ in sent(cluster)} == {ALONE}

    play(test, PATIENT)


def test_commands_that_are_crowded_out_of_their_record_leave_again_by_themselves() -> None:
    """They changed nothing, and their callers never learn of it; nor does anything come twice."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        first = asyncio.ensure_future(counters.command("a", 1))
        tasks = [asyncio.ensure_future(counters.command("k", n)) for n in (2, LARGE, 3, 4)]
        ends = await asyncio.gather(first, *tasks)
        assert sent(cluster)[1:] == [(ALONE, 1), (TOGETHER, 4), (ALONE, 1), (ALONE, 1)]
        assert ends == [1, 2, LARGE + 2, LARGE + 5, LARGE + 9]

    play(test, PATIENT)


def test_a_command_that_was_crowded_out_is_given_again_and_applied_once() -> None:
    """As one whose record was not applied: it has a record of its own from then on. Its caller had
    no time left, or lost the answer."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        errors = await in_doubt(cluster, client, apply_and_lose, (1, LARGE, 3))
        counters = client.channelset("c", machine=Counter)
        assert await counters.command("k", LARGE, guid=errors[1].guid) == LARGE + 1
        before = len(only_channel(cluster, "c").applied)
        again = [await counters.command("k", 3, guid=errors[2].guid) for _ in range(3)]
        assert again == [LARGE + 4] * 3
        assert len(only_channel(cluster, "c").applied) == before + 1

    play(test)


def test_a_rejection_is_of_one_command_and_not_of_those_beside_it() -> None:
    """Each caller gets its own end."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        first = asyncio.ensure_future(counters.command("a", 1))
        tasks = [asyncio.ensure_future(counters.command("k", value)) for value in (2, -5, 3)]
        ends = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert sent(cluster)[1:] == [(ALONE, 1), (TOGETHER, 3)]
        assert [ends[0], ends[1], ends[3]] == [1, 2, 5]
        assert isinstance(ends[2], RejectedError)
        assert REASON in str(ends[2])
        assert str(ends[2].guid).split(".")[1] == "2"

    play(test, PATIENT)


def test_attempts_of_a_shared_record_are_applied_once() -> None:
    """Lost answers are asked for again under the same guid."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        cluster.nodes["n1"].publish_scripts.extend([publish, apply_and_lose, lose])
        done = await asyncio.gather(*many(counters, 5))
        assert [each.result for each in done] == list(range(5))
        assert len(only_channel(cluster, "c").applied) == 3

    play(test)


def test_commands_of_a_record_that_was_refused_for_good_leave_one_by_one() -> None:
    """A mistake in one of them says nothing of the others."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        scripts = cluster.nodes["n1"].publish_scripts
        scripts.extend(
            [publish, refuse(SchemaError.code), publish, refuse(SchemaError.code), publish]
        )
        ends = await asyncio.gather(*many(counters, 4), return_exceptions=True)
        assert sent(cluster)[1:] == [(ALONE, 1), (TOGETHER, 3), (ALONE, 1), (ALONE, 1), (ALONE, 1)]
        errors = [end for end in ends if isinstance(end, RequestError)]
        assert [error.outcome for error in errors] == [Outcome.NOT_APPLIED]
        assert isinstance(errors[0], SchemaError)
        assert len([end for end in ends if not isinstance(end, BaseException)]) == 3

    play(test, PATIENT)


async def in_doubt(
    cluster: FakeCluster, client: AsyncClient, answer: Any, values: tuple[int, ...] = (1, 2, 3)
) -> list[RequestError]:
    """Three commands to "k" in one record, whose outcome stays unknown."""
    counters = await warm(client)
    nodes = cluster.nodes
    nodes["n1"].publish_scripts.extend([publish, answer, *[silence] * 100])
    tasks = [asyncio.ensure_future(counters.command("a", 1))]
    tasks += [asyncio.ensure_future(counters.command("k", n, timeout=0.4)) for n in values]
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [end for end in ends if isinstance(end, RequestError)]
    assert [error.outcome for error in errors] == [Outcome.UNKNOWN] * 3
    nodes["n1"].publish_scripts.clear()
    return errors


def test_a_command_in_doubt_is_given_again_and_has_the_result_that_it_had() -> None:
    """Its record was committed: the result is asked for, also by another client, and nothing is
    applied."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        errors = await in_doubt(cluster, client, apply_and_lose)
        applied = len(only_channel(cluster, "c").applied)
        async with await raftstore.aio.connect(cluster.endpoints, timeout=5) as other:
            counters = other.channelset("c", machine=Counter)
            again = [
                await counters.command_result("k", n, guid=error.guid)
                for n, error in enumerate(errors, start=1)
            ]
        assert [done.result for done in again] == [1, 3, 6]
        assert [done.guid for done in again] == [error.guid for error in errors]
        assert len({done.seq for done in again}) == 3
        assert len(only_channel(cluster, "c").applied) == applied

    play(test)


def test_a_command_in_doubt_whose_record_was_not_applied_is_applied_once_however_often() -> None:
    """Not applied is final, and from then on it has a record of its own under a guid of its own."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        errors = await in_doubt(cluster, client, silence)
        counters = client.channelset("c", machine=Counter)
        before = len(only_channel(cluster, "c").applied)
        again = [await counters.command("k", 2, guid=errors[1].guid) for _ in range(3)]
        assert again == [2, 2, 2]
        assert len(only_channel(cluster, "c").applied) == before + 1
        assert await counters.command("k", 3, guid=errors[2].guid) == 5

    play(test)


@pytest.mark.parametrize("script", [apply_and_lose, silence])
def test_a_command_given_again_with_another_payload_is_refused(script: Any) -> None:
    """S4.6: also of a shared record, of which the log knows one digest alone; nothing is sent. Nor
    with another key of the partition. A name of the version before has no print, and is taken."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        name = str((await in_doubt(cluster, client, script))[1].guid)
        counters = client.channelset("c", machine=Counter)
        node = cluster.nodes["n1"]
        seen = len(node.published)
        for key, value in (("k", 3), ("k", 10**9), ("j", 2)):
            with pytest.raises(GuidReuseError, match="used before with another") as caught:
                await counters.command_to_partition(0, value, key=key, guid=name)
            assert caught.value.guid == name
            assert caught.value.outcome is Outcome.NOT_APPLIED
        assert len(node.published) == seen
        done = await counters.command("k", 2, guid=name)
        assert await counters.command("k", 2, guid=name.rpartition(".")[0]) == done
        for wrong in (f"{name}0", name[:-1], f"{name}.1", name.replace(".2.", ".0.")):
            with pytest.raises(SchemaError, match="is not the guid of a write"):
                await counters.command("k", 2, guid=wrong)

    play(test)


def test_fate_of_a_command_that_was_given_again_is_that_of_its_own_record() -> None:
    """N4: the record that it had shared was not applied, and the command was, under its own
    guid."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        errors = await in_doubt(cluster, client, silence)
        counters = client.channelset("c", machine=Counter)
        done = await counters.command_result("k", 2, guid=errors[1].guid)
        assert done.guid == errors[1].guid
        assert (await client.fate(done.guid)).fate == "committed"
        assert (await client.fate(errors[2].guid)).fate == "not_applied"

    play(test)


def test_a_command_whose_record_nobody_knows_any_more_is_not_sent_again() -> None:
    """It might be applied twice; the error has the name by which it can be asked about."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        errors = await in_doubt(cluster, client, silence)
        published = len(cluster.nodes["n1"].published)

        def forgotten(node: FakeNode, message: Message, reply: Any) -> None:
            channel = only_channel(cluster, "c")
            served = raftstore.protocol.reads.Served(
                node.id, channel.channel, channel.term, channel.seq, 0, 0, "linearizable"
            )
            told = ("unknown", 0, channel.term, "none", "too old")
            reply(CommandFateAnswer(message.request_id, *told, served))  # type: ignore[attr-defined]

        cluster.nodes["n1"].request_scripts.append(forgotten)
        with pytest.raises(GuidExpiredError, match="too old") as caught:
            await client.channelset("c", machine=Counter).command("k", 1, guid=errors[0].guid)
        assert caught.value.guid == errors[0].guid
        assert len(cluster.nodes["n1"].published) == published

    play(test)


def test_a_command_that_was_cancelled_before_it_left_is_not_sent() -> None:
    """One that was sent is, with those beside it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        cluster.nodes["n1"].publish_scripts.extend([silence, silence])
        under_way = many(counters, 2)
        await cluster.until(lambda: len(cluster.nodes["n1"].published) == 3)
        late = asyncio.ensure_future(counters.command("late", 1))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        assert await counters.command("next", 1) == 1
        messages: list[PubMsg] = list(cluster.nodes["n1"].published)
        assert not any(b"late" in bytes(message.payload) for message in messages)

    play(test, PATIENT)


def test_commands_that_wait_end_at_their_deadline_and_with_the_client() -> None:
    """They were not sent, and the error says so."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = await warm(client)
        cluster.nodes["n1"].publish_scripts.extend([silence, silence])
        under_way = many(counters, 1)
        await cluster.until(lambda: len(cluster.nodes["n1"].published) == 2)
        under_way += many(counters, 1)
        await cluster.until(lambda: len(cluster.nodes["n1"].published) == 3)
        with pytest.raises(RequestTimeoutError, match="nothing was sent") as caught:
            await counters.command("late", 1, timeout=0.05)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        waiting = asyncio.ensure_future(counters.command("later", 1))
        await asyncio.sleep(0)
        await client.close()
        ends = await asyncio.gather(waiting, *under_way, return_exceptions=True)
        assert isinstance(ends[0], UnavailableError)
        assert all(isinstance(end, RequestError) for end in ends)

    play(test, PATIENT)


@pytest.mark.parametrize("kind", ["commands", "rows"])
def test_what_waits_for_room_when_its_table_is_dropped_ends_at_once(kind: str) -> None:
    """It is refused like what was under way, and waits for nobody who could still answer."""
    settings = replace(QUICK, channel_bytes_max=2 * ROW_OVERHEAD_BYTES)

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        if kind == "commands":
            sets(cluster)
        counters, table = client.channelset("c", machine=Counter), client.table("t")
        name = "c" if kind == "commands" else "t"

        async def write(number: int) -> object:
            if kind == "commands":
                return await counters.command("k", number, timeout=600)
            return await table.put({"id": number}, timeout=600)

        await write(0)
        cluster.nodes["n1"].publish_scripts.extend([silence] * 1_000)
        tasks = [asyncio.ensure_future(write(number)) for number in range(1, 6)]
        await cluster.until(lambda: len(cluster.nodes["n1"].published) > 1)
        cluster.drop_table(name)
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(ends[0], ConnectionInDoubtError), "it was sent"
        assert {type(end) for end in ends[2:]} == {UnknownTableError}

    play(test, settings)
