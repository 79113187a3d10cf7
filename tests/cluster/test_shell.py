"""The command line against a real cluster: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import raftstore
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


class Shell:
    """Runs commands against one cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.endpoints = ",".join(cluster.endpoints)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        done = subprocess.run(
            [sys.executable, "-m", "raftstore.cli.main", *arguments],
            env={**os.environ, "RAFTSTORE_ENDPOINTS": self.endpoints},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One cluster with the tables ``orders`` (typed key) and ``pairs`` (two key columns)."""
    with LocalCluster(nodes=3, directory=tmp_path_factory.mktemp("shell")) as cluster:
        run = Shell(cluster)
        assert run("table", "create", "orders", "--key", "id:long", "--partitions", "2")[0] == 0
        assert run("table", "create", "pairs", "--key", "a,b", "--partitions", "1")[0] == 0
        yield run


def test_rows_are_put_read_listed_and_deleted(shell: Shell) -> None:
    """Data on stdout as JSON, one value per command."""
    code, out, err = shell("put", "pairs", '{"a": "x", "b": 1, "c": [1, 2]}', "-o", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["durability"] == "fsync"
    code, out, _ = shell("get", "pairs", '["x", 1]', "-o", "json")
    assert (code, json.loads(out)) == (0, {"a": "x", "b": 1, "c": [1, 2]})
    code, out, _ = shell("-o", "json", "scan", "pairs")
    assert [json.loads(line)["a"] for line in out.splitlines()] == ["x"]
    assert shell("del", "pairs", '["x", 1]')[0] == 0
    code, out, err = shell("get", "pairs", '["x", 1]')
    assert (code, out) == (1, "")
    assert err == 'no row with key ["x", 1] in table pairs\n'


def test_every_type_of_value_comes_back_as_it_was_put(shell: Shell) -> None:
    """JSON alone has no decimals, bytes, dates or NaN; a range needs not all key columns."""
    row = {
        "a": {"$date": "2024-02-29"},
        "b": {"$binary": "AQI="},
        "c": {"$map": [[{"$decimal": "1.50"}, {"$double": "NaN"}]]},
    }
    assert shell("put", "pairs", json.dumps(row))[0] == 0
    key = json.dumps([row["a"], row["b"]])
    code, out, _ = shell("get", "pairs", key, "-ojson")
    assert (code, json.loads(out)) == (0, row)
    code, out, _ = shell("scan", "pairs", "--prefix", json.dumps([row["a"]]), "-o", "json")
    assert (code, json.loads(out)) == (0, row)
    code, out, err = shell("scan", "pairs", "--start", json.dumps([row["a"]]))
    assert (code, err) == (0, "")
    assert "1.50" in out
    _, out, _ = shell("get", "pairs", key, "--provenance", "-o", "json")
    read = json.loads(out)["position"]
    assert shell("put", "pairs", json.dumps(row))[0] == 0
    code, _, err = shell("del", "pairs", key, "--if-position", read)
    assert code == 9, err
    _, out, _ = shell("get", "pairs", key, "--provenance", "-o", "json")
    assert shell("del", "pairs", key, "--if-position", json.loads(out)["position"])[0] == 0
    assert shell("get", "pairs", key)[0] == 1


def test_status_and_channels_are_shown(shell: Shell) -> None:
    """Nodes, leaders and equal replicas, as JSON and as a table; their contents are compared when
    somebody asks for it (NATS-185)."""
    code, out, _ = shell("status", "-o", "json")
    assert code == 0
    nodes = json.loads(out)["nodes"]
    assert [(node["node"], node["up"]) for node in nodes] == [
        ("n1", True), ("n2", True), ("n3", True),
    ]  # fmt: skip
    assert "traffic" in nodes[0]["status"]
    code, out, _ = shell("channel", "ls")
    assert code == 0
    assert "orders/1" in out
    code, out, _ = shell("channel", "verify", "orders/1", "-o", "json")
    assert code == 0
    assert len({row["digest"] for row in json.loads(out)}) == 1
    code, out, _ = shell("channel", "info", "orders/1", "-o", "json")
    assert code == 0
    info = json.loads(out)
    assert sorted(row["role"] for row in info["replicas"]) == ["follower", "follower", "leader"]
    assert info["leader"] in {row["node"] for row in info["replicas"] if row["role"] == "leader"}


def test_step_down_moves_the_leader(shell: Shell) -> None:
    """The named node leads afterwards (NATS-037)."""
    (before,) = (row for row in channels(shell) if row["channel"] == "orders/0")
    target = next(name for name in ("n1", "n2", "n3") if name != before["leader"])
    code, out, err = shell("channel", "step-down", "orders/0", "--to", target)
    assert (code, out) == (0, ""), err
    (after,) = (row for row in channels(shell) if row["channel"] == "orders/0")
    assert after["leader"] == target


def test_record_of_a_channel_says_who_could_lead_at_once(shell: Shell) -> None:
    """FIP-06, FIP-10: real nodes report what they have applied, and the leader makes of it who is
    in sync; the epochs are those of the channel and of the catalog."""

    def record() -> dict[str, Any]:
        info = json.loads(shell("channel", "info", "orders/1", "-o", "json")[1])
        found: dict[str, Any] = info["record"] or {}
        return found

    found = eventually(record, lambda each: len(each.get("iss", ())) == 2)
    (led,) = (row for row in channels(shell) if row["channel"] == "orders/1")
    standbys = sorted({"n1", "n2", "n3"} - {led["leader"]})
    assert (found["leader"], found["leader_epoch"]) == (led["leader"], led["term"])
    assert sorted(found["iss"]) == sorted(found["hot_standby_replicas"]) == standbys
    assert sorted(found["isr"]) == sorted(found["replicas"]) == ["n1", "n2", "n3"]
    assert (found["version"], found["bucket_epoch"]) == (2, 0)
    assert found["coordinator_epoch"] >= 1
    out = shell("channel", "info", "orders/1")[1]
    assert sum("in sync" in line for line in out.splitlines()) == 2


def channels(shell: Shell) -> list[dict[str, str]]:
    """The rows of ``channel ls``."""
    rows: list[dict[str, str]] = json.loads(shell("channel", "ls", "-o", "json")[1])
    return rows


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["get", "nothing", "1"], 9, ["no table 'nothing'", "there are: orders, pairs"]),
        (["get", "orders", "abc"], 9, ["id", "abc"]),
        (["put", "orders", '{"id": "abc"}'], 9, ["id", "abc"]),
        (["put", "orders", '{"other": 1}'], 9, ["id"]),
        (["put", "orders", "[1"], 2, ["'[1' is not JSON"]),
        (["get", "pairs", '["x"]'], 9, ["2 columns (a, b)"]),
        (["table", "create", "orders", "--key", "name"], 9, ["orders"]),
        (["table", "create", "t", "--key", "id", "--durability", "sometimes"], 2, ["'sometimes'"]),
        (["table", "rm", "orders"], 2, ["--yes"]),
        (["channel", "verify", "orders/9"], 2, ["0 to 1"]),
        (["put", "pairs", '{"a": 1, "b": 2}', "--if-position", "zzz"], 2, ["is not a position"]),
        (["--endpoints", "127.0.0.1:9", "--timeout", "300ms", "status"], 4, ["127.0.0.1:9"]),
        (["--endpoints", "nonsense", "status"], 2, ["'nonsense'", "host:port"]),
        (["--timeout", "soon", "status"], 2, ["'soon' is not a duration"]),
        (["staus"], 2, ["Did you mean 'status'?"]),
    ],
)
def test_bad_input_is_one_sentence_and_its_exit_code(
    shell: Shell, arguments: list[str], code: int, words: list[str]
) -> None:
    """The value is named, stdout stays empty, and there is no traceback."""
    found, out, err = shell(*arguments)
    assert (found, out) == (code, ""), err
    assert all(word in err for word in words), err
    assert "Traceback" not in err


def test_oversized_value_is_refused(shell: Shell) -> None:
    """Over the limit of one value nothing is written."""
    with (
        raftstore.connect(shell.endpoints) as client,
        pytest.raises(raftstore.errors.PayloadTooLargeError) as refusal,
    ):
        client.table("pairs").put({"a": 1, "b": 2, "c": "x" * 1_100_000})
    assert refusal.value.outcome is raftstore.Outcome.NOT_APPLIED
    assert refusal.value.size > refusal.value.limit
    assert shell("get", "pairs", "[1, 2]")[0] == 1


def test_explain_names_every_replica_in_order_and_why_not(shell: Shell) -> None:
    """KLIP-37: the leader first; a level that only it can serve refuses the others (N3)."""
    assert shell("put", "orders", '{"id": 7}')[0] == 0
    code, out, _ = shell("-o", "json", "explain", "get", "orders", "7", "--max-lag", "1000000")
    found = json.loads(out)
    assert code == 0
    assert [replica["order"] for replica in found["replicas"]] == [1, 2, 3]
    assert [replica["is_leader"] for replica in found["replicas"]] == [True, False, False]
    assert found["smallest_max_lag"] == 0
    code, out, err = shell("explain", "get", "orders", "7")
    assert code == 0
    assert out.count("not the leader") == 2
    assert "bounded reads succeed now from max_lag 0" in err


def test_table_is_exported_and_imported(shell: Shell, tmp_path: Path) -> None:
    """N12: all rows at one position in a file, which fills another table with the same rows."""
    file = tmp_path / "orders.jsonl"
    written = "".join(
        json.dumps({"id": number, "total": number / 2}) + "\n" for number in range(50)
    )
    file.write_text(written, encoding="utf-8")
    for table in ("sales", "copies"):
        assert shell("table", "create", table, "--key", "id:long", "--partitions", "2")[0] == 0
    assert shell("import", "sales", str(file))[0] == 0
    code, out, err = shell("-o", "json", "export", "sales", str(tmp_path / "sales.jsonl"))
    assert (code, json.loads(out)["rows"]) == (0, 50), err
    assert shell("import", "copies", str(tmp_path / "sales.jsonl"))[0] == 0
    code, out, _ = shell("export", "copies")
    assert (code, sorted(out.splitlines())) == (0, sorted(written.splitlines()))


def test_rows_keep_their_lifetime_through_a_file(shell: Shell, tmp_path: Path) -> None:
    """In a table whose rows live for another time; one that does not expire does not there."""
    file = tmp_path / "lived.jsonl"
    assert shell("table", "create", "lived", "--key", "id:long", "--partitions", "2")[0] == 0
    columns = ("--key", "id:long", "--partitions", "3", "--ttl", "30m")
    assert shell("table", "create", "lived2", *columns)[0] == 0
    for number, ttl in enumerate(("1h", "2h", "0s")):
        row = f'{{"id": {number}, "text": "x"}}'
        assert shell("put", "lived", row, "--ttl", ttl)[0] == 0
    assert shell("export", "lived", str(file))[0] == 0
    code, out, err = shell("-o", "json", "import", "lived2", str(file))
    assert (code, json.loads(out)["rows"]) == (0, 3), err
    told = [json.loads(line) for line in file.read_text().splitlines()]
    again = [json.loads(line) for line in shell("export", "lived2")[1].splitlines()]
    assert [{**row, "$expires": ""} for row in again] == [{**row, "$expires": ""} for row in told]
    assert [row["$expires"] is None for row in told] == [False, False, True]
    assert again[2]["$expires"] is None
    for before, after in zip(told[:2], again[:2], strict=True):
        moments = [datetime.fromisoformat(row["$expires"]) for row in (before, after)]
        assert abs(moments[1] - moments[0]) < timedelta(seconds=5)
