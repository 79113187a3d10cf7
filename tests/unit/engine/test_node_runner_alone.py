"""A node that stood still, and channels that open while its disk hangs: parts around the runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import ReadSettings
from raftstore.engine.channel.registry import ChannelRegistry
from raftstore.engine.channel.runner import NO_BOUNDS, ChannelRunner
from raftstore.engine.node_runner import NodeRunner
from raftstore.state_machines.table import TableMachine
from raftstore.types import channel_id
from tests.unit.engine.channel.test_runner import CHANNEL, NOW
from tests.unit.engine.channel.test_runner import Bench as ChannelBench

OTHER = channel_id(b"orders-table-id!", 1)
GUARD_MS = ReadSettings().stall_guard_ms


class Bench:
    """A node with one channel, called last at 1,000 and due again at 1,100."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.runner = NodeRunner.__new__(NodeRunner)
        parts: Any = self.runner
        parts.clock = SimpleNamespace(now_ms=1_000)
        parts._settings = SimpleNamespace(read=ReadSettings())
        parts._deadlines = (SimpleNamespace(next_ms=1_100), SimpleNamespace(next_ms=9_000))
        reports = SimpleNamespace(all_moved=self._noted("watch"))
        parts.watch = SimpleNamespace(due_ms=8_000, reports=reports)
        parts.views = SimpleNamespace(kept=SimpleNamespace(all_moved=self._noted("views")))
        parts.channels = {CHANNEL: SimpleNamespace(on_stalled=self._noted("channel"))}
        parts.leaders = SimpleNamespace(stood_still=self._noted("leaders"))
        parts.events = SimpleNamespace(tell=lambda name, **of: self.told.append((name, of)))

    def _noted(self, name: str) -> Any:
        def call(*of: Any) -> None:
            assert self.runner.clock.now_ms > 1_000  # what follows is of now
            self.told.append((name, *of))

        return call

    def begin(self, now_ms: int) -> list[tuple[Any, ...]]:
        """Calls that a call at this time leads to."""
        self.told.clear()
        self.runner._begin(now_ms)
        assert self.runner.clock.now_ms == now_ms
        return self.told


def test_call_that_comes_far_behind_the_timer_is_told_as_a_stop() -> None:
    """S7.3: to the channels, and to all that answers from what it knew before."""
    late_ms = 1_101 + GUARD_MS
    expected = [
        ("stalled", {"late_ms": GUARD_MS + 1}),
        ("leaders", late_ms),
        ("watch",),
        ("views",),
        ("channel", late_ms),
    ]
    assert Bench().begin(late_ms) == expected
    assert Bench().begin(late_ms - 1) == []


def test_node_with_nothing_to_do_may_be_silent_for_long() -> None:
    """Its timer was not due; what was due at once counts from the call before."""
    bench = Bench()
    deadlines: Any = (SimpleNamespace(next_ms=7_000),)
    bench.runner._deadlines = deadlines
    assert bench.begin(7_000) == []
    bench = Bench()
    deadlines = (SimpleNamespace(next_ms=0),)
    bench.runner._deadlines = deadlines
    assert bench.begin(1_000 + GUARD_MS) == []
    bench = Bench()
    bench.runner._deadlines = deadlines
    [(_, fields), *_] = bench.begin(1_001 + GUARD_MS)
    assert fields == {"late_ms": GUARD_MS + 1}


@pytest.mark.parametrize("reason", ["the disk hangs", None])
def test_channel_that_opens_hears_of_a_disk_that_hangs(
    monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    """S0.4: before the parts of the node learn of the channel, which looks for its deadline
    then."""
    bench = ChannelBench()
    told: list[tuple[Any, ...]] = []
    bench.notices.opened = (lambda runner, now_ms: told.append((runner, now_ms)),)
    parts: Any = bench.runner.parts
    parts.guard.reason = reason
    monkeypatch.setattr(ChannelRunner, "on_storage_stalled", lambda *of: told.append(of))
    registry = ChannelRegistry(parts, {})
    registry.open(
        OTHER, "orders/1", TableMachine(), NOW,
        creation_config=bench.core.config(), durability="fsync", bounds=NO_BOUNDS,
    )  # fmt: skip
    runner = registry.runners[OTHER]
    assert (runner.name, runner.channel) == ("orders/1", OTHER)
    stalled = [(runner, reason, NOW)] if reason is not None else []
    assert told == [*stalled, (runner, NOW)]
    assert OTHER in bench.active.touched


@pytest.mark.parametrize("is_dropped", [True, False])
def test_channel_that_is_closed_is_told_before_it_ends_and_dropped_only_with_its_table(
    is_dropped: bool,
) -> None:
    """S0.8: what is dropped never votes, acks or serves again; what is opened anew keeps its data.
    The parts of the node still find what they knew of it, and no longer find the channel."""
    bench = ChannelBench()
    told: list[tuple[Any, ...]] = []
    parts: Any = SimpleNamespace(
        notices=bench.notices,
        log=SimpleNamespace(drop_channel=lambda channel: told.append(("log", channel))),
        tables=SimpleNamespace(drop=lambda channel: told.append(("tables", channel))),
    )
    runner: Any = SimpleNamespace(close=lambda now_ms: told.append(("close", now_ms)))
    runners = {CHANNEL: runner}
    bench.notices.closed = (lambda closed: told.append((closed, CHANNEL in runners)),)
    registry = ChannelRegistry(parts, runners)
    (registry.drop if is_dropped else registry.close)(CHANNEL, NOW)
    gone = [("log", CHANNEL), ("tables", CHANNEL)] if is_dropped else []
    assert told == [(runner, False), ("close", NOW), *gone]


@pytest.mark.parametrize(
    ("core", "elector", "kept", "due"),
    [
        (None, None, None, None),
        (50, None, None, 50),
        (None, 50, None, 50),
        (50, 40, None, 40),
        (40, 50, None, 40),
        (None, None, 30, 30),
        (50, None, 30, 30),
        (20, None, 30, 20),
        (None, 20, 30, 20),
        (None, 50, 30, 30),
        (50, 40, 30, 30),
        (50, 20, 30, 20),
    ],
)
def test_channel_is_due_with_its_core_its_elector_or_the_oldest_kept_version(
    core: int | None, elector: int | None, kept: int | None, due: int | None
) -> None:
    """The first of them counts."""
    bench = ChannelBench()
    bench.core.due_ms, bench.elector.due_ms = core, elector
    if kept is not None:
        replaced_ms = kept - ReadSettings().versions_keep_ms
        bench.runner.versions.kept.extend([(1, replaced_ms), (2, replaced_ms + 5)])
    assert bench.runner.next_deadline_ms() == due
