"""Recovery entry by entry (S0.3): what each kind does, in front of damage and behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.storage.log.recovery import REPORT_EVERY_BYTES
from tests.log_writing import (
    Part,
    Place,
    WrittenLog,
    damage_body,
    destroy,
    parts_of,
    promise,
)
from tests.storage_helpers import ALICE, BOB, CHANNEL, OTHER


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """One segment with nothing in it but its header."""
    made = WrittenLog(tmp_path)
    made.segment()
    return made


def held_in_term_2(log: WrittenLog) -> None:
    """Seqs 1 to 3, one record each."""
    for seq in (1, 2, 3):
        log.record(seq, term=2)


def lose_one(log: WrittenLog) -> Place:
    """One entry of another channel, of which it will not be known what it was."""
    return log.vote(1, ALICE, OTHER)


def closed(log: WrittenLog) -> None:
    """Something intact behind what was written, and a segment that continues it."""
    log.vote(1, ALICE, OTHER)
    log.segment()
    log.vote(2, BOB, OTHER)


# --- a sound log ----------------------------------------------------------------------------------


def test_sound_log_is_read_as_it_was_written(log: WrittenLog) -> None:
    """Records with their places, terms and votes, and where the next entry goes."""
    first = log.record(1, rows=2)
    second = log.record(3, term=2)
    log.vote(3, ALICE)
    log.segment()
    third = log.record(4, term=3, rows=3)
    other = log.record(1, channel=OTHER)
    log.vote(4, None)
    log.segment()
    last = log.vote(5, BOB, OTHER)
    found = log.recovered({CHANNEL: promise(3, 6), OTHER: promise(1, 1)})
    index = found.channels[CHANNEL]
    assert list(index.base_seqs) == [1, 3, 4]
    assert list(index.positions) == [place.position for place in (first, second, third)]
    assert list(index.lengths) == [place.length for place in (first, second, third)]
    assert index.lineage == [(1, 2), (2, 3), (3, 6)]
    assert (index.last_seq, index.term, index.voted_for) == (6, 4, None)
    assert (index.kept, index.shortfall, index.promise) == ([], None, None)
    index = found.channels[OTHER]
    assert list(index.positions) == [other.position]
    assert (index.term, index.voted_for) == (5, BOB)
    assert (found.segment, found.offset, found.chain) == (3, last.end, log.chain)
    sizes = [path.stat().st_size for path in sorted(log.directory.iterdir())]
    assert [facts.size_bytes for facts in found.segments.values()] == sizes
    chains = [facts.previous_chain for facts in found.segments.values()]
    assert (list(found.segments), chains) == ([1, 2, 3], log.chains)
    assert (found.notes, found.unproven, found.dropped) == ([], [], {})


def test_progress_is_told_each_mebibyte_and_at_the_end(log: WrittenLog) -> None:
    """(bytes read, bytes there are): at each segment, after each mebibyte, and once at the end."""
    half = bytes(REPORT_EVERY_BYTES // 2)
    places = [log.record(seq, payload=half) for seq in range(1, 6)]
    first_bytes = log.path.stat().st_size
    log.segment()
    log.record(6, payload=half)
    total = first_bytes + log.path.stat().st_size
    told: list[tuple[int, int]] = []
    log.recovered(on_read=lambda done, there_are: told.append((done, there_are)))
    # The header is at 0; a record of half a mebibyte and its fields is more than half of one.
    assert told == [
        (0, total),
        (places[2].offset, total),
        (places[4].offset, total),
        (first_bytes, total),
        (total, total),
    ]


def test_truncation_removes_and_what_it_removed_was_held(log: WrittenLog) -> None:
    """S2.5: a promise of what was truncated is kept, and a promise above it is not."""
    held_in_term_2(log)
    log.truncation(2)
    log.record(2, term=3)
    for promised, shortfall in [((2, 3), None), ((2, 4), (2, 4)), ((3, 2), None), ((3, 3), (3, 3))]:
        found = log.recovered({CHANNEL: promise(*promised)}).channels[CHANNEL]
        assert found.lineage == [(2, 1), (3, 2)]
        assert found.shortfall == shortfall
        assert found.promise == shortfall


def test_dropped_channel_is_gone_and_its_id_is_refused(log: WrittenLog) -> None:
    """S0.8: whether the log says so, or only the mark, and whatever the mark says of it else."""
    log.record(1)
    log.record(1, channel=OTHER)
    log.drop(CHANNEL)
    found = log.recovered({CHANNEL: promise(4, 4), OTHER: promise(1, 2)})
    assert list(found.dropped) == [CHANNEL]
    assert list(found.channels) == [OTHER]
    assert found.channels[OTHER].shortfall == (1, 2), "rows behind a dropped one are compared, too"
    found = log.recovered({OTHER: promise(0, 0)._replace(dropped=True)})
    assert list(found.dropped) == [CHANNEL, OTHER]
    assert found.channels == {}


def test_record_that_does_not_continue_its_channel_is_damage(log: WrittenLog) -> None:
    """S2.1: its checksums fit, so a program wrote what must not be: the log ends before it."""
    log.record(1)
    end = log.record(3).offset
    found = log.recovered()
    assert parts_of(found.channels[CHANNEL]) == [(0, [1], False)]
    assert found.offset == end == log.path.stat().st_size
    (note,) = found.notes
    said = f"a record at seq 3 of channel {CHANNEL.hex()} follows seq 1"
    assert note == f"{log.path} is intact up to byte {end} only: {said}"


def test_record_without_rows_is_damage(log: WrittenLog) -> None:
    """It would leave the channel where it was, and its seq to the next one."""
    log.record(1)
    end = log.record(2, rows=0).offset
    found = log.recovered()
    assert parts_of(found.channels[CHANNEL]) == [(0, [1], False)]
    assert (found.offset, found.channels[CHANNEL].last_seq) == (end, 1)


# --- records behind damage ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "seq", "parts"),
    [
        (2, 4, [(0, [1, 2, 3, 4, 5], False)]),
        (3, 4, [(0, [1, 2, 3, 4, 5], False)]),
        (3, 3, [(0, [1, 2, 3, 4], False)]),
        (3, 1, [(0, [1, 2], False)]),
        (2, 6, [(0, [1, 2, 3], False), (5, [6, 7], False)]),
        (3, 5, [(0, [1, 2, 3], False), (4, [5, 6], False)]),
        (1, 6, [(0, [1, 2, 3], False), (5, [6, 7], True)]),
    ],
)
def test_record_behind_one_damaged_entry(
    log: WrittenLog, term: int, seq: int, parts: list[Part]
) -> None:
    """One entry cannot both truncate and append: a record that fits by its seq continues the
    channel, one further down proves a truncation, one further up a hole."""
    held_in_term_2(log)
    lost = lose_one(log)
    first = log.record(seq, term=term)
    log.record(seq + 1, term=term + 1)
    closed(log)
    damage_body(lost)
    found = log.recovered()
    index = found.channels[CHANNEL]
    assert parts_of(index) == parts
    assert index.last_part.positions[-2] == first.position
    assert index.last_part.lineage[-2:] == [(term, seq), (term + 1, seq + 1)]
    end = (term + 1, seq + 1)
    assert index.shortfall == (None if len(parts) == 1 else end)
    assert (found.unproven, index.promise) == ([OTHER], None)
    assert found.notes[0].endswith(f"; {lost.length} bytes were passed over")


@pytest.mark.parametrize(
    ("term", "seq", "parts"),
    [
        (2, 4, [(0, [1, 2, 3, 4, 5], False)]),
        (3, 4, [(0, [1, 2, 3], False), (3, [4, 5], True)]),
        (3, 5, [(0, [1, 2, 3], False), (4, [5, 6], False)]),
        (1, 5, [(0, [1, 2, 3], False), (4, [5, 6], True)]),
        (2, 3, [(0, [1, 2, 3], False), (2, [3, 4], True)]),
        (3, 2, [(0, [1, 2, 3], False), (1, [2, 3], True)]),
    ],
)
@pytest.mark.parametrize("how", ["range", "two entries", "segment"])
def test_record_behind_more_damage(
    log: WrittenLog, how: str, term: int, seq: int, parts: list[Part]
) -> None:
    """A truncation and what came behind it may be lost: only a record of the same term proves that
    it continues what is held (S2.1, S2.4); what follows it needs no proof any more."""
    held_in_term_2(log)
    if how == "segment":
        log.segment()
    lost = [lose_one(log) for _ in range(3)]
    if how == "segment":
        log.segment()
    log.record(seq, term=term)
    log.record(seq + 1, term=term + 1)
    closed(log)
    if how == "range":
        destroy(lost[0], lost[2])
    elif how == "two entries":
        damage_body(lost[0])
        damage_body(lost[2])
    else:
        lost[0].path.unlink()
    found = log.recovered()
    index = found.channels[CHANNEL]
    assert parts_of(index) == parts
    assert index.last_part.end == (term + 1, seq + 1)
    assert index.shortfall == (None if len(parts) == 1 else (term + 1, seq + 1))
    assert (found.segment, found.chain) == (log.number, log.chain)


def test_channel_that_goes_on_behind_damage_must_go_on_as_before(log: WrittenLog) -> None:
    """Once a record of the channel was read behind the damage, the next one has to follow it."""
    held_in_term_2(log)
    lost = lose_one(log)
    log.record(4, term=2)
    wrong = log.record(6, term=2)
    damage_body(lost)
    found = log.recovered({OTHER: promise(1, 1)})
    assert parts_of(found.channels[CHANNEL]) == [(0, [1, 2, 3, 4], False)]
    assert found.offset == wrong.offset
    assert found.notes[1].startswith(f"{wrong.path} is intact up to byte {wrong.offset} only: a")


def test_channel_is_proven_whole_by_its_next_record_only(log: WrittenLog) -> None:
    """The log has to say of each other channel that it was found whole, before its next record."""
    log.record(1, channel=OTHER)
    held_in_term_2(log)
    lost = lose_one(log)
    closed(log)
    assert log.recovered().unproven == []
    damage_body(lost)
    found = log.recovered({CHANNEL: promise(2, 3), OTHER: promise(1, 1)})
    assert found.unproven == [OTHER, CHANNEL]
    found = log.recovered({CHANNEL: promise(2, 4), OTHER: promise(1, 1)})
    assert found.unproven == [OTHER], "it is not whole, and known not to be"
    log.record(4, term=2)
    assert log.recovered().unproven == [OTHER]


# --- a record whose fields are intact -------------------------------------------------------------


def test_record_whose_payload_is_damaged_leaves_a_hole_of_its_size(log: WrittenLog) -> None:
    """Given its fields, it is known what is lost: nothing else of any channel is in doubt."""
    held_in_term_2(log)
    lost = log.record(4, term=3, rows=4)
    log.record(8, term=3)
    closed(log)
    damage_body(lost, lost.length - 13)
    found = log.recovered({CHANNEL: promise(3, 8)})
    index = found.channels[CHANNEL]
    assert parts_of(index) == [(0, [1, 2, 3], False), (7, [8], False)]
    assert index.kept[0].before == (3, 7)
    assert (index.shortfall, index.promise) == ((3, 8), None)
    assert found.unproven == []
    hole = f"channel {CHANNEL.hex()} lost what is between seq 4 and 7"
    assert found.notes == [
        f"{lost.path} is damaged at byte {lost.offset}: the checksum of an entry does not match; "
        f"{lost.length} bytes were passed over",
        f"{hole}: it is recovering until other replicas gave it back (S0.3)",
    ]


def test_damaged_record_that_took_the_place_of_others_has_removed_them(log: WrittenLog) -> None:
    """Its fields prove that the channel was truncated in front of it, behind other damage."""
    held_in_term_2(log)
    lost = [lose_one(log), log.record(2, term=3)]
    log.record(3, term=3)
    closed(log)
    damage_body(lost[0])
    damage_body(lost[1], lost[1].length - 13)
    index = log.recovered().channels[CHANNEL]
    assert parts_of(index) == [(0, [1], False), (2, [3], False)]
    assert index.shortfall == (3, 3)


def test_lost_record_counts_as_held_and_seen(log: WrittenLog) -> None:
    """Nothing is promised beyond it, and the record behind it needs no other proof."""
    held_in_term_2(log)
    lost = [lose_one(log), lose_one(log), log.record(4, term=2)]
    log.record(5, term=3)
    closed(log)
    damage_body(lost[0])
    damage_body(lost[1])
    damage_body(lost[2], lost[2].length - 13)
    found = log.recovered({CHANNEL: promise(2, 4)})
    assert parts_of(found.channels[CHANNEL]) == [(0, [1, 2, 3], False), (4, [5], False)]
    assert found.channels[CHANNEL].promise is None


# --- holes that were filled -----------------------------------------------------------------------


def test_filled_hole_is_none(log: WrittenLog) -> None:
    """The records take their places, whichever entry they come with."""
    held_in_term_2(log)
    lost = log.record(4, term=2, rows=3)
    log.record(7, term=3)
    filled = [log.fill(4, term=2), log.fill(5, term=2, rows=2)]
    closed(log)
    damage_body(lost, lost.length - 13)
    found = log.recovered({CHANNEL: promise(3, 7)})
    index = found.channels[CHANNEL]
    assert parts_of(index) == [(0, [1, 2, 3, 4, 5, 7], False)]
    assert list(index.positions[3:5]) == [place.position for place in filled]
    assert list(index.lengths[3:5]) == [place.length for place in filled]
    assert (index.shortfall, found.unproven) == (None, [])


def test_filled_record_that_can_be_read_again_is_not_held_twice(log: WrittenLog) -> None:
    """The disk gave back what it could not read when the record was filled in."""
    held_in_term_2(log)
    place = log.places[-1]
    log.fill(3, term=2)
    log.record(4, term=2)
    index = log.recovered().channels[CHANNEL]
    assert parts_of(index) == [(0, [1, 2, 3, 4], False)]
    assert index.positions[2] == place.position


def test_lost_end_that_was_filled_is_continued(log: WrittenLog) -> None:
    """The mark knew of a record that the log had lost with its end: it came with a FILL."""
    held_in_term_2(log)
    place = log.fill(4, term=2, rows=2)
    log.record(6, term=3)
    found = log.recovered({CHANNEL: promise(2, 5)})
    index = found.channels[CHANNEL]
    assert parts_of(index) == [(0, [1, 2, 3, 4, 6], False)]
    assert (index.positions[3], index.lengths[3]) == (place.position, place.length)
    assert (index.shortfall, index.lineage) == (None, [(2, 5), (3, 6)])


def test_fill_that_fits_nowhere_is_damage(log: WrittenLog) -> None:
    """It is no record that the channel misses."""
    held_in_term_2(log)
    end = log.fill(5, term=2).offset
    found = log.recovered()
    assert found.offset == end
    said = "a record at seq 5 fills no hole"
    assert found.notes == [f"{log.path} is intact up to byte {end} only: {said}"]


@pytest.mark.parametrize(
    ("lost", "parts"),
    [
        ([0], [(0, [1], False), (2, [3, 4, 5], False)]),
        ([1], [(0, [1, 2], False), (3, [4, 5], False)]),
        ([0, 1], [(0, [1], False), (2, [], False), (3, [4, 5], False)]),
        ([2], [(0, [1, 2, 3], False), (4, [5], False)]),
    ],
)
def test_filled_records_that_are_damaged_again_are_a_hole_again(
    log: WrittenLog, lost: list[int], parts: list[Part]
) -> None:
    """S0.3: and nothing else of what was filled in is."""
    log.record(1)
    first = [log.record(seq) for seq in (2, 3, 4)]
    log.record(5)
    filled = [log.fill(seq) for seq in (2, 3, 4)]
    closed(log)
    for place in first:
        damage_body(place, place.length - 13)
    for number in lost:
        damage_body(filled[number], filled[number].length - 13)
    index = log.recovered().channels[CHANNEL]
    assert parts_of(index) == parts
    assert index.shortfall == (1, 5)


@pytest.mark.parametrize(
    ("lost", "parts"),
    [
        ([0], [(0, [1], False), (2, [3, 4, 5], False)]),
        ([1], [(0, [1, 2], False), (3, [4, 5], False)]),
        ([0, 1], [(0, [1], False), (3, [4, 5], False)]),
        ([0, 1, 2], [(0, [1], False), (4, [5], False)]),
    ],
)
def test_records_filled_into_one_hole_keep_their_places(
    log: WrittenLog, lost: list[int], parts: list[Part]
) -> None:
    """S0.3: one record of three rows was given back as three records, and some are lost again."""
    log.record(1)
    first = log.record(2, rows=3)
    log.record(5)
    filled = [log.fill(seq) for seq in (2, 3, 4)]
    closed(log)
    for place in (first, *(filled[number] for number in lost)):
        damage_body(place, place.length - 13)
    found = log.recovered({CHANNEL: promise(1, 5)})
    assert parts_of(found.channels[CHANNEL]) == parts
    assert all("fills no hole" not in note for note in found.notes)


def test_filled_end_is_kept_behind_what_is_lost_again(log: WrittenLog) -> None:
    """S0.3: the end was lost with the file; the first record that was given back is damaged."""
    log.record(1)
    lost = log.fill(2)
    kept = [log.fill(3), log.fill(4)]
    closed(log)
    damage_body(lost, lost.length - 13)
    index = log.recovered({CHANNEL: promise(1, 4)}).channels[CHANNEL]
    assert parts_of(index) == [(0, [1], False), (2, [3, 4], False)]
    assert list(index.kept[0].positions) == [place.position for place in kept]


def test_filled_channel_is_proven_whole(log: WrittenLog) -> None:
    """The caller of a fill had the proof: a record of a later term continues the channel, even
    though more was damaged before the hole was filled; not so while a hole is left."""
    log.record(1)
    first = [log.record(2), log.record(3)]
    log.record(4)
    lost = [lose_one(log), lose_one(log)]
    log.fill(2)
    for place in first:
        damage_body(place, place.length - 13)
    for place in lost:
        damage_body(place)
    before = log.path.read_bytes(), log.chain
    log.record(5, term=2)
    closed(log)
    index = log.recovered().channels[CHANNEL]
    assert parts_of(index) == [(0, [1, 2], False), (3, [4], False), (4, [5], True)]
    log.path.unlink()
    log.number, log.chain = 1, before[1]
    log.path.write_bytes(before[0])
    log.fill(3)
    log.record(5, term=2)
    closed(log)
    found = log.recovered()
    assert parts_of(found.channels[CHANNEL]) == [(0, [1, 2, 3, 4, 5], False)]
    assert CHANNEL not in found.unproven


def test_what_is_given_up_is_not_held_any_more(log: WrittenLog) -> None:
    """Forgotten is not truncated: a promise of it is missed. What comes next continues the log."""
    held_in_term_2(log)
    lost = log.record(4, term=3)
    log.record(5, term=3)
    log.give_up()
    log.record(4, term=4)
    closed(log)
    damage_body(lost, lost.length - 13)
    found = log.recovered({CHANNEL: promise(3, 5)})
    index = found.channels[CHANNEL]
    assert parts_of(index)[0] == (0, [1, 2, 3, 4], False)
    assert index.lineage == [(2, 3), (4, 4)]
    assert (index.shortfall, found.unproven) == ((3, 5), [])
    assert log.recovered({CHANNEL: promise(2, 3)}).channels[CHANNEL].shortfall is None
    assert log.recovered({CHANNEL: promise(4, 4)}).channels[CHANNEL].shortfall is None


def test_giving_up_is_proof_enough_behind_damage(log: WrittenLog) -> None:
    """The channel goes on in front of its hole, so a record of a later term continues it there."""
    held_in_term_2(log)
    lost = [lose_one(log), lose_one(log)]
    log.give_up()
    log.record(4, term=4)
    closed(log)
    for place in lost:
        damage_body(place)
    found = log.recovered()
    assert parts_of(found.channels[CHANNEL]) == [(0, [1, 2, 3, 4], False)]
    assert CHANNEL not in found.unproven


def test_truncation_behind_a_hole_reaches_every_part(log: WrittenLog) -> None:
    """S2.5: whatever is at or above the cut is gone, in front of the hole, too."""
    held_in_term_2(log)
    lost = log.record(4, term=2)
    log.record(5, term=2)
    log.truncation(3)
    log.record(3, term=5)
    closed(log)
    damage_body(lost, lost.length - 13)
    index = log.recovered().channels[CHANNEL]
    assert parts_of(index) == [(0, [1, 2, 3], False)]
    assert index.lineage == [(2, 2), (5, 3)]
    assert index.shortfall is None
