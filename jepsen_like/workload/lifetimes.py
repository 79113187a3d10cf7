"""Rows with a lifetime: written, read at every level and replaced while clocks jump."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.lifetimes import check_lifetimes
from jepsen_like.checker.stream import check_stream
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues, read_each
from raftstore.types import Level

TABLE: Final = "lives"
KEYS: Final = 24
TTLS_MS: Final = (400, 1_500, 4_000, 8_000, 0)
"""Shorter and longer than a clock may be ahead (``expiry.clock_ahead_ms``); 0: for ever."""
RECENT: Final = 3
"""A reader mostly asks for what it wrote last."""


class Lifetimes(UniqueValues):
    """Rows that expire, some of them replaced before, some written on condition of absence."""

    name = "lifetimes"
    text = "rows with a ttl under clocks that jump; none is gone early, comes back, or differs"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 2})
    rows_expire = True
    """Replicas may differ for a moment whenever a row does."""

    def client(self, index: int, rng: random.Random) -> Client:
        """A third writes, each with a lifetime of its own."""
        del index
        written: list[str] = []
        while True:
            chance = rng.random()
            if chance < 0.35:
                key = f"l{rng.randrange(KEYS)}"
                self._last += 1
                action = Action.PUT_IF if chance < 0.1 else Action.PUT
                yield Call(action, TABLE, key, self._last, ttl_ms=rng.choice(TTLS_MS))
                written = [*written, key][-RECENT:]
                continue
            key = rng.choice(written) if written and chance < 0.8 else f"l{rng.randrange(KEYS)}"
            yield Call(Action.GET, TABLE, key, level=_level(rng))

    def final_client(self, rng: random.Random) -> Client:
        """Read every key once."""
        del rng
        yield from read_each(TABLE, (f"l{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """Lifetimes; and every acknowledged write stands in the log, whatever became of its row."""
        stream = check_stream(run, TABLE)
        return [check_lifetimes(run, TABLE), replace(stream, checker=f"{stream.checker} {TABLE}")]


def _level(rng: random.Random) -> Level:
    return Level.LINEARIZABLE if rng.random() < 0.6 else Level.ANY
