"""A store whose tables share one LevelDB is brought to one database per channel, without loss."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from raftstore.state_machines.table import TableMachine
from raftstore.storage.store import Store, open_store
from raftstore.storage.tables import shared_database
from raftstore.types import channel_id
from tests.storage_helpers import CHANNEL, OTHER, SMALL, flip_bit, table_path

KEPT = Path(__file__).parents[3] / "data" / "stores" / "format-1.tar.gz"
"""Written by the last version that had one LevelDB: three channels and a dropped one."""
LAGGING = channel_id(b"orders-table-id!", 2)
DROPPED = channel_id(b"dropped-table-id", 0)
CONTENTS = {
    CHANNEL: ("ee7368947e02f7cd85f951ae50ab9507", 103, 103),
    OTHER: ("f27b4dfa94059d2a35d0c126491bd99b", 100, 100),
    LAGGING: ("10c78426c081db645da1c19073157049", 40, 40),
}
"""Digest of the contents, rows and applied seq of each channel, as that version stated them."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The data directory of that store."""
    with tarfile.open(KEPT) as kept:
        kept.extractall(tmp_path, filter="data")
    return tmp_path


def open_it(directory: Path) -> Store:
    """Open the store as the next start of its node does."""
    store = open_store(directory, "n1", SMALL, free_bytes_min=0)
    for channel in CONTENTS:
        store.tables.open_channel(channel, TableMachine())
    return store


def contents(store: Store) -> dict[Any, tuple[str, int, int]]:
    """Contents of the store, as in ``CONTENTS``."""
    hashes = {channel: store.tables.content_hash(channel) for channel in CONTENTS}
    return {channel: (digest.hex(), rows, seq) for channel, (digest, rows, seq) in hashes.items()}


def test_every_channel_gets_a_database_of_its_own_with_the_same_contents(directory: Path) -> None:
    """Nothing is rebuilt: rows, state and applied position are copied as they are."""
    for _ in range(2):
        store = open_it(directory)
        assert store.notes == ()
        assert contents(store) == CONTENTS
        assert store.tables.stored_channels() == tuple(sorted(CONTENTS))
        store.close(is_clean=True)
    left = {path.name for path in (directory / "tables").iterdir()}
    assert left == {channel.hex() for channel in CONTENTS} | {
        "raftstore-store",
        "raftstore-store.crc",
    }
    assert not (directory / "quarantine").exists()


@pytest.mark.parametrize("copied", [0, 1, 2])
def test_copy_that_was_interrupted_goes_on_at_the_next_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """The shared database stays until all channels have theirs; half a copy is begun again."""
    create, made = shared_database.create, 0

    def fail_after(*arguments: Any) -> Any:
        nonlocal made
        copy = create(*arguments)
        if made == copied:
            copy.put(b"half", b"a copy")
            copy.close()
            raise OSError("the process dies here")
        made += 1
        return copy

    with monkeypatch.context() as dying:
        dying.setattr(shared_database, "create", fail_after)
        with pytest.raises(OSError, match="dies here"):
            open_it(directory)
    assert (directory / "tables" / "CURRENT").exists()
    store = open_it(directory)
    assert contents(store) == CONTENTS
    assert not list((directory / "tables").glob("*.copying"))
    store.close(is_clean=True)


def test_stop_between_the_copy_and_the_removal_of_the_old_files_leaves_none(
    directory: Path,
) -> None:
    """CURRENT goes first: what is left of the shared database is never opened again."""
    (old,) = (directory / "tables").glob("*.ldb")
    data = old.read_bytes()
    open_it(directory).close(is_clean=True)
    old.write_bytes(data)
    store = open_it(directory)
    assert contents(store) == CONTENTS
    assert not old.exists()
    store.close(is_clean=True)


def test_damaged_shared_database_is_put_aside_and_built_again_from_the_log(directory: Path) -> None:
    """A log of that format holds all records."""
    (table,) = (directory / "tables").glob("*.ldb")
    flip_bit(table, 500)
    store = open_it(directory)
    assert any("built again from the log" in note for note in store.notes)
    assert store.tables.stored_channels() == ()
    assert (directory / "quarantine" / "tables-0000" / table.name).exists()
    assert store.log.open_channel(CHANNEL).last_seq == 103
    store.close(is_clean=True)


def test_older_version_finds_nothing_and_builds_the_tables_again(directory: Path) -> None:
    """Going back: it looks for CURRENT, and its log holds all records."""
    open_it(directory).close(is_clean=True)
    assert not (directory / "tables" / "CURRENT").exists()
    assert (table_path(directory) / "CURRENT").exists()
