"""Atomic micro-batches through the client: what is asked again, and what is final."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from raftstore.aio import AsyncClient
from raftstore.client.batches import batch_writes
from raftstore.client.batches.batch_writes import manifest_of
from raftstore.client.batches.stager import StagedParts
from raftstore.errors import (
    ArgumentError,
    AttemptClosedError,
    BatchPendingError,
    BatchRegressionError,
    ConnectionInDoubtError,
    PayloadTooLargeError,
    RequestError,
    StoreTooOldError,
    UnknownTableError,
    WriterFencedError,
)
from raftstore.protocol.admin import UNREGISTERED
from raftstore.protocol.batches import BeginBatch, CommitBatch
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.types import Outcome, RecordKind
from tests.batch_truth import BatchTruth
from tests.integration.client.fake_batches import decide
from tests.integration.client.fake_cluster import (
    FakeCluster,
    FakeNode,
    apply_and,
    fail,
    lose,
    refuse,
    silence,
)
from tests.integration.client.play import play

ROWS = [{"id": n, "v": n * n} for n in range(40)]
CELLS = encode_rows([(b"k", seal(b"k", b"v"))])


def truth_of(cluster: FakeCluster, table: str = "t") -> BatchTruth:
    """The table's batches."""
    truth = cluster.channels[cluster.tables[table].channels[0].channel].batches
    assert truth is not None
    return truth


def do_and_lose(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """Do what is asked, and drop the connections before the answer."""
    decide(node.cluster, message)
    node.drop_connections()


def do_and_say(code: str) -> Callable[[FakeNode, Message, Callable[[Message], None]], None]:
    """Do what is asked, and answer with a refusal."""

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        decide(node.cluster, message)
        fail(code)(node, message, reply)

    return script


async def rows_of(client: AsyncClient, table: str = "t") -> list[dict]:
    """All rows of a table."""
    return [row async for row in client.table(table).scan()]


def test_batch_is_seen_at_once_and_only_once() -> None:
    """Staged rows are invisible; the commit shows all; the same batch again changes nothing."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ticket = await table.begin_batch("w", 3)
        assert (ticket.verdict, ticket.attempt, ticket.is_already_written) == ("opened", 1, False)
        async with await table.stager(ticket, 0, 7) as stager:
            for partition in (2, 0):
                await stager.add(partition, CELLS, 1)
        staged = stager.staged
        assert [part.partition for part in staged.parts] == [0, 2]
        assert staged.rows == 2
        assert await rows_of(client) == []
        result = await table.commit_batch(ticket, [staged])
        assert (result.n, result.rows, result.already) == (1, 2, False)
        assert result.vector == (1, 0, 1)
        again = await table.write_batch(ROWS, writer="w", batch_id=3)
        assert (again.n, again.already) == (1, True)
        assert len(truth_of(cluster).decisions) == 1
        assert {m.kind for c in cluster.channels.values() for m in c.applied} == {RecordKind.STAGED}

    play(test, partitions=3)


def test_batches_of_a_writer_write_replace_and_remove() -> None:
    """``write_batch``: rows and deletes in one batch; overwrite leaves nothing of before."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        first = await table.write_batch(ROWS, writer="w", batch_id=0)
        assert first.rows == 40
        assert await rows_of(client) == ROWS
        second = await table.write_batch([{"id": 1, "v": 0}], writer="w", batch_id=5, deletes=[2])
        assert second.n == 2
        assert await rows_of(client) == [ROWS[0], {"id": 1, "v": 0}, *ROWS[3:]]
        third = await table.write_batch(ROWS[:1], writer="w", batch_id=6, mode="overwrite")
        assert third.vector == (3, 3)
        assert await rows_of(client) == ROWS[:1]
        empty = await table.write_batch([], writer="w", batch_id=7)
        assert (empty.n, empty.rows) == (4, 0)
        with pytest.raises(ArgumentError, match="mode='replace' is unknown"):
            await table.write_batch([], writer="w", batch_id=8, mode="replace")
        told = await table.writers()
        assert (told.next_commit, told.applied_everywhere, told.outbox) == (5, 4, 0)
        assert [(view.writer, view.last_batch, view.open_batch) for view in told.writers] == [
            ("w", 7, 8)
        ]
        assert (await table.writers("nobody")).writers == ()

    play(test, partitions=2)


def test_lost_answers_are_asked_again_and_change_nothing_twice() -> None:
    """BEGIN and COMMIT are repeated with the same uuid and attempt; "pending" is asked again."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n1"]
        node.request_scripts += [fail("overloaded"), do_and_lose]
        table = client.table("t")
        ticket = await table.begin_batch("w", 0)
        assert ticket.attempt == 1
        async with await table.stager(ticket, 0, 0) as stager:
            await stager.add(0, CELLS, 1)
        node.request_scripts += [
            do_and_say("batch_pending"),
            fail("batch_pending"),
            do_and_lose,
            fail("leadership_lost"),
        ]
        result = await table.commit_batch(ticket, [stager.staged])
        assert (result.n, result.rows) == (1, 1)
        assert len(truth_of(cluster).decisions) == 1
        assert not node.request_scripts

    play(test)


def test_new_leader_of_partition_0_is_asked() -> None:
    """A coordinator that was deposed is left behind, also in the middle of a batch."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ticket = await table.begin_batch("w", 0)
        cluster.elect(cluster.channels[cluster.tables["t"].channels[0].channel], "n2")
        result = await table.commit_batch(ticket, [])
        assert (result.n, result.vector) == (1, (0,))

    play(test)


def test_pending_batch_is_unknown_when_the_time_is_up() -> None:
    """It may be decided already, so the error says UNKNOWN, and that asking again is right."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ticket = await table.begin_batch("w", 0)
        cluster.nodes["n1"].request_scripts += [fail("batch_pending")] * 200
        with pytest.raises(BatchPendingError) as caught:
            await table.commit_batch(ticket, [], timeout=0.1)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert caught.value.retriable
        cluster.nodes["n1"].request_scripts.clear()
        cluster.nodes["n1"].request_scripts += [silence] * 200
        with pytest.raises(ConnectionInDoubtError) as doubt:
            await table.commit_batch(ticket, [], timeout=0.1)
        assert doubt.value.outcome is Outcome.UNKNOWN
        with pytest.raises(ConnectionInDoubtError):
            await table.begin_batch("w", 1, timeout=0.1)

    play(test)


def test_refusal_after_a_lost_answer_is_not_asked_for_again_and_again() -> None:
    """Given a lost answer and then refusals, the commit is reported unknown at the first refusal
    (S4.1); the manifest is not sent again until the time is up.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ticket = await table.begin_batch("w", 0)
        refusals = [fail("batch_incomplete")] * 100
        cluster.nodes["n1"].request_scripts += [lose, *refusals]
        with pytest.raises(ConnectionInDoubtError, match="by script") as doubt:
            await table.commit_batch(ticket, [], timeout=300)
        assert doubt.value.outcome is Outcome.UNKNOWN
        assert len(cluster.nodes["n1"].request_scripts) == len(refusals) - 1

    play(test)


def test_fenced_driver_stops_at_once() -> None:
    """Another attempt began: the commit is refused for good, and says nothing of whose rows are
    there, also when an answer was lost before."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        old = await table.begin_batch("w", 0)
        new = await table.begin_batch("w", 0)
        assert new.attempt == old.attempt + 1
        node = cluster.nodes["n1"]
        for scripts in ([], [lose]):
            node.request_scripts += scripts
            asked = truth_of(cluster)
            with pytest.raises(WriterFencedError) as caught:
                await table.commit_batch(old, [])
            assert caught.value.outcome is Outcome.UNKNOWN
            assert not caught.value.retriable
        assert asked.decisions == []
        await table.abort_batch(new)
        await table.abort_batch(new)
        with pytest.raises(WriterFencedError):
            await table.commit_batch(new, [])

    play(test)


def test_lower_batch_or_other_checkpoint_is_refused_until_the_writer_is_adopted() -> None:
    """REGRESSION is final, also after an answer that was lost; the operator may adopt or remove."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.write_batch(ROWS, writer="w", batch_id=9, lineage="c1")
        cluster.nodes["n1"].request_scripts += [lose]
        with pytest.raises(BatchRegressionError, match="at batch 9 already") as caught:
            await table.begin_batch("w", 8, lineage="c1")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(BatchRegressionError, match="of another checkpoint"):
            await table.begin_batch("w", 10, lineage="c2")
        await client.adopt_writer("t", "w", lineage="c2")
        assert (await table.begin_batch("w", 0, lineage="c2")).verdict == "opened"
        await client.remove_writer("t", "w")
        assert (await table.writers()).writers == ()
        assert await rows_of(client) == ROWS

    play(test)


def test_batch_waits_for_nodes_that_register_in_the_first_moments_of_a_cluster() -> None:
    """Until then nobody can say whether they are older."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        n2 = cluster.nodes["n2"]
        n2.level, n2.state = 0, UNREGISTERED
        cluster.version += 1
        await client.tables()

        def register() -> None:
            n2.level, n2.state = 1, ""

        asyncio.get_running_loop().call_later(0.3, register)
        assert (await client.table("t").write_batch(ROWS, writer="w", batch_id=0)).n == 1

    play(test)


def test_nothing_is_sent_while_a_node_is_of_an_older_version() -> None:
    """The levels are those of ClusterInfo; an upgrade is seen when it is asked for again."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        cluster.nodes["n2"].level = 0
        cluster.version += 1
        await client.tables()
        for _ in range(2):
            with pytest.raises(StoreTooOldError, match=r"n2 is at level 0.*isolation=row"):
                await table.write_batch(ROWS, writer="w", batch_id=0)
        assert truth_of(cluster).begun == 0
        cluster.nodes["n2"].level = 1
        assert (await table.write_batch(ROWS, writer="w", batch_id=0)).n == 1

    play(test)


def test_chunk_is_staged_again_under_a_new_guid_when_its_guid_expired() -> None:
    """The copy has the same name in the batch, so it counts once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n1"]
        table = client.table("t")
        ticket = await table.begin_batch("w", 0)
        node.publish_scripts += [apply_and("guid_expired"), refuse("overloaded")]
        async with await table.stager(ticket, 0, 0) as stager:
            await stager.add(0, CELLS, 1)
            staged = await stager.flush()
        assert staged.parts[0].chunks == 1
        assert len({message.guid for message in node.published}) == 2
        assert len({bytes(message.payload) for message in node.published}) == 1
        assert len(truth_of(cluster).chunks) == 1
        assert (await table.commit_batch(ticket, [staged])).rows == 1

    play(test)


def test_stager_stops_at_the_first_chunk_that_is_refused() -> None:
    """``attempt_closed`` is final; ``write_batch`` then gives its attempt up."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n1"]
        table = client.table("t")
        ticket = await table.begin_batch("w", 0)
        node.publish_scripts += [refuse("attempt_closed")]
        stager = await table.stager(ticket, 0, 0)
        await stager.add(0, CELLS, 1)
        with pytest.raises(AttemptClosedError):
            await stager.flush()
        with pytest.raises(AttemptClosedError):
            await stager.add(0, CELLS, 1)
        await stager.close()
        node.publish_scripts += [refuse("attempt_closed")]
        with pytest.raises(AttemptClosedError):
            await table.write_batch(ROWS, writer="w", batch_id=0)
        assert [view.open_attempt for view in truth_of(cluster).views()] == [-1]
        assert truth_of(cluster).chunks == {}

    play(test)


def test_ticket_of_another_table_or_of_a_written_batch_stages_nothing() -> None:
    """S0.8: a table that was made anew has other attempts."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.write_batch(ROWS, writer="w", batch_id=0)
        done = await table.begin_batch("w", 0)
        with pytest.raises(ArgumentError, match="is in the table already"):
            await table.stager(done, 0, 0)
        await table.abort_batch(done)
        assert (await table.commit_batch(done, [])).already
        ticket = await table.begin_batch("w", 1)
        cluster.drop_table("t")
        cluster.add_table("t")
        await client.tables()
        for call in (table.stager(ticket, 0, 0), table.commit_batch(ticket, [])):
            with pytest.raises(UnknownTableError, match="dropped and created again"):
                await call

    play(test)


def test_manifest_that_cannot_be_is_refused_before_anything_is_sent() -> None:
    """Too many tasks for one record, two attempts of one task, names that cannot be."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ticket = await table.begin_batch("w", 0)
        with pytest.raises(PayloadTooLargeError, match="write it with fewer tasks"):
            await table.commit_batch(ticket, [StagedParts(n, 2**62) for n in range(90_000)])
        with pytest.raises(ArgumentError, match="two attempts of one task"):
            await table.commit_batch(ticket, [StagedParts(1, 1), StagedParts(1, 2)])
        for writer, batch_id, uuid in (("", 0, None), ("w", -1, None), ("w", 0, b"short")):
            with pytest.raises(ArgumentError):
                await table.begin_batch(writer, batch_id, uuid=uuid)
        assert truth_of(cluster).begun == 1

    play(test)


def test_manifest_lists_tasks_and_partitions_in_order() -> None:
    """The same whatever the order of the messages; a replacement names every partition."""
    tasks = [StagedParts(2, 20), StagedParts(0, 5)]
    manifest = manifest_of(tasks, "overwrite", 2)
    assert manifest.winners == ((0, 5), (2, 20))
    assert [part.partition for part in manifest.parts] == [0, 1]
    assert manifest == manifest_of(reversed(tasks), "overwrite", 2)


def test_coordinator_that_hangs_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stands, but it has not answered in the time that it had."""
    monkeypatch.setattr(batch_writes, "ASK_MS_MAX", 20)

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].request_scripts += [silence, silence]
        ticket = await client.table("t").begin_batch("w", 0)
        assert ticket.verdict == "opened"

    play(test)


def test_requests_are_bounded_by_the_time_a_node_may_take() -> None:
    """A coordinator that waits long answers that it is pending, so that it is known to live."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        seen: list[int] = []

        def note(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            assert isinstance(message, BeginBatch | CommitBatch)
            seen.append(message.timeout_ms)
            reply(decide(node.cluster, message))

        cluster.nodes["n1"].request_scripts += [note, note]
        table = client.table("t")
        ticket = await table.begin_batch("w", 0, timeout=300)
        await table.commit_batch(ticket, [], timeout=2)
        assert seen[0] == 10_000
        assert 1_000 < seen[1] < 2_000

    play(test)


def test_errors_of_batches_are_request_errors() -> None:
    """An ``except`` clause for the errors of requests catches these, too."""
    for error in (WriterFencedError, BatchRegressionError, BatchPendingError, AttemptClosedError):
        assert issubclass(error, RequestError)
