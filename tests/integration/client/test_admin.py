"""First contact, tables, status, hand-over, and the blocking client with the same names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import raftstore
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.admin import CONTENT_HASHES_IN_FLIGHT
from raftstore.client.cluster.links import LinkOwner
from raftstore.client.writes.chunks import Pair
from raftstore.config import ReadSettings
from raftstore.errors import (
    ConfigError,
    ConnectionInDoubtError,
    NoReplicaAvailableError,
    OperationInDoubtError,
    PayloadTooLargeError,
    QuorumTimeoutError,
    SchemaError,
    TableExistsError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.admin import ContentHashAnswer
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Get
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.types import Outcome, node_id
from tests.integration.client.fake_cluster import (
    Answer,
    FakeCluster,
    FakeNode,
    fail,
    lose,
    refuse,
    silence,
)
from tests.integration.client.fake_requests import execute
from tests.integration.client.play import QUICK, play

SCHEMA = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"v","type":"string","nullable":true,"metadata":{}}]}'
)


def test_connect_needs_only_one_living_address() -> None:
    """Dead addresses are skipped; the rest of the cluster is learned from the one that answers."""

    async def run() -> None:
        async with FakeCluster() as cluster:
            cluster.add_table()
            endpoints = cluster.endpoints
            await cluster.nodes["n1"].kill()
            cluster.elect(cluster.channels[cluster.tables["t"].channels[0].channel], "n3")
            for given in (endpoints, endpoints.split(","), f" {cluster.nodes['n2'].endpoint} ,"):
                async with await aio.connect(given, settings=QUICK) as client:
                    await client.table("t").put({"id": 1})

    asyncio.run(run())


@pytest.mark.slow
def test_connect_tells_a_reason_per_address_when_nobody_answers() -> None:
    """No node, no cluster yet, not an address: each is said, within the timeout."""

    async def run() -> None:
        async with FakeCluster("n1", "n2") as cluster:
            cluster.cluster_id = b""
            first, second = cluster.endpoints.split(",")
            await cluster.nodes["n1"].kill()
            with pytest.raises(UnavailableError) as caught:
                await aio.connect([first, second], timeout=0.5, settings=QUICK)
            assert f"{first}: cannot connect" in str(caught.value)
            assert f"{second}: it belongs to no cluster yet" in str(caught.value)
            cluster.cluster_id = b"c" * 16
            cluster.nodes["n2"].is_silent = True
            with pytest.raises(UnavailableError, match="no answer within"):
                await aio.connect(second, timeout=0.5, settings=QUICK)
        for bad in ("", " , ", "localhost", "host:port"):
            with pytest.raises(ConfigError):
                await aio.connect(bad)
        with pytest.raises(ConfigError, match="timeout=-1"):
            await aio.connect("127.0.0.1:1", timeout=-1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_connect_waits_for_a_cluster_that_is_being_born() -> None:
    """A client that starts together with its cluster finds it within the timeout."""

    async def run() -> None:
        async with FakeCluster() as cluster:
            cluster.cluster_id = b""
            connecting = asyncio.ensure_future(aio.connect(cluster.endpoints, settings=QUICK))
            await cluster.until(lambda: any(node.connections for node in cluster.nodes.values()))
            cluster.cluster_id = b"c" * 16
            async with await connecting as client:
                assert (await client.cluster_status()).cluster_id == "63" * 16

    asyncio.run(run())


@pytest.mark.slow
def test_client_does_not_talk_to_another_node_at_an_old_address() -> None:
    """A node is known by its id: another store at its address is not mistaken for it (S0.1)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n1"]
        await client.table("t").put({"id": 1})
        await node.kill()
        node.store_id = node_id("n1", b"f" * 16)
        await node.start()
        for _ in range(3):
            assert await client.table("t").get(1, level="any") == {"id": 1}
        with pytest.raises(NoReplicaAvailableError, match="is the address of n1@6666"):
            await client.table("t").get(1, level="any", replica="n1", timeout=0.5)
        assert not any(isinstance(read, Get) for read in node.reads)

    play(test)


def test_create_table_finds_the_leader_of_the_catalog() -> None:
    """Definitions travel unchanged, and the table is usable when the call returns (GAP-07)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.tables()
        cluster.elect(cluster.metadata, "n2")
        info = await client.create_table("orders", key="id", partitions=3, schema=SCHEMA)
        assert (info.name, info.key_columns, info.partitions) == ("orders", ("id",), 3)
        assert info.schema_json == SCHEMA
        assert all(channel.leader for channel in info.channels)
        await client.table("orders").put({"id": 1, "v": "x"})
        with pytest.raises(SchemaError, match="column 'v' is string"):
            await client.table("orders").put({"id": 1, "v": 7})
        again = await client.create_table(
            "orders", key="id", partitions=3, schema=SCHEMA, if_not_exists=True
        )
        assert again.uuid == info.uuid
        with pytest.raises(TableExistsError) as caught:
            await client.create_table("orders", key=["id"])
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert [table.name for table in await client.tables()] == ["orders", "t"]
        await client.drop_table("orders")
        with pytest.raises(UnknownTableError):
            await client.table_info("orders")
        with pytest.raises(UnknownTableError):
            await client.drop_table("orders")

    play(test)


def test_table_made_anew_under_an_old_name_is_the_new_one_although_nodes_lag_behind() -> None:
    """S1.9: a change is seen before the call returns, whichever node is asked first."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.elect(cluster.metadata, "n3")
        old = await client.table_info("t")
        for name in ("n1", "n2"):
            cluster.nodes[name].copy = cluster.info(0, cluster.nodes[name])
        await client.drop_table("t")
        new = await client.create_table("t", key="id", partitions=1)
        assert new.uuid != old.uuid
        await client.table("t").put({"id": 1})

    play(test)


@pytest.mark.slow
def test_create_table_is_in_doubt_when_an_answer_was_lost() -> None:
    """Whether this call or another made the table is not known then, and said so."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].request_scripts.append(lose)
        with pytest.raises(ConnectionInDoubtError, match="the table exists now"):
            await client.create_table("t", key="id")
        cluster.nodes["n1"].request_scripts.append(lose)
        assert (await client.create_table("t", key="id", if_not_exists=True)).name == "t"
        cluster.nodes["n1"].request_scripts.extend([fail("quorum_timeout")] * 500)
        with pytest.raises(ConnectionInDoubtError, match="whether it was done is unknown"):
            await client.create_table("u", key="id", timeout=0.5)

    play(test)


def test_table_that_was_dropped_right_after_its_creation_is_said_to_be() -> None:
    """The catalog of after the creation has it not: no time is spent on looking again."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        def create_and_drop(node: FakeNode, message: Message, reply: Any) -> None:
            execute(node, message, reply)
            cluster.drop_table("u")

        cluster.nodes["n1"].request_scripts.append(create_and_drop)
        with pytest.raises(OperationInDoubtError, match="another client dropped it"):
            await client.create_table("u", key="id", timeout=60)

    play(test)


def test_final_refusal_after_a_lost_answer_leaves_the_table_in_doubt() -> None:
    """The attempt without an answer may have made it, whatever a later one is answered."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].request_scripts.extend([lose, fail("schema")])
        with pytest.raises(ConnectionInDoubtError, match="whether it was done is unknown"):
            await client.create_table("another", key="id")

    play(test)


def test_drop_table_succeeds_when_only_its_answer_was_lost() -> None:
    """A table that is gone after a lost answer is what was asked for."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        def drop_and_lose(node: object, message: object, reply: object) -> None:
            cluster.drop_table("t")
            cluster.nodes["n1"].drop_connections()

        # What is asked before is who has batches in it.
        cluster.nodes["n1"].request_scripts.extend([execute, drop_and_lose])
        await client.drop_table("t")
        assert await client.tables() == ()

    play(test)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durability": "sometimes"}, "durability='sometimes' is not known; use one of"),
        ({"max_lag": -1}, "max_lag=-1 is negative"),
        ({"key": []}, "key columns"),
        ({"key": "nope", "schema": SCHEMA}, "'nope' is not in the schema"),
        ({"schema": "{"}, "not the text that df.schema.json"),
    ],
)
def test_create_table_refuses_what_is_impossible(options: dict[str, object], text: str) -> None:
    """Impossible definitions are refused before anybody is asked."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        with pytest.raises((ConfigError, SchemaError), match=text):
            await client.create_table("x", **{"key": "id", **options})  # type: ignore[arg-type]
        assert "x" not in cluster.tables

    play(test)


def test_key_metadata_names_active_and_standby_hosts() -> None:
    """KIP-535: one call returns leader, other replicas, partition and term."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        found = await client.query_metadata_for_key("t", 1)
        assert found.active_host == cluster.nodes["n1"].endpoint
        assert found.standby_hosts == tuple(cluster.nodes[n].endpoint for n in ("n2", "n3"))
        assert (found.partition, found.term) == (0, 1)
        assert found.in_sync_standby_hosts == ()
        cluster.add_table("standby")[0].iss = (cluster.nodes["n3"].id,)
        told = await client.query_metadata_for_key("standby", 1)
        assert told.in_sync_standby_hosts == (cluster.nodes["n3"].endpoint,)
        cluster.add_table("leaderless")[0].leader = None
        missing = await client.query_metadata_for_key("leaderless", 1)
        assert (missing.active_host, len(missing.standby_hosts), missing.term) == (None, 3, 0)

    play(test)


def test_cluster_status_has_every_node_s_own_word() -> None:
    """Nodes that do not answer are shown with the reason."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await cluster.nodes["n3"].kill()
        cluster.add_table("leaderless")[0].leader = None
        status = await client.cluster_status()
        assert status.viewpoint in ("n1", "n2")
        assert [node.name for node in status.nodes] == ["n1", "n2", "n3"]
        assert status.nodes[0].status == {"node": "n1", "channels": []}
        last = status.node("n3")
        assert last is not None
        assert (last.up, last.status) == (False, None)
        assert last.error is not None
        assert status.channels_without_leader() == ("leaderless/0",)
        assert status.node("n9") is None

    play(test)


def test_content_hashes_of_equal_replicas_are_equal() -> None:
    """Every partition is hashed at the node that is asked, and only there."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put_many([{"id": n} for n in range(10)])
        digests = [await client.content_hash("t", name) for name in ("n1", "n2", "n3")]
        assert len({str(digest.content()) for digest in digests}) == 1
        assert [digest.node for digest in digests] == ["n1", "n2", "n3"]
        assert digests[0].rows == 10
        with pytest.raises(ConfigError, match="no node 'n9'"):
            await client.content_hash("t", "n9")

    play(test, partitions=2)


def test_content_hash_that_fails_leaves_no_other_going_on() -> None:
    """Given a failed part of a content hash, the call ends the other parts too."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.content_hash("t", "n1")
        before = asyncio.all_tasks()
        node = cluster.nodes["n1"]
        node.request_scripts.extend([silence, fail("payload_too_large"), silence])
        with pytest.raises(PayloadTooLargeError):
            await client.content_hash("t", "n1", timeout=60)
        assert asyncio.all_tasks() <= before

    play(test, partitions=3)


def test_content_hash_of_one_partition_asks_for_no_other() -> None:
    """To compare one channel of a large table must not cost reading all of it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put_many([{"id": n} for n in range(20)])
        whole = await client.content_hash("t", "n1")
        one = await client.content_hash("t", "n1", partition=2)
        assert one.partitions == whole.partitions[2:3]

    play(test, partitions=3)


def test_content_hashes_of_a_large_table_are_asked_for_a_few_at_a_time() -> None:
    """A node bounds what it computes at once, and a table may have thousands of partitions."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        channel_reads = client._admin._channel_reads
        ask, under_way, most = channel_reads.content_hash, 0, 0

        async def counted(*arguments: Any) -> ContentHashAnswer:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await ask(*arguments)
            finally:
                under_way -= 1

        channel_reads.content_hash = counted  # type: ignore[method-assign]
        digest = await client.content_hash("t", "n1")
        assert len(digest.partitions) == 3 * CONTENT_HASHES_IN_FLIGHT
        assert most == CONTENT_HASHES_IN_FLIGHT < ReadSettings().content_hashes_max

    play(test, partitions=3 * CONTENT_HASHES_IN_FLIGHT)


@pytest.mark.slow
def test_step_down_hands_the_channel_over_once() -> None:
    """The leader is asked, also after a hint; an unanswered request is not repeated."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        channel = cluster.channels[cluster.tables["t"].channels[0].channel]
        await client.step_down("t/0", target="n3")
        assert channel.leader == cluster.nodes["n3"].id
        await client.step_down("_metadata/0", target="n2")
        assert cluster.metadata.leader == cluster.nodes["n2"].id
        cluster.nodes["n3"].request_scripts.append(silence)
        with pytest.raises(ConnectionInDoubtError):
            await client.step_down("t/0", timeout=0.5)
        assert channel.term == 2
        for name in ("t", "t/x", "/0"):
            with pytest.raises(ConfigError, match="write table/partition"):
                await client.step_down(name)
        with pytest.raises(ConfigError, match="has the partitions 0 to 0, not 1"):
            await client.step_down("t/1")

    play(test)


@pytest.mark.slow
def test_step_down_is_done_once_the_wanted_leader_is_known() -> None:
    """The new leader shows up before the old one has answered; another node than the one that was
    named is no success."""

    def hand_over_to(name: str) -> Answer:
        def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            channel = node.cluster.channels[message.channel]  # type: ignore[attr-defined]
            node.cluster.elect(channel, name)

        return script

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        channel = cluster.channels[cluster.tables["t"].channels[0].channel]
        channel_leader = {node.id: node for node in cluster.nodes.values()}
        await client.table("t").put({"id": 1})
        channel_leader[channel.leader].request_scripts.append(hand_over_to("n3"))
        await client.step_down("t/0", target="n3", timeout=3.0)
        assert channel.leader == cluster.nodes["n3"].id
        cluster.nodes["n3"].request_scripts.append(hand_over_to("n2"))
        with pytest.raises(ConnectionInDoubtError):
            await client.step_down("t/0", target="n1", timeout=3.0)

    play(test)


@contextmanager
def cluster_in_thread() -> Iterator[FakeCluster]:
    """A fake cluster on a loop of its own, for callers that block."""
    ready: list[tuple[FakeCluster, asyncio.AbstractEventLoop, asyncio.Event]] = []
    started = threading.Event()

    async def serve() -> None:
        async with FakeCluster() as cluster:
            cluster.add_table("t", 2)
            done = asyncio.Event()
            ready.append((cluster, asyncio.get_running_loop(), done))
            started.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    cluster, loop, done = ready[0]
    try:
        yield cluster
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


def test_blocking_client_has_the_same_names() -> None:
    """Every public method of the asyncio client and table exists in the blocking ones."""

    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    links = {name for name in dir(LinkOwner) if name.startswith("on_")}
    assert public(aio.AsyncClient) - links - {"connect"} == public(raftstore.Client)
    assert public(aio.AsyncTable) == public(raftstore.Table)
    assert public(aio.AsyncBulkWriter) == public(raftstore.BulkWriter)


@pytest.mark.slow
def test_blocking_client_does_everything_from_any_thread() -> None:
    """Reads, writes, scans, tables and status without asyncio; closing leaves no thread."""
    threads = threading.active_count()
    with cluster_in_thread() as cluster:
        with raftstore.connect(cluster.endpoints, settings=QUICK) as client:
            table = client.table("t")
            ack = table.put({"id": 1, "v": "x"}, if_absent=True)
            assert table.get(1) == {"id": 1, "v": "x"}
            assert table.get_result(1, at_least=ack.position).seq == ack.seq
            table.put_many({"id": n} for n in range(1_500))
            assert table.get_many(iter([3, 1_600])) == [{"id": 3}, None]
            assert [row["id"] for row in table.scan()] == list(range(1_500))
            assert next(table.scan(start=7)) == {"id": 7}
            assert table.delete(1).rows == 1
            assert table.delete_many(range(2, 1_500)).rows == 1_498
            assert list(table.scan(level="any", replica="n2", keys_only=True)) == [{"id": 0}]
            assert client.create_table("u", key="k", if_not_exists=True).name == "u"
            assert [info.name for info in client.tables()] == ["t", "u"]
            assert client.table_info("u").partitions == 8
            client.drop_table("u")
            assert client.query_metadata_for_key("t", 1).active_host
            assert client.content_hash("t", "n1").rows == 1
            client.step_down("t/0", target="n2")
            status = client.cluster_status()
            assert not status.channels_without_leader()
            results: list[object] = []
            other = threading.Thread(target=lambda: results.append(table.get(0)))
            other.start()
            other.join()
            assert results == [{"id": 0}]
        client.close()
        with pytest.raises(UnavailableError, match="connect again"):
            table.get(1)
    assert threading.active_count() == threads


@pytest.mark.slow
def test_blocking_bulk_writer_counts_and_raises() -> None:
    """The door of the Spark sink, without asyncio."""
    schema = TableSchema(("id",))
    key, value = schema.row_to_key_value({"id": 1, "v": "x"})
    pairs: list[Pair] = [(key, seal(key, value))]
    with cluster_in_thread() as cluster, raftstore.connect(cluster.endpoints) as client:
        table = client.table("t")
        with table.bulk_writer(max_in_flight=2, timeout=5.0) as writer:
            writer.add(0, encode_rows(pairs), 1)
            writer.add(1, encode_rows(pairs), 1)
            assert writer.flush().rows == 2
        assert table.publish_rows(0, pairs).rows == 1
        assert table.mark_batch("w", 1, partitions=[0])
        cluster.nodes["n1"].publish_scripts.extend([refuse("quorum_timeout")] * 500)
        failing = table.bulk_writer(timeout=0.5)
        failing.add(0, encode_rows(pairs), 1)
        with pytest.raises(QuorumTimeoutError):
            failing.flush()
        failing.close()


def test_blocking_connect_leaves_no_thread_when_it_fails() -> None:
    """A failed connect cleans up behind itself."""
    threads = threading.active_count()
    with pytest.raises(UnavailableError, match="no node of the cluster answered"):
        raftstore.connect("127.0.0.1:1", timeout=0.05)
    assert threading.active_count() == threads


@pytest.mark.slow
def test_scan_that_is_given_up_is_closed() -> None:
    """An iterator that is dropped half-way stops asking."""
    with cluster_in_thread() as cluster, raftstore.connect(cluster.endpoints) as client:
        client.table("t").put_many({"id": n} for n in range(3_000))
        rows = client.table("t").scan()
        assert next(rows) == {"id": 0}
        rows.close()
        assert list(rows) == []
        late = client.table("t").scan()
        next(late)
    del late
