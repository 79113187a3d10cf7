"""Recovery of a log that differs from how it was left (S0.1, S0.2, S0.3)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from raftstore.errors import (
    CorruptRecordError,
    NewerFormatError,
    PromisesLostError,
    StorageError,
    StoreIdentityError,
)
from raftstore.storage.files import FileOps
from raftstore.storage.log import records
from raftstore.storage.log.records import HEADER, decode_entries, first_chain
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.types import History, NodeId, RecordKind
from tests.storage_helpers import (
    ALICE,
    BOB,
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    all_records,
    create_log,
    flip_bit,
    open_log,
    record,
)

FIRST = "0000000000000001.log"
SECOND = "0000000000000002.log"
Damage = Callable[[Path], None]


def entry_offsets(path: Path) -> list[int]:
    """Where the entries of the first segment start."""
    return [at for at, *_ in decode_entries(path.read_bytes(), first_chain(STORE_UUID))]


def files_of(directory: Path) -> dict[str, bytes]:
    """Everything below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A closed log in one segment: vote, record 1-3 of a channel, a truncation, record 3 again,
    one record of another channel, and the mark that covers it all."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.set_vote(CHANNEL, 3, ALICE)
    log.append(CHANNEL, [record(1), record(2), record(3)])
    log.truncate(CHANNEL, 3)
    log.append(CHANNEL, [record(3, term=3)])
    log.append(OTHER, [record(1)])
    log.flush()
    log.close()
    return tmp_path


@pytest.fixture
def rolled(tmp_path: Path) -> Path:
    """A closed log of several segments with 30 records of one channel and one of another."""
    log = create_log(tmp_path, segment_bytes=500)
    log.append(OTHER, [record(1)])
    for seq in range(1, 31):
        log.append(CHANNEL, [record(seq)])
    log.flush()
    log.close()
    assert len(list((tmp_path / "log").iterdir())) > 5
    return tmp_path


@pytest.mark.slow
def test_torn_tail_is_cut_off_at_whatever_byte_it_ends(tmp_path: Path) -> None:
    """S0.3: what was written but never acknowledged may be torn; the rest is untouched."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(1), record(2)])
    log.flush()
    path = tmp_path / "log" / FIRST
    promised = path.stat().st_size
    mark = (tmp_path / "mark").read_bytes()
    log.append(CHANNEL, [record(3), record(4)])
    log.set_vote(OTHER, 1, None)
    log.flush()
    log.close()
    (tmp_path / "mark").write_bytes(mark)
    whole = path.read_bytes()
    for size in range(promised, len(whole)):
        path.write_bytes(whole[:size])
        log = open_log(tmp_path)
        assert all_records(log)[:2] == [record(1), record(2)]
        assert log.open_channel(CHANNEL).shortfall is None
        log.append(CHANNEL, [record(log.open_channel(CHANNEL).last_seq + 1, term=2)])
        log.flush()
        log.close()
        again = open_log(tmp_path)
        assert again.notes == ()
        assert all_records(again)[-1].term == 2
        again.close()
        (tmp_path / "mark").write_bytes(mark)
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.parametrize(
    ("entry", "held", "hole"),
    [
        (1, 3, None),
        (2, 0, (1, 1)),
        (3, 1, (2, 2)),
        (4, 3, None),
        (5, 3, None),
        (6, 2, (3, 3)),
    ],
    ids=["vote", "first", "second", "removed", "truncation", "third again"],
)
def test_flipped_bit_costs_the_record_it_hits(
    written: Path, entry: int, held: int, hole: tuple[int, int] | None
) -> None:
    """S0.3: a damaged acknowledged record is missed, and nothing else is, whatever its kind."""
    path = written / "log" / FIRST
    offset = entry_offsets(path)[entry]
    flip_bit(path, offset + HEADER.size + 25)
    before = path.read_bytes()
    log = open_log(written)
    found = log.open_channel(CHANNEL)
    assert all_records(log) == [record(1), record(2), record(3, term=3)][:held]
    assert log.open_channel(OTHER).shortfall is None
    assert all_records(log, OTHER) == [record(1)]
    assert (found.term, found.voted_for) == (3, ALICE)
    if hole is None:
        assert (found.shortfall, found.hole) == (None, None)
    else:
        assert found.shortfall == History(3, 3)
        assert found.hole is not None
        assert (found.hole.from_seq, found.hole.to_seq) == hole
        assert any("recovering" in note for note in log.notes)
    assert any(f"{FIRST} is damaged at byte {offset}" in note for note in log.notes)
    assert path.read_bytes() == before


@pytest.mark.parametrize("field", [0, 4, 8], ids=["length", "crc", "chain"])
def test_flipped_bit_in_a_header_is_mended(written: Path, field: int) -> None:
    """The chain proves what length and checksum were, as long as the body is intact."""
    path = written / "log" / FIRST
    before = path.read_bytes()
    flip_bit(path, entry_offsets(path)[3] + field)
    log = open_log(written)
    assert all_records(log) == [record(1), record(2), record(3, term=3)]
    assert log.open_channel(CHANNEL).shortfall is None
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[: entry_offsets(path)[-1]]),
        lambda path: path.write_bytes(path.read_bytes()[: entry_offsets(path)[-1]] + bytes(4096)),
    ],
    ids=["torn", "cut at an entry's edge", "zeroed"],
)
def test_lost_end_is_noticed_by_the_mark(written: Path, damage: Damage) -> None:
    """S0.3: a chain of checksums cannot see a cut at an entry's edge; the mark does, and only the
    channel that lost something is recovering."""
    damage(written / "log" / FIRST)
    log = open_log(written)
    assert log.open_channel(OTHER).shortfall == History(1, 1)
    assert log.open_channel(CHANNEL).shortfall is None
    assert all_records(log) == [record(1), record(2), record(3, term=3)]


def test_start_lets_the_mark_cover_what_it_lagged_behind_at_the_crash(tmp_path: Path) -> None:
    """S0.3: the last group commit before a crash was acknowledged, too, and no later one came."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log.flush()
    size = (tmp_path / "log" / FIRST).stat().st_size
    log.append(CHANNEL, [record(2)])
    batch = log.take_pending()
    assert batch is not None
    log.committer.write_and_sync(batch)
    assert log.committer.is_mark_behind()
    log.close()  # as a crash: the mark is not written
    open_log(tmp_path).close()
    with (tmp_path / "log" / FIRST).open("r+b") as file:
        file.truncate(size)
    assert open_log(tmp_path).open_channel(CHANNEL).shortfall == History(1, 2)


def test_zeroed_tail_is_cut_off_when_nothing_was_promised_there(written: Path) -> None:
    """A file system may leave zeros where a write was lost: an empty entry they are not."""
    path = written / "log" / FIRST
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(4096))
    log = open_log(written)
    assert log.open_channel(CHANNEL).shortfall is None
    assert path.stat().st_size == size


def test_channel_stays_recovering_over_restarts_until_it_has_its_records_again(
    written: Path,
) -> None:
    """S0.3: a second restart does not forget that acknowledged records are missing."""
    path = written / "log" / FIRST
    path.write_bytes(path.read_bytes()[: entry_offsets(path)[3]])
    log = open_log(written)
    assert log.open_channel(CHANNEL).shortfall == History(3, 3)
    log.append(CHANNEL, [record(2)])
    log.set_vote(CHANNEL, 4, None)
    log.flush()
    log.close()
    log = open_log(written)
    assert log.open_channel(CHANNEL).shortfall == History(3, 3)
    log.append(CHANNEL, [record(3, term=3)])
    log.flush()
    log.close()
    log = open_log(written)
    assert log.open_channel(CHANNEL).shortfall is None


def test_recovery_ends_when_a_later_term_took_the_place(written: Path) -> None:
    """Verified past the mark: the leader's log of a later term counts as well."""
    path = written / "log" / FIRST
    path.write_bytes(path.read_bytes()[: entry_offsets(path)[3]])
    log = open_log(written)
    log.append(CHANNEL, [record(2, term=5)])
    log.flush()
    log.close()
    log = open_log(written)
    assert log.open_channel(CHANNEL).shortfall is None


def test_truncated_record_is_no_loss(tmp_path: Path) -> None:
    """S2.5: what a truncation removed was promised once, and then proven uncommitted; a mark that
    still names it, as one group commit of lag allows, makes nobody recovering."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1), record(2), record(3)])
    log.flush()
    mark = (tmp_path / "mark").read_bytes()
    for step in ("truncated", "replaced"):
        log.truncate(CHANNEL, 2)
        if step == "replaced":
            log.append(CHANNEL, [record(2, term=2)])
        log.flush()
        log.close()
        (tmp_path / "mark").write_bytes(mark)
        log = open_log(tmp_path)
        assert log.open_channel(CHANNEL).shortfall is None


def test_record_of_a_lower_term_is_missed_too(tmp_path: Path) -> None:
    """The mark names a record, not a maximum: one that replaced a higher term is remembered."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(1), record(2, term=4)])
    log.truncate(CHANNEL, 2)
    log.append(CHANNEL, [record(2, term=3)])
    log.flush()
    log.close()
    path = tmp_path / "log" / FIRST
    path.write_bytes(path.read_bytes()[: entry_offsets(path)[-1]])
    assert open_log(tmp_path).open_channel(CHANNEL).shortfall == History(3, 2)


@pytest.mark.parametrize("lost", [1, 2, 3], ids=["first", "second", "third"])
def test_missing_segment_costs_what_was_in_it(rolled: Path, lost: int) -> None:
    """S0.3: what is behind it is kept, and taken again when others gave back what is missing."""
    (rolled / "log" / f"{lost:016d}.log").unlink()
    log = open_log(rolled, segment_bytes=500)
    found = log.open_channel(CHANNEL)
    assert found.shortfall == History(1, 30)
    assert found.hole is not None
    assert 1 < found.hole.to_seq < 30
    held = all_records(log)
    assert held == [record(seq) for seq in range(1, found.hole.from_seq)]
    assert (log.open_channel(OTHER).shortfall is None) == (lost > 1)
    for seq in range(found.hole.from_seq, found.hole.to_seq + 1):
        log.fill(CHANNEL, [record(seq)])
    log.flush()
    for _ in range(2):
        assert log.open_channel(CHANNEL).shortfall is None
        assert all_records(log) == [record(seq) for seq in range(1, 31)]
        log.close()
        log = open_log(rolled, segment_bytes=500)


def test_deleted_last_segment_is_noticed_by_the_mark(rolled: Path) -> None:
    """S0.3: the remaining files form an intact chain, and yet records are missing."""
    max((rolled / "log").iterdir()).unlink()
    log = open_log(rolled, segment_bytes=500)
    assert log.open_channel(CHANNEL).shortfall == History(1, 30)
    assert log.open_channel(OTHER).shortfall is None
    assert 0 < len(all_records(log)) < 30


@pytest.mark.parametrize(("where", "lost"), [(0, 0), (20, 0), (200, 1)])
def test_damage_in_an_earlier_segment_costs_one_record_at_most(
    rolled: Path, where: int, lost: int
) -> None:
    """Later entries continue the chain, whatever became of the damaged one."""
    flip_bit(rolled / "log" / SECOND, where)
    log = open_log(rolled, segment_bytes=500)
    hole = log.open_channel(CHANNEL).hole
    assert (0 if hole is None else hole.to_seq - hole.from_seq + 1) == lost
    held = all_records(log)
    assert held == [record(seq) for seq in range(1, len(held) + 1)]
    assert (len(held) == 30) == (hole is None)


def test_segment_that_was_just_created_may_be_empty_or_torn(rolled: Path) -> None:
    """A crash between creating a file and its first entry is an ordinary crash."""
    newest = max((rolled / "log").iterdir())
    number = int(newest.stem) + 1
    following = rolled / "log" / f"{number:016d}.log"
    for content in (b"", newest.read_bytes()[:7]):
        following.write_bytes(content)
        log = open_log(rolled, segment_bytes=500)
        assert log.open_channel(CHANNEL).shortfall is None
        assert len(all_records(log)) == 30
        log.close()
        again = open_log(rolled, segment_bytes=500)
        assert again.notes == ()
        again.close()
    assert not (rolled / "quarantine").exists()


def test_vote_is_taken_from_the_mark_when_the_log_lost_it(written: Path) -> None:
    """S1.3: a vote that was given is never given again, although the log's end is gone."""
    log = open_log(written)
    log.set_vote(OTHER, 9, BOB)
    log.flush()
    log.close()
    path = written / "log" / FIRST
    path.write_bytes(path.read_bytes()[: entry_offsets(path)[-1]])
    log = open_log(written)
    found = log.open_channel(OTHER)
    assert (found.term, found.voted_for, found.shortfall) == (9, BOB, None)
    log.close()


def test_vote_of_a_term_that_the_log_still_knows_is_taken_from_the_mark(written: Path) -> None:
    """S1.3: the log's end with the vote is gone and its term is not: the vote is not free again."""
    log = open_log(written)
    log.set_vote(OTHER, 5, None)
    log.flush()
    path = written / "log" / FIRST
    size = path.stat().st_size
    log.set_vote(OTHER, 5, ALICE)
    log.flush()
    log.close()
    path.write_bytes(path.read_bytes()[:size])
    log = open_log(written)
    found = log.open_channel(OTHER)
    assert (found.term, found.voted_for) == (5, ALICE)
    with pytest.raises(StorageError, match="must not go to term 5"):
        log.set_vote(OTHER, 5, BOB)
    log.close()


def test_contradicting_votes_are_refused(written: Path) -> None:
    """S13: log and mark with different votes of one term cannot both be true."""
    log = open_log(written)
    mark = (written / "mark").read_bytes()
    path = written / "log" / FIRST
    before = path.read_bytes()
    log.set_vote(OTHER, 9, BOB)
    log.flush()
    log.close()
    other_mark = (written / "mark").read_bytes()
    path.write_bytes(before)
    (written / "mark").write_bytes(mark)
    log = open_log(written)
    log.set_vote(OTHER, 9, NodeId("carol@02"))
    log.flush()
    log.close()
    (written / "mark").write_bytes(other_mark)
    with pytest.raises(PromisesLostError, match="must not vote again"):
        open_log(written)


def test_drop_is_taken_from_the_mark_when_the_log_lost_it(written: Path) -> None:
    """S0.8: a dropped id stays dropped."""
    log = open_log(written)
    log.drop_channel(OTHER)
    log.flush()
    log.close()
    path = written / "log" / FIRST
    path.write_bytes(path.read_bytes()[: entry_offsets(path)[-1]])
    log = open_log(written)
    assert log.dropped_channels() == (OTHER,)
    assert log.channels() == (CHANNEL,)


@pytest.mark.parametrize("lost", ["log", "mark", "both"])
def test_log_without_mark_or_mark_without_log_is_refused(written: Path, lost: str) -> None:
    """S0.2: data without its vote record, or the reverse, does not start."""
    if lost in ("log", "both"):
        shutil.rmtree(written / "log")
    if lost in ("mark", "both"):
        (written / "mark").unlink()
    before = files_of(written)
    with pytest.raises(PromisesLostError, match=r"is missing.*put back what was there"):
        open_log(written)
    assert files_of(written) == before


def test_files_of_another_store_are_refused_untouched(written: Path, tmp_path: Path) -> None:
    """S0.1: a copied log does not become this node's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(written / "log", elsewhere / "log")
    shutil.copy(written / "mark", elsewhere / "mark")
    before = files_of(elsewhere)
    with pytest.raises(StoreIdentityError, match="belongs to store 00010203"):
        SegmentLog(FileOps(), elsewhere, bytes(16), SMALL)
    assert files_of(elsewhere) == before


@pytest.mark.parametrize(
    ("store_uuid", "version", "refusal"),
    [(bytes(16), 1, "belongs to store 00000000"), (STORE_UUID, 9, "format version 9")],
    ids=["another store", "newer format"],
)
def test_segment_of_another_store_or_format_is_refused_untouched(
    written: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_uuid: bytes,
    version: int,
    refusal: str,
) -> None:
    """S0.1, GAP-15: it is not taken for damage and cut, whatever chain it continues."""
    path = written / "log" / FIRST
    with monkeypatch.context() as other:
        other.setattr(records, "FORMAT_VERSION", version)
        header, _ = records.encode_segment(store_uuid, 1, first_chain(store_uuid))
    path.write_bytes(header + path.read_bytes()[len(header) :])
    before = files_of(written)
    with pytest.raises(StoreIdentityError, match=refusal):
        open_log(written)
    assert files_of(written) == before


@pytest.mark.parametrize("where", [0, 1], ids=["in the middle", "at the end"])
def test_record_of_a_newer_version_is_refused_untouched(tmp_path: Path, where: int) -> None:
    """GAP-15: a whole record that nobody here can read is not taken for a torn end and cut."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(1), record(2, kind=cast(RecordKind, 99))])
    if where == 0:
        log.append(CHANNEL, [record(3)])
    log.flush()
    log.close()
    before = files_of(tmp_path)
    with pytest.raises(NewerFormatError, match=f"{FIRST} at byte .* kind 99.*run a newer version"):
        open_log(tmp_path)
    assert files_of(tmp_path) == before


def test_quarantine_keeps_every_run_apart(written: Path) -> None:
    """An operator finds the bytes of each damage."""
    for run in range(2):
        log = open_log(written)
        log.append(OTHER, [record(log.open_channel(OTHER).last_seq + 1)])
        log.flush()
        log.close()
        path = written / "log" / FIRST
        flip_bit(path, path.stat().st_size - 1)
        open_log(written).close()
        assert (written / "quarantine" / f"log-{run:04d}").is_dir()


def test_read_verifies_each_record(written: Path) -> None:
    """S0.3: a record that rots while the node runs is not served; the log is given up."""
    log = open_log(written)
    flip_bit(written / "log" / FIRST, entry_offsets(written / "log" / FIRST)[2] + 100)
    with pytest.raises(CorruptRecordError, match="damaged: its checksum does not match"):
        all_records(log)
    with pytest.raises(StorageError, match="not usable any more"):
        log.append(CHANNEL, [record(4)])


def test_start_up_scan_verifies_the_fields_it_returns(written: Path) -> None:
    """Deduplication and configurations are not rebuilt from damaged fields."""
    log = open_log(written)
    flip_bit(written / "log" / FIRST, entry_offsets(written / "log" / FIRST)[2] + 60)
    with pytest.raises(CorruptRecordError, match="checksum of its fields"):
        list(log.records(CHANNEL))
