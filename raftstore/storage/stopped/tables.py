"""The tables of a stopped node's store, read and verified without changing a byte of it.

LevelDB writes when it opens. So it opens a copy beside: its table files, which never change, are
linked to; its small files (the MANIFEST and the write-ahead log of at most one write buffer) are
copied. Every row is checked when it is read: LevelDB checks its blocks, and each row has a seal.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from raftstore.config import MIB, StorageSettings
from raftstore.errors import CorruptRecordError, StorageError
from raftstore.record_machine import is_expired
from raftstore.rows.sealing import check_seal
from raftstore.storage.files import starting
from raftstore.storage.tables.generations import (
    TABLES_DIRECTORY,
    Generation,
    generations_in,
    present,
)
from raftstore.storage.tables.keys import rows_end, rows_prefix, split_row
from raftstore.storage.tables.leveldb_database import (
    DATABASE_ERRORS,
    iterated,
    open_checked,
    share_of,
    translate,
)
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.types import ChannelId, History, Seq

TABLE_SUFFIXES: Final = (".ldb", ".sst")
"""LevelDB's table files: written once, then only read or removed."""
LEFT_OUT: Final = ("LOCK", "LOG", "LOG.old")
"""Not needed to open a copy."""

PAGE_ROWS: Final = 5_000
PAGE_BYTES: Final = 4 * MIB
"""Of rows that are read at once."""

SealedRow = tuple[bytes, bytes, Seq, int]
"""Key, sealed value and seq, as scans of a client give them, and expiry in ms since 1970; 0: the
row has none."""


class TableFound(NamedTuple):
    """A channel's table as it was verified; what follows ``damage`` holds without it only."""

    generations: tuple[int, ...]
    """Numbers of all its databases; unfinished and former ones are removed by the next start."""
    present: int | None
    """Which of them is the table; None: none is."""
    disk_bytes: int
    damage: str | None
    """Why it cannot be read as a whole."""
    applied: History | None = None
    rows: int = 0
    digest: str = ""
    """Over rows and state, as `raftstore channel verify` compares it."""


def tables_in(directory: Path) -> dict[ChannelId, list[int]]:
    """Channels that have a table in a node's data directory, with their generations."""
    tables = directory / TABLES_DIRECTORY
    if not tables.is_dir():
        return {}
    with starting(tables, "reading the directory of the tables"):
        return generations_in(tables)


def verify_table(directory: Path, channel: ChannelId, numbers: list[int]) -> TableFound:
    """Read a channel's table as a whole."""
    tables = directory / TABLES_DIRECTORY
    number = present(tables, channel, numbers)
    size = sum(
        file.stat().st_size
        for each in numbers
        for file in (tables / Generation(channel, each).name).iterdir()
        if file.is_file()
    )
    found = TableFound(tuple(numbers), number, size, None)
    if number is None:
        return found._replace(damage="none of its generations is complete")
    try:
        with opened_table(directory, channel, number) as (source, reads):
            applied = reads.position(source, channel)
            digest, rows, _ = reads.content_hash(source, channel)
    except StorageError as error:
        return found._replace(damage=_sentence(error))
    return found._replace(applied=applied, rows=rows, digest=digest.hex())


@contextmanager
def opened_table(
    directory: Path, channel: ChannelId, number: int
) -> Iterator[tuple[Any, LevelDbReads]]:
    """Open a copy of a channel's database, which is gone afterwards.

    Raises CorruptRecordError where LevelDB, or what is known of its files, finds damage, and
    StorageError where a file cannot be read or the copy not be written.
    """
    name = Generation(channel, number).name
    settings = StorageSettings()
    with TemporaryDirectory(prefix="raftstore-inspect-") as place:
        copy = Path(place) / TABLES_DIRECTORY / name
        with starting(directory / TABLES_DIRECTORY / name, "copying LevelDB's small files"):
            _copy(directory / TABLES_DIRECTORY / name, copy)
        try:
            database = open_checked(copy, settings, share_of(settings, 1))
        except DATABASE_ERRORS as error:
            raise translate(error) from error
        try:
            yield database, LevelDbReads(Path(place))
        finally:
            database.close()


def _copy(path: Path, copy: Path) -> None:
    copy.mkdir(parents=True)
    for file in path.iterdir():
        if file.name in LEFT_OUT or not file.is_file():
            continue
        if file.suffix in TABLE_SUFFIXES:
            (copy / file.name).symlink_to(file.resolve())
        else:
            shutil.copyfile(file, copy / file.name)


class Skipped:
    """Rows that an export left out."""

    def __init__(self) -> None:
        self.rows = 0
        """Rows whose own seal was wrong."""
        self.ranges: list[str] = []
        """What LevelDB could not read: between which keys."""


def verified_rows(
    source: Any, reads: LevelDbReads, channel: ChannelId, skipped: Skipped | None = None
) -> Iterator[SealedRow]:
    """All rows that have not expired, in key order, each checked, as they are stored.

    ``skipped``: leave out what is damaged and report it there. Between two places that LevelDB
    cannot read nothing is found. Raises CorruptRecordError without it.
    """
    prefix, end = rows_prefix(channel), rows_end(channel)
    time_ms = reads.channel_time(source, channel)
    if skipped is None:
        yield from _intact_rows(source, reads, channel, time_ms)
        return
    at = prefix
    last = b""
    resumed = False
    while True:
        try:
            with iterated(source, start=at, stop=end) as pairs:
                for stored_key, stored in pairs:
                    last = key = stored_key[len(prefix) :]
                    seq, expires_ms, sealed = split_row(stored)
                    try:
                        check_seal(key, sealed)
                    except CorruptRecordError:
                        skipped.rows += 1
                        continue
                    if not is_expired(expires_ms, time_ms):
                        yield key, sealed, seq, expires_ms
            return
        except DATABASE_ERRORS as error:
            behind = None if resumed else _first_behind_damage(source, at, end)
            resumed = True
            found = "" if behind is None else f" to {behind[len(prefix) :].hex()}"
            skipped.ranges.append(f"behind key {last.hex() or '(the first)'}{found}: {error}")
            if behind is None:
                return
            at = behind


def _intact_rows(
    source: Any, reads: LevelDbReads, channel: ChannelId, time_ms: int
) -> Iterator[SealedRow]:
    """The rows of a table without damage, page by page."""
    after = b""
    while True:
        page = reads.sealed_page(
            source, channel, after, b"", PAGE_ROWS, PAGE_BYTES, time_ms=time_ms
        )
        stop = page.rows[-1][0] + b"\0" if page.rows else b""
        expiries = _expiries(source, reads, channel, after, stop, time_ms) if time_ms else {}
        for key, sealed, seq in page.rows:
            yield key, sealed, seq, expiries.get(key, 0)
        if not page.more:
            return
        after = stop


def _expiries(
    source: Any, reads: LevelDbReads, channel: ChannelId, start: bytes, stop: bytes, time_ms: int
) -> dict[bytes, int]:
    """When the rows of [start, stop) expire that do."""
    found: dict[bytes, int] = {}
    while True:
        part = reads.expiries(source, channel, start, stop, PAGE_ROWS, time_ms)
        found.update(part.expiries)
        if not part.resume:
            return found
        start = part.resume


def _first_behind_damage(source: Any, start: bytes, end: bytes) -> bytes | None:
    """The lowest key that can be reached from the end without meeting damage."""
    lowest = None
    try:
        with source.iterator(
            start=start,
            stop=end,
            reverse=True,
            include_value=False,
            verify_checksums=True,
            fill_cache=False,
        ) as keys:
            for key in keys:
                lowest = key
    except DATABASE_ERRORS:
        return lowest
    return lowest


def _sentence(error: StorageError) -> str:
    """Without what a running node would do about it."""
    return str(error).partition("; the node stops")[0]
