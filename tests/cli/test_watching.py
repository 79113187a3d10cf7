"""lag, events, check and table edit: what is printed, and the exit codes of monitors."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Self

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from raftstore.cli.common import Context
from raftstore.cli.main import cli, global_options_first
from raftstore.client.results import ClusterEvents
from raftstore.errors import UnavailableError, UnknownTableError
from raftstore.protocol.admin import (
    ChannelInfo,
    ChannelView,
    ClusterViewAnswer,
    NodeView,
    ReplicaHint,
    TableInfo,
)
from raftstore.protocol.reads import Bounds
from raftstore.protocol.table_settings import TableSettings
from raftstore.types import NodeId, Seq, Term, channel_id

N1, N2 = NodeId("n1@01"), NodeId("n2@02")
FAILOVER = {
    "node": "n2",
    "number": 7,
    "type": "failover",
    "at_wall_ms": 1_700_000_000_000,
    "channel": "orders/0",
    "cause": "connection refused",
    "detect_ms": 3,
    "first_read_ms": None,
}


def view(
    *,
    state: str = "up",
    leader: NodeId | None = N1,
    lag: int | None = 7,
    age_ms: int | None = 5,
    max_lag: int | None = None,
    batches: int | None = 3,
) -> ClusterViewAnswer:
    """orders/0 led by n1; n2 is seven rows behind; ``max_lag`` is the table's own bound."""
    nodes = (NodeView(N1, "h:1", "", state, 3_000, 5, 0), NodeView(N2, "h:2", "", "up", 0, 5, 0))
    replicas = (
        ReplicaHint(N1, Seq(107), 0, 0, 0, "leader", 5),
        ReplicaHint(N2, Seq(100), lag, 400, None, "follower", 80),
    )
    channel = channel_id(b"t" * 16, 0)
    seen = ChannelView(channel, "orders", 0, leader, Term(3), Seq(107), 5, replicas, batches)
    own = {} if max_lag is None else {"orders": Bounds(max_lag)}
    return ClusterViewAnswer(1, N2, b"c" * 16, 9, age_ms, Bounds(10_000), nodes, (seen,), own)


class FakeClient:
    """A cluster with one table."""

    def __init__(self, found: ClusterViewAnswer) -> None:
        self._view = found
        self.edits: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def cluster_view(self, node: str | None = None) -> ClusterViewAnswer:
        """The view given."""
        assert node in (None, "n2")
        return self._view

    def cluster_status(self) -> Any:
        """No node reports a disk that hangs."""
        return SimpleNamespace(nodes=())

    def table_info(self, name: str) -> TableInfo:
        """One table there is."""
        if name != "orders":
            raise UnknownTableError(f"there is no table {name!r}")
        return TableInfo(
            name=name,
            uuid=b"t" * 16,
            key_columns=("id",),
            partitions=1,
            replicas=2,
            durability="fsync",
            schema_json="",
            channels=(),
            max_lag=None,
            settings=TableSettings(retention_bytes=2 << 20),
        )

    def edit_table(self, name: str, **changes: Any) -> TableInfo:
        """Remember it."""
        self.edits.append(changes)
        return self.table_info(name)

    def alter_table(self, name: str, **changes: Any) -> TableInfo:
        """Remember it."""
        return self.edit_table(name, **changes)

    def events(self, types: Any, since: Any, *, limit: int) -> ClusterEvents:
        """One failover; another node cannot be asked."""
        assert (tuple(types), dict(since), limit) == (("failover",), {}, 4_096)
        return ClusterEvents((FAILOVER,), {"n2": 7}, {"n1": "nobody is there"})


def run(monkeypatch: pytest.MonkeyPatch, client: Any, *arguments: str) -> Result:
    """Invoke a command over this client."""
    monkeypatch.setattr(Context, "connect", lambda _: client)
    return CliRunner().invoke(cli, global_options_first(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    ("found", "code", "text"),
    [
        (view(), 0, "RAFTSTORE OK - 2 of 2 nodes up, 1 partitions with a leader | "),
        (view(state="suspect"), 0, "RAFTSTORE OK"),
        (view(age_ms=None), 1, "WARNING - the catalog as n2 knows it may be incomplete"),
        (view(leader=None), 2, "CRITICAL - orders/0 has no leader that lives"),
        (view(state="down"), 2, "orders/0 has no leader that lives; node n1 at h:1 is down"),
        (view(state="down", leader=N2), 1, "WARNING - node n1 at h:1 is down"),
    ],
)
def test_check_cluster_exits_as_nagios_expects(
    monkeypatch: pytest.MonkeyPatch, found: ClusterViewAnswer, code: int, text: str
) -> None:
    """One line with what is wrong first, performance data after the bar, and the exit code."""
    result = run(monkeypatch, FakeClient(found), "check", "cluster")
    assert result.return_value == code
    assert text in result.stdout
    assert result.stdout.count("\n") == 1
    data = dict(pair.split("=") for pair in result.stdout.partition("| ")[2].split())
    assert data["nodes"] == "2"
    assert data["worst_lag"] == "7"
    assert data["nodes_up"] == ("1" if found.nodes[0].state == "down" else "2")


@pytest.mark.parametrize(
    ("properties", "options", "code"),
    [
        ({}, (), 0),
        ({}, ("--max-lag", "6"), 2),
        ({"max_lag": 6}, (), 2),
        ({"max_lag": 6}, ("--max-lag", "7"), 0),
        ({}, ("--max-staleness", "400ms"), 0),
        ({}, ("--max-staleness", "399ms"), 2),
        ({}, ("--max-batches-behind", "3"), 2),
        ({}, ("--warn-lag", "7"), 0),
        ({}, ("--warn-lag", "6"), 1),
        ({}, ("--level", "linearizable"), 2),
        ({}, ("--level", "any"), 0),
    ],
)
def test_check_table_judges_by_the_bound_of_the_call_then_of_the_table(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, Any], options: tuple[str, ...], code: int
) -> None:
    """KLIP-15: with the leader down the replica that is behind must be within the bound."""
    client = FakeClient(view(state="down", **properties))
    result = run(monkeypatch, client, "check", "table", "orders", *options)
    assert result.return_value == code


def test_check_of_a_cluster_that_cannot_be_asked_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 3 says that nothing is known, not that something is wrong with the data."""

    class Nobody(FakeClient):
        def cluster_view(self, node: str | None = None) -> ClusterViewAnswer:
            raise UnavailableError("no node answers")

    result = run(monkeypatch, Nobody(view()), "check", "cluster")
    assert result.return_value == 3
    assert result.stdout == "RAFTSTORE UNKNOWN - no node answers\n"
    result = run(monkeypatch, FakeClient(view()), "check", "table", "nothing")
    assert result.return_value == 3
    result = run(monkeypatch, Nobody(view()), "check", "cluster", "-o", "json")
    assert result.return_value == 3
    shown = json.loads(result.stdout)
    assert (shown["status"], shown["unknown"]) == ("UNKNOWN", ["no node answers"])


def test_check_prints_json_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For programs that do more with it than Nagios."""
    result = run(monkeypatch, FakeClient(view(leader=None)), "check", "cluster", "-o", "json")
    shown = json.loads(result.stdout)
    assert shown["status"] == "CRITICAL"
    assert shown["numbers"]["without_leader"] == 1


def test_lag_shows_every_replica_and_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLOG-28: each lag comes with the age of that word; unknown is no number."""
    result = run(monkeypatch, FakeClient(view(lag=None)), "lag", "orders", "-o", "json")
    shown = json.loads(result.stdout)
    assert shown["viewpoint"] == "n2"
    assert shown["replicas"][0]["role"] == "leader"
    assert shown["replicas"][1] == {
        "channel": "orders/0",
        "node": "n2",
        "state": "up",
        "role": "follower",
        "applied": 100,
        "end": 107,
        "lag": None,
        "time_lag_ms": 400,
        "batches_behind": None,
        "told_ms_ago": 80,
    }
    result = run(monkeypatch, FakeClient(view()), "lag", "--node", "n2")
    assert "orders/0" in result.stdout
    result = run(monkeypatch, FakeClient(view()), "lag", "typo")
    assert isinstance(result.exception, UnknownTableError)


def test_n8_events_show_a_failover_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """When, where, what; a duration that there was not is left out."""
    result = run(monkeypatch, FakeClient(view()), "events", "--type", "failover")
    assert "2023-11-14T22:13:20.000+00:00" in result.stdout
    assert "cause=connection refused detect_ms=3" in result.stdout
    assert "first_read_ms" not in result.stdout
    assert "n1 was not asked: nobody is there" in result.stderr
    result = run(monkeypatch, FakeClient(view()), "events", "--type", "failover", "-o", "json")
    assert json.loads(result.stdout) == [FAILOVER]


def test_klip_41_table_edit_changes_only_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and durations as everywhere on the command line; none removes a bound."""
    client = FakeClient(view())
    named = ("--max-lag", "none", "--max-staleness", "2s", "--max-batches-behind", "0")
    result = run(monkeypatch, client, "table", "edit", "orders", *named, "--no-standby-reads")
    assert result.exception is None
    assert client.edits == [
        {"max_lag": None, "max_staleness": 2.0, "max_batches_behind": 0, "standby_reads": False}
    ]


@pytest.mark.parametrize(
    "options", [(), ("--max-lag", "many"), ("--max-staleness", "2"), ("--max-staleness", "soon")]
)
def test_table_edit_that_makes_no_sense_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """Nothing is asked of the cluster then."""
    client = FakeClient(view())
    result = run(monkeypatch, client, "table", "edit", "orders", *options)
    assert isinstance(result.exception, click.UsageError)
    assert client.edits == []


def test_table_alter_sets_and_unsets_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes and durations with their units; what is unset has its default again."""
    client = FakeClient(view())
    named = (
        "--set retention-bytes=256MiB --set retention-age=7d --set max-lag=5 "
        "--set standby-reads=false --set ttl=30d --unset retention-records --unset max_staleness"
    )
    result = run(monkeypatch, client, "table", "alter", "orders", *named.split())
    assert result.exception is None
    assert client.edits == [
        {
            "retention_bytes": 256 << 20,
            "retention_age": 7 * 86_400.0,
            "max_lag": 5,
            "standby_reads": False,
            "ttl": 30 * 86_400.0,
            "retention_records": None,
            "max_staleness": None,
        }
    ]
    result = run(monkeypatch, client, "table", "alter", "orders", "--unset", "standby-reads")
    assert result.exception is None
    assert client.edits[1:] == [{"standby_reads": True}]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "Name at least one property with --set or --unset."),
        ("--set retention-bytes", "'retention-bytes' is no NAME=VALUE with one of the names max-"),
        ("--set partitions=3", "'partitions=3' is no NAME=VALUE with one of the names max-lag,"),
        ("--set retention-bytes=256", "--retention-bytes '256': '256' is not a size"),
        ("--set retention-age=soon", "--retention-age 'soon': 'soon' is not a duration"),
        ("--set retention-records=many", "--retention-records 'many'"),
        ("--set standby-reads=maybe", "--standby-reads 'maybe': give true or false"),
        ("--set max-lag=5 --unset max-lag", "max-lag is given twice."),
    ],
)
def test_table_alter_that_makes_no_sense_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, options: str, told: str
) -> None:
    """The text names what was typed; nothing is asked of the cluster."""
    client = FakeClient(view())
    result = run(monkeypatch, client, "table", "alter", "orders", *options.split())
    assert isinstance(result.exception, click.UsageError)
    assert told in result.exception.message
    assert client.edits == []


def test_table_info_shows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that was not given is null: each node decides."""
    result = run(monkeypatch, FakeClient(view()), "table", "info", "orders", "-o", "json")
    shown = json.loads(result.stdout)
    assert (shown["retention_bytes"], shown["retention_age_ms"]) == (2 << 20, None)
    assert shown["restoring"] is False


def test_lag_tells_unknown_from_nothing_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is infinite where a read is bounded; a table without marks can miss none."""
    result = run(monkeypatch, FakeClient(view(batches=None)), "lag")
    assert result.stdout.splitlines()[2].split()[-2:] == ["?", "80"]
    result = run(monkeypatch, FakeClient(view(batches=0)), "lag")
    assert [line.split()[-2] for line in result.stdout.splitlines()[1:]] == ["-", "-"]
    assert "as n2 knows it" in result.stderr


def test_check_says_the_rest_in_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor shows the first line: it must be short, and nothing may be lost."""
    found = view(state="down")
    names = [f"a_table_with_a_long_name_{number}" for number in range(30)]
    channels = tuple(
        msgspec.structs.replace(found.channels[0], table=name, leader=None) for name in names
    )
    found = msgspec.structs.replace(found, channels=channels)
    result = run(monkeypatch, FakeClient(found), "check", "cluster")
    first, *rest = result.stdout.splitlines()
    text, _, data = first.partition(" | ")
    assert len(text) < 200
    assert text.startswith("RAFTSTORE CRITICAL - a_table_with_a_long_name_0/0 has no leader")
    assert text.endswith("; and 29 more")
    assert "without_leader=30" in data
    assert rest[0] == "a_table_with_a_long_name_2/0 has no leader that lives"
    assert rest[-1] == "and 9 more"
    assert len(rest) == 21


def test_events_of_an_unknown_type_are_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing found would read like nothing happened."""
    result = run(monkeypatch, FakeClient(view()), "events", "--type", "nonsense")
    assert isinstance(result.exception, click.UsageError)
    assert "'failover'" in str(result.exception.format_message())


class Flaky(FakeClient):
    """A cluster that is gone for a moment, then Ctrl-C."""

    def __init__(self) -> None:
        super().__init__(view())
        self.answers: list[Any] = [view(), UnavailableError("no node answers"), view(lag=9)]

    def cluster_view(self, node: str | None = None) -> ClusterViewAnswer:
        """The next answer."""
        if not self.answers:
            raise KeyboardInterrupt
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: ClusterViewAnswer = answer
        return found


def test_watching_goes_on_while_the_cluster_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a cluster that is away, watching goes on until it is back; each look shows its time."""
    monkeypatch.setattr("raftstore.cli.watch.INTERVAL_S", 0.0)
    result = run(monkeypatch, Flaky(), "lag", "--watch")
    assert "error: no node answers" in result.stderr
    times = [line for line in result.stdout.splitlines() if "Ctrl-C ends it" in line]
    assert len(times) == 2
    assert times[0][:2] == "20"
    result = run(monkeypatch, Flaky(), "lag", "--watch", "-o", "json")
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["replicas"][1]["lag"] for each in shown] == [7, 9]
    assert all(each["at"] for each in shown)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("fate", "xyz"), "is not the guid of a write"),
        (("get", "orders", "1", "--max-lag", "-1"), "--max-lag"),
        (("get", "orders", "1", "--max-batches-behind", "x"), "--max-batches-behind"),
        (("get", "orders", "1", "--at-least", "here"), "--at-least"),
        (("put", "orders", "{}", "--if-match", "here"), "--if-match"),
        (("scan", "orders", "--limit", "-3"), "--limit"),
        (("count", "orders", "--max-staleness", "5"), "--max-staleness"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    """Exit code 2, before anybody is asked, with the option's name."""
    result = run(monkeypatch, FakeClient(view()), *arguments)
    assert isinstance(result.exception, click.UsageError)
    assert named in result.exception.format_message()


def test_table_info_shows_the_definition_and_the_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """People read what programs do: keys, bounds and durability, then each partition."""

    class Placed(FakeClient):
        def table_info(self, name: str) -> TableInfo:
            channel = ChannelInfo(channel_id(b"t" * 16, 0), (N1, N2), N1, Term(3))
            return msgspec.structs.replace(super().table_info(name), channels=(channel,))

    result = run(monkeypatch, Placed(view()), "table", "info", "orders")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["key", "id"] in rows
    assert ["durability", "fsync"] in rows
    assert ["0", "n1", "3", "n1,n2"] in rows
    result = run(monkeypatch, Placed(view()), "table", "info", "orders", "-o", "json")
    shown = json.loads(result.stdout)
    assert (shown["key"], shown["channels"][0]["leader"]) == ("id", "n1")


def test_lag_says_which_node_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a dead node, its replica is shown as down although its last report lacks nothing."""
    result = run(monkeypatch, FakeClient(view(state="down")), "lag", "-o", "json")
    states = {row["node"]: row["state"] for row in json.loads(result.stdout)["replicas"]}
    assert states == {"n1": "down", "n2": "up"}


class Rows:
    """A table that answers every read with these rows."""

    def __init__(self, rows: list[dict[str, Any] | None]) -> None:
        self._rows = rows

    def get_many(self, keys: Any, **_: Any) -> list[dict[str, Any] | None]:
        """One row per key."""
        return self._rows

    def scan(self, **_: Any) -> list[dict[str, Any] | None]:
        """All of them."""
        return self._rows


class WithRows(FakeClient):
    """A cluster whose table has these rows."""

    def __init__(self, *rows: dict[str, Any] | None) -> None:
        super().__init__(view())
        self._rows = Rows(list(rows))

    def table(self, name: str) -> Rows:
        """The table."""
        assert name == "orders"
        return self._rows


def test_keys_without_a_row_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a key without a row, stderr names the key; the table has no empty line for it."""
    client = WithRows({"id": 1, "open": True, "of": {"x": 1}}, None)
    result = run(monkeypatch, client, "mget", "orders", "1", "9")
    assert result.stdout.split() == ["id", "open", "of", "1", "true", '{"x":', "1}"]
    assert result.stderr == "no row with key 9 in table orders\n"
    result = run(monkeypatch, client, "mget", "orders", "1", "9", "-o", "json")
    assert json.loads(result.stdout)[1] is None


def test_scan_that_stops_at_its_limit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows look like all of them."""
    result = run(monkeypatch, WithRows({"id": 1}, {"id": 2}), "scan", "orders", "--limit", "2")
    assert "first 2 rows; there may be more" in result.stderr
    result = run(monkeypatch, WithRows({"id": 1}), "scan", "orders", "--limit", "2")
    assert result.stderr == ""
