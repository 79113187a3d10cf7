"""Sessions over HTTP: a client that keeps a position and nothing else, and asks any node."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Level

TABLE: Final = "http_sessions"
KEYS: Final = 3
BOUNDS: Final[tuple[dict[str, Any], ...]] = (
    {"level": Level.ANY},
    {"level": Level.BOUNDED, "max_lag": 50},
    {"level": Level.BOUNDED, "max_staleness_ms": 500},
    {"level": Level.LINEARIZABLE},
)


class HttpSessions:
    """Each client writes rising numbers to keys of its own at one node and reads them at others."""

    name = "http_sessions"
    text = "sessions by the position that answers give, each request at another node over HTTP"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 1})
    is_over_http = True
    """On processes; in simulated worlds there is no HTTP, and the positions are the same."""

    def client(self, index: int, rng: random.Random) -> Client:
        """Every request, writes too, carries on from the newest answer to the session."""
        number = seen = 0
        session = ""
        while True:
            key = f"s{index}.{rng.randrange(KEYS)}"
            if rng.random() < 0.5:
                number += 1
                answer = yield Call(Action.PUT, TABLE, key, number)
            else:
                answer = yield Call(
                    Action.GET, TABLE, key, at_least=((0, seen),), session=session,
                    **rng.choice(BOUNDS),
                )  # fmt: skip
            seen = max([seen, *(seq for _, seq in answer.positions)])
            session = answer.session or session

    def final_client(self, rng: random.Random) -> Client:
        """Nothing is left to read: sessions ended with the faults."""
        del rng
        yield Call(Action.SCAN, TABLE, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Each client reads its writes and never goes back, at whichever node it asks."""
        return judge_rows(run, self.tables)
