"""GAP-11: with users, everything needs credentials, and roles allow what they say."""

from __future__ import annotations

import asyncio
import base64
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from raftstore.cli.main import cli
from raftstore.config import HttpSettings, NodeSettings
from raftstore.errors import AuthenticationError, ConfigError
from raftstore.http import auth
from raftstore.http.auth import Guard, UserFile, password_entry, read_users, token_entry
from raftstore.http.roles import Role
from raftstore.http.server import check_http
from raftstore.node.setting_rules import check_settings
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.http.http_play import FakeGateway, Http, play_http

NODE_TOKEN = "n" * 20
HEARTBEAT = {"hostInfo": {"host": "h", "port": 1}, "timestamp": 1}


def basic(name: str, password: str) -> dict[str, str]:
    """A header with a name and a password."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    """A header with a token."""
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def gateway(tmp_path: Path) -> FakeGateway:
    """Users ann (admin) and bob (read) with passwords, job (write) with a token, and nodes."""
    users = tmp_path / "users"
    lines = [
        "# people",
        password_entry("ann", Role.ADMIN, "secret", b"s" * 16),
        password_entry("bob", Role.READ, "häsel:nut", b"t" * 16),
        "",
        token_entry("job", Role.WRITE, "token-of-job"),
    ]
    users.write_text("\n".join(lines))
    token = tmp_path / "token"
    token.write_text(NODE_TOKEN + "\n")
    return FakeGateway(http=HttpSettings(users_file=str(users), node_token_file=str(token)))


WRONG = [
    {},
    basic("ann", "wrong"),
    basic("nobody", "secret"),
    bearer("wrong"),
    bearer(NODE_TOKEN),
    {"Authorization": "Basic"},
    {"Authorization": "Basic !"},
    {"Authorization": "Basic \u00e4"},
    {"Authorization": "Basic /w=="},
    {"Authorization": "Digest x"},
    {"Authorization": "Basic " + base64.b64encode(b"job").decode()},
]


@pytest.mark.parametrize("headers", WRONG)
def test_gap_11_security_on_needs_credentials(
    gateway: FakeGateway, headers: dict[str, str]
) -> None:
    """Without, or with wrong ones: 401, and nothing is asked of any node."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        got = await http.ask("GET", "/v1/tables/t/keys/1", None, headers)
        assert (got.status, got.error) == (401, "unauthenticated")
        assert "Basic" in got.headers["www-authenticate"]
        assert not any(node.reads for node in cluster.nodes.values())
        assert (await http.ask("GET", "/livez", None, headers)).status == 200

    play_http(test, gateway=gateway)


def test_gap_11_roles_are_enforced(gateway: FakeGateway) -> None:
    """read reads, write also writes, admin also makes and drops tables; 403 beyond that."""

    async def test(cluster: FakeCluster, http: Http) -> None:
        table = {"name": "new", "key": "id", "partitions": 1}
        for headers, expected in (
            (basic("bob", "häsel:nut"), (403, 403, 200, 403)),
            (bearer("token-of-job"), (200, 403, 200, 400)),
            (basic("ann", "secret"), (200, 201, 200, 400)),
        ):
            put = await http.ask("PUT", "/v1/tables/t/keys/1", {}, headers)
            create = await http.ask("POST", "/v1/tables", table, headers)
            tables = await http.ask("GET", "/v1/tables", None, headers)
            # It notifies the leader that the write is given up: readers must not.
            fate = await http.ask("GET", "/v1/writes/none", None, headers)
            got = (put.status, create.status, tables.status, fate.status)
            assert got == expected, create.content

    play_http(test, gateway=gateway)


@pytest.mark.slow
def test_verifications_that_nobody_waits_for_any_more_count(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifications whose client is gone count until they end: guesses of passwords with short
    timeouts must not take every core of a node.
    """
    go_on, third = threading.Event(), threading.Event()
    under_way: list[str] = []

    def slow(password: str, _secret: str) -> bool:
        under_way.append(password)
        if len(under_way) > auth.VERIFICATIONS_AT_ONCE:
            third.set()
        go_on.wait(30)
        return False

    monkeypatch.setattr(auth, "_is_password", slow)

    async def run() -> None:
        http = Http(gateway)
        answers = [
            await http.ask("GET", "/v1/tables?timeout=100ms", None, basic("ann", str(guess)))
            for guess in range(4)
        ]
        assert {answer.status for answer in answers} == {503}
        assert not await asyncio.to_thread(third.wait, 0.5)
        go_on.set()

    try:
        asyncio.run(run())
    finally:
        go_on.set()
    assert len(under_way) <= auth.VERIFICATIONS_AT_ONCE


def test_gap_11_heartbeat_needs_the_node_token(gateway: FakeGateway) -> None:
    """No user may pretend that a node is alive, not even an admin."""

    async def run() -> None:
        http = Http(gateway)
        for headers in ({}, bearer("wrong"), basic("ann", "secret")):
            assert (await http.ask("POST", "/heartbeat", HEARTBEAT, headers)).status == 401
        assert (await http.ask("POST", "/heartbeat", HEARTBEAT, bearer(NODE_TOKEN))).status == 200

    asyncio.run(run())


def test_gap_11_without_a_node_token_nobody_posts_once_users_are_set(
    gateway: FakeGateway,
) -> None:
    """Forgetting the token closes the door, never opens it."""
    gateway.guard = Guard(HttpSettings(users_file=gateway.http.users_file))

    async def run() -> None:
        got = await Http(gateway).ask("POST", "/heartbeat", HEARTBEAT, basic("ann", "secret"))
        assert (got.status, got.error) == (403, "forbidden")

    asyncio.run(run())


@pytest.mark.slow
def test_users_are_read_again_when_their_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart: who is new comes in, who is removed or has another password does not, and
    a file that cannot be used changes nothing."""
    monkeypatch.setattr(auth, "LOOK_INTERVAL_S", 0.0)
    file = tmp_path / "users"

    def write(*lines: str) -> None:
        # As the commands do: another file in its place, so that its inode differs.
        made = tmp_path / "made"
        made.write_text("".join(f"{line}\n" for line in lines))
        made.replace(file)

    ann = password_entry("ann", Role.READ, "one", b"s" * 16)
    bob = password_entry("bob", Role.READ, "two", b"t" * 16)
    write(ann, bob, token_entry("job", Role.READ, "token-of-job"))

    async def enters(guard: Guard, credentials: dict[str, str]) -> bool:
        try:
            await guard.check(credentials["Authorization"], Role.READ)
        except AuthenticationError:
            return False
        return True

    async def test() -> None:
        guard = Guard(HttpSettings(users_file=str(file)))
        people = [basic("ann", "one"), basic("bob", "two"), bearer("token-of-job")]
        new = basic("ann", "three")
        assert [await enters(guard, who) for who in [*people, new]] == [True, True, True, False]
        write(password_entry("ann", Role.READ, "three", b"u" * 16), bob)
        assert [await enters(guard, who) for who in [*people, new]] == [False, True, False, True]
        write("nonsense")
        assert await enters(guard, new)
        file.unlink()
        assert await enters(guard, new)
        write(ann)
        assert [await enters(guard, who) for who in [*people, new]] == [True, False, False, False]

    asyncio.run(test())


def test_file_of_users_is_looked_at_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with each request."""
    file = tmp_path / "users"
    file.write_text(token_entry("job", Role.READ, "token-of-job") + "\n")
    users = UserFile(file)
    looks: list[Path] = []

    def look(at: Path) -> tuple[int, ...]:
        looks.append(at)
        return stamp

    stamp = auth._stamp_of(file)
    monkeypatch.setattr(auth, "_stamp_of", look)
    assert [users.has_changed(at) for at in (5.0, 5.5, 5.9, 6.1)] == [False] * 4
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("http", "is_allowed"),
    [
        (HttpSettings(listen="0.0.0.0:4480"), False),
        (HttpSettings(listen="0.0.0.0:4480", tls_cert="c", tls_key="k"), False),
        (HttpSettings(listen="0.0.0.0:4480", users_file="u"), False),
        (HttpSettings(listen="0.0.0.0:4480", tls_cert="c", tls_key="k", users_file="u"), True),
        (HttpSettings(listen="127.0.0.1:4480"), True),
        (HttpSettings(listen="127.0.0.1:4480", tls_cert="c"), False),
        (HttpSettings(listen=""), True),
    ],
)
def test_gap_11_plain_http_beyond_loopback_is_refused(
    http: HttpSettings, *, is_allowed: bool
) -> None:
    """Others may reach it only encrypted and with users, unless --insecure says so."""
    settings = NodeSettings(name="n1", data_dir="d", http=http)
    if is_allowed:
        check_settings(settings)
    else:
        with pytest.raises(ConfigError, match="http"):
            check_settings(settings)


@pytest.mark.parametrize(
    "text",
    ["", "ann", "ann:king:sha256$" + "0" * 64, "ann:read:secret", "ann:read:sha256$00",
     "ann:read:scrypt$3$8$1$00$" + "0" * 64, ":read:sha256$" + "0" * 64,
     "a:read:sha256$" + "0" * 64 + "\na:read:sha256$" + "1" * 64],
)  # fmt: skip
def test_users_file_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str) -> None:
    """The line is named, its secret is not."""
    (tmp_path / "users").write_text(text)
    http = HttpSettings(users_file=str(tmp_path / "users"))
    with pytest.raises(ConfigError, match="users_file") as refused:
        check_http(NodeSettings(name="n1", data_dir="d", http=http))
    assert "0000" not in str(refused.value)


def test_files_that_are_not_there_stop_the_start(tmp_path: Path) -> None:
    """Said in one sentence, before anything is touched."""
    missing = str(tmp_path / "missing")
    short = tmp_path / "short"
    short.write_text("abc")
    for http in (
        HttpSettings(users_file=missing),
        HttpSettings(node_token_file=missing),
        HttpSettings(node_token_file=str(short)),
        HttpSettings(tls_cert=missing, tls_key=missing),
    ):
        with pytest.raises(ConfigError, match="http"):
            check_http(NodeSettings(name="n1", data_dir="d", http=http))


def test_user_add_writes_lines_that_the_node_reads(tmp_path: Path) -> None:
    """With a password from stdin, or a token that is printed once."""
    file = tmp_path / "users"
    runner = CliRunner()
    arguments = ["user", "add", "ann", "--role", "admin", "--file", str(file), "--password-stdin"]
    assert runner.invoke(cli, arguments, input="pw\n").exit_code == 0
    arguments = ["user", "add", "job", "--role", "read", "--file", str(file), "--token"]
    made = runner.invoke(cli, arguments)
    assert [(u.name, u.role) for u in read_users(file)] == [
        ("ann", Role.ADMIN),
        ("job", Role.READ),
    ]
    assert file.stat().st_mode & 0o077 == 0
    guard = Guard(HttpSettings(users_file=str(file)))
    asyncio.run(guard.check(bearer(made.stdout.strip())["Authorization"], Role.READ))
    asyncio.run(guard.check(basic("ann", "pw")["Authorization"], Role.ADMIN))
    assert isinstance(runner.invoke(cli, arguments).exception, ConfigError)
