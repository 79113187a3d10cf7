"""Pages of one scan show one state, whatever is written between them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.pages import check_pages
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues, read_each
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Level

TABLE: Final = "pages"
KEYS: Final = 12
LIMITS: Final = (1, 3, 5)
WRITES_BETWEEN: Final = 0.5
"""Share of the pages after which the reader itself changes rows."""


class PagedScan(UniqueValues):
    """Rows come, change and go; readers take the table page by page, in their own time."""

    name = "paged_scan"
    text = "scans page by page at any replica while rows come and go; all pages are of one state"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 1})

    def client(self, index: int, rng: random.Random) -> Client:
        """Scans, with writes between their pages and between scans."""
        for number in range(1_000_000):
            for _ in range(rng.randint(0, 3)):
                yield self._write(rng)
            level = rng.choice((Level.LINEARIZABLE, Level.ANY))
            limit, token = rng.choice(LIMITS), ""
            note = {"scan": f"{index}/{number}", "limit": limit}
            while True:
                answer = yield Call(
                    Action.PAGE, TABLE, level=level, limit=limit, token=token,
                    note={**note, "is_first": not token},
                )  # fmt: skip
                token = answer.token
                if not token:
                    break
                if rng.random() < WRITES_BETWEEN:
                    yield self._write(rng)

    def _write(self, rng: random.Random) -> Call:
        self._last += 1
        draw = rng.random()
        if draw < 0.2:
            return Call(Action.DELETE, TABLE, f"p{rng.randrange(KEYS):02}")
        if draw < 0.5:
            rows = tuple((f"p{number:02}", self._last) for number in range(0, KEYS, 2))
            return Call(Action.PUT_MANY, TABLE, rows=rows)
        return Call(Action.PUT, TABLE, f"p{rng.randrange(KEYS):02}", self._last)

    def final_client(self, rng: random.Random) -> Client:
        """Read every key at the leader."""
        del rng
        yield from read_each(TABLE, (f"p{number:02}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """The pages of a scan, put together, are the rows of the position that they gave."""
        return [check_pages(run, TABLE), *judge_rows(run, self.tables)]
