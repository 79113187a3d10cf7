"""Writes of one row that share a record: what is joined, in which order, and which outcome
each caller gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from raftstore.aio import AsyncClient, AsyncTable
from raftstore.client.results import WriteAck
from raftstore.client.writes.session import ProducerSession
from raftstore.errors import (
    ConflictError,
    ConnectionInDoubtError,
    OverloadedError,
    RequestError,
    RequestTimeoutError,
    SchemaError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.message import Message
from raftstore.protocol.payload import decode_rows
from raftstore.protocol.publish import PubMsg
from raftstore.types import Outcome, RecordKind
from tests.integration.client.fake_cluster import (
    FakeCluster,
    FakeNode,
    apply_and_lose,
    publish,
    refuse,
    silence,
)
from tests.integration.client.play import QUICK, only_channel, play

SLOW = replace(QUICK, resend_ms=60_000, suspect_ms=60_000)
"""For tests that hold answers back."""


class Held:
    """A script that keeps publishes without an answer until the test says so."""

    def __init__(self, cluster: FakeCluster, count: int) -> None:
        self._cluster = cluster
        self._node = cluster.nodes["n1"]
        self._held: list[Callable[[], None]] = []
        self._node.publish_scripts.extend([self._hold] * count)

    def _hold(self, node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        self._held.append(partial(publish, node, message, reply))

    async def until(self, count: int) -> None:
        """Wait until so many are held."""
        await self._cluster.until(lambda: len(self._held) >= count)

    def answer(self, number: int = 0) -> None:
        """Apply one of them and answer."""
        self._held.pop(number)()

    def answer_all(self) -> None:
        while self._held:
            self.answer()


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def begin(table: AsyncTable, *numbers: int, **options: float) -> list[asyncio.Task[WriteAck]]:
    """Begin a put for each number."""
    return [
        asyncio.ensure_future(table.put({"id": number, "v": at}, **options))
        for at, number in enumerate(numbers)
    ]


async def under_way(cluster: FakeCluster, table: AsyncTable, held: Held) -> list[asyncio.Task]:
    """Put two records under way: what is begun then, waits for them."""
    del cluster
    first = begin(table, 101)
    await held.until(1)
    second = begin(table, 102)
    await held.until(2)
    return [*first, *second]


def sent(cluster: FakeCluster) -> list[PubMsg]:
    return list(cluster.nodes["n1"].published)


def rows_of(message: PubMsg) -> int:
    return len(decode_rows(message.payload)) // 2


def test_put_alone_is_sent_at_once_and_alone() -> None:
    """Nothing is waited for where nothing is under way."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for number in range(3):
            await client.table("t").put({"id": number})
        assert [rows_of(message) for message in sent(cluster)] == [1, 1, 1]

    play(test)


def test_puts_begun_while_records_are_under_way_share_the_next() -> None:
    """One record, one guid, one position; each caller is notified of its own row."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, *range(18))
        late.append(asyncio.ensure_future(table.delete(18)))
        await settle()
        assert len(sent(cluster)) == 2
        held.answer()
        acks = await asyncio.gather(*late)
        held.answer()
        await asyncio.gather(*early)
        assert [rows_of(message) for message in sent(cluster)] == [1, 1, 19]
        assert len({ack.guid for ack in acks}) == len({ack.position for ack in acks}) == 1
        assert {ack.rows for ack in acks} == {1}
        assert (await client.fate(acks[7].guid)).fate == "committed"
        assert [row["v"] async for row in table.scan(stop=20)] == list(range(18))

    play(test, SLOW)


def test_puts_of_one_turn_share_a_record_once_one_is_under_way() -> None:
    """The first of many leaves at once, those begun in the same turn follow together."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": 100})
        await asyncio.gather(*begin(table, *range(10)))
        assert [rows_of(message) for message in sent(cluster)] == [1, 1, 9]

    play(test)


def test_writes_of_one_key_never_share_a_record() -> None:
    """Each has a version of its own, in the order of the calls, as ``if_position`` shows."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, 7, 7, 7)
        await settle()
        held.answer_all()
        acks = await asyncio.gather(*late)
        assert [before.seq < after.seq for before, after in pairwise(acks)] == [True, True]
        with pytest.raises(ConflictError):
            await table.put({"id": 7}, if_position=acks[0].position)
        assert await table.get(7) == {"id": 7, "v": 2}
        await asyncio.gather(*early)

    play(test, SLOW)


def test_later_write_of_a_key_waits_for_the_retry_of_the_earlier() -> None:
    """The second stays behind the first even when that one is refused and sent again."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        cluster.nodes["n1"].publish_scripts.extend([refuse("overloaded")] * 3)
        puts = begin(table, 7, 7)
        await asyncio.gather(*puts)
        assert await table.get(7) == {"id": 7, "v": 1}
        guids = [message.guid for message in sent(cluster)]
        assert guids == [guids[0]] * 4 + [guids[4]]

    play(test)


def test_conditional_writes_leave_alone_and_in_the_order_of_their_key() -> None:
    """They do not wait for records under way, but for unconditional writes of their key."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        others = [
            asyncio.ensure_future(table.put({"id": number}, if_absent=True))
            for number in (1, 2, 101)
        ]
        await asyncio.gather(*others[:2])
        assert [message.kind for message in sent(cluster)[2:]] == [RecordKind.CONDITIONAL] * 2
        held.answer_all()
        with pytest.raises(ConflictError):
            await others[2]
        await asyncio.gather(*early)

    play(test, SLOW)


def test_row_that_cannot_be_written_fails_alone() -> None:
    """A wrong or too large row of one caller leaves those that were begun with it as they are."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        rows = [{"id": 1}, {"id": [2]}, {"id": 3, "v": b"x" * (1 << 21)}, {"id": 4}]
        late = [asyncio.ensure_future(table.put(row)) for row in rows]
        await settle()
        held.answer_all()
        told = await asyncio.gather(*late, return_exceptions=True)
        assert [isinstance(each, WriteAck) for each in told] == [True, False, False, True]
        await asyncio.gather(*early)

    play(test, SLOW)


def test_record_is_bounded_in_rows_and_bytes() -> None:
    """1,000 rows or 1 MiB, like those of ``put_many``."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, *range(1_500))
        late += [
            asyncio.ensure_future(table.put({"id": number, "v": b"x" * 600_000}))
            for number in range(2_000, 2_003)
        ]
        await settle()
        held.answer_all()
        await asyncio.gather(*early, *late)
        sizes = [(rows_of(message), len(message.payload)) for message in sent(cluster)[2:]]
        assert sum(rows for rows, _ in sizes) == 1_503
        assert max(rows for rows, _ in sizes) == 1_000
        assert max(size for _, size in sizes) <= 1 << 20

    play(test, SLOW)


def test_every_caller_is_told_the_fate_of_a_record_in_doubt() -> None:
    """UNKNOWN with the guid they share, each in an exception of its own; no attempt comes later."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        cluster.nodes["n1"].publish_scripts.extend([apply_and_lose] + [silence] * 50)
        late = [*begin(table, 1, 2, timeout=0.5), *begin(table, 3, timeout=0.54)]
        await settle()
        held.answer_all()
        told = await asyncio.gather(*late, return_exceptions=True)
        assert all(isinstance(error, ConnectionInDoubtError) for error in told)
        assert len({id(error) for error in told}) == 3
        (guid,) = {error.guid for error in told if isinstance(error, RequestError)}
        assert str(told[0]).endswith(f"raftstore fate {guid}")
        attempts = len(sent(cluster))
        cluster.nodes["n1"].publish_scripts.clear()
        assert len({message.guid for message in sent(cluster)}) == 3
        assert (await client.fate(str(guid))).fate == "committed"
        await table.put({"id": 9})
        assert len(sent(cluster)) == attempts + 1
        assert not any(channel.running for channel in client._publisher._channels.values())
        await asyncio.gather(*early, return_exceptions=True)

    play(test, replace(QUICK, resend_ms=50, last_call_ms=5))


def test_callers_with_other_deadlines_do_not_share_a_record() -> None:
    """All get it at one moment: nobody with little time may end the patience of another."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        hasty = begin(table, 1, 2, timeout=0.3)
        patient = begin(table, 3, 4, timeout=30.0)
        await settle()
        cluster.nodes["n1"].publish_scripts.append(silence)
        held.answer_all()
        told = await asyncio.gather(*hasty, return_exceptions=True)
        assert all(isinstance(error, ConnectionInDoubtError) for error in told)
        await asyncio.gather(*patient, *early)
        assert [rows_of(message) for message in sent(cluster)[2:]] == [2, 2]

    play(test, SLOW)


def test_rows_that_certainly_were_not_applied_leave_again_while_they_have_time() -> None:
    """The first deadline of a refused record ends nobody else's write: it gets another guid."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        node = cluster.nodes["n1"]
        node.publish_scripts.extend([refuse("overloaded")] * 10_000)
        late = [*begin(table, 1, timeout=0.5), *begin(table, 2, timeout=0.54)]
        await settle()
        held.answer_all()
        with pytest.raises(OverloadedError) as caught:
            await late[0]
        assert caught.value.outcome is Outcome.NOT_APPLIED
        node.publish_scripts.clear()
        ack = await late[1]
        assert ack.guid != caught.value.guid
        assert [rows_of(message) for message in sent(cluster)[2:]][-2:] == [2, 1]
        assert len(only_channel(cluster).applied) == 3
        await asyncio.gather(*early)

    play(test, replace(SLOW, last_call_ms=5))


def test_cancelled_caller_takes_its_row_back_before_it_leaves() -> None:
    """Given a cancelled caller whose row waits, the row is not written."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, 1, 2, 2, 3)
        await settle()
        late[1].cancel()
        await settle()
        held.answer_all()
        await asyncio.gather(late[0], late[2], late[3], *early)
        assert await table.get(2) == {"id": 2, "v": 2}
        assert [rows_of(message) for message in sent(cluster)] == [1, 1, 3]

    play(test, SLOW)


def test_cancelled_caller_takes_its_row_out_of_a_record_that_was_refused() -> None:
    """The others leave again, under another guid, and without that row."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        node = cluster.nodes["n1"]
        node.publish_scripts.append(refuse("overloaded"))
        late = begin(table, 1, 2, 3)
        await settle()
        held.answer_all()
        await cluster.until(lambda: len(node.published) == 3)
        await cluster.until(
            lambda: all(
                running.state.is_certainly_not_applied
                for channel in client._publisher._channels.values()
                for running in channel.running.values()
            )
        )
        late[1].cancel()
        await asyncio.gather(late[0], late[2], *early)
        assert await table.get(2) is None
        assert [rows_of(message) for message in sent(cluster)[2:]] == [3, 2]
        assert len({message.guid for message in sent(cluster)[2:]}) == 2

    play(test, replace(SLOW, retry_min_ms=500, retry_max_ms=500))


def test_cancelled_caller_leaves_a_record_that_was_sent_to_the_others() -> None:
    """Whether its row is applied is unknown; the others learn what became of theirs."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 3)
        early = await under_way(cluster, table, held)
        late = begin(table, 1, 2, 3)
        await settle()
        held.answer()
        held.answer()
        await held.until(1)
        late[1].cancel()
        await settle()
        held.answer()
        await asyncio.gather(late[0], late[2], *early)
        assert await table.get(2) == {"id": 2, "v": 1}
        assert [rows_of(message) for message in sent(cluster)] == [1, 1, 3]

    play(test, SLOW)


def test_row_that_waits_past_its_deadline_was_not_sent() -> None:
    """NOT_APPLIED, with what it waited for; nothing of it is written later."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, 1, 101, timeout=0.05)
        for each in late:
            with pytest.raises(RequestTimeoutError, match="n1 has not answered yet"):
                await each
        held.answer_all()
        await asyncio.gather(*early)
        await table.put({"id": 9})
        assert [rows_of(message) for message in sent(cluster)] == [1, 1, 1]

    play(test, SLOW)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_rows_that_wait_end_with_the_client_and_with_the_table(*, is_dropped: bool) -> None:
    """Given rows that wait, closing the client or dropping the table ends them with NOT_APPLIED, as
    they were never sent.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, 1, 2, 2)
        late.append(asyncio.ensure_future(table.put({"id": 101}, if_absent=True)))
        await settle()
        if is_dropped:
            cluster.drop_table("t")
            await client.tables()
        else:
            await client.close()
        told = await asyncio.gather(*late, return_exceptions=True)
        kind = UnknownTableError if is_dropped else UnavailableError
        assert {type(error) for error in told} == {kind}
        assert all(error.outcome is Outcome.NOT_APPLIED for error in told)
        await asyncio.gather(*early, return_exceptions=True)

    play(test, SLOW)


def test_rows_wait_for_a_guid_when_the_window_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.5: the oldest write without an outcome holds up those that would be distinguished no
    more."""
    monkeypatch.setattr(
        "raftstore.client.writes.publisher.ProducerSession", partial(ProducerSession, window=3)
    )

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = [asyncio.ensure_future(table.put({"id": n}, if_absent=True)) for n in range(3)]
        await settle()
        assert len(sent(cluster)) == 2
        held.answer(1)
        await settle()
        assert len(sent(cluster)) == 2
        held.answer()
        await asyncio.gather(*early, *late)

    play(test, SLOW)


def test_waiting_rows_are_bounded_and_the_next_callers_wait() -> None:
    """Each counts 1 KiB more than its bytes, so that small rows are bounded, too."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, *range(30))
        await settle()
        (channel,) = client._publisher._channels.values()
        assert len(channel.rows._waiting()) < 15
        with pytest.raises(RequestTimeoutError, match="bytes in flight, the limit is 16384"):
            await table.put({"id": 99}, timeout=0.05)
        held.answer_all()
        await asyncio.gather(*early, *late)
        assert channel.budget.used == 0

    play(test, replace(SLOW, channel_bytes_max=16_384))


def test_refused_record_is_refused_to_every_caller() -> None:
    """A final refusal is raised to each of them, with the guid of their record."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        held = Held(cluster, 2)
        early = await under_way(cluster, table, held)
        late = begin(table, 1, 2)
        await settle()
        cluster.nodes["n1"].publish_scripts.append(refuse("schema"))
        held.answer_all()
        told = await asyncio.gather(*late, return_exceptions=True)
        assert {type(error) for error in told} == {SchemaError}
        assert told[0] is not told[1]
        assert len({error.guid for error in told if isinstance(error, SchemaError)}) == 1
        await asyncio.gather(*early)

    play(test, SLOW)
