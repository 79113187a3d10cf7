"""The bound on how far replicas may fall behind, by itself: who is waited for, and how long.

The leader's progress is what the test says; nothing else of a node is here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.peers.replica_lag import (
    LEFT_BEHIND,
    WAITED_FOR,
    WITHIN_BOUND,
    ReplicaLagGuard,
)
from raftstore.errors import OverloadedError
from raftstore.types import NodeId, Term, channel_id

ONE, TWO = NodeId("n2@00"), NodeId("n3@00")
BOUND, PATIENCE_MS = 10, 1_000
LAST_SEQ = 100


class Bench:
    """One channel that is led here, whose two other replicas have everything at first."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []
        self.down: set[NodeId] = set()
        self.progress = {
            node: SimpleNamespace(match_seq=100, heard_ms=0, cannot_complete=False)
            for node in (ONE, TWO)
        }
        self.elector = SimpleNamespace(term=Term(4))
        self.core = SimpleNamespace(last_seq=LAST_SEQ, progress=lambda: self.progress)
        self.runner: Any = SimpleNamespace(
            channel=channel_id(b"t" * 16, 0), name="t/0", elector=self.elector, core=self.core
        )
        watch: Any = SimpleNamespace(is_up=lambda node: node not in self.down)
        self.guard = ReplicaLagGuard(watch, self._tell, PATIENCE_MS)

    def _tell(self, name: str, **fields: Any) -> None:
        assert (fields["channel"], fields["max_replica_lag"]) == ("t/0", BOUND)
        self.events.append((name, fields["replica"], fields["rows_behind"]))

    def behind(self, **rows: int) -> None:
        """How far replicas are behind from now on."""
        for name, number in rows.items():
            self.progress[{"one": ONE, "two": TWO}[name]].match_seq = LAST_SEQ - number

    def waits(self, now_ms: int, bound: int | None = BOUND) -> str | None:
        """The replica that a new write has to wait for, and by how much."""
        refusal = self.guard.refusal(self.runner, bound, now_ms)
        if refusal is None:
            return None
        assert refusal.error is OverloadedError
        text = refusal.text
        end = f"the table's max_replica_lag is {BOUND}: writes wait for it, at most 1000 ms "
        assert text.endswith(f"rows behind, {end}(replication.lag_patience_ms); retry")
        return text.removeprefix("replica ").replace(" of t/0 is", "").partition(" rows")[0]

    def told(self) -> list[tuple[str, str, int]]:
        """Events since the last call."""
        told = self.events.copy()
        self.events.clear()
        return told

    def is_empty(self) -> bool:
        """Nothing is watched any more."""
        return not self.guard._channels


def test_writes_wait_for_the_replica_that_is_furthest_behind() -> None:
    """BLOG-31: at the bound is within it; the event is reported once."""
    bench = Bench()
    assert bench.guard.refused == 0
    bench.behind(one=BOUND, two=BOUND)
    assert bench.waits(0) is None
    assert bench.is_empty()
    bench.behind(one=BOUND + 1)
    assert [bench.waits(at) for at in (1, 2)] == ["n2 11"] * 2
    assert bench.told() == [(WAITED_FOR, "n2", 11)]
    bench.behind(two=BOUND + 2)
    assert bench.waits(3) == "n3 12"
    bench.behind(one=BOUND + 9)
    assert bench.waits(4) == "n2 19"
    assert bench.told() == [(WAITED_FOR, "n3", 12)]
    assert bench.guard.refused == 4


def test_of_two_that_are_equally_far_behind_the_first_is_named() -> None:
    """The same one each time: an operator sees one cause."""
    bench = Bench()
    bench.behind(one=20, two=20)
    assert bench.waits(0) == bench.waits(1) == "n2 20"


def test_replica_is_left_behind_when_patience_is_over() -> None:
    """From the first write that waited on; then writes go on until it has caught up again."""
    bench = Bench()
    bench.behind(one=20)
    assert bench.waits(500) == "n2 20"
    assert bench.waits(500 + PATIENCE_MS - 1) == "n2 20"
    bench.told()
    assert bench.waits(500 + PATIENCE_MS) is None
    assert bench.waits(500 + PATIENCE_MS + 1) is None
    assert bench.told() == [(LEFT_BEHIND, "n2", 20)]
    bench.behind(two=15)
    assert bench.waits(2_000) == "n3 15", "another one has patience of its own"
    bench.behind(one=BOUND, two=0)
    assert bench.waits(2_001) is None
    assert bench.told() == [
        (WAITED_FOR, "n3", 15),
        (WITHIN_BOUND, "n2", BOUND),
        (WITHIN_BOUND, "n3", 0),
    ]
    assert bench.is_empty()
    bench.behind(one=20)
    assert bench.waits(3_000) == "n2 20", "it is waited for again"


def test_replica_that_says_that_it_cannot_catch_up_is_left_behind_at_once() -> None:
    """NATS-147: no write waits for it any more, and all of that is reported."""
    bench = Bench()
    bench.behind(one=20)
    assert bench.waits(0) == "n2 20"
    bench.progress[ONE].cannot_complete = True
    assert bench.waits(1) is None
    assert bench.told() == [(WAITED_FOR, "n2", 20), (LEFT_BEHIND, "n2", 20)]


@pytest.mark.parametrize("why", ["is down", "was not heard in this term"])
def test_replica_without_a_measure_is_not_waited_for(why: str) -> None:
    """S3.4: it catches up when it is back; that it is late is then found anew."""
    bench = Bench()
    bench.behind(one=20)
    assert bench.waits(0) == "n2 20"
    bench.told()
    if why == "is down":
        bench.down.add(ONE)
    else:
        bench.progress[ONE].heard_ms = None
    assert bench.waits(1) is None
    assert bench.told() == [], "it has not caught up"
    assert bench.is_empty()
    bench.down.clear()
    bench.progress[ONE].heard_ms = 2
    assert bench.waits(PATIENCE_MS + 2) == "n2 20"
    assert bench.told() == [(WAITED_FOR, "n2", 20)]


def test_new_term_begins_with_new_patience() -> None:
    """S3.4: a leader that comes back knows nothing of what its last leadership found."""
    bench = Bench()
    bench.behind(one=20)
    assert bench.waits(0) == "n2 20"
    assert bench.waits(PATIENCE_MS) is None
    bench.elector.term = Term(5)
    assert bench.waits(PATIENCE_MS + 1) == "n2 20"
    assert [name for name, _, _ in bench.told()] == [WAITED_FOR, LEFT_BEHIND, WAITED_FOR]


@pytest.mark.parametrize("end", ["no bound", "closed"])
def test_bound_that_is_removed_and_channel_that_is_closed_are_forgotten(end: str) -> None:
    """Nothing is reported of them any more."""
    bench = Bench()
    bench.behind(one=20)
    assert bench.waits(0) == "n2 20"
    bench.told()
    if end == "no bound":
        assert bench.waits(1, None) is None
    else:
        bench.guard.channel_closed(bench.runner)
    assert bench.is_empty()
    assert bench.told() == []
    assert bench.waits(2) == "n2 20"
