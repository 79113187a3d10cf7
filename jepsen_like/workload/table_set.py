"""A table as a set: what was acknowledged is in every later scan, what was refused in none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.sets import check_set
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues
from jepsen_like.workload.judging import judge_rows

TABLE: Final = "elements"


class TableSet(UniqueValues):
    """Adds of unique rows, now and then a scan of all."""

    name = "table_set"
    text = "unique rows are added; every acknowledged one is in every later linearizable scan"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 2})

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
        """Lost, stale, resurrected, invented and doubled elements."""
        reported = [
            replace(operation, action="add", value=operation.key)
            if operation.action == "put"
            else replace(operation, action="read")
            for operation in run.history
            if operation.action != Action.FATE.value
        ]
        return [check_set(reported), *judge_rows(run, self.tables)]
