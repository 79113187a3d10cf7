"""A channel as a stream: every acknowledged message at its seq, once, on the committed log."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues
from jepsen_like.workload.judging import judge_rows

TABLE: Final = "stream"


class PublishLog(UniqueValues):
    """Unique messages; the committed log afterwards is the judge."""

    name = "publish_log"
    text = "unique messages; each acknowledged one stands in the committed log once, at its seq"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 2})

    def client(self, index: int, rng: random.Random) -> Client:
        """Publish without end."""
        del rng
        while True:
            self._last += 1
            yield Call(Action.PUT, TABLE, f"m{self._last}", index)

    def final_client(self, rng: random.Random) -> Client:
        """One scan, so that the healed table was read too."""
        del rng
        yield Call(Action.SCAN, TABLE, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Lost, moved, doubled, and refused yet published: the stream of `judge_rows`."""
        return judge_rows(run, self.tables)
