"""Users' state machines over HTTP: JSON in and out, by the codecs of the machine."""

from __future__ import annotations

from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.http.http_play import Http, play_http

NAME = "tests.integration.client.fake_machines:Counter"


def test_commands_and_queries_over_http() -> None:
    """A result with its place, an answer with who gave it, a refusal with its reason."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("c", 2, key=(), machine=NAME)
        done = await http.ask("POST", "/v1/machines/c:command", {"key": "k", "command": 4})
        assert (done.status, done.json["result"]) == (200, 4)
        assert done.headers["x-raftstore-position"] == done.json["position"]
        guid = done.json["guid"]
        body = {"key": "k", "command": 4, "guid": guid}
        assert (await http.ask("POST", "/v1/machines/c:command", body)).json["result"] == 4
        refused = await http.ask("POST", "/v1/machines/c:command", {"key": "k", "command": -9})
        assert (refused.status, refused.error) == (409, "rejected")
        body = {"key": "k", "request": "n", "max_lag": 0}
        asked = await http.ask("POST", "/v1/machines/c:query", body)
        assert (asked.status, asked.json["answer"]) == (200, {"n": 4})
        assert (asked.json["level"], asked.json["served_by"]) == ("bounded", "n1")
        partition = asked.json["partition"]
        body = {"partition": 1 - partition, "request": "n"}
        asked = await http.ask("POST", "/v1/machines/c:query", body)
        assert asked.json["answer"] == {"n": 0}
        done = await http.ask("POST", "/v1/machines/c:command", {"partition": 0, "command": 1})
        assert (done.json["partition"], done.json["result"]) == (0, 1)

    play_http(test)


def test_what_cannot_be_is_refused_over_http() -> None:
    """A command that does not fit, a body without a target, a table, an unknown name."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("c", key=(), machine=NAME)
        for body in ({"key": "k", "command": "x"}, {"command": 1}, {"key": "", "command": 1}):
            assert (await http.ask("POST", "/v1/machines/c:command", body)).status == 400
        body = {"key": "k", "request": "n", "columns": "a"}
        assert (await http.ask("POST", "/v1/machines/c:query", body)).status == 400
        reply = await http.ask("POST", "/v1/machines/t:query", {"key": "k", "request": "n"})
        assert (reply.status, reply.error) == (400, "schema")
        assert (await http.ask("GET", "/v1/machines/none")).status == 404
        reply = await http.ask("GET", "/v1/tables/c/keys/1")
        assert (reply.status, reply.error) == (400, "schema")

    play_http(test)


def test_channel_sets_are_listed_apart_from_tables() -> None:
    """Each with its machine, partitions and leaders."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        cluster.add_table("c", 2, key=(), machine=NAME)
        listed = (await http.ask("GET", "/v1/machines")).json["machines"]
        assert [(each["name"], each["machine"]) for each in listed] == [("c", NAME)]
        one = (await http.ask("GET", "/v1/machines/c")).json
        assert [channel["leader"] for channel in one["channels"]] == ["n1", "n1"]
        tables = (await http.ask("GET", "/v1/tables")).json["tables"]
        assert [each["name"] for each in tables] == ["t"]

    play_http(test)
