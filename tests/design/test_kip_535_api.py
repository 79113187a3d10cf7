"""KIP-535, "Proposed changes" and "Public interfaces": the calls and what each of them promises."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import raftstore
from raftstore import LagInfo
from raftstore.aio import AsyncClient
from raftstore.client.results import KeyQueryMetadata
from raftstore.errors import ConfigError, InvalidStateStoreError, UnavailableError
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from tests.integration.client.fake_cluster import FakeCluster, fail, silence
from tests.integration.client.play import play


def test_kip_05_35_metadata_is_one_immutable_answer() -> None:
    """KeyQueryMetadata: active host, standby hosts and partition from one look-up.

    Shows BLOG-03, KIP-22, KLIP-09.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        found = await client.query_metadata_for_key("t", 1)
        hosts = [cluster.nodes[name].endpoint for name in ("n1", "n2", "n3")]
        assert [found.active_host, *found.standby_hosts] == hosts
        assert found.partition == partition_of(encode_key((1,)), 1)
        with pytest.raises(FrozenInstanceError):
            found.partition = 9  # type: ignore[misc]

    play(test)


def test_kip_10_29_there_is_no_deprecated_twin_and_names_say_active_or_standby() -> None:
    """metadataForKey is not offered, nor a name that does not say whose."""
    names = [name for name in dir(raftstore.Client) if not name.startswith("_")]
    assert "metadata_for_key" not in names
    fields = set(raftstore.NodeMetadata.__dataclass_fields__) - {"host", "port"}
    assert {name.partition("_")[0] for name in fields} == {"active", "standby"}


def test_kip_02_07_11_12_lags_of_a_node_cover_active_and_standby_partitions() -> None:
    """allLocalStorePartitionLags: a ready leader reports 0, a replica what it is behind."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put_many([{"id": n} for n in range(10)])
        cluster.nodes["n2"].lag = 3
        assert await client.all_local_store_partition_lags("n1") == {
            "t": {0: LagInfo(10, 10, 0, 40)}
        }  # type: ignore[arg-type]
        assert await client.all_local_store_partition_lags("n2") == {
            "t": {0: LagInfo(7, 10, 3, 40)}
        }  # type: ignore[arg-type]
        assert await client.all_local_store_partition_lags() in (
            await client.all_local_store_partition_lags("n1"),
            await client.all_local_store_partition_lags("n2"),
        )
        with pytest.raises(ConfigError, match="there is no node 'n9'"):
            await client.all_local_store_partition_lags("n9")
        cluster.nodes["n1"].request_scripts.append(silence)
        with pytest.raises(UnavailableError, match="n1 cannot be asked"):
            await client.all_local_store_partition_lags("n1", timeout=0.1)

    play(test)


def test_kip_03_06_18_28_metadata_has_active_and_standby_channels_of_every_node() -> None:
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


def test_kip_08_09_metadata_of_a_key_takes_a_serializer_and_a_partitioner() -> None:
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


def test_kip_27_on_change_survives_a_raising_callback(caplog: pytest.LogCaptureFixture) -> None:
    """KIP-27: each is notified of the new leader; the failure is logged."""

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

    with caplog.at_level(logging.ERROR):
        play(test)
    assert "a listener of on_change failed" in caplog.text


async def reason_of(call: Any) -> str:
    """Why a store could not be read."""
    with pytest.raises(InvalidStateStoreError) as caught:
        await call
    return caught.value.reason


def test_kip_13_14_15_each_reason_is_raised_and_a_kept_handle_re_checks() -> None:
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
