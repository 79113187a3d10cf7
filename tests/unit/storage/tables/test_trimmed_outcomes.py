"""Tables on a real disk whose batches leave outcomes, which go when logs are trimmed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raftstore.config import KIB, MIB
from raftstore.protocol.staged import MERGE
from raftstore.protocol.trimming import encode_trim
from raftstore.state_machines.trimmed_outcomes import old_outcomes, trimmed_to
from raftstore.types import RecordKind, Seq
from tests.change_world import ChangeWorld
from tests.piece_worlds import LevelDbWorld
from tests.storage_helpers import CHANNEL, record
from tests.unit.storage.tables.test_merges import Tables

ROWS = 5
TEXT = random.Random(1).randbytes(600)


def merging(world: ChangeWorld, batches: int) -> None:
    """Write batches that merge rows which are there."""
    for _ in range(batches):
        value = b"%d" % world.end + TEXT
        world.batch((MERGE, {b"%03d" % at: value for at in range(ROWS)}))


def merge_files(world: ChangeWorld, directory: Path) -> tuple[bool, int, int]:
    """One step of the part that merges tables: whether it did, and bytes before and after."""
    world.store.close()
    tables = Tables(directory, is_new=False)
    before = tables.size()
    step = tables.merge()
    after = tables.size()
    tables.tables.close()
    world.restart()
    return step.is_merged, before, after


def trim(world: ChangeWorld, to_seq: Seq) -> None:
    """Have all outcomes removed up to there, as a leader does."""
    tables, after = world.store.tables, b""
    while keys := old_outcomes(lambda *of: tables.state_scan(CHANNEL, *of), to_seq, after=after):
        payload = encode_trim(to_seq, keys)
        kind = RecordKind.TRIM_OUTCOMES
        world.append(record(world.end + 1, payload=payload, kind=kind))
        after = keys[-1]


@pytest.mark.slow
def test_table_of_2000_merging_batches_keeps_a_bounded_disk(tmp_path: Path) -> None:
    """6 MB of outcomes of 3 KB of rows; LevelDB alone drops none of them in so short a while."""
    world = ChangeWorld(LevelDbWorld(tmp_path))
    sizes = []
    for _ in range(10):
        merging(world, 200)
        trim(world, Seq(world.end))
        is_merged, before, after = merge_files(world, tmp_path)
        assert is_merged
        sizes.append((before, after))
    assert world.commits == 2_000
    assert max(before for before, _ in sizes) < 3 * MIB
    assert max(after for _, after in sizes) < 100 * KIB
    assert trimmed_to(lambda key: world.store.tables.state_get(CHANNEL, key)) > 15_000
    assert len(world.rows()) == ROWS
    world.store.close()


def test_outcomes_of_before_are_given_back_although_the_table_did_not_grow(tmp_path: Path) -> None:
    """A store whose outcomes nobody removed until now: its last merge left them all."""
    world = ChangeWorld(LevelDbWorld(tmp_path))
    merging(world, 200)
    _, _, full = merge_files(world, tmp_path)
    assert full > 600 * KIB
    trim(world, Seq(world.end))
    is_merged, _, after = merge_files(world, tmp_path)
    assert is_merged
    assert after < full // 4
    assert not merge_files(world, tmp_path)[0], "nothing is left to be merged"
    world.store.close()
