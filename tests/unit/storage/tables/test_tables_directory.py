"""The directory of the tables by itself: what is opened, put aside, removed and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import plyvel
import pytest

from raftstore.config import StorageSettings
from raftstore.errors import DiskFullError, PersistError, StorageError, StoreIdentityError
from raftstore.storage.tables import tables_directory
from raftstore.storage.tables.generations import (
    COMPLETE_NAME,
    Generation,
    encode_complete,
    generation_of,
    path_of,
)
from raftstore.storage.tables.leveldb_database import share_of
from raftstore.storage.tables.tables_directory import (
    CHANNEL_REBUILD_NAME,
    REBUILD_NAME,
    TablesDirectory,
    ask_for_rebuild,
    channels_in,
)
from raftstore.types import ChannelId, History, Seq, Term, channel_id
from tests.noting_files import NotingFiles
from tests.storage_helpers import CHANNEL, OTHER, SMALL, STORE_UUID

OWNER = STORE_UUID.hex().encode()
THIRD = channel_id(b"orders-table-id!", 2)


@pytest.fixture
def home(tmp_path: Path) -> TablesDirectory:
    """A new directory without any database."""
    data = tmp_path / "data"
    data.mkdir()
    TablesDirectory.create(data, STORE_UUID, SMALL)
    return TablesDirectory(data, STORE_UUID, SMALL)


def opened(home: TablesDirectory) -> list[ChannelId]:
    """Open all databases and close them again."""
    found = home.open()
    for database in found.values():
        database.close()
    return list(found)


def add(home: TablesDirectory, *channels: ChannelId) -> None:
    """A database for each, with a row."""
    for channel in channels:
        database = home.create_channel(home.place(channel), len(channels))
        database.put(b"key", b"value")
        database.close()


def test_each_table_that_is_opened_is_told(home: TablesDirectory) -> None:
    """A start with thousands of them takes long, and says how far it is."""
    add(home, *(channel_id(bytes(16), number) for number in range(3)))
    told: list[tuple[int, int]] = []
    for database in home.open(lambda done, total: told.append((done, total))).values():
        database.close()
    assert told == [(1, 3), (2, 3), (3, 3)]


def aside(home: TablesDirectory) -> Path:
    """Where damaged tables are."""
    return home.path.parent / "quarantine"


# --- making it ------------------------------------------------------------------------------------


def test_new_directory_says_whose_it_is_and_is_durable(tmp_path: Path) -> None:
    """The checksum comes first: an owner without one would look like the first version's."""
    data = tmp_path / "data"
    data.mkdir()
    home = TablesDirectory(data, STORE_UUID, SMALL)
    files = NotingFiles()
    home._ops = files
    home.begin()
    assert files.changes == [
        "make tables",
        "create raftstore-store.crc",
        "sync raftstore-store.crc",
        "sync tables/",
        "create raftstore-store",
        "sync raftstore-store",
        "sync tables/",
        "sync data/",
    ]
    assert (home.path / "raftstore-store").read_bytes() == OWNER
    assert len((home.path / "raftstore-store.crc").read_bytes()) == 9
    assert opened(home) == []
    assert home.rebuilt == {}


def test_copied_table_counts_durably_before_the_one_it_replaces_is_removed(
    home: TablesDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6.4: a process that was killed while it made the file that switches tables left a name that
    a power cut would take back."""
    add(home, CHANNEL)
    copied = home.path / Generation(CHANNEL, 1).name
    home.create_channel(copied, 1).close()
    (copied / COMPLETE_NAME).write_bytes(encode_complete(CHANNEL, History(Term(1), Seq(1))))
    again = TablesDirectory(home.path.parent, STORE_UUID, SMALL)
    files = again._ops = NotingFiles()
    removed: list[Path] = []

    def remove(path: Path) -> None:
        assert files.changes == ["sync tables/", f"sync {copied.name}/"]
        removed.append(path)

    monkeypatch.setattr(again, "_remove", remove)
    assert opened(again) == [CHANNEL]
    assert removed == [home.path / Generation(CHANNEL, 0).name]


def test_databases_are_opened_in_the_order_of_their_channels(home: TablesDirectory) -> None:
    """Only directories that are named as one: in hex, in small letters, of the length of an id."""
    add(home, THIRD, CHANNEL, OTHER)
    for name in ("notes", CHANNEL.hex().upper().replace("6F", "6f"), "zz" * len(CHANNEL), "ab"):
        (home.path / name).mkdir(exist_ok=True)
    (home.path / channel_id(b"orders-table-id!", 3).hex()).touch()
    assert opened(home) == [CHANNEL, OTHER, THIRD]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (CHANNEL.hex(), 0),
        (f"{CHANNEL.hex()}.g7", 7),
        (f"{CHANNEL.hex()}.g07", None),
        (f"{CHANNEL.hex()}.g0", None),
        (f"{CHANNEL.hex()}.g", None),
        (f"{CHANNEL.hex()}.gx", None),
        (f"{CHANNEL.hex()}.g1.removing", None),
        (CHANNEL.hex()[:-2], None),
        (f"{CHANNEL.hex()}00", None),
        ("zz" * len(CHANNEL), None),
        ("AB" * len(CHANNEL), None),
    ],
)
def test_name_tells_channel_and_generation(name: str, number: int | None) -> None:
    """One name for each, and anything else is no database."""
    expected = None if number is None else Generation(CHANNEL, number)
    assert generation_of(Path("somewhere") / name) == expected
    assert expected is None or expected.name == name


def test_databases_of_a_stopped_node_are_counted(home: TablesDirectory, tmp_path: Path) -> None:
    """0 for a directory that is none: opening it says more."""
    add(home, THIRD, CHANNEL)
    assert channels_in(home.path.parent) == 2
    assert channels_in(tmp_path) == 0


def test_databases_share_the_memory(home: TablesDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its part of what the settings allow for as many as there are."""
    home._settings = settings = StorageSettings(
        write_buffer_bytes=8 << 20, block_cache_bytes=8 << 20
    )
    shares: list[Any] = []
    for name in ("create", "open_checked"):
        real = getattr(tables_directory, name)

        def noted(path: Path, given: Any, share: Any, *, real: Any = real) -> Any:
            shares.append(share)
            return real(path, given, share)

        monkeypatch.setattr(tables_directory, name, noted)
    home.create_channel(home.place(CHANNEL), 0).close()
    home.create_channel(home.place(OTHER), 2).close()
    assert shares == [share_of(settings, 1), share_of(settings, 2)]
    shares.clear()
    assert len(opened(home)) == 2
    assert shares == [share_of(settings, 2)] * 2
    home.remove_channel(OTHER)
    shares.clear()
    assert len(opened(home)) == 1
    assert shares == [share_of(settings, 1)]


def test_database_that_is_there_already_is_not_made_again(home: TablesDirectory) -> None:
    """S0.4: the store is not to be used any more; ours is the error that says so."""
    add(home, CHANNEL)
    with pytest.raises(StorageError, match=r"LevelDB failed: .*the node stops"):
        home.create_channel(home.place(CHANNEL), 1)


# --- removing -------------------------------------------------------------------------------------


def test_removed_database_is_gone_with_its_bytes(home: TablesDirectory) -> None:
    """Others stay; one that is not there is none."""
    add(home, CHANNEL, OTHER)
    home.remove_channel(CHANNEL)
    home.remove_channel(THIRD)
    names = {path.name for path in home.path.iterdir()}
    assert names == {OTHER.hex(), "raftstore-store", "raftstore-store.crc"}
    assert opened(home) == [OTHER]


def test_removal_that_fails_names_the_table(
    home: TablesDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4: and the database is not found under its name any more, however far it got."""
    add(home, CHANNEL)

    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error")

    path = path_of(home.path.parent, CHANNEL)
    with monkeypatch.context() as broken:
        broken.setattr(tables_directory.shutil, "rmtree", refuse)
        expected = f"^removing the table of a dropped channel failed on {path}: Input/output"
        with pytest.raises(PersistError, match=expected):
            home.remove_channel(CHANNEL)
    assert not path.exists()
    assert opened(home) == []
    assert {each.name for each in home.path.iterdir()} == {"raftstore-store", "raftstore-store.crc"}


# --- whose it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "checksum", "result"),
    [
        (OWNER, None, "as before"),
        (OWNER, b"", "as before"),
        (OWNER, b"00000000\n", "as before"),
        (b"", None, "built again"),
        (b"", b"", "built again"),
        (OWNER[:-1], None, "another store"),
        (OWNER[:-1], b"same", "built again"),
        (b"f" * 32, None, "another store"),
        (b"f" * 32, b"", "another store"),
        (b"f" * 32, b"same", "built again"),
        (b"f" * 32, b"its own", "another store"),
    ],
)
def test_owner_and_its_checksum_are_judged_together(
    home: TablesDirectory, owner: bytes, checksum: bytes | None, result: str
) -> None:
    """S0.1: a damaged name is healed, the tables of another store are not touched; the first
    version had no checksum."""
    add(home, CHANNEL)
    file, beside = home.path / "raftstore-store", home.path / "raftstore-store.crc"
    before = beside.read_bytes()
    file.write_bytes(owner)
    if checksum == b"its own":
        checksum = f"{tables_directory.crc32(owner):08x}\n".encode()
    if checksum is None:
        beside.unlink()
    elif checksum != b"same":
        beside.write_bytes(checksum)
    if result == "another store":
        expected = f"holds the tables of store {owner.decode()}, not of {STORE_UUID.hex()};"
        with pytest.raises(StoreIdentityError, match=expected):
            home.open()
        assert file.read_bytes() == owner
        assert not aside(home).exists()
        return
    assert opened(home) == ([CHANNEL] if result == "as before" else [])
    assert file.read_bytes() == OWNER
    assert beside.read_bytes() == before
    reasons = {"all tables": f"{home.path} does not say whose tables it holds"}
    assert home.rebuilt == ({} if result == "as before" else reasons)


# --- all tables -----------------------------------------------------------------------------------


def emptied(home: TablesDirectory) -> str:
    """The directory of the tables is there and has nothing in it."""
    for path in home.path.iterdir():
        path.unlink()
    return f"{home.path} is missing or empty"


def missing(home: TablesDirectory) -> str:
    """It is not there."""
    emptied(home)
    home.path.rmdir()
    return f"{home.path} is missing or empty"


def asked(home: TablesDirectory) -> str:
    """A read of the node that ran last has found damage."""
    ask_for_rebuild(home.path.parent, None, "LevelDB failed")
    return "LevelDB failed"


@pytest.mark.parametrize("damage", [emptied, missing, asked])
def test_all_tables_begin_anew(
    home: TablesDirectory, damage: Callable[[TablesDirectory], str]
) -> None:
    """They are put aside whole, with the reason; the request for it is gone then."""
    reason = damage(home)
    files = NotingFiles()
    home._ops = files
    was_there = home.path.exists()
    assert opened(home) == []
    assert home.rebuilt == {"all tables": reason}
    if was_there:
        assert files.changes[:3] == ["make quarantine", "sync data/", "make tables"]
        assert (aside(home) / "tables-0000").is_dir()
    else:
        assert files.changes[0] == "make tables"
        assert not aside(home).exists()
    assert not (home.path.parent / REBUILD_NAME).exists()
    again = TablesDirectory(home.path.parent, STORE_UUID, SMALL)
    assert opened(again) == []
    assert again.rebuilt == {}


def test_reason_is_remembered_until_all_is_begun(
    home: TablesDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between: the next start goes on with the same reason."""
    reason = emptied(home)

    def killed(self: TablesDirectory) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killing:
        killing.setattr(TablesDirectory, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            home.open()
    assert (home.path.parent / REBUILD_NAME).read_text() == reason
    assert opened(home) == []
    assert home.rebuilt == {"all tables": reason}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (plyvel.CorruptionError(b"bad block"), None),
        (plyvel.IOError(b"IO error: No space left on device"), DiskFullError),
        (plyvel.IOError(b"IO error: lock: Resource temporarily unavailable"), StorageError),
    ],
)
def test_tables_of_an_older_version_that_cannot_be_opened(
    home: TablesDirectory,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: type[Exception] | None,
) -> None:
    """Damage has them built again; circumstances are reported and change nothing."""
    add(home, CHANNEL)

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(tables_directory, "split_shared", fails)
    if expected is None:
        assert opened(home) == []
        assert home.rebuilt == {"all tables": f"LevelDB reports: {error}"}
        return
    with pytest.raises(expected, match=str(home.path)) as raised:
        home.open()
    assert type(raised.value) is expected
    assert not aside(home).exists()


# --- one table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "is_kept"),
    [
        ({}, False),
        ({"MANIFEST-000001": b"begun", "LOCK": b""}, False),
        ({"000003.log": b""}, False),
        ({"000003.log": b"rows"}, True),
        ({"000003.log": b"", "000004.log": b"rows"}, True),
        ({"000005.ldb": b"rows"}, True),
        ({"000005.ldb": b""}, True),
    ],
)
def test_database_without_current_is_begun_or_damaged(
    home: TablesDirectory, files: dict[str, bytes], is_kept: bool
) -> None:
    """A stop while LevelDB made it leaves no rows, so nothing is reported of it; else it is
    damage."""
    path = path_of(home.path.parent, CHANNEL)
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    add(home, OTHER)
    assert opened(home) == [OTHER]
    assert not path.exists()
    assert aside(home).exists() == is_kept
    reasons = {f"channel {CHANNEL.hex()}": f"{path} has no CURRENT"}
    assert home.rebuilt == (reasons if is_kept else {})


def test_damaged_database_is_put_aside_with_its_reason(home: TablesDirectory) -> None:
    """Asked for by a read of the node that ran last: durable, and reported once."""
    add(home, CHANNEL, OTHER)
    ask_for_rebuild(home.path.parent, CHANNEL, "a block is damaged")
    files = NotingFiles()
    home._ops = files
    assert opened(home) == [OTHER]
    assert home.rebuilt == {f"channel {CHANNEL.hex()}": "a block is damaged"}
    assert files.changes == ["sync tables/", "make quarantine", "sync tables/"]
    place = aside(home) / f"tables-{CHANNEL.hex()}-0000"
    assert (place / CHANNEL_REBUILD_NAME).read_text() == "a block is damaged"
    assert (place / "CURRENT").exists()
    again = TablesDirectory(home.path.parent, STORE_UUID, SMALL)
    assert opened(again) == [OTHER]
    assert again.rebuilt == {}


def test_reason_that_leveldb_gives_is_told(
    home: TablesDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note lies beside the files that are put aside, for inspection."""
    add(home, CHANNEL)

    def damaged(*_: Any) -> None:
        raise plyvel.CorruptionError(b"bad block")

    monkeypatch.setattr(tables_directory, "open_checked", damaged)
    assert opened(home) == []
    (reason,) = home.rebuilt.values()
    assert reason.startswith("LevelDB reports: ")
    (place,) = aside(home).iterdir()
    assert (place / CHANNEL_REBUILD_NAME).read_text() == reason


def test_asking_for_a_rebuild_never_fails(tmp_path: Path) -> None:
    """The disk may be why it is asked for; the next start finds the damage by itself then."""
    ask_for_rebuild(tmp_path / "gone", None, "reason")
    ask_for_rebuild(tmp_path / "gone", CHANNEL, "reason")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_removals_and_copies_are_removed(home: TablesDirectory) -> None:
    """Whole directories with what is in them, and nothing else."""
    add(home, CHANNEL)
    for name in (f"{OTHER.hex()}.removing", f"{OTHER.hex()}.copying", "kept.removing.not"):
        (home.path / name).mkdir()
        (home.path / name / "file").touch()
    assert opened(home) == [CHANNEL]
    names = {path.name for path in home.path.iterdir() if path.is_dir()}
    assert names == {CHANNEL.hex(), "kept.removing.not"}
