"""``raftstore export`` and ``import`` without a cluster: files, formats, and what does not fit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import click
import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from raftstore.cli import row_files, row_import
from raftstore.cli.common import Context
from raftstore.cli.main import cli
from raftstore.errors import (
    ConfigError,
    OverloadedError,
    PayloadTooLargeError,
    SchemaError,
    SnapshotExpiredError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.table_settings import TableSettings
from raftstore.rows.keys import encode_key
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.rows.values import ValueCodec

COLUMNS = {"id": "long", "price": "decimal(10,2)", "tags": "string"}
ROWS = [
    {"id": 1, "price": "1.50", "tags": "a"},
    {"id": 2, "price": None, "tags": None},
    {"id": 3, "price": "2.00", "tags": "c"},
]


class FakeTable:
    """Client, table and snapshot at once: rows are kept as nodes keep them."""

    position = "p"

    def __init__(self, columns: Mapping[str, Any] | None = None) -> None:
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (columns or {"id": "long"}).items()
        ]
        schema = json.dumps({"type": "struct", "fields": fields})
        self.info = TableInfo("t", b"t" * 16, ("id",), 1, 1, "fsync", None, schema, ())
        self._schema = TableSchema(("id",), schema)
        self.stored: dict[bytes, bytes] = {}
        self.expiries_ms: dict[bytes, int] = {}
        self.now_ms = 0
        """When rows are written."""
        self.ttls: list[float | None] = []
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

    def has_expiries(self) -> bool:
        """Whether a row ever had a lifetime."""
        return bool(self.expiries_ms)

    def expiries(self, partition: int, *, start: bytes, stop: bytes) -> dict[bytes, int]:
        """When rows of a range expire."""
        assert partition == 0
        return {key: at for key, at in self.expiries_ms.items() if start <= key < stop}

    def scan_with_expiries(self) -> Iterator[tuple[dict[str, Any], int]]:
        """The rows in key order, each with its expiry."""
        for key, value in sorted(self.stored.items()):
            row = self._schema.key_value_to_row(key, value)
            yield row, self.expiries_ms.get(key, 0)

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

    def put_many(
        self, rows: Sequence[Mapping[str, Any]], *, ttl: float | None = None
    ) -> SimpleNamespace:
        """Keep rows while there is room."""
        self.ttls.append(ttl)
        if len(self.stored) + len(rows) > self.refuses_after:
            raise OverloadedError("the node is busy; try again")
        for row in rows:
            key, value = self._schema.row_to_key_value(row)
            self.stored[key] = value
            self.expiries_ms.pop(key, None)
            lives_ms = (self.info.settings.ttl_ms or 0) if ttl is None else round(ttl * 1000)
            if lives_ms:
                self.expiries_ms[key] = self.now_ms + lives_ms
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
    """Its number is reported, and which rows are written: none of the same chunk."""
    client = FakeTable(COLUMNS)
    found = run(monkeypatch, client, "import", "t", "-", input=as_lines(ROWS) + line + "\n")
    assert isinstance(found.exception, SchemaError)
    assert said in str(found.exception)
    assert found.stderr.startswith("no row is written; import the file again")
    assert client.stored == {}


@pytest.mark.parametrize(
    "line", [b"\xff\xfe{}", b'{"id": 4, "tags": "\xff"}', b'{"\xff": 4}', b"\0\0\0", b"[" * 100_000]
)
def test_line_that_is_no_text_is_named(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    """Bytes of any kind: their line is reported, and nothing is written."""
    client = FakeTable(COLUMNS)
    given = as_lines(ROWS).encode() + line + b"\n"
    found = run(monkeypatch, client, "import", "t", "-", input=given)
    assert isinstance(found.exception, SchemaError)
    assert str(found.exception).startswith("line 4 is no JSON (")
    assert found.stderr.startswith("no row is written; import the file again")
    assert client.stored == {}


def test_line_without_an_end_is_not_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without line ends may be larger than the memory."""
    monkeypatch.setattr(row_files, "LINE_BYTES_MAX", 100)
    client = FakeTable(COLUMNS)
    given = as_lines(ROWS) + '{"id": 4}'.ljust(101) + "\n"
    found = run(monkeypatch, client, "import", "t", "-", input=given)
    assert "line 4 has more than 100 bytes" in str(found.exception)
    given = as_lines(ROWS) + '{"id": 4}'.ljust(99) + "\n"
    assert run(monkeypatch, client, "import", "t", "-", input=given).exception is None
    assert len(client.stored) == 4


def test_row_that_is_too_large_is_named_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that does not fit otherwise; nothing of its chunk was sent."""
    client = FakeTable(COLUMNS)
    given = as_lines([*ROWS, {"id": 4, "tags": "x" * 2_000_000}])
    found = run(monkeypatch, client, "import", "t", "-", input=given)
    assert isinstance(found.exception, PayloadTooLargeError)
    assert str(found.exception).startswith("line 4: a row takes 2000")
    assert found.stderr.startswith("no row is written; import the file again")


def test_byte_order_mark_is_no_part_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors of Windows write one."""
    client = FakeTable(COLUMNS)
    given = b"\xef\xbb\xbf" + as_lines(ROWS).replace("\n", "\r\n").encode()
    assert run(monkeypatch, client, "import", "t", "-", input=given).exception is None
    assert len(client.stored) == 3


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
    one = pa.array([1])
    parquet.write_table(pa.Table.from_arrays([one, one], names=["id", "id"]), file)
    found = run(monkeypatch, declared, "import", "t", str(file))
    assert "has more than one column id" in str(found.exception)
    for command in (("export", "t", "-"), ("import", "t", "-")):
        found = run(monkeypatch, declared, *command, "--format", "parquet")
        assert "name a file" in str(found.exception)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    found = run(monkeypatch, declared, "import", "t", str(file))
    assert isinstance(found.exception, ConfigError)
    assert "pip install 'raftstore[spark]'" in str(found.exception)


def test_part_that_is_not_as_declared_is_refused_by_line_when_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it were in the table, no Parquet file could hold the table any more."""
    numbers = {"type": "array", "elementType": "date", "containsNull": True}
    client, row = FakeTable({"id": "long", "days": numbers}), {"id": 1, "days": ["2024-02-29"]}
    found = run(monkeypatch, client, "import", "t", "-", input=as_lines([row]))
    assert isinstance(found.exception, SchemaError)
    text = str(found.exception)
    assert "line 1: column 'days' is array" in text
    assert "at [0], '2024-02-29' of type str is no date" in text
    assert '(in JSON {"$date": …})' in text
    assert client.stored == {}


def test_parquet_export_names_the_row_that_an_older_version_wrote_with_another_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parquet cannot hold it; lines can, as is said."""
    numbers = {"type": "array", "elementType": "integer", "containsNull": True}
    client = FakeTable({"id": "long", "tags": numbers})
    for number, tags in enumerate(([1], [1.5], ["x"])):
        client.stored[encode_key((number,))] = ValueCodec().encode([tags])
    found = run(monkeypatch, client, "export", "t", str(tmp_path / "rows.parquet"))
    assert isinstance(found.exception, SchemaError)
    text = str(found.exception)
    assert (
        "column 'tags' has a value that is no list<element: int32> in the row with the key id=1"
        in (text)
    )
    assert "at [0], 1.5 of type float is no integer: use int" in text
    assert "write the row anew" in text
    assert "use JSON lines, which hold any value (--format jsonl)" in text
    assert list(tmp_path.iterdir()) == []
    lines = run(monkeypatch, client, "export", "t").stdout.splitlines()
    assert [json.loads(line)["tags"] for line in lines] == [[1], [1.5], ["x"]]


# --- lifetimes ------------------------------------------------------------------------------------

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def with_ttl(ttl_ms: int | None) -> FakeTable:
    """A table whose rows live so long when nothing else is said."""
    table = FakeTable(COLUMNS)
    table.info = msgspec.structs.replace(table.info, settings=TableSettings(ttl_ms=ttl_ms))
    table.now_ms = NOW_MS
    return table


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_files, row_import):
        monkeypatch.setattr(module, "now_ms", lambda: NOW_MS)


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize("ttl_ms", [None, 5 * HOUR_MS])
def test_rows_expire_when_they_would_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, ttl_ms: int | None
) -> None:
    """In a table with another ttl as well; and those that live for ever do so there."""
    one, other = with_ttl(None), with_ttl(ttl_ms)
    run(monkeypatch, one, "import", "t", "-", input=as_lines(ROWS))
    keys = sorted(one.stored)
    one.expiries_ms = {keys[0]: NOW_MS + 1, keys[2]: NOW_MS + HOUR_MS + 7}
    file = tmp_path / name
    assert run(monkeypatch, one, "export", "t", str(file)).exception is None
    if name.endswith("jsonl"):
        told = [json.loads(line)["$expires"] for line in file.read_text().splitlines()]
        assert told == ["2027-01-15T08:00:00.001Z", None, "2027-01-15T09:00:00.007Z"]
    found = run(monkeypatch, other, "import", "t", str(file))
    assert json.loads(found.stdout)["rows"] == 3
    assert (other.stored, other.expiries_ms) == (one.stored, one.expiries_ms)


@pytest.mark.usefixtures("_clock")
def test_file_that_tells_nothing_of_it_goes_by_the_ttl_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As exports did before they had it; a table with a ttl has it for every row."""
    one = with_ttl(HOUR_MS)
    run(monkeypatch, one, "import", "t", "-", input=as_lines(ROWS))
    assert set(one.expiries_ms.values()) == {NOW_MS + HOUR_MS}
    assert one.ttls == [None]
    one.expiries_ms = {}
    found = run(monkeypatch, one, "export", "t")
    assert [json.loads(line)["$expires"] for line in found.stdout.splitlines()] == [None] * 3


@pytest.mark.usefixtures("_clock")
def test_row_that_has_expired_is_passed_over_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rows with one key the later counts, in any order of their lifetimes."""
    past, later = "2027-01-15T08:00:00Z", "2027-01-15T10:00:00+01:00"
    given = [
        {**ROWS[0], "$expires": past},
        {**ROWS[1], "$expires": later},
        {**ROWS[1], "tags": "newer", "$expires": None},
        {**ROWS[2], "$expires": later},
        {**ROWS[2], "tags": "newer", "$expires": past},
    ]
    client = with_ttl(None)
    found = run(monkeypatch, client, "import", "t", "-", input=as_lines(given))
    assert json.loads(found.stdout) == {"table": "t", "file": "-", "rows": 2, "expired": 3}
    assert "3 rows of the file have expired" in found.stderr
    found = run(monkeypatch, client, "export", "t")
    assert [json.loads(line) for line in found.stdout.splitlines()] == [
        {**ROWS[1], "tags": "newer"}
    ]


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "line 2: $expires 7 is no text; give a moment as 2026-12-01T00:00:00Z"),
        ("soon", "line 2: $expires 'soon' is no moment"),
        ("2026-12-01T00:00:00", "line 2: $expires '2026-12-01T00:00:00' has no time zone"),
        ("2900-12-01T00:00:00Z", "line 2: $expires 2900-12-01T00:00:00.000Z is more than 100 yea"),
        ({"$timestamp": "2026-12-01T00:00:00Z"}, "line 2: $expires {'$timestamp'"),
    ],
)
def test_expiry_that_is_none_is_named_by_its_line(
    monkeypatch: pytest.MonkeyPatch, given: object, said: str
) -> None:
    """Nothing of its chunk is written."""
    client = with_ttl(None)
    lines = as_lines([ROWS[0], {**ROWS[1], "$expires": given}])
    found = run(monkeypatch, client, "import", "t", "-", input=lines)
    assert isinstance(found.exception, SchemaError)
    assert str(found.exception).startswith(said)
    assert client.stored == {}


def test_column_of_that_name_is_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In lines it is escaped; in Parquet there is no room for it beside expiries."""
    client = FakeTable({"id": "long", "$expires": "string", "$$expires": "string"})
    row = {"id": 1, "$$expires": "mine", "$$$expires": "too"}
    run(monkeypatch, client, "import", "t", "-", input=as_lines([row]))
    [(key, value)] = client.stored.items()
    assert client._schema.key_value_to_row(key, value) == {
        "id": 1, "$expires": "mine", "$$expires": "too",
    }  # fmt: skip
    found = run(monkeypatch, client, "export", "t")
    assert json.loads(found.stdout) == row
    client.expiries_ms = {key: NOW_MS}
    found = run(monkeypatch, client, "export", "t", str(tmp_path / "rows.parquet"))
    assert "declares a column $expires" in str(found.exception)


def test_parquet_column_of_expiries_is_of_moments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of any unit; of another type it is refused."""
    file, one = tmp_path / "rows.parquet", pa.array([1], pa.int64())
    client = with_ttl(None)
    parquet.write_table(pa.Table.from_arrays([one, one], names=["id", "$expires"]), file)
    found = run(monkeypatch, client, "import", "t", str(file))
    assert "column $expires of" in str(found.exception)
    assert "is int64; give timestamps" in str(found.exception)
    soon = pa.array([time.time_ns() + 10**12], pa.timestamp("ns", tz="Europe/Berlin"))
    parquet.write_table(pa.Table.from_arrays([one, soon], names=["id", "$expires"]), file)
    assert run(monkeypatch, client, "import", "t", str(file)).exception is None
    [ttl] = client.ttls
    assert ttl == pytest.approx(1_000, abs=60)


def test_two_exports_to_one_file_leave_the_whole_file_of_one(tmp_path: Path) -> None:
    """Neither writes into what the other has begun."""
    path = tmp_path / "rows.jsonl"

    def first(to: Path) -> int:
        to.write_text("first, half", encoding="utf-8")
        assert row_files.in_place(path, second) == 2
        with to.open("a", encoding="utf-8") as file:
            file.write(" and half")
        return 1

    def second(to: Path) -> int:
        to.write_text("second", encoding="utf-8")
        return 2

    assert row_files.in_place(path, first) == 1
    assert path.read_text(encoding="utf-8") == "first, half and half"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]
