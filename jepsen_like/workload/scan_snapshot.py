"""Scans are snapshots: rows written by one record are seen together or not at all."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.facts import rows_of_read
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues
from jepsen_like.workload.judging import Finding, judge_rows, succeeded, verdict_of
from raftstore.types import Level

TABLE: Final = "snapshot"
KEYS: Final = tuple(f"k{number}" for number in range(10))


class ScanSnapshot(UniqueValues):
    """Every write gives all rows the same unique value; every scan must find one value."""

    name = "scan_snapshot"
    text = "all rows are written as one record; a scan of any replica finds one value in all"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 1})

    def client(self, index: int, rng: random.Random) -> Client:
        """Half writes, half scans at random levels."""
        del index
        while True:
            if rng.random() < 0.5:
                self._last += 1
                rows = tuple((key, self._last) for key in KEYS)
                yield Call(Action.PUT_MANY, TABLE, rows=rows)
            else:
                level = rng.choice((Level.LINEARIZABLE, Level.ANY))
                yield Call(Action.SCAN, TABLE, level=level)

    def final_client(self, rng: random.Random) -> Client:
        """One last scan."""
        del rng
        yield Call(Action.SCAN, TABLE, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """All rows with one value, or no rows."""
        findings: list[Finding] = []
        scans = succeeded(run.history, "scan")
        for scan in scans:
            rows = dict(rows_of_read(scan))
            values = list(dict.fromkeys(rows.values()))
            if len(values) > 1 or len(rows) not in (0, len(KEYS)) or scan.result is None:
                text = f"a scan found {len(rows)} rows with the values {values[:4]}"
                findings.append((text, scan))
        snapshots = verdict_of("snapshot", findings, len(scans), "scans")
        return [snapshots, *judge_rows(run, self.tables)]
