"""Lists grown by read and conditional write: an order of appends that every read agrees with."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.list_append import appends_and_gets, check_list_append
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues, read_each
from jepsen_like.workload.judging import judge_rows

TABLE: Final = "lists"
KEYS: Final = 12


class ListAppend(UniqueValues):
    """Get a list, put it back one element longer if nobody was faster."""

    name = "list_append"
    text = "elements are appended by get and conditional put; reads are prefixes of one order"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 2})

    def client(self, index: int, rng: random.Random) -> Client:
        """A read, mostly followed by an append."""
        del index
        while True:
            key = f"l{rng.randrange(KEYS)}"
            answer = yield Call(Action.GET, TABLE, key)
            if answer.seqs and rng.random() < 0.7:
                self._last += 1
                longer = [*(answer.value or []), self._last]
                yield Call(
                    Action.PUT_IF, TABLE, key, longer,
                    expected_seq=answer.seqs[0], note={"append": self._last},
                )  # fmt: skip

    def final_client(self, rng: random.Random) -> Client:
        """Read every list once."""
        del rng
        yield from read_each(TABLE, (f"l{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """One order of appends that every read agrees with, in the order of time."""
        return [
            check_list_append(appends_and_gets(run.history)),
            *judge_rows(run, self.tables),
        ]
