"""Bringing a backup into a cluster: new tables with identities of their own (S0.1), and channel
sets (``restore_sets``).

A table is created as one that is being restored: until it is whole its nodes serve no row of it and
take only the batches of this restore. Rows come as atomic batches of one writer, numbered by the
manifest, so a restore that was stopped is gone on with by another one, and of two at the same time
each batch is applied once. Then the writers of the source get their last batches, each as a batch
without rows, and at the end the mark is removed from all tables.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raftstore.backup.data_files import StoredRow, stored_rows
from raftstore.backup.manifest import DataFile, Manifest, TableBackup
from raftstore.backup.progress import OnProgress, Progress, nobody
from raftstore.backup.repository import Repository
from raftstore.backup.restore_sets import RestoredChannelSet, SetRestore
from raftstore.backup.target import BEGINNING_S, Target
from raftstore.client.batches.batch_writes import BatchTicket
from raftstore.client.blocking.batches import Stager
from raftstore.client.blocking.client import Client, Table
from raftstore.client.writes.chunks import split
from raftstore.errors import (
    ArgumentError,
    BackupError,
    BatchRegressionError,
    CorruptRecordError,
)
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import check_seal

RESTORE_WRITER: Final = "raftstore.restore"
"""Writes the rows; it stays among the table's writers, so that a restore that was thought dead and
wakes up later finds all its batches written."""
BATCH_ROWS: Final = 16_000
"""Rows of one batch, at most: each may be a chunk of its own (``batch.chunks_max``)."""
EXPIRY_STEP_MS: Final = 1_000
"""Rows expire up to so much later than they would have, so that many share a record."""


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
    channelsets: tuple[RestoredChannelSet, ...] = ()


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
    channelsets: Sequence[str] | Mapping[str, str] = (),
    replicas: int | None = None,
    progress: OnProgress = nobody,
) -> Restored:
    """Restore tables and channel sets of a backup, the newest one by default, as new ones.

    ``tables``, ``channelsets``: names, or names of the backup and what they are to be called; all
    there are, unless some of either are given. ``replicas``: of each partition, instead of what the
    source had. Nothing of them can be read or commanded before all are whole. Repeating a call that
    was stopped goes on where it was; of two at the same time one ends it, and the other says so, by
    UnavailableError or TableExistsError. Raises TableExistsError over what is there, BackupError
    for what is damaged, missing or newer, UnknownMachineError where a node lacks the code of a
    channel set or its version, and what writing raises.
    """
    place = Repository(url)
    manifest = place.manifest(backup)
    names, sets = _names(manifest, tables, channelsets)
    restores: list[TableRestore | SetRestore] = [
        TableRestore(client, place, manifest, source, names[source.name], replicas)
        for source in map(manifest.table, names)
    ]
    restores += [
        SetRestore(client, place, manifest, source, sets[source.name], replicas)
        for source in map(manifest.channelset, sets)
    ]
    for each in restores:
        _refuse_missing(place, each)
    under_way = [each.check() for each in restores]
    if any(under_way):  # one that was stopped at its end may have finished some of them
        restores = [each for each in restores if not each.is_done()]
    for each in restores:
        each.refuse_over_existing()
    for each in restores:
        with each.beside_others():
            each.create()
    done = 0
    total = sum(each.source.rows for each in restores)
    for each in restores:
        for rows in _filled(each):
            done += rows
            progress(Progress(each.name, done, total))
    ended = [_finished(each) for each in restores]
    return Restored(
        manifest.id,
        tuple(each for each in ended if isinstance(each, RestoredTable)),
        tuple(each for each in ended if isinstance(each, RestoredChannelSet)),
    )


def _filled(restore: TableRestore | SetRestore) -> Iterator[int]:
    with restore.beside_others():
        yield from restore.fill()


def _finished(restore: TableRestore | SetRestore) -> RestoredTable | RestoredChannelSet:
    with restore.beside_others():
        return restore.finish()


def _refuse_missing(place: Repository, restore: TableRestore | SetRestore) -> None:
    for file in restore.source.files:
        if not place.has(file):
            raise BackupError(
                f"{place.url}: {file.path} of {restore.WHAT} {restore.source.name!r} is missing or "
                f"cut off, it should have {file.bytes} bytes; restore an older backup"
            )


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


def _names(
    manifest: Manifest, tables: Any, channelsets: Any
) -> tuple[dict[str, str], dict[str, str]]:
    """The names in the backup -> those that they get, of tables and of channel sets."""
    if not tables and not channelsets:
        tables = [table.name for table in manifest.tables]
        channelsets = [found.name for found in manifest.sets]
    both = _renamed("tables", tables), _renamed("channelsets", channelsets)
    targets = [name for names in both for name in names.values()]
    twice = sorted({name for name in targets if targets.count(name) > 1})
    if twice:
        raise ArgumentError(f"two of them would be called {twice[0]!r}; give each its own name")
    return both


def _renamed(what: str, chosen: Any) -> dict[str, str]:
    if isinstance(chosen, str):
        raise ArgumentError(f"{what}={chosen!r:.80} is one name; give a list of names")
    return dict(chosen) if isinstance(chosen, Mapping) else {name: name for name in chosen}


class TableRestore(Target[TableBackup]):
    """One table on its way in."""

    WHAT = "table"
    OPTION = "--table"

    def __init__(
        self,
        client: Client,
        place: Repository,
        manifest: Manifest,
        source: TableBackup,
        name: str,
        replicas: int | None,
    ) -> None:
        super().__init__(client, manifest, source, name)
        self._place = place
        self._replicas = source.definition.replicas if replicas is None else replicas
        self._rows: tuple[DataFile, list[StoredRow]] | None = None
        self._expired = 0

    # --- the table --------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Whether an earlier call with the same arguments finished the table."""
        found = self._found()
        if found is None or found.settings.restoring is not None:
            return False
        reported = self._client.table(self.name).writers(RESTORE_WRITER).writers
        return any(
            view.lineage == self._token and view.last_batch == len(batches_of(self.source))
            for view in reported
        )

    def create(self) -> None:
        """Create the table as one that is being restored."""
        self._when_levels_are_known(self._create)

    def _create(self) -> None:
        given = self.source.definition
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

    # --- its rows ---------------------------------------------------------------------------------

    def fill(self) -> Iterator[int]:
        """Write the rows, batch by batch; yield how many rows of the backup each was. A batch
        without rows is the last one, and shows later that all are there."""
        self._created()
        table = self._client.table(self.name)
        reported = table.writers(RESTORE_WRITER).writers
        written = max((view.last_batch for view in reported), default=-1)
        for number, parts in enumerate([*batches_of(self.source), []]):
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
        definition = self.source.definition
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
        for writer in self.source.writers:
            self._set_writer(table, writer.writer, writer.batch_id, writer.lineage)
        self._client.alter_table(self.name, timeout=BEGINNING_S, restoring=None)
        return RestoredTable(
            source=self.source.name,
            name=self.name,
            rows=self.source.rows,
            expired=self._expired,
            writers=len(self.source.writers),
        )

    def _set_writer(self, table: Table, writer: str, batch_id: int, lineage: str) -> None:
        """A batch without rows: what the writer sends again up to it is known as written."""
        ticket = self._begin(table, writer, batch_id, lineage)
        if ticket is not None:
            table.commit_batch(ticket, [])


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
