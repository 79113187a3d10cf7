"""The readable parts of a run: the words, the timeline, the report."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.explain import describe, explain, window
from jepsen_like.history import Operation
from jepsen_like.report.page import page, write_report
from jepsen_like.result import Result
from jepsen_like.timeline import timeline_html, timeline_svg
from raftstore.types import Outcome

MS = 1_000_000
WRITE = Operation("c1", "write", "k", 1, 0, 2 * MS, Outcome.OK)
STALE = Operation("c2", "read", "k", None, 5 * MS, 6 * MS, Outcome.OK, 0)
LOST = Operation("c3", "write", "k", "<b>&", 1 * MS, None, Outcome.UNKNOWN)
FAR = Operation("c1", "write", "k", 9, 50 * MS, 51 * MS, Outcome.OK)
HISTORY = [WRITE, LOST, STALE, FAR]
BAD = Verdict("register", Validity.INVALID, "k: 0 was read after 1", (WRITE, STALE), STALE)


def result(*verdicts: Verdict) -> Result:
    """A run with these verdicts."""
    return Result(
        target="processes",
        workload="register",
        nemeses=("kill-leader",),
        seed=3,
        options={"clients": 3},
        seconds=1.0,
        verdicts=verdicts,
        history=HISTORY,
        faults=[
            {"kind": "kill-leader", "started": 3 * MS, "ended": 4 * MS, "where": "n1"},
            {"kind": "fill-disk", "started": 0, "ended": 0, "fired": False, "reason": "needs root"},
        ],
        replica_hashes={"t/0": {"n1": "aa", "n2": "bb"}},
        replay="raftstore chaos run --seed 3",
    )


def test_explanation_marks_the_operation_that_cannot_be_explained() -> None:
    """Times are relative to the window, columns are aligned, the culprit has an arrow."""
    lines = explain(BAD).splitlines()
    assert lines[0] == BAD.summary
    assert [line.startswith(">") for line in lines[2:]] == [False, True]
    assert "read k -> 0" in lines[3]
    assert "5.000 ms" in lines[3]


def test_operation_is_described_with_argument_and_result() -> None:
    """Enough to understand it without the history."""
    assert describe(WRITE) == "write k := 1"
    assert describe(STALE) == "read k -> 0"
    assert len(describe(Operation("c", "write", "k", "x" * 500))) < 80


def test_window_holds_what_was_under_way_and_nothing_else() -> None:
    """A write that never returned is under way for ever."""
    assert window(HISTORY, (WRITE, STALE)) == [WRITE, LOST, STALE]


def test_timeline_is_well_formed_and_escapes_what_users_wrote() -> None:
    """A value may hold anything, also markup."""
    svg = timeline_svg(BAD, HISTORY)
    ET.fromstring(svg)
    assert "<b>" not in svg
    assert "&lt;b&gt;&amp;" in svg
    assert svg.count("#b00020") == 1, "one operation is the culprit"
    assert "c3" in svg
    assert timeline_html(BAD, HISTORY).startswith("<!doctype html>")


def test_timeline_of_a_verdict_without_operations_is_empty() -> None:
    """Hashes that differ have no operations to show."""
    ET.fromstring(timeline_svg(Verdict("replicas", Validity.INVALID, "differ"), HISTORY))


@pytest.mark.slow
def test_report_tells_verdicts_faults_silences_and_what_did_not_run(tmp_path: Path) -> None:
    """One file that needs nothing else."""
    path = write_report(result(BAD), tmp_path)
    text = path.read_text()
    assert "INVALID" in text
    assert "k: 0 was read after 1" in text
    assert "not run</strong>: needs root" in text
    assert "write 49 ms" in text, "the silence around the kill"
    assert "raftstore chaos run --seed 3" in text
    assert "DIFFERENT" in text
    assert text.count("<svg") == 2, "the timeline and the overview"
    assert 'src="http' not in text
    assert 'href="http' not in text.replace('href="http://www.w3.org', "")


@pytest.mark.slow
def test_same_run_gives_the_same_report() -> None:
    """Reports can be compared and kept under version control."""
    assert page(result(BAD)) == page(result(BAD))


@pytest.mark.slow
def test_report_of_a_calm_run_without_verdicts_says_so() -> None:
    """Nothing judged must not look like everything fine."""
    empty = result()
    empty.faults, empty.history = [], []
    assert "nothing was judged" in page(empty)
