"""Log and tables compared at the start, when the log begins behind a base (S0.3, S10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.core.folds import advance
from raftstore.ports.log import EMPTY_BASE
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.reconcile import reconcile
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER, create_log, flip_bit, open_log, record

END = History(Term(1), Seq(40))


class Tables:
    """Tables that had applied everything up to ``END``."""

    def __init__(self) -> None:
        self.resets: list[ChannelId] = []
        self.begun: list[ChannelId] = []

    def stored_channels(self) -> tuple[ChannelId, ...]:
        return (CHANNEL,)

    def stored_position(self, channel: ChannelId) -> History:
        del channel
        return END

    def stored_marker(self, channel: ChannelId) -> History:
        del channel
        return EMPTY_HISTORY

    def copied_position(self, channel: ChannelId) -> History:
        del channel
        return EMPTY_HISTORY

    def begun_channels(self) -> tuple[ChannelId, ...]:
        """Copies that were begun."""
        return tuple(self.begun)

    def forget_copy(self, channel: ChannelId) -> None:
        """Note it."""
        self.begun.remove(channel)

    def reset_channel(self, channel: ChannelId) -> None:
        self.resets.append(channel)


def cut_end(directory: Path, *, base_seq: int = 0, raises_floor: bool = False) -> SegmentLog:
    """A log that lost its last records, and with them all that the mark knew of them."""
    log = create_log(directory)
    for seq in range(1, 31):
        log.append(CHANNEL, [record(seq)])
    if base_seq:
        log.rebase(CHANNEL, advance(EMPTY_BASE, [record(seq) for seq in range(1, base_seq + 1)]))
    if raises_floor:
        log.begin_floor(log.floor_max())
    log.flush()
    log.close()
    return open_log(directory)


@pytest.mark.parametrize(
    ("base_seq", "raises_floor", "is_reset"),
    [(0, False, True), (20, False, False), (20, True, False), (30, True, False)],
)
def test_rows_are_built_again_only_from_a_log_that_holds_all(
    tmp_path: Path, base_seq: int, raises_floor: bool, is_reset: bool
) -> None:
    """A log that begins behind a base would leave out what it does not hold any more."""
    log = cut_end(tmp_path, base_seq=base_seq, raises_floor=raises_floor)
    tables = Tables()
    (note,) = reconcile(log, tables)
    assert tables.resets == [CHANNEL] * is_reset
    assert ("built again" in note) == is_reset
    found = log.open_channel(CHANNEL)
    assert (found.shortfall, found.base.seq) == (END, base_seq)
    log.close()


def test_rows_stay_when_the_entry_of_the_base_is_damaged(tmp_path: Path) -> None:
    """Above a floor a log without a base does not say that it holds all."""
    log = create_log(tmp_path)
    for seq in range(1, 41):
        log.append(CHANNEL, [record(seq)])
    log.rebase(CHANNEL, advance(EMPTY_BASE, [record(seq) for seq in range(1, 41)]))
    number, place = log._segment, log._offset - 50
    log.append(OTHER, [record(1)])
    while log.floor() < log.floor_max():
        log.begin_floor(log.floor_max())
    log.flush()
    log.close()
    flip_bit(tmp_path / "log" / f"{number:016d}.log", place)
    log = open_log(tmp_path)
    tables = Tables()
    assert log.open_channel(CHANNEL).base == EMPTY_BASE
    assert log.floor() > 1
    reconcile(log, tables)
    assert tables.resets == []
    assert log.open_channel(CHANNEL).shortfall == END
    log.close()
