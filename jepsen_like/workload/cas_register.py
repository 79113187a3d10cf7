"""Registers changed by compare-and-set on the seq that was read."""

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

TABLE: Final = "cas_registers"
KEYS: Final = 16


class CasRegister(UniqueValues):
    """Read a key, then write it only if it is still what was read."""

    name = "cas_register"
    text = "a get, then a put that holds only if the row still has the seq read"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 2})

    def client(self, index: int, rng: random.Random) -> Client:
        """A read, mostly followed by a conditional write of a unique value."""
        del index
        while True:
            key = f"c{rng.randrange(KEYS)}"
            answer = yield Call(Action.GET, TABLE, key)
            if answer.seqs and rng.random() < 0.7:
                self._last += 1
                yield Call(
                    Action.PUT_IF, TABLE, key, self._last,
                    expected_seq=answer.seqs[0], note={"from": answer.value},
                )  # fmt: skip

    def final_client(self, rng: random.Random) -> Client:
        """Read every key once."""
        del rng
        yield from read_each(TABLE, (f"c{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """Linearizable with compare-and-set, each key on its own."""
        return [
            check_linearizable(model_named("cas-register"), as_register(run.history)),
            check_rw_register(puts_and_gets(run.history)),
            *judge_rows(run, self.tables),
        ]
