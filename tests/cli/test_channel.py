"""``raftstore channel verify|info|gaps`` without a cluster."""

from __future__ import annotations

import json
from datetime import date
from types import SimpleNamespace
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

from raftstore.cli import verify
from raftstore.cli.common import Context
from raftstore.cli.main import cli, global_options_first
from raftstore.client.comparing.results import (
    ComparedReplica,
    ComparisonProgress,
    EntryDifference,
    HistoryDifference,
    RangeDifference,
    ReplicaComparison,
)
from raftstore.client.results import ReplicaDigest, TableDigest
from raftstore.errors import ArgumentError, SchemaError, UnknownTableError
from raftstore.types import NodeId, Seq

NODES = ("n1", "n2", "n3")

Told = list[tuple[str, int]]
"""Digest and position at each look; the last one for ever."""


class FakeClient:
    """Nodes whose replicas of ``orders/0`` have the digests given, one look after another."""

    def __init__(self, **told: Told) -> None:
        self._told = told
        self.role = "leader"
        """Of n1."""
        self.looks: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def table_info(self, name: str) -> Any:
        """One partition on all nodes."""
        if name != "orders":
            raise UnknownTableError(f"there is no table {name!r}")
        replicas = tuple(NodeId(f"{node}@00") for node in self._told)
        placed = SimpleNamespace(replicas=replicas, channel=b"\1" * 18, roles={})
        return SimpleNamespace(
            name=name, partitions=1, channels=(placed,), key_columns=("id",), schema_json="",
            machine="",
        )  # fmt: skip

    def content_hash(self, table: str, replica: str, *, partition: int) -> TableDigest:
        """The digest given for this look at the node."""
        assert partition == 0
        told = self._told[replica]
        digest, seq = told[min(self.looks.count(replica), len(told) - 1)]
        self.looks.append(replica)
        return TableDigest(table, replica, (ReplicaDigest(0, replica, digest, 3, Seq(seq)),))

    def cluster_status(self) -> Any:
        """n1 led once and leads no more, n2 leads, n3 is silent, and other nodes have nothing."""
        nodes = [
            node("n1", own(self.role, 3, lag=None)),
            node("n2", own("leader", 4), {**own("follower", 9), "partition": 1}),
            SimpleNamespace(name="n3", status=None, error="connection refused"),
            node("n4"),
        ]
        return SimpleNamespace(nodes=nodes)


def own(role: str, term: int, lag: int | None = 0) -> dict[str, Any]:
    """A node's status of its replica of ``orders/0``."""
    return {
        "table": "orders", "partition": 0, "role": role, "term": term, "mode": "steady",
        "reason": "", "applied_seq": 7, "commit_seq": 7, "last_seq": 8, "lag": lag,
        "base_seq": 4, "end_seq": 12, "gaps": [gap(9, 9, 120)] if role == "follower" else [],
    }  # fmt: skip


def gap(first: int, last: int, age_ms: int) -> dict[str, int]:
    """Seqs that a replica misses."""
    return {"from_seq": first, "to_seq": last, "age_ms": age_ms}


def node(name: str, *channels: dict[str, Any]) -> SimpleNamespace:
    """A node that answers."""
    return SimpleNamespace(name=name, status={"channels": list(channels)}, error=None)


def run(monkeypatch: pytest.MonkeyPatch, client: FakeClient, *arguments: str) -> Result:
    """Invoke a command over this client, without pauses."""
    monkeypatch.setattr(Context, "connect", lambda _: client)
    monkeypatch.setattr(verify, "PAUSE_S", 0)
    return CliRunner().invoke(cli, global_options_first(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    ("told", "code", "looks"),
    [
        ({"n1": [("aa", 7)], "n2": [("aa", 7)]}, 0, 2),
        ({"n1": [("aa", 7)], "n2": [("bb", 7)]}, 7, 2),
        ({"n1": [("aa", 7), ("bb", 8)], "n2": [("bb", 8)]}, 0, 3),
        ({"n1": [("aa", 7), ("aa", 8)], "n2": [("bb", 8)]}, 7, 3),
        ({"n1": [("aa", 7)], "n2": [("bb", 7)], "n3": [("cc", 9)]}, 7, 3),
        (
            {
                "n1": [("aa", 7), ("cc", 9)],
                "n2": [("bb", 8), ("cc", 9)],
                "n3": [("bb", 8), ("cc", 9)],
            },
            0,
            6,
        ),
    ],
)
def test_verify_compares_what_is_at_one_position(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Told], code: int, looks: int
) -> None:
    """Exit code 7 is for content that differs there; who is behind is looked at again.

    Shows NATS-185.
    """
    client = FakeClient(**told)
    result = run(monkeypatch, client, "channel", "verify", "orders/0", "-o", "json")
    assert result.return_value == code
    rows = json.loads(result.stdout)
    assert [row["node"] for row in rows] == list(told)
    assert len({(row["seq"], row["digest"]) for row in rows}) == 1 or code == 7
    assert len(client.looks) == looks


def test_verify_says_when_nothing_could_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that never meet are no difference: a code of its own, and what to do."""
    client = FakeClient(n1=[("aa", 7)], n2=[("bb", 8)])
    arguments = ("--timeout", "10ms", "channel", "verify", "orders/0")
    result = run(monkeypatch, client, *arguments)
    assert result.return_value == 8
    assert "not compared" in result.stderr
    assert client.looks.count("n1") >= 2
    assert client.looks.count("n2") == 1


@pytest.mark.parametrize(
    "name", ["orders", "orders/", "orders/x", "/", "orders/1", "orders/" + "9" * 5_000]
)
@pytest.mark.parametrize("command", ["verify", "info"])
def test_what_names_no_channel_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    """As for step-down; a table that is not there is reported as such."""
    client = FakeClient(n1=[("aa", 7)])
    if (command, name) != ("verify", "orders"):  # a whole table can be compared
        error = run(monkeypatch, client, "channel", command, name).exception
        assert isinstance(error, ArgumentError)
    found = run(monkeypatch, client, "channel", command, "typo/0").exception
    assert isinstance(found, UnknownTableError)


class TwoPartitions(FakeClient):
    """A table of two partitions, whose replicas differ, or never meet, in the second."""

    def table_info(self, name: str) -> Any:
        """Both partitions are on all nodes."""
        found = super().table_info(name)
        return SimpleNamespace(**{**vars(found), "partitions": 2, "channels": found.channels * 2})

    def content_hash(self, table: str, replica: str, *, partition: int) -> TableDigest:
        """In the first all have the same."""
        if partition == 1:
            return super().content_hash(table, replica, partition=0)
        return TableDigest(table, replica, (ReplicaDigest(0, replica, "aa", 3, Seq(5)),))


@pytest.mark.parametrize("name", ["counters", "counters/0"])
def test_verify_takes_channel_sets_like_tables(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Their partitions are channels, too, whose replicas may differ."""

    class Counters(FakeClient):
        """Has a channel set in the place of the table."""

        def table_info(self, name: str) -> Any:
            """As a real client."""
            raise SchemaError(f"{name!r} is a channel set")

        def channelset_info(self, name: str) -> Any:
            """One partition."""
            found = super().table_info("orders")
            return SimpleNamespace(**{**vars(found), "name": name, "machine": "mine:Counter"})

        def compare_replicas(self, name: str, **_: Any) -> ReplicaComparison:
            """Equal but for one key of the machine's state."""
            entry = EntryDifference("row", "6b", {"n1": "00", "n2": None})
            return compared(keys=(entry,))

    client = Counters(n1=[("aa", 7)], n2=[("aa", 7)])
    result = run(monkeypatch, client, "channel", "verify", name, "-o", "json")
    assert result.return_value == 0
    assert [row["channel"] for row in json.loads(result.stdout)] == ["counters/0"] * 2
    result = run(monkeypatch, client, "channel", "verify", name, "--deep", "-o", "json")
    assert json.loads(result.stdout)[0]["keys"][0]["key"] == "6b"


@pytest.mark.parametrize(
    ("second", "code", "word"),
    [
        ({"n1": [("bb", 7)], "n2": [("bb", 7)]}, 0, ""),
        ({"n1": [("bb", 7)], "n2": [("cc", 7)]}, 7, "different: replicas of orders/1"),
        ({"n1": [("bb", 7)], "n2": [("bb", 6)]}, 8, "not compared: the replicas of orders/1"),
    ],
)
def test_verify_of_a_table_compares_each_of_its_channels(
    monkeypatch: pytest.MonkeyPatch, second: dict[str, Told], code: int, word: str
) -> None:
    """The code is of the worst channel, which is named; all are shown."""
    result = run(
        monkeypatch, TwoPartitions(**second),
        "--timeout", "10ms", "channel", "verify", "orders", "-o", "json",
    )  # fmt: skip
    assert result.return_value == code
    shown = [(row["channel"], row["node"]) for row in json.loads(result.stdout)]
    assert shown == [(f"orders/{number}", node) for number in (0, 1) for node in ("n1", "n2")]
    assert word in result.stderr
    assert "orders/0" not in result.stderr


def test_info_has_every_replica_by_its_own_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that say they lead the newer term counts; who does not answer is listed with why."""
    client = FakeClient(n1=[], n2=[], n3=[], n4=[], n5=[])
    result = run(monkeypatch, client, "channel", "info", "orders/0", "-o", "json")
    shown = json.loads(result.stdout)
    assert (shown["channel"], shown["leader"], shown["id"]) == ("orders/0", "n2", "01" * 18)
    assert [(row["node"], row["role"], row["term"], row["note"]) for row in shown["replicas"]] == [
        ("n1", "leader", 3, ""),
        ("n2", "leader", 4, ""),
        ("n3", None, None, "connection refused"),
        ("n4", None, None, "it hosts no replica yet"),
        ("n5", None, None, "it is no node of the cluster"),
    ]
    assert shown["replicas"][0]["lag"] is None
    result = run(monkeypatch, client, "channel", "info", "orders/0")
    assert ["orders/0", "01" * 18, "n2"] in [line.split() for line in result.stdout.splitlines()]
    assert "connection refused" in result.stdout


CATCH_UP = {
    "reason": "restart", "for_ms": 10, "from_seq": 2, "verified_seq": 50, "end_seq": 350,
    "rows_left": 300, "bytes_left": 3_000, "bytes_taken": 400, "rows_per_s": 30, "bytes_per_s": 600,
    "written_per_s": 10, "left_ms": 15_000, "is_far": True, "cannot_complete": False,
    "waits": False,
}  # fmt: skip
FLOOR = {
    "name": "slow_replica", "owner": "n2", "seq": 40, "bytes_max": 1_000, "is_given_up": True,
}  # fmt: skip


def test_info_tells_who_catches_up_and_who_keeps_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS-140: with rate and time left; floors with their owners."""
    told = {"catch_up": CATCH_UP, "floors": [FLOOR], "last_seq": 45, "flapping": True}
    client = FakeClient(n1=[], n2=[])
    status = SimpleNamespace(nodes=[node("n1", {**own("follower", 3), **told})])
    monkeypatch.setattr(client, "cluster_status", lambda: status)
    result = run(monkeypatch, client, "channel", "info", "orders/0")
    words = [line.split() for line in result.stdout.splitlines()]
    assert ["n1", "restart", "50", "350", "300", "30", "600", "400", "15s", "is_far"] in words
    assert ["n1", "slow_replica", "n2", "40", "5", "1000", "yes"] in words
    result = run(monkeypatch, client, "channel", "info", "orders/0", "-o", "json")
    shown = json.loads(result.stdout)["replicas"][0]
    assert (shown["catch_up"], shown["floors"], shown["flapping"]) == (CATCH_UP, [FLOOR], True)


RECORD = {
    "version": 2, "leader": "n1", "leader_epoch": 3, "replicas": ["n1", "n2", "n3"],
    "isr": ["n1", "n2", "n3"], "hot_standby_replicas": ["n2", "n3"], "iss": ["n2"],
    "coordinator_epoch": 5, "bucket_epoch": 7,
}  # fmt: skip


def test_info_tells_which_standbys_could_lead_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """FIP-06: the record of the leader, and why the others are not in sync."""
    late = {"n3": "it has 1204 rows to apply"}
    told = {"record": RECORD, "late_standbys": late}
    client = FakeClient(n1=[], n2=[], n3=[])
    nodes = [node("n1", {**own("leader", 3), **told})]
    nodes += [node(name, own("follower", 3)) for name in ("n2", "n3")]
    monkeypatch.setattr(client, "cluster_status", lambda: SimpleNamespace(nodes=nodes))
    result = run(monkeypatch, client, "channel", "info", "orders/0")
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.startswith("n")}
    assert "in sync" not in rows["n1"]
    assert "in sync" in rows["n2"]
    assert "it has 1204 rows to apply" in rows["n3"]
    result = run(monkeypatch, client, "channel", "info", "orders/0", "-o", "json")
    shown = json.loads(result.stdout)
    assert (shown["record"], shown["late_standbys"]) == (RECORD, late)


def test_info_is_shown_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """--watch looks anew each time, until it is stopped."""
    pauses = iter([None, KeyboardInterrupt()])

    def pause(_: float) -> None:
        stop = next(pauses)
        if stop is not None:
            raise stop

    monkeypatch.setattr("raftstore.cli.watch.time.sleep", pause)
    client = FakeClient(n1=[], n2=[])
    result = run(monkeypatch, client, "channel", "info", "orders/0", "--watch", "-o", "json")
    assert result.stdout.count('"channel": "orders/0"') == 2


def test_gaps_of_every_replica_are_listed_with_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS-214: by each node's own report; who was not asked is listed with why."""
    client = FakeClient(n1=[], n2=[], n3=[])
    client.role = "follower"
    result = run(monkeypatch, client, "channel", "gaps", "orders/0", "-o", "json")
    shown = json.loads(result.stdout)
    assert (shown["channel"], shown["id"]) == ("orders/0", "01" * 18)
    assert shown["replicas"] == [
        {"node": "n1", "first_seq": 5, "end_seq": 12, "gaps": [gap(9, 9, 120)], "note": ""},
        {"node": "n2", "first_seq": 5, "end_seq": 12, "gaps": [], "note": ""},
        {
            "node": "n3", "first_seq": None, "end_seq": None, "gaps": None,
            "note": "connection refused",
        },
    ]  # fmt: skip
    result = run(monkeypatch, client, "channel", "gaps", "orders/0")
    assert ["n1", "9", "9", "120"] in [line.split() for line in result.stdout.splitlines()]
    assert "n3 was not asked: connection refused" in result.stderr


def test_no_gaps_are_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on stdout means nothing is missing, and stderr says so."""
    result = run(monkeypatch, FakeClient(n1=[], n2=[]), "channel", "gaps", "orders/0")
    assert result.stdout == ""
    assert "no replica of orders/0 misses anything" in result.stderr


def compared(**more: Any) -> ReplicaComparison:
    """Three replicas at one position, of which n3 has another row."""
    replicas = tuple(
        ComparedReplica(name, Seq(4), "ab", Seq(9), differs=name == "n3") for name in NODES
    )
    digests = {"n1": "aa", "n2": "aa", "n3": None}
    key = EntryDifference("row", {"id": date(2024, 2, 29)}, digests)
    told: dict[str, Any] = {"keys": (key,), "replicas": replicas, **more}
    return ReplicaComparison("orders/0", log_from=Seq(4), log_to=Seq(9), entries=7, **told)


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (compared(), 7, "different: n3 of orders/0"),
        (compared(keys=(), replicas=(ComparedReplica("n1"), ComparedReplica("n2"))), 0, ""),
        (
            compared(keys=(), replicas=(ComparedReplica("n1", not_compared="it is down"),)),
            8,
            "not compared: n1 of orders/0: it is down",
        ),
        (
            compared(replicas=(ComparedReplica("n1", not_compared="it is down"),)),
            7,
            "not compared: n1 of orders/0: it is down",
        ),
        (compared(more_ranges=3), 7, "3 more parts of orders/0 differ"),
    ],
)
def test_deep_verdict_is_an_exit_code_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, found: ReplicaComparison, code: int, said: str
) -> None:
    """A difference is worse than what could not be compared."""
    client: Any = FakeClient(n1=[], n2=[], n3=[])
    client.compare_replicas = lambda name, **_: found
    result = run(monkeypatch, client, "channel", "verify", "orders", "--deep")
    assert result.return_value == code
    assert said in result.stderr


def test_deep_comparison_is_told_as_json_and_as_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys as the table's rows are written; histories with the records of both sides."""
    record = {"first_seq": 8, "last_seq": 9, "term": 3, "kind": "ROWS", "guid": "00", "digest": "1"}
    parted = HistoryDifference("n2", Seq(7), Seq(9), record, None)
    client: Any = FakeClient(n1=[], n2=[], n3=[])
    client.compare_replicas = lambda name, **_: compared(
        histories=(parted,), ranges=(RangeDifference("01aa", "", ("n3",)),)
    )
    result = run(monkeypatch, client, "channel", "verify", "orders/0", "--deep", "-o", "json")
    [told] = json.loads(result.stdout)
    assert told["verdict"] == "different"
    assert told["keys"][0]["key"] == {"id": {"$date": "2024-02-29"}}
    assert told["histories"][0]["record"] == record
    assert told["ranges"] == [{"after": "01aa", "last": "", "replicas": ["n3"]}]
    result = run(monkeypatch, client, "channel", "verify", "orders/0", "--deep")
    for word in ("4..9", "different", "2024-02-29", "none", "01aa", "ROWS"):
        assert word in result.stdout, word


def test_bar_is_drawn_where_somebody_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal alone, and only when it is longer."""
    drawn: list[str] = []
    monkeypatch.setattr(verify.click, "echo", lambda text="", **_: drawn.append(text))
    with verify._progress("orders/0") as tell:
        assert tell is None
    monkeypatch.setattr(verify.sys.stderr, "isatty", lambda: True)
    with verify._progress("orders/0") as tell:
        assert tell is not None
        for done in (0, 1, 500, 1_000):
            tell(ComparisonProgress("contents", done, 1_000))
    assert [line.count("#") for line in drawn if "contents" in line] == [0, 15, 30]
    assert "100 %" in drawn[-2]
