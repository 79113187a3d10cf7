"""A manifest is read back as it was written, or refused with its file and what is wrong."""

from __future__ import annotations

import msgspec
import pytest

from raftstore.backup.manifest import (
    FORMAT,
    DataFile,
    Manifest,
    PartitionBackup,
    TableBackup,
    TableDefinition,
    WriterBackup,
    decode_manifest,
    encode_manifest,
    path_of,
)
from raftstore.errors import BackupError
from raftstore.protocol.table_settings import TableSettings
from raftstore.types import Seq, Term

SHA = "ab" * 32
DEFINITION = TableDefinition(
    key_columns=("id",),
    partitions=2,
    replicas=3,
    durability="fsync",
    schema_json="",
    max_lag=7,
    max_staleness_ms=None,
    max_batches_behind=None,
    max_replica_lag=None,
    standby_reads=True,
    settings=TableSettings(ttl_ms=60_000),
)
FILE = DataFile(path_of(SHA), SHA, 10, 3)
TABLE = TableBackup(
    name="orders",
    uuid="00" * 16,
    commit=4,
    position="p",
    definition=DEFINITION,
    partitions=(
        PartitionBackup(Term(2), Seq(9), (FILE,)),
        PartitionBackup(Term(2), Seq(5), ()),
    ),
    writers=(WriterBackup("stream", "checkpoint", 6),),
)
MANIFEST = Manifest(
    format=FORMAT,
    id="20261123T152235123Z-1a2b3c",
    created_ms=1,
    raftstore="0.1.0",
    cluster_id="c",
    base=None,
    new_bytes=10,
    tables=(TABLE,),
)


def test_manifest_comes_back_as_it_was() -> None:
    """With every field, and what is counted from them."""
    found = decode_manifest(encode_manifest(MANIFEST), "m")
    assert msgspec.structs.replace(found, checksum="") == MANIFEST
    assert (found.rows, found.bytes) == (3, 10)
    assert found.table("orders").writers == (WriterBackup("stream", "checkpoint", 6),)


def test_table_that_is_not_in_the_backup_is_named_with_those_that_are() -> None:
    """So that a misspelt name is seen."""
    with pytest.raises(BackupError, match="has no table 'order'; there are: orders"):
        MANIFEST.table("order")
    with pytest.raises(BackupError, match="there are: none"):
        msgspec.structs.replace(MANIFEST, tables=()).table("order")


def test_newer_format_is_refused_before_anything_else_is_read() -> None:
    """A later version may write anything else."""
    content = msgspec.json.encode({"format": FORMAT + 1, "id": 7})
    with pytest.raises(BackupError, match=rf"m is of format {FORMAT + 1}, newer than {FORMAT}"):
        decode_manifest(content, "m")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"format": "x"}'])
def test_what_is_no_manifest_is_refused_by_its_path(content: bytes) -> None:
    """Cut off, empty, or of something else."""
    with pytest.raises(BackupError, match=r"^m is damaged"):
        decode_manifest(content, "m")


def test_every_changed_number_is_found() -> None:
    """A position, a count or a batch id that was flipped would restore another state: the checksum
    is over all of it."""
    content = encode_manifest(MANIFEST)
    for old, new in ((b'"seq": 9', b'"seq": 8'), (b'"batch_id": 6', b'"batch_id": 5')):
        assert content.count(old) == 1
        with pytest.raises(BackupError, match="is damaged: its content has the SHA-256"):
            decode_manifest(content.replace(old, new), "m")


@pytest.mark.parametrize("path", ["../../etc/passwd", path_of("cd" * 32)])
def test_file_lies_where_its_hash_says_and_nowhere_else(path: str) -> None:
    """A manifest that was made by hand reads no other file."""
    file = msgspec.structs.replace(FILE, path=path)
    partition = PartitionBackup(Term(1), Seq(1), (file,))
    table = msgspec.structs.replace(TABLE, partitions=(partition, TABLE.partitions[1]))
    content = encode_manifest(msgspec.structs.replace(MANIFEST, tables=(table,)))
    with pytest.raises(BackupError, match="it names the file"):
        decode_manifest(content, "m")


def test_table_without_all_its_partitions_is_refused() -> None:
    """Rows of a partition that is not listed would be missing."""
    table = msgspec.structs.replace(TABLE, partitions=TABLE.partitions[:1])
    content = encode_manifest(msgspec.structs.replace(MANIFEST, tables=(table,)))
    with pytest.raises(BackupError, match="'orders' lacks partitions"):
        decode_manifest(content, "m")
