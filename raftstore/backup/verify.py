"""Checking a backup without a cluster: every file, its hash, its rows and their seals, and the
states of channel sets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from raftstore.backup.data_files import TableFiles, shown_columns, stored_rows
from raftstore.backup.manifest import DataFile, Manifest, StateBackup, TableBackup
from raftstore.backup.progress import OnProgress, Progress, nobody
from raftstore.backup.repository import Repository
from raftstore.backup.restore_sets import chunks_of, journal_of, rows_of
from raftstore.errors import BackupError, CorruptRecordError, SchemaError
from raftstore.rows.partitioner import partition_of
from raftstore.rows.sealing import check_seal


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of ``verify_backup``."""

    backup: str
    tables: int
    files: int
    rows: int
    bytes: int
    problems: tuple[str, ...]
    """What is wrong, file by file; none: the backup can be restored."""
    channelsets: int = 0


def verify_backup(
    url: str, backup: str | None = None, *, progress: OnProgress = nobody
) -> Verified:
    """Read every file of a backup, the newest one by default, and check it against the manifest:
    its hash, the number of its rows, their order, partition, seals and columns.

    BackupError when there is no such backup, or its manifest itself is damaged or newer.
    """
    place = Repository(url)
    manifest = place.manifest(backup)
    problems: list[str] = []
    rows, files = 0, 0
    for found in manifest.sets:
        for number, state in enumerate(found.partitions):
            try:
                _check_state(place, state)
            except BackupError as error:
                problems.append(f"channel set {found.name}, partition {number}: {error}")
            rows += state.entries
            files += len(state.files)
            progress(Progress(found.name, rows, manifest.rows))
    for table in manifest.tables:
        check = _TableCheck(place, table)
        for number, partition in enumerate(table.partitions):
            last = b""
            for file in partition.files:
                try:
                    last = check.file(file, number, last)
                except BackupError as error:
                    problems.append(f"table {table.name}, partition {number}: {error}")
                rows += file.rows
                files += 1
                progress(Progress(table.name, rows, manifest.rows))
    return Verified(
        backup=manifest.id,
        tables=len(manifest.tables),
        channelsets=len(manifest.sets),
        files=files,
        rows=rows,
        bytes=manifest.bytes,
        problems=tuple(problems),
    )


def _check_state(place: Repository, state: StateBackup) -> None:
    """Go through all that a restore would write; BackupError says what is wrong first."""
    deque(rows_of(place, state.rows), maxlen=0)
    deque(chunks_of(place, state.chunks), maxlen=0)
    for command in journal_of(place, state.journal):
        if command.seq > state.last_seq:
            raise BackupError(
                f"a command of seq {command.seq} is behind the last one, of seq {state.last_seq}"
            )


class _TableCheck:
    """Checks the files of one table."""

    def __init__(self, place: Repository, table: TableBackup) -> None:
        self._place = place
        self._partitions = table.definition.partitions
        self._columns: list[str] | None = None
        self._problem = ""
        try:
            self._columns = TableFiles(table.definition).columns
        except SchemaError as error:
            self._problem = f"the table's schema cannot be read: {error}"

    def file(self, file: DataFile, partition: int, last: bytes) -> bytes:
        """Check one file whose keys are above ``last``; return its last key. BackupError says what
        is wrong."""
        if self._problem:
            raise BackupError(self._problem)
        content = self._place.get(file)
        count = 0
        for row in stored_rows(content, file.path):
            count += 1
            try:
                check_seal(row.key, row.sealed)
            except CorruptRecordError as error:
                raise BackupError(f"{file.path}: {error}") from error
            if row.key <= last and last:
                raise BackupError(f"{file.path}: key {row.key.hex()} is not above the one before")
            if partition_of(row.key, self._partitions) != partition:
                raise BackupError(f"{file.path}: key {row.key.hex()} is of another partition")
            last = row.key
        if count != file.rows:
            raise BackupError(f"{file.path} has {count} rows, the manifest says {file.rows}")
        if shown_columns(content) != self._columns:
            raise BackupError(
                f"{file.path} has the columns {', '.join(shown_columns(content))}, the table's are "
                f"{', '.join(self._columns or ())}"
            )
        return last


def list_backups(url: str) -> list[tuple[str, Manifest | BackupError]]:
    """Return the ids of all backups of a place with their manifests, the oldest first; where a
    manifest is damaged or newer, with the error that says so."""
    return list(Repository(url).manifests())
