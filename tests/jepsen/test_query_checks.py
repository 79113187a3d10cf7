"""The checkers of fates, pages and micro-batches name what is wrong, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.checker.fates import check_fates
from jepsen_like.checker.pages import check_pages
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Client, Committed, Run
from jepsen_like.workload.fates import asking_fates
from raftstore.config import GUID_WINDOW
from raftstore.core.dedupe import OUTCOMES_MAX
from raftstore.engine.reads.write_outcomes import PENDING_REASON
from raftstore.types import Guid, Outcome, channel_id, guid_text, make_guid

TABLE = "t"
CHANNEL = channel_id(b"t" * 16, 0)
SESSION, OTHER = b"s" * 8, b"o" * 8
MS = 1_000_000


def guid(counter: int, session: bytes = SESSION) -> Guid:
    """The name of a write of the session."""
    return make_guid(session, counter)


def row(seq: int, **told: Any) -> Committed:
    """The write of this counter, at that seq."""
    return Committed(seq, guid(seq), "k", seq, **told)


def wrong(verdict: Verdict | None) -> list[str]:
    """The kinds that were found."""
    assert verdict is not None
    counts = ("asked", "scans", "pages", "later_pages", "reads", "bounded", "batched", "worst_lag")
    return [
        name
        for name, count in verdict.figures.items()
        if count and name not in counts and not name.startswith("fate_")
    ]


# --- fates ----------------------------------------------------------------------------------------


def question(
    counter: int, fate: Any, seq: int | None = None, at: int = 50 * MS, **told: Any
) -> Operation:
    """The leader's answer about the fate of a write."""
    answer = {"fate": fate, "seq": seq, "condition": "none", "reason": "", **told}
    details = {"table": TABLE, "guid": guid_text(CHANNEL, guid(counter))}
    return Operation("c0", "fate", "k", None, at - MS, at, Outcome.OK, answer, details)


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        (question(3, "committed", 3), []),
        (question(9, "not_applied"), []),
        (question(9, "unknown", reason=PENDING_REASON), []),
        (question(4, "committed", 4, condition="conflict"), []),
        (question(3, "not_applied"), ["applied"]),
        (question(9, "committed", 9), ["not_there"]),
        (question(3, "committed", 4), ["elsewhere"]),
        (question(3, "committed", 3, at=20 * MS), ["not_yet"]),
        (question(4, "committed", 4, condition="held"), ["condition"]),
        (question(3, "committed", 3, condition="conflict"), ["condition"]),
        (question(3, "unknown", reason="it is too old"), ["forgotten_early"]),
        (question(9, "unknown", reason="it is too old"), ["forgotten_early"]),
        (question(3, "lost"), ["no_fate"]),
    ],
)
def test_fates_name_each_untruth(asked: Operation, kinds: list[str]) -> None:
    """Row 3 is committed after 30 ms, row 4 lost its condition, a write 9 there is not."""
    log = [row(3, committed_at=30 * MS), row(4, committed_at=40 * MS, is_conflict=True)]
    assert wrong(check_fates(Run([asked], {(TABLE, 0): log}))) == kinds


def test_fate_may_be_forgotten_when_the_window_has_passed() -> None:
    """S4.5: as many writes of the session later the leader need not know; few writes of other
    sessions do not count, nor does time, nor a clock that jumped."""
    asked = question(1, "unknown", reason="it is too old")
    later = [row(seq) for seq in range(1, GUID_WINDOW + 2)]
    assert wrong(check_fates(Run([asked], {(TABLE, 0): later}))) == []
    assert wrong(check_fates(Run([asked], {(TABLE, 0): later[:-1]}))) == ["forgotten_early"]
    others = [Committed(seq, guid(seq, OTHER), "k", seq) for seq in range(1, GUID_WINDOW + 2)]
    assert wrong(check_fates(Run([asked], {(TABLE, 0): others}))) == ["forgotten_early"]
    late = question(1, "unknown", at=86_400_000 * MS, reason="it is too old")
    jumped = Run([late], {(TABLE, 0): later[:1]}, faults=[{"kind": "clock-hour"}])
    assert wrong(check_fates(jumped)) == ["forgotten_early"]
    many = [Committed(seq, guid(seq, OTHER), "k", seq) for seq in range(1, OUTCOMES_MAX + 2)]
    assert wrong(check_fates(Run([asked], {(TABLE, 0): many}))) == []


@pytest.mark.parametrize(
    ("outcome", "fate", "kinds"),
    [
        (Outcome.OK, "not_applied", ["contradicted"]),
        (Outcome.NOT_APPLIED, "committed", ["contradicted"]),
        (Outcome.OK, "committed", []),
        (Outcome.NOT_APPLIED, "not_applied", []),
    ],
)
def test_fates_without_a_log_are_compared_with_what_writers_were_told(
    outcome: Outcome, fate: str, kinds: list[str]
) -> None:
    """As in a cluster of somebody else, whose logs stay closed."""
    name = guid_text(CHANNEL, guid(3))
    write = Operation("c0", "put", "k", 3, 0, MS, outcome, None, {"table": TABLE, "guids": [name]})
    assert wrong(check_fates(Run([write, question(3, fate, 3)]))) == kinds


def test_fates_that_nobody_asked_for_are_not_judged() -> None:
    """Questions without an answer are not judged either."""
    unanswered = Operation("c0", "fate", "k", None, 0, 5, Outcome.NOT_APPLIED)
    assert check_fates(Run([])) is None
    assert check_fates(Run([unanswered])) is None


def test_client_asks_for_each_write_that_it_is_in_doubt_about_and_then_goes_on() -> None:
    """N4: whatever the workload; it never sees the questions nor their answers."""
    seen: list[Answer] = []

    def workload() -> Client:
        number = 0
        while True:
            seen.append((yield Call(Action.PUT, TABLE, "k", number)))
            number += 1

    calls = asking_fates(workload())
    doubt = Answer(Outcome.UNKNOWN, guids=("a", "b"))
    assert next(calls).value == 0
    asked = [calls.send(doubt), calls.send(Answer(Outcome.OK, {"fate": "committed"}))]
    assert [(call.action, call.guid, call.table) for call in asked] == [
        (Action.FATE, "a", TABLE), (Action.FATE, "b", TABLE),
    ]  # fmt: skip
    assert calls.send(Answer(Outcome.NOT_APPLIED)).value == 1
    assert calls.send(Answer(Outcome.OK, guids=("c",))).value == 2
    assert seen == [doubt, Answer(Outcome.OK, guids=("c",))]


# --- pages ----------------------------------------------------------------------------------------

LOG = [
    Committed(1, b"1", "a", 1), Committed(2, b"2", "b", 2), Committed(3, b"3", "c", 3),
    Committed(4, b"4", "b", None), Committed(5, b"5", "a", 5),
]  # fmt: skip


def page(rows: dict[str, int], seq: int = 3, limit: int = 2, **told: Any) -> Operation:
    """A page of the one scan."""
    details = {"table": TABLE, "scan": "0/0", "limit": limit, "positions": [[0, seq]], **told}
    return Operation("c0", "page", None, None, 1, 2, Outcome.OK, rows, details)


FIRST = page({"a": 1, "b": 2}, is_first=True)


@pytest.mark.parametrize(
    ("pages", "kinds"),
    [
        ([FIRST, page({"c": 3})], []),
        ([FIRST, page({"c": 3}), page({"a": 5, "c": 3}, 5, is_first=True), page({}, 5)], []),
        ([FIRST, page({"c": 3}, seq=5)], ["moved"]),
        ([FIRST, page({})], ["torn"]),
        ([page({"a": 5, "b": 2}, is_first=True), page({"c": 3})], ["torn"]),
        ([page({"a": 1, "c": 3}, is_first=True), page({})], ["torn"]),
        ([FIRST, page({"b": 2})], ["torn", "unordered"]),
        ([page({"a": 1, "b": 2, "c": 3}, is_first=True), page({})], ["overlong"]),
    ],
)
def test_pages_name_each_anomaly(pages: list[Operation], kinds: list[str]) -> None:
    """a, b and c are there at seq 3; then b goes and a changes."""
    verdict = check_pages(Run(pages, {(TABLE, 0): LOG}), TABLE)
    assert wrong(verdict) == kinds
    assert (verdict.validity is Validity.VALID) == (kinds == [])


def test_scan_that_was_begun_again_is_another_scan() -> None:
    """After an expired pin the pages before count for nothing."""
    again = [FIRST, page({"a": 5, "c": 3}, 5, is_first=True), page({}, 5)]
    assert wrong(check_pages(Run(again, {(TABLE, 0): LOG}), TABLE)) == []


def test_pages_of_nothing_prove_nothing() -> None:
    """First pages alone prove nothing either."""
    for history in ([], [FIRST]):
        verdict = check_pages(Run(history, {(TABLE, 0): LOG}), TABLE)
        assert verdict.validity is Validity.UNDECIDED


# --- micro-batches --------------------------------------------------------------------------------


def bounded(applied: int, bound: int | None, said: int | None, **told: Any) -> Operation:
    """A read 20 s after everything was committed, well beyond what a replica may not know."""
    details = {
        "table": TABLE, "level": "bounded", "positions": [[0, applied]], "lag": 10 - applied,
        "max_batches_behind": bound, "batches_behind": said, **told,
    }  # fmt: skip
    return Operation("c0", "get", "k", None, 20_000 * MS, 20_001 * MS, Outcome.OK, None, details)


@pytest.mark.parametrize(
    ("read", "kinds"),
    [
        (bounded(10, 0, 0), []),
        (bounded(8, 1, 1), []),
        (bounded(5, 1, 1), []),
        (bounded(5, None, 1, max_lag=9), []),
        (bounded(4, 1, 1), ["batches_beyond", "batches_understated"]),
        (bounded(4, 1, 2), ["batches_beyond", "over_bound"]),
        (bounded(4, None, 1, max_lag=9), ["batches_understated"]),
        (bounded(10, 0, None), ["unreported"]),
    ],
)
def test_staleness_counts_the_marks_between_the_state_and_the_end(
    read: Operation, kinds: list[str]
) -> None:
    """Seqs 5 and 9 end micro-batches; what is stated may be more than the truth, never less.

    Shows KLIP-53.
    """
    log = [
        Committed(seq, b"%d" % seq, None, None, committed_at=seq * MS, is_row=False,
                  is_mark=seq in (5, 9))
        for seq in range(1, 11)
    ]  # fmt: skip
    assert sorted(wrong(check_staleness(Run([read], {(TABLE, 0): log}), TABLE))) == sorted(kinds)
