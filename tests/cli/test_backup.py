"""``raftstore backup`` without a cluster: what is shown, what is refused, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from raftstore import backup
from raftstore.backup.manifest import Manifest, manifest_path
from raftstore.backup.repository import Repository
from raftstore.cli.common import Context
from raftstore.cli.errors import run_guarded
from raftstore.cli.main import cli, global_options_first
from tests.unit.backup.test_data_files import TYPED, items_of
from tests.unit.backup.test_manifest import MANIFEST, TABLE

ROW = {"id": 1, "price": None, "at": None, "tags": None}


class FakeClient:
    """A connection, which the calls below do not use."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Arguments of the library's calls, which do nothing."""
    made: list[Mapping[str, Any]] = []

    def create(client: Any, url: str, *, progress: Any, **options: Any) -> Manifest:
        progress(backup.Progress("orders", 3, None))
        made.append({"client": type(client), "url": url, **options})
        return MANIFEST

    def restore(client: Any, url: str, chosen: Any, *, progress: Any, **options: Any) -> Any:
        progress(backup.Progress("orders", 3, 3))
        made.append({"client": type(client), "url": url, "chosen": chosen, **options})
        table = backup.RestoredTable("orders", "old", 3, 1, 2)
        found = backup.RestoredChannelSet("counters", "counted", "mine:Counter", 5, 9)
        return backup.Restored(MANIFEST.id, (table,), (found,))

    monkeypatch.setattr(Context, "connect", lambda _: FakeClient())
    monkeypatch.setattr(backup, "create_backup", create)
    monkeypatch.setattr(backup, "restore_backup", restore)
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A place with one backup of one table, whose only row is in partition 0 or 1."""
    from raftstore.backup.data_files import TableFiles
    from raftstore.rows.partitioner import partition_of

    where = Repository(str(tmp_path))
    items = items_of([ROW], TYPED.schema_json)
    file, size = where.put(TableFiles(TYPED).encode(items, {}), 1, again=False)
    number = partition_of(items[0][0], 2)
    partitions = tuple(
        msgspec.structs.replace(part, files=(file,) if at == number else ())
        for at, part in enumerate(TABLE.partitions)
    )
    table = msgspec.structs.replace(TABLE, definition=TYPED, partitions=partitions)
    where.add(msgspec.structs.replace(MANIFEST, tables=(table,), new_bytes=size))
    return tmp_path


def run(*arguments: str) -> Result:
    """Invoke a command as ``main`` does."""
    return CliRunner().invoke(cli, global_options_first(arguments), standalone_mode=False)


def test_create_shows_what_was_made_and_at_which_positions(
    calls: list[Mapping[str, Any]],
) -> None:
    """Positions are for programs; people get one line."""
    options = ("--table", "orders", "--channelset", "counters")
    told = json.loads(run("backup", "create", "/b", *options, "-o", "json").stdout)
    assert calls == [
        {
            "client": FakeClient,
            "url": "/b",
            "tables": ("orders",),
            "channelsets": ("counters",),
            "full": False,
        }
    ]
    assert (told["backup"], told["rows"], told["positions"]) == (MANIFEST.id, 3, {"orders": "p"})
    full = run("backup", "create", "/b", "--full")
    assert calls[1]["full"] is True
    assert MANIFEST.id in full.stdout
    assert "position" not in full.stdout


def test_restore_takes_names_and_new_names(calls: list[Mapping[str, Any]]) -> None:
    """Of the newest backup unless one is named."""
    options = (
        "--table",
        "orders=old",
        "--table",
        "b",
        "--replicas",
        "1",
        "--channelset",
        "counters=counted",
    )
    told = json.loads(run("backup", "restore", "/b", "x", *options, "-o", "json").stdout)
    (call,) = calls
    assert call["chosen"] == "x"
    assert (call["tables"], call["replicas"]) == ({"orders": "old", "b": "b"}, 1)
    row = {"table": "old", "from": "orders", "rows": 3, "expired": 1, "writers": 2}
    assert call["channelsets"] == {"counters": "counted"}
    entry = {
        "channelset": "counted",
        "from": "counters",
        "machine": "mine:Counter",
        "entries": 5,
        "commands": 9,
    }
    assert told == {"backup": MANIFEST.id, "tables": [row], "channelsets": [entry]}


@pytest.mark.parametrize("given", [("=x",), ("x=",), ("",), ("x", "x=y")])
def test_table_that_names_nothing_is_refused(
    calls: list[Mapping[str, Any]], given: tuple[str, ...]
) -> None:
    """Before anybody is asked."""
    options = [part for each in given for part in ("--table", each)]
    result = run("backup", "restore", "/b", *options)
    assert isinstance(result.exception, click.UsageError)
    assert calls == []


def test_backups_are_listed_with_what_is_wrong(place: Path) -> None:
    """A damaged manifest hides no other; a place without any says so."""
    other = MANIFEST.id.replace("2026", "2027")
    path = place / manifest_path(other)
    path.parent.mkdir()
    path.write_bytes(b"{}")
    first, second = json.loads(run("backup", "ls", str(place), "-o", "json").stdout)
    assert (first["backup"], first["tables"], first["rows"], first["base"]) == (
        *(MANIFEST.id, 1),
        *(1, None),
    )
    assert first["at"] == "1970-01-01T00:00:00+00:00"
    assert second["backup"] == other
    assert "is damaged" in second["error"]
    empty = run("backup", "ls", str(place / "nothing"))
    assert "there is no backup in" in empty.stderr


def test_verify_says_what_is_wrong_with_exit_code_7(place: Path) -> None:
    """0 when nothing is; 9 when there is no such backup at all."""
    assert run_guarded(cli, ["backup", "verify", str(place)]) == 0
    (data,) = (place / "data").rglob("*.parquet")
    data.write_bytes(data.read_bytes()[:-1])
    assert run_guarded(cli, ["backup", "verify", str(place), MANIFEST.id]) == 7
    told = json.loads(run("backup", "verify", str(place), "-o", "json").stdout)
    assert len(told["problems"]) == 1
    assert data.name in told["problems"][0]
    assert run_guarded(cli, ["backup", "verify", str(place), "x"]) == 9


def test_gap_12_verify_compares_what_the_manifest_says(place: Path) -> None:
    """A count, a partition and a column that differ, each by itself."""
    where = Repository(str(place))
    manifest = where.manifest()
    (table,) = manifest.tables
    swapped = msgspec.structs.replace(table, partitions=table.partitions[::-1])
    (file,) = table.files
    counted = msgspec.structs.replace(
        table,
        partitions=tuple(
            msgspec.structs.replace(
                part,
                files=tuple(
                    msgspec.structs.replace(each, rows=file.rows + 1) for each in part.files
                ),
            )
            for part in table.partitions
        ),
    )
    named = msgspec.structs.replace(
        table, definition=msgspec.structs.replace(table.definition, schema_json="")
    )
    for changed, wanted in (
        (swapped, "is of another partition"),
        (counted, "has 1 rows, the manifest says 2"),
        (named, "has the columns id, price, at, tags, the table's are row"),
    ):
        where.add(msgspec.structs.replace(manifest, tables=(changed,)))
        (problem,) = backup.verify_backup(str(place)).problems
        assert wanted in problem


def test_rm_asks_first_and_says_what_it_freed(place: Path) -> None:
    """ls says before how much that will be; without --yes and a terminal nothing is removed."""
    (listed,) = json.loads(run("backup", "ls", str(place), "-o", "json").stdout)
    (data,) = (place / "data").rglob("*.parquet")
    assert listed["own"] == data.stat().st_size
    refused = run("backup", "rm", str(place), MANIFEST.id)
    assert isinstance(refused.exception, click.UsageError)
    assert MANIFEST.id in refused.exception.message
    assert data.exists()
    done = json.loads(run("--yes", "backup", "rm", str(place), MANIFEST.id, "-o", "json").stdout)
    assert done == {"backups": [MANIFEST.id], "files": 1, "bytes": listed["own"]}
    assert not data.exists()
    assert run_guarded(cli, ["--yes", "backup", "rm", str(place), MANIFEST.id]) == 9
    assert run_guarded(cli, ["--yes", "backup", "rm", str(place)]) == 0
