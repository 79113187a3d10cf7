"""Rows that go early, stay, come back or differ between replicas are found, and what clocks excuse
is excused."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.checker.lifetimes import (
    EARLY_MS,
    JUMPS_MS,
    LATE_MS,
    SETTLED_MS,
    check_lifetimes,
)
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.types import Outcome

MS = 1_000_000
TTL_MS = 4_000
KINDS = ("invented", "lost", "early", "back", "disagree", "late")


def put(
    value: int, at_ms: int, ttl_ms: int = TTL_MS, *, action: str = "put", conflict: bool = False
) -> Operation:
    """A write of the one key that takes a millisecond."""
    details: dict[str, Any] = {"table": "t", "ttl_ms": ttl_ms, "conflict": conflict}
    if action == "put_if":
        details["expected_seq"] = 0
    return Operation(
        "w", action, "k", value, at_ms * MS, (at_ms + 1) * MS, Outcome.OK, details=details
    )


def get(result: int | None, at_ms: int, seq: int, *, level: str = "linearizable") -> Operation:
    """A read of it that takes a millisecond, at this position."""
    details = {"table": "t", "level": level, "positions": [[0, seq]], "served_by": "n1"}
    return Operation(
        "r", "get", "k", None, at_ms * MS, (at_ms + 1) * MS, Outcome.OK, result, details
    )


GOOD = (
    put(1, 0), get(1, 10, 1), get(1, 2_000, 1, level="any"), get(None, TTL_MS + 50, 2),
    put(2, 6_000, action="put_if"), get(2, 6_010, 3), put(3, 6_020, 0), get(3, 90_000, 4),
)  # fmt: skip


def clock(node: str, begun_ms: int, ended_ms: int) -> dict[str, Any]:
    """A clock that was wrong for a time."""
    times = {"started": begun_ms * MS, "ended": ended_ms * MS}
    return {"kind": "clock-forward", "fired": True, "nodes": [node], **times}


def judged(*history: Operation, faults: tuple[dict[str, Any], ...] = ()) -> tuple[Validity, str]:
    """Validity and the kind that was found."""
    verdict = check_lifetimes(Run(history, faults=faults), "t")
    kinds = [name for name in KINDS if verdict.figures[name]]
    return verdict.validity, ",".join(kinds)


def test_rows_that_live_as_long_as_they_should_are_right() -> None:
    """Those that are replaced, written on condition of absence, and kept for ever, too."""
    verdict = check_lifetimes(Run(GOOD), "t")
    assert verdict.validity is Validity.VALID
    assert verdict.figures["timed"] == 3
    assert verdict.figures["compared"] == 1


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ((get(9, 20, 2, level="any"),), "invented"),
        ((get(2, 20, 3, level="any"),), "invented"),
        ((get(None, 100, 9),), "early"),
        ((get(None, TTL_MS - EARLY_MS - 10, 9),), "early"),
        ((put(8, 2_000, action="put_if"),), "early"),
        ((get(1, TTL_MS + 60, 9),), "back"),
        ((get(None, 20, 1, level="any"),), "disagree"),
        ((get(None, 91_000, 4),), "lost,disagree"),
        ((get(None, 91_000, 5),), "lost"),
        ((put(4, 200_000, 1_000), get(4, 202_000 + LATE_MS, 9)), "late"),
    ],
)
def test_what_is_wrong_is_found(wrong: tuple[Operation, ...], kind: str) -> None:
    """One answer more, and the verdict names it."""
    found = judged(*GOOD, *wrong)
    assert found[0] is Validity.INVALID
    assert kind in (found[1], found[1].split(",", maxsplit=1)[0])


@pytest.mark.parametrize(
    ("faults", "is_excused"),
    [
        ((clock("n1", 50, 60),), False),
        ((clock("n1", 0, 5),), True),
        ((clock("n1", -1_000, -900),), True),
        ((clock("n1", -5_000, -4_000),), False),
        ((clock("n1", 50, 60), clock("n2", 70, 80)), True),
        ((clock("n1", 50, 60), clock("n1", 70, 80)), False),
    ],
)
def test_clock_excuses_what_it_may(faults: tuple[dict[str, Any], ...], is_excused: bool) -> None:
    """The clock that stamped a write, and a majority's; one node's alone excuses nothing."""
    found = judged(*GOOD, get(None, 100, 9), faults=faults)
    assert (found[1] == "") == is_excused


def test_row_that_stays_is_excused_while_something_was_wrong() -> None:
    """A channel without a leader expires nothing."""
    late = (put(4, 200_000, 1_000), get(4, 202_000 + LATE_MS, 9))
    fault = {"kind": "kill-leader", "fired": True, "nodes": ["n1"], "started": 201_500 * MS}
    assert judged(*GOOD, *late, faults=({**fault, "ended": 202_000 * MS},))[1] == ""
    assert judged(*GOOD, *late, faults=({**fault, "fired": False},))[1] == "late"


def test_row_stays_longer_behind_a_clock_that_was_ahead() -> None:
    """Stamps never go back: the next ones stay where the jump was until the time has come there."""
    late = (put(4, 200_000, 1_000), get(4, 202_000 + LATE_MS, 9))
    jump = JUMPS_MS["clock-forward"]
    for ended_ms, found in ((200_000 - jump, ""), (200_000 - jump - SETTLED_MS - 1, "late")):
        faults = (clock("n1", ended_ms - 1_000, ended_ms),)
        assert judged(*GOOD, *late, faults=faults)[1] == found


def test_write_in_doubt_says_nothing_of_the_rows_around_it() -> None:
    """It may have replaced the row, with another lifetime."""
    doubt = Operation("w", "put", "k", 7, 5 * MS, None, details={"table": "t", "ttl_ms": 1})
    assert judged(put(1, 0), doubt, get(None, 100, 2), get(7, 200, 3))[1] == ""
    refused = Operation("w", "put", "k", 7, 5 * MS, 6 * MS, Outcome.NOT_APPLIED)
    refused.details.update({"table": "t", "ttl_ms": 1})
    assert judged(put(1, 0), refused, get(None, 100, 2))[1] == "early"


def test_reads_too_few_to_say_anything_prove_nothing() -> None:
    """Undecided, not valid."""
    assert judged(put(1, 0))[0] is Validity.UNDECIDED
