"""The mark: what it remembers, what it refuses, and when it is written (S0.3)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from raftstore.errors import PromisesLostError, StoreIdentityError
from raftstore.storage.files import FileOps
from raftstore.storage.log import mark as mark_module
from raftstore.storage.log.mark import MARK_BYTES, Floor, MarkFile, MarkRow
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.testing.sim_files import ProcessEndedError, SimFiles
from raftstore.types import History, NodeId, Seq, Term, channel_id
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    OTHER,
    STORE_UUID,
    FaultyFiles,
    create_log,
    flip_bit,
    record,
)

ROW = MarkRow(7, ALICE, History(6, 1000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A mark with three entries behind its snapshot."""
    MarkFile.create(FileOps(), tmp_path / "mark", STORE_UUID)
    mark = MarkFile.open(FileOps(), tmp_path / "mark", STORE_UUID)
    mark.write({CHANNEL: MarkRow(1, None, History(1, 1))})
    mark.write({OTHER: MarkRow(dropped=True), CHANNEL: MarkRow(2, None, History(1, 9))})
    mark.write({CHANNEL: ROW})
    mark.sync()
    mark.close()
    return tmp_path / "mark"


def used_bytes(path: Path) -> int:
    """Bytes in front of the preallocated zeros."""
    return len(path.read_bytes().rstrip(b"\0"))


def rows_of(path: Path) -> dict[bytes, MarkRow]:
    """Rows of the mark after a start."""
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    mark.close()
    return dict(mark.rows)


def numbers_in(path: Path) -> list[int]:
    """The numbers of its entries, which follow each other without a gap."""
    data, offset, numbers = path.read_bytes(), 0, []
    while found := mark_module._entry_at(data, offset):
        numbers.append(found[0])
        offset += mark_module._HEADER.size + len(found[1])
    return numbers


def test_newest_row_per_channel_is_remembered(path: Path) -> None:
    """Term, vote, end and drop come back as they were."""
    assert rows_of(path) == {CHANNEL: ROW, OTHER: MarkRow(dropped=True)}


def test_torn_last_entry_leaves_the_ones_before(path: Path) -> None:
    """Its group commit never completed, so nothing it says was ever revealed."""
    size = used_bytes(path)
    data = path.read_bytes()
    for cut in range(size - 60, size):
        path.write_bytes(data[:cut] + bytes(len(data) - cut))
        assert rows_of(path)[CHANNEL] in (MarkRow(2, None, History(1, 9)), ROW)
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    mark.write({CHANNEL: ROW})
    mark.sync()
    mark.close()
    assert rows_of(path)[CHANNEL] == ROW


@pytest.mark.parametrize("back", [105, 150, 200, 260])
def test_damage_before_the_last_entry_is_refused(path: Path, back: int) -> None:
    """S0.1: an intact later entry proves that this one was synced: votes may be lost."""
    flip_bit(path, used_bytes(path) - back)
    with pytest.raises(PromisesLostError, match=r"is damaged.*must not vote"):
        MarkFile.open(FileOps(), path, STORE_UUID)


@pytest.mark.parametrize("size", [0, 10, 300, MARK_BYTES - 1])
def test_shortened_mark_is_refused(path: Path, size: int) -> None:
    """The file is preallocated, so a lost end shows."""
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(PromisesLostError, match=r"is damaged|has \d+ bytes instead of"):
        MarkFile.open(FileOps(), path, STORE_UUID)


def test_missing_mark_is_refused(path: Path) -> None:
    """S0.1: without the mark nobody knows how this node voted."""
    path.unlink()
    with pytest.raises(PromisesLostError, match=r"is missing.*put back what was there"):
        MarkFile.open(FileOps(), path, STORE_UUID)


def test_mark_of_another_store_is_refused(path: Path) -> None:
    """S0.1: a copied mark does not become this node's."""
    with pytest.raises(StoreIdentityError, match="belongs to store 000102"):
        MarkFile.open(FileOps(), path, bytes(16))


def test_mark_of_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GAP-15: an older program does not touch what it does not understand."""
    with monkeypatch.context() as newer:
        encode = partial(mark_module._encode_entry, version=9)
        newer.setattr(mark_module, "_encode_entry", encode)
        MarkFile.create(FileOps(), tmp_path / "mark", STORE_UUID)
    with pytest.raises(StoreIdentityError, match="format version 9"):
        MarkFile.open(FileOps(), tmp_path / "mark", STORE_UUID)


def test_full_mark_is_rewritten_aside(path: Path) -> None:
    """Write new, sync, rename, sync the directory: there is a whole mark at every moment."""
    ops = FaultyFiles()
    mark = MarkFile.open(ops, path, STORE_UUID)
    rows = {CHANNEL: ROW}
    while "rename" not in [method for method, _ in ops.calls]:
        ops.calls.clear()
        mark.write(rows)
    mark.sync()
    mark.close()
    steps = [("sync", "mark.new"), ("rename", "mark"), ("sync", path.parent.name + "/")]
    assert [call for call in ops.calls if call in steps] == steps
    assert path.stat().st_size == MARK_BYTES
    assert rows_of(path) == {CHANNEL: ROW, OTHER: MarkRow(dropped=True)}


@pytest.mark.parametrize("written_after", range(4))
def test_rewritten_mark_is_written_on_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_after: int
) -> None:
    """S0.3: entries behind the new snapshot continue its numbers, and none is lost or doubled."""
    monkeypatch.setattr(mark_module, "MARK_BYTES", 1_024)
    path = tmp_path / "mark"
    MarkFile.create(FileOps(), path, STORE_UUID)
    ops = FaultyFiles()
    mark = MarkFile.open(ops, path, STORE_UUID)
    mark.write({OTHER: MarkRow(dropped=True)})
    written = 2  # the snapshot of its creation is the first entry
    while ("rename", "mark") not in ops.calls:
        mark.write({CHANNEL: ROW})
        written += 1
    row = ROW
    for term in range(20, 20 + written_after):
        row = MarkRow(term, ALICE, History(6, 1000 + term))
        mark.write({CHANNEL: row})
    mark.sync()
    mark.close()
    assert [method for method, _ in ops.calls].count("rename") == 1, "there is room again"
    assert numbers_in(path) == [*range(written, written + written_after + 1)]
    assert rows_of(path) == {CHANNEL: row, OTHER: MarkRow(dropped=True)}
    again = MarkFile.open(FileOps(), path, STORE_UUID)
    later = MarkRow(30, ALICE, History(7, 2_000))
    again.write({CHANNEL: later})
    again.close()
    assert rows_of(path) == {CHANNEL: later, OTHER: MarkRow(dropped=True)}


def test_mark_is_written_whole_by_short_writes(path: Path) -> None:
    """An operating system may take less than it was given, at any offset."""
    ops = FaultyFiles()
    ops.write_at_most = 7
    mark = MarkFile.open(ops, path, STORE_UUID)
    rows = [MarkRow(term, ALICE, History(6, 1000 + term)) for term in (8, 9)]
    for row in rows:
        mark.write({CHANNEL: row})
    mark.sync()
    mark.close()
    assert rows_of(path) == {CHANNEL: rows[-1], OTHER: MarkRow(dropped=True)}


@pytest.mark.slow
def test_mark_grows_with_the_number_of_channels(path: Path) -> None:
    """Thousands of channels are no problem, and the file stays mostly free."""
    rows = {channel_id(b"t" * 16, n % 65536)[:-3] + n.to_bytes(3, "big"): ROW for n in range(8_000)}
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    for _ in range(4):
        mark.write(rows)
    mark.sync()
    mark.close()
    assert path.stat().st_size > MARK_BYTES
    assert len(rows_of(path)) == 8_002


def test_entry_that_fills_the_mark_to_its_last_byte_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has to make room: the file is then four times what its snapshot needs."""
    rows = {CHANNEL: ROW}
    sizes = [
        len(mark_module._encode_entry(number, STORE_UUID, 0, held))
        for number, held in ((1, {}), (2, rows), (3, rows))
    ]
    monkeypatch.setattr(mark_module, "MARK_BYTES", sum(sizes))
    path = tmp_path / "mark"
    MarkFile.create(FileOps(), path, STORE_UUID)
    ops = FaultyFiles()
    mark = MarkFile.open(ops, path, STORE_UUID)
    mark.write(rows)
    mark.write(rows)
    assert ("rename", "mark") not in ops.calls
    assert used_bytes(path) == path.stat().st_size == sum(sizes)
    assert rows_of(path) == rows
    mark.write(rows)
    assert ("rename", "mark") in ops.calls
    assert path.stat().st_size == 4 * sizes[1] > sum(sizes)
    mark.close()
    assert rows_of(path) == rows
    assert numbers_in(path) == [4]


def test_mark_is_closed_once(path: Path) -> None:
    """A second close must not take the descriptor of somebody else."""
    closed: list[int] = []

    class ClosedFiles(FileOps):
        def close(self, descriptor: int) -> None:
            closed.append(descriptor)
            super().close(descriptor)

    mark = MarkFile.open(ClosedFiles(), path, STORE_UUID)
    held = mark._descriptor
    closed.clear()
    for _ in range(3):
        mark.close()
    assert closed == [held]


def test_mark_never_goes_back_to_an_older_term(path: Path) -> None:
    """S0.3, S1.3: but a channel that is dropped is forgotten, whatever its term was."""
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    mark.write({CHANNEL: MarkRow(ROW.term + 1, None, ROW.durable)})
    with pytest.raises(AssertionError, match="would go from"):
        mark.write({CHANNEL: ROW})
    mark.write({CHANNEL: MarkRow(dropped=True)})
    mark.close()
    assert rows_of(path)[CHANNEL] == MarkRow(dropped=True)


def test_mark_never_takes_a_vote_back(path: Path) -> None:
    """S1.3: within a term it is given once; before it was given it may be."""
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    mark.write({CHANNEL: MarkRow(Term(20), None, ROW.durable)})
    mark.write({CHANNEL: MarkRow(Term(20), ALICE, ROW.durable)})
    for voted_for in (None, NodeId("bob@00")):
        with pytest.raises(AssertionError, match=r"the vote of channel .* would go from alice@00"):
            mark.write({CHANNEL: MarkRow(Term(20), voted_for, ROW.durable)})
    mark.write({CHANNEL: MarkRow(Term(21), None, ROW.durable)})
    mark.close()


def test_mark_promises_nothing_of_a_dropped_channel(path: Path) -> None:
    """S0.8: its id never votes or acknowledges again."""
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    mark.write({CHANNEL: MarkRow(dropped=True)})
    with pytest.raises(AssertionError, match="was dropped and is promised"):
        mark.write({CHANNEL: ROW})
    mark.close()


@pytest.mark.parametrize("voted_for", [None, ALICE])
@pytest.mark.parametrize("dropped", [False, True])
def test_row_of_a_mark_comes_back_as_it_was(
    path: Path, voted_for: NodeId | None, dropped: bool
) -> None:
    """Each flag by itself, and the largest numbers there are."""
    row = MarkRow(Term(2**64 - 1), voted_for, History(Term(2**63), Seq(2**62)), dropped)
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    mark.write({CHANNEL: row})
    mark.close()
    assert rows_of(path)[CHANNEL] == row


def trace(ops: FaultyFiles) -> list[tuple[str, str]]:
    """Writes and syncs of log and mark, then forgotten."""
    names = {"mark": "mark", "0000000000000001.log": "log"}
    calls = [(method, names[name]) for method, name in ops.calls if name in names]
    ops.calls.clear()
    return [call for call in calls if call[0] in ("write", "sync")]


def commit(log: SegmentLog) -> None:
    """Let everything buffered be acknowledged, without the pause that closes the mark's gap."""
    batch = log.take_pending()
    assert batch is not None
    log.committer.write_and_sync(batch)
    log.completed(batch)


def test_mark_lags_records_by_one_group_commit_and_no_more(tmp_path: Path) -> None:
    """The promise of the module: group N is written to the log, then N-1 to the mark, and N
    completes only when both are durable; an idle pause closes the gap."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20)
    ops.calls.clear()
    for seq in (1, 2):
        log.append(CHANNEL, [record(seq)])
        commit(log)
        expected = [("write", "log"), ("sync", "log")]
        if seq == 2:
            expected = [("write", "log"), ("write", "mark"), ("sync", "log"), ("sync", "mark")]
        assert trace(ops) == expected
        assert log.committer.is_mark_behind()
    assert rows_of(tmp_path / "mark")[CHANNEL].durable == History(1, 1)
    log.committer.write_mark()
    assert trace(ops)[:2] == [("write", "mark"), ("sync", "mark")]
    assert not log.committer.is_mark_behind()
    assert rows_of(tmp_path / "mark")[CHANNEL].durable == History(1, 2)
    log.close()


@pytest.mark.parametrize("is_vote_last", [True, False], ids=["vote last", "vote first"])
def test_mark_covers_votes_without_lag(tmp_path: Path, is_vote_last: bool) -> None:
    """S0.3, S0.5: a vote completes when log and mark hold it, in this order, whatever shares its
    group commit."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20)
    if is_vote_last:
        log.append(CHANNEL, [record(1)])
        log.set_vote(CHANNEL, 8, ALICE)
    else:
        log.set_vote(CHANNEL, 8, ALICE)
        log.append(CHANNEL, [record(1)])
    ops.calls.clear()
    commit(log)
    assert trace(ops) == [("write", "log"), ("sync", "log"), ("write", "mark"), ("sync", "mark")]
    assert rows_of(tmp_path / "mark")[CHANNEL] == MarkRow(8, ALICE, History(1, 1))
    log.close()


def test_vote_keeps_what_the_mark_lags_behind_in_another_channel(tmp_path: Path) -> None:
    """S0.3: a vote writes the mark out of turn; the row that waited for its turn goes with it."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(1)])
    commit(log)
    log.set_vote(OTHER, 8, ALICE)
    commit(log)
    assert rows_of(tmp_path / "mark") == {
        CHANNEL: MarkRow(0, None, History(1, 1)),
        OTHER: MarkRow(8, ALICE, History(0, 0)),
    }
    assert not log.committer.is_mark_behind()
    log.close()


@pytest.mark.parametrize("operations", range(6))
def test_vote_is_kept_after_a_process_was_killed_while_it_replaced_the_mark(
    operations: int,
) -> None:
    """S0.3, S1.3: the next start makes the name of the new mark durable before it writes there; a
    power cut would bring the old mark back, and a second vote in one term with it."""
    place = Path("/disk/mark")
    ended = 0
    for seed in range(8):
        files = SimFiles(random.Random(seed), place.parent)
        MarkFile.create(files, place, STORE_UUID)
        mark = MarkFile.open(files, place, STORE_UUID)
        files.end_after(operations)
        try:
            mark.raise_floor(Floor(2, 7), {})
        except ProcessEndedError:
            ended += 1
        files.end_process()
        mark = MarkFile.open(files, place, STORE_UUID)
        mark.write({CHANNEL: ROW})
        mark.sync()
        files.lose_power()
        assert MarkFile.open(files, place, STORE_UUID).rows == {CHANNEL: ROW}
    assert ended in (0, 8)
    assert ended or operations == 5, "the last operation of replacing it is not tried"
