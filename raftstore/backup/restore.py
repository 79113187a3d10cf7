"""Bringing a backup into a cluster: new tables with identities of their own (S0.1).

A table is created as one that is being restored: until it is whole its nodes serve no row of it and
take only the batches of this restore. Rows come as atomic batches of one writer, numbered by the
manifest, so a restore that was stopped is gone on with by another one, and of two at the same time
each batch is applied once. Then the writers of the source get their last batches, each as a batch
without rows, and at the end the mark is removed from all tables.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raftstore.backup.data_files import StoredRow, stored_rows
from raftstore.backup.manifest import DataFile, Manifest, TableBackup
from raftstore.backup.progress import OnProgress, Progress, nobody
from raftstore.backup.repository import Repository
from raftstore.client.batches.batch_writes import BatchTicket
from raftstore.client.blocking.batches import Stager
from raftstore.client.blocking.client import Client, Table
from raftstore.client.writes.chunks import split
from raftstore.errors import (
    ArgumentError,
    BackupError,
    BatchRegressionError,
    CorruptRecordError,
    StoreTooOldError,
    TableExistsError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import check_seal

RESTORE_WRITER: Final = "raftstore.restore"
"""Writes the rows; it stays among the table's writers, so that a restore that was thought dead and
wakes up later finds all its batches written."""
BATCH_ROWS: Final = 16_000
"""Rows of one batch, at most: each may be a chunk of its own (``batch.chunks_max``)."""
EXPIRY_STEP_MS: Final = 1_000
"""Rows expire up to so much later than they would have, so that many share a record."""
LEVEL_LOOKS: Final = 50
LEVEL_PAUSE_S: Final = 0.2
"""So often, with pauses, a cluster is asked to create a table that some node could not read."""
BEGINNING_S: Final = 60.0
"""Creating a table, with a leader for each partition, may take so long."""


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """A table that is whole again."""

    source: str
    """Its name in the backup."""
    name: str
    rows: int
    """Rows of the backup."""
    expired: int
    """Of these, whose time was over when this call came to them: they are not in the table."""
    writers: int
    """Writers that go on behind their last batch."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of ``restore_backup``."""

    backup: str
    tables: tuple[RestoredTable, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows [start, stop) of a file."""

    file: DataFile
    start: int
    stop: int


def restore_backup(
    client: Client,
    url: str,
    backup: str | None = None,
    *,
    tables: Sequence[str] | Mapping[str, str] = (),
    replicas: int | None = None,
    progress: OnProgress = nobody,
) -> Restored:
    """Restore tables of a backup, the newest one by default, as new tables.

    ``tables``: names, or names of the backup and what they are to be called; all there are by
    default. ``replicas``: of each partition, instead of what the source had. No row of a table can
    be read before all tables are whole. Repeating a call that was stopped goes on where it was.
    Raises TableExistsError over tables that are there, BackupError for what is damaged, missing or
    newer, and what writing raises.
    """
    place = Repository(url)
    manifest = place.manifest(backup)
    names = _names(manifest, tables)
    sources = {name: manifest.table(name) for name in names}
    for name, source in sources.items():
        for file in source.files:
            if not place.has(file):
                raise BackupError(
                    f"{url}: {file.path} of table {name!r} is missing or cut off, it should have "
                    f"{file.bytes} bytes; restore an older backup"
                )
    restores = [
        _Restore(client, place, manifest, source, names[name], replicas)
        for name, source in sources.items()
    ]
    under_way = [each.check() for each in restores]
    if any(under_way):  # one that was stopped at its end may have finished some of the tables
        restores = [each for each in restores if not each.is_done()]
    for each in restores:
        each.refuse_over_existing()
    for each in restores:
        each.create()
    done = 0
    total = sum(source.rows for source in sources.values())
    for each in restores:
        for rows in each.fill():
            done += rows
            progress(Progress(each.name, done, total))
    return Restored(manifest.id, tuple(each.finish() for each in restores))


def token_of(manifest: Manifest, source: TableBackup, name: str) -> str:
    """Return the token of the restore of one table: the same each time that it is repeated."""
    what = f"{manifest.id}/{manifest.checksum}/{source.uuid}/{name}"
    return hashlib.sha256(what.encode()).hexdigest()[:32]


def batches_of(source: TableBackup) -> list[list[_Part]]:
    """Return the parts of files that each batch has: the same each time, as the manifest says."""
    batches: list[list[_Part]] = []
    room = 0
    for file in source.files:
        at = 0
        while at < file.rows:
            if not room:
                batches.append([])
                room = BATCH_ROWS
            stop = min(file.rows, at + room)
            batches[-1].append(_Part(file, at, stop))
            room -= stop - at
            at = stop
    return batches


def _names(manifest: Manifest, tables: Any) -> dict[str, str]:
    if isinstance(tables, str):
        raise ArgumentError(f"tables={tables!r:.80} is one name; give a list of names")
    chosen = tables or [table.name for table in manifest.tables]
    names = dict(chosen) if isinstance(chosen, Mapping) else {name: name for name in chosen}
    targets = list(names.values())
    twice = sorted({name for name in targets if targets.count(name) > 1})
    if twice:
        raise ArgumentError(f"two tables would be called {twice[0]!r}; give each its own name")
    return names


class _Restore:
    """One table on its way in."""

    def __init__(
        self,
        client: Client,
        place: Repository,
        manifest: Manifest,
        source: TableBackup,
        name: str,
        replicas: int | None,
    ) -> None:
        self._client = client
        self._place = place
        self._source = source
        self._token = token_of(manifest, source, name)
        self._replicas = source.definition.replicas if replicas is None else replicas
        self._rows: tuple[DataFile, list[StoredRow]] | None = None
        self._expired = 0
        self.name = name

    # --- the table --------------------------------------------------------------------------------

    def check(self) -> bool:
        """Return whether an earlier call with the same arguments created the table and did not
        finish it; TableExistsError if that was a restore of something else."""
        found = self._found()
        if found is None or found.settings.restoring is None:
            return False
        if found.settings.restoring != self._token:
            raise TableExistsError(
                f"table {self.name!r} is being restored from another backup; finish that one, or "
                "drop the table first"
            )
        return True

    def is_done(self) -> bool:
        """Whether an earlier call with the same arguments finished the table."""
        found = self._found()
        if found is None or found.settings.restoring is not None:
            return False
        reported = self._client.table(self.name).writers(RESTORE_WRITER).writers
        return any(
            view.lineage == self._token and view.last_batch == len(batches_of(self._source))
            for view in reported
        )

    def refuse_over_existing(self) -> None:
        """Raise TableExistsError over a table that is whole."""
        found = self._found()
        if found is not None and found.settings.restoring is None:
            raise TableExistsError(
                f"table {self.name!r} exists, and a backup is never restored over one; give "
                f"another name (--table {self._source.name}=NAME), or drop the table first"
            )

    def _found(self) -> TableInfo | None:
        return {info.name: info for info in self._client.tables()}.get(self.name)

    def create(self) -> None:
        """Create the table as one that is being restored. Nodes that have just been started have
        not reported their level yet: they are waited for."""
        for left in reversed(range(LEVEL_LOOKS)):
            try:
                self._create()
            except StoreTooOldError:
                if not left:
                    raise
                time.sleep(LEVEL_PAUSE_S)
            else:
                return

    def _create(self) -> None:
        given = self._source.definition
        settings = given.settings
        self._client.create_table(
            self.name,
            key=given.key_columns,
            partitions=given.partitions,
            replicas=self._replicas,
            schema=given.schema_json or None,
            durability=given.durability,  # type: ignore[arg-type] # checked there
            max_lag=given.max_lag,
            if_not_exists=True,
            timeout=BEGINNING_S,
            retention_bytes=settings.retention_bytes,
            retention_records=settings.retention_records,
            retention_age=_seconds(settings.retention_age_ms),
            ttl=_seconds(settings.ttl_ms),
            restoring=self._token,
        )
        self._created()
        self._client.alter_table(
            self.name,
            timeout=BEGINNING_S,
            max_lag=given.max_lag,
            max_staleness=_seconds(given.max_staleness_ms),
            max_batches_behind=given.max_batches_behind,
            max_replica_lag=given.max_replica_lag,
            standby_reads=given.standby_reads,
        )

    def _created(self) -> TableInfo:
        """The table, if it is still the one that this restore fills."""
        info = self._client.table_info(self.name)
        if info.settings.restoring != self._token:
            self.refuse_over_existing()
            raise BackupError(f"table {self.name!r} was dropped while it was restored; repeat it")
        return info

    # --- its rows ---------------------------------------------------------------------------------

    def fill(self) -> Iterator[int]:
        """Write the rows, batch by batch; yield how many rows of the backup each was. A batch
        without rows is the last one, and shows later that all are there."""
        self._created()
        table = self._client.table(self.name)
        reported = table.writers(RESTORE_WRITER).writers
        written = max((view.last_batch for view in reported), default=-1)
        for number, parts in enumerate([*batches_of(self._source), []]):
            if number > written:
                self._write(table, number, parts)
            yield sum(part.stop - part.start for part in parts)

    def _write(self, table: Table, number: int, parts: Sequence[_Part]) -> None:
        ticket = self._begin(table, RESTORE_WRITER, number, self._token)
        if ticket is None:
            return
        with table.stager(ticket, 0, 0, ttl=0) as stager:
            for part in parts:
                self._stage(stager, part)
            staged = stager.flush()
        table.commit_batch(ticket, [staged])

    def _begin(self, table: Table, writer: str, batch_id: int, lineage: str) -> BatchTicket | None:
        """An attempt at a batch; None: it is in the table, by another restore of the same, and
        perhaps later ones, too."""
        uuid = bytes.fromhex(self._token)
        try:
            ticket = table.begin_batch(writer, batch_id, uuid=uuid, lineage=lineage)
        except BatchRegressionError:
            return None
        return None if ticket.is_already_written else ticket

    def _stage(self, stager: Stager, part: _Part) -> None:
        definition = self._source.definition
        now_ms = time.time_ns() // 1_000_000
        by_life: dict[int, list[StoredRow]] = {}
        for row in self._rows_of(part.file)[part.start : part.stop]:
            if row.expires_ms and row.expires_ms <= now_ms:
                self._expired += 1
                continue
            life = 0
            if row.expires_ms:
                life = -(-(row.expires_ms - now_ms) // EXPIRY_STEP_MS)
            by_life.setdefault(life, []).append(row)
        for life, rows in by_life.items():
            pairs = [(row.key, row.sealed) for row in rows]
            for chunk in split(pairs, definition.partitions):
                payload = encode_rows(chunk.pairs)
                ttl = life * EXPIRY_STEP_MS / 1000
                stager.add(chunk.partition, payload, len(chunk.pairs), ttl=ttl)

    def _rows_of(self, file: DataFile) -> list[StoredRow]:
        """The rows of a file, each with the seal that its writer made."""
        if self._rows is not None and self._rows[0] == file:
            return self._rows[1]
        rows = list(stored_rows(self._place.get(file), file.path))
        if len(rows) != file.rows:
            raise BackupError(f"{file.path} has {len(rows)} rows, the manifest says {file.rows}")
        for row in rows:
            try:
                check_seal(row.key, row.sealed)
            except CorruptRecordError as error:
                raise BackupError(f"{file.path} is damaged: {error}") from error
        self._rows = (file, rows)
        return rows

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> RestoredTable:
        """Have the writers go on behind their last batches, and let the table be read."""
        table = self._client.table(self.name)
        for writer in self._source.writers:
            self._set_writer(table, writer.writer, writer.batch_id, writer.lineage)
        self._client.alter_table(self.name, timeout=BEGINNING_S, restoring=None)
        return RestoredTable(
            source=self._source.name,
            name=self.name,
            rows=self._source.rows,
            expired=self._expired,
            writers=len(self._source.writers),
        )

    def _set_writer(self, table: Table, writer: str, batch_id: int, lineage: str) -> None:
        """A batch without rows: what the writer sends again up to it is known as written."""
        ticket = self._begin(table, writer, batch_id, lineage)
        if ticket is not None:
            table.commit_batch(ticket, [])


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
