"""Folds go on at a base as if no record had been removed (S6.5, S6.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.config import GUID_WINDOW
from raftstore.core.batches import MARKS_MAX, WRITERS_MAX
from raftstore.core.dedupe import OUTCOMES_MAX, Verdict
from raftstore.core.folds import BOUNDS, FoldBounds, Folds, advance
from raftstore.core.history import RUNS_MAX
from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.payload import encode_mark
from raftstore.protocol.records import Record
from raftstore.types import DIGEST_BYTES, ChannelConfig, NodeId, RecordKind, Seq
from tests.core_bench import N1, N2, TRIO, guid, record, term_start

SMALL = FoldBounds(
    guid_window=2, sessions_max=2, outcomes_max=4, marks_max=3, writers_max=2, runs_max=3
)
"""So small that everything is forgotten early."""
CONFIGS = [
    msgspec.msgpack.encode(ChannelConfig((voters,)))
    for voters in ((N1, N2), (N1, N2, NodeId("n4")))
]
KINDS = ["rows", "rows", "condition", "mark", "staged", "config", "term"]
DRAWN = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7)), max_size=30)
FOLDS = ("lineage", "tail", "chain", "batches", "dedupe", "configs")


def records_of(drawn: list[tuple[str, int]]) -> list[Record]:
    """A committed log."""
    made: list[Record] = []
    term = 1
    for counter, (what, number) in enumerate(drawn, start=1):
        base_seq = made[-1].last_seq + 1 if made else 1
        if what == "term":
            term += 1 + number % 2
            made.append(term_start(base_seq, term))
            continue
        kind, payload = {
            "rows": (RecordKind.ROWS, b"rows %d" % counter),
            "condition": (RecordKind.CONDITIONAL, b"condition"),
            "mark": (RecordKind.BATCH_MARK, encode_mark(f"w{number % 3}", number // 3)),
            "staged": (RecordKind.BATCH_APPLY, b"staged"),
            "config": (RecordKind.CONFIG, CONFIGS[number % 2]),
        }[what]
        made.append(
            record(
                base_seq,
                term=term,
                rows=1 + number if what == "rows" else 1,
                counter=counter,
                session=b"session%d" % (number % 4),
                payload=payload,
                kind=kind,
            )
        )
    return made


def followed(records: list[Record], base: Base = EMPTY_BASE, **more: Any) -> Folds:
    """Folds that followed records which were committed one by one."""
    folds = Folds(TRIO, base=base, bounds=SMALL, **more)
    for one in records:
        folds.append(one)
        folds.commit(one.last_seq)
    return folds


@pytest.mark.slow
@settings(max_examples=150)
@given(DRAWN, st.integers(0, 30), st.integers(0, 30))
def test_s6_7_folds_restored_at_any_cut_go_on_as_those_of_the_whole_log(
    drawn: list[tuple[str, int]], first: int, second: int
) -> None:
    """S6.7: neither where the log was cut, nor how often, makes a difference."""
    records = records_of(drawn)
    first, second = sorted((min(first, len(records)), min(second, len(records))))
    whole = followed(records)
    base = advance(EMPTY_BASE, records[:first], bounds=SMALL)
    assert base.seq == (records[first - 1].last_seq if first else 0)
    assert base == advance(EMPTY_BASE, iter(records[:first]), bounds=SMALL)
    base = advance(base, records[first:second], bounds=SMALL)
    assert base == advance(EMPTY_BASE, records[:second], bounds=SMALL)
    restored = followed(records[second:], base)
    assert restored.base() == whole.base()
    assert (restored.configs.current, restored.configs.current_seq) == (
        whole.configs.current,
        whole.configs.current_seq,
    )
    for seq in range(base.seq, whole.lineage.last_seq + 1):
        assert restored.lineage.term_at(seq) == whole.lineage.term_at(seq)
        assert restored.batches.at(Seq(seq)) == whole.batches.at(Seq(seq))
    for one in records:
        asked = (one.guid, one.digest)
        mine = restored.dedupe.judge(*asked, in_doubt=True)
        assert mine[0] is whole.dedupe.judge(*asked, in_doubt=True)[0]


@settings(max_examples=100)
@given(DRAWN, DRAWN, st.lists(st.integers(1, 5)), st.integers(0, 30))
def test_s6_7_folds_depend_on_no_grouping_of_commits_and_on_no_tail_that_went(
    drawn: list[tuple[str, int]], stray: list[tuple[str, int]], groups: list[int], at: int
) -> None:
    """S2.5, S6.7: what was truncated leaves nothing in a base, and commits come as they come."""
    records = records_of(drawn)
    folds = Folds(TRIO, bounds=SMALL)
    at = min(at, len(records))
    uncommitted = 0
    for number, one in enumerate(records):
        if number == at:
            tail = records_of([("term", 1), *stray])
            shift, start_term = one.base_seq - 1, folds.lineage.last.term
            for lost in tail:
                moved = Seq(lost.base_seq + shift)
                changed = {"base_seq": moved, "term": start_term + lost.term}
                folds.append(msgspec.structs.replace(lost, **changed))
            folds.commit(Seq(one.base_seq - 1))
            folds.truncate(one.base_seq)
        folds.append(one)
        uncommitted += 1
        if groups and uncommitted >= groups[0]:
            folds.commit(one.last_seq)
            uncommitted, groups = 0, groups[1:]
    folds.commit(folds.lineage.last_seq)
    assert folds.base() == followed(records).base()


def test_r1_folds_of_a_base_are_bounded_as_the_code_that_fills_them() -> None:
    """One list of bounds: a base that forgets more than a replica would differ from it."""
    assert BOUNDS.guid_window == GUID_WINDOW
    assert (BOUNDS.outcomes_max, BOUNDS.runs_max) == (OUTCOMES_MAX, RUNS_MAX)
    assert (BOUNDS.marks_max, BOUNDS.writers_max) == (MARKS_MAX, WRITERS_MAX)
    assert tuple(fold.NAME for fold in Folds(TRIO).every) == FOLDS


def test_base_of_no_records_is_the_base_before() -> None:
    """A move by nothing decodes nothing twice and changes nothing."""
    assert advance(EMPTY_BASE, []) is EMPTY_BASE
    assert EMPTY_BASE.chain_hash == Folds(TRIO).chain.at(0) == bytes(DIGEST_BYTES)


def test_s4_5_retry_below_the_base_is_recognised() -> None:
    """S4.5: the record is gone, its GUID and digest are not: never a second application."""
    old = record(1, counter=1, payload=b"old")
    restored = Folds(TRIO, base=advance(EMPTY_BASE, [old, record(2, counter=2)]))
    verdict, written = restored.dedupe.judge(guid(1), old.digest, in_doubt=True)
    assert verdict is Verdict.DUPLICATE
    assert written is not None
    assert (written.base_seq, written.last_seq, written.term) == (1, 1, 1)
    assert restored.dedupe.judge(guid(2), old.digest, in_doubt=True)[0] is Verdict.REUSED


def test_condition_of_a_write_below_the_base_is_not_known() -> None:
    """A base says where a write stands; what came of its condition was in the record's time."""
    base = advance(EMPTY_BASE, [record(1, counter=1, kind=RecordKind.CONDITIONAL)])
    written = Folds(TRIO, base=base).dedupe.find(guid(1))
    assert written is not None
    assert not written.outcome_known


def test_lineage_of_a_base_forgets_the_oldest_terms() -> None:
    """Below the oldest run that is kept no log holds anything, as far as can be known."""
    records = [term_start(seq, seq) for seq in range(1, 6)]
    lineage = Folds(TRIO, base=advance(EMPTY_BASE, records, bounds=SMALL), bounds=SMALL).lineage
    assert [entry.term for entry in lineage.newest()] == [5, 4, 3]
    assert lineage.holds(record(3).term, 3) is False
    assert [lineage.holds(records[seq - 1].term, seq) for seq in (1, 2, 3)] == [False, False, True]
    assert lineage.holds(EMPTY_BASE.term, 0)
    with pytest.raises(AssertionError, match="forgotten"):
        lineage.term_at(2)


# --- what is refused ------------------------------------------------------------------------------

HELD = records_of(
    [
        ("term", 0),
        ("rows", 0),
        ("rows", 1),
        ("config", 0),
        ("mark", 0),
        ("staged", 0),
        ("term", 1),
        ("mark", 1),
        ("condition", 5),
    ]
)
BASE = advance(EMPTY_BASE, HELD)
NUMBERS = {name: number for number, name in enumerate(FOLDS)}


def with_state(name: str, change: Callable[[Any], Any]) -> Base:
    """The base with another state of one fold."""
    version, folds = msgspec.msgpack.decode(BASE.folds)
    folds[NUMBERS[name]][2] = change(folds[NUMBERS[name]][2])
    return msgspec.structs.replace(BASE, folds=msgspec.msgpack.encode((version, folds)))


def replaced(path: tuple[int, ...], value: Any) -> Callable[[Any], Any]:
    """Put another value at one place."""

    def change(state: Any) -> Any:
        inner = state
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        return state

    return change


def repeated(at: int, count: int) -> Callable[[Any], Any]:
    """Have a list be as long as no fold remembers."""

    def change(state: Any) -> Any:
        state[at] = [state[at][0]] * count
        return state

    return change


END = BASE.seq


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lineage", replaced((0,), END)),
        ("lineage", replaced((1, 0, 1), END)),
        ("lineage", replaced((1, -1, 1), END + 1)),
        ("lineage", replaced((1, -1, 0), 1)),
        ("lineage", replaced((1, -1, 0), 99)),
        ("lineage", replaced((1,), [])),
        ("lineage", repeated(1, RUNS_MAX + 1)),
        ("tail", replaced((0,), -1)),
        ("tail", replaced((0,), 2**63)),
        ("chain", replaced((0,), END - 1)),
        ("chain", replaced((1,), bytes(15))),
        ("chain", replaced((1,), bytes(16))),
        ("batches", replaced((0,), 1)),
        ("batches", replaced((1,), 6)),
        ("batches", replaced((2, 0), END + 1)),
        ("batches", repeated(2, MARKS_MAX + 1)),
        ("batches", repeated(3, WRITERS_MAX + 1)),
        ("batches", replaced((3, 0, 0), "")),
        ("batches", replaced((3, 0, 1), -1)),
        ("batches", replaced((3, 1, 2), END + 1)),
        ("batches", replaced((3, 1, 0), "w0")),
        ("dedupe", replaced((0,), END)),
        ("dedupe", replaced((1, 0, 1), 1)),
        ("dedupe", replaced((1, 0, 0), b"short")),
        ("dedupe", replaced((1, 0, 0), b"session1")),
        ("dedupe", replaced((1, 0, 2), 99)),
        ("dedupe", replaced((1, 0, 3), END + 1)),
        ("dedupe", replaced((2, 0, 0), 99)),
        ("dedupe", replaced((2, 0, 2), END + 1)),
        ("dedupe", replaced((2, 0, 3), 0)),
        ("dedupe", replaced((2, 0, 3), 60_000)),
        ("dedupe", replaced((2, 0, 4), -1)),
        ("dedupe", replaced((2, 0, 5), 99)),
        ("dedupe", replaced((2, 0, 6), b"")),
        ("dedupe", repeated(2, OUTCOMES_MAX + 1)),
        ("configs", replaced((0,), END + 1)),
        ("configs", replaced((0,), 0)),
        ("configs", replaced((1,), None)),
        ("configs", replaced((1, 0), [])),
        ("configs", lambda _: b"nothing of the kind"),
    ],
)
def test_damaged_fold_is_refused_with_its_name(name: str, change: Callable[[Any], Any]) -> None:
    """S12: ranges, bounds and the order of a log are checked before anything is believed."""
    Folds(TRIO, base=BASE)
    with pytest.raises(CorruptRecordError, match=f"^{name} of the log's base"):
        Folds(TRIO, base=with_state(name, change))


@pytest.mark.parametrize(
    ("bound", "name"),
    [
        ("runs_max", "lineage"),
        ("marks_max", "batches"),
        ("writers_max", "batches"),
        ("guid_window", "dedupe"),
        ("sessions_max", "dedupe"),
        ("outcomes_max", "dedupe"),
    ],
)
def test_base_that_brings_more_than_is_remembered_is_refused(bound: str, name: str) -> None:
    """S12: what a replica holds of others is bounded, wherever it comes from."""
    with pytest.raises(CorruptRecordError, match=f"^{name} of the log's base"):
        Folds(TRIO, base=BASE, bounds=BOUNDS._replace(**{bound: 1}))


def test_fold_that_is_missing_or_comes_twice_is_refused() -> None:
    """Without its deduplication a replica would take every retry for new."""
    version, folds = msgspec.msgpack.decode(BASE.folds)
    for kept, name in ((folds[:-1], "configs"), ([*folds, folds[0]], "folds")):
        encoded = msgspec.msgpack.encode((version, kept))
        with pytest.raises(CorruptRecordError, match=f"^{name} of the log's base"):
            Folds(TRIO, base=msgspec.structs.replace(BASE, folds=encoded))


@pytest.mark.parametrize("name", FOLDS)
def test_fold_of_a_newer_version_is_refused_with_its_name(name: str) -> None:
    """GAP-15: never read by guessing, never overwritten."""
    version, folds = msgspec.msgpack.decode(BASE.folds)
    folds[NUMBERS[name]][1] += 1
    with pytest.raises(NewerFormatError, match=f"{name} has format 2"):
        Folds(
            TRIO,
            base=msgspec.structs.replace(BASE, folds=msgspec.msgpack.encode((version, folds))),
        )


def test_list_of_folds_of_a_newer_version_is_refused() -> None:
    """GAP-15: a fold that this version does not follow, and another form of the list."""
    version, folds = msgspec.msgpack.decode(BASE.folds)
    for value, told in (
        ((version, [*folds, ["expiry", 1, []]]), "expiry is not known"),
        ((version + 1, {"of": "another form"}), "they have format 2"),
    ):
        encoded = msgspec.msgpack.encode(value)
        with pytest.raises(NewerFormatError, match=told):
            Folds(TRIO, base=msgspec.structs.replace(BASE, folds=encoded))


@given(st.integers(0, len(BASE.folds) - 1), st.integers(0, 255), st.booleans())
def test_whatever_the_bytes_of_folds_are_nothing_but_a_refusal_comes(
    at: int, value: int, cut: bool
) -> None:
    """S12: a damaged encoding ends in an error that names it, never in an assertion."""
    folds = BASE.folds[:at] + (b"" if cut else bytes((value,)) + BASE.folds[at + 1 :])
    try:
        Folds(TRIO, base=msgspec.structs.replace(BASE, folds=folds))
    except (CorruptRecordError, NewerFormatError):
        assert folds != BASE.folds


def test_folds_of_another_log_are_refused() -> None:
    """S13: hash and term of the base are those of its folds."""
    for other in (
        msgspec.structs.replace(BASE, chain_hash=bytes(DIGEST_BYTES)),
        msgspec.structs.replace(BASE, term=BASE.term + 1),
        msgspec.structs.replace(BASE, seq=Seq(BASE.seq - 1)),
        msgspec.structs.replace(BASE, folds=b""),
    ):
        with pytest.raises(CorruptRecordError):
            Folds(TRIO, base=other)
