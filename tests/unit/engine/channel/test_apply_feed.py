"""Committed records reach the table in order, once, a bounded amount at a time (S4.2, S10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftstore.engine.channel import apply_feed
from raftstore.engine.channel.apply_feed import HALTS_MAX, STEPS_AHEAD, ApplyFeed
from raftstore.state_machines.table import TableMachine
from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_tables import SimTables
from raftstore.types import Seq
from tests.storage_helpers import CHANNEL, rows_record

RECORDS = 7


@pytest.fixture
def tables() -> SimTables:
    """Empty tables with the channel open."""
    made = SimTables()
    made.open_channel(CHANNEL, TableMachine())
    return made


@pytest.fixture
def feed(tables: SimTables, monkeypatch: pytest.MonkeyPatch) -> ApplyFeed:
    """A feed over a log with more records than one step takes: each step takes one."""
    monkeypatch.setattr(apply_feed, "APPLY_BYTES_PER_STEP", 1)
    log = SimLog.new()
    log.append(CHANNEL, [rows_record(n, {b"k": b"%d" % n}) for n in range(1, RECORDS + 1)])
    return ApplyFeed(log, tables, CHANNEL, Seq(0), pytest.fail, None)


def drain(feed: ApplyFeed, tables: SimTables) -> list[Any]:
    """Apply what is queued and say so, until nothing follows."""
    applied = []
    while tables.has_queued():
        applied.append(tables.apply_next()[1])
        feed.on_applied()
    return applied


def test_records_are_handed_over_in_order_and_once(feed: ApplyFeed, tables: SimTables) -> None:
    """S10: whatever the commit position does meanwhile."""
    feed.advance(Seq(3))
    feed.advance(Seq(2))
    assert drain(feed, tables) == [1, 2, 3]
    feed.advance(Seq(RECORDS))
    assert drain(feed, tables) == [*range(4, RECORDS + 1)]


def test_nothing_beyond_the_commit_is_handed_over(feed: ApplyFeed, tables: SimTables) -> None:
    """S4.2: uncommitted records are invisible, and may still be truncated."""
    feed.advance(Seq(4))
    drain(feed, tables)
    assert tables.applied_seq(CHANNEL) == feed.queued_seq == 4


def test_no_more_than_two_steps_are_under_way(feed: ApplyFeed, tables: SimTables) -> None:
    """A replica that is far behind must not read its whole log into memory."""
    feed.advance(Seq(RECORDS))
    assert feed.queued_seq == STEPS_AHEAD
    tables.apply_next()
    feed.on_applied()
    assert feed.queued_seq == STEPS_AHEAD + 1


def test_somebody_sees_the_table_at_a_position_and_nothing_behind_it(
    feed: ApplyFeed, tables: SimTables
) -> None:
    """Nothing is handed over before it was seen; those who forgot it see nothing."""
    seen: list[tuple[int, Seq]] = []

    def see(token: int) -> Callable[[], None]:
        return lambda: seen.append((token, tables.applied_seq(CHANNEL)))

    for token, seq in enumerate((5, 2, 5, 6)):
        assert feed.halt_at(Seq(seq), token, see(token))
    feed.forget_halt(3)
    feed.advance(Seq(RECORDS))
    assert drain(feed, tables) == [*range(1, RECORDS + 1)]
    assert seen == [(1, 2), (0, 5), (2, 5)]
    assert feed.halt_at(Seq(3), 4, see(4))
    assert seen[-1] == (4, RECORDS)


def test_position_is_seen_in_the_middle_of_what_was_read_from_the_log(
    tables: SimTables,
) -> None:
    """One read gives many records: those behind the position wait for the next step."""
    log = SimLog.new()
    log.append(CHANNEL, [rows_record(n, {b"k": b"%d" % n}) for n in range(1, RECORDS + 1)])
    feed = ApplyFeed(log, tables, CHANNEL, Seq(0), pytest.fail, None)
    seen: list[Seq] = []
    assert feed.halt_at(Seq(4), 1, lambda: seen.append(tables.applied_seq(CHANNEL)))
    feed.advance(Seq(RECORDS))
    assert feed.queued_seq == 4
    assert drain(feed, tables) == [4, RECORDS]
    assert seen == [4]


def test_so_many_may_wait_for_positions(feed: ApplyFeed) -> None:
    """Each costs the channel a step ahead."""
    for token in range(HALTS_MAX):
        assert feed.halt_at(Seq(RECORDS), token, pytest.fail)
    assert not feed.halt_at(Seq(RECORDS), HALTS_MAX, pytest.fail)
    feed.forget_halt(0)
    assert feed.halt_at(Seq(RECORDS), HALTS_MAX, pytest.fail)
