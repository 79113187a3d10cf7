"""The scrubber by itself: what it makes of the steps that another thread took."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import ScrubSettings
from raftstore.engine.healing.scrubber import Scrubber
from raftstore.ports.scrub import LogDamage, LogStep

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
        tables: Any = SimpleNamespace(start_copy_step=self.steps.append)
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
