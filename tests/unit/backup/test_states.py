"""Which state a backup is of, where its files are cut, and what each batch of a restore has."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from raftstore.backup import cutting, restore
from raftstore.backup.create import is_of_state
from raftstore.backup.cutting import cut
from raftstore.backup.manifest import DataFile, PartitionBackup, path_of
from raftstore.backup.restore import batches_of
from raftstore.client.batches.batch_writes import TableWriters
from raftstore.client.scans.scanning import Item
from raftstore.protocol.batches import WriterView
from raftstore.types import Seq, Term
from tests.unit.backup.test_manifest import TABLE


def told(vector: tuple[int, ...], next_commit: int, *last_n: int) -> TableWriters:
    """A coordinator's answer: the newest commit of each partition, and those of writers."""
    views = tuple(WriterView(f"w{n}", 0, 1, n, -1, -1, "", one_shot=False, at_ms=0) for n in last_n)
    return TableWriters(views, next_commit, 0, vector, next_commit - 1)


@pytest.mark.parametrize(
    ("answer", "vector", "fits"),
    [
        (told((), 1), (0, 0), True),
        (told((3, 2), 4, 3), (3, 2), True),
        (told((3, 4), 5, 4), (3, 2), False),
        (told((3, 2), 4, 3), (3, 4), False),
        # A batch without rows has a number, and touches nothing.
        (told((3, 2), 5, 3, 4), (3, 2), True),
        # A later page of the answer knows a batch that its first one did not.
        (told((3, 2), 4, 3, 4), (3, 2), False),
    ],
)
def test_s10_answer_is_of_the_state_whose_batches_it_decided(
    answer: TableWriters, vector: tuple[int, ...], fits: bool
) -> None:
    """Neither a batch more nor one less, but for those without rows."""
    assert is_of_state(answer, vector) is fits


def items(keys: Sequence[int]) -> list[Item]:
    return [(b"%08d" % key, b"v" * 10, Seq(1)) for key in keys]


def files(keys: Sequence[int]) -> list[tuple[bytes, ...]]:
    """The keys of each file."""
    return [tuple(item[0] for item in file) for file in cut(iter(items(keys)))]


def test_change_touches_the_file_that_it_is_in_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that come or go move no cut behind them: all other files are what they were."""
    monkeypatch.setattr(cutting, "_is_cut", lambda key: int(key) % 37 == 0)
    before = files(range(0, 2_000, 2))
    assert len(before) > 20
    assert sum(map(len, before)) == 1_000
    after = files(sorted({*range(0, 2_000, 2), 501} - {100}))
    assert len(set(before) - set(after)) == 2
    assert len(set(after) - set(before)) == 2


def test_files_are_bounded_in_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no key says so for long: one is in memory at a time."""
    monkeypatch.setattr(cutting, "_is_cut", lambda key: False)
    monkeypatch.setattr(cutting, "FILE_ROWS_MAX", 150)
    assert [len(file) for file in files(range(400))] == [150, 150, 100]
    monkeypatch.setattr(cutting, "FILE_BYTES_MAX", 18 * 20)
    assert {len(file) for file in files(range(400))} == {20}
    assert files([]) == []


@pytest.mark.slow
def test_about_one_key_in_so_many_ends_a_file() -> None:
    """They are of all partitions alike."""
    from raftstore.rows.partitioner import partition_of

    keys = [b"%08d" % key for key in range(1_000_000)]
    found = [key for key in keys if cutting._is_cut(key)]
    assert 5 <= len(found) <= 40
    assert len({partition_of(key, 4) for key in found}) > 1


def test_batches_of_a_restore_have_all_rows_once_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the same order each time, large files in parts and small ones together."""
    monkeypatch.setattr(restore, "BATCH_ROWS", 10)

    def file(number: int, rows: int) -> DataFile:
        digest = f"{number:064x}"
        return DataFile(path_of(digest), digest, 1, rows)

    sizes = (3, 25, 4, 10)
    parts = tuple(
        PartitionBackup(Term(1), Seq(1), (file(n, rows),)) for n, rows in enumerate(sizes)
    )
    batches = batches_of(msgspec.structs.replace(TABLE, partitions=parts))
    rows_of_each = [sum(part.stop - part.start for part in batch) for batch in batches]
    assert rows_of_each == [10, 10, 10, 10, 2]
    seen = [(part.file.sha256, row) for batch in batches for part in batch
            for row in range(part.start, part.stop)]  # fmt: skip
    assert seen == [(f"{n:064x}", row) for n, rows in enumerate(sizes) for row in range(rows)]
    assert batches_of(msgspec.structs.replace(TABLE, partitions=())) == []
