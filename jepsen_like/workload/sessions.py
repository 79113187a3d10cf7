"""Sessions: a client sees its own writes and never goes back, on whichever replica it reads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.leader_reads import check_leader_reads
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Level

TABLE: Final = "sessions"
BOUNDS: Final[tuple[dict[str, Any], ...]] = (
    {"max_lag": 50}, {"max_staleness_ms": 200}, {"max_lag": 5, "max_staleness_ms": 2_000},
)  # fmt: skip


class Sessions:
    """Each client writes rising numbers to a key of its own and reads it back with its position."""

    name = "sessions"
    text = "read your writes and monotonic reads on any replica, by the position of the session"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 1})

    def client(self, index: int, rng: random.Random) -> Client:
        """Write or read; every read asks for at least what the session has seen."""
        number = 0
        seen = 0
        while True:
            if rng.random() < 0.5:
                number += 1
                answer = yield Call(Action.PUT, TABLE, f"s{index}", number)
            else:
                answer = yield self._read(f"s{index}", seen, rng)
            seen = max([seen, *(seq for _, seq in answer.positions)])

    def _read(self, key: str, seen: int, rng: random.Random) -> Call:
        del rng
        return Call(Action.GET, TABLE, key, level=Level.ANY, at_least=((0, seen),))

    def final_client(self, rng: random.Random) -> Client:
        """Nothing is left to read: sessions ended with the faults."""
        del rng
        yield Call(Action.SCAN, TABLE, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Each client reads its writes and never goes back; its writes keep their order."""
        return judge_rows(run, self.tables)


class LeaderSessions(Sessions):
    """The same at level leader, without positions: the leader shows what it acknowledged (S7.0).

    While nobody deposes it: so the terms of writes and of reads say what a read must show.
    """

    name = "leader_sessions"
    text = "read your writes at level leader, from the leader that acknowledged them"

    def _read(self, key: str, seen: int, rng: random.Random) -> Call:
        del seen, rng
        return Call(Action.GET, TABLE, key, level=Level.LEADER)

    def check(self, run: Run) -> list[Verdict]:
        """Besides: no read misses a write that its leader, or one before it, acknowledged."""
        return [check_leader_reads(run.history), *judge_rows(run, self.tables)]


class BoundedSessions(Sessions):
    """The same, with reads that are bounded in rows or in time, too: both must hold."""

    name = "bounded_sessions"
    text = "sessions by position on any replica, with reads within max_lag or max_staleness_ms"

    def _read(self, key: str, seen: int, rng: random.Random) -> Call:
        bounds = rng.choice(BOUNDS)
        return Call(Action.GET, TABLE, key, level=Level.BOUNDED, at_least=((0, seen),), **bounds)
