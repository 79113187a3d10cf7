"""Registers written with unique values: every read is linearizable."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.linearizable import check_linearizable
from jepsen_like.checker.models import model_named
from jepsen_like.checker.rw_register import check_rw_register, puts_and_gets
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues, read_each
from jepsen_like.workload.judging import as_register, judge_rows

TABLE: Final = "registers"
KEYS: Final = 8


class Register(UniqueValues):
    """Blind writes and linearizable reads of a few keys."""

    name = "register"
    text = "unique values written to a few keys; linearizable reads"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 2})

    def client(self, index: int, rng: random.Random) -> Client:
        """Half reads, half writes."""
        del index
        while True:
            key = f"r{rng.randrange(KEYS)}"
            if rng.random() < 0.5:
                yield Call(Action.GET, TABLE, key)
            else:
                self._last += 1
                yield Call(Action.PUT, TABLE, key, self._last)

    def final_client(self, rng: random.Random) -> Client:
        """Read every key once."""
        del rng
        yield from read_each(TABLE, (f"r{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """Linearizable, each key on its own."""
        return [
            check_linearizable(model_named("register"), as_register(run.history)),
            check_rw_register(puts_and_gets(run.history)),
            *judge_rows(run, self.tables),
        ]
