"""The checker of sets."""

from __future__ import annotations

import pytest

from jepsen_like.checker.sets import check_set
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from raftstore.types import Outcome


def _add(value: int, at: int, outcome: Outcome = Outcome.OK) -> Operation:
    return Operation("c1", "add", value=value, invoked=at, returned=at + 1, outcome=outcome)


def _read(at: int, *found: int) -> Operation:
    return Operation(
        "c2", "read", invoked=at, returned=at + 1, outcome=Outcome.OK, result=list(found)
    )


@pytest.mark.parametrize(
    ("history", "validity", "figure"),
    [
        ([_add(1, 0), _read(5, 1)], Validity.VALID, None),
        ([_add(1, 0, Outcome.UNKNOWN), _read(5)], Validity.VALID, None),
        ([_add(1, 0), _read(1), _read(5, 1)], Validity.VALID, None),
        ([_add(1, 0)], Validity.UNDECIDED, "never_read"),
        ([_add(1, 0), _read(5)], Validity.INVALID, "lost"),
        ([_add(1, 0), _read(5), _read(8, 1)], Validity.INVALID, "stale"),
        ([_add(1, 0), _read(5, 1, 1)], Validity.INVALID, "duplicated"),
        ([_add(1, 0, Outcome.NOT_APPLIED), _read(5, 1)], Validity.INVALID, "phantom"),
        ([_read(5, 7)], Validity.INVALID, "phantom"),
    ],
)
def test_set_names_each_anomaly(
    history: list[Operation], validity: Validity, figure: str | None
) -> None:
    """Each anomaly is judged and counted under its own name; overlap and doubt are allowed."""
    verdict = check_set(history)
    assert verdict.validity is validity
    counts = ("lost", "stale", "never_read", "duplicated", "phantom")
    assert [n for n in counts if verdict.figures[n]] == ([figure] if figure else [])
