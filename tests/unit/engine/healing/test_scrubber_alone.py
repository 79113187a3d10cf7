"""The scrubber by itself: what it makes of the steps that another thread took."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import ScrubSettings
from raftstore.engine.healing.scrubber import Scrubber
from raftstore.ports.scrub import LogDamage, LogStep, TableStep

DAMAGE = LogDamage(3, 0, 500, "it cannot be read: No such file or directory")


class Bench:
    """A node with a log whose first step finds damage in segment 3, and no channels."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.floor = 3
        self.steps: list[Callable[[], Any]] = []
        self.found: list[LogDamage] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        verifying = SimpleNamespace(step=lambda _place, _bytes: lambda: LogStep(None, 10, DAMAGE))
        log: Any = SimpleNamespace(verifying=verifying, floor=lambda: self.floor)
        tables: Any = SimpleNamespace(
            start_copy_step=lambda _channel, step: self.steps.append(step)
        )
        self.scrubber = Scrubber(
            {}, log, tables, ScrubSettings(), lambda name, **about: self.told.append((name, about)),
            on_log_damage=lambda damage, _now_ms: self.found.append(damage),
            on_table_damage=lambda *_of: None,
        )  # fmt: skip
        self.scrubber.start(0)

    def begin(self) -> None:
        """The next step waits for its thread."""
        self.now_ms = self.scrubber.deadlines.next_ms
        self.scrubber.on_timer(self.now_ms)

    def end(self) -> None:
        """It was taken."""
        self.steps.pop()()(self.now_ms)


@pytest.mark.parametrize("is_removed", [False, True])
def test_segment_that_was_removed_meanwhile_is_no_damage(*, is_removed: bool) -> None:
    """S0.3: an operator would look for a disk that fails, and nothing is lost."""
    bench = Bench()
    bench.begin()
    bench.floor = 4 if is_removed else 3
    bench.end()
    bench.begin()
    [(name, about)] = bench.told
    assert (name, about["damages"]) == ("scrub_finished", 0 if is_removed else 1)
    assert bench.found == ([] if is_removed else [DAMAGE])
    assert bench.scrubber.damages_total == (0 if is_removed else 1)


def test_damage_that_was_told_is_not_told_again_by_the_next_pass() -> None:
    """It stays where it is until its segment is removed."""
    bench = Bench()
    for _ in range(3):
        bench.begin()
        bench.end()
        bench.begin()
    assert [about["damages"] for _, about in bench.told] == [1, 0, 0]
    assert bench.found == [DAMAGE]


def test_tables_are_read_to_their_ends_one_after_the_other_behind_the_log() -> None:
    """One that is damaged is reported once and left, one that was dropped passed over; the report
    says where the pass is.
    """
    steps = {
        "a": [TableStep(b"k", 7), TableStep(None, 5)],
        "b": [TableStep(b"k", 3, "a block is damaged")],
        "d": [TableStep(None, 2)],
    }
    asked: list[tuple[str, bytes | None]] = []
    damaged: list[tuple[Any, str]] = []
    closed: list[str] = []

    def snapshot(name: str) -> Any:
        def verify(after: bytes | None, _bytes: int) -> TableStep:
            asked.append((name, after))
            return steps[name].pop(0)

        return SimpleNamespace(verify=verify, close=lambda: closed.append(name))

    bench = Bench()
    scrubber = bench.scrubber
    scrubber._tables.snapshot = snapshot  # type: ignore[method-assign,assignment]
    scrubber._on_table_damage = lambda runner, reason, _: damaged.append((runner, reason))
    channels: dict[Any, Any] = {name: SimpleNamespace(channel=name, name=name) for name in "abcd"}
    scrubber._channels = channels
    assert scrubber.under_way is None
    bench.begin()
    assert scrubber.under_way == ("log", 0)
    bench.end()
    shown = []
    while scrubber.under_way is not None:
        shown.append(scrubber.under_way)
        channels.pop("c", None)
        bench.begin()
        if bench.steps:
            bench.end()
    assert asked == [("a", None), ("a", b"k"), ("b", None), ("d", None)]
    assert closed == ["a", "a", "b", "d"]
    assert shown == [("a", 10), ("a", 17), ("b", 22), ("tables", 25), ("tables", 27)]
    assert damaged == [(channels["b"], "a block is damaged")]
    assert bench.told[-1][1]["bytes"] == scrubber.bytes_total == 27
    assert (bench.told[-1][1]["damages"], scrubber.passes_total) == (2, 1)


def test_table_that_is_another_one_by_now_is_not_damaged() -> None:
    """Its channel was closed, or opened anew, while the step waited for its thread."""
    bench = Bench()
    scrubber = bench.scrubber
    damaged: list[str] = []
    step = TableStep(b"k", 3, "a block is damaged")
    state: Any = SimpleNamespace(verify=lambda *_: step, close=lambda: None)
    scrubber._tables.snapshot = lambda _: state  # type: ignore[method-assign,assignment]
    scrubber._on_table_damage = lambda _runner, reason, _: damaged.append(reason)
    channels: dict[Any, Any] = {"a": SimpleNamespace(channel="a", name="a")}
    scrubber._channels = channels
    bench.begin()
    bench.end()
    bench.begin()
    channels["a"] = SimpleNamespace(channel="a", name="a")
    bench.end()
    assert (damaged, scrubber.under_way) == ([], ("tables", 13))
