"""Web pages that make a browser ask a node: they write nothing and, without users, see nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.config import HttpSettings
from raftstore.http.auth import password_entry
from raftstore.http.roles import Role
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.http.http_play import FakeGateway, Http, play_http
from tests.integration.http.test_monitoring import view

TABLE = {"name": "new", "key": "id", "partitions": 1}
OWN = {"host": "127.0.0.1:4480"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    "headers",
    [
        OWN | {"origin": "https://evil.example"},
        OWN | {"origin": "null"},
        OWN | {"origin": "http://127.0.0.1:9999"},
        OWN | {"sec-fetch-site": "cross-site"},
        OWN | {"sec-fetch-site": "same-site"},
        {"host": "evil.example:4480", "origin": "http://evil.example:4480"},
        {"host": "evil.example:4480"},
        {"host": "evil.example."},
    ],
)
def test_page_of_another_site_writes_nothing(headers: dict[str, str]) -> None:
    """By a form, by a script, or by a name that was pointed to this machine afterwards."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        for method, path, body in (
            ("POST", "/v1/tables", TABLE),
            ("PUT", "/v1/tables/t/keys/1", {}),
            ("DELETE", "/v1/tables/t/keys/1", None),
            ("GET", "/v1/writes/none", None),  # it makes the leader give the write up
        ):
            got = await http.ask(method, path, body, headers | FORM)
            assert (got.status, got.error) == (403, "forbidden"), path
        assert (await http.ask("GET", "/livez", None, headers)).status == 200

    play_http(test)


def test_name_that_is_not_of_this_node_reads_nothing() -> None:
    """DNS rebinding: to the browser the node is a part of the page's own site."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask("GET", "/v1/tables", None, {"host": "evil.example:4480"})
        assert got.status == 403
        assert "http.allowed_hosts" in got.json["message"]

    play_http(test)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        FORM,
        OWN | FORM,
        OWN | {"origin": "http://127.0.0.1:4480", "sec-fetch-site": "same-origin"},
        OWN | {"origin": "https://app.example", "sec-fetch-site": "cross-site"},
        OWN | {"content-type": "application/json; charset=utf-8"},
        OWN | {"content-type": "application/vnd.ksql.v1+json"},
        {"host": "localhost:4480"},
        {"host": "[::1]:4480"},
        {"host": "n1:4480"},
        {"host": "kv.example.org"},
        {"host": "db.example.org:4480"},
    ],
)
def test_program_and_allowed_page_write(headers: dict[str, str]) -> None:
    """curl -d says that it sends a form; names are those that were configured."""
    http = HttpSettings(
        advertise="kv.example.org:4480",
        allowed_hosts="db.example.org, other.example.org",
        allowed_origins="https://app.example",
    )

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask("PUT", "/v1/tables/t/keys/1", {"v": 1}, headers)
        assert got.status == 200, got.content

    play_http(test, gateway=FakeGateway(http=http))


@pytest.mark.parametrize("kind", ["text/plain", "text/plain;charset=UTF-8", "multipart/form-data"])
def test_body_that_a_form_can_send_is_refused(kind: str) -> None:
    """Old browsers send forms without saying where they came from."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask("POST", "/v1/tables", TABLE, {"content-type": kind})
        assert (got.status, got.error) == (415, "unsupported_media_type")

    play_http(test)


def with_users(tmp_path: Path) -> FakeGateway:
    """A gateway with one user, and no settings of hosts."""
    users = tmp_path / "users"
    users.write_text(password_entry("ann", Role.ADMIN, "secret", b"s" * 16))
    return FakeGateway(http=HttpSettings(users_file=str(users)))


def test_with_users_any_name_may_be_used_and_no_other_page(tmp_path: Path) -> None:
    """A rebound name has no password of the user; another site's page has, and may not use it."""
    ann = {"authorization": "Basic YW5uOnNlY3JldA=="}

    async def test(cluster: FakeCluster, http: Http) -> None:
        host = {"host": "kv.example.org"}
        assert (await http.ask("PUT", "/v1/tables/t/keys/1", {}, ann | host)).status == 200
        page = host | {"origin": "https://evil.example"}
        assert (await http.ask("PUT", "/v1/tables/t/keys/1", {}, ann | page)).status == 403

    play_http(test, gateway=with_users(tmp_path))


@pytest.mark.parametrize("path", ["/readyz", "/healthz"])
def test_clients_without_rights_learn_from_readiness_no_names_of_tables(
    tmp_path: Path, path: str
) -> None:
    """With users the same answer for a table that exists and one that does not; for a load
    balancer, which asks for none, whether the node is ready."""
    gateway = with_users(tmp_path)
    gateway.own = lambda _: view(leader_up=False)
    ann = {"authorization": "Basic YW5uOnNlY3JldA=="}

    async def test(cluster: FakeCluster, http: Http) -> None:
        plain = await http.ask("GET", path)
        assert plain.json["checks"] == []
        assert "orders" not in str(plain.json)
        if path == "/readyz":
            assert "orders" in str((await http.ask("GET", f"{path}?verbose", None, ann)).json)
            for query in ("table=orders", "table=none", "verbose", "exclude=orders"):
                assert (await http.ask("GET", f"{path}?{query}")).status == 401
            known = await http.ask("GET", f"{path}?table=orders", None, ann)
            assert known.status in (200, 503)
            assert (await http.ask("GET", f"{path}?table=none", None, ann)).status == 404

    play_http(test, gateway=gateway)
