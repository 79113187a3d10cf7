"""Identity, log and tables together: creation, restart, and what they prove about each other."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from raftstore.errors import (
    NewerFormatError,
    PromisesLostError,
    StorageError,
    StoreIdentityError,
)
from raftstore.state_machines.table import TableMachine
from raftstore.storage.store import Store, open_store
from raftstore.types import History, RecordKind, Seq
from tests.piece_worlds import chunk, pieces_of
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    SMALL,
    all_records,
    record,
    rows_record,
    table_path,
)

RECORDS = [rows_record(n, {b"%d" % n: b"v"}, term=2) for n in range(1, 6)]


def open_it(directory: Path, name: str = "n1") -> Store:
    """Open with small demands."""
    return open_store(directory, name, SMALL, free_bytes_min=0)


def fill(store: Store) -> None:
    """Five records in the log, all applied."""
    store.log.append(CHANNEL, RECORDS)
    store.log.flush()
    store.tables.open_channel(CHANNEL, TableMachine())
    store.tables.apply(CHANNEL, RECORDS)
    store.tables.apply_queued()


def bytes_of(directory: Path, part: str) -> dict[str, bytes]:
    """Every file of the log or of the tables."""
    return {
        str(path): path.read_bytes() for path in (directory / part).rglob("*") if path.is_file()
    }


def test_store_comes_back_as_it_was(tmp_path: Path) -> None:
    """Log, tables, identity and the way it ended."""
    store = open_it(tmp_path)
    fill(store)
    store.close(is_clean=True)
    again = open_it(tmp_path)
    assert again.notes == ()
    assert again.identity.node == store.identity.node
    assert again.identity.was_stopped_cleanly
    assert all_records(again.log) == RECORDS
    assert again.tables.open_channel(CHANNEL, TableMachine()) == 5
    again.close(is_clean=True)


def test_tables_beyond_the_log_prove_a_loss(tmp_path: Path) -> None:
    """S0.3, S10: only durable records are applied, so a log that is shorter than its tables lost
    acknowledged records, even ones the mark did not cover yet; the rows are built again."""
    store = open_it(tmp_path)
    log_path = tmp_path / "log" / "0000000000000001.log"
    store.log.append(CHANNEL, RECORDS[:2])
    store.log.flush()
    before, mark = log_path.read_bytes(), (tmp_path / "mark").read_bytes()
    store.log.append(CHANNEL, RECORDS[2:])
    store.log.flush()
    store.tables.open_channel(CHANNEL, TableMachine())
    store.tables.apply(CHANNEL, RECORDS)
    store.tables.apply_queued()
    store.close(is_clean=False)
    log_path.write_bytes(before)
    (tmp_path / "mark").write_bytes(mark)
    for _ in range(2):
        store = open_it(tmp_path)
        assert store.log.open_channel(CHANNEL).shortfall == History(2, 5)
        assert store.tables.open_channel(CHANNEL, TableMachine()) == 0
        assert store.tables.scan(CHANNEL, b"", b"", 9).rows == []
        store.close(is_clean=True)
    store = open_it(tmp_path)
    store.log.append(CHANNEL, RECORDS[2:])
    store.log.flush()
    store.close(is_clean=True)
    store = open_it(tmp_path)
    assert store.log.open_channel(CHANNEL).shortfall is None
    store.close(is_clean=True)


def test_store_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    """GAP-15: after a downgrade nothing is cut, put aside or built again; the next start says so,
    too, and the newer version finds everything."""
    store = open_it(tmp_path)
    fill(store)
    newer = [record(6, term=2, kind=cast(RecordKind, 99))]
    store.log.append(CHANNEL, newer)
    store.log.flush()
    store.close(is_clean=True)
    before = bytes_of(tmp_path, "log") | bytes_of(tmp_path, "tables")
    for _ in range(2):
        with pytest.raises(NewerFormatError, match=r"kind 99.*run a newer version"):
            open_it(tmp_path)
        assert bytes_of(tmp_path, "log") | bytes_of(tmp_path, "tables") == before
        assert not (tmp_path / "tables.rebuild").exists()
        assert not (tmp_path / "quarantine").exists()


def test_record_in_pieces_beyond_the_log_makes_the_channel_recovering(tmp_path: Path) -> None:
    """S0.3: its first slices were written, so it was durable; now the log has lost it."""
    store = open_it(tmp_path)
    log_path = tmp_path / "log" / "0000000000000001.log"
    fill(store)
    before, mark = log_path.read_bytes(), (tmp_path / "mark").read_bytes()
    lost = record(6, term=2, rows=3, kind=RecordKind.BATCH_APPLY)
    store.log.append(CHANNEL, [lost])
    store.log.flush()
    pieces = pieces_of(lost, [[chunk([(b"new", b"row")])], []])
    store.tables.apply_piece(CHANNEL, pieces[0])
    store.tables.apply_queued()
    store.close(is_clean=False)
    log_path.write_bytes(before)
    (tmp_path / "mark").write_bytes(mark)
    store = open_it(tmp_path)
    assert store.log.open_channel(CHANNEL).shortfall == History(2, 8)
    assert store.tables.open_channel(CHANNEL, TableMachine()) == 0
    assert store.tables.unserved_until(CHANNEL) == 0
    assert store.tables.scan(CHANNEL, b"", b"", 9).rows == []
    store.close(is_clean=True)


@pytest.mark.parametrize("applied", [4, 6])
def test_records_that_a_lost_truncation_brings_back_are_not_taken_for_applied(
    tmp_path: Path, applied: int
) -> None:
    """S2.5: the log lost its end, and the tables have applied what replaced its records."""
    store = open_it(tmp_path)
    log_path = tmp_path / "log" / "0000000000000001.log"
    stale = [rows_record(seq, {b"k": b"stale"}, term=1) for seq in range(1, 6)]
    store.log.append(CHANNEL, stale)
    store.log.flush()
    before = log_path.read_bytes()
    store.log.truncate(CHANNEL, Seq(3))
    newer = [rows_record(seq, {b"k": b"new"}, term=2) for seq in range(3, 7)]
    store.log.append(CHANNEL, newer)
    store.log.flush()
    store.tables.open_channel(CHANNEL, TableMachine())
    store.tables.apply(CHANNEL, [*stale[:2], *newer][:applied])
    store.tables.apply_queued()
    store.close(is_clean=False)
    log_path.write_bytes(before)
    store = open_it(tmp_path)
    found = store.log.open_channel(CHANNEL)
    assert (found.last_seq, found.shortfall) == (5, History(2, 6))
    assert store.tables.open_channel(CHANNEL, TableMachine()) == 0
    assert store.tables.scan(CHANNEL, b"", b"", 9).rows == []
    store.close(is_clean=True)


def test_tables_that_contradict_the_log_are_refused(tmp_path: Path) -> None:
    """A position inside the log, but of another term, cannot be explained by any crash."""
    store = open_it(tmp_path)
    fill(store)
    store.log.truncate(CHANNEL, 5)
    store.log.append(CHANNEL, [rows_record(5, {b"x": b"y"}, term=3)])
    store.log.flush()
    store.close(is_clean=True)
    with pytest.raises(PromisesLostError, match="applied a record of term 2 at seq 5"):
        open_it(tmp_path)


def test_rows_of_a_dropped_channel_are_removed_at_the_next_start(tmp_path: Path) -> None:
    """S0.8: a stop between the two drops leaves nothing behind."""
    store = open_it(tmp_path)
    fill(store)
    store.log.drop_channel(CHANNEL)
    store.log.flush()
    store.close(is_clean=True)
    store = open_it(tmp_path)
    assert store.tables.stored_channels() == ()
    store.close(is_clean=True)


def test_table_of_a_removed_replica_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """S0.1: a stop between the log and the table leaves nothing behind that a later one applies."""
    store = open_it(tmp_path)
    fill(store)
    store.log.remove_replica(CHANNEL, 0)
    store.log.flush()
    store.close(is_clean=True)
    store = open_it(tmp_path)
    assert store.tables.stored_channels() == ()
    assert store.log.open_channel(CHANNEL, 1).shortfall is None
    assert store.tables.open_channel(CHANNEL, TableMachine()) == 0
    store.close(is_clean=True)


def test_rebuilt_tables_are_told(tmp_path: Path) -> None:
    """Loudly: it costs time and says something about the disk."""
    store = open_it(tmp_path)
    fill(store)
    store.close(is_clean=True)
    (table_path(tmp_path) / "CURRENT").unlink()
    store = open_it(tmp_path)
    assert any("built again from the log" in note for note in store.notes)
    assert store.tables.open_channel(CHANNEL, TableMachine()) == 0
    assert all_records(store.log) == RECORDS
    store.close(is_clean=True)


def test_refused_store_is_unlocked_again(tmp_path: Path) -> None:
    """After any refusal the directory may still be opened by the right node."""
    store = open_it(tmp_path)
    store.log.set_vote(OTHER, 1, None)
    store.log.flush()
    store.close(is_clean=True)
    with pytest.raises(StoreIdentityError, match="belongs to node 'n1'"):
        open_it(tmp_path, "n2")
    mark = (tmp_path / "mark").read_bytes()
    (tmp_path / "mark").unlink()
    with pytest.raises(StorageError, match=r"the mark of .* is missing"):
        open_it(tmp_path)
    (tmp_path / "mark").write_bytes(mark)
    open_it(tmp_path).close(is_clean=True)


def test_new_store_has_nothing_to_tell_of_its_parts(tmp_path: Path) -> None:
    """Its tables were made with it: no start has to build them again."""
    store = open_it(tmp_path)
    assert store.notes == ()
    store.close(is_clean=True)
