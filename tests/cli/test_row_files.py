"""``raftstore export`` and ``import`` without a cluster: files, formats, and what does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import click
import pytest
from click.testing import CliRunner, Result

from raftstore.cli import row_files
from raftstore.cli.common import Context
from raftstore.cli.main import cli
from raftstore.errors import ConfigError, OverloadedError, SchemaError, SnapshotExpiredError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal

COLUMNS = {"id": "long", "price": "decimal(10,2)", "tags": "string"}
ROWS = [
    {"id": 1, "price": "1.50", "tags": "a"},
    {"id": 2, "price": None, "tags": None},
    {"id": 3, "price": "2.00", "tags": "c"},
]


class FakeTable:
    """Client, table and snapshot at once: rows are kept as nodes keep them."""

    position = "p"

    def __init__(self, columns: Mapping[str, str] | None = None) -> None:
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (columns or {"id": "long"}).items()
        ]
        schema = json.dumps({"type": "struct", "fields": fields})
        self.info = TableInfo("t", b"t" * 16, ("id",), 1, 1, "fsync", None, schema, ())
        self._schema = TableSchema(("id",), schema)
        self.stored: dict[bytes, bytes] = {}
        self.refuses_after = 1_000_000
        self.ends_after = 1_000_000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def table_info(self, _name: str) -> TableInfo:
        """The definition."""
        return self.info

    def table(self, _name: str) -> Self:
        """Itself."""
        return self

    def snapshot(self) -> Self:
        """Itself: nobody writes meanwhile."""
        return self

    def scan(self) -> Iterator[dict[str, Any]]:
        """The rows in key order, as long as the snapshot is kept."""
        for number, (key, value) in enumerate(sorted(self.stored.items())):
            if number == self.ends_after:
                raise SnapshotExpiredError("the snapshot expired")
            yield self._schema.key_value_to_row(key, value)

    def pages(self, partition: int) -> Iterator[Sequence[tuple[bytes, bytes, int]]]:
        """All rows, sealed."""
        assert partition == 0
        yield [(key, seal(key, value), 1) for key, value in sorted(self.stored.items())]

    def put_many(self, rows: Sequence[Mapping[str, Any]]) -> SimpleNamespace:
        """Keep rows while there is room."""
        if len(self.stored) + len(rows) > self.refuses_after:
            raise OverloadedError("the node is busy; try again")
        self.stored.update(self._schema.row_to_key_value(row) for row in rows)
        return SimpleNamespace(rows=len(rows))


def run(monkeypatch: pytest.MonkeyPatch, client: FakeTable, *arguments: str, **io: Any) -> Result:
    """Invoke a command over this client; whatever it raises is in the result."""
    monkeypatch.setattr(Context, "connect", lambda _: client)
    return CliRunner().invoke(cli, ["-o", "json", *arguments], standalone_mode=False, **io)


def as_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """A file of them."""
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_rows_come_back_from_a_file_as_they_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Import, export, import into another table: both hold the same bytes."""
    (tmp_path / "first.jsonl").write_text(as_lines(ROWS), encoding="utf-8")
    one, other = FakeTable(COLUMNS), FakeTable(COLUMNS)
    found = run(monkeypatch, one, "import", "t", str(tmp_path / "first.jsonl"))
    assert json.loads(found.stdout) == {
        "table": "t", "file": str(tmp_path / "first.jsonl"), "rows": 3,
    }  # fmt: skip
    file = tmp_path / name
    found = run(monkeypatch, one, "export", "t", str(file))
    assert json.loads(found.stdout) == {
        "table": "t", "file": str(file), "rows": 3, "position": "p",
    }  # fmt: skip
    run(monkeypatch, other, "import", "t", str(file))
    assert other.stored == one.stored
    assert len(one.stored) == 3
    if name.endswith("jsonl"):
        assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS


def test_rows_go_through_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdout has the rows and nothing else, stderr the rest; empty lines are passed over."""
    client = FakeTable(COLUMNS)
    found = run(monkeypatch, client, "import", "t", "-", input=as_lines(ROWS) + "\n")
    assert json.loads(found.stdout)["rows"] == 3
    found = run(monkeypatch, client, "export", "t")
    assert [json.loads(line) for line in found.stdout.splitlines()] == ROWS
    assert found.stderr == "3 rows of table t at position p\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": 4', "line 4 is no JSON"),
        ("[4]", "line 4 is no JSON object"),
        ('{"id": 4, "price": "x"}', "line 4: column 'price'"),
        ('{"tags": "x"}', "line 4: the key column 'id' is missing"),
        ('{"id": 4, "colour": 1}', "line 4: "),
    ],
)
def test_line_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    """Its number is told, and which rows are written: none of the same chunk."""
    client = FakeTable(COLUMNS)
    found = run(monkeypatch, client, "import", "t", "-", input=as_lines(ROWS) + line + "\n")
    assert isinstance(found.exception, SchemaError)
    assert said in str(found.exception)
    assert found.stderr.startswith("no row is written; import the file again")
    assert client.stored == {}


def test_import_that_is_refused_half_way_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acknowledged rows are counted; of the rest nothing is claimed."""
    monkeypatch.setattr(row_files, "ROWS_AT_ONCE", 2)
    client = FakeTable(COLUMNS)
    client.refuses_after = 2
    found = run(monkeypatch, client, "import", "t", "-", input=as_lines(ROWS))
    assert isinstance(found.exception, OverloadedError)
    assert found.stderr.startswith("the first 2 rows are written for certain, some behind them may")


def test_file_gets_its_name_when_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An export that fails leaves nothing, and one that is there is only replaced when asked."""
    client, file = FakeTable(COLUMNS), tmp_path / "rows.jsonl"
    run(monkeypatch, client, "import", "t", "-", input=as_lines(ROWS))
    client.ends_after = 2
    found = run(monkeypatch, client, "export", "t", str(file))
    assert isinstance(found.exception, SnapshotExpiredError)
    assert list(tmp_path.iterdir()) == []
    client.ends_after = 1_000_000
    file.write_text("mine", encoding="utf-8")
    found = run(monkeypatch, client, "export", "t", str(file))
    assert isinstance(found.exception, click.UsageError)
    assert file.read_text() == "mine"
    assert run(monkeypatch, client, "export", "t", str(file), "--overwrite").exception is None
    assert len(file.read_text().splitlines()) == 3
    found = run(monkeypatch, client, "export", "t", str(tmp_path / "no" / "rows.jsonl"))
    assert isinstance(found.exception, click.ClickException)
    assert "cannot be written" in str(found.exception)


def test_parquet_is_refused_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No columns, no Parquet, foreign columns, pipes, no pyarrow: each says what to do instead."""
    free, declared = FakeTable(), FakeTable(COLUMNS)
    file = tmp_path / "rows.parquet"
    found = run(monkeypatch, free, "export", "t", str(file))
    assert "declares no columns beside its key" in str(found.exception)
    file.write_text("no Parquet", encoding="utf-8")
    found = run(monkeypatch, declared, "import", "t", str(file))
    assert "cannot be read as Parquet" in str(found.exception)
    run(monkeypatch, declared, "export", "t", str(file), "--overwrite")
    other = FakeTable({"id": "long", "price": "decimal(10,2)"})
    found = run(monkeypatch, other, "import", "t", str(file))
    assert "has the columns tags, which table 't' does not declare" in str(found.exception)
    for command in (("export", "t", "-"), ("import", "t", "-")):
        found = run(monkeypatch, declared, *command, "--format", "parquet")
        assert "name a file" in str(found.exception)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    found = run(monkeypatch, declared, "import", "t", str(file))
    assert isinstance(found.exception, ConfigError)
    assert "pip install 'raftstore[spark]'" in str(found.exception)
