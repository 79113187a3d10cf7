"""Log and tables compared at a start, channel by channel: what stays, what is built again (S10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.core.folds import advance
from raftstore.errors import PromisesLostError
from raftstore.ports.log import EMPTY_BASE
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.reconcile import reconcile
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER, create_log, open_log, record

NOT_HELD = History(Term(1), Seq(4))
RECORDS = [record(1), record(2), record(3)]


class Tables:
    """Tables of which nothing is known but their positions; they note what is reset."""

    def __init__(self, **positions: History) -> None:
        """``applied``, ``marker`` and ``copied`` of the first channel."""
        self._first = positions
        self.reset: list[ChannelId] = []
        self.begun: list[ChannelId] = []

    def stored_channels(self) -> tuple[ChannelId, ...]:
        """The first channel, and one whose table is ahead of its log."""
        return CHANNEL, OTHER

    def stored_position(self, channel: ChannelId) -> History:
        """Of the last applied record."""
        return self._first.get("applied", EMPTY_HISTORY) if channel == CHANNEL else NOT_HELD

    def stored_marker(self, channel: ChannelId) -> History:
        """Of a record that was being written."""
        return self._first.get("marker", EMPTY_HISTORY) if channel == CHANNEL else EMPTY_HISTORY

    def copied_position(self, channel: ChannelId) -> History:
        """Of a copy."""
        return self._first.get("copied", EMPTY_HISTORY) if channel == CHANNEL else EMPTY_HISTORY

    def begun_channels(self) -> tuple[ChannelId, ...]:
        """Copies that were begun."""
        return tuple(self.begun)

    def forget_copy(self, channel: ChannelId) -> None:
        """Note it."""
        self.begun.remove(channel)

    def reset_channel(self, channel: ChannelId) -> None:
        """Note it."""
        self.reset.append(channel)


@pytest.fixture
def log(tmp_path: Path) -> SegmentLog:
    """A log of two channels with three records each."""
    made = create_log(tmp_path)
    made.append(CHANNEL, RECORDS)
    made.append(OTHER, RECORDS)
    made.flush()
    return made


def shortfall(log: SegmentLog, channel: ChannelId = CHANNEL) -> History | None:
    """The record of a channel up to which the log says that it lacks some."""
    return log.open_channel(channel).shortfall


def at(seq: int, term: int = 1) -> History:
    """A position."""
    return History(Term(term), Seq(seq))


def judged(log: SegmentLog, tables: Tables) -> tuple[list[str], list[ChannelId]]:
    """Notes and resets of the first channel; the one behind it is compared in any case."""
    notes = reconcile(log, tables)
    assert tables.reset[-1] == OTHER
    assert shortfall(log, OTHER) == NOT_HELD
    assert notes[-1] == (
        f"channel {OTHER.hex()} had applied up to (1, 4), which its log does not "
        "hold: it is recovering (S0.3) and its rows are built again from the log"
    )
    log.close()
    return notes[:-1], tables.reset[:-1]


@pytest.mark.parametrize("applied", [EMPTY_HISTORY, at(1), at(3)])
def test_table_that_is_not_ahead_of_its_log_stays(log: SegmentLog, applied: History) -> None:
    """Nothing is reported, and the channel is whole."""
    assert shortfall_then(log, Tables(applied=applied)) == ([], [], None)


def test_table_of_a_dropped_channel_is_emptied_without_a_word(log: SegmentLog) -> None:
    """S0.8: its id is refused for ever, whatever its table had applied."""
    log.drop_channel(CHANNEL)
    log.flush()
    assert judged(log, Tables(applied=at(9))) == ([], [CHANNEL])


@pytest.mark.parametrize(
    ("applied", "marker"), [(at(4), at(0)), (at(2), at(4)), (at(4), at(3)), (at(0), at(4))]
)
def test_table_ahead_of_its_log_is_built_again(
    log: SegmentLog, applied: History, marker: History
) -> None:
    """S0.3: only what was committed is applied, so the log lost it; pieces of a record count."""
    notes, reset = judged(log, Tables(applied=applied, marker=marker))
    assert reset == [CHANNEL]
    assert len(notes) == 1
    assert notes[0].startswith(f"channel {CHANNEL.hex()} had applied up to (1, 4), ")


def test_log_remembers_over_a_start_what_a_table_had_applied(
    log: SegmentLog, tmp_path: Path
) -> None:
    """S0.3: the table is built again and proves nothing any more; the mark does."""
    reconcile(log, Tables(applied=at(5)))
    assert shortfall(log) == at(5)
    log.close()
    again = open_log(tmp_path)
    assert shortfall(again) == at(5)
    again.close()


def test_copied_table_stays_ahead_of_its_log(log: SegmentLog) -> None:
    """S6.4: no log here could build it; the replica is recovering until its log has come so far.

    S0.3: nothing of it was acknowledged here, so the log lacks no promise and the replica votes.
    """
    tables = Tables(applied=at(7), copied=at(7))
    notes = [
        f"channel {CHANNEL.hex()} has a table copied up to (1, 7), which "
        "its log does not hold yet: it is recovering (S0.3)"
    ]
    assert shortfall_then(log, tables) == (notes, [], None)


def shortfall_then(
    log: SegmentLog, tables: Tables
) -> tuple[list[str], list[ChannelId], History | None]:
    """The same as ``judged``, and what the log lacks then."""
    notes = reconcile(log, tables)
    found = shortfall(log)
    assert tables.reset[-1] == OTHER
    log.close()
    return notes[:-1], tables.reset[:-1], found


def test_copied_table_that_applied_more_is_judged_as_any_other(log: SegmentLog) -> None:
    """Records applied behind the copy came from this log."""
    notes, reset, found = shortfall_then(log, Tables(applied=at(8), copied=at(7)))
    assert (len(notes), reset, found) == (1, [CHANNEL], at(8))


def test_table_in_front_of_a_base_is_never_emptied(log: SegmentLog) -> None:
    """S6.5: the records that built it are gone, so it is kept and the replica recovers."""
    log.rebase(CHANNEL, advance(EMPTY_BASE, RECORDS[:2]))
    log.flush()
    notes, reset, found = shortfall_then(log, Tables(applied=at(5)))
    assert notes == [
        f"channel {CHANNEL.hex()} had applied up to (1, 5), which its log does "
        "not hold: it is recovering (S0.3)"
    ]
    assert (reset, found) == ([], at(5))


def test_record_of_another_term_in_a_whole_log_is_refused(log: SegmentLog) -> None:
    """S10: one of log and table is of another time, and it cannot be known which."""
    tables = Tables(applied=at(2, term=3))
    with pytest.raises(PromisesLostError) as raised:
        reconcile(log, tables)
    assert str(raised.value).startswith(
        f"channel {CHANNEL.hex()} applied a record of term 3 at seq 2, its log holds term 1 there, "
    )
    assert (tables.reset, shortfall(log)) == ([], None)
    log.close()


def test_record_of_another_term_in_a_log_that_lacks_some_is_explained(log: SegmentLog) -> None:
    """A lost truncation brings back what it removed: the rows are built again."""
    log.require(CHANNEL, at(6))
    notes, reset, found = shortfall_then(log, Tables(applied=at(2, term=3)))
    assert (len(notes), reset, found) == (1, [CHANNEL], at(2, term=3))
