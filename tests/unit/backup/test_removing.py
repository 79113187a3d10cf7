"""Removing backups: what the others need stays, and a backup that is being made loses nothing."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import msgspec
import pytest

from raftstore.backup import aio, freed_by_each, remove_backups
from raftstore.backup.claims import FOLDER, Claim, creation
from raftstore.backup.manifest import FORMAT, DataFile, Manifest, manifest_path
from raftstore.backup.repository import Repository
from raftstore.errors import ArgumentError, BackupError
from tests.unit.backup.test_manifest import MANIFEST, TABLE

FIRST, SECOND, THIRD = (f"2026112{day}T152235123Z-1a2b3c" for day in (1, 2, 3))


@pytest.fixture(params=["directory", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """A place of each sort, with three backups: the first two share a file, the last two another
    one, and each has one of its own."""
    is_memory = request.param == "memory"
    url = f"memory://removed-{secrets.token_hex(4)}" if is_memory else str(tmp_path / "b")
    place = Repository(url)
    made = {name: place.put(name, 1, again=False)[0] for name in (b"12", b"23", b"1", b"2", b"3")}
    for backup in (FIRST, SECOND, THIRD):
        number = b"%d" % (1 + (FIRST, SECOND, THIRD).index(backup))
        add(place, backup, *(file for name, file in made.items() if number in name))
    return place


def add(place: Repository, backup: str, *files: DataFile) -> Manifest:
    """Add a backup with these files."""
    partitions = (
        msgspec.structs.replace(TABLE.partitions[0], files=files),
        TABLE.partitions[1],
    )
    table = msgspec.structs.replace(TABLE, partitions=partitions)
    manifest = msgspec.structs.replace(MANIFEST, id=backup, tables=(table,))
    place.add(manifest)
    return manifest


def contents(place: Repository) -> set[bytes]:
    """Contents of the files of rows."""
    return {place.read(path) for path in place.data_paths()}


def is_whole(place: Repository, backup: str) -> bool:
    """Whether the backup has all of its files."""
    return all(place.has(file) for table in place.manifest(backup).tables for file in table.files)


def test_removed_backup_takes_only_files_with_it_that_no_other_one_needs(place: Repository) -> None:
    """A later one that was made with it as its base stays whole, too."""
    done = remove_backups(place.url, [FIRST])
    assert done == ((FIRST,), 1, 1)
    assert place.ids() == [SECOND, THIRD]
    assert is_whole(place, SECOND)
    assert is_whole(place, THIRD)
    assert remove_backups(place.url, [THIRD, THIRD]).backups == (THIRD,)
    assert contents(place) == {b"12", b"23", b"2"}
    assert remove_backups(place.url, [SECOND]) == ((SECOND,), 3, 5)
    assert (place.ids(), contents(place), place.names(FOLDER)) == ([], set(), [])


def test_what_each_frees_is_what_only_it_has(place: Repository) -> None:
    """The sum is less than all bytes, for nobody frees what is shared."""
    manifests = [place.manifest(backup) for backup in place.ids()]
    assert freed_by_each(manifests) == {FIRST: 1, SECOND: 1, THIRD: 1}
    assert freed_by_each(manifests[:1]) == {FIRST: 3}


def test_backup_that_is_not_there_is_named_and_nothing_is_removed(place: Repository) -> None:
    """The one that is there stays, too; a text instead of a list is no list of letters."""
    with pytest.raises(BackupError, match=rf"no backup 'x' in .*; there are: {FIRST}, {SECOND}"):
        remove_backups(place.url, [FIRST, "x"])
    with pytest.raises(ArgumentError, match="is one id; give a list"):
        remove_backups(place.url, FIRST)
    assert len(place.ids()) == 3
    assert place.names(FOLDER) == []


def test_backup_that_cannot_be_read_keeps_all_files(place: Repository) -> None:
    """It may need any of them, until it is removed itself."""
    place.write(manifest_path(SECOND), b"{")
    for chosen in ([FIRST], []):
        with pytest.raises(BackupError, match=rf"{SECOND} cannot be read, so its files are not"):
            remove_backups(place.url, chosen)
    newer = msgspec.json.encode({"format": FORMAT + 1})
    place.write(manifest_path(SECOND), newer)
    with pytest.raises(BackupError, match="use the raftstore version"):
        remove_backups(place.url, [FIRST])
    assert (len(place.ids()), len(contents(place))) == (3, 5)
    remove_backups(place.url, [SECOND])
    assert contents(place) == {b"12", b"23", b"1", b"3"}


def test_renamed_backup_keeps_all_files_until_it_is_taken_away(place: Repository) -> None:
    """It is in no list, and somebody meant to keep it."""
    place.write("backups/keep-this/manifest.json", place.read(manifest_path(SECOND)))
    place.remove_manifest(SECOND)
    for chosen in ([FIRST], []):
        with pytest.raises(BackupError, match="backups/keep-this has a manifest and no id"):
            remove_backups(place.url, chosen)
    assert (place.ids(), len(contents(place))) == ([FIRST, THIRD], 5)
    place.remove("backups/keep-this/manifest.json")
    remove_backups(place.url)
    assert contents(place) == {b"12", b"23", b"1", b"3"}


def test_removal_that_was_stopped_is_finished_by_the_next_one(
    place: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup goes first, so none is ever without its files. Files of others are left alone."""
    place.write("data/12/notes.txt", b"somebody's")
    remove = Repository.remove

    def stop(self: Repository, path: str) -> None:
        if path.startswith("data"):
            raise KeyboardInterrupt
        remove(self, path)

    monkeypatch.setattr(Repository, "remove", stop)
    with pytest.raises(KeyboardInterrupt):
        remove_backups(place.url, [FIRST])
    monkeypatch.undo()
    assert (place.ids(), len(contents(place))) == ([SECOND, THIRD], 6)
    assert remove_backups(place.url) == ((), 1, 1)
    assert contents(place) == {b"12", b"23", b"2", b"3", b"somebody's"}


def test_nothing_is_removed_while_a_backup_is_made(place: Repository) -> None:
    """It goes on with files that are there; the refusal says whose they are."""
    with creation(place) as claim:
        place.put(b"new", 1, again=False)
        with pytest.raises(BackupError, match=r"has not ended \(backup create, begun .*, process"):
            remove_backups(place.url, [FIRST])
        assert claim.is_there()
    assert place.ids() == [FIRST, SECOND, THIRD]
    assert b"new" in contents(place)
    remove_backups(place.url)
    assert b"new" not in contents(place)


def test_no_backup_is_made_while_some_are_removed(place: Repository) -> None:
    """The one of the two that looks last gives up; a dead one is put away with force only."""
    dead, other = Claim(place, "rm"), Claim(place, "create")
    with (
        pytest.raises(BackupError, match="are being removed"),
        creation(place),
    ):
        raise AssertionError("it was begun")
    with pytest.raises(BackupError, match="with --force"):
        remove_backups(place.url)
    assert dead.is_there()
    remove_backups(place.url, force=True)
    assert (dead.is_there(), other.is_there()) == (False, False)
    with creation(place) as claim:
        remove_backups(place.url, force=True)
        assert not claim.is_there()


def test_asyncio_removes_them_too(place: Repository) -> None:
    """In a thread."""
    assert asyncio.run(aio.remove_backups(place.url, [FIRST])).backups == (FIRST,)
    assert place.ids() == [SECOND, THIRD]
