"""Rows over HTTP: what is written is read, and every answer says by whom and how fresh."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from raftstore.client.position import Position
from raftstore.config import HttpSettings, QuerySettings
from raftstore.protocol.message import Message
from raftstore.protocol.reads import Get
from raftstore.protocol.table_settings import TableSettings
from raftstore.types import Seq
from tests.integration.client.fake_cluster import FakeCluster, FakeNode, fail, read, read_behind
from tests.integration.http.http_play import FakeGateway, Http, play_http


def schema_of(**kinds: str) -> str:
    """Spark's schema JSON of columns."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in kinds.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


TYPED = schema_of(id="long", price="decimal(10,2)", data="binary")


def test_row_that_was_put_is_read_with_its_provenance() -> None:
    """Body and headers agree on who served it, its position, lag and age."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        put = await http.ask("PUT", "/v1/tables/t/keys/1", {"v": "x"})
        assert put.status == 200
        got = await http.ask("GET", "/v1/tables/t/keys/1")
        assert got.status == 200
        body = got.json
        assert body["row"] == {"id": 1, "v": "x"}
        assert body["found"] is True
        assert got.headers["etag"] == f'"{body["version"]}"' == put.headers["etag"]
        assert got.headers["x-raftstore-served-by"] == body["served_by"] == "n1"
        assert got.headers["x-raftstore-position"] == body["position"]
        assert got.headers["x-raftstore-lag"] == str(body["lag"]) == "0"
        assert got.headers["x-raftstore-age-ms"] == str(body["age_ms"])
        assert body["level"] == "linearizable"

    play_http(test)


def test_read_evaluates_no_declared_types_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec evaluates the annotations of a struct at each call: a third of such a request."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        await http.ask("GET", "/v1/tables/t/keys/1?max_lag=0")
        monkeypatch.setattr(msgspec.structs, "fields", None)
        got = await http.ask("GET", "/v1/tables/t/keys/1?max_lag=0&timeout=2s")
        assert (got.status, got.json["level"]) == (404, "bounded")

    play_http(test)


def test_row_that_is_not_there_is_404_with_provenance() -> None:
    """Absent is an answer: by whom, at which position."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask("GET", "/v1/tables/t/keys/1?max_lag=0")
        assert (got.status, got.json["found"], got.json["row"]) == (404, False, None)
        assert got.json["level"] == "bounded"
        assert "etag" not in got.headers

    play_http(test)


def test_delete_of_a_row_is_acknowledged_with_its_position() -> None:
    """Afterwards the row is gone; a read at least at that position says so."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        await http.ask("PUT", "/v1/tables/t/keys/1", {})
        gone = await http.ask("DELETE", "/v1/tables/t/keys/1")
        assert gone.status == 200
        position = gone.json["position"]
        got = await http.ask("GET", f"/v1/tables/t/keys/1?at_least={position}")
        assert got.status == 404

    play_http(test)


KEYS = ["a/b", "100%", "%41", "x:y", "ä☃", "", "a\nb", "a\n", "?&#", "a/keys/b", ":mget", " "]


@pytest.mark.parametrize("key", KEYS)
def test_key_of_any_characters_is_decoded_once(key: str) -> None:
    """A path holds any text; percent signs in it are part of the key."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        target = f"/v1/tables/t/keys/{quote(key, safe='')}"
        assert (await http.ask("PUT", target, {"v": 1})).status == 200
        got = await http.ask("GET", target)
        assert got.json["row"] == {"id": key, "v": 1}

    play_http(test)


def test_typed_columns_have_their_plain_form() -> None:
    """Decimal and binary as text, in the row and in no other way."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("typed", 2, schema_json=TYPED)
        row = {"price": "12.30", "data": "AQI="}
        assert (await http.ask("PUT", "/v1/tables/typed/keys/7", row)).status == 200
        got = await http.ask("GET", "/v1/tables/typed/keys/7")
        assert got.json["row"] == {"id": 7, **row}

    play_http(test)


def test_key_of_the_body_may_be_written_as_the_path_does_not() -> None:
    """JavaScript writes 1.0 as 1; what would be stored is the same key."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("reals", 1, schema_json=schema_of(id="double"))
        cluster.add_table("exact", 1, schema_json=schema_of(id="decimal(10,2)"))
        for target, same, other in (
            ("/v1/tables/reals/keys/1", 1, 1.5),
            ("/v1/tables/exact/keys/12", 12, "12.01"),
            ("/v1/tables/t/keys/1", 1, "1"),
        ):
            got = await http.ask("PUT", target, {"id": same})
            assert got.status == 200, got.content
            assert (await http.ask("GET", target)).json["found"] is True
            got = await http.ask("PUT", target, {"id": other})
            assert (got.status, got.error) == (400, "schema")

    play_http(test)


def test_words_for_nothing_are_text_where_text_is_asked_for() -> None:
    """A key may be called none; a number may not."""

    async def test(_: FakeCluster, http: Http) -> None:
        for key in ("later", "none", "null"):
            assert (await http.ask("PUT", f"/v1/tables/t/keys/{key}", {})).status == 200
        for query, found in (
            ("start=none", ["none", "null"]),
            ("stop=null", ["later", "none"]),
            ("prefix=null", ["null"]),
            ("start=none&keys_only", ["none", "null"]),
        ):
            got = await http.ask("GET", f"/v1/tables/t:scan?{query}")
            assert [row["id"] for row in got.json["rows"]] == found
        got = await http.ask("GET", "/v1/tables/t/keys/none?columns=none")
        assert (got.status, got.json["row"]) == (200, {})

    play_http(test)


def test_condition_if_none_match_writes_only_what_is_absent() -> None:
    """The second one loses, gets 412 and the row's present version."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        absent = {"If-None-Match": "*"}
        first = await http.ask("PUT", "/v1/tables/t/keys/1", {"v": 1}, absent)
        lost = await http.ask("PUT", "/v1/tables/t/keys/1", {"v": 2}, absent)
        assert (first.status, lost.status, lost.error) == (200, 412, "conflict")
        assert lost.json["outcome"] == "not_applied"
        assert lost.json["position"] == first.json["position"]

    play_http(test)


def test_condition_if_match_writes_only_this_version() -> None:
    """Compare-and-set by ETag, for PUT and DELETE."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        target = "/v1/tables/t/keys/1"
        old = (await http.ask("PUT", target, {"v": 1})).headers["etag"]
        new = (await http.ask("PUT", target, {"v": 2}, {"If-Match": old})).headers["etag"]
        assert (await http.ask("PUT", target, {"v": 3}, {"If-Match": old})).status == 412
        assert (await http.ask("DELETE", target, None, {"If-Match": old})).status == 412
        assert (await http.ask("DELETE", target, None, {"If-Match": new})).status == 200

    play_http(test)


def test_read_of_a_known_version_is_not_modified() -> None:
    """304 without a body, still with provenance."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        target = "/v1/tables/t/keys/1"
        etag = (await http.ask("PUT", target, {"v": 1})).headers["etag"]
        for tag in (etag, f'"other", W/{etag}', "*"):
            got = await http.ask("GET", target, None, {"If-None-Match": tag})
            assert (got.status, got.content) == (304, b"")
            assert got.headers["etag"] == etag
        await http.ask("PUT", target, {"v": 2})
        assert (await http.ask("GET", target, None, {"If-None-Match": etag})).status == 200

    play_http(test)


def test_mget_answers_every_key_in_order_and_names_every_partition() -> None:
    """One read per partition, whatever the number of keys."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        for number in range(10):
            await http.ask("PUT", f"/v1/tables/t/keys/{number}", {"v": number})
        before = sum(len(node.reads) for node in cluster.nodes.values())
        got = await http.ask(
            "POST", "/v1/tables/t:mget", {"keys": [3, 99, "3", {"id": 4}], "max_lag": 0}
        )
        assert [row and row["v"] for row in got.json["rows"]] == [3, None, None, 4]
        assert sum(len(node.reads) for node in cluster.nodes.values()) - before <= 2
        assert {part["partition"] for part in got.json["served"]} <= {0, 1}
        assert {read.level for node in cluster.nodes.values() for read in node.reads[-1:]} >= {
            "bounded"
        }

    play_http(test)


def test_position_of_many_rows_has_every_state_that_they_were_read_from() -> None:
    """Given rows of one partition from two replicas, the last one behind, a reader that goes on
    from the returned position never goes back behind the first.
    """

    async def test(cluster: FakeCluster, http: Http) -> None:
        (channel,) = cluster.add_table("one", 1)
        for number in range(4):
            await http.ask("PUT", f"/v1/tables/one/keys/{number}", {"v": number})
        behind = read_behind(dict(channel.rows), Seq(3))
        whole = [fail("payload_too_large")] * 2
        scripts = deque([*whole, read, behind])

        def in_turn(node: FakeNode, message: Message, reply: Any) -> None:
            scripts.popleft()(node, message, reply)

        for node in cluster.nodes.values():
            node.read_scripts.extend([in_turn] * len(scripts))
        got = await http.ask("POST", "/v1/tables/one:mget", {"keys": [0, 1, 2, 3], "level": "any"})
        assert [row["v"] for row in got.json["rows"]] == [0, 1, 2, 3]
        assert not scripts
        assert sorted(part["applied_seq"] for part in got.json["served"]) == [3, 4]
        position = Position.parse(got.json["position"])
        assert position.seq_of(cluster.tables["one"].uuid, 0) == 4
        assert got.headers["x-raftstore-position"] == str(position)

    play_http(test)


def test_scan_takes_ranges_prefixes_and_limits_in_both_forms() -> None:
    """GET with text, POST with JSON: the same rows."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("c", 2, key=("country", "city"))
        cities = [("de", "berlin"), ("de", "bonn"), ("fr", "nice"), ("it", "roma")]
        for city in cities:
            target = f"/v1/tables/c/keys/{quote(json.dumps(city), safe='')}"
            assert (await http.ask("PUT", target, {"v": 1})).status == 200

        async def names(method: str, target: str, body: Any = None) -> list[str]:
            got = await http.ask(method, target, body)
            assert got.status == 200, got.content
            return [row["city"] for row in got.json["rows"]]

        assert await names("GET", "/v1/tables/c:scan") == ["berlin", "bonn", "nice", "roma"]
        listed = quote('["de"]')
        assert await names("GET", f"/v1/tables/c:scan?prefix={listed}") == ["berlin", "bonn"]
        assert await names("GET", "/v1/tables/c:scan?prefix=d") == ["berlin", "bonn"]
        body: dict[str, Any] = {"start": ["de", "bonn"], "stop": ["it"]}
        assert await names("POST", "/v1/tables/c:scan", body) == ["bonn", "nice"]
        assert await names("POST", "/v1/tables/c:scan", {"prefix": "f", "level": "any"}) == ["nice"]
        got = await http.ask("GET", "/v1/tables/c:scan?limit=2&keys_only=true")
        assert got.json["rows"] == [
            {"country": "de", "city": "berlin"},
            {"country": "de", "city": "bonn"},
        ]

    play_http(test)


def test_pages_of_a_scan_are_of_one_state_and_count_counts_it() -> None:
    """Given writes between two pages, neither shows them; headers name the replica that served
    each.
    """

    async def test(cluster: FakeCluster, http: Http) -> None:
        for number in range(7):
            await http.ask("PUT", f"/v1/tables/t/keys/{number}", {"v": "old"})
        target = "/v1/tables/t:scan?limit=3"
        first = await http.ask("GET", target)
        for number in range(9):
            await http.ask("PUT", f"/v1/tables/t/keys/{number}", {"v": "new"})
        pages = [first]
        while (following := pages[-1].json["next"]) is not None:
            pages.append(await http.ask("GET", f"{target}&token={following}"))
            assert pages[-1].status == 200, pages[-1].content
        rows = [row for page in pages for row in page.json["rows"]]
        assert rows == [{"id": number, "v": "old"} for number in range(7)]
        assert {page.json["position"] for page in pages} == {first.json["position"]}
        assert {part["partition"] for part in first.json["served"]} == {0, 1}
        assert first.headers["x-raftstore-position"] == first.json["position"]
        body = await http.ask("POST", "/v1/tables/t:scan", {"limit": 3, "columns": "v"})
        assert body.json["rows"] == [{"v": "new"}] * 3
        counted = await http.ask("GET", "/v1/tables/t:count?start=2&level=leader")
        assert counted.json["rows"] == 7
        assert counted.headers["x-raftstore-served-by"] == "n1"

    play_http(test)


def test_fate_of_a_write_is_told_by_the_guid_of_its_answer() -> None:
    """N4: committed at its position."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        put = (await http.ask("PUT", "/v1/tables/t/keys/1", {})).json
        fate = await http.ask("GET", f"/v1/writes/{put['guid']}")
        assert fate.status == 200, fate.content
        assert (fate.json["fate"], fate.json["seq"]) == ("committed", put["seq"])
        assert fate.json["partition"] == put["partition"]

    play_http(test)


def test_row_is_put_with_a_lifetime_over_http() -> None:
    """As a parameter, with its unit; 0s is for ever."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        for given in ("90m", "1.5s", "0s"):
            put = await http.ask("PUT", f"/v1/tables/t/keys/1?ttl={given}", {"v": "x"})
            assert put.status == 200, put.content
        told = [each.ttls_ms for each in cluster.channels.values() if each.ttls_ms]
        assert told == [[5_400_000, 1_500, 0]]
        wrong = await http.ask("PUT", "/v1/tables/t/keys/1?ttl=soon", {"v": "x"})
        assert wrong.status == 400, wrong.content

    play_http(test)


def test_table_that_is_being_restored_is_shown_as_one() -> None:
    """A program sees why it serves nothing; every other table says that it is whole."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("half", settings=TableSettings(restoring="0" * 32))
        told = await http.ask("GET", "/v1/tables")
        shown = {table["name"]: table["restoring"] for table in told.json["tables"]}
        assert shown == {"half": True, "t": False}

    play_http(test)


def test_settings_of_a_table_are_given_and_changed_over_http() -> None:
    """POST takes them with the definition, PATCH changes what is given, null removes it."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        wanted = {"name": "kept", "key": "id", "partitions": 1, "retention_age": "1.5s"}
        made = await http.ask(
            "POST", "/v1/tables", {**wanted, "retention_bytes": 2 << 20, "ttl": "1h"}
        )
        assert made.status == 201, made.content
        shown = ("retention_bytes", "retention_records", "retention_age_ms", "ttl_ms")
        assert [made.json[name] for name in shown] == [2 << 20, None, 1_500, 3_600_000]
        changes = {"retention_age": None, "retention_records": 5_000, "ttl": None}
        edited = await http.ask("PATCH", "/v1/tables/kept", changes)
        assert [edited.json[name] for name in shown] == [2 << 20, 5_000, None, None]
        wrong = await http.ask("PATCH", "/v1/tables/kept", {"retention_bytes": 5})
        assert wrong.status == 400, wrong.content
        assert "retention_bytes=5 is outside 1048576" in wrong.content.decode()

    play_http(test)


def test_bounds_of_a_table_are_edited_and_read_explained() -> None:
    """PATCH changes what is given, null removes it; explain names every replica."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        edited = await http.ask(
            "PATCH", "/v1/tables/t", {"max_lag": 7, "max_staleness": "2s", "standby_reads": False}
        )
        assert edited.status == 200, edited.content
        assert edited.json["max_lag"] == 7
        assert edited.json["max_staleness_ms"] == 2_000
        assert edited.json["standby_reads"] is False
        removed = await http.ask("PATCH", "/v1/tables/t", {"max_lag": None})
        assert (removed.json["max_lag"], removed.json["max_staleness_ms"]) == (None, 2_000)

    play_http(test)


def test_blog_23_post_query_forms_and_the_one_select() -> None:
    """Key, keys, prefix, range, or the article's statement with its names of the bound."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        for key in ("a", "b", "it's"):
            await http.ask("PUT", f"/v1/tables/t/keys/{quote(key)}", {"v": key})

        async def rows(body: dict[str, Any]) -> list[Any]:
            got = await http.ask("POST", "/query", body)
            assert got.status == 200, got.content
            return [row and row["v"] for row in got.json["rows"]]

        assert await rows({"table": "t", "key": "a"}) == ["a"]
        assert await rows({"table": "t", "keys": ["b", "z"]}) == ["b", None]
        assert await rows({"table": "t", "prefix": "a"}) == ["a"]
        assert await rows({"table": "t", "range": {"start": "b"}, "limit": 1}) == ["b"]
        statement = "SELECT * FROM t WHERE ROWKEY = 'it''s';"
        assert await rows({"ksql": statement, "streamsProperties": {}}) == ["it's"]
        # KLIP-15, BLOG-21: the sources' names of the bound.
        for name in (
            "max_allowed_lag",
            "acceptable.offset.lag",
            "ksql.query.pull.max.allowed.offset.lag",
        ):
            for node in cluster.nodes.values():
                node.reads.clear()
            await rows({"ksql": statement, "streamsProperties": {name: "7"}})
            reads = [read for node in cluster.nodes.values() for read in node.reads]
            assert {(read.level, read.max_lag) for read in reads} == {("bounded", 7)}

    play_http(test)


def test_query_beyond_the_limit_is_refused_at_once() -> None:
    """429 with Retry-After before the body is read; when one ends the next is served."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        held: list[Any] = []

        def hold(node: FakeNode, message: Message, reply: Any) -> None:
            assert isinstance(message, Get)
            held.append((node, message, reply))

        await http.ask("GET", "/v1/tables/t/keys/1")  # connections and the catalog are there
        for node in cluster.nodes.values():
            node.read_scripts.append(hold)
        slow = asyncio.ensure_future(http.ask("GET", "/v1/tables/t/keys/1?timeout=500ms"))
        await cluster.until(lambda: held)
        refused = await http.ask("GET", "/v1/tables/t/keys/1")
        assert (refused.status, refused.error) == (429, "overloaded")
        assert refused.headers["retry-after"] == "1"
        for other in ("/v1/explain/t/1", "/v1/writes/" + "0" * 68):
            assert (await http.ask("GET", other)).status == 429
        # Writes and views are not queries.
        assert (await http.ask("PUT", "/v1/tables/t/keys/2", {})).status == 200
        assert (await slow).status == 503
        assert (await http.ask("GET", "/v1/tables/t/keys/2")).status == 200

    play_http(test, gateway=FakeGateway(query=QuerySettings(concurrent_max=1)))


def test_write_without_answer_is_unknown_within_its_deadline() -> None:
    """504, outcome unknown: never "not applied", never a hang."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        await http.ask("GET", "/v1/tables/t/keys/1")
        for node in cluster.nodes.values():
            node.publish_scripts.extend([lambda *_: None] * 50)
        lost = await http.ask("PUT", "/v1/tables/t/keys/1?timeout=200ms", {})
        assert (lost.status, lost.json["outcome"]) == (504, "unknown")

    play_http(test)


def test_bounded_read_that_nobody_may_serve_names_every_host() -> None:
    """BLOG-21: the text of the sources, and one reason per host."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        for node in cluster.nodes.values():
            node.lag = 50
        got = await http.ask("GET", "/v1/tables/t/keys/1?max_lag=10&timeout=200ms")
        assert got.status == 503
        assert got.headers["retry-after"] == "1"
        assert "Unable to execute pull query" in got.json["message"]
        assert "All nodes are dead or exceed max allowed lag." in got.json["message"]
        assert {host["host"] for host in got.json["hosts"]} == {"n1", "n2", "n3"}
        assert all(host["reason"] for host in got.json["hosts"])

    play_http(test)


def test_body_beyond_the_limit_is_refused() -> None:
    """413 before anything is decoded."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask("PUT", "/v1/tables/t/keys/1", {"v": "x" * 100})
        assert (got.status, got.error) == (413, "payload_too_large")

    play_http(test, gateway=FakeGateway(http=HttpSettings(body_bytes_max=100)))


def test_before_the_cluster_is_found_everything_but_liveness_is_unavailable() -> None:
    """503 with Retry-After; /livez does not depend on it."""

    async def run() -> None:
        http = Http(FakeGateway())
        got = await http.ask("GET", "/v1/tables/t/keys/1")
        assert (got.status, got.error) == (503, "unavailable")
        assert got.headers["retry-after"] == "1"
        assert (await http.ask("GET", "/livez")).status == 200

    asyncio.run(run())
