"""The manifest of a backup: which tables, at which positions, in which files.

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
from raftstore.types import Count63, PartitionCount, Seq, Small31, Term

FORMAT: Final = 1
"""Of the manifest and of the data files. A newer one is refused."""
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

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """Bytes of its files, each counted once."""
        sizes = {file.path: file.bytes for table in self.tables for file in table.files}
        return sum(sizes.values())

    def table(self, name: str) -> TableBackup:
        """Return a table; BackupError if it is not in the backup."""
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(table.name for table in self.tables) or "none"
        raise BackupError(f"backup {self.id} has no table {name!r}; there are: {known}")


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
    for table in manifest.tables:
        if len(table.partitions) != table.definition.partitions:
            raise BackupError(f"{path} is damaged: table {table.name!r} lacks partitions")
        for file in table.files:
            if not _SHA256.fullmatch(file.sha256) or file.path != path_of(file.sha256):
                raise BackupError(f"{path} is damaged: it names the file {file.path!r:.80}")
    return manifest


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(_encoded(msgspec.structs.replace(manifest, checksum=""))).hexdigest()


def _encoded(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)
