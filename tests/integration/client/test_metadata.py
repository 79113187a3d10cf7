"""Fates of writes, edited tables, events, metadata and stores, against scripted nodes."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.aio import AsyncClient
from raftstore.client.fates import guid_text, parse_guid
from raftstore.client.results import KeyQueryMetadata
from raftstore.errors import (
    ConfigError,
    ConflictError,
    GuidExpiredError,
    InvalidStateStoreError,
    SchemaError,
    UnknownTableError,
)
from raftstore.types import ChannelId, Guid, channel_id, make_guid
from tests.integration.client.fake_cluster import FakeCluster, fail, refuse
from tests.integration.client.play import play


def test_fate_of_a_write_is_asked_by_the_guid_of_its_ack() -> None:
    """N4: committed at its position, or not applied; a new leader is found like for any request."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        ack = await client.table("t").put({"id": 1})
        fate = await client.fate(ack.guid)
        assert (fate.fate, fate.seq, fate.position) == ("committed", 1, ack.position)
        assert (fate.partition, fate.node) == (0, "n1")
        channel, guid = parse_guid(ack.guid)
        other = guid_text(channel, make_guid(guid[:8], 99))
        cluster.elect(cluster.channels[channel], "n2")
        fate = await client.fate(other)
        assert (fate.fate, fate.seq, fate.position) == ("not_applied", None, None)
        assert fate.node == "n2"

    play(test)


def test_errors_of_writes_tell_their_guid() -> None:
    """A write without a good answer is the one whose fate is wanted."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1})
        with pytest.raises(ConflictError) as conflict:
            await table.put({"id": 1}, if_absent=True)
        cluster.nodes["n1"].publish_scripts.append(refuse("guid_expired"))
        with pytest.raises(GuidExpiredError) as expired:
            await table.put({"id": 2})
        guids = [ack.guid, conflict.value.guid, expired.value.guid]
        assert len(set(guids)) == 3
        assert all(guid is not None and len(guid) == 68 for guid in guids)
        assert conflict.value.guid is not None
        assert (await client.fate(conflict.value.guid)).fate == "committed"

    play(test)


@pytest.mark.parametrize("text", ["", "xyz", "00" * 33, "00" * 35, "0g" * 34, " " + "00" * 34, 7])
def test_text_that_names_no_write_is_refused(text: Any) -> None:
    """Before anybody is asked."""
    with pytest.raises(SchemaError, match="is not the guid of a write"):
        parse_guid(text)


def test_fate_of_a_write_of_a_dropped_table_is_that_there_is_none() -> None:
    """The table is gone, and with it what is known of its writes."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        gone = guid_text(ChannelId(channel_id(b"d" * 16, 0)), Guid(bytes(16)))
        with pytest.raises(UnknownTableError, match="is not in the catalog"):
            await client.fate(gone)

    play(test)


def test_table_is_edited_and_seen_as_edited() -> None:
    """Bounds in rows, seconds and micro-batches; None takes one away."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        changed = await client.edit_table("t", max_lag=5, max_staleness=1.5, standby_reads=False)
        assert (changed.max_lag, changed.max_staleness_ms) == (5, 1500)
        assert not changed.standby_reads
        assert (await client.edit_table("t", max_lag=None)).max_lag is None
        for wrong in ({"max_lag": -1}, {"max_staleness": True}, {"standby_reads": 1}, {"x": 1}, {}):
            with pytest.raises(ConfigError):
                await client.edit_table("t", **wrong)  # type: ignore[arg-type]

    play(test)


def test_table_without_standby_reads_is_read_at_its_leader() -> None:
    """BLOG-18: unless the read itself says how old its answer may be."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1})
        await client.edit_table("t", standby_reads=False)
        await table.get(1, at_least=ack.position)
        await table.get(1, level="any", at_least=ack.position)
        await table.get(1, max_lag=0)
        levels = [read.level for node in cluster.nodes.values() for read in node.reads]
        assert sorted(levels) == ["any", "bounded", "leader"]

    play(test)


def test_events_come_from_every_node_and_only_once() -> None:
    """``next`` is where to go on; a node that is away is named with its reason."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for number, node in enumerate(cluster.nodes.values()):
            node.events = [{"type": "role", "at_wall_ms": 9 - number}]
        cluster.nodes["n2"].events.append({"type": "failover", "at_wall_ms": 20})
        found = await client.events()
        assert [event["node"] for event in found.events] == ["n3", "n2", "n1", "n2"]
        assert found.next == {"n1": 1, "n2": 2, "n3": 1}
        assert [e["node"] for e in (await client.events("failover")).events] == ["n2"]
        await cluster.nodes["n3"].kill()
        cluster.nodes["n1"].events.append({"type": "role", "at_wall_ms": 30})
        found = await client.events(since=found.next)
        assert [event["at_wall_ms"] for event in found.events] == [30]
        assert set(found.errors) == {"n3"}
        assert found.next["n3"] == 1

    play(test)


def test_metadata_tells_what_each_node_leads_and_follows() -> None:
    """KIP-06, KIP-18, KIP-28: active and standby, by channel and by table."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.add_table("two", 2, leaders=("n1", "n2"))
        nodes = await client.all_metadata()
        assert [node.active_channels for node in nodes] == [{"t/0", "two/0"}, {"two/1"}, set()]
        assert nodes[2].standby_channels == {"t/0", "two/0", "two/1"}
        assert (nodes[1].active_tables, nodes[1].standby_tables) == ({"two"}, {"t", "two"})
        standbys = await client.standby_metadata_for_key("t", 1)
        assert standbys == nodes[1:]
        lags = await client.all_local_store_partition_lags("n2")
        assert set(lags) == {"t", "two"}
        assert set(lags["two"]) == {0, 1}

    play(test)


def test_metadata_of_a_key_takes_a_serializer_and_a_partitioner() -> None:
    """KIP-08, KIP-09: what they return is checked before it is believed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.add_table("p", 4)
        told: list[tuple[bytes, int]] = []

        def last(encoded: bytes, partitions: int) -> int:
            told.append((encoded, partitions))
            return partitions - 1

        found = await client.query_metadata_for_key(
            "p", 1, serializer=lambda key: b"<%d>" % key, partitioner=last
        )
        assert (found.partition, told) == (3, [(b"<1>", 4)])
        for wrong in (4, -1, True, "0", None):
            with pytest.raises(ConfigError, match="the partitioner returned"):
                await client.query_metadata_for_key("p", 1, partitioner=lambda _, __, w=wrong: w)
        with pytest.raises(ConfigError, match="which is not bytes"):
            await client.query_metadata_for_key("p", 1, serializer=str)  # type: ignore[arg-type]

    play(test)


def test_listener_that_raises_stops_neither_the_client_nor_the_others() -> None:
    """KIP-27: each is told of the new leader; the failure is logged."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        heard: list[tuple[str, KeyQueryMetadata]] = []

        def broken(channel: str, metadata: KeyQueryMetadata) -> None:
            raise RuntimeError(channel)

        client.on_change(broken)
        client.on_change(lambda channel, metadata: heard.append((channel, metadata)))
        await client.table("t").put({"id": 1})
        (channel,) = (cluster.channels[c.channel] for c in cluster.tables["t"].channels)
        cluster.elect(channel, "n3")
        await client.table("t").put({"id": 2})
        name, metadata = heard[-1]
        assert (name, metadata.active_host) == ("t/0", cluster.nodes["n3"].endpoint)

    play(test)


async def reason_of(call: Any) -> str:
    """Why a store could not be read."""
    with pytest.raises(InvalidStateStoreError) as caught:
        await call
    return caught.value.reason


def test_each_reason_is_raised_and_a_kept_handle_re_checks() -> None:
    """KIP-13, KIP-14: strict by default; the handle goes on only where the store may be read."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        assert await reason_of(client.store("nope")) == "unknown_table"
        store = await client.store("t", node="n1")
        assert await store.get(1) == {"id": 1}
        assert await store.approx_count() == 1
        assert [row async for row in store.range(0, 5)] == [{"id": 1}]
        assert [row async for row in store.prefix((1,))] == [{"id": 1}]
        (channel,) = (cluster.channels[c.channel] for c in cluster.tables["t"].channels)
        cluster.elect(channel, "n2")
        assert await reason_of(store.get(1)) == "not_leader"
        stale = await client.store("t", True, node="n1")
        assert await stale.get(1) == {"id": 1}
        for node in cluster.nodes.values():
            node.read_scripts.extend([fail("no_leader")] * 500)
        anywhere = await client.store("t")
        assert await reason_of(anywhere.get(1, timeout=0.1)) == "initializing"
        for node in cluster.nodes.values():
            node.read_scripts.clear()
        channel.replicas = channel.replicas[:2]
        cluster.version += 1
        await client.tables()
        assert await reason_of(client.store("t", node="n3")) == "not_hosted"
        await client.close()
        assert await reason_of(anywhere.get(1)) == "closed"

    play(test)
