"""The files of a table, kept for a replica that copies them.

LevelDB never changes a table file: a version of the database is the set of those that its MANIFEST
names, and a file goes when no version names it any more, which is after a newer version is in the
MANIFEST. So the MANIFEST is read, and each file that it names is linked into a directory beside the
database. Either all are there, then they are that version whatever became of it since, or one is
gone, then there is a newer version to be tried.

What is only in LevelDB's memory and write-ahead log is not in the version. So a barrier comes first
(``barriers``), with its proof that the memory table was written out: what was applied before it is
in the files, and maybe some of what was applied since, batch by batch. The log itself is left out:
what it holds is behind the version.

The links are in a directory whose name says that it is of no use after the process: each start
removes those, of this version and of older ones.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raftstore import faults
from raftstore.errors import CorruptRecordError, PersistError
from raftstore.ports.table_files import TableFile
from raftstore.storage.files import persisting
from raftstore.storage.tables.leveldb_files import manifest_of, version_in
from raftstore.storage.tables.shared_database import COPYING_SUFFIX
from raftstore.types import EMPTY_HISTORY, History

LINK_TRIES: Final = 16
"""Versions that are tried before the table is given row by row; each failed one means that LevelDB
merged files within the milliseconds between reading its MANIFEST and linking what it names."""
FILES_MAX: Final = 65_536
"""Of one table, about 128 GiB; a larger one is given row by row."""
_CANNOT_LINK: Final = frozenset(
    (
        errno.EPERM,
        errno.EACCES,
        errno.EXDEV,
        errno.EMLINK,
        errno.ENOTSUP,
        errno.ENOSYS,
        errno.ENOSPC,
        errno.EDQUOT,
    )
)
"""Errors of a file system that has no links, or no room for one; all else is a disk that fails."""


def table_file_name(number: int) -> str:
    """The name that LevelDB gives to a table file."""
    return f"{number:06d}.ldb"


def files_kept_at(path: Path, number: int) -> Path:
    """Where links to the files of the database at ``path`` are kept, for the session with this
    number."""
    return path.with_name(f"{path.name}.s{number}{COPYING_SUFFIX}")


class LinkedFiles:
    """ports.TableFiles: links to the files of one version of a database."""

    def __init__(self, path: Path, applied: History, files: tuple[TableFile, ...]) -> None:
        self.path = path
        self.applied = applied
        self.files = files
        self.is_closed = False

    def read(self, number: int, at: int, bytes_max: int) -> bytes:
        """Bytes of one of the files."""
        name, size = self.files[number]
        wanted = min(bytes_max, size - at)
        path = self.path / name
        with persisting(path, "reading a file of a table"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.pread(descriptor, wanted, at)
            finally:
                os.close(descriptor)
        if len(found) != wanted:
            raise PersistError(f"{path} ends at {at + len(found)}, not at {size}; the node stops")
        return found

    def close(self) -> None:
        """Remove the links; doing it again does nothing."""
        if not self.is_closed:
            self.is_closed = True
            with persisting(self.path, "removing links to files of a table"):
                shutil.rmtree(self.path)


def link_files(database: Path, links: Path, applied: History) -> LinkedFiles | None:
    """Keep the files of the version that is in the database's MANIFEST now; ``applied``: a position
    that a barrier made durable before. None: they cannot be had.

    Raises PersistError: the disk failed.
    """
    faults.reach("files.before-link")
    try:
        for _ in range(LINK_TRIES):
            linked = _link_version(database, links, applied)
            if linked is not None:
                faults.reach("files.after-link")
                return linked
            shutil.rmtree(links)
    except (CorruptRecordError, ValueError, IndexError):
        pass  # LevelDB will say what is wrong, row by row.
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            with persisting(links, "keeping the files of a table"):
                raise
    shutil.rmtree(links, ignore_errors=True)
    return None


def _link_version(database: Path, links: Path, applied: History) -> LinkedFiles | None:
    """One try; None: a file was merged with others meanwhile. Raises OSError."""
    links.mkdir()
    name = manifest_of(database)
    manifest = (database / name).read_bytes()
    found = version_in(manifest).files
    if not found or len(found) > FILES_MAX:
        raise CorruptRecordError(f"{database} consists of {len(found)} files")
    for number, size in sorted(found.items()):
        linked = links / table_file_name(number)
        try:
            linked.hardlink_to(database / linked.name)
        except FileNotFoundError:
            return None
        if linked.stat().st_size != size:
            raise CorruptRecordError(f"{linked.name} has not the size that {name} says")
    # The MANIFEST goes on being written, and is as it was.
    (links / name).write_bytes(manifest)
    files = [TableFile(table_file_name(number), size) for number, size in sorted(found.items())]
    return LinkedFiles(links, applied, (*files, TableFile(name, len(manifest))))


class KeptFiles:
    """All files of a node's tables that are kept for other replicas."""

    def __init__(self) -> None:
        self._linked: list[LinkedFiles] = []
        self._number = 0

    def link(self, database: Path | None, applied: History) -> Linking:
        """Prepare to keep the files of a database (None: they are not what readers see)."""
        self._number += 1
        return Linking(database, applied, self._number, self._add)

    def _add(self, files: LinkedFiles) -> None:
        self._linked = [*(each for each in self._linked if not each.is_closed), files]

    def close(self) -> None:
        """Let go of all of them."""
        for files in self._linked:
            files.close()


class Linking:
    """Keeps the files of one database when it is called, behind a barrier."""

    def __init__(
        self,
        database: Path | None,
        applied: History,
        number: int,
        add: Callable[[LinkedFiles], None],
    ) -> None:
        self._database = database
        self._applied = applied
        self._number = number
        self._add = add
        self.found: LinkedFiles | None = None
        """None: the files cannot be had."""

    def __call__(self) -> None:
        """Do it."""
        if self._database is None or self._applied == EMPTY_HISTORY:
            return
        links = files_kept_at(self._database, self._number)
        self.found = link_files(self._database, links, self._applied)
        if self.found is not None:
            self._add(self.found)
