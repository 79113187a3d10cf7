"""The demo's input: real sources, the user's own files, and what is refused."""

import gzip
import json
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from raftstore.demo import sources
from raftstore.demo.data import prepare_data
from raftstore.errors import ConfigError

INDEX = """\
Package: app
Installed-Size: 12
Depends: libc6 (>= 2.34), mail | exim4:any, libc6 (<< 3)
Pre-Depends: dpkg (>= 1.15.6~)
Section: games

Package: lib
Depends: libc6
Recommends: app [amd64]

Package: app
Depends: shadowed
"""


def read_back(data):
    tables = [parquet.read_table(f"{data.directory}/{name}") for name in data.files]
    return [row for table in tables for row in table.to_pylist()]


def test_package_index_becomes_edges_when_it_is_read(tmp_path):
    """Each relation names a target once; alternatives, constraints and sizes are kept."""
    (tmp_path / "x_Packages").write_text(INDEX)

    found = sources.package_dependencies(1_000_000, tmp_path)

    edges = found.columns.to_pylist()
    assert [(e["package"], e["relation"], e["target"], e["alternative"]) for e in edges] == [
        ("app", "depends", "libc6", 0),
        ("app", "depends", "mail", 0),
        ("app", "depends", "exim4", 1),
        ("app", "pre-depends", "dpkg", 0),
        ("lib", "depends", "libc6", 0),
        ("lib", "recommends", "app", 0),
    ]
    assert edges[0]["constraint"] == ">= 2.34"
    assert edges[0]["installed_kib"] == 12
    assert edges[4]["installed_kib"] is None


def test_package_index_is_passed_over_when_there_is_none(tmp_path):
    """No lists, or a compressed one that nothing here can read, is no error."""
    assert sources.package_dependencies(10, tmp_path / "missing") is None
    (tmp_path / "x_Packages.gz").write_bytes(gzip.compress(b"not an index"))
    assert sources.package_dependencies(10, tmp_path) is None


def test_file_lists_become_rows_when_packages_are_installed(tmp_path):
    """One row for each path of each package, with its directory and the package's section."""
    (tmp_path / "info").mkdir()
    (tmp_path / "info" / "app:amd64.list").write_text("/.\n/usr\n/usr/bin/app\n")
    (tmp_path / "status").write_text("Package: app\nSection: games\n\n")

    found = sources.installed_files(1_000, tmp_path)

    assert found.columns.to_pylist() == [
        {"package": "app:amd64", "path": "/usr", "directory": "/", "section": "games", "depth": 1},
        {
            "package": "app:amd64",
            "path": "/usr/bin/app",
            "directory": "/usr/bin",
            "section": "games",
            "depth": 3,
        },
    ]
    assert sources.installed_files(1_000, tmp_path / "missing") is None


@pytest.mark.slow
def test_files_hold_every_row_once_when_they_are_written(tmp_path):
    """The short input has its rows in eight files, with a unique key and the hot key's count."""
    data = prepare_data(tmp_path / "in", short=True, source="characters")

    rows = read_back(data)

    assert len(data.files) == 8
    assert data.rows == len(rows) >= 50_000
    assert len({row["code_point"] for row in rows}) == len(rows)
    hot = data.aggregate
    assert sum(row["script"] == hot.hot_key for row in rows) == hot.hot_rows > 1_000
    assert len({row["script"] for row in rows}) == hot.groups
    times = [(tmp_path / "in" / name).stat().st_mtime for name in data.files]
    assert times == sorted(times)


@pytest.mark.slow
def test_unicode_is_taken_when_no_other_source_has_enough_rows(tmp_path, monkeypatch):
    """Every machine has the interpreter's own database."""
    small = sources.unicode_characters(sys.maxunicode)
    monkeypatch.setattr(
        sources, "SOURCES", {"packages": lambda _rows: None, "files": lambda _rows: small}
    )

    assert sources.find_rows(60_000, 10**9).source == "characters"
    assert sources.find_rows(60_000, 50_000) is small


def write_input(directory, kind):
    rows = [{"id": n, "city": f"c{n % 3}", "when": "2024-01-01 00:00:00"} for n in range(40)]
    path = directory / f"input.{kind}"
    if kind == "csv":
        lines = ["id,city,when", *(f"{r['id']},{r['city']},{r['when']}" for r in rows)]
        path.write_text("\n".join(lines))
    elif kind == "json":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_own_input_is_read_whole_when_it_has_a_key(tmp_path, kind):
    """csv, json and parquet all work; the column that repeats most is counted."""
    data = prepare_data(tmp_path / "in", input_path=write_input(tmp_path, kind), key=["id"])

    assert sorted(row["id"] for row in read_back(data)) == list(range(40))
    assert (data.key, data.table, data.rows) == (("id",), "input_rows", 40)
    assert data.aggregate.group_by == "city"
    assert (data.aggregate.hot_key, data.aggregate.hot_rows) == ("c0", 14)


def test_own_input_may_have_any_arrow_type_when_it_is_parquet(tmp_path):
    """Types Spark cannot read from Parquet are written as the nearest it can."""
    table = pa.table(
        {
            "k": list(range(20)),
            "g": pa.array(["a", "b"] * 10).dictionary_encode(),
            "nothing": pa.nulls(20),
            "time": pa.array([1] * 20, pa.time64("us")),
            "span": pa.array([1] * 20, pa.duration("us")),
            "nanos": pa.array([1_000] * 20, pa.timestamp("ns")),
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet")

    data = prepare_data(tmp_path / "in", input_path=tmp_path / "x.parquet")

    assert [kind for _, kind in data.columns[1:5]] == ["string", "string", "string", "int64"]
    assert len(read_back(data)) == 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"key": ["no"]}, "--key is 'no', but .* has id, city, when"),
        ({"key": ["city"]}, "--key city has 3 values in the 40 rows"),
        ({"group_by": "no"}, "--group-by is 'no'"),
    ],
)
def test_own_input_is_refused_when_its_columns_do_not_do(tmp_path, arguments, said):
    """The sentence names the option, the value and what there is."""
    with pytest.raises(ConfigError, match=said):
        prepare_data(tmp_path / "in", input_path=write_input(tmp_path, "csv"), **arguments)


def test_own_input_is_refused_when_the_file_does_not_do(tmp_path):
    """A missing, unknown, broken, short or keyless file is refused by name."""
    cases = {
        "none.csv": (None, "is no file"),
        "x.xml": ("<a/>", "has the ending '.xml': give .csv, .json, .jsonl, .parquet"),
        "x.parquet": ("text", "cannot be read as parquet"),
        "x.csv": ("a\n1\n", "has 1 rows: give a file with at least 12"),
        "y.csv": ("a,b\n" + "".join(f"{n},{n}\n" for n in range(20)), "name one with --group-by"),
        "z.csv": (
            "a,b\n" + "".join(f"{n},x\n" for n in range(20)) + ",x\n",
            "--key a is null in 1",
        ),
    }
    for name, (text, said) in cases.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=said):
            prepare_data(tmp_path / "in", input_path=tmp_path / name)
