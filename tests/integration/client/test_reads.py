"""Reads by level against nodes that refuse, lag, fall silent and die."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.position import Position
from raftstore.errors import (
    ConfigError,
    CorruptRecordError,
    NoLeaderError,
    NoReplicaAvailableError,
    NotUpToBoundError,
    PayloadTooLargeError,
    PositionError,
    QueryError,
    SchemaError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.rows.schema import TableSchema
from raftstore.types import Level, Seq
from tests.integration.client.fake_cluster import (
    FakeCluster,
    fail,
    lose,
    read_behind,
    silence,
)
from tests.integration.client.play import PATIENT, QUICK, only_channel, play


def test_get_is_linearizable_at_the_leader_by_default() -> None:
    """Without options the leader is asked, at level linearizable."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1, "v": "x"})
        result = await table.get_result(1)
        assert result.value == {"id": 1, "v": "x"}
        assert (result.node, result.level, result.lag) == ("n1", Level.LINEARIZABLE, 0)
        assert result.position == ack.position
        assert result.applied_position == ack.position
        absent = await table.get_result(2)
        assert (absent.value, absent.position, absent.seq) == (None, None, 0)
        assert await table.get(1, level="leader") == {"id": 1, "v": "x"}
        assert {read.level for read in cluster.nodes["n1"].reads} == {"linearizable", "leader"}

    play(test, PATIENT)


def test_get_follows_a_new_leader_within_the_call() -> None:
    """A deposed leader's hint is followed; the caller notices nothing."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.elect(only_channel(cluster), "n2")
        assert (await client.table("t").get_result(1)).node == "n2"

    play(test)


@pytest.mark.parametrize(
    "script", [lose, fail("unavailable"), fail("no_leader"), fail("overloaded")]
)
def test_get_at_the_leader_is_retried(script: object) -> None:
    """Reads change nothing, so passing failures are retried within the deadline."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.nodes["n1"].read_scripts.append(script)  # type: ignore[arg-type]
        assert await client.table("t").get(1) == {"id": 1}
        assert len(cluster.nodes["n1"].reads) == 2

    play(test)


def test_get_leaves_a_silent_leader_when_another_is_known() -> None:
    """A paused leader does not hold a read until its deadline."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.nodes["n1"].is_silent = True
        get = asyncio.ensure_future(client.table("t").get_result(1))
        cluster.elect(only_channel(cluster), "n2")
        assert (await get).node == "n2"

    play(test)


@pytest.mark.slow
def test_get_at_its_deadline_names_what_went_wrong() -> None:
    """No leader, a dead leader, a silent leader: each is reported; none hangs past the deadline."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table, channel = client.table("t"), only_channel(cluster)
        await table.put({"id": 1})
        cluster.nodes["n1"].is_silent = True
        with pytest.raises(QueryError, match="n1: it did not answer") as caught:
            await table.get(1, timeout=0.5)
        assert set(caught.value.hosts) == {"n1"}
        await cluster.nodes["n1"].kill()
        with pytest.raises(NoLeaderError, match="n1 cannot be reached"):
            await table.get(1, timeout=0.5)
        cluster.elect(channel, None)
        other = cluster.add_table("leaderless")[0]
        other.leader = None
        with pytest.raises(NoLeaderError, match="no leader is known"):
            await client.table("leaderless").get(1, timeout=0.5)

    play(test)


def test_get_does_not_retry_what_cannot_succeed() -> None:
    """A final refusal is raised at once, at every level."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for node in cluster.nodes.values():
            node.read_scripts.extend([fail("payload_too_large", "too many keys")] * 2)
        with pytest.raises(PayloadTooLargeError, match="too many keys"):
            await client.table("t").get(1)
        with pytest.raises(PayloadTooLargeError, match="too many keys"):
            await client.table("t").get(1, level="any")

    play(test)


def test_bounded_reads_go_to_the_leader_or_are_shared_as_preferred() -> None:
    """KIP-24: the leader if it is alive, the home node, or all within the bound in turn.

    Shows KIP-17.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})

        async def served(times: int, client: AsyncClient, **options: Any) -> list[str]:
            table = client.table("t")
            results = [await table.get_result(1, max_lag=0, **options) for _ in range(times)]
            return [result.node for result in results]

        assert await served(3, client) == ["n1", "n1", "n1"]
        shared = await served(6, client, prefer="any_in_bound")
        assert sorted(shared) == ["n1", "n1", "n2", "n2", "n3", "n3"]
        settings = replace(PATIENT, home="n3", prefer="nearest")
        async with await aio.connect(cluster.endpoints, settings=settings) as near:
            assert await served(2, near) == ["n3", "n3"]
            assert await served(1, near, prefer="leader") == ["n1"]

    play(test, PATIENT)


def test_klip_47_hedged_read_returns_the_newer_of_two_answers() -> None:
    """KLIP-47: both of the best replicas are asked, and the higher applied seq is the answer."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": 1, "v": "old"})
        old = dict(only_channel(cluster).rows)
        await table.put({"id": 1, "v": "new"})
        leader = cluster.nodes["n1"]
        leader.read_scripts.append(read_behind(old, Seq(1)))
        result = await table.get_result(1, level="any", hedge=True)
        assert (result.value, result.applied_seq) == ({"id": 1, "v": "new"}, 2)
        assert sum(len(node.reads) for node in cluster.nodes.values()) == 2
        leader.is_silent = True
        assert (await table.get_result(1, level="any", hedge=True)).node != "n1"

    play(test, replace(QUICK, suspect_ms=1_000, hedge_ms=150))


def test_replica_is_asked_alone_where_hedging_is_forbidden() -> None:
    """hedge=False: no second question while the first node is there, however long it takes."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.nodes["n1"].read_scripts.append(silence)
        with pytest.raises(NoReplicaAvailableError, match="n1: it did not answer"):
            await client.table("t").get(1, level="any", hedge=False, timeout=0.2)
        assert not cluster.nodes["n2"].reads
        assert not cluster.nodes["n3"].reads

    play(test)


def test_bound_that_no_replica_meets_is_refused_at_once() -> None:
    """All are alive and say how far behind they are: waiting for the deadline says no more."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        for node in cluster.nodes.values():
            node.lag = 7
        with pytest.raises(NoReplicaAvailableError, match="n3: lag 7 of n3") as caught:
            await client.table("t").get(1, max_lag=6, timeout=60.0)
        assert set(caught.value.hosts) == {"n1", "n2", "n3"}

    play(test)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["any", "bounded", "linearizable"])
def test_position_from_the_future_is_told_as_such(level: str) -> None:
    """BLOG-33: the node's own words come before the deadline, and name what is missing."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        ack = await client.table("t").put({"id": 1})
        future = Position.at(cluster.tables["t"].uuid, 0, ack.term, Seq(99))
        with pytest.raises(NotUpToBoundError, match="seq 1 has not reached 99"):
            await client.table("t").get(1, level=level, at_least=future, timeout=1.5)

    play(test)


def test_bounded_read_goes_to_the_next_replica_when_one_lags() -> None:
    """A replica over the bound refuses and another serves (KLIP-37, KLIP-40)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.nodes["n1"].lag, cluster.nodes["n2"].lag = 50, None
        for _ in range(4):
            assert (await client.table("t").get_result(1, max_lag=10)).node == "n3"
        assert (await client.table("t").get_result(1, max_lag=50)).node in ("n1", "n3")

    play(test, PATIENT)


@pytest.mark.parametrize("max_lag", [None, 5])
def test_replica_read_survives_the_death_of_any_two_nodes(max_lag: int | None) -> None:
    """The request under way at a killed node is answered by another at once (KIP-01)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        options = {"level": "any"} if max_lag is None else {"max_lag": max_lag}
        await table.put({"id": 1})
        for _ in range(3):
            await table.get(1, **options)  # type: ignore[arg-type]
        for name in ("n1", "n2"):
            for node in cluster.nodes.values():
                node.read_scripts.append(silence)
            get = asyncio.ensure_future(table.get_result(1, **options))  # type: ignore[arg-type]
            asked = [node for node in cluster.nodes.values() if node.name != "n3"]
            await cluster.until(lambda asked=asked: any(not n.read_scripts for n in asked))
            for node in cluster.nodes.values():
                node.read_scripts.clear()
            await cluster.nodes[name].kill()
            assert (await get).value == {"id": 1}

    play(test)


def test_replica_read_does_not_wait_for_a_silent_node() -> None:
    """A paused node costs a read only the time after which another is asked, too."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.nodes["n2"].is_silent = True
        for _ in range(6):
            assert (await client.table("t").get_result(1, level="any")).node != "n2"
        assert len(cluster.nodes["n1"].reads) + len(cluster.nodes["n3"].reads) == 6

    play(test)


def test_replica_read_takes_the_late_answer_of_a_slow_node() -> None:
    """Given silent nodes that are asked one after the other, a late answer of an earlier one
    counts.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        for node in cluster.nodes.values():
            node.lag = None
            node.read_scripts.append(silence)
        get = asyncio.ensure_future(client.table("t").get_result(1, max_lag=0))
        nodes = list(cluster.nodes.values())
        await cluster.until(lambda: all(len(node.reads) == 1 for node in nodes))
        for node in nodes:
            node.lag = 0
            node.drop_connections()
        assert (await get).value == {"id": 1}

    play(test)


@pytest.mark.slow
def test_replica_read_fails_with_a_reason_per_node() -> None:
    """BLOG-21: the sentence is kept, and every node's reason is reported (KIP-19, KLIP-40)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.nodes["n1"].lag = 7
        cluster.nodes["n2"].is_silent = True
        await cluster.nodes["n3"].kill()
        with pytest.raises(NoReplicaAvailableError) as caught:
            await client.table("t").get(1, max_lag=0, timeout=0.5)
        assert "Unable to execute pull query" in str(caught.value)
        assert "All nodes are dead or exceed max allowed lag." in str(caught.value)
        hosts = caught.value.hosts
        assert set(hosts) == {"n1", "n2", "n3"}
        assert "lag 7" in hosts["n1"]
        assert "did not answer" in hosts["n2"]

    play(test)


@pytest.mark.slow
def test_named_replica_is_the_only_one_asked() -> None:
    """A read for checks goes to its node or fails; nobody else answers for it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": 1})
        assert (await table.get_result(1, level="any", replica="n2")).node == "n2"
        assert [row async for row in table.scan(level="any", replica="n2")] == [{"id": 1}]
        assert not cluster.nodes["n3"].reads
        with pytest.raises(NoReplicaAvailableError, match="not I"):
            await table.get(1, replica="n2", timeout=0.5)
        with pytest.raises(ConfigError, match=r"no node 'n9' in the cluster \(there are: n1, n2"):
            await table.get(1, level="any", replica="n9")

    play(test)


def test_position_travels_with_the_read() -> None:
    """at_least becomes the seq that the replica must have applied, at every level."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1})
        assert await table.get(1, at_least=str(ack.position)) == {"id": 1}
        for level in ("linearizable", "leader", "bounded"):
            assert await table.get(1, level=level, at_least=ack.position) == {"id": 1}
        sent = [read for node in cluster.nodes.values() for read in node.reads]
        levels = ["any", "bounded", "leader", "linearizable"]
        assert sorted((read.level, read.min_seq) for read in sent) == [(name, 1) for name in levels]

    play(test)


def test_position_of_another_table_is_refused_before_anything_is_sent() -> None:
    """Ignoring it would let the read go back behind what the caller has seen (S7.3)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.add_table("other")
        ack = await client.table("t").put({"id": 1})
        other = client.table("other")
        with pytest.raises(PositionError, match="is of another table than 'other'"):
            await other.get(1, at_least=ack.position)
        with pytest.raises(PositionError):
            await other.get_many([1], max_lag=0, at_least=ack.position)
        with pytest.raises(PositionError):
            [row async for row in other.scan(at_least=ack.position)]
        assert not any(node.reads for node in cluster.nodes.values())
        mine = (await other.put({"id": 2})).position
        assert await other.get(2, at_least=mine | ack.position) == {"id": 2}

    play(test)


def test_position_of_a_table_made_anew_is_looked_up_before_it_is_refused() -> None:
    """The catalog known here may be older than the position."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        assert await table.get(1) is None
        cluster.drop_table("t")
        cluster.add_table("t")
        async with await aio.connect(cluster.endpoints) as other:
            position = (await other.table("t").put({"id": 1})).position
        assert await table.get(1, at_least=position) == {"id": 1}

    play(test)


def test_damaged_row_is_never_returned() -> None:
    """The seal of a row is checked by the reader, too."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1, "v": "x"})
        rows = only_channel(cluster).rows
        key = TableSchema(("id",)).key_of(1)
        rows[key] = (rows[key][0][:-1] + b"?", rows[key][1])
        with pytest.raises(CorruptRecordError, match="does not match its checksum"):
            await client.table("t").get(1)

    play(test)


def test_table_is_found_although_the_node_asked_first_has_just_started() -> None:
    """S1.9: a copy of the catalog that is not known to be complete proves no absence."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for name in ("n1", "n2", "n3"):
            cluster.add_table(f"only_{name}")
            for node in cluster.nodes.values():
                node.is_new = node.name != name
            assert await client.table(f"only_{name}").get(1) is None

    play(test)


@pytest.mark.slow
def test_absence_of_a_table_is_not_claimed_while_no_node_is_sure() -> None:
    """S1.9: it is called unavailable, which can be retried, once the deadline has passed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for node in cluster.nodes.values():
            node.is_new = True
        with pytest.raises(UnavailableError, match="whether there is a table 'nope' is not known"):
            await client.table("nope").get(1, timeout=0.3)

    play(test)


def test_read_of_a_dropped_table_ends_when_the_drop_is_known() -> None:
    """Neither door retries a dropped table until the deadline."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.add_table("u")
        await client.tables()
        await client.table("t").put({"id": 1})
        cluster.drop_table("t")
        cluster.drop_table("u")
        with pytest.raises(UnknownTableError):
            await client.table("t").get(1)
        with pytest.raises(UnknownTableError):
            await client.table("u").get(1, level="any")

    play(test)


def test_key_of_a_wrong_shape_is_refused() -> None:
    """A key with too many columns names the columns of the table."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        with pytest.raises(SchemaError, match=r"the key has 1 columns \(id\), but 2 values"):
            await client.table("t").get((1, 2))

    play(test)


def test_node_without_a_lane_for_queries_is_asked_on_the_one_for_writes() -> None:
    """Nodes of an older version know no other; nothing is lost but the separate lane."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for node in cluster.nodes.values():
            node.purposes = ("client",)
            node.drop_connections()
        await client.table("t").put({"id": 1})
        assert await client.table("t").get(1) == {"id": 1}
        assert await client.table("t").get(1, max_lag=0) == {"id": 1}

    play(test)
