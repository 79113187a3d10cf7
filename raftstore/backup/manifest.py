"""The manifest of a backup: which tables and channel sets, at which positions, in which files.

A backup exists when its manifest does. The manifest is JSON, so that others read it, and holds the
SHA-256 of itself (with ``checksum`` empty) and of each file. Identities of the cluster it was taken
from are in it so that backups differ, and go nowhere when it is restored (S0.1).
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from raftstore.errors import BackupError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.table_settings import TableSettings
from raftstore.types import Count63, PartitionCount, Seq, Small31, Term, TimestampMs

FORMAT: Final = 2
"""Newest format of manifests and data files that is read. A newer one is refused."""
TABLES_FORMAT: Final = 1
"""Of a backup without channel sets, which versions before them read, too; they refuse the other."""
BACKUP_ID: Final = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{6}", re.ASCII)
"""When it was begun (UTC, with milliseconds) and a random number: ids sort by time."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file: rows of one partition in key order. Its name is its content's SHA-256, so
    backups share the files that did not change."""

    path: str
    """From the place of the backups on."""
    sha256: str
    bytes: Count63
    rows: Count63


class PartitionBackup(msgspec.Struct, frozen=True):
    """One partition at one position, its files in key order."""

    term: Term
    seq: Seq
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)


class WriterBackup(msgspec.Struct, frozen=True):
    """A writer of atomic batches and the last of its batches that is in the backup."""

    writer: str
    lineage: str
    """The checkpoint that its batch ids count in."""
    batch_id: Count63


class TableDefinition(msgspec.Struct, frozen=True):
    """The properties that a table is created with; names and units of ``TableInfo``."""

    key_columns: tuple[str, ...]
    partitions: PartitionCount
    replicas: Small31
    durability: str
    schema_json: str
    max_lag: Count63 | None
    max_staleness_ms: Count63 | None
    max_batches_behind: Count63 | None
    max_replica_lag: Count63 | None
    standby_reads: bool
    settings: TableSettings

    @classmethod
    def of(cls, info: TableInfo) -> TableDefinition:
        """The definition of a table, without what is the cluster's (placement, uuid)."""
        return cls(**{name: getattr(info, name) for name in cls.__struct_fields__})


class TableBackup(msgspec.Struct, frozen=True):
    """One table in one state of all its partitions."""

    name: str
    uuid: str
    """Of the table that was read: another one of its name is another table (S0.8)."""
    commit: Count63
    """The newest micro-batch in it; each is in it as a whole or not at all."""
    position: str
    """The same as the partitions' term and seq, as ``at_least`` takes it in that cluster."""
    definition: TableDefinition
    partitions: tuple[PartitionBackup, ...]
    writers: tuple[WriterBackup, ...]

    @property
    def rows(self) -> int:
        """Rows of all partitions."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Files of all partitions."""
        return tuple(file for partition in self.partitions for file in partition.files)


class StateBackup(msgspec.Struct, frozen=True):
    """The state of a channel set in one partition at one position."""

    term: Term
    seq: Seq
    """Of the log that was read."""
    version: Small31
    """Of the machine, in force there."""
    commands: Count63
    """That were applied, rejected and skipped ones included."""
    time_ms: TimestampMs
    """Of the last of them; 0: there was none."""
    last_seq: Seq
    """Of the last of them, as the machine was given it."""
    machine_term: Term
    machine_seq: Seq
    """Up to which the machine may have been given terms and seqs: those of the log, and what was
    added to them if the state came from a backup itself."""
    rows: tuple[DataFile, ...]
    """Keys and values of the state, in key order."""
    chunks: tuple[DataFile, ...]
    """The snapshot of a machine in memory, by number."""
    journal: tuple[DataFile, ...]
    """Commands of a machine in memory since its snapshot, by seq."""
    limits: Small31 = 0
    """Limits of commands that were in force; 0: none that came into force."""
    limits_behind: Seq = Seq(0)
    """Behind which seq they were, as the machine was given it."""

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All of them."""
        return self.rows + self.chunks + self.journal

    @property
    def entries(self) -> int:
        """Keys, chunks and commands of all files."""
        return sum(file.rows for file in self.files)


class ChannelSetBackup(msgspec.Struct, frozen=True):
    """One channel set; each partition at a position of its own."""

    name: str
    uuid: str
    """Of the channel set that was read: another one of its name is another one (S0.8)."""
    machine: str
    """``package.module:Class`` or the name of an entry point, which the nodes have to have."""
    position: str
    """The same as the partitions' term and seq, as ``at_least`` takes it in that cluster."""
    definition: TableDefinition
    partitions: tuple[StateBackup, ...]

    @property
    def rows(self) -> int:
        """Keys, chunks and commands of all partitions."""
        return sum(partition.entries for partition in self.partitions)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Files of all partitions."""
        return tuple(file for partition in self.partitions for file in partition.files)

    @property
    def versions(self) -> tuple[int, int]:
        """The lowest and the highest version in force."""
        found = [partition.version for partition in self.partitions]
        return min(found), max(found)


class Manifest(msgspec.Struct, frozen=True):
    """A whole backup."""

    format: Small31
    id: str
    created_ms: Count63
    """When its first table was read, in ms since 1970."""
    raftstore: str
    """The version that made it."""
    cluster_id: str
    base: str | None
    """The backup whose files were used again where nothing had changed; None: none was there. The
    backup needs nothing but its own files: the base's manifest may go."""
    new_bytes: Count63
    """Bytes of the files that this backup added to the place."""
    tables: tuple[TableBackup, ...]
    checksum: str = ""
    channelsets: tuple[ChannelSetBackup, ...] | msgspec.UnsetType = msgspec.UNSET
    """Unset: none, as in ``TABLES_FORMAT``, which has no such field."""

    @property
    def sets(self) -> tuple[ChannelSetBackup, ...]:
        """Its channel sets."""
        return () if self.channelsets is msgspec.UNSET else self.channelsets

    @property
    def parts(self) -> tuple[TableBackup | ChannelSetBackup, ...]:
        """Tables, and channel sets behind them."""
        return (*self.tables, *self.sets)

    @property
    def rows(self) -> int:
        """Rows of all tables, and entries of the states of all channel sets."""
        return sum(each.rows for each in self.parts)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Files of all tables and channel sets; two may have the same."""
        return tuple(file for each in self.parts for file in each.files)

    @property
    def bytes(self) -> int:
        """Bytes of its files, each counted once."""
        sizes = {file.path: file.bytes for file in self.files}
        return sum(sizes.values())

    def table(self, name: str) -> TableBackup:
        """Return a table; BackupError if it is not in the backup."""
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(table.name for table in self.tables) or "none"
        raise BackupError(f"backup {self.id} has no table {name!r}; there are: {known}")

    def channelset(self, name: str) -> ChannelSetBackup:
        """Return a channel set; BackupError if it is not in the backup."""
        for found in self.sets:
            if found.name == name:
                return found
        known = ", ".join(found.name for found in self.sets) or "none"
        raise BackupError(f"backup {self.id} has no channel set {name!r}; there are: {known}")


class _Format(msgspec.Struct):
    format: int


def path_of(sha256: str) -> str:
    """Where the file with this content lies."""
    return f"data/{sha256[:2]}/{sha256}.parquet"


def manifest_path(backup_id: str) -> str:
    """Where the manifest of a backup lies."""
    return f"backups/{backup_id}/manifest.json"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of the manifest with its checksum."""
    return _encoded(msgspec.structs.replace(manifest, checksum=_checksum(manifest)))


def decode_manifest(content: bytes, path: str) -> Manifest:
    """Read a manifest back; BackupError names what is wrong with the file at ``path``."""
    try:
        number = msgspec.json.decode(content, type=_Format).format
        if number > FORMAT:
            raise BackupError(
                f"{path} is of format {number}, newer than {FORMAT}; use the raftstore version "
                "that made it, or a newer one"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, ValueError) as error:
        if isinstance(error, BackupError):
            raise
        raise BackupError(f"{path} is damaged: {error}; use another backup") from error
    if manifest.checksum != _checksum(manifest):
        raise BackupError(
            f"{path} is damaged: its content has the SHA-256 {_checksum(manifest)}, and it says "
            f"{manifest.checksum}; use another backup"
        )
    for each in manifest.parts:
        if len(each.partitions) != each.definition.partitions:
            raise BackupError(f"{path} is damaged: {each.name!r} lacks partitions")
    for file in manifest.files:
        if not _SHA256.fullmatch(file.sha256) or file.path != path_of(file.sha256):
            raise BackupError(f"{path} is damaged: it names the file {file.path!r:.80}")
    return manifest


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(_encoded(msgspec.structs.replace(manifest, checksum=""))).hexdigest()


def _encoded(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)
