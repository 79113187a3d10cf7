"""Bad requests: each is refused at once with its code, and nothing is read or written."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from raftstore.client.position import Position
from raftstore.types import Seq, Term
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.http.http_play import Http, play_http
from tests.integration.http.test_rows import TYPED, schema_of

KEY = "/v1/tables/t/keys/1"
OF_ANOTHER_TABLE = str(Position.at(b"f" * 16, 0, Term(1), Seq(5)))
DEEP = b"[" * 5_000
SELECT = "SELECT * FROM t WHERE ROWKEY='a';"
HUGE = b"1" + b"0" * 400

READS = [
    ("level=foo", 400, "bad_request"),
    ("level=", 400, "bad_request"),
    ("max_lag=-1", 400, "bad_request"),
    ("max_lag=x", 400, "bad_request"),
    ("max_lag=1.5", 400, "bad_request"),
    ("max_lag=null", 400, "bad_request"),
    ("max_lag=99999999999999999999", 400, "bad_request"),
    ("max_lag=1&max_lag=2", 400, "bad_request"),
    ("max_lag=1&level=leader", 400, "bad_request"),
    ("max_staleness=2", 400, "bad_request"),
    ("max_staleness=-2s", 400, "bad_request"),
    ("max_staleness=nan", 400, "bad_request"),
    ("max_batches_behind=-1", 400, "bad_request"),
    ("timeout=0s", 400, "bad_request"),
    ("timeout=2h", 400, "bad_request"),
    ("timeout=soon", 400, "bad_request"),
    ("hedge=maybe", 400, "bad_request"),
    ("prefer=best", 400, "bad_request"),
    ("nothing=1", 400, "bad_request"),
    ("at_least=p1.%21", 400, "position"),
    ("at_least=x", 400, "position"),
    (f"at_least={OF_ANOTHER_TABLE}", 400, "position"),
    ("replica=n9&level=any", 400, "bad_request"),
]


@pytest.mark.parametrize(("query", "status", "code"), READS)
def test_bad_parameter_of_a_read_is_refused_by_its_name(query: str, status: int, code: str) -> None:
    """Unknown, mistyped, out of range or contradicting: never ignored."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        async with asyncio.timeout(5):
            got = await http.ask("GET", f"{KEY}?{query}")
        assert (got.status, got.error) == (status, code), got.content
        assert got.json["retriable"] is False
        assert not any(node.reads for node in cluster.nodes.values())

    play_http(test)


WORDS = [
    (
        "level=foo",
        "the parameter 'level' is \"foo\"; give one of any, bounded, leader, linearizable",
    ),
    ("max_lag=-1", "the parameter 'max_lag' is \"-1\"; give a whole number from 0"),
    (
        f"max_lag={2**63}",
        "the parameter 'max_lag' is \"9223372036854775808\"; give a whole number from 0 to "
        "9223372036854775807",
    ),
    ("max_lag=1.5", "the parameter 'max_lag' is \"1.5\"; give a whole number from 0"),
    ("max_lag=%D9%A3", "the parameter 'max_lag' is \"٣\"; give a whole number from 0"),
    ("max_lag=x", "the parameter 'max_lag' is \"x\"; give a whole number from 0"),
    (
        "max_staleness=2",
        "the parameter 'max_staleness' is \"2\"; give a duration with a unit, as in 500ms or 2s",
    ),
    ("hedge=maybe", "the parameter 'hedge' is \"maybe\"; give true or false"),
    (
        "prefer=best",
        "the parameter 'prefer' is \"best\"; give one of any_in_bound, leader, nearest",
    ),
]


@pytest.mark.parametrize(("query", "words"), WORDS)
def test_bad_parameter_is_told_with_its_value_and_what_is_allowed(query: str, words: str) -> None:
    """In words of this interface, not in those of whatever checks it."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask("GET", f"{KEY}?{query}")
        assert got.json["message"] == words
        assert not any(node.reads for node in cluster.nodes.values())

    play_http(test)


MGET = "/v1/tables/t:mget"
BODY_WORDS: list[tuple[bytes, str]] = [
    (b'{"keys": [1], "max_lag": -1}', "the field 'max_lag' is -1; give a whole number from 0"),
    (
        b'{"keys": [1], "max_lag": 1%s}' % (b"0" * 19),
        "the field 'max_lag' is 10000000000000000000; give a whole number from 0 to "
        "9223372036854775807",
    ),
    (
        b'{"keys": [1], "level": "foo"}',
        "the field 'level' is \"foo\"; give one of any, bounded, leader, linearizable",
    ),
    (b'{"keys": 1}', "the field 'keys' is 1; give a list of at most 10000"),
    (b"{}", "the field 'keys' is missing; /v1/tables/{table}:mget needs it"),
    (b"[1]", "the body is [1]; /v1/tables/{table}:mget takes a JSON object"),
    (b'{"keys": 1, "level": ]', "the body is not JSON ("),
    (b'{"kys": [1]}', "the field 'kys' is unknown (there are: timeout, level, "),
]


@pytest.mark.parametrize(("body", "words"), BODY_WORDS)
def test_bad_body_is_told_by_its_field(body: bytes, words: str) -> None:
    """Name, value and remedy, as with parameters."""

    async def test(_: FakeCluster, http: Http) -> None:
        got = await http.ask("POST", MGET, body)
        assert (got.status, got.error) == (400, "bad_request")
        assert got.json["message"].startswith(words)

    play_http(test)


_PARTITION = "stateStoreLags[...].lagByPartition[...]"
INNER_WORDS: list[tuple[Any, str]] = [
    (
        {"0": {"currentOffsetPosition": -1, "endOffsetPosition": 2}},
        f"a value at '{_PARTITION}.currentOffsetPosition' is wrong; give a whole number from 0",
    ),
    (
        {"0": {"endOffsetPosition": 2}},
        f"the field 'currentOffsetPosition' at '{_PARTITION}' is missing; /reportlag needs it",
    ),
    ([], "a value at 'stateStoreLags[...].lagByPartition' is wrong; give an object"),
    (
        {"0": {"currentOffsetPosition": 1, "endOffsetPosition": 2, "lag": 1}},
        f"the field 'lag' at '{_PARTITION}' is unknown (there are: currentOffsetPosition, "
        "endOffsetPosition, offsetLag, timeLagMs)",
    ),
]


@pytest.mark.parametrize(("partitions", "words"), INNER_WORDS)
def test_bad_value_deep_in_a_body_is_told_by_its_place(partitions: Any, words: str) -> None:
    """Not by the field around it, which looks right."""
    body = {
        "hostInfo": {"host": "127.0.0.1", "port": 1},
        "updateTimeMs": 1,
        "stateStoreLags": {"t": {"lagByPartition": partitions}},
    }

    async def test(_: FakeCluster, http: Http) -> None:
        got = await http.ask("POST", "/reportlag", body)
        assert (got.status, got.json["message"]) == (400, words)

    play_http(test)


def test_unknown_field_deep_in_a_body_is_told_with_those_that_are_known_there() -> None:
    """The names of the whole body would send the caller to the wrong place."""

    async def test(_: FakeCluster, http: Http) -> None:
        got = await http.ask("POST", "/query", {"table": "t", "range": {"start": 1, "to": 2}})
        words = "the field 'to' at 'range' is unknown (there are: start, stop)"
        assert (got.status, got.json["message"]) == (400, words)

    play_http(test)


BODIES: list[tuple[str, str, Any, int, str]] = [
    ("PUT", KEY, b"", 400, "bad_request"),
    ("PUT", KEY, b"{", 400, "bad_request"),
    ("PUT", KEY, b"\xff", 400, "bad_request"),
    ("PUT", KEY, b"[]", 400, "bad_request"),
    ("PUT", KEY, DEEP, 400, "bad_request"),
    ("PUT", KEY, b'{"v": 1e999}', 400, "bad_request"),
    ("PUT", KEY, {"id": 2}, 400, "schema"),
    ("PUT", KEY, {"v": {"$foo": 1}}, 400, "schema"),
    ("PUT", KEY, {"v": "x" * 1_100_000}, 413, "payload_too_large"),
    ("PUT", "/v1/tables/typed/keys/x", {}, 400, "schema"),
    ("PUT", "/v1/tables/typed/keys/1", {"nope": 1}, 400, "schema"),
    ("PUT", "/v1/tables/typed/keys/1", {"price": 1.5}, 400, "schema"),
    ("PUT", "/v1/tables/typed/keys/1", {"price": "123456789.00"}, 400, "schema"),
    ("GET", "/v1/tables/typed/keys/x", None, 400, "schema"),
    ("GET", "/v1/tables/t/keys/" + "k" * 5_000, None, 413, "payload_too_large"),
    ("GET", "/v1/tables/t/keys/%FF", None, 400, "bad_request"),
    ("GET", "/v1/tables/t:scan?prefix=%E9", None, 400, "bad_request"),
    ("GET", "/v1/tables/t:scan?%FF=1", None, 400, "bad_request"),
    ("PUT", "/v1/tables/t/keys", {}, 404, "not_found"),
    ("DELETE", "/v1/tables/t/", None, 404, "not_found"),
    ("GET", "/v1/tables/", None, 404, "not_found"),
    ("GET", "/v1/tables/gone/keys/1", None, 404, "unknown_table"),
    ("GET", "/v1/tables/gone:scan", None, 404, "unknown_table"),
    ("GET", "/v1/tables/t:scan?limit=0", None, 400, "bad_request"),
    ("GET", "/v1/tables/t:scan?limit=10001", None, 400, "bad_request"),
    ("GET", "/v1/tables/t:scan?prefix=a&start=b", None, 400, "bad_request"),
    ("GET", '/v1/tables/t:scan?start=["a","b"]', None, 400, "schema"),
    ("POST", "/v1/tables/t:scan", {"limit": "x"}, 400, "bad_request"),
    ("POST", "/v1/tables/t:scan", {"start": {"$foo": 1}}, 400, "schema"),
    ("POST", "/v1/tables/t:mget", {"keys": 1}, 400, "bad_request"),
    ("POST", "/v1/tables/t:mget", {}, 400, "bad_request"),
    ("POST", "/v1/tables/t:mget", {"keys": [[1, 2]]}, 400, "schema"),
    ("POST", "/v1/tables/t:mget", {"keys": [None]}, 400, "schema"),
    ("POST", "/v1/tables/t:mget", {"keys": [1], "max_lag": "7"}, 400, "bad_request"),
    ("POST", "/v1/tables/t:mget", {"keys": [1], "max_lag": True}, 400, "bad_request"),
    ("POST", "/v1/tables/gone:mget", {"keys": [1]}, 404, "unknown_table"),
    ("POST", "/query", {}, 400, "bad_request"),
    ("POST", "/query", {"table": "t"}, 400, "bad_request"),
    ("POST", "/query", {"table": "t", "key": 1, "keys": [1]}, 400, "bad_request"),
    ("POST", "/query", {"table": "t", "key": 1, "properties": {"max_lag": -1}}, 400, "bad_request"),
    ("POST", "/query", {"table": "t", "key": 1, "properties": {"x": 1}}, 400, "bad_request"),
    (
        "POST",
        "/query",
        {"table": "t", "key": 1, "properties": {"timeout": "1s"}},
        400,
        "bad_request",
    ),
    ("POST", "/query", {"table": "t", "key": 1, "limit": 5}, 400, "bad_request"),
    ("POST", "/query", {"table": "t", "keys": [1], "token": "x"}, 400, "bad_request"),
    ("POST", "/query", {"table": "t", "key": 1, "streamsProperties": {"x": 1}}, 400, "bad_request"),
    ("POST", "/query", {"ksql": SELECT, "key": 1}, 400, "bad_request"),
    ("POST", "/query", {"ksql": SELECT, "limit": 5}, 400, "bad_request"),
    ("POST", "/query", {"ksql": SELECT, "properties": {"max_lag": 1}}, 400, "bad_request"),
    (
        "POST",
        "/query",
        {"ksql": SELECT, "streamsProperties": {"timeout": "1s"}},
        400,
        "bad_request",
    ),
    ("GET", "/readyz?level=any&max_lag=1", None, 400, "bad_request"),
    ("GET", "/readyz?verbose=null", None, 400, "bad_request"),
    ("POST", "/query", {"ksql": "DROP TABLE t;"}, 400, "schema"),
    ("POST", "/query", {"ksql": "SELECT v FROM t WHERE ROWKEY='a';"}, 400, "schema"),
    ("POST", "/query", {"ksql": "SELECT * FROM t;"}, 400, "schema"),
    ("POST", "/v1/tables", {"name": "t", "key": "id"}, 409, "table_exists"),
    ("POST", "/v1/tables", {"name": "n"}, 400, "bad_request"),
    ("POST", "/v1/tables", {"name": "n", "key": []}, 400, "schema"),
    ("POST", "/v1/tables", {"name": "n", "key": "id", "partitions": 0}, 400, "bad_request"),
    ("POST", "/v1/tables", {"name": "n", "key": "id", "schema": {"a": 1}}, 400, "schema"),
    ("DELETE", "/v1/tables/gone", None, 404, "unknown_table"),
    ("GET", "/v1/tables/gone", None, 404, "unknown_table"),
    ("GET", "/v1/tables?x=1", None, 400, "bad_request"),
    ("PATCH", "/v1/tables/t", {}, 400, "bad_request"),
    ("PATCH", "/v1/tables/t", {"max_lag": -1}, 400, "bad_request"),
    ("PATCH", "/v1/tables/t", {"partitions": 2}, 400, "bad_request"),
    ("PATCH", "/v1/tables/t", {"max_staleness": "soon"}, 400, "bad_request"),
    ("GET", "/v1/writes/xyz", None, 400, "schema"),
    ("GET", "/v1/writes/" + "0" * 68, None, 404, "unknown_table"),
    ("GET", "/v1/events?since=-1", None, 400, "bad_request"),
    ("GET", "/v1/events?limit=0", None, 400, "bad_request"),
    ("GET", "/v1/tables/t:scan?token=s1.x", None, 400, "page_token"),
    ("GET", "/v1/tables/t:scan?token=x", None, 400, "page_token"),
    ("GET", "/v1/tables/t:count?limit=1", None, 400, "bad_request"),
    ("GET", "/v1/tables/t/keys/1?columns=", None, 400, "bad_request"),
    ("GET", "/v1/tables/typed/keys/1?columns=nope", None, 400, "schema"),
    ("GET", "/nothing", None, 404, "not_found"),
    ("PATCH", KEY, None, 405, "method_not_allowed"),
    ("POST", "/livez", None, 405, "method_not_allowed"),
]


@pytest.mark.parametrize(("method", "target", "body", "status", "code"), BODIES)
def test_bad_request_has_a_code_and_comes_at_once(
    method: str, target: str, body: Any, status: int, code: str
) -> None:
    """Bodies, keys, paths and methods that mean nothing; nothing is written."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("typed", 1, schema_json=TYPED)
        async with asyncio.timeout(6):
            got = await http.ask(method, quote(target, safe="/:?=&%"), body)
        assert (got.status, got.error) == (status, code), got.content
        assert got.headers["content-type"] == "application/json"
        assert got.json["message"]
        assert not any(node.published for node in cluster.nodes.values())

    play_http(test)


def test_change_of_nothing_names_what_can_be_changed_over_http() -> None:
    """The fields of the body, and nothing that only the library has."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        del cluster
        got = await http.ask("PATCH", "/v1/tables/t", {})
        message = got.json["message"]
        assert "nothing is to be changed; give one of max_lag, max_staleness" in message
        assert "add_columns" not in message

    play_http(test)


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """JSON of so many levels."""
    return opening * levels + b"1" + closing * levels


DOUBLES = "/v1/tables/doubles"
EXTREMES: list[tuple[str, str, bytes, str]] = [
    ("PUT", KEY, b'{"v": ' + nested(480, b'{"a":', b"}") + b"}", "bad_request"),
    ("PUT", KEY, b'{"v": ' + nested(600) + b"}", "bad_request"),
    ("PUT", KEY, b'{"v": ' + nested(200) + b"}", "schema"),
    ("PUT", KEY, b'{"v": {"$double": ' + HUGE + b"}}", "schema"),
    ("PUT", f"{DOUBLES}/keys/1", b'{"v": ' + HUGE + b"}", "schema"),
    ("PUT", f"{DOUBLES}/keys/1", b'{"v": "1e400"}', "schema"),
    ("PUT", f"{DOUBLES}/keys/1e400", b"{}", "schema"),
    ("POST", f"{DOUBLES}:mget", b'{"keys": [' + HUGE + b"]}", "schema"),
    ("POST", "/v1/tables/t:mget", b'{"keys": [' + nested(700) + b"]}", "bad_request"),
    (
        "POST",
        "/query",
        b'{"table": "t", "key": 1, "properties": {"level": ' + nested(700) + b"}}",
        "bad_request",
    ),
    ("POST", "/v1/tables/pairs:mget", b'{"keys": [' + nested(300) + b"]}", "schema"),
    ("GET", "/v1/tables/pairs/keys/" + nested(900).decode(), b"", "schema"),
]


@pytest.mark.parametrize(("method", "target", "body", "code"), EXTREMES)
def test_value_beyond_what_can_be_kept_is_refused(
    method: str, target: str, body: bytes, code: str
) -> None:
    """Too deep or too large: the sender is at fault, and nothing was written."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("doubles", 1, schema_json=schema_of(id="double", v="double"))
        cluster.add_table("pairs", 1, key=("a", "b"))
        got = await http.ask(method, quote(target, safe="/:"), body)
        assert (got.status, got.error) == (400, code), got.content
        assert got.json["outcome"] == "not_applied"
        assert not any(node.published for node in cluster.nodes.values())

    play_http(test)


CONDITIONS = [
    ("PUT", {"If-Match": "p1.x"}),
    ("PUT", {"If-Match": '"a", "b"'}),
    ("PUT", {"If-Match": "*"}),
    ("PUT", {"If-Match": '"nonsense"'}),
    ("PUT", {"If-Match": f'"{OF_ANOTHER_TABLE}"'}),
    ("PUT", {"If-None-Match": '"a"'}),
    ("PUT", {"If-None-Match": "*", "If-Match": '"a"'}),
    ("DELETE", {"If-None-Match": "*"}),
]


@pytest.mark.parametrize(("method", "headers"), CONDITIONS)
def test_condition_that_cannot_be_kept_is_refused(method: str, headers: dict[str, str]) -> None:
    """A condition is never dropped: the write would do what was to be prevented."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask(method, KEY, {} if method == "PUT" else None, headers)
        assert got.status == 400, got.content
        assert not any(node.published for node in cluster.nodes.values())

    play_http(test)


def test_read_of_a_table_that_is_being_dropped_ends_within_its_deadline() -> None:
    """Never an old answer of what is gone, never a hang: unknown table, or a refusal."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        assert (await http.ask("PUT", KEY, {})).status == 200
        cluster.drop_table("t")
        async with asyncio.timeout(3):
            got = await http.ask("GET", f"{KEY}?timeout=1s")
        assert got.status in (404, 503)
        assert "error_code" in got.json

    play_http(test)
