"""The simulated disk loses what a real one may lose, and remembers what was promised (S0.3)."""

from __future__ import annotations

import random

from raftstore.state_machines.table import TableMachine
from raftstore.testing.sim_store import SimLog, SimTables
from raftstore.types import History
from tests.part_worlds import batch_record, chunk, pieces_of
from tests.storage_helpers import ALICE, CHANNEL, OTHER, all_records, record, rows_record


class LosesEverything(random.Random):
    """The worst disk: nothing that was not synced survives."""

    def randint(self, a: int, b: int) -> int:
        return a


def synced(log: SimLog) -> None:
    """One group commit."""
    log.sync_completed(log.last_operation())


def test_damage_makes_a_channel_recovering_until_its_records_are_back() -> None:
    """S0.3: also over further crashes; votes survive, as they do in the mark."""
    log = SimLog()
    log.set_vote(CHANNEL, 3, ALICE)
    log.append(OTHER, [record(1)])
    log.append(CHANNEL, [record(1), record(2)])
    log.append(CHANNEL, [record(3)])
    synced(log)
    for _ in range(3):
        log.crash(random.Random(0))
        log.damage(random.Random(0), operations=1)
        found = log.open_channel(CHANNEL)
        assert (found.term, found.voted_for, found.shortfall) == (3, ALICE, History(1, 3))
        assert all_records(log) == [record(1), record(2)][: found.last_seq]
        assert log.open_channel(OTHER).shortfall is None
    log.append(CHANNEL, [record(seq) for seq in range(log.open_channel(CHANNEL).last_seq + 1, 4)])
    synced(log)
    log.crash(random.Random(0))
    assert log.open_channel(CHANNEL).shortfall is None


def test_mark_lags_one_sync_unless_idle_or_a_vote() -> None:
    """The promise of the mark's module, modelled: damage within the lag is not noticed."""
    for covers in ("nothing", "idle", "vote"):
        log = SimLog()
        log.append(CHANNEL, [record(1)])
        synced(log)
        log.append(CHANNEL, [record(2)])
        if covers == "vote":
            log.set_vote(OTHER, 1, None)
        synced(log)
        if covers == "idle":
            log.write_mark()
        log.crash(random.Random(0))
        log.damage(random.Random(1), operations=2)
        held = log.open_channel(CHANNEL).last_seq
        promised = 1 if covers == "nothing" else 2
        expected = None if held >= promised else History(1, promised)
        assert log.open_channel(CHANNEL).shortfall == expected


def test_recovery_that_was_not_synced_is_forgotten_by_a_crash() -> None:
    """A promise is kept only durably."""
    log = SimLog()
    log.append(CHANNEL, [record(1), record(2)])
    synced(log)
    log.require(CHANNEL, History(1, 3))
    log.append(CHANNEL, [record(3)])
    assert log.open_channel(CHANNEL).shortfall is None
    log.crash(LosesEverything())
    assert all_records(log) == [record(1), record(2)]
    assert log.open_channel(CHANNEL).shortfall == History(1, 3)


def test_tables_beyond_a_damaged_log_prove_the_loss() -> None:
    """S10: as at a real start, they are emptied and the channel is recovering."""
    log, tables = SimLog(), SimTables()
    tables.open_channel(CHANNEL, TableMachine())
    records = [rows_record(1, {b"a": b"1"}), rows_record(2, {b"a": b"2"})]
    log.append(CHANNEL, records[:1])
    log.append(CHANNEL, records[1:])
    synced(log)
    tables.apply(CHANNEL, records)
    tables.apply_next()
    tables._undo.clear()
    log.crash(random.Random(0))
    log.damage(random.Random(0), operations=1)
    tables.crash(random.Random(0), log)
    assert log.open_channel(CHANNEL).shortfall == History(1, 2)
    assert tables.open_channel(CHANNEL, TableMachine()) == 0
    assert tables.get(CHANNEL, b"a") is None


def test_simulated_tables_with_slices_of_a_lost_record_are_emptied() -> None:
    """S0.3: as at a real start, its mark proves the loss."""
    log, tables = SimLog(), SimTables()
    tables.open_channel(CHANNEL, TableMachine())
    log.append(CHANNEL, [rows_record(1, {b"a": b"1"})])
    synced(log)
    tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    tables.apply_next()
    tables.apply_part(CHANNEL, pieces_of(batch_record(2), [[chunk([(b"b", b"2")])], []])[0])
    tables.apply_next()
    tables.crash(random.Random(0), log, keeps_all=True)
    assert log.open_channel(CHANNEL).shortfall == History(1, 2)
    assert tables.open_channel(CHANNEL, TableMachine()) == 0
    assert tables.unserved_until(CHANNEL) == 0
    assert tables.get(CHANNEL, b"a") is None
