"""The live audit as a checker of recorded histories."""

from __future__ import annotations

from typing import Any

from jepsen_like.checker.audit import check_audit
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.types import Outcome

MS = 1_000_000


def operation(action: str, at: int, seq: int | None, **fields: Any) -> Operation:
    """One that took a millisecond, at a position of partition 0."""
    details: dict[str, Any] = {"table": "t", **fields.pop("details", {})}
    if seq is not None:
        details["positions"] = [[0, seq]]
    given = {"key": "k", "value": None, "result": None, "outcome": Outcome.OK, **fields}
    return Operation(
        process="c",
        action=action,
        invoked=at * MS,
        returned=(at + 1) * MS,
        details=details,
        **given,
    )


def read(at: int, seq: int | None, version: int, value: Any, **details: Any) -> Operation:
    """A get of a row, or of none."""
    return operation("get", at, seq, result=value, details={"seqs": [version], **details})


def judged(*history: Operation, faults: tuple[dict[str, Any], ...] = ()) -> Verdict:
    """The verdict on a history."""
    verdict = check_audit(Run(list(history), faults=faults), "t")
    assert verdict is not None
    return verdict


def test_right_history_is_valid_and_counted() -> None:
    """N7: answers without a position, conflicts and other tables are left out."""
    verdict = judged(
        operation("put", 0, 5, value="x"),
        read(2, 6, 5, "x"),
        operation("put_if", 4, 7, value="no", details={"conflict": True}),
        operation("delete", 6, 8),
        read(8, 9, 0, None),
        read(10, None, 0, "no position"),
        operation("put", 11, 3, value="x", outcome=Outcome.UNKNOWN),
        read(12, 1, 0, None, table="another"),
    )
    assert verdict.validity is Validity.VALID
    assert verdict.figures["observed"] == 4


def test_nothing_to_judge_is_no_verdict() -> None:
    """N7: as where only scans were made."""
    assert check_audit(Run([read(0, None, 0, None)]), "t") is None


def test_what_an_audit_finds_is_invalid() -> None:
    """N7: each kind is a count of its own."""
    verdict = judged(operation("put", 0, 5, value="x"), read(2, 4, 0, None))
    assert verdict.validity is Validity.INVALID
    assert verdict.figures["stale_read"] == 1
    verdict = judged(operation("put", 0, 5, value="x"), read(2, 6, 5, "y"))
    assert verdict.figures["lost_write"] == 1


def test_clocks_that_a_fault_slowed_stretch_ages() -> None:
    """N7: a node states whole milliseconds of its own clock."""
    history = (
        operation("put", 99, 5, value="x"),
        read(290, 4, 0, None, level="any", staleness_ms=110),
    )
    assert judged(*history).figures["too_old"] == 1
    assert judged(*history, faults=({"kind": "clock-slow"},)).validity is Validity.VALID
