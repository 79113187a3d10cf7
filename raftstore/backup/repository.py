"""Where backups lie: a directory, or any place that fsspec knows (``s3://…``, ``memory://…``).

Every file appears under its name as a whole: in a directory by renaming what was synced, elsewhere
because stores of objects work so. Files are never changed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from raftstore.backup.manifest import (
    BACKUP_ID,
    DataFile,
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_path,
    path_of,
)
from raftstore.client.arguments import text
from raftstore.errors import BackupError, ConfigError

UNFINISHED: Final = ".unfinished"
"""Behind the name of a file that is being written."""


Result = TypeVar("Result")


class _Files(Protocol):
    """Whole files by their paths."""

    def read(self, path: str) -> bytes:
        """Return the content; raises FileNotFoundError."""

    def size(self, path: str) -> int | None:
        """Return the number of bytes; None if there is no such file."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file that appears as a whole or not at all."""

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, none if there is no such folder."""

    def remove(self, path: str) -> None:
        """Remove a file, for good when this returns; there may be none of that name."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder if nothing is in it, where folders are more than parts of names."""


class _Directory:
    """Files below a directory of this machine, or one that is mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def size(self, path: str) -> int | None:
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"{target.name}.{secrets.token_hex(4)}{UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)

    def names(self, path: str) -> list[str]:
        folder = self._root / path
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []

    def remove(self, path: str) -> None:
        target = self._root / path
        with suppress(FileNotFoundError):
            target.unlink()
            _sync_folder(target.parent)

    def remove_folder(self, path: str) -> None:
        with suppress(OSError):  # something is in it
            (self._root / path).rmdir()


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class _Elsewhere:
    """Files in a file system of fsspec."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"{url!r:.80} needs fsspec: pip install 'raftstore[backup]', or name a directory"
            ) from error
        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{url!r:.80} cannot be used: {error}") from error

    def read(self, path: str) -> bytes:
        content: bytes = self._system.cat_file(self._at(path))
        return content

    def size(self, path: str) -> int | None:
        try:
            self._system.invalidate_cache()
            size: int = self._system.info(self._at(path))["size"]
        except FileNotFoundError:
            return None
        return size

    def write(self, path: str, content: bytes) -> None:
        target = self._at(path)
        self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._system.pipe_file(target, content)

    def names(self, path: str) -> list[str]:
        self._system.invalidate_cache()
        try:
            found: list[Any] = self._system.ls(self._at(path), detail=False)
        except FileNotFoundError:
            return []
        return [str(each).rstrip("/").rpartition("/")[2] for each in found]

    def remove(self, path: str) -> None:
        self._system.invalidate_cache()
        with suppress(FileNotFoundError):
            self._system.rm_file(self._at(path))

    def remove_folder(self, path: str) -> None:
        """Stores of objects have none."""

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"


class Repository:
    """The backups of one place. Every method raises BackupError when the place cannot be used."""

    def __init__(self, url: str) -> None:
        """``url``: a directory, or what fsspec takes; ConfigError for what cannot be used."""
        self.url = text("url", url)
        parts = urlsplit(url)
        self._files: _Files
        if "://" not in url:
            self._files = _Directory(Path(url))
        elif parts.scheme == "file" and parts.netloc in ("", "localhost"):
            self._files = _Directory(Path(unquote(parts.path)))
        else:
            self._files = _Elsewhere(url)

    # --- backups ----------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Return the ids of all backups, the oldest first. What has no manifest is none."""
        found = self.names("backups")
        named = sorted(name for name in found if BACKUP_ID.fullmatch(name))
        return [name for name in named if self.size(manifest_path(name)) is not None]

    def renamed(self) -> list[str]:
        """Return the names of folders with a manifest that are no ids: somebody renamed or copied a
        backup, which cannot be used so, but still names its files."""
        found = (name for name in self.names("backups") if not BACKUP_ID.fullmatch(name))
        return sorted(name for name in found if self.size(manifest_path(name)) is not None)

    def manifest(self, backup_id: str | None = None) -> Manifest:
        """Return the manifest of a backup; None: of the newest one."""
        if backup_id is None:
            ids = self.ids()
            if not ids:
                raise BackupError(f"there is no backup in {self.url}; make one with backup create")
            backup_id = ids[-1]
        path = manifest_path(backup_id)
        if not BACKUP_ID.fullmatch(backup_id) or self.size(path) is None:
            raise BackupError(
                f"there is no backup {backup_id!r:.60} in {self.url}; backup ls lists them"
            )
        manifest = decode_manifest(self.read(path), f"{self.url}: {path}")
        if manifest.id != backup_id:
            raise BackupError(f"{self.url}: {path} is of backup {manifest.id}; use another one")
        return manifest

    def manifests(self) -> Iterator[tuple[str, Manifest | BackupError]]:
        """Iterate over all backups, the oldest first; an error where a manifest is damaged."""
        for backup_id in self.ids():
            try:
                yield backup_id, self.manifest(backup_id)
            except BackupError as error:
                yield backup_id, error

    def add(self, manifest: Manifest) -> None:
        """Make the backup exist. All its files are there."""
        path = manifest_path(manifest.id)
        self.write(path, encode_manifest(manifest))

    def remove_manifest(self, backup_id: str) -> None:
        """Make the backup exist no more. Its files of rows stay."""
        path = manifest_path(backup_id)
        self.remove(path)
        self._files.remove_folder(path.rpartition("/")[0])

    # --- files of rows ----------------------------------------------------------------------------

    def put(self, content: bytes, rows: int, *, again: bool) -> tuple[DataFile, int]:
        """Write a file of rows unless it is there; return it and how many bytes were written.

        ``again``: write it also where it is there, as it may be damaged.
        """
        digest = hashlib.sha256(content).hexdigest()
        file = DataFile(path_of(digest), digest, len(content), rows)
        if not again and self.has(file):
            return file, 0
        self.write(file.path, content)
        return file, len(content)

    def has(self, file: DataFile) -> bool:
        """Whether the file is there with all its bytes; what they are is not looked at."""
        return self.size(file.path) == file.bytes

    def get(self, file: DataFile) -> bytes:
        """Return the content of a file; BackupError unless it has the hash that is known of it."""
        content = self.read(file.path)
        digest = hashlib.sha256(content).hexdigest()
        if digest != file.sha256:
            raise BackupError(
                f"{self.url}: {file.path} is damaged: its {len(content)} bytes have the SHA-256 "
                f"{digest}, and the manifest says {file.sha256}; restore an older backup, and make "
                "the next one with --full"
            )
        return content

    def data_paths(self) -> Iterator[str]:
        """Iterate over the paths of all files where those of rows lie, used or not."""
        for folder in sorted(self.names("data")):
            for name in sorted(self.names(f"data/{folder}")):
                yield f"data/{folder}/{name}"

    # --- any file ---------------------------------------------------------------------------------

    def size(self, path: str) -> int | None:
        """Return the number of bytes; None if there is no such file."""
        return self._try(path, lambda: self._files.size(path))

    def read(self, path: str) -> bytes:
        """Return the content."""
        return self._try(path, lambda: self._files.read(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a file that appears as a whole or not at all."""
        self._try(path, lambda: self._files.write(path, content))

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, none if there is no such folder."""
        return self._try(path, lambda: self._files.names(path))

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        self._try(path, lambda: self._files.remove(path))

    # --- inside -----------------------------------------------------------------------------------

    def _try(self, path: str, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except FileNotFoundError as error:
            raise BackupError(
                f"{self.url}: {path} is missing; restore an older backup, and make the next one "
                "with --full"
            ) from error
        except OSError as error:
            raise BackupError(f"{self.url}: {path} cannot be used: {error}") from error
