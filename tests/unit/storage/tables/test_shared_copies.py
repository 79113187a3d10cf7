"""Copies out of a database that all tables shared: what is closed, synced and in which order."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import StorageError
from raftstore.storage.tables import shared_database
from raftstore.storage.tables.keys import DROPPING_PREFIX, STORE_ID
from raftstore.storage.tables.leveldb_database import create, share_of
from raftstore.storage.tables.shared_database import split_shared
from raftstore.types import ChannelId, channel_id
from tests.storage_helpers import CHANNEL, OTHER, SMALL

DROPPED = channel_id(b"dropped-table-id", 0)


class Noted:
    """A database, its batches and whether it is closed."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.batches: list[list[tuple[bytes, bytes]]] = []

    def write_batch(self) -> Any:
        """A batch whose pairs are noted when it is written."""
        return NotedBatch(self, self.database.write_batch())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


class NotedBatch:
    """Pairs of one batch."""

    def __init__(self, noted: Noted, batch: Any) -> None:
        self._noted = noted
        self._batch = batch
        self._pairs: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        """A pair."""
        self._pairs.append((key, value))
        self._batch.put(key, value)

    def write(self) -> None:
        """All of them."""
        self._noted.batches.append(self._pairs)
        self._batch.write()


def pairs_of(channel: ChannelId, count: int) -> list[tuple[bytes, bytes]]:
    """Pairs of 50 bytes with their keys."""
    return [
        (channel + b"%08d" % number, b"v" * (42 - len(channel))) for number in range(1, count + 1)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A shared database: seven pairs of one channel, one of another, some of a dropped one."""
    made = tmp_path / "tables"
    made.mkdir()
    database = create(made, SMALL, share_of(SMALL, 1))
    database.put(STORE_ID, b"whose it is")
    database.put(DROPPING_PREFIX + DROPPED, b"")
    for channel, count in ((CHANNEL, 7), (OTHER, 1), (DROPPED, 3)):
        for key, value in pairs_of(channel, count):
            database.put(key, value)
    database.close()
    return made


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    """The copies that are made, in order."""
    found: list[Noted] = []

    def creating(*arguments: Any) -> Any:
        found.append(Noted(create(*arguments)))
        return found[-1]

    monkeypatch.setattr(shared_database, "create", creating)
    return found


@pytest.mark.parametrize(
    ("batch_bytes", "sizes"),
    [(49, [1] * 7 + [0]), (50, [1] * 7 + [0]), (51, [2, 2, 2, 1]), (100, [2, 2, 2, 1]), (351, [7])],
)
def test_rows_are_copied_in_batches_of_bounded_size(
    path: Path,
    made: list[Noted],
    monkeypatch: pytest.MonkeyPatch,
    batch_bytes: int,
    sizes: list[int],
) -> None:
    """Keys and values count; all of a channel's pairs come as they are, and no other's."""
    monkeypatch.setattr(shared_database, "COPY_BATCH_BYTES", batch_bytes)
    split_shared(path, SMALL)
    assert [len(batch) for batch in made[0].batches] == sizes
    assert list(chain(*made[0].batches)) == pairs_of(CHANNEL, 7)
    assert list(chain(*made[1].batches)) == pairs_of(OTHER, 1)
    assert len(made) == 2
    names = {each.name for each in path.iterdir()}
    assert names == {CHANNEL.hex(), OTHER.hex()}
    again = shared_database.open_checked(path / CHANNEL.hex(), SMALL, share_of(SMALL, 1))
    assert list(again) == pairs_of(CHANNEL, 7)
    again.close()


def test_copies_share_the_memory_and_are_closed(
    path: Path, made: list[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LevelDB keeps its lock as long as one is open; the shared one is closed with them."""
    shares: list[Any] = []
    opened: list[Any] = []
    monkeypatch.setattr(
        shared_database,
        "share_of",
        lambda settings, databases: shares.append(databases) or share_of(settings, databases),
    )
    open_checked = shared_database.open_checked

    def opening(*arguments: Any) -> Any:
        opened.append(open_checked(*arguments))
        return opened[-1]

    monkeypatch.setattr(shared_database, "open_checked", opening)
    split_shared(path, SMALL)
    assert shares == [1, 2, 2]
    assert [copy.closed for copy in (*opened, *made)] == [True] * 3


def test_copy_that_fails_leaves_nothing_open(
    path: Path, made: list[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared database stays as it is, and is tried again at the next start."""
    opened: list[Any] = []
    open_checked = shared_database.open_checked

    def opening(*arguments: Any) -> Any:
        opened.append(open_checked(*arguments))
        return opened[-1]

    def fails(_batch: NotedBatch) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_database, "open_checked", opening)
    with monkeypatch.context() as full:
        full.setattr(NotedBatch, "write", fails)
        with pytest.raises((OSError, StorageError), match="No space"):
            split_shared(path, SMALL)
    assert [database.closed for database in (*opened, *made)] == [True, True]
    assert (path / f"{CHANNEL.hex()}.copying").is_dir()
    assert (path / "CURRENT").exists()
    split_shared(path, SMALL)
    assert {each.name for each in path.iterdir()} == {CHANNEL.hex(), OTHER.hex()}


def test_copies_are_durable_before_the_shared_database_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names are synced, then CURRENT goes and that is synced; the files are left to a later
    start if this one ends in between."""
    synced: list[tuple[str, bool, int]] = []

    class Syncs:
        def sync_directory(self, directory: Path) -> None:
            files = len(list(directory.glob("MANIFEST-*")))
            synced.append((directory.name, (directory / "CURRENT").exists(), files))

    monkeypatch.setattr(shared_database, "FileOps", Syncs)
    split_shared(path, SMALL)
    assert synced == [("tables", True, 1), ("tables", False, 1)]
    split_shared(path, SMALL)
    assert len(synced) == 2


def test_channel_that_has_its_database_is_not_copied_again(path: Path, made: list[Noted]) -> None:
    """A stop came after its copy; another one of which a part was copied begins anew."""
    (path / CHANNEL.hex()).mkdir()
    half = path / f"{OTHER.hex()}.copying"
    half.mkdir()
    (half / "CURRENT").write_bytes(b"half")
    split_shared(path, SMALL)
    assert [list(chain(*copy.batches)) for copy in made] == [pairs_of(OTHER, 1)]
    assert list((path / CHANNEL.hex()).iterdir()) == []
    assert not half.exists()
