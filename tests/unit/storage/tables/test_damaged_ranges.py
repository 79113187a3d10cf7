"""Reads of a range of a table whose blocks are damaged: an error, and never fewer rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import CorruptRecordError
from raftstore.rows.sealing import seal
from raftstore.storage.tables.keys import applied_key, encode_applied, rows_end, rows_prefix
from raftstore.storage.tables.leveldb_database import (
    DATABASE_ERRORS,
    create,
    iterated,
    keys_between,
    open_checked,
    share_of,
)
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.types import History, Seq, Term
from tests.storage_helpers import CHANNEL, SMALL, flip_bit

FIRST_BLOCK = 40
"""An offset in a table file: the rows of this one fill a single block."""
START, END = rows_prefix(CHANNEL), rows_end(CHANNEL)


@pytest.fixture
def damaged(tmp_path: Path) -> Any:
    """A database whose rows are in one damaged block, and whose position is newer and in its log:
    it opens, and says how far it is applied."""
    path, share = tmp_path / "table", share_of(SMALL, 1)
    database = create(path, SMALL, share)
    for number in range(5):
        database.put(START + b"k%d" % number, b"v" * 50)
    database.compact_range(start=b"\0", stop=b"\xff" * 40)
    database.put(applied_key(CHANNEL), encode_applied(CHANNEL, History(Term(1), Seq(5))))
    database.close()
    [file] = path.glob("*.ldb")
    flip_bit(file, FIRST_BLOCK)
    return open_checked(path, SMALL, share)


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_range_that_begins_in_a_damaged_block_is_not_empty(
    damaged: Any, *, is_snapshot: bool
) -> None:
    """S0.4: the first step finds nothing there and reports nothing, so it is asked again."""
    source = damaged.snapshot() if is_snapshot else damaged
    with pytest.raises(DATABASE_ERRORS), iterated(source, start=START, stop=END) as pairs:
        list(pairs)
    with pytest.raises(DATABASE_ERRORS):
        list(keys_between(source, START + b"k3", END))


READS: dict[str, Callable[[LevelDbReads, Any], Any]] = {
    "scan": lambda reads, source: list(reads.rows(source, CHANNEL)),
    "page": lambda reads, source: reads.sealed_page(
        source, CHANNEL, b"k4", b"", 10, 1_000, time_ms=0
    ),
    "count": lambda reads, source: reads.count(source, CHANNEL, b"k2", b"", 10, 0),
    "copy": lambda reads, source: reads.copy_page(source, CHANNEL, b"\x01k1", 1_000),
}


@pytest.mark.parametrize("read", READS)
def test_read_of_damaged_rows_fails_and_tells_no_rows(
    damaged: Any, tmp_path: Path, read: str
) -> None:
    """S0.4: a node that started so once followed a catalog without a table."""
    with pytest.raises(CorruptRecordError):
        READS[read](LevelDbReads(tmp_path), damaged)


@pytest.fixture
def damaged_end(tmp_path: Path) -> Any:
    """A database with rows in several blocks, the last of which is damaged."""
    path, share = tmp_path / "blocks", share_of(SMALL, 1)
    database = create(path, SMALL, share)
    database.put(applied_key(CHANNEL), encode_applied(CHANNEL, History(Term(1), Seq(9))))
    for number in range(9):
        key, value = b"k%d" % number, number.to_bytes(4, "big") * 512
        database.put(START + key, Seq(number + 1).to_bytes(8, "big") + seal(key, value))
    database.compact_range(start=b"\0", stop=b"\xff" * 40)
    database.close()
    [file] = path.glob("*.ldb")
    # Index, filter and footer are shorter than a row.
    flip_bit(file, file.stat().st_size - 1_024)
    return open_checked(path, SMALL, share)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("is_snapshot", [False, True])
def test_range_whose_last_block_is_damaged_does_not_end_before_it(
    damaged_end: Any, tmp_path: Path, *, read: str, is_snapshot: bool
) -> None:
    """S0.4: plyvel reports nothing with the step that finds no more, and a scan, a copy or a
    content hash would have fewer rows without a word."""
    source = damaged_end.snapshot() if is_snapshot else damaged_end
    reads = LevelDbReads(tmp_path)
    whole: dict[str, Callable[[], Any]] = {
        "scan": lambda: list(reads.rows(source, CHANNEL)),
        "page": lambda: reads.sealed_page(source, CHANNEL, b"", b"", 99, 99_999, time_ms=0),
        "count": lambda: reads.count(source, CHANNEL, b"", b"", 99, 0),
        "copy": lambda: reads.copy_page(source, CHANNEL, None, 99_999),
    }
    with pytest.raises(CorruptRecordError):
        whole[read]()


@pytest.mark.parametrize("values", [False, True])
def test_end_of_what_is_well_is_no_error(damaged_end: Any, *, values: bool) -> None:
    """Rows in front of the damage are read as ever, with an open end in the middle of a block."""
    with iterated(damaged_end, start=START, stop=START + b"k2", include_value=values) as found:
        assert len(list(found)) == 2


def test_empty_range_of_a_well_table_is_empty(tmp_path: Path) -> None:
    """Nothing else is an error."""
    database = create(tmp_path / "table", SMALL, share_of(SMALL, 1))
    with iterated(database, start=START, stop=END) as pairs:
        assert list(pairs) == []
    database.put(START + b"k", b"v")
    with iterated(database, start=START, stop=END) as pairs:
        assert list(pairs) == [(START + b"k", b"v")]
    with iterated(database, start=START, include_value=False) as keys:
        assert list(keys) == [START + b"k"]
    database.close()
