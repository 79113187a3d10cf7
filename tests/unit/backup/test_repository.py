"""Where backups lie: a directory, or what fsspec knows. Both behave the same."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftstore.backup import repository
from raftstore.backup.manifest import DataFile, encode_manifest, manifest_path
from raftstore.backup.repository import Repository
from raftstore.errors import ArgumentError, BackupError, ConfigError
from tests.unit.backup.test_manifest import MANIFEST

OLDER = msgspec.structs.replace(MANIFEST, id="20251123T152235123Z-1a2b3c")


@pytest.fixture(params=["directory", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place of each sort."""
    if request.param == "memory":
        return f"memory://backups-{secrets.token_hex(4)}"
    return str(tmp_path / "b") if request.param == "directory" else f"file://{tmp_path}/b"


def test_place_that_nobody_used_has_no_backups(url: str) -> None:
    """A call that wants the newest one says so."""
    place = Repository(url)
    assert place.ids() == []
    with pytest.raises(BackupError, match="there is no backup in"):
        place.manifest()


def test_backups_are_listed_by_age_and_the_newest_is_found(url: str) -> None:
    """The order in which they were added does not matter."""
    place = Repository(url)
    place.add(MANIFEST)
    place.add(OLDER)
    assert place.ids() == [OLDER.id, MANIFEST.id]
    assert place.manifest().id == MANIFEST.id
    assert place.manifest(OLDER.id).id == OLDER.id


@pytest.mark.parametrize("wanted", ["20261123T152235123Z-ffffff", "../x", ""])
def test_backup_that_is_not_there_is_named(url: str, wanted: str) -> None:
    """The same goes for texts that can be no name of a backup."""
    place = Repository(url)
    place.add(MANIFEST)
    with pytest.raises(BackupError, match="there is no backup"):
        place.manifest(wanted)


def test_file_is_written_once_and_comes_back(url: str) -> None:
    """Its name is its content's; a second backup writes it not again unless it is asked to."""
    place = Repository(url)
    file, written = place.put(b"rows", 1, again=False)
    assert (written, file.bytes, file.rows) == (4, 4, 1)
    assert place.get(file) == b"rows"
    assert place.put(b"rows", 1, again=False) == (file, 0)
    assert place.put(b"rows", 1, again=True) == (file, 4)


def test_file_of_another_size_is_written_again(url: str) -> None:
    """As a killed copy of the place may have left it."""
    place = Repository(url)
    file, _ = place.put(b"rows", 1, again=False)
    place._files.write(file.path, b"ro")
    assert not place.has(file)
    assert place.put(b"rows", 1, again=False) == (file, 4)


def test_damaged_file_is_named_with_both_hashes(url: str) -> None:
    """A flipped bit is found before a row of it is used."""
    place = Repository(url)
    file, _ = place.put(b"rows", 1, again=False)
    place._files.write(file.path, b"rowt")
    with pytest.raises(BackupError, match=rf"{file.path} is damaged: .* says {file.sha256}"):
        place.get(file)


def test_missing_file_is_named(url: str) -> None:
    """It is not taken for an empty one."""
    with pytest.raises(BackupError, match=r"data/ab/x\.parquet is missing"):
        Repository(url).get(DataFile("data/ab/x.parquet", "x", 1, 1))


def test_damaged_manifest_hides_no_other_backup(url: str) -> None:
    """It is listed with what is wrong, and passed over by name only."""
    place = Repository(url)
    place.add(OLDER)
    place._files.write(manifest_path(MANIFEST.id), b"{")
    (first, one), (second, other) = place.manifests()
    assert (first, second) == (OLDER.id, MANIFEST.id)
    assert not isinstance(one, BackupError)
    assert isinstance(other, BackupError)


def test_manifest_under_the_name_of_another_backup_is_refused(url: str) -> None:
    """A copy that was renamed by hand would be restored as what it is not."""
    place = Repository(url)
    place._files.write(manifest_path(OLDER.id), encode_manifest(MANIFEST))
    with pytest.raises(BackupError, match=f"is of backup {MANIFEST.id}"):
        place.manifest(OLDER.id)


def test_backup_that_is_cut_off_while_it_is_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest gets its name when all of it is on the disk."""
    place = Repository(str(tmp_path))

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(repository.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        place.add(MANIFEST)
    monkeypatch.undo()
    assert place.ids() == []
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []


@pytest.mark.parametrize("given", ["", None, 7])
def test_what_is_no_place_is_refused(given: Any) -> None:
    """Before anything is read."""
    with pytest.raises(ArgumentError, match="url="):
        Repository(given)


def test_file_system_that_fsspec_does_not_know_is_refused() -> None:
    """With its name and the reason."""
    with pytest.raises(ConfigError, match="nowhere://x' cannot be used"):
        Repository("nowhere://x")


def test_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A file in its place, as after a wrong path."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BackupError, match="cannot be used"):
        Repository(str(tmp_path / "file")).add(MANIFEST)


def test_file_is_durable_with_its_name_when_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was removed is gone for good, too: a power loss brings neither back."""
    synced: list[int] = []
    sync = os.fsync

    def note(opened: int) -> None:
        synced.append(os.fstat(opened).st_ino)
        sync(opened)

    monkeypatch.setattr(os, "fsync", note)
    place = Repository(str(tmp_path))
    file, _ = place.put(b"content", 1, again=False)
    path = tmp_path / file.path
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]
    place.remove(file.path)
    assert synced[2:] == [path.parent.stat().st_ino]
