"""Every checker that judges rows, one after the other."""

from __future__ import annotations

from jepsen_like.checker.lost_writes import check_lost_writes
from jepsen_like.checker.sessions import check_sessions
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.stream import check_stream
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Run

TABLE = "t"


def all_verdicts(run: Run) -> dict[str, Verdict]:
    """By the name of the checker."""
    verdicts = [
        check_lost_writes(run.history), check_stream(run, TABLE), check_sessions(run.history),
        check_staleness(run, TABLE, info_age_ms=0.00003),
    ]  # fmt: skip
    return {verdict.checker: verdict for verdict in verdicts}
