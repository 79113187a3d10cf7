"""Records that a log forgets without a proof that nobody needs them stay promised (S0.3).

What is kept behind a hole is given up, or all of a log is put aside, while the mark still lacks the
newest acknowledged record: it lags by one group commit. Power is lost at every operation on the
disk. The replica has to hold that record afterwards, or be recovering up to it: otherwise it would
vote for a leader that lacks what it acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from raftstore.ports.log import EMPTY_BASE
from raftstore.ports.scrub import LogDamage
from raftstore.storage.log.index import offset_of, segment_of
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.log.segments import segment_path
from raftstore.testing.sim_files import ProcessEndedError, SimFiles
from raftstore.types import History, Seq, Term
from tests.storage_helpers import ALICE, CHANNEL, OTHER, SMALL, STORE_UUID, record

ROOT = Path("/sim")
NEWEST = Seq(6)
ACKNOWLEDGED = History(Term(1), NEWEST)
LOSSES = 6
"""Different losses of power at the same operation."""


def open_sim(files: SimFiles) -> SegmentLog:
    """The log that these files hold."""
    return SegmentLog(files, ROOT, STORE_UUID, SMALL)


def commit(log: SegmentLog) -> None:
    """Make everything durable; the mark lags by the newest group commit."""
    while (batch := log.take_pending()) is not None:
        log.committer.write_and_sync(batch)
        log.completed(batch)


def acknowledged(files: SimFiles) -> SegmentLog:
    """A log of six records, of which the mark has five; all of them were acknowledged."""
    SegmentLog.create(files, ROOT, STORE_UUID)
    files.sync_directory(ROOT)
    log = open_sim(files)
    log.set_vote(CHANNEL, Term(1), ALICE)
    log.append(CHANNEL, [record(seq) for seq in range(1, NEWEST)])
    log.append(OTHER, [record(1)])
    log.flush()
    log.append(CHANNEL, [record(NEWEST)])
    commit(log)
    return log


def give_up(log: SegmentLog, files: SimFiles) -> None:
    """The third record is found damaged, and a leader says that what is behind it never counted."""
    index = log.index_of(CHANNEL)
    assert index is not None
    position = index.positions[2]
    damaged = offset_of(position) + 30
    files.damage(segment_path(ROOT / "log", segment_of(position)), damaged, b"bits")
    damage = LogDamage(segment_of(position), offset_of(position), damaged, "its bytes are others")
    log.verifying.lose(CHANNEL, damage)
    log.give_up(CHANNEL)
    log.flush()


def put_aside(log: SegmentLog, files: SimFiles) -> None:
    """A quorum has another history than this replica (S13)."""
    del files
    log.verifying.doubt(CHANNEL)
    log.rebase(CHANNEL, EMPTY_BASE)
    log.give_up(CHANNEL)
    log.flush()


@pytest.mark.slow
@pytest.mark.parametrize("forget", [give_up, put_aside])
def test_what_was_acknowledged_last_stays_promised_wherever_power_is_lost(
    forget: Callable[[SegmentLog, SimFiles], None],
) -> None:
    """S0.3: at every operation on the disk, and after the last one."""
    operation, has_ended = 0, True
    while has_ended:
        for number in range(LOSSES):
            files = SimFiles(random.Random(100 * number + operation), ROOT)
            log = acknowledged(files)
            files.end_after(operation)
            try:
                forget(log, files)
            except ProcessEndedError:
                has_ended = True
            else:
                has_ended = False
            files.lose_power()
            found = open_sim(files).open_channel(CHANNEL)
            is_promised = found.shortfall is not None and found.shortfall >= ACKNOWLEDGED
            assert is_promised or found.last_seq >= NEWEST, (operation, number, found)
        operation += 1
    assert operation > 5
