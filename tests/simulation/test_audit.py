"""Nodes of a world judge what they answer: planted mistakes are found, on the way of real reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raftstore.engine.reads import reader as reader_module
from raftstore.engine.reads.reader import Reader
from raftstore.rows.sealing import seal
from raftstore.testing.invariants import Oracle
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_tables import SimTables
from raftstore.testing.simulation import Simulation, Verdict
from raftstore.types import Seq

Patch = Callable[[pytest.MonkeyPatch], None]


def world(seed: int) -> Verdict:
    """A short one with many reads of few keys."""
    options = SimOptions(seed, writers=3, readers=4, partitions=1, keys=4, operations=400)
    return Simulation(replace(options, apply_max_ms=40.0)).run()


def nobody_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.1: a linearizable read is answered at once, from whatever is applied."""

    def at_once(self: Reader, token: int, runner: object, now_ms: int) -> None:
        del runner, now_ms
        self.on_confirmed(token, Seq(0))

    monkeypatch.setattr(Reader, "_request_confirmation", at_once)


def bounds_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.3: a bounded read is answered however far the replica is behind."""
    monkeypatch.setattr(reader_module, "beyond_bounds", lambda *_: None)


def every_third_answer_is(change: Callable[[Any, Any, Any], Any]) -> Patch:
    """The store answers with something else now and then."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        get_many, turns = SimTables.get_many, iter(range(10**9))
        firsts: dict[Any, Any] = {}

        def get(self: SimTables, channel: Any, keys: Any, *of: Any) -> Any:
            found = get_many(self, channel, keys, *of)
            first = firsts.setdefault((id(self), channel, tuple(keys)), found)
            return change(keys, found, first) if next(turns) % 3 == 2 else found

        monkeypatch.setattr(SimTables, "get_many", get)

    return plant


def forged(keys: Any, found: Any, first: Any) -> Any:
    """Rows with other values, sealed, under the versions that they have, read there before."""
    if found is first or found.seqs != first.seqs:
        return found
    values = [
        None if value is None else seal(key, b"forged")
        for key, value in zip(keys, found.values, strict=True)
    ]
    return found._replace(values=values)


def from_before(keys: Any, found: Any, first: Any) -> Any:
    """Rows that were there when these keys were read first, as if of now."""
    del keys
    return first._replace(applied_seq=found.applied_seq)


PLANTED: dict[str, tuple[Patch, str]] = {
    "stale read": (nobody_confirms, "stale_read"),
    "beyond the bound": (bounds_are_not_looked_at, "over_bound"),
    "forged row": (every_third_answer_is(forged), "two_rows"),
    "old row": (every_third_answer_is(from_before), "two_rows"),
}


@pytest.fixture(params=PLANTED)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The findings that the audit has to make: nobody else looks at the answers."""
    plant, found = PLANTED[request.param]
    plant(monkeypatch)
    monkeypatch.setattr(Oracle, "on_read", lambda *_, **__: None)
    return found


@pytest.mark.slow
def test_planted_mistake_is_found_by_the_node_that_makes_it(kind: str) -> None:
    """N7: within eight short worlds."""
    violations = []
    for seed in range(1, 9):
        violation = world(seed).violation
        violations.append(violation)
        if violation is not None and "the audit of" in violation:
            assert f"found {kind}" in violation
            return
    pytest.fail(f"no audit found it: {violations}")


@pytest.mark.slow
def test_same_worlds_are_right_without_a_mistake() -> None:
    """N7: no false alarm."""
    assert [world(seed).violation for seed in range(1, 9)] == [None] * 8
