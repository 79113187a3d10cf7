"""A finished run: its figures, and its way to disk and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.figures import SECOND_NS, kind_of, per_second, silences, totals
from jepsen_like.history import HistoryError, Operation, read_history
from jepsen_like.result import HISTORY_NAME, RUN_NAME, Result
from raftstore.types import Outcome

MS = 1_000_000


def put(at_ms: int, took_ms: int | None = 2, outcome: Outcome = Outcome.OK) -> Operation:
    """A write that began at this moment."""
    returned = None if took_ms is None else (at_ms + took_ms) * MS
    return Operation("c1", "put", "k", at_ms, at_ms * MS, returned, outcome)


def get(at_ms: int, level: str = "bounded") -> Operation:
    """A read of one millisecond."""
    details = {"level": level}
    return Operation("c2", "get", "k", None, at_ms * MS, (at_ms + 1) * MS, Outcome.OK, 1, details)


def sample(verdicts: tuple[Verdict, ...] = ()) -> Result:
    """A small run with one fault that fired and one that could not."""
    history = [put(0), put(10), get(20), put(1_000), put(1_100, None, Outcome.UNKNOWN)]
    return Result(
        target="simulated",
        workload="register",
        nemeses=("kill-leader", "power-loss-all"),
        seed=7,
        options={"clients": 2},
        seconds=1.2,
        verdicts=verdicts or (Verdict("set", Validity.VALID, "3 adds, none lost"),),
        history=history,
        faults=[
            {"kind": "kill-leader", "started": 12 * MS, "ended": 900 * MS, "where": "n1"},
            {
                "kind": "power-loss-all",
                "started": 0,
                "ended": 0,
                "fired": False,
                "reason": "needs root",
            },
        ],
        replica_hashes={"t/0": {"n1": "aa", "n2": "aa"}},
        facts={"processors": 2},
        replay="raftstore chaos run --seed 7",
    )


def test_totals_count_outcomes_and_measure_only_what_succeeded() -> None:
    """An operation without an answer has no latency, but it is counted."""
    writes = next(line for line in totals(sample().history) if line.kind == "write")
    assert (writes.ok, writes.unknown, writes.not_applied) == (3, 1, 0)
    assert writes.p50_ms == 2.0
    assert writes.longest_gap_ms == 990.0


def test_totals_tell_reads_of_different_levels_apart() -> None:
    """A bounded read is another promise than a linearizable one."""
    assert [kind_of(get(0)), kind_of(get(0, "linearizable"))] == [
        "read bounded",
        "read linearizable",
    ]


def test_silence_of_a_fault_is_the_longest_gap_that_touches_its_beginning() -> None:
    """The write at 10 ms and the next at 1,000 ms surround the kill at 12 ms."""
    run = sample()
    found = {silence.kind: silence for silence in silences(run.history, run.faults)}
    assert found["write"].gap_ms == 990.0
    assert found["write"].fault == "kill-leader"


def test_silence_is_not_blamed_on_a_fault_that_did_not_run() -> None:
    """A fault that could not be injected explains nothing."""
    run = sample()
    assert {silence.fault for silence in silences(run.history, run.faults)} == {"kill-leader"}


def test_silence_ignores_gaps_long_before_and_after_the_fault() -> None:
    """Only gaps that overlap the five seconds after the fault count."""
    history = [put(0), put(5_000), put(5_010), put(30_000), put(60_000)]
    fault = {"kind": "kill", "started": 5_005 * MS, "ended": 5_100 * MS}
    assert [silence.gap_ms for silence in silences(history, [fault])] == [24_990.0]


def test_throughput_counts_successes_by_second() -> None:
    """Second 0 begins at the first invocation."""
    history = [put(100), put(200), put(1_500), put(1_600, 1, Outcome.NOT_APPLIED)]
    assert per_second(history, 100 * MS, 3) == [2, 1, 0]
    assert SECOND_NS == 1_000 * MS


def test_result_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    """A report can be made later, elsewhere."""
    evidence = (put(0), put(10))
    bad = Verdict("register", Validity.INVALID, "stale", evidence, evidence[1], {"lost": 1})
    before = sample((bad,))
    before.save(tmp_path)
    after = Result.load(tmp_path)
    assert after.validity is Validity.INVALID
    assert list(after.verdicts[0].evidence) == list(evidence)
    assert after.verdicts[0].culprit == evidence[1]
    assert after.history == before.history
    assert after.faults == before.faults
    assert (after.seed, after.nemeses, after.replay) == (7, before.nemeses, before.replay)


def test_run_that_nothing_judged_is_not_valid() -> None:
    """It is not invalid either: nobody knows."""
    nothing = replace(sample(), verdicts=())
    assert nothing.validity is Validity.UNDECIDED


def test_result_is_refused_with_a_sentence_where_none_was_written(tmp_path: Path) -> None:
    """The text names the directory and the remedy."""
    with pytest.raises(HistoryError, match=r"holds no finished run.*--out wrote"):
        Result.load(tmp_path)


def test_result_of_another_format_is_refused(tmp_path: Path) -> None:
    """A later version's file is never half understood."""
    sample().save(tmp_path)
    path = tmp_path / RUN_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(HistoryError, match="has format 99; this version reads 1"):
        Result.load(tmp_path)


def test_history_names_the_line_that_is_no_operation(tmp_path: Path) -> None:
    """Line 2 of a damaged file is called line 2."""
    sample().save(tmp_path)
    path = tmp_path / HISTORY_NAME
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{half", *lines[2:]]))
    with pytest.raises(HistoryError, match=r"line 2 of .* is no operation"):
        read_history(path)
