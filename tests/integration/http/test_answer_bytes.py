"""An answer is built in the memory of a node: its bytes have a limit, however many its rows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from raftstore.config import NodeSettings
from raftstore.http import gateway
from raftstore.http.gateway import NodeGateway
from raftstore.node.http_port import LiveFacts
from tests.integration.client.fake_cluster import CLUSTER_ID, FakeCluster
from tests.integration.client.play import QUICK
from tests.integration.http.http_play import Http, play_http

ROW = "x" * 1_000
SMALL = replace(QUICK, answer_bytes_max=5_000)
MGET = "/v1/tables/t:mget"


async def with_rows(http: Http) -> None:
    """Ten rows of a kilobyte."""
    for number in range(10):
        assert (await http.ask("PUT", f"/v1/tables/t/keys/{number}", {"v": ROW})).status == 200


@pytest.mark.parametrize("bound", [{}, {"replica": "n1", "level": "any"}])
@pytest.mark.parametrize("keys", [list(range(10)), [3] * 10])
def test_rows_of_many_keys_beyond_the_limit_are_refused(
    keys: list[int], bound: dict[str, str]
) -> None:
    """The remedy is reported; a row that is asked for often is in the answer as often."""

    async def test(_: FakeCluster, http: Http) -> None:
        await with_rows(http)
        got = await http.ask("POST", MGET, {"keys": keys, **bound})
        assert (got.status, got.error) == (413, "payload_too_large")
        assert "5000 bytes; ask for fewer keys at a time" in got.json["message"]
        got = await http.ask("POST", "/query", {"table": "t", "keys": keys})
        assert (got.status, got.error) == (413, "payload_too_large")
        got = await http.ask("POST", MGET, {"keys": keys[:4], **bound})
        assert [row["v"] for row in got.json["rows"]] == [ROW] * 4

    play_http(test, settings=SMALL)


def test_rest_of_many_keys_is_not_read_when_it_is_too_much() -> None:
    """The refusal comes before the memory is filled, not behind it."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        keys = list(range(100))
        for number in keys:
            await http.ask("PUT", f"/v1/tables/t/keys/{number}", {"v": ROW})
        got = await http.ask("POST", MGET, {"keys": keys, "replica": "n1", "level": "any"})
        assert (got.status, got.error) == (413, "payload_too_large")
        assert sum(len(node.reads) for node in cluster.nodes.values()) < 16

    play_http(test, settings=replace(SMALL, answer_bytes_max=1_500), partitions=16)


def test_page_of_a_scan_ends_at_the_limit_and_the_next_one_goes_on() -> None:
    """Every row comes once, of one state, however few a page holds."""

    async def test(_: FakeCluster, http: Http) -> None:
        await with_rows(http)
        sizes, found, token = [], [], None
        while True:
            body: dict[str, Any] = {"limit": 1_000} | ({} if token is None else {"token": token})
            got = await http.ask("POST", "/v1/tables/t:scan", body)
            assert got.status == 200, got.content
            sizes.append(len(got.json["rows"]))
            found += [row["id"] for row in got.json["rows"]]
            token = got.json["next"]
            if not sizes[1:]:
                await http.ask("PUT", "/v1/tables/t/keys/99", {"v": "later"})
            if token is None:
                break
        assert sizes[0] == 5
        assert found == list(range(10))

    play_http(test, settings=SMALL)


def test_client_of_a_node_has_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that hold the rows themselves have none; the node that serves others does."""
    monkeypatch.setattr(gateway, "ANSWER_BYTES_MAX", 2_000)

    async def play() -> None:
        async with FakeCluster() as cluster:
            cluster.add_table("t", 1)
            node = cluster.nodes["n1"]
            facts = LiveFacts(endpoint=node.endpoint, node=node.id, cluster_id=CLUSTER_ID)
            door = NodeGateway(NodeSettings(name="n1", data_dir="d"), facts)
            door.start()
            try:
                table = (await door.client(10.0)).table("t")
                for number in range(5):
                    await table.put({"id": number, "v": ROW})
                assert len((await table.page(limit=5)).rows) == 2
            finally:
                await door.close()

    asyncio.run(play())
