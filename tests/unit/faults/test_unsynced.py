"""Power loss by hand: what was synced stays, what was not may go, and nothing else happens."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from jepsen_like.target.processes.unsynced import lose_unsynced
from raftstore.faults import Injector
from raftstore.storage.faulty_files import UNSYNCED_SUFFIX, FaultyFileOps

SYNCED = b"synced " * 20
LATER = (b"first " * 10, b"second " * 10, b"third " * 10)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The journal of a node whose log and mark have synced and unsynced writes."""
    path = tmp_path / f"faults{UNSYNCED_SUFFIX}"
    path.touch()
    ops = FaultyFileOps(Injector(tmp_path / "faults"))
    log = ops.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    mark = ops.open(tmp_path / "mark", os.O_WRONLY | os.O_CREAT)
    ops.write_all(log, SYNCED)
    ops.datasync(log)
    ops.write_all(mark, bytes(500))
    ops.datasync(mark)
    for at, data in enumerate(LATER):
        ops.write_all(log, data)
        ops.pwrite_all(mark, data, 100 * at)
    for descriptor in (log, mark):
        ops.close(descriptor)
    return path


@pytest.mark.slow
def test_only_what_was_not_synced_is_taken_back(journal: Path) -> None:
    """In every way a disk may lose it: nothing, all, from some write on, or any of them."""
    log, mark = journal.with_name("log"), journal.with_name("mark")
    whole, kept = log.read_bytes(), mark.read_bytes()
    told = journal.read_bytes()
    seen = set()
    for seed in range(60):
        log.write_bytes(whole)
        mark.write_bytes(kept)
        journal.write_bytes(told)
        lost = lose_unsynced(journal, journal.parent, random.Random(seed))
        assert log.read_bytes().startswith(SYNCED)
        assert len(log.read_bytes()) <= len(whole)
        assert len(mark.read_bytes()) == 500
        assert journal.read_bytes() == b""
        assert (log.read_bytes() == whole) == (not any("log" in each for each in lost))
        seen.add(log.read_bytes())
    assert {SYNCED, whole} <= seen
    assert any(SYNCED < each < whole for each in seen)
    assert any(LATER[1] in each and LATER[0] not in each for each in seen), "no hole"


def test_store_whose_writes_are_all_synced_loses_nothing(journal: Path) -> None:
    """A sync ends what is pending, over restarts of the node too."""
    ops = FaultyFileOps(Injector(journal.with_name("faults")))
    for name in ("log", "mark"):
        ops.read_file(journal.with_name(name))
    before = journal.with_name("log").read_bytes()
    assert lose_unsynced(journal, journal.parent, random.Random(1)) == []
    assert journal.with_name("log").read_bytes() == before


def test_write_ahead_log_of_the_tables_may_lose_any_end(tmp_path: Path) -> None:
    """It is never synced; a table file is, by LevelDB itself."""
    home = tmp_path / "tables" / "of a channel"
    home.mkdir(parents=True)
    wal, table = home / "000003.log", home / "000005.ldb"
    (tmp_path / "journal").touch()
    sizes = set()
    for seed in range(20):
        wal.write_bytes(bytes(1_000))
        table.write_bytes(bytes(1_000))
        lose_unsynced(tmp_path / "journal", tmp_path, random.Random(seed))
        sizes.add(wal.stat().st_size)
        assert table.stat().st_size == 1_000
    assert 1_000 in sizes
    assert len(sizes) > 3


def test_nothing_is_kept_where_no_journal_is_wanted(tmp_path: Path) -> None:
    """It costs a write for every write, and is for power loss only."""
    ops = FaultyFileOps(Injector(tmp_path / "faults"))
    ops.create_file(tmp_path / "file", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
