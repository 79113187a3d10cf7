"""Removing backups: their manifests, then the files of rows that no manifest names any more.

A backup lists all of its files, so none needs another one, and any of them may go. In this order a
removal that is stopped leaves no backup without its files, and is finished by the next one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from raftstore.backup.claims import removal
from raftstore.backup.manifest import DataFile, Manifest
from raftstore.backup.repository import UNFINISHED, Repository
from raftstore.errors import ArgumentError, BackupError

_OURS: Final = re.compile(
    rf"[0-9a-f]{{64}}\.parquet(\.[0-9a-f]+{re.escape(UNFINISHED)})?", re.ASCII
)
"""Names of files that a creation makes; others are left alone."""


class Removed(NamedTuple):
    """The result of ``remove_backups``."""

    backups: tuple[str, ...]
    files: int
    """Files of rows that no backup names any more."""
    bytes: int


def remove_backups(url: str, backups: Sequence[str] = (), *, force: bool = False) -> Removed:
    """Remove these backups, and all files of rows that none of the others needs.

    Without ``backups`` only such files go, which creations and removals leave that were stopped.
    BackupError, and nothing is removed: one of them does not exist, another backup cannot be read,
    so that its files are not known, or one is being created. ``force``: no other process creates or
    removes backups there, whatever it looks like.
    """
    if isinstance(backups, str):
        raise ArgumentError(f"backups={backups!r:.80} is one id; give a list of ids")
    place = Repository(url)
    chosen = tuple(dict.fromkeys(backups))
    with removal(place, force=force):
        kept = {file.path for each in _others(place, chosen) for file in _files(each)}
        for backup in chosen:
            place.remove_manifest(backup)
        files = size = 0
        for path in place.data_paths():
            if path not in kept and _OURS.fullmatch(path.rpartition("/")[2]):
                size += place.size(path) or 0
                files += 1
                place.remove(path)
    return Removed(chosen, files, size)


def freed_by_each(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Id -> bytes of the files that no other one of these backups has: what removing it frees."""
    known = list(manifests)
    sizes = {each.id: {file.path: file.bytes for file in _files(each)} for each in known}
    named = Counter(path for paths in sizes.values() for path in paths)
    return {
        backup: sum(size for path, size in paths.items() if named[path] == 1)
        for backup, paths in sizes.items()
    }


def _files(manifest: Manifest) -> Iterator[DataFile]:
    return iter(manifest.files)


def _others(place: Repository, chosen: Sequence[str]) -> list[Manifest]:
    """The backups that stay."""
    found = dict(place.manifests())
    if renamed := place.renamed():
        raise BackupError(
            f"nothing was removed: {place.url}/backups/{renamed[0]} has a manifest and no id of a "
            "backup as its name, so its files would go, too; give it back the name that the "
            "manifest has as its id, or take it out of backups/"
        )
    for backup in chosen:
        if backup not in found:
            known = ", ".join(found) or "none"
            raise BackupError(
                f"there is no backup {backup!r:.60} in {place.url}; there are: {known}"
            )
    others: list[Manifest] = []
    for backup, manifest in found.items():
        if backup in chosen:
            continue
        if isinstance(manifest, BackupError):
            raise BackupError(
                f"nothing was removed: backup {backup} cannot be read, so its files are not known "
                f"({manifest}); if it is of no use any more, remove it, too"
            ) from manifest
        others.append(manifest)
    return others
