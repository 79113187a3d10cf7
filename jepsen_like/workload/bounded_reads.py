"""Bounded staleness: judged by the committed log, never by what the replica says of itself."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues, read_each
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Level

TABLE: Final = "bounded"
KEYS: Final = 24
BOUNDS: Final = (0, 5, 50)


class BoundedReads(UniqueValues):
    """Writes, and reads of any replica within a bound of rows."""

    name = "bounded_reads"
    text = "reads of any replica within max_lag rows; the lag is recomputed from the committed log"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 1})

    def client(self, index: int, rng: random.Random) -> Client:
        """Half writes, half bounded reads."""
        del index
        while True:
            key = f"b{rng.randrange(KEYS)}"
            if rng.random() < 0.5:
                self._last += 1
                yield Call(Action.PUT, TABLE, key, self._last)
            else:
                bound = rng.choice(BOUNDS)
                yield Call(Action.GET, TABLE, key, level=Level.BOUNDED, max_lag=bound)

    def final_client(self, rng: random.Random) -> Client:
        """Read every key at the leader."""
        del rng
        yield from read_each(TABLE, (f"b{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """The bound holds against what the leader had committed when last heard (S7.3)."""
        bounded = check_staleness(run, TABLE)
        if not bounded.figures["bounded"] and bounded.is_valid:
            summary = "no bounded read was answered, so no bound was judged"
            bounded = Verdict("staleness", Validity.UNDECIDED, summary, figures=bounded.figures)
        others = judge_rows(run, self.tables)
        return [bounded, *(other for other in others if not other.checker.startswith("stale"))]
