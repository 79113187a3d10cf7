"""Bounds of every kind, alone and together: rows, time, and micro-batches by their marks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues, read_each
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Level

TABLE: Final = "batches"
KEYS: Final = 24
ROWS_OF_BATCH: Final = (1, 6)
BATCHES: Final = (0, 1, 4)
BOUNDS: Final[Mapping[str, tuple[int, ...]]] = {
    "max_lag": (0, 5, 50), "max_staleness_ms": (20, 200, 2_000), "max_batches_behind": BATCHES,
}  # fmt: skip


class BoundedBatches(UniqueValues):
    """Micro-batches of a few rows and a mark each, and reads within any of the bounds there are."""

    name = "bounded_batches"
    text = "micro-batches, and reads of any replica within bounds of batches, rows and time"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 1})

    def __init__(self) -> None:
        self._batches = 0

    def client(self, index: int, rng: random.Random) -> Client:
        """A batch row by row with its mark, then about as many reads."""
        del index
        while True:
            for _ in range(rng.randint(*ROWS_OF_BATCH)):
                self._last += 1
                yield Call(Action.PUT, TABLE, self._key(rng), self._last)
                if rng.random() < 0.5:
                    yield self._read(rng)
            self._batches += 1
            yield Call(Action.MARK, TABLE, value=self._batches)
            for _ in range(rng.randint(1, 4)):
                yield self._read(rng)

    def _key(self, rng: random.Random) -> str:
        return f"b{rng.randrange(KEYS)}"

    def _read(self, rng: random.Random) -> Call:
        """Mostly within a number of micro-batches, now and then within others, too, or instead."""
        names = [name for name in BOUNDS if rng.random() < (0.3 if name != "max_lag" else 0.2)]
        bounds: dict[str, Any] = {name: rng.choice(BOUNDS[name]) for name in names}
        if not bounds or rng.random() < 0.5:
            bounds["max_batches_behind"] = rng.choice(BATCHES)
        return Call(Action.GET, TABLE, self._key(rng), level=Level.BOUNDED, **bounds)

    def final_client(self, rng: random.Random) -> Client:
        """Read every key at the leader."""
        del rng
        yield from read_each(TABLE, (f"b{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """Marks between the state that was served and the end that was known are counted."""
        counted = check_staleness(run, TABLE)
        if not counted.figures["batched"] and counted.is_valid:
            summary = "no read bounded in micro-batches was answered, so no bound was judged"
            counted = Verdict("staleness", Validity.UNDECIDED, summary, figures=counted.figures)
        others = judge_rows(run, self.tables)
        return [counted, *(other for other in others if not other.checker.startswith("stale"))]
