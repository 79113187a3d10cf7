"""The state of a channel set as Parquet files, and back exactly.

All columns but ``$seal`` are for other readers, too: keys and values of the state, or chunks of the
snapshot of a machine in memory and the commands since, as the bytes that the machine wrote. What
they mean is known to the machine alone. ``$seal`` is the checksum over key and value that the
machine's host made when the value was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from raftstore.errors import BackupError, ConfigError
from raftstore.protocol.machine_restore import RestoredCommand
from raftstore.protocol.machines import decode_command, encode_command
from raftstore.rows.sealing import SEAL_BYTES
from raftstore.types import GUID_BYTES, Guid, Seq, Term

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise ConfigError("backups need pyarrow: pip install 'raftstore[backup]'") from error

SEAL: Final = "$seal"
ROWS: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field(SEAL, pa.uint32(), nullable=False),
    ]
)
CHUNKS: Final = pa.schema(
    [
        pa.field("number", pa.uint32(), nullable=False),
        pa.field("chunk", pa.binary(), nullable=False),
    ]
)
JOURNAL: Final = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("guid", pa.binary(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("command", pa.binary(), nullable=False),
    ]
)


def encode_rows(rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a file of keys and sealed values."""
    seals = [int.from_bytes(sealed[:SEAL_BYTES], "big") for _, sealed in rows]
    values = [sealed[SEAL_BYTES:] for _, sealed in rows]
    return _encode(ROWS, [[key for key, _ in rows], values, seals])


def decode_rows(content: bytes, path: str) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over keys and sealed values; BackupError when the file is none of ours."""
    for key, value, number in _decode(ROWS, content, path):
        yield key, number.to_bytes(SEAL_BYTES, "big") + value


def encode_chunks(chunks: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a file of numbered chunks."""
    return _encode(CHUNKS, [[number for number, _ in chunks], [chunk for _, chunk in chunks]])


def decode_chunks(content: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    """Iterate over numbers and chunks; BackupError as above."""
    yield from _decode(CHUNKS, content, path)


def encode_journal(commands: Sequence[RestoredCommand]) -> bytes:
    """Return a file of commands."""
    columns: list[list[Any]] = [[] for _ in JOURNAL]
    for each in commands:
        key, command = decode_command(each.payload)
        row = each.seq, each.term, each.timestamp_ms, each.guid, each.version, key, command
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return _encode(JOURNAL, columns)


def decode_journal(content: bytes, path: str) -> Iterator[RestoredCommand]:
    """Iterate over commands; BackupError as above."""
    for seq, term, time_ms, guid, version, key, command in _decode(JOURNAL, content, path):
        if len(guid) != GUID_BYTES:
            raise BackupError(f"{path} has a command whose guid has {len(guid)} bytes")
        payload = encode_command(key, command)
        yield RestoredCommand(Seq(seq), Term(term), time_ms, Guid(guid), version, payload)


def _encode(schema: Any, columns: Sequence[Sequence[Any]]) -> bytes:
    arrays = [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=False, row_group_size=max(1, len(table))
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _decode(schema: Any, content: bytes, path: str) -> Iterator[tuple[Any, ...]]:
    try:
        table = pq.read_table(pa.BufferReader(content))
        if not table.schema.remove_metadata().equals(schema):
            raise BackupError(
                f"{path} has the columns {', '.join(table.column_names)}, the state of a channel "
                f"set has {', '.join(schema.names)}"
            )
        columns = [
            (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
            for column in table.columns
        ]
    except (pa.ArrowException, OSError) as error:
        raise BackupError(f"{path} cannot be read as Parquet: {error}") from error
    yield from zip(*columns, strict=True)
