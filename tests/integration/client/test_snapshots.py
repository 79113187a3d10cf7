"""One state of all partitions from replicas that are not all at the same commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest
from msgspec import structs

from raftstore.aio import AsyncClient, AsyncTable
from raftstore.client.batches.batch_writes import BatchResult
from raftstore.errors import (
    ArgumentError,
    DecodeError,
    NoReplicaAvailableError,
    NotUpToBoundError,
    PageExpiredError,
    SnapshotExpiredError,
    StoreTooOldError,
    UnknownTableError,
)
from raftstore.protocol.message import Message
from raftstore.protocol.reads import Get
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from tests.integration.client.fake_cluster import (
    Channel,
    FakeCluster,
    FakeNode,
    execute,
    fail,
    lose,
    silence,
)
from tests.integration.client.fake_requests import read as answer_read
from tests.integration.client.play import play

PARTITIONS = 3
KEYS = [
    next(key for key in range(1_000) if partition_of(encode_key((key,)), PARTITIONS) == partition)
    for partition in range(PARTITIONS)
]
"""One key of each partition."""


async def commit(
    client: AsyncClient, batch_id: int, partitions: Iterable[int] = range(PARTITIONS)
) -> BatchResult:
    """Write the number of a batch into one row of some partitions."""
    rows = [{"id": KEYS[partition], "batch": batch_id} for partition in partitions]
    return await client.table("t").write_batch(rows, writer="w", batch_id=batch_id)


def channels_of(cluster: FakeCluster) -> list[Channel]:
    return [cluster.channels[info.channel] for info in cluster.tables["t"].channels]


def asked(cluster: FakeCluster) -> int:
    return sum(len(node.snapshots) for node in cluster.nodes.values())


def pins(cluster: FakeCluster) -> int:
    return sum(len(node.pins) for node in cluster.nodes.values())


def more_without_rows(node: FakeNode) -> list[Message]:
    """The next page that the node answers is empty and says that it is not the last."""
    told: list[Message] = []

    def script(_: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        def lie(answer: Message) -> None:
            told.append(answer)
            reply(structs.replace(answer, rows=(), more=True))

        answer_read(node, message, lie)

    node.read_scripts.append(script)
    return told


async def read(table: AsyncTable, **options: object) -> list[int | None]:
    """The numbers of the batches that a snapshot shows."""
    async with await table.snapshot(**options) as snapshot:
        rows = await snapshot.get_many(KEYS)
        scanned = {row["id"]: row["batch"] async for row in snapshot.scan()}
        assert scanned == {row["id"]: row["batch"] for row in rows if row is not None}
        assert await snapshot.count() == len(scanned)
        return [None if row is None else row["batch"] for row in rows]


def test_snapshot_takes_one_round_when_nobody_is_behind() -> None:
    """Every channel is asked once, and the nodes are notified when the states are not needed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        assert await read(table) == [None, None, None]
        result = await commit(client, 7)
        before = asked(cluster)
        assert await read(table, level="any") == [7, 7, 7]
        assert asked(cluster) - before == PARTITIONS
        async with await table.snapshot(at_least=result) as snapshot:
            assert (snapshot.n, snapshot.vector) == (1, (1, 1, 1))
        await cluster.until(lambda: pins(cluster) == 0)

    play(test, partitions=PARTITIONS)


def test_channels_that_are_behind_are_asked_again_elsewhere() -> None:
    """The leader of partition 1 does not come to the commit in time: another replica does."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await commit(client, 0)
        await commit(client, 1)
        late = channels_of(cluster)[1].channel
        cluster.nodes["n1"].commits_behind[late] = 1
        assert await read(client.table("t"), level="any") == [1, 1, 1]
        wanted = [
            request.as_of
            for node in cluster.nodes.values()
            for request in node.snapshots
            if request.channel == late
        ]
        assert wanted[0] == 0
        assert set(wanted[1:]) == {2}

    play(test, partitions=PARTITIONS)


def test_snapshots_of_a_client_never_go_back() -> None:
    """All replicas are behind what the client has committed itself: they are waited for, and at
    last that is what the error says."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await commit(client, 0)
        await commit(client, 1, [0, 2])
        for node in cluster.nodes.values():
            node.commits_behind[channels_of(cluster)[0].channel] = 1
            node.commits_behind[channels_of(cluster)[2].channel] = 1
        with pytest.raises(NotUpToBoundError):
            await table.snapshot(level="any", timeout=0.3)
        cluster.nodes["n3"].commits_behind.clear()
        assert await read(table, level="any") == [1, 0, 1]

    play(test, partitions=PARTITIONS)


def test_linearizable_snapshot_asks_the_leaders_first_and_then_any_replica() -> None:
    """A linearizable snapshot asks the leaders for their positions first, so it has every row that
    was acknowledged before the call.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": KEYS[0], "batch": -1})
        assert await read(table, prefer="any_in_bound") == [-1, None, None]
        probes = [read for read in cluster.nodes["n1"].reads if not read.pin]
        assert [(probe.keys, probe.level) for probe in probes] == [((), "linearizable")] * 3
        first = [request.min_seq for node in cluster.nodes.values() for request in node.snapshots]
        assert sorted(first) == [0, 0, 1]

    play(test, partitions=PARTITIONS)


def test_bounded_snapshot_has_what_a_replica_within_the_bound_has_or_is_refused() -> None:
    """A replica within the bound says what must be in it; without one it is refused at once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await commit(client, 0)
        for node in cluster.nodes.values():
            node.lag = 5
        with pytest.raises(NoReplicaAvailableError, match="max allowed lag"):
            await table.snapshot(max_lag=4)
        assert asked(cluster) == 0
        cluster.nodes["n2"].lag = 4
        async with await table.snapshot(max_lag=4) as snapshot:
            assert [row["batch"] for row in await snapshot.get_many(KEYS) if row] == [0, 0, 0]
        told = [read for read in cluster.nodes["n2"].reads if read.level == "bounded"]
        assert [(probe.keys, probe.max_lag) for probe in told[-3:]] == [((), 4)] * 3
        least = [request.min_seq for node in cluster.nodes.values() for request in node.snapshots]
        assert least == [channel.seq for channel in channels_of(cluster)]
        assert min(least) > 0

    play(test, partitions=PARTITIONS)


def test_keys_of_a_snapshot_are_read_with_one_request_a_partition() -> None:
    """All keys of a partition at once, in the state that was pinned; absent ones are None."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many({"id": number, "batch": 0} for number in range(50))
        async with await table.snapshot() as snapshot:
            await table.put_many({"id": number, "batch": 1} for number in range(60))
            for node in cluster.nodes.values():
                node.reads.clear()
            rows = await snapshot.get_many(range(60))
            assert [row and row["batch"] for row in rows] == [0] * 50 + [None] * 10
            reads = [read for node in cluster.nodes.values() for read in node.reads]
            assert len(reads) == PARTITIONS
            assert all(isinstance(read, Get) and read.pin for read in reads)
            cluster.nodes["n1"].read_scripts.extend([fail("payload_too_large")] * 2)
            assert await snapshot.get_many(range(60)) == rows

    play(test, partitions=PARTITIONS)


def test_node_that_answers_keys_of_another_state_is_an_error() -> None:
    """One of a version that does not know pinned keys would answer of the present."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await commit(client, 0)
        async with await table.snapshot() as snapshot:

            def ignorant(node: FakeNode, message: Message, reply: Callable[..., None]) -> None:
                answer_read(node, structs.replace(message, pin=0), reply)

            for node in cluster.nodes.values():
                node.read_scripts.extend([ignorant] * PARTITIONS)
            with pytest.raises(DecodeError, match="another state than the pinned one"):
                await snapshot.get_many(KEYS)

    play(test, partitions=PARTITIONS)


def test_snapshot_that_was_overtaken_is_begun_again() -> None:
    """The state asked for again is gone: there is a newer one, and nothing stays pinned."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await commit(client, 0)
        await commit(client, 1)
        late = channels_of(cluster)[2].channel
        cluster.nodes["n1"].commits_behind[late] = 1

        def overtaken(node, message, reply) -> None:  # type: ignore[no-untyped-def]
            node.commits_behind.clear()
            fail("snapshot_expired")(node, message, reply)

        cluster.nodes["n1"].request_scripts.extend([execute, execute, execute, overtaken])
        table = client.table("t")
        async with await table.snapshot(level="any") as snapshot:
            assert [row["batch"] for row in await snapshot.get_many(KEYS) if row] == [1, 1, 1]
            await cluster.until(lambda: pins(cluster) == PARTITIONS)

    play(test, partitions=PARTITIONS)


def test_state_after_a_batch_is_had_while_it_is_kept_and_then_refused() -> None:
    """``at_batch``: by the result of the commit, or by name while it is the newest."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        first = await commit(client, 0)
        assert await read(table, at_batch=("w", 0)) == [0, 0, 0]
        await commit(client, 1)
        assert await read(table, at_batch=first) == [0, 0, 0]
        with pytest.raises(ArgumentError, match="both given"):
            await table.snapshot(at_batch=first, at_least=first)
        with pytest.raises(ArgumentError, match="must have 1 to"):
            await table.snapshot(at_batch=("", 1))
        assert await read(table, level="any") == [1, 1, 1]
        with pytest.raises(SnapshotExpiredError, match="no longer known"):
            await table.snapshot(at_batch=("w", 0))
        with pytest.raises(ArgumentError, match="give either at_batch or bounds"):
            await table.snapshot(at_batch=first, max_lag=1)
        for node in cluster.nodes.values():
            node.kept = 0
        with pytest.raises(SnapshotExpiredError, match="no longer"):
            await table.snapshot(at_batch=first)

    play(test, partitions=PARTITIONS)


@pytest.mark.slow
def test_batch_that_is_not_committed_yet_is_waited_for() -> None:
    """Up to the timeout; then the refusal says which is the last, or that there is none."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await commit(client, 0)
        for batch, why in ((("w", 2), "last is 0"), (("x", 0), "nor is such a writer known")):
            with pytest.raises(NotUpToBoundError, match=why):
                await table.snapshot(at_batch=batch, timeout=1.5)
        is_asked = asyncio.Event()

        def first(node: FakeNode, message: Message, reply: Callable[..., None]) -> None:
            is_asked.set()
            execute(node, message, reply)

        cluster.nodes["n1"].request_scripts.append(first)
        waiting = asyncio.ensure_future(table.snapshot(at_batch=("w", 2)))
        await is_asked.wait()
        await commit(client, 1)
        second = await commit(client, 2)
        async with await waiting as snapshot:
            assert snapshot.vector == second.vector

    play(test, partitions=PARTITIONS)


def test_snapshot_survives_a_node_that_is_silent_or_dead_when_it_is_opened() -> None:
    """Any replica may serve; what is pinned at a node that dies later is gone, and said so."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await commit(client, 0)
        cluster.nodes["n1"].request_scripts.extend([silence, lose])
        snapshot = await table.snapshot(level="any")
        assert [row["batch"] for row in await snapshot.get_many(KEYS) if row] == [0, 0, 0]
        for name in set(snapshot.token.nodes):
            await cluster.nodes[name.partition("@")[0]].kill()
        with pytest.raises(PageExpiredError):
            await snapshot.get_many(KEYS, timeout=0.3)
        await snapshot.close()

    play(test, partitions=PARTITIONS)


def test_snapshot_is_read_elsewhere_by_its_token() -> None:
    """Page by page of one partition, too; not of another table, and not when it is closed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await commit(client, 0)
        snapshot = await table.snapshot()
        await commit(client, 1)
        again = await table.read_snapshot(snapshot.token)
        assert [row["batch"] for row in await again.get_many(KEYS) if row] == [0, 0, 0]
        pages = [page async for page in again.pages(1)]
        assert [key for page in pages for key, _, _ in page] == [encode_key((KEYS[1],))]
        lie = more_without_rows(cluster.nodes[snapshot.token.nodes[1].partition("@")[0]])
        with pytest.raises(DecodeError, match="has more"):
            _ = [page async for page in again.pages(1)]
        assert lie
        await snapshot.close()
        with pytest.raises(ArgumentError, match="closed"):
            await snapshot.get_many(KEYS)
        cluster.drop_table("t")
        cluster.add_table("t", PARTITIONS)
        with pytest.raises((UnknownTableError, PageExpiredError)):
            await (await client.table("t").read_snapshot(snapshot.token)).count()

    play(test, partitions=PARTITIONS)


def test_what_no_snapshot_can_be_is_refused_before_anything_is_asked() -> None:
    """Levels without meaning, and reads of a snapshot that nobody keeps."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        for level in ("leader", "newest"):
            with pytest.raises(ArgumentError, match="level"):
                await table.snapshot(level=level)
        with pytest.raises(ArgumentError, match="at_least=7 is no position"):
            await table.snapshot(at_least=7)
        told = await table.snapshot(keep=False)
        assert (told.n, told.vector, told.token.pins) == (0, (0, 0, 0), ())
        with pytest.raises(ArgumentError, match="keep=False"):
            await told.count()
        await told.close()

    play(test, partitions=PARTITIONS)


def test_node_that_contradicts_the_others_is_an_error() -> None:
    """Never a mixture."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await commit(client, 0)
        channel = channels_of(cluster)[0]
        (state,) = channel.history
        channel.history.append(type(state)(9, (9, 0, 0), state.seq, state.rows))
        with pytest.raises(DecodeError, match="contradict each other"):
            await client.table("t").snapshot(level="any")
        await cluster.until(lambda: pins(cluster) == 0)

    play(test, partitions=PARTITIONS)


def test_snapshot_is_refused_while_a_node_is_of_an_older_version() -> None:
    """Its replicas could not answer; the error names it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n2"].level = 0
        cluster.version += 1
        await client.table_info("t")
        with pytest.raises(StoreTooOldError, match="n2"):
            await client.table("t").snapshot()
        cluster.nodes["n2"].level = 1
        async with await client.table("t").snapshot() as snapshot:
            assert snapshot.n == 0

    play(test, partitions=PARTITIONS)
