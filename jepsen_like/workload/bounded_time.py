"""Staleness by time: judged by when the log was committed, never by what the replica says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.workload.base import Client, Run, read_each
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Level

TABLE: Final = "timed"
KEYS: Final = 24
BOUNDS_MS: Final = (20, 200, 2_000)
MAX_LAG: Final = 1_000


class BoundedTime:
    """Writes, and reads of any replica that may miss only what is younger than a bound."""

    name = "bounded_time"
    text = "reads of any replica within max_staleness_ms; judged by when the log was committed"

    def __init__(self) -> None:
        self.tables: Mapping[str, int] = {TABLE: 1}
        self._last = 0

    def client(self, index: int, rng: random.Random) -> Client:
        """Half writes, half bounded reads, some of which are bounded in rows, too."""
        del index
        while True:
            key = f"t{rng.randrange(KEYS)}"
            if rng.random() < 0.5:
                self._last += 1
                yield Call(Action.PUT, TABLE, key, self._last)
            else:
                yield Call(
                    Action.GET,
                    TABLE,
                    key,
                    level=Level.BOUNDED,
                    max_lag=MAX_LAG if rng.random() < 0.3 else None,
                    max_staleness_ms=rng.choice(BOUNDS_MS),
                )

    def final_client(self, rng: random.Random) -> Client:
        """Read every key at the leader."""
        del rng
        yield from read_each(TABLE, (f"t{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """Rows committed before the bound are in every answer (S7.3)."""
        timed = check_staleness(run, TABLE)
        if not timed.figures["timed"] and timed.is_valid:
            summary = "no read bounded in time was answered, so no bound was judged"
            timed = Verdict("staleness", Validity.UNDECIDED, summary, figures=timed.figures)
        others = judge_rows(run, self.tables)
        return [timed, *(other for other in others if not other.checker.startswith("stale"))]
