"""A bank: money is neither made nor lost.

Transfers are conditional writes of one ledger row. Beside it stand accounts of one partition that
are always written together by one ``put_many``: every reader at one position sees the same
sum, whichever writes took effect, and in whichever order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.bank import check_bank
from jepsen_like.checker.facts import elements
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.judging import judge_rows, succeeded
from raftstore.types import Level

LEDGER: Final = "ledger"
ACCOUNTS: Final = "accounts"
NAMES: Final = tuple(f"a{number}" for number in range(5))
TOTAL: Final = 1_000


class Bank:
    """Transfers inside a ledger row, and accounts spread anew."""

    name = "bank"
    text = "transfers in one conditional row, and accounts written as one record; sums stay"
    tables: Mapping[str, int] = MappingProxyType({LEDGER: 1, ACCOUNTS: 1})

    def client(self, index: int, rng: random.Random) -> Client:
        """Every kind of call in turn, by chance."""
        while True:
            draw = rng.random()
            if draw < 0.3:
                yield Call(Action.PUT_MANY, ACCOUNTS, rows=_spread(rng))
            elif draw < 0.6:
                level = rng.choice((Level.LINEARIZABLE, Level.ANY))
                yield Call(Action.GET_MANY, ACCOUNTS, keys=NAMES, level=level)
            else:
                answer = yield Call(Action.GET, LEDGER, "all")
                if answer.seqs:
                    ledger = answer.value or dict(_spread(rng))
                    source, target = rng.sample(NAMES, 2)
                    amount = rng.randint(0, ledger[source])
                    moved = {**ledger, source: ledger[source] - amount}
                    moved[target] += amount
                    yield Call(
                        Action.PUT_IF, LEDGER, "all", moved,
                        expected_seq=answer.seqs[0], note={"client": index},
                    )  # fmt: skip

    def final_client(self, rng: random.Random) -> Client:
        """Both kinds of sums once more."""
        del rng
        yield Call(Action.GET, LEDGER, "all", final=True)
        yield Call(Action.GET_MANY, ACCOUNTS, keys=NAMES, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Every sum that was read is the total, or there was nothing yet."""
        reads = [replace(read, action="read") for read in succeeded(run.history, "get", "get_many")]
        return [
            check_bank([r for r in reads if not _is_empty(r)], TOTAL),
            *judge_rows(run, self.tables),
        ]


def _spread(rng: random.Random) -> tuple[tuple[str, int], ...]:
    cuts = [0, *sorted(rng.randint(0, TOTAL) for _ in NAMES[1:]), TOTAL]
    return tuple((name, cuts[at + 1] - cuts[at]) for at, name in enumerate(NAMES))


def _is_empty(read: Operation) -> bool:
    """Nothing was written yet."""
    found = elements(read.result)
    return found is not None and all(value is None for value in found)
