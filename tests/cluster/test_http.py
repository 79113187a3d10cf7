"""HTTP of real nodes: every node serves everything, and goes on serving when another dies."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


class Reply:
    """One answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.content = response.read()

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.content)


def ask(
    endpoint: str,
    method: str,
    target: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(endpoint, timeout=15)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, target, content, headers or {})
        return Reply(connection.getresponse())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that serve HTTP, with a table."""
    directory = tmp_path_factory.mktemp("http")
    with LocalCluster(nodes=3, directory=directory, http=True) as running:
        first = next(iter(running.http_by_node().values()))
        made = eventually(
            lambda: ask(
                first,
                "POST",
                "/v1/tables?timeout=10s",
                {"name": "t", "key": "id", "partitions": 3, "if_not_exists": True},
            ),
            lambda reply: reply.status == 201,
        )
        assert len(made.json["channels"]) == 3
        yield running


def test_row_written_at_one_node_is_read_at_every_node(cluster: LocalCluster) -> None:
    """Any node forwards; a plain load balancer in front is enough (KLIP-03, KIP-21)."""
    n1, n2, n3 = cluster.http_by_node().values()
    put = ask(n2, "PUT", "/v1/tables/t/keys/a%2Fb", {"v": 1.5})
    assert put.status == 200
    served = set()
    for node in (n1, n2, n3):
        got = ask(node, "GET", "/v1/tables/t/keys/a%2Fb")
        assert (got.status, got.json["row"]) == (200, {"id": "a/b", "v": 1.5})
        assert got.headers["ETag"] == put.headers["ETag"]
        assert got.headers["X-Raftstore-Served-By"] == got.json["served_by"]
        served.add(got.json["served_by"])
    assert len(served) == 1, "a linearizable read is served by the leader"
    at_least = ask(n3, "GET", f"/v1/tables/t/keys/a%2Fb?level=any&at_least={put.json['position']}")
    assert at_least.json["row"] == {"id": "a/b", "v": 1.5}
    assert ask(n1, "DELETE", "/v1/tables/t/keys/a%2Fb").status == 200
    assert ask(n3, "GET", "/v1/tables/t/keys/a%2Fb").status == 404


def test_conditions_many_keys_ranges_and_queries_work_on_real_nodes(cluster: LocalCluster) -> None:
    """Compare-and-set by ETag, :mget, :scan and /query."""
    n1, n2, n3 = cluster.http_by_node().values()
    for number in range(10):
        assert ask(n1, "PUT", f"/v1/tables/t/keys/{number}", {"v": number}).status == 200
    etag = ask(n2, "GET", "/v1/tables/t/keys/3").headers["ETag"]
    assert ask(n2, "PUT", "/v1/tables/t/keys/3", {"v": 33}, {"If-Match": etag}).status == 200
    assert ask(n3, "PUT", "/v1/tables/t/keys/3", {"v": 34}, {"If-Match": etag}).status == 412
    many = ask(n3, "POST", "/v1/tables/t:mget", {"keys": [3, 99, 4]})
    assert [row and row["v"] for row in many.json["rows"]] == [33, None, 4]
    scan = ask(n2, "GET", "/v1/tables/t:scan?start=2&stop=5")
    assert [row["id"] for row in scan.json["rows"]] == [2, 3, 4]
    query = ask(n1, "POST", "/query", {"ksql": "SELECT * FROM t WHERE ROWKEY='4';"})
    assert query.json["rows"] == [{"id": 4, "v": 4}]


def test_tables_are_made_shown_and_removed(cluster: LocalCluster) -> None:
    """A table that was removed is unknown at every node."""
    n1, n2, n3 = cluster.http_by_node().values()
    assert ask(n1, "POST", "/v1/tables", {"name": "short", "key": ["a", "b"]}).status == 201
    assert ask(n2, "POST", "/v1/tables", {"name": "short", "key": "a"}).status == 409
    names = [table["name"] for table in ask(n3, "GET", "/v1/tables").json["tables"]]
    assert "short" in names
    assert ask(n3, "DELETE", "/v1/tables/short").status == 200
    assert ask(n3, "GET", "/v1/tables/short").status == 404


def test_views_of_real_nodes_agree_with_what_was_written(cluster: LocalCluster) -> None:
    """Status, lags, readiness, metrics, counts, fates, explanations: each from its real source."""
    n1, n2, n3 = cluster.http_by_node().values()
    table = {"name": "seen", "key": "id", "partitions": 2}
    assert ask(n1, "POST", "/v1/tables?timeout=10s", table).status == 201
    puts = [ask(n1, "PUT", f"/v1/tables/seen/keys/{number}", {}).json for number in range(6)]
    assert ask(n2, "GET", "/v1/tables/seen:count").json["rows"] == 6
    pages = [ask(n3, "GET", "/v1/tables/seen:scan?limit=4").json]
    pages.append(ask(n2, "GET", f"/v1/tables/seen:scan?limit=4&token={pages[0]['next']}").json)
    assert [row["id"] for page in pages for row in page["rows"]] == list(range(6))
    assert pages[-1]["next"] is None
    fate = ask(n2, "GET", f"/v1/writes/{puts[0]['guid']}").json
    assert (fate["fate"], fate["seq"]) == ("committed", puts[0]["seq"])
    explained = ask(n3, "GET", "/v1/explain/seen/1?max_lag=5").json
    assert {verdict["node"] for verdict in explained["replicas"]} == {"n1", "n2", "n3"}
    edited = ask(n3, "PATCH", "/v1/tables/seen", {"max_lag": 5})
    assert (edited.status, edited.json["max_lag"]) == (200, 5)
    status = eventually(
        lambda: ask(n1, "GET", "/clusterStatus").json,
        lambda seen: all(host["http"] for host in seen["clusterStatus"].values()),
    )
    assert status["viewpoint"] == "n1"
    assert {host["http"] for host in status["clusterStatus"].values()} == {n1, n2, n3}
    held = [
        (host["node"], part["partition"])
        for host in status["clusterStatus"].values()
        for part in host["activeStandbyPerQuery"]["seen"]["activePartitions"]
        + host["activeStandbyPerQuery"]["seen"]["standByPartitions"]
    ]
    assert sorted(held) == sorted((node, part) for node in ("n1", "n2", "n3") for part in (0, 1))
    assert ask(n2, "GET", "/lags").json["viewpoint"] == "n2"
    ready = ask(n3, "GET", "/readyz?table=seen&level=linearizable&verbose=true")
    assert (ready.status, ready.json["ready"]) == (200, True)
    assert b"raftstore_build_info" in ask(n1, "GET", "/metrics").content
    assert "events" in ask(n1, "GET", "/v1/events?limit=5").json


def posted(endpoint: str, **lags: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Bodies of a heartbeat and of a lag report of the node at this address."""
    host, _, port = endpoint.rpartition(":")
    who = {"host": host, "port": int(port)}
    stores = {table: {"lagByPartition": parts} for table, parts in lags.items()}
    return (
        {"hostInfo": who, "timestamp": 1, "epoch_of_node": 1},
        {"hostInfo": who, "updateTimeMs": 1, "stateStoreLags": stores},
    )


def test_klip_19_and_35_posts_of_nodes_are_registered(cluster: LocalCluster) -> None:
    """By either address of the node; an unlisted node, or an unknown table, is refused."""
    n1 = cluster.http_by_node()["n1"]
    lag = {"0": {"currentOffsetPosition": 1, "endOffsetPosition": 1, "offsetLag": 0}}
    for address in (cluster.endpoints_by_node()["n2"], cluster.http_by_node()["n2"]):
        heartbeat, report = posted(address, t=lag)
        sent = eventually(
            # The address of the other's HTTP interface comes with its first lag report.
            lambda heartbeat=heartbeat: ask(n1, "POST", "/heartbeat", heartbeat),
            lambda reply: reply.status == 200,
        )
        assert sent.json == {"ok": True}
        for path in ("/reportlag", "/lag"):
            assert ask(n1, "POST", path, report).status == 200
    unlisted, _ = posted("127.0.0.1:1")
    assert ask(n1, "POST", "/heartbeat", unlisted).status == 400
    _, unknown = posted(cluster.http_by_node()["n2"], nothing=lag)
    assert ask(n1, "POST", "/reportlag", unknown).status == 404


def test_liveness_and_the_document_need_no_data(cluster: LocalCluster) -> None:
    """/livez and /openapi.json."""
    for endpoint in cluster.http_by_node().values():
        live = ask(endpoint, "GET", "/livez")
        assert (live.status, live.json["alive"]) == (200, True)
        document = ask(endpoint, "GET", "/openapi.json").json
        assert document["openapi"] == "3.1.0"
        assert "/v1/tables/{table}/keys/{key}" in document["paths"]


def test_bytes_that_are_no_http_harm_nobody(cluster: LocalCluster) -> None:
    """Garbage, an endless head, and a client that goes away in the middle of a body."""
    endpoint = next(iter(cluster.http_by_node().values()))
    host, _, port = endpoint.rpartition(":")
    for sent in (
        b"\x00\xff garbage\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(sent)
            assert connection.recv(65_536).startswith((b"HTTP/1.1 4", b""))
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"PUT /v1/tables/t/keys/1 HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
    assert ask(endpoint, "GET", "/livez").status == 200


def test_reads_and_writes_go_on_when_a_node_is_killed(tmp_path: Path) -> None:
    """The others answer; the killed one serves again after its restart on the same port."""
    with LocalCluster(nodes=3, directory=tmp_path, http=True) as cluster:
        endpoints = cluster.http_by_node()
        eventually(
            lambda: ask(
                endpoints["n1"],
                "POST",
                "/v1/tables?timeout=10s",
                {"name": "t", "key": "id", "if_not_exists": True},
            ),
            lambda reply: reply.status == 201,
        )
        put = ask(endpoints["n1"], "PUT", "/v1/tables/t/keys/1", {"v": 1})
        target = f"/v1/tables/t/keys/1?max_lag=100&at_least={put.json['position']}"
        cluster.kill("n1")
        for name in ("n2", "n3"):
            got = ask(endpoints[name], "GET", target)
            assert (got.status, got.json["row"]) == (200, {"id": 1, "v": 1})
            assert got.json["served_by"] != "n1"
        assert ask(endpoints["n2"], "PUT", "/v1/tables/t/keys/2?timeout=10s", {}).status == 200
        cluster.start("n1")
        cluster.wait_until_ready()
        again = eventually(
            lambda: ask(endpoints["n1"], "GET", "/v1/tables/t/keys/2"),
            lambda reply: reply.status == 200,
        )
        assert again.json["row"] == {"id": 2}
        assert cluster.stop("n2") == 0
