"""``raftstore inspect``: the store of a stopped node is described, verified and exported,
unchanged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

import plyvel
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from raftstore.cli.errors import EXIT_DIFFERENCE
from raftstore.cli.main import cli, global_options_first
from raftstore.core.chain import digest_of
from raftstore.core.folds import advance
from raftstore.errors import (
    ArgumentError,
    CorruptRecordError,
    RaftstoreError,
    SchemaError,
    StorageError,
    StoreIdentityError,
)
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.records import Record
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.state_machines.catalog import TableEntry, create_table_command
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.state_machines.expiry import stored_time
from raftstore.state_machines.table import TableMachine
from raftstore.storage.identity import MARKER_NAME
from raftstore.storage.store import open_store
from raftstore.storage.tables.keys import (
    applied_key,
    encode_applied,
    row_head,
    rows_prefix,
    split_row,
)
from raftstore.types import (
    NO_GUID,
    History,
    NodeId,
    RecordKind,
    Seq,
    Term,
    TimestampMs,
    channel_id,
    channel_table,
    node_id,
)
from tests.storage_helpers import CHANNEL, SMALL, flip_bit, rows_record, table_path

CLUSTER: Final = b"cluster-of-tests"
METADATA: Final = channel_id(CLUSTER, 0)
SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": False, "metadata": {}},
            {"name": "text", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)
ROWS: Final = [{"id": number, "text": f"row {number} " + "x" * 200} for number in range(300)]


def command(seq: int, payload: bytes, kind: RecordKind) -> Record:
    """A record of the catalog."""
    digest = digest_of(payload)
    return Record(Term(1), Seq(seq), 1, NO_GUID, TimestampMs(seq), digest, kind, payload)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that ran and stopped; no test changes it."""
    directory = tmp_path_factory.mktemp("kept") / "n1"
    store = open_store(directory, "n1", SMALL, free_bytes_min=0)
    store.identity.record_birth(CLUSTER, ((store.identity.node, "n1:4480"),))
    entry = TableEntry(
        name="orders",
        uuid=channel_table(CHANNEL),
        key_columns=("id",),
        partitions=2,
        replicas=1,
        durability="fsync",
        max_lag=None,
        schema_json=SCHEMA,
        placement=((store.identity.node,),) * 2,
    )
    catalog = [command(1, create_table_command(entry), RecordKind.COMMAND)]
    pairs = [TableSchema(("id",), SCHEMA).row_to_key_value(row) for row in ROWS]
    records = [rows_record(1 + at, dict([pair]), term=2) for at, pair in enumerate(pairs)]
    for channel, machine, found in (
        (METADATA, CatalogMachine(), catalog),
        (CHANNEL, TableMachine(), records),
    ):
        store.log.append(channel, found)
        store.log.set_vote(channel, Term(3), NodeId("n1@00"))
        store.log.flush()
        store.tables.open_channel(channel, machine)
        store.tables.apply(channel, found)
        store.tables.apply_queued()
    store.close(is_clean=True)
    # Rows go from the write-ahead log to a table file when the store is opened again.
    open_store(directory, "n1", SMALL, free_bytes_min=0).close(is_clean=True)
    return directory


@pytest.fixture
def store(kept: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    shutil.copytree(kept, tmp_path / "n1")
    return tmp_path / "n1"


def run(*arguments: str | Path) -> Result:
    """Invoke the command."""
    words = global_options_first(["inspect", *map(str, arguments)])
    return CliRunner().invoke(cli, words, standalone_mode=False)


def told(*arguments: str | Path, code: int = 0) -> Any:
    """The JSON that the command prints."""
    result = run(*arguments, "-o", "json")
    assert result.exception is None, result.exception
    assert (result.return_value or 0) == code, result.stderr
    return json.loads(result.stdout)


def refusal(*arguments: str | Path) -> RaftstoreError:
    """Why the command does nothing."""
    error = run(*arguments).exception
    assert isinstance(error, RaftstoreError), error
    return error


def everything(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file with its content, mode and time of change."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def damage_table(directory: Path) -> None:
    """Flip a bit in the middle of the channel's largest table file."""
    files = table_path(directory).glob("*.ldb")
    largest = max(files, key=lambda path: path.stat().st_size)
    flip_bit(largest, largest.stat().st_size // 2)


def test_store_is_told_as_it_is(store: Path) -> None:
    """Identity, formats, lineage, base, end, promises, generation, position, rows and bytes."""
    whole = told(store)
    node = node_id("n1", bytes.fromhex(whole["store_uuid"]))
    assert (whole["node"], whole["node_id"], whole["cluster_id"]) == ("n1", node, CLUSTER.hex())
    assert whole["members"] == [{"node": "n1", "address": "n1:4480"}]
    assert whole["stopped_cleanly"] is True
    assert whole["formats"] == {"store": 1, "mark": 1}
    assert whole["damage"] == []
    assert whole["log"]["bytes"] > 300 * 200
    metadata, orders = whole["channels"]
    assert metadata["channel"] == "metadata"
    assert (orders["channel"], orders["id"]) == ("orders/0", CHANNEL.hex())
    assert orders["promise"]["term"] == 3
    assert orders["promise"]["durable"] == {"term": 2, "seq": 300}
    assert orders["log"]["base"]["seq"] == 0
    assert orders["log"]["end"] == {"term": 2, "seq": 300}
    assert orders["log"]["lineage"] == [{"term": 2, "end_seq": 300}]
    assert (orders["log"]["records"], orders["log"]["gaps"]) == (300, [])
    table = orders["table"]
    assert (table["generation"], table["generations"]) == (0, [0])
    assert table["applied"] == {"term": 2, "seq": 300}
    assert table["rows"] == 300
    assert table["bytes"] > 300 * 100
    assert len(table["digest"]) == 32
    words = run(store).stdout.split()
    assert "orders/0" in words
    assert "verified" in words


def trim(directory: Path, to_seq: int) -> None:
    """The log of the channel begins behind this seq."""
    store = open_store(directory, "n1", SMALL, free_bytes_min=0)
    heads = store.log.heads(CHANNEL, Seq(0), to_seq=Seq(to_seq), limit=to_seq)
    store.log.rebase(CHANNEL, advance(EMPTY_BASE, heads))
    store.log.flush()
    store.close(is_clean=True)


def test_s6_5_rows_that_are_in_neither_log_nor_table_are_told(store: Path, tmp_path: Path) -> None:
    """A log that was trimmed cannot build a table that is gone, or older than it, anew."""
    older = shutil.copytree(table_path(store), tmp_path / "older")
    trim(store, 200)
    assert told(store)["channels"][1]["log"]["base"]["seq"] == 200
    assert told(store)["damage"] == []
    shutil.rmtree(table_path(store))
    (sentence,) = told(store, code=EXIT_DIFFERENCE)["damage"]
    assert sentence == (
        "channel orders/0: its log begins behind seq 200, and it has no table; the next start "
        "takes the table of another replica"
    )
    assert "table lacks rows" in " ".join(run(store).stdout.split())
    shutil.copytree(older, table_path(store))
    database = plyvel.DB(str(table_path(store)))
    database.put(applied_key(CHANNEL), encode_applied(CHANNEL, History(Term(2), Seq(199))))
    database.close()
    (sentence,) = told(store, code=EXIT_DIFFERENCE)["damage"]
    assert "and its table ends at seq 199;" in sentence


@pytest.mark.parametrize("export", [False, True])
def test_nothing_in_the_directory_changes(store: Path, tmp_path: Path, export: bool) -> None:
    """LevelDB writes when it opens: so it opens a copy; a damaged store is left as it is, too."""
    for _ in range(2):
        before = everything(store)
        if export:
            run(store, "--export", "orders/0", str(tmp_path / "rows.jsonl"), "--overwrite")
        else:
            run(store)
        assert everything(store) == before
        damage_table(store)


def test_rows_are_exported_as_lines(store: Path, tmp_path: Path) -> None:
    """All values exactly, in key order, to a file or to stdout; an id names the channel, too."""
    file = tmp_path / "rows.jsonl"
    shown = told(store, "--export", "orders/0", file)
    assert (shown["rows"], shown["applied"]) == (300, {"term": 2, "seq": 300})
    assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS
    piped = run(store, "--export", CHANNEL.hex(), "-")
    assert [json.loads(line) for line in piped.stdout.splitlines()] == ROWS
    again = run(store, "--export", "orders/0", file)
    assert "pass --overwrite" in str(again.exception)


def test_rows_are_exported_to_parquet(store: Path, tmp_path: Path) -> None:
    """The columns of the table."""
    file = tmp_path / "rows.parquet"
    assert told(store, "--export", "orders/0", file)["rows"] == 300
    assert parquet.read_table(file).to_pylist() == ROWS


@pytest.mark.parametrize("options", [(), ("--partial",)])
def test_export_tells_when_rows_expire(
    store: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Those that had expired at the table's position are left out; null is for ever."""
    key_of = TableSchema(("id",), SCHEMA).key_of
    database = plyvel.DB(str(table_path(store, CHANNEL)))
    for number, expires_ms in ((5, 2_000), (6, 1_800_000_000_000)):
        stored_key = rows_prefix(CHANNEL) + key_of(number)
        seq, _, sealed = split_row(database.get(stored_key))
        database.put(stored_key, row_head(seq, expires_ms) + sealed)
    state_key, value = stored_time(3_000)
    assert value is not None
    database.put(CHANNEL + state_key, seal(state_key, value))
    database.close()
    file = tmp_path / "rows.jsonl"
    assert told(store, "--export", "orders/0", file, *options, code=0)["rows"] == 299
    rows = {row["id"]: row["$expires"] for row in map(json.loads, file.read_text().splitlines())}
    assert rows == {number: None for number in range(300) if number != 5} | {
        6: "2027-01-15T08:00:00.000Z"
    }
    file = tmp_path / "rows.parquet"
    assert told(store, "--export", "orders/0", file, *options)["rows"] == 299
    found = parquet.read_table(file).to_pydict()
    expiring = [at for at in found["$expires"] if at is not None]
    assert [at.isoformat() for at in expiring] == ["2027-01-15T08:00:00+00:00"]
    assert found["id"][found["$expires"].index(expiring[0])] == 6


def test_damaged_table_is_told_and_exported_only_when_asked(store: Path, tmp_path: Path) -> None:
    """The rows that can be verified are not all there were: they are given to who asks for them."""
    damage_table(store)
    whole = told(store, code=7)
    [sentence] = whole["damage"]
    assert "orders/0" in sentence
    assert whole["channels"][1]["table"]["damage"]
    file = tmp_path / "rows.jsonl"
    assert isinstance(refusal(store, "--export", "orders/0", file), CorruptRecordError)
    assert not file.exists()
    part = told(store, "--export", "orders/0", file, "--partial", code=7)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert 0 < part["rows"] == len(rows) < 300
    assert part["ranges_damaged"]
    assert all(row in ROWS for row in rows), "nothing that is wrong"
    assert rows[0] == ROWS[0], "what is in front of the damage"
    assert rows[-1] == ROWS[-1], "what is behind it"


def test_damaged_log_is_told_and_the_table_is_still_read(store: Path) -> None:
    """A part that is damaged says nothing of the others."""
    (segment,) = sorted((store / "log").iterdir())[:1]
    flip_bit(segment, segment.stat().st_size // 3)
    whole = told(store, code=7)
    assert any("log lacks records" in sentence for sentence in whole["damage"])
    assert whole["channels"][1]["table"]["rows"] == 300


def test_lost_mark_is_told(store: Path) -> None:
    """S0.1: without it nobody knows what the node promised; its rows can still be read."""
    (store / "mark").unlink()
    whole = told(store, code=7)
    assert any("mark" in sentence for sentence in whole["damage"])
    assert {channel["id"] for channel in whole["channels"]} >= {CHANNEL.hex()}
    assert told(store, "--export", "orders/0", store.parent / "rows.jsonl")["rows"] == 300


def test_store_of_a_running_node_is_refused(store: Path) -> None:
    """Its files change under the reader."""
    running = open_store(store, "n1", SMALL, free_bytes_min=0)
    try:
        error = refusal(store)
    finally:
        running.close(is_clean=True)
    assert isinstance(error, StoreIdentityError)
    assert str(os.getpid()) in str(error)
    assert "stop" in str(error)


def test_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """The sentence says what is looked for."""
    error = refusal(tmp_path)
    assert isinstance(error, StoreIdentityError)
    assert MARKER_NAME in str(error)


def test_newer_format_is_refused(store: Path) -> None:
    """With the number that was found and the one that is known."""
    marker = store / MARKER_NAME
    marker.write_text(marker.read_text().replace('"format_version": 1', '"format_version": 9'))
    error = refusal(store)
    assert isinstance(error, StoreIdentityError)
    assert "format version 9" in str(error)
    assert "start the raftstore that wrote it" in str(error)


def test_directory_that_cannot_be_read_is_refused(store: Path) -> None:
    """The sentence names the file and the remedy."""
    (store / "lock").unlink()
    error = refusal(store)
    assert isinstance(error, StorageError)
    assert str(store / "lock") in str(error)
    assert "permissions" in str(error)
    assert not (store / "lock").exists()


def test_tables_of_an_older_version_are_told(store: Path) -> None:
    """One database for all channels: what is in it is known after the next start."""
    for place in (store / "tables").iterdir():
        if place.is_dir():
            shutil.rmtree(place)
    (store / "tables" / "CURRENT").write_text("MANIFEST-000004\n")
    whole = told(store)
    assert any("one database" in note for note in whole["notes"])
    assert [channel["channel"] for channel in whole["channels"]] == ["metadata", "orders/0"]
    assert [channel["table"] for channel in whole["channels"]] == [None, None]


@pytest.mark.parametrize("name", ["orders/7", "nothing/0", "orders"])
def test_unknown_channel_is_refused_with_those_there_are(store: Path, name: str) -> None:
    """Nothing is written."""
    error = refusal(store, "--export", name, store.parent / "rows.jsonl")
    assert isinstance(error, ArgumentError)
    assert name in str(error)
    assert "orders/0" in str(error)
    assert not (store.parent / "rows.jsonl").exists()


def test_catalog_is_no_table(store: Path) -> None:
    """Its rows have no columns."""
    error = refusal(store, "--export", "metadata", store.parent / "rows.jsonl")
    assert isinstance(error, SchemaError)


@pytest.mark.parametrize("option", ["--partial", "--overwrite", "--format=jsonl"])
def test_options_of_an_export_need_one(store: Path, option: str) -> None:
    """A word that would do nothing is refused."""
    assert "belong to --export" in str(run(store, option).exception)
