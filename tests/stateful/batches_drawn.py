"""Draws of the machine of micro-batches, its expectations, and its own fold of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from raftstore.protocol.batches import CommitBatch
from raftstore.protocol.staged import INSERT, MERGE, ChunkHeader
from raftstore.types import ChannelId

CHANNELS = 4
WRITERS = ("u", "v", "w")
PENDING_MAX = 3
CHANNEL = ChannelId(bytes(18))
KEYS = (b"k0", b"k1", b"k2")
PUT = b"put"
"""A key that only plain writes touch."""

Rows = tuple[tuple[bytes, bytes | None], ...]
Table = dict[bytes, bytes]

packed = msgspec.msgpack.encode
writers = st.sampled_from(WRITERS)
channels = st.integers(0, CHANNELS - 1)
column = st.one_of(st.none(), st.integers(1, 9))
values = st.one_of(st.none(), st.tuples(column, column).map(packed))
Sent = list[tuple[int, int, int, Rows, bool]]
chunk_rows = st.lists(st.tuples(st.sampled_from(KEYS), values), min_size=1, max_size=3).map(tuple)
some = st.integers(0, 2**16)
sent_chunks = st.lists(
    st.tuples(channels, st.integers(0, 1), st.integers(0, 1), chunk_rows, st.booleans()),
    min_size=1,
    max_size=4,
)


@dataclass
class Chunk:
    """A chunk that a task sent; ``arrived`` once a quorum has kept it."""

    channel: int
    header: ChunkHeader
    rows: Rows
    arrived: bool = False


@dataclass
class Ticket:
    """An attempt as its driver knows it."""

    writer: str
    batch: int
    attempt: int
    mode: int
    chunks: list[Chunk] = field(default_factory=list)
    sent: tuple[CommitBatch, list[Chunk]] | None = None


@dataclass
class Decided:
    """A commit by number: whose it is, and what its driver listed."""

    writer: str
    generation: int
    batch: int
    attempt: int
    mode: int
    truncate: bool
    touched: tuple[int, ...]
    chunks: list[Chunk]


def write(mode: int, key: bytes, value: bytes | None, table: Table, before: Table) -> None:
    if mode == INSERT and key in before:
        return
    if value is None:
        table.pop(key, None)
    elif mode == MERGE and key in table:
        old: list[Any] = msgspec.msgpack.decode(table[key])
        new: list[Any] = msgspec.msgpack.decode(value)
        table[key] = packed([a if b is None else b for a, b in zip(old, new, strict=True)])
    else:
        table[key] = value


def ref_like(chunk: Chunk) -> tuple[ChunkHeader, Rows]:
    return chunk.header, chunk.rows


def folded(commits: dict[int, Decided], n: int, partition: int) -> Table:
    """The rows of a channel after the first n commits, from what their drivers listed."""
    table: Table = {}
    for m in range(1, n + 1):
        made = commits[m]
        if partition not in made.touched:
            continue
        before = {} if made.truncate else dict(table)
        table = dict(before)
        chunks = [chunk for chunk in made.chunks if chunk.channel == partition]
        chunks.sort(key=lambda chunk: (chunk.header.partition_id, chunk.header.number))
        for key, value in (pair for chunk in chunks for pair in chunk.rows):
            write(made.mode, key, value, table, before)
    return table
