"""States of before a micro-batch are kept for a while, and a few of them at most."""

from __future__ import annotations

import pytest

from raftstore.config import ReadSettings
from raftstore.engine.channel.versions import Versions
from raftstore.ports.tables import Piece
from raftstore.state_machines.table import TableMachine
from raftstore.testing.sim_tables import SimTables
from tests.piece_worlds import batch_record
from tests.storage_helpers import CHANNEL

KEEP_MS = 10


@pytest.fixture
def tables() -> SimTables:
    """Empty, with one channel open."""
    made = SimTables()
    made.open_channel(CHANNEL, TableMachine())
    return made


def apply_batch(tables: SimTables, versions: Versions, n: int, now_ms: int) -> None:
    """Commit ``n``, which replaces the state of the commit before."""
    tables.apply_piece(CHANNEL, Piece(batch_record(n), True, True, version=n - 1))
    versions.on_applied(now_ms)
    tables.apply_next()
    versions.on_applied(now_ms)
    versions.on_applied(now_ms + 1)


def test_states_are_kept_for_their_time_after_they_were_replaced(tables: SimTables) -> None:
    """The newest one that was replaced may be all that a reader of many channels waits for."""
    versions = Versions(tables, CHANNEL, ReadSettings(versions_keep_ms=KEEP_MS))
    assert versions.next_deadline_ms() is None
    for n, now_ms in ((1, 100), (2, 103), (3, 103)):
        apply_batch(tables, versions, n, now_ms)
    assert versions.next_deadline_ms() == 100 + KEEP_MS
    versions.on_timer(100 + KEEP_MS - 1)
    assert tables.versions(CHANNEL) == (0, 1, 2)
    versions.on_timer(100 + KEEP_MS)
    assert tables.versions(CHANNEL) == (1, 2)
    versions.on_timer(103 + KEEP_MS)
    assert tables.versions(CHANNEL) == ()
    assert versions.next_deadline_ms() is None


def test_no_more_states_are_kept_than_set(tables: SimTables) -> None:
    """The oldest goes first: each keeps what the database would have thrown away."""
    settings = ReadSettings(versions_max=2, versions_keep_ms=KEEP_MS)
    versions = Versions(tables, CHANNEL, settings)
    for n in range(1, 6):
        apply_batch(tables, versions, n, 100)
    assert tables.versions(CHANNEL) == (3, 4)
