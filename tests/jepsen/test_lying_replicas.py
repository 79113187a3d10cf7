"""Replicas that state of themselves what is not so are found in the worlds of bounded reads."""

from __future__ import annotations

import pytest

from jepsen_like.checker.verdict import Validity
from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import FaultEvent
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.reads.reader import Reader
from raftstore.testing.options import SimOptions
from raftstore.types import Role, Seq


def _found(seed: int, *, apply_max_ms: float, schedule: tuple[FaultEvent, ...] = ()) -> str:
    """Findings of the checkers in a world of bounded reads; empty if there are none."""
    options = SimOptions(seed=seed, apply_max_ms=apply_max_ms)
    scene = Scene(seed, "bounded_reads", ("isolate-follower",), options, schedule, 8.0, 6, "")
    verdicts = SimulatedRun(scene, lambda _: None).run().verdicts
    wrong = [each for each in verdicts if each.validity is Validity.INVALID]
    return ", ".join(f"{each.checker}: {each.summary}" for each in wrong)


@pytest.mark.slow
def test_honest_replicas_are_right() -> None:
    """The same worlds, without the lies."""
    isolated = FaultEvent(1_000.0, "isolate-follower", 6_000.0, 7)
    assert not _found(1, apply_max_ms=20.0)
    assert not _found(2, apply_max_ms=1.0, schedule=(isolated,))


def test_lag_told_below_what_is_known_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that calls its lag nothing while it has still to apply what it knows of."""
    tell = Reader.lag

    def lag(
        self: Reader, runner: ChannelRunner, now_ms: int, applied: Seq | None = None
    ) -> tuple[int | None, int | None]:
        told, age_ms = tell(self, runner, now_ms, applied)
        return (None if told is None else 0), age_ms

    monkeypatch.setattr(Reader, "lag", lag)
    assert "was stated by a node that knew" in _found(1, apply_max_ms=20.0)


@pytest.mark.slow
def test_age_told_below_the_silence_of_the_leader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that is cut off for six seconds calls what it knows the newest."""
    tell = Reader.lag

    def lag(
        self: Reader, runner: ChannelRunner, now_ms: int, applied: Seq | None = None
    ) -> tuple[int | None, int | None]:
        told, age_ms = tell(self, runner, now_ms, applied)
        return told, (age_ms if runner.elector.role is Role.LEADER else 0)

    monkeypatch.setattr(Reader, "lag", lag)
    isolated = FaultEvent(1_000.0, "isolate-follower", 6_000.0, 7)
    found = _found(2, apply_max_ms=1.0, schedule=(isolated,))
    assert found.startswith("staleness: ")
    assert "rows behind, allowed are" in found
