"""Tables and logs of stopped nodes, changed behind raftstore's back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import plyvel

from raftstore.core.chain import digest_of
from raftstore.rows.sealing import seal
from raftstore.storage.log.records import (
    HEADER,
    HEADER_BYTES,
    RecordPosition,
    decode_entries,
    decode_record,
    encode_record,
    next_chain,
)
from raftstore.storage.log.segments import LOG_DIRECTORY
from raftstore.storage.tables.generations import (
    TABLES_DIRECTORY,
    Generation,
    generations_in,
    present,
)
from raftstore.storage.tables.keys import rows_prefix, split_row
from raftstore.types import ChannelId, Seq


def table_directory(data: Path, channel: ChannelId) -> Path:
    """The LevelDB of a channel in a node's data directory."""
    tables = data / TABLES_DIRECTORY
    number = present(tables, channel, generations_in(tables)[channel])
    assert number is not None
    return tables / Generation(channel, number).name


@contextmanager
def opened(data: Path, channel: ChannelId) -> Iterator[Any]:
    """The same, open."""
    database = plyvel.DB(str(table_directory(data, channel)))
    try:
        yield database
    finally:
        database.close()


def change_row(data: Path, channel: ChannelId, key: bytes, value: bytes) -> None:
    """Give a row another value, under its own seal."""
    with opened(data, channel) as database:
        stored_key = rows_prefix(channel) + key
        stored = database.get(stored_key)
        head = stored[: len(stored) - len(split_row(stored)[2])]
        database.put(stored_key, head + seal(key, value), sync=True)


def remove_row(data: Path, channel: ChannelId, key: bytes) -> None:
    """Take a row away."""
    with opened(data, channel) as database:
        assert database.get(rows_prefix(channel) + key) is not None
        database.delete(rows_prefix(channel) + key, sync=True)


def add_row(data: Path, channel: ChannelId, key: bytes, like: bytes) -> None:
    """Add a row with the seq of another one."""
    with opened(data, channel) as database:
        _, _, sealed = split_row(stored := database.get(rows_prefix(channel) + like))
        head = stored[: len(stored) - len(sealed)]
        database.put(rows_prefix(channel) + key, head + seal(key, b"\x80"), sync=True)


def damage_row(data: Path, channel: ChannelId, key: bytes) -> None:
    """Change one bit of a row's value and leave its seal, as memory does that is faulty."""
    with opened(data, channel) as database:
        stored_key = rows_prefix(channel) + key
        stored = database.get(stored_key)
        database.put(stored_key, stored[:-1] + bytes([stored[-1] ^ 1]), sync=True)


def change_record(data: Path, channel: ChannelId, number: int) -> Seq:
    """Give a record of a channel's log another payload, with all checksums and digests that belong
    to it, and the chain of all entries behind it; return its seq. The log has one segment."""
    [path] = sorted((data / LOG_DIRECTORY).iterdir())
    whole = path.read_bytes()
    entries = list(decode_entries(whole, None))
    records = [
        at
        for at, (_, _, _, entry) in enumerate(entries)
        if isinstance(entry, RecordPosition) and entry.channel == channel
    ]
    chosen = records[number]
    offset, length, _, _ = entries[chosen]
    record = decode_record(whole[offset : offset + length])
    payload = record.payload[:-1] + bytes([record.payload[-1] ^ 1])
    record = msgspec.structs.replace(record, payload=payload, digest=digest_of(payload))
    chain = entries[chosen - 1][2]
    head, chain = encode_record(channel, record, chain)
    parts = [whole[:offset], head, payload]
    for offset, length, _, _ in entries[chosen + 1 :]:
        body_bytes, crc, _ = HEADER.unpack_from(whole, offset)
        chain = next_chain(chain, body_bytes, crc)
        parts += [
            HEADER.pack(body_bytes, crc, chain),
            whole[offset + HEADER_BYTES : offset + length],
        ]
    changed = b"".join(parts)
    assert len(changed) == len(whole)
    path.write_bytes(changed)
    return record.base_seq
