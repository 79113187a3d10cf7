"""A table as a set: what was acknowledged is in every later scan, what was refused in none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.judging import Finding, succeeded, verdict_of
from raftstore.types import Outcome

TABLE: Final = "elements"


class TableSet:
    """Adds of unique rows, now and then a scan of all."""

    name = "table_set"
    text = "unique rows are added; every acknowledged one is in every later linearizable scan"

    def __init__(self) -> None:
        self.tables: Mapping[str, int] = {TABLE: 2}
        self._last = 0

    def client(self, index: int, rng: random.Random) -> Client:
        """One scan on some thirty adds."""
        while True:
            if rng.random() < 0.03:
                yield Call(Action.SCAN, TABLE)
            else:
                self._last += 1
                yield Call(Action.PUT, TABLE, f"e{self._last}", index)

    def final_client(self, rng: random.Random) -> Client:
        """Scan everything."""
        del rng
        yield Call(Action.SCAN, TABLE, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Lost, resurrected or invented elements."""
        adds = [operation for operation in run.history if operation.action == "put"]
        added = succeeded(adds, "put")
        refused = [add for add in adds if add.outcome is Outcome.NOT_APPLIED]
        attempted = {add.key for add in adds}
        findings: list[Finding] = []
        scans = succeeded(run.history, "scan")
        for scan in scans:
            for add in added:
                is_before = add.returned is not None and add.returned < scan.invoked
                if is_before and add.key not in scan.result:
                    findings.append((f"acknowledged element {add.key} is lost", scan))
            findings += [
                (f"element {add.key}, called not applied, is there", scan)
                for add in refused
                if add.key in scan.result
            ]
            findings += [
                (f"element {key} was never added", scan)
                for key in scan.result
                if key not in attempted
            ]
        return [verdict_of("set", findings, len(scans), "scans")]
