"""Rows from and to the shell: exactly what is in the table, in the encoding that HTTP has too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import click
import pytest
from click.testing import CliRunner, Result

from raftstore.cli.common import Context
from raftstore.cli.main import cli, global_options_first
from raftstore.client.changes.change_feed import Change, ChangePosition
from raftstore.client.position import Position
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.types import Level, Seq

DECLARED = {
    "id": "long",
    "d": "decimal(10,2)",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "b": "binary",
    "x": "double",
    "m": {"type": "map", "keyType": "date", "valueType": "binary", "valueContainsNull": True},
}
DECLARED_ROW = {
    "id": 1,
    "d": "1.50",
    "day": "2024-02-29",
    "at": "2024-02-29T12:00:00Z",
    "local": "2024-02-29T12:00:00",
    "b": "AQI=",
    "x": "NaN",
    "m": {"$map": [[{"$date": "2024-02-29"}, {"$binary": "AQI="}]]},
}
FREE_ROW = {
    "id": 1,
    "d": {"$decimal": "1.50"},
    "day": {"$date": "2024-02-29"},
    "at": {"$timestamp": "2024-02-29T12:00:00Z"},
    "b": {"$binary": "AQI="},
    "x": {"$double": "-Infinity"},
    "big": {"$int": "123456789012345678901234567890"},
    "m": {"$map": [[["a", 1], "x"], [{"$binary": "AQI="}, 1.5]]},
}


class FakeTable:
    """A table that keeps rows as nodes do: encoded by its schema, and checked by it."""

    def __init__(self, key: tuple[str, ...], types: Mapping[str, Any] | None = None) -> None:
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (types or {}).items()
        ]
        schema = json.dumps({"type": "struct", "fields": fields}) if types else ""
        self.info = TableInfo("t", b"t" * 16, key, 1, 1, "fsync", None, schema, ())
        self._schema = TableSchema(key, schema)
        self._stored: dict[bytes, bytes] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def table(self, name: str) -> Self:
        """Itself: the client and its only table."""
        assert name == "t"
        return self

    def table_info(self, name: str) -> TableInfo:
        """The definition."""
        assert name == "t"
        return self.info

    def put(self, row: Mapping[str, Any], **options: Any) -> SimpleNamespace:
        """Encode and keep it."""
        key, value = self._schema.row_to_key_value(row)
        self._stored[key] = value
        return self._ack("put", options)

    def delete(self, key: Any, **options: Any) -> SimpleNamespace:
        """Forget it."""
        self._stored.pop(self._schema.key_of(key), None)
        return self._ack("delete", options)

    def _ack(self, what: str, options: dict[str, Any]) -> SimpleNamespace:
        self.asked.append((what, options))
        return SimpleNamespace(
            position="p", partition=0, seq=1, term=1, durability="fsync", replicas_acked=2, guid="g"
        )

    def _row(self, key: Any) -> dict[str, Any] | None:
        encoded = self._schema.key_of(key)
        value = self._stored.get(encoded)
        return None if value is None else self._schema.key_value_to_row(encoded, value)

    def get_result(self, key: Any) -> SimpleNamespace:
        """The row, and whatever else an answer says."""
        return SimpleNamespace(
            value=self._row(key),
            position="p",
            node="n1",
            level=Level.LEADER,
            lag=0,
            leader_info_age_ms=0,
            staleness_ms=None,
            batches_behind=0,
            applied_seq=1,
        )

    def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """A row or None for each."""
        return [self._row(key) for key in keys]

    def scan(self, **options: Any) -> list[dict[str, Any]]:
        """All rows."""
        self.asked.append(("scan", options))
        return [self._schema.key_value_to_row(*pair) for pair in self._stored.items()]

    def count(self, **options: Any) -> SimpleNamespace:
        """How many rows there are."""
        self.asked.append(("count", options))
        return SimpleNamespace(rows=len(self._stored), position="p")

    def changes(self, start: str, *, follow: bool) -> list[Change]:
        """Each row as it was written."""
        assert (start, follow) == ("earliest", False)
        position = ChangePosition(b"t" * 16, ())
        return [
            Change("upsert", row, 0, Seq(number), 0, None, None, position)
            for number, row in enumerate(self.scan(), 1)
        ]


def run(monkeypatch: pytest.MonkeyPatch, client: FakeTable, *arguments: str) -> Result:
    """Invoke a command over this client; whatever it raises is raised."""
    monkeypatch.setattr(Context, "connect", lambda _: client)
    found = CliRunner().invoke(cli, global_options_first(arguments), standalone_mode=False)
    if found.exception is not None:
        raise found.exception
    return found


def no_json(constant: str) -> NoReturn:
    """Refuse what Python alone takes for JSON."""
    raise AssertionError(f"{constant} is no JSON")


def strict(text: str) -> Any:
    """Read JSON as every other program does."""
    return json.loads(text, parse_constant=no_json)


@pytest.mark.parametrize(("types", "row"), [(DECLARED, DECLARED_ROW), (None, FREE_ROW)])
def test_row_comes_back_from_every_command_as_it_was_put(
    monkeypatch: pytest.MonkeyPatch, types: Mapping[str, Any] | None, row: dict[str, Any]
) -> None:
    """Decimals, dates, bytes, NaN and maps with any keys are written, and shown exactly."""
    client = FakeTable(("id",), types)
    run(monkeypatch, client, "put", "t", json.dumps(row))
    (stored,) = client.get_many([1])
    assert stored is not None
    assert (stored["d"], stored["day"]) == (Decimal("1.50"), date(2024, 2, 29))
    for arguments, path in (
        (("get", "t", "1"), ()),
        (("get", "t", "1", "--provenance"), ("row",)),
        (("mget", "t", "1"), (0,)),
        (("scan", "t"), ()),
        (("changes", "t"), ("row",)),
    ):
        shown = strict(run(monkeypatch, client, "-o", "json", *arguments).stdout)
        for step in path:
            shown = shown[step]
        assert shown == row


@pytest.mark.parametrize("output", ["table", "yaml"])
@pytest.mark.parametrize(("types", "row"), [(DECLARED, DECLARED_ROW), (None, FREE_ROW)])
def test_row_is_shown_in_every_shape(
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    types: Mapping[str, Any] | None,
    row: dict[str, Any],
) -> None:
    """A map whose keys are dates has the same words in a table as everywhere else."""
    client = FakeTable(("id",), types)
    run(monkeypatch, client, "put", "t", json.dumps(row))
    for arguments in (("get", "t", "1"), ("mget", "t", "1"), ("scan", "t"), ("changes", "t")):
        shown = run(monkeypatch, client, "-o", output, *arguments).stdout
        assert "1.50" in shown
        assert "AQI=" in shown
        assert "Decimal" not in shown


@pytest.mark.parametrize("text", ["{bad", "[1]", "1", '{"x": NaN}', "[" * 100_000])
def test_what_is_no_json_object_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Exit code 2, as for every argument that cannot be read; nothing is sent."""
    client = FakeTable(("id",))
    with pytest.raises(click.BadParameter, match="a row is a JSON object") as refused:
        run(monkeypatch, client, "put", "t", text)
    assert refused.value.exit_code == 2
    assert client.asked == []


@pytest.mark.parametrize("command", ["scan", "count"])
def test_bounds_are_of_the_first_key_columns(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """A range of a composite key needs no value for each of its columns, as over HTTP."""
    client = FakeTable(("day", "n"), {"day": "date", "n": "long", "x": "double"})
    arguments = ("--start", '["2024-02-28"]', "--stop", '["2024-02-29", 7]')
    run(monkeypatch, client, command, "t", *arguments)
    run(monkeypatch, client, command, "t", "--prefix", '["2024-02-29"]')
    (_, between), (_, below) = client.asked
    assert [value.isoformat() for value in between["start"]] == ["2024-02-28"]
    assert [str(value) for value in between["stop"]] == ["2024-02-29", "7"]
    assert [value.isoformat() for value in below["prefix"]] == ["2024-02-29"]


def test_bound_of_one_key_column_is_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the key of ``get`` is; a prefix of text stays text."""
    client = FakeTable(("id",))
    run(monkeypatch, client, "scan", "t", "--start", "1", "--stop", "b")
    run(monkeypatch, client, "scan", "t", "--prefix", "12")
    (_, between), (_, below) = client.asked
    assert (between["start"], between["stop"], between["prefix"]) == ((1,), ("b",), None)
    assert below["prefix"] == "12"


def test_row_is_deleted_on_the_condition_of_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the version that was read is removed; the guid is reported, for ``fate``."""
    client = FakeTable(("id",))
    position = str(Position())
    shown = run(
        monkeypatch, client, "del", "t", "1", "--if-position", position, "-o", "json"
    ).stdout
    ((what, options),) = client.asked
    assert (what, options) == ("delete", {"if_position": Position.parse(position)})
    assert strict(shown)["guid"] == "g"
    with pytest.raises(click.BadParameter, match="is not a position"):
        run(monkeypatch, client, "del", "t", "1", "--if-match", "zzz")


def test_row_is_put_with_a_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its unit; without one the table's counts, and 0s is for ever."""
    client = FakeTable(("id",))
    for given in ((), ("--ttl", "90m"), ("--ttl", "30d"), ("--ttl", "0s")):
        run(monkeypatch, client, "put", "t", '{"id": 1}', *given)
    assert [options["ttl"] for _, options in client.asked] == [None, 5_400.0, 2_592_000.0, 0.0]
    with pytest.raises(click.BadParameter, match="'soon' is not a duration"):
        run(monkeypatch, client, "put", "t", '{"id": 1}', "--ttl", "soon")


def test_yaml_has_every_character_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON writes characters beyond 16 bits as two, which YAML takes for two."""
    Context(output="yaml").show(
        ["\U0001f600", "\\ud83d\\ude00", "\\\U0001f600", "\u0080\n\U0010ffff"]
    )
    assert capsys.readouterr().out.splitlines() == [
        '- "\\U0001f600"', '- "\\\\ud83d\\\\ude00"', '- "\\\\\\U0001f600"',
        '- "\\u0080\\n\\U0010ffff"',
    ]  # fmt: skip


def test_yaml_has_every_name_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns may be named as YAML names numbers, truth and comments."""
    names = ("id", "1", "yes", "Null", "a: b", "#x", "", "on_time")
    Context(output="yaml").show({"row": dict.fromkeys(names, 1)})
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [
        "id: 1", '"1": 1', '"yes": 1', '"Null": 1', '"a: b": 1', '"#x": 1', '"": 1', "on_time: 1",
    ]  # fmt: skip
