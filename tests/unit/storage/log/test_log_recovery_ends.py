"""The end of a log, its headers and its mark (S0.1 to S0.3): what a start changes and refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raftstore.config import FORMAT_VERSION
from raftstore.errors import NewerFormatError, PromisesLostError, StoreIdentityError
from raftstore.storage.files import FileOps
from raftstore.storage.log import records
from raftstore.storage.log.mark import MarkRow
from raftstore.storage.log.segments import check_pieces
from raftstore.storage.stopped.read_only_files import ReadOnlyFiles
from raftstore.types import NodeId, RecordKind, Term
from tests.log_writing import WrittenLog, damage_body, parts_of, promise
from tests.noting_files import NotingFiles
from tests.storage_helpers import ALICE, BOB, CHANNEL, OTHER, STORE_UUID


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """One segment with nothing in it but its header, in a directory with a name."""
    made = WrittenLog(tmp_path / "data")
    made.segment()
    return made


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [1, 11, 12, 40])
def test_torn_end_is_cut_off_and_nothing_else_is_done(log: WrittenLog, left: int) -> None:
    """S0.3: nothing in it was ever acknowledged, so no copy of it is kept; the cut is synced."""
    log.record(1)
    last = log.record(2)
    os.truncate(last.path, last.offset + left)
    ops = NotingFiles()
    found = log.recovered({CHANNEL: promise(1, 1)}, ops)
    name = log.path.name
    assert ops.changes == [
        "sync log/",
        f"sync {name}",
        f"cut {name} at {last.offset}",
        f"sync {name}",
    ]
    assert ops.opened == {}
    assert (found.offset, found.channels[CHANNEL].shortfall) == (last.offset, None)
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f"{log.path} is intact up to byte {last.offset} only: ")
    assert log.path.stat().st_size == last.offset


def test_promised_end_is_put_aside_before_it_is_cut(log: WrittenLog) -> None:
    """S0.3: given a mark that promises more than is intact, the bytes are durable under
    ``quarantine/`` before the file is cut."""
    log.record(1)
    last = log.record(2)
    os.truncate(last.path, last.end - 1)
    tail = log.path.read_bytes()[last.offset :]
    ops = NotingFiles()
    found = log.recovered({CHANNEL: promise(1, 2)}, ops)
    name = log.path.name
    aside = log.data_directory / "quarantine" / "log-0000" / f"{name}.from-{last.offset}"
    assert ops.changes[2:] == [
        "make quarantine",
        "make log-0000",
        "sync data/",
        "sync quarantine/",
        f"create {aside.name}",
        f"sync {aside.name}",
        "sync log-0000/",
        "sync log-0000/",
        f"cut {name} at {last.offset}",
        f"sync {name}",
    ]
    assert ops.opened == {}
    assert aside.read_bytes() == tail
    index = found.channels[CHANNEL]
    assert index.shortfall == index.promise == (1, 2)
    assert parts_of(index) == [(0, [1], False), (2, [], False)]
    assert index.kept[0].before == (1, 2)
    assert found.notes[0].endswith(f"; what follows was put aside in {aside.parent}")
    assert found.notes[1:] == [
        f"channel {CHANNEL.hex()} lost what is between seq 2 and 2: it is recovering until other "
        "replicas gave it back (S0.3)"
    ]


@pytest.mark.parametrize(
    ("promised", "kept"),
    [
        ((2, 3), [(0, [1, 2], False), (3, [], False)]),
        ((3, 4), [(0, [1, 2], False), (4, [], False)]),
        ((1, 3), [(0, [1, 2], False)]),
        ((3, 2), [(0, [1, 2], False)]),
    ],
)
def test_lost_end_is_a_hole_where_it_is_known_what_was_there(
    log: WrittenLog, promised: tuple[int, int], kept: list[object]
) -> None:
    """A promise of an older term, or of no higher seq, says nothing of what is missing: the
    channel is recovering then, and has no hole to fill."""
    log.record(1)
    log.record(2, term=2)
    found = log.recovered({CHANNEL: promise(*promised)})
    index = found.channels[CHANNEL]
    assert parts_of(index) == kept
    assert index.shortfall == promised
    assert index.promise == promised
    if len(kept) == 1:
        assert found.notes == [
            f"channel {CHANNEL.hex()} holds the log up to (2, 2) but had acknowledged up to "
            f"{promised}: it is recovering (S0.3)"
        ]


def test_end_behind_a_part_that_nothing_proves_is_no_hole(log: WrittenLog) -> None:
    """The part may be of another history; so its end says nothing of what was promised."""
    log.record(1, term=2)
    lost = log.vote(1, ALICE, OTHER)
    log.record(5, term=1)
    log.segment()
    damage_body(lost)
    index = log.recovered({CHANNEL: promise(2, 6)}).channels[CHANNEL]
    assert parts_of(index) == [(0, [1], False), (4, [5], True)]
    assert index.shortfall == (2, 6)


def test_promise_decides_whether_damage_at_the_end_is_torn(log: WrittenLog) -> None:
    """S0.3: intact entries behind it are passed over only where some promise is not kept yet."""
    log.record(1)
    lost = log.record(2)
    log.record(3)
    damage_body(lost, lost.length - 13)
    copy = log.path.read_bytes()
    for promised, offset in [((1, 1), lost.offset), ((0, 0), lost.offset), ((1, 2), len(copy))]:
        log.path.write_bytes(copy)
        found = log.recovered({CHANNEL: promise(*promised)})
        assert found.offset == offset == log.path.stat().st_size
    log.path.write_bytes(copy)
    assert log.recovered({CHANNEL: promise(1, 2)._replace(dropped=True)}).offset == lost.offset
    log.path.write_bytes(copy)
    assert log.recovered({OTHER: promise(1, 1)}).offset == len(copy)


@pytest.mark.parametrize("content", [b"", b"\x00\x00"])
def test_last_file_without_a_header_gets_one(log: WrittenLog, content: bytes) -> None:
    """S0.2: it is replaced as a whole, so it is never missing; the chain goes on from it."""
    log.record(1)
    before, chain = log.path.stat().st_size, log.chain
    log.segment()
    whole = log.path.read_bytes()
    log.path.write_bytes(content)
    ops = NotingFiles()
    found = log.recovered({CHANNEL: promise(1, 1)}, ops)
    name = log.path.name
    assert ops.changes[3:] == [
        f"create {name}.new",
        f"sync {name}.new",
        f"rename {name}.new {name}",
        "sync log/",
    ]
    assert log.path.read_bytes() == whole
    assert chain != log.chain == found.chain
    assert (found.segment, found.offset, found.segments[1].size_bytes) == (2, len(whole), before)
    reason = "a header is cut off" if content else "it is empty"
    assert found.notes == [f"{log.path} is intact up to byte 0 only: {reason}"]


def test_new_header_continues_what_was_passed_over(log: WrittenLog) -> None:
    """The last entry of the file before is damaged; the chain behind it is known all the same."""
    log.record(1)
    lost = log.record(2)
    log.segment()
    whole = log.path.read_bytes()
    log.path.write_bytes(b"")
    damage_body(lost, lost.length - 13)
    found = log.recovered({CHANNEL: promise(1, 2)})
    assert log.path.read_bytes() == whole
    assert found.chain == log.chain
    index = found.channels[CHANNEL]
    assert (parts_of(index), index.promise) == ([(0, [1], False), (2, [], False)], None)


@pytest.mark.parametrize("promised", [1, 2])
def test_stopped_log_is_not_cut(log: WrittenLog, promised: int) -> None:
    """Given files that are only looked at, what a start would do is reported and not done."""
    log.record(1)
    last = log.record(2)
    os.truncate(last.path, last.end - 1)
    before = log.path.read_bytes()
    ops = ReadOnlyFiles()
    found = log.recovered({CHANNEL: promise(1, promised)}, ops)
    assert found.notes[0].endswith("; the next start of the node cuts it there")
    assert found.offset == last.offset
    assert ops.repairs == [log.path]
    assert log.path.read_bytes() == before
    assert not (log.data_directory / "quarantine").exists()


def test_last_two_files_are_synced_before_they_are_believed(log: WrittenLog) -> None:
    """A process that died may have left in memory alone whatever it wrote to them."""
    for _ in range(3):
        log.segment()
    ops = NotingFiles()
    log.recovered(ops=ops)
    names = [path.name for path in sorted(log.directory.iterdir())]
    assert ops.reads == [names[0], names[1], f"synced {names[2]}", f"synced {names[3]}"]
    assert ops.changes == ["sync log/", f"sync {names[2]}", f"sync {names[3]}"]


# --- headers --------------------------------------------------------------------------------------


def test_damaged_header_is_written_again_and_its_entry_is_read(log: WrittenLog) -> None:
    """Nothing is lost: neither the record nor its place, and nothing is in doubt behind it."""
    log.record(1)
    place = log.record(2)
    log.record(3, term=2)
    log.segment()
    whole = place.path.read_bytes()
    data = bytearray(whole)
    data[place.offset + 1] ^= 0x10
    place.path.write_bytes(data)
    files = ReadOnlyFiles()
    for ops, done in ((files, "will be"), (NotingFiles(), "was")):
        found = log.recovered({CHANNEL: promise(2, 3)}, ops)
        index = found.channels[CHANNEL]
        assert parts_of(index) == [(0, [1, 2, 3], False)]
        assert (index.positions[1], index.lengths[1]) == (place.position, place.length)
        assert (index.shortfall, found.unproven, found.chain) == (None, [], log.chain)
        (note,) = found.notes
        assert note.startswith(f"{place.path} is damaged at byte {place.offset}: ")
        assert note.endswith(f"; only the header, which {done} written again")
    assert files.repairs == [place.path]
    assert isinstance(ops, NotingFiles)
    name = place.path.name
    write = ops.changes.index(f"write {name} at {place.offset}")
    assert ops.changes[write + 1] == f"sync {name}"
    assert ops.opened == {}
    assert place.path.read_bytes() == whole


def test_header_of_the_last_entry_is_proven_by_the_next_file_alone(log: WrittenLog) -> None:
    """A file further on continues something else."""
    log.record(1)
    place = log.record(2)
    data = bytearray(log.path.read_bytes())
    data[place.offset + 1] ^= 0x10
    log.path.write_bytes(data)
    log.segment()
    second = log.path
    log.segment()
    log.record(3)
    found = log.recovered({CHANNEL: promise(1, 3)}, ReadOnlyFiles())
    assert parts_of(found.channels[CHANNEL]) == [(0, [1, 2, 3], False)]
    second.unlink()
    found = log.recovered({CHANNEL: promise(1, 3)}, ReadOnlyFiles())
    assert parts_of(found.channels[CHANNEL]) == [(0, [1], False), (2, [3], False)]
    assert found.segments[1].size_bytes == place.end
    reason = found.notes[0].partition(" on: ")[2]
    assert found.notes[:2] == [
        f"{place.path} is damaged from byte {place.offset} on: {reason}",
        f"{second} is missing; what follows was kept",
    ]
    assert reason.endswith("; what follows was kept")


def test_header_of_a_segment_is_written_again(log: WrittenLog) -> None:
    """From the number and the chain, which are known without it: no entry is lost."""
    log.record(1)
    header = log.segment()
    log.record(2)
    whole = header.path.read_bytes()
    header.path.write_bytes(b"\xee" * header.length + whole[header.length :])
    found = log.recovered({CHANNEL: promise(1, 2)})
    assert header.path.read_bytes() == whole
    assert parts_of(found.channels[CHANNEL]) == [(0, [1, 2], False)]
    assert (found.unproven, found.chain) == ([], log.chain)
    assert found.notes[0].endswith("; only the header, which was written again")


def test_segment_that_says_another_number_is_damage(log: WrittenLog) -> None:
    """A file that was renamed, or copied over another one, is not in its place."""
    header = log.segment(says=7)
    log.record(1)
    found = log.recovered({CHANNEL: promise(1, 1)})
    assert f"{header.path} is damaged at byte 0: it says that it is segment 7" in found.notes[0]
    assert parts_of(found.channels[CHANNEL]) == [(0, [1], False)]
    found = log.recovered()
    assert header.path.stat().st_size == header.length, "a whole new header and nothing else"
    assert found.notes == [
        f"{header.path} is intact up to byte 0 only: it says that it is segment 7"
    ]


def test_segment_header_belongs_at_the_start_alone(log: WrittenLog) -> None:
    """S0.3: in the middle of a file it is damage, and so is another entry in its place."""
    encoded = records.encode_segment(STORE_UUID, 1, log.chain)
    place = log.write(encoded)
    found = log.recovered()
    said = "a segment header is not where it belongs"
    assert found.notes == [f"{log.path} is intact up to byte {place.offset} only: {said}"]
    log.number += 1
    log.path.touch()
    log.chain = found.chain
    log.record(1)
    found = log.recovered()
    assert found.notes == [f"{log.path} is intact up to byte 0 only: {said}"]
    assert found.channels == {}


# --- votes and drops ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_log", "in_mark", "found"),
    [
        ((3, ALICE), (3, ALICE), (3, ALICE)),
        ((3, ALICE), (3, None), (3, ALICE)),
        ((3, None), (3, ALICE), (3, ALICE)),
        ((3, ALICE), (4, None), (4, None)),
        ((3, ALICE), (4, BOB), (4, BOB)),
        ((3, ALICE), (2, BOB), (3, ALICE)),
        ((3, None), (2, BOB), (3, None)),
    ],
)
def test_newer_of_two_votes_counts(
    log: WrittenLog,
    in_log: tuple[int, NodeId | None],
    in_mark: tuple[int, NodeId | None],
    found: tuple[int, NodeId | None],
) -> None:
    """S1.3: the log and the mark may each know more than the other."""
    log.vote(*in_log)
    index = log.recovered({CHANNEL: MarkRow(Term(in_mark[0]), in_mark[1])}).channels[CHANNEL]
    assert (index.term, index.voted_for) == found


def test_two_votes_of_one_term_stop_the_start(log: WrittenLog) -> None:
    """S0.1: the text names the channel, both votes and the term."""
    log.vote(3, ALICE)
    with pytest.raises(PromisesLostError) as raised:
        log.recovered({CHANNEL: MarkRow(Term(3), BOB)})
    assert (
        f"channel {CHANNEL.hex()} voted for {ALICE} by its log and for {BOB} by its mark, both in "
        "term 3" in str(raised.value)
    )


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "lost"), [(["mark"], "log"), (["log"], "mark"), ([], "log and mark")]
)
def test_store_without_its_log_or_its_mark_is_refused(
    tmp_path: Path, pieces: list[str], lost: str
) -> None:
    """S0.2: what was promised is not known any more; a directory without segments is no log."""
    (tmp_path / "log").mkdir()
    if "log" in pieces:
        (tmp_path / "log" / "0000000000000001.log").touch()
    if "mark" in pieces:
        (tmp_path / "mark").touch()
    with pytest.raises(PromisesLostError, match=f"^the {lost} of {tmp_path} is missing: "):
        check_pieces(FileOps(), tmp_path)
    (tmp_path / "log" / "0000000000000001.log").touch()
    (tmp_path / "mark").touch()
    check_pieces(FileOps(), tmp_path)


def test_files_of_another_store_are_refused(log: WrittenLog) -> None:
    """S0.1: before anything is changed, with both ids; and those of a newer format."""
    foreign = bytes(reversed(STORE_UUID))
    log.segment(uuid=foreign)
    text = f"{log.path} belongs to store {foreign.hex()}, not to {STORE_UUID.hex()}; put back"
    with pytest.raises(StoreIdentityError, match=text):
        log.recovered()
    log.path.unlink()
    log.number -= 1
    entry = records._SEGMENT.pack(
        records.EntryKind.SEGMENT, records.SEGMENT_MAGIC, FORMAT_VERSION + 1, STORE_UUID, 2, 0
    )
    place = log.path.with_name("0000000000000002.log")
    place.write_bytes(records._framed(entry, 0)[0])
    text = f"{place} has format version {FORMAT_VERSION + 1}, this program knows up to "
    with pytest.raises(StoreIdentityError, match=f"{text}{FORMAT_VERSION};"):
        log.recovered()


def test_entry_of_a_newer_version_stops_the_start(
    log: WrittenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GAP-15: it is intact, so nothing is cut; the text names its place."""
    log.record(1)
    log.record(2)
    monkeypatch.delitem(records._RECORD_KINDS, int(RecordKind.ROWS))
    before = log.path.read_bytes()
    first = log.places[1]
    with pytest.raises(NewerFormatError, match=f"^{log.path} at byte {first.offset}: a record of"):
        log.recovered()
    assert log.path.read_bytes() == before
