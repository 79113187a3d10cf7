"""A client that drops a table names the table's writers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftstore.aio import AsyncClient
from raftstore.client.batches import dropped_writers
from raftstore.errors import DecodeError
from raftstore.protocol.admin import DropTable
from raftstore.protocol.batches import Writers
from raftstore.protocol.message import Done, Message
from tests.integration.client import fake_batches
from tests.integration.client.fake_cluster import FakeCluster, FakeNode
from tests.integration.client.fake_requests import execute
from tests.integration.client.play import play

ROWS = [{"id": 1}]


def listen(cluster: FakeCluster, kind: type[Message]) -> list[Message]:
    """Requests of a kind that nodes are asked, in order."""
    heard: list[Message] = []

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        if isinstance(message, kind):
            heard.append(message)
        execute(node, message, reply)

    for node in cluster.nodes.values():
        node.request_scripts.extend([script] * 1_000)
    return heard


def test_drop_tells_who_has_batches_that_go_on_counting() -> None:
    """By writer and checkpoint, the latest first: not a job of its own, nor an attempt that was
    never committed, nor a writer whose checkpoint nobody reported."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.write_batch(ROWS, writer="a", batch_id=3, lineage="ck a")
        await table.write_batch(ROWS, writer="b", batch_id=0, lineage="ck b")
        await table.write_batch(ROWS, writer="nobody", batch_id=1)
        await table.begin_batch("open", 1, lineage="ck c")
        await table.begin_batch("job", 0, lineage="ck d", one_shot=True)
        drops = listen(cluster, DropTable)
        await client.drop_table("t")
        [drop] = drops
        assert isinstance(drop, DropTable)
        assert sorted(drop.writers) == [("a", "ck a"), ("b", "ck b")]

    play(test)


def test_drop_tells_a_stream_however_many_jobs_stand_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node names so many writers at a time, by name, and each job without a name has its own."""
    monkeypatch.setattr(fake_batches, "WRITERS_MAX", 2)

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        for number in range(5):
            await table.write_batch(ROWS, writer=f"job-{number}", batch_id=0, lineage="ck")
        await table.write_batch(ROWS, writer="orders", batch_id=3, lineage="ck")
        drops = listen(cluster, DropTable)
        await client.drop_table("t")
        [drop] = drops
        assert isinstance(drop, DropTable)
        assert ("orders", "ck") in drop.writers
        assert len(drop.writers) == 6

    play(test)


def test_table_without_a_leader_is_dropped_although_nobody_tells_its_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator gets rid of a table that cannot be served any more."""
    monkeypatch.setattr(dropped_writers, "PATIENCE_MS", 50)

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.elect(cluster.channels[cluster.tables["t"].channels[0].channel], None)
        drops = listen(cluster, DropTable)
        await client.drop_table("t")
        assert [drop.writers for drop in drops if isinstance(drop, DropTable)] == [()]
        assert await client.tables() == ()

    play(test)


def test_answer_that_is_none_ends_the_drop() -> None:
    """A node that is broken must not make the catalog forget who has batches."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        def nonsense(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            assert isinstance(message, Writers)
            reply(Done(message.request_id))

        cluster.nodes["n1"].request_scripts.append(nonsense)
        with pytest.raises(DecodeError, match="answered with Done"):
            await client.drop_table("t")
        assert "t" in cluster.tables

    play(test)


def test_nodes_that_do_not_know_batches_are_not_asked_for_them() -> None:
    """An older node could not read the question."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n2"].level = 0
        cluster.version += 1
        questions = listen(cluster, Writers)
        await client.drop_table("t")
        assert questions == []

    play(test)
