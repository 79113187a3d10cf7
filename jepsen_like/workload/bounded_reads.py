"""Bounded staleness: judged by the committed log, never by what the replica says of itself."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Client, Committed, Run
from jepsen_like.workload.judging import Finding, succeeded, verdict_of
from raftstore.config import NodeSettings
from raftstore.types import Level

TABLE: Final = "bounded"
KEYS: Final = 24
BOUNDS: Final = (0, 5, 50)


class BoundedReads:
    """Writes, and reads of any replica within a bound of rows."""

    name = "bounded_reads"
    text = "reads of any replica within max_lag rows; the lag is recomputed from the committed log"

    def __init__(self) -> None:
        self.tables: Mapping[str, int] = {TABLE: 1}
        self._last = 0

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
        for number in range(KEYS):
            yield Call(Action.GET, TABLE, f"b{number}", final=True)

    def check(self, run: Run) -> list[Verdict]:
        """The bound holds against what the leader had committed when last heard (S7.3).

        A replica may answer from leader information up to ``leader_info_age_max_ms`` old, so the
        truth to compare with is the committed end that long before the read began.
        """
        age = NodeSettings(name="", data_dir="").read.leader_info_age_max_ms * 1_000_000
        commits = run.commits.get((TABLE, 0), ())
        timed = [(row.committed_at, row.seq) for row in commits if row.committed_at is not None]
        times = [at for at, _ in timed]
        findings: list[Finding] = []
        judged = 0
        for read in succeeded(run.history, "get"):
            if read.details.get("level") != Level.BOUNDED.value or not timed:
                continue
            judged += 1
            known = bisect_right(times, read.invoked - age)
            end = timed[known - 1][1] if known else 0
            findings += _beyond(read, end) + _wrong(read, commits)
        return [verdict_of("staleness", findings, judged, "bounded reads")]


def _beyond(read: Operation, end: int) -> list[Finding]:
    true_lag = end - dict(read.details["positions"])[0]
    reported = read.details.get("lag")
    if true_lag > read.details["max_lag"]:
        return [(f"served {true_lag} rows behind, allowed are {read.details['max_lag']}", read)]
    if reported is None or reported < true_lag:
        return [(f"reported a lag of {reported} rows, it was {true_lag}", read)]
    return []


def _wrong(read: Operation, commits: Sequence[Committed]) -> list[Finding]:
    applied = dict(read.details["positions"])[0]
    value = None
    for row in commits:
        if row.seq > applied:
            break
        if row.key == read.key:
            value = row.value
    if value != read.result:
        return [(f"read {read.result} at seq {applied}, committed there is {value}", read)]
    return []
