"""The contract of ports.MessageLog, run on the log over real files and over simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import PersistError, UnknownChannelError
from raftstore.testing.sim_log import SimLog
from raftstore.types import LineageEntry, RecordKind
from tests.storage_helpers import (
    ALICE,
    BOB,
    CHANNEL,
    OTHER,
    FaultyFiles,
    all_records,
    create_log,
    open_log,
    record,
)


class SegmentWorld:
    """A SegmentLog in a directory, synced in the test's thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ops = FaultyFiles()
        self.log: Any = create_log(directory, self._ops)

    def sync(self) -> None:
        self.log.flush()

    def fail_next_sync(self) -> None:
        newest = max((self._directory / "log").iterdir())
        self._ops.fail("sync", newest.name)

    def restart(self) -> None:
        self.log.close()
        self.log = open_log(self._directory, self._ops)


class SimWorld:
    """The same log on simulated files."""

    def __init__(self) -> None:
        self.log: Any = SimLog.new()

    def sync(self) -> None:
        self.log.flush()

    def fail_next_sync(self) -> None:
        self.log.files.fail("sync")

    def restart(self) -> None:
        self.log.files.end_process()
        self.log = self.log.again()


@pytest.fixture(params=["segment", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A new, empty log."""
    return SegmentWorld(tmp_path) if request.param == "segment" else SimWorld()


def test_channel_is_empty_when_it_is_new(world: Any) -> None:
    """A channel nobody wrote to has no term, no vote and no records."""
    found = world.log.open_channel(CHANNEL)
    assert (found.term, found.voted_for, found.lineage, found.last_seq) == (0, None, (), 0)
    assert found.shortfall is None
    assert all_records(world.log) == []


def test_operations_are_numbered_in_order_and_durable_only_after_a_sync(world: Any) -> None:
    """S0.5: the barrier can be kept because each operation has a number."""
    first = world.log.append(CHANNEL, [record(1)])
    second = world.log.set_vote(CHANNEL, 1, ALICE)
    assert first < second == world.log.last_operation()
    assert world.log.durable_operation() < first
    world.sync()
    assert world.log.durable_operation() == second


def test_bytes_that_are_not_on_the_disk_are_counted_until_they_are(world: Any) -> None:
    """S0.4: unsynced bytes are counted exactly over many syncs, as their bound needs it."""
    assert world.log.unsynced_bytes() == 0
    world.log.append(CHANNEL, [record(1, payload=bytes(1_000))])
    first = world.log.unsynced_bytes()
    assert 1_000 <= first < 3_000
    world.log.append(CHANNEL, [record(2, payload=bytes(1_000)), record(3, payload=bytes(500))])
    assert world.log.unsynced_bytes() >= first + 1_500
    world.sync()
    assert world.log.unsynced_bytes() == 0
    world.log.append(CHANNEL, [record(4, payload=bytes(1_000))])
    assert world.log.unsynced_bytes() == first
    world.sync()
    assert world.log.unsynced_bytes() == 0


def test_read_includes_what_is_only_buffered(world: Any) -> None:
    """A leader serves records to followers before its own sync."""
    records = [record(1), record(2, rows=3), record(5)]
    world.log.append(CHANNEL, records)
    assert all_records(world.log) == records


def test_everything_survives_a_restart_when_it_was_synced(world: Any) -> None:
    """Records, lineage, term and vote are what they were."""
    records = [record(1, term=1), record(2, term=3, rows=5), record(7, term=3, payload=b"")]
    world.log.set_vote(CHANNEL, 4, BOB)
    world.log.append(CHANNEL, records)
    world.sync()
    world.restart()
    found = world.log.open_channel(CHANNEL)
    assert (found.term, found.voted_for, found.last_seq) == (4, BOB, 7)
    assert found.lineage == (LineageEntry(1, 1), LineageEntry(3, 7))
    assert found.shortfall is None
    assert all_records(world.log) == records


def test_read_is_bounded_by_bytes_but_returns_one_record(world: Any) -> None:
    """A record larger than the bound still gets through."""
    records = [record(seq, payload=bytes(100)) for seq in (1, 2, 3)]
    world.log.append(CHANNEL, records)
    assert world.log.read(CHANNEL, 1, to_seq=3, bytes_max=10) == records[:1]
    assert world.log.read(CHANNEL, 1, to_seq=3, bytes_max=200) == records[:2]


def test_read_returns_whole_records_only(world: Any) -> None:
    """A record starts where it starts, and none reaches beyond to_seq (S4.2)."""
    records = [record(1, rows=4), record(5, rows=4)]
    world.log.append(CHANNEL, records)
    assert world.log.read(CHANNEL, 3, to_seq=8, bytes_max=1000) == records
    assert world.log.read(CHANNEL, 5, to_seq=7, bytes_max=1000) == []
    assert world.log.read(CHANNEL, 9, to_seq=20, bytes_max=1000) == []


def test_truncation_removes_records_and_their_lineage(world: Any) -> None:
    """S2.4: a conflicting tail goes, other records take its place."""
    world.log.append(CHANNEL, [record(1), record(2, term=2, rows=2), record(4, term=2)])
    world.log.truncate(CHANNEL, 4)
    assert world.log.open_channel(CHANNEL).lineage == (LineageEntry(1, 1), LineageEntry(2, 3))
    world.log.truncate(CHANNEL, 2)
    world.log.append(CHANNEL, [record(2, term=3)])
    expected = [record(1), record(2, term=3)]
    assert all_records(world.log) == expected
    world.sync()
    world.restart()
    assert all_records(world.log) == expected
    assert world.log.open_channel(CHANNEL).lineage == (LineageEntry(1, 1), LineageEntry(3, 2))


def test_truncation_keeps_a_record_that_starts_before_its_seq(world: Any) -> None:
    """Records are removed as a whole, by their first seq."""
    world.log.append(CHANNEL, [record(1, rows=5), record(6)])
    world.log.truncate(CHANNEL, 3)
    assert all_records(world.log) == [record(1, rows=5)]


def test_channels_do_not_touch_each_other(world: Any) -> None:
    """One log, one fsync, and yet one history per channel."""
    world.log.append(CHANNEL, [record(1)])
    world.log.append(OTHER, [record(1, term=9), record(2, term=9)])
    world.log.append(CHANNEL, [record(2)])
    world.log.truncate(OTHER, 1)
    world.sync()
    world.restart()
    assert all_records(world.log, CHANNEL) == [record(1), record(2)]
    assert all_records(world.log, OTHER) == []
    assert world.log.channels() == (CHANNEL, OTHER)


def test_start_up_scan_yields_every_record_in_order(world: Any) -> None:
    """Payloads may be missing, except those of configurations and of ends of micro-batches."""
    config = record(2, kind=RecordKind.CONFIG, payload=b"who votes")
    mark = record(4, kind=RecordKind.BATCH_MARK, payload=b"whose batch")
    world.log.append(CHANNEL, [record(1), config, record(3, kind=RecordKind.TERM_START), mark])
    world.sync()
    world.restart()
    found = list(world.log.records(CHANNEL))
    assert [(one.base_seq, one.kind, one.guid) for one in found] == [
        (one.base_seq, one.kind, one.guid) for one in all_records(world.log)
    ]
    assert [found[1], found[3]] == [config, mark]


def test_vote_is_refused_when_it_changes_within_its_term(world: Any) -> None:
    """S1.3, S13: one vote per term, whatever asks for another."""
    world.log.set_vote(CHANNEL, 2, None)
    world.log.set_vote(CHANNEL, 2, ALICE)
    world.log.set_vote(CHANNEL, 2, ALICE)
    with pytest.raises(PersistError, match=r"must not go to term 2 with the vote bob"):
        world.log.set_vote(CHANNEL, 2, BOB)


def test_vote_is_refused_when_its_term_is_lower(world: Any) -> None:
    """S13: a term never decreases."""
    world.log.set_vote(CHANNEL, 5, None)
    with pytest.raises(PersistError, match="is at term 5"):
        world.log.set_vote(CHANNEL, 4, ALICE)


def test_append_is_refused_when_it_leaves_a_gap_and_the_log_stops(world: Any) -> None:
    """S2.1: seqs are consecutive; S0.4: after an impossible request nothing goes on."""
    world.log.append(CHANNEL, [record(1)])
    with pytest.raises(PersistError, match=r"seq 3 .* cannot follow seq 1"):
        world.log.append(CHANNEL, [record(3)])
    with pytest.raises(PersistError, match="not usable any more"):
        world.log.append(CHANNEL, [record(2)])


def test_dropped_channel_is_refused_for_ever(world: Any) -> None:
    """S0.8: the id of a dropped table never votes, acknowledges or serves again."""
    world.log.append(CHANNEL, [record(1)])
    world.log.append(OTHER, [record(1)])
    world.log.drop_channel(CHANNEL)
    world.sync()
    for _ in range(2):
        assert world.log.channels() == (OTHER,)
        assert world.log.is_dropped(CHANNEL)
        with pytest.raises(UnknownChannelError, match="dropped table"):
            world.log.open_channel(CHANNEL)
        with pytest.raises(UnknownChannelError, match="dropped table"):
            world.log.append(CHANNEL, [record(2)])
        world.restart()


def test_failed_sync_poisons_the_log(world: Any) -> None:
    """S0.4: after a failed sync every call raises and nothing is counted durable."""
    world.log.append(CHANNEL, [record(1)])
    world.fail_next_sync()
    with pytest.raises(PersistError):
        world.sync()
    for call in (
        lambda: world.log.append(CHANNEL, [record(2)]),
        lambda: world.log.set_vote(CHANNEL, 9, ALICE),
        lambda: world.log.truncate(CHANNEL, 1),
        lambda: world.log.open_channel(CHANNEL),
        lambda: all_records(world.log),
        world.sync,
    ):
        with pytest.raises(PersistError, match="not usable any more"):
            call()
    assert world.log.durable_operation() < world.log.last_operation()


def test_log_works_again_after_a_restart_that_follows_a_failure(world: Any) -> None:
    """Given a failed write, the log works after a restart, with all of the write or a prefix."""
    world.log.append(CHANNEL, [record(1)])
    world.sync()
    world.log.append(CHANNEL, [record(2)])
    world.fail_next_sync()
    with pytest.raises(PersistError):
        world.sync()
    world.restart()
    assert all_records(world.log) in ([record(1)], [record(1), record(2)])
    assert world.log.open_channel(CHANNEL).shortfall is None
