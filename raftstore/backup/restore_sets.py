"""Bringing channel sets of a backup into a cluster (docs/decisions/0042).

The state of each partition comes in portions, each a record of the partition's log. They are
numbered by what the manifest says, and a partition knows how many it has: a restore that was
stopped is gone on with there, and of two at the same time each portion is applied once. Nobody is
served before all partitions of all that is restored are whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftstore.backup import state_files
from raftstore.backup.manifest import ChannelSetBackup, DataFile, Manifest, StateBackup
from raftstore.backup.repository import Repository
from raftstore.backup.target import BEGINNING_S, Target
from raftstore.client.blocking.client import Client
from raftstore.config import MIB
from raftstore.errors import BackupError, CorruptRecordError, RejectedError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machine_restore import RestoredCommand, RestoredHead, RestorePortion
from raftstore.protocol.table_settings import TableSettings
from raftstore.rows.sealing import check_seal, unseal
from raftstore.state_machines.machine_origin import MachineOrigin
from raftstore.state_machines.state_keys import MACHINE_ORIGIN, unpacked
from raftstore.types import Seq, Term

PORTION_BYTES: Final = 1 * MIB
"""A portion ends behind the entry that reaches it."""
PORTION_ENTRIES: Final = 10_000
"""The same in entries."""
SEQS_SKIPPED: Final = 2**40
TERMS_SKIPPED: Final = 2**20
"""A source that went on behind the backup has given its machine fewer seqs and terms since, so none
of them is given again."""

Entry = tuple[bytes, bytes] | tuple[int, bytes] | RestoredCommand


@dataclass(frozen=True, slots=True)
class RestoredChannelSet:
    """A channel set that is whole again."""

    source: str
    """Its name in the backup."""
    name: str
    machine: str
    entries: int
    """Keys of the state, or chunks of snapshots and commands since."""
    commands: int
    """That the state is made of."""


class SetRestore(Target[ChannelSetBackup]):
    """One channel set on its way in."""

    WHAT = "channel set"
    OPTION = "--channelset"

    def __init__(
        self,
        client: Client,
        place: Repository,
        manifest: Manifest,
        source: ChannelSetBackup,
        name: str,
        replicas: int | None,
    ) -> None:
        super().__init__(client, manifest, source, name)
        self._place = place
        self._replicas = source.definition.replicas if replicas is None else replicas
        self._state = client.channelset_state(name)

    def is_done(self) -> bool:
        """Whether an earlier call with the same arguments finished it."""
        info = self._found()
        if info is None or not info.settings.from_backup or info.settings.restoring is not None:
            return False
        return all(
            (origin := self._origin(info, number, Seq(0))) is not None and origin.is_whole
            for number in range(info.partitions)
        )

    def create(self) -> None:
        """Create it as one that is being restored."""
        given = self.source.definition
        self._when_levels_are_known(
            lambda: self._state.create(
                {
                    "machine": self.source.machine,
                    "partitions": given.partitions,
                    "replicas": self._replicas,
                    "durability": given.durability,
                    "max_lag": given.max_lag,
                    "settings": TableSettings(
                        retention_bytes=given.settings.retention_bytes,
                        retention_records=given.settings.retention_records,
                        retention_age_ms=given.settings.retention_age_ms,
                        restoring=self._token,
                    ),
                    "machine_versions": self.source.versions,
                },
                timeout=BEGINNING_S,
            )
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

    def fill(self) -> Iterator[int]:
        """Write the portions that are missing; yield how many entries each was."""
        info = self._created()
        for number, source in enumerate(self.source.partitions):
            yield from self._fill(info, number, source)

    def _fill(self, info: TableInfo, number: int, source: StateBackup) -> Iterator[int]:
        origin = self._origin(info, number, Seq(0))
        there = 0 if origin is None else origin.portions
        channel, last = info.channels[number].channel, Seq(0)
        for portion in portions_of(self._place, source, bytes.fromhex(self._token)):
            if portion.number >= there:
                try:
                    last = self._state.put_portion(channel, portion)
                except RejectedError as error:
                    raise BackupError(
                        f"{self.name}/{number} is not filled: {error}; if another restore of the "
                        "same is under way let it end, else drop the channel set and restore again"
                    ) from error
            yield len(portion.rows) + len(portion.chunks) + len(portion.journal)
        # What is said of a portion that was given twice is no proof: the state itself is.
        origin = self._origin(info, number, last)
        if origin is None or not origin.is_whole or origin.token.hex() != self._token:
            raise BackupError(
                f"{self.name}/{number} is not whole at seq {last}; repeat the restore, or drop the "
                "channel set first"
            )

    def _origin(self, info: TableInfo, number: int, seq: Seq) -> MachineOrigin | None:
        """How far a partition has come, as of this seq or later; None: no portion was applied."""
        pinned = self._state.pin_at(info, number, seq)
        try:
            for page in self._state.entries(pinned, MACHINE_ORIGIN):
                for key, sealed in page:
                    found = unpacked(unseal(key, sealed), MachineOrigin)
                    return found if found.token.hex() == self._token else None
            return None
        finally:
            self._state.close(pinned)

    def finish(self) -> RestoredChannelSet:
        """Let it be asked and commanded."""
        self._client.alter_table(self.name, timeout=BEGINNING_S, restoring=None)
        return RestoredChannelSet(
            source=self.source.name,
            name=self.name,
            machine=self.source.machine,
            entries=self.source.rows,
            commands=sum(each.commands for each in self.source.partitions),
        )


def portions_of(place: Repository, source: StateBackup, token: bytes) -> Iterator[RestorePortion]:
    """Iterate over the portions of a partition: the same each time, as files and manifest say."""
    number = 0
    rows: list[tuple[bytes, bytes]] = []
    chunks: list[tuple[int, bytes]] = []
    journal: list[RestoredCommand] = []
    size = entries = 0
    for entry in _entries(place, source):
        if isinstance(entry, RestoredCommand):
            journal.append(entry)
            size += len(entry.payload)
        elif isinstance(entry[0], bytes):
            rows.append((entry[0], entry[1]))
            size += len(entry[0]) + len(entry[1])
        else:
            chunks.append((entry[0], entry[1]))
            size += len(entry[1])
        entries += 1
        if size >= PORTION_BYTES or entries >= PORTION_ENTRIES:
            yield RestorePortion(token, number, tuple(rows), tuple(chunks), tuple(journal))
            rows, chunks, journal = [], [], []
            size, entries, number = 0, 0, number + 1
    head = head_of(source)
    yield RestorePortion(token, number, tuple(rows), tuple(chunks), tuple(journal), head)


def head_of(source: StateBackup) -> RestoredHead:
    """The facts about the machine, and from where it goes on."""
    return RestoredHead(
        version=source.version,
        commands=source.commands,
        time_ms=source.time_ms,
        seq=source.last_seq,
        seq_base=Seq(source.machine_seq + SEQS_SKIPPED),
        term_base=Term(source.machine_term + TERMS_SKIPPED),
        rows=sum(file.rows for file in source.rows),
        chunks=sum(file.rows for file in source.chunks),
        journal=sum(file.rows for file in source.journal),
        limits=source.limits,
        limits_behind=source.limits_behind,
    )


def _entries(place: Repository, source: StateBackup) -> Iterator[Entry]:
    yield from rows_of(place, source.rows)
    yield from chunks_of(place, source.chunks)
    yield from journal_of(place, source.journal)


def rows_of(place: Repository, files: tuple[DataFile, ...]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and sealed values of files; BackupError for what is damaged or out of order."""
    last = b""
    for file in files:
        count = 0
        for key, sealed in state_files.decode_rows(place.get(file), file.path):
            try:
                check_seal(key, sealed)
            except CorruptRecordError as error:
                raise BackupError(f"{file.path} is damaged: {error}") from error
            if key <= last:
                raise BackupError(f"{file.path}: key {key.hex()} is not above the one before")
            last, count = key, count + 1
            yield key, sealed
        _check_count(file, count)


def chunks_of(place: Repository, files: tuple[DataFile, ...]) -> Iterator[tuple[int, bytes]]:
    """Numbers and chunks of files, from 0 on; BackupError as above."""
    wanted = 0
    for file in files:
        count = 0
        for number, chunk in state_files.decode_chunks(place.get(file), file.path):
            if number != wanted:
                raise BackupError(f"{file.path} has chunk {number} where {wanted} belongs")
            wanted, count = wanted + 1, count + 1
            yield number, chunk
        _check_count(file, count)


def journal_of(place: Repository, files: tuple[DataFile, ...]) -> Iterator[RestoredCommand]:
    """Commands of files, by seq; BackupError as above."""
    last = 0
    for file in files:
        count = 0
        for command in state_files.decode_journal(place.get(file), file.path):
            if command.seq <= last:
                raise BackupError(f"{file.path}: seq {command.seq} is not above the one before")
            last, count = command.seq, count + 1
            yield command
        _check_count(file, count)


def _check_count(file: DataFile, count: int) -> None:
    if count != file.rows:
        raise BackupError(f"{file.path} has {count} rows, the manifest says {file.rows}")


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
