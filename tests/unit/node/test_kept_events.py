"""Failovers outlive the process, in a file that stays small and stops nothing (N8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raftstore.node.kept_events import KEPT_EVENTS, KEPT_MAX, LINE_BYTES_MAX, KeptEvents


def event(number: int, **more: Any) -> dict[str, Any]:
    """A failover as a ring keeps it."""
    return {"number": number, "type": "failover", "at_wall_ms": number, "term": number, **more}


def test_kept_events_are_there_after_a_restart(tmp_path: Path) -> None:
    """Given events before a restart, they are read after it, oldest first."""
    assert KeptEvents(tmp_path).events() == []
    for start in range(3):
        kept = KeptEvents(tmp_path)
        kept.keep(event(start))
        kept.flush()
    assert KeptEvents(tmp_path).events() == [event(start) for start in range(3)]


def test_kept_events_are_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    """The newest stay; an event that is too long is not kept."""
    kept = KeptEvents(tmp_path)
    for number in range(3 * KEPT_MAX):
        kept.keep(event(number))
        if number % KEPT_MAX == 0:
            kept.flush()
    kept.keep(event(0, reason="x" * LINE_BYTES_MAX))
    kept.flush()
    lines = (tmp_path / KEPT_EVENTS).read_text().splitlines()
    assert KEPT_MAX <= len(lines) <= 2 * KEPT_MAX
    found = KeptEvents(tmp_path).events()
    assert found == [event(number) for number in range(2 * KEPT_MAX, 3 * KEPT_MAX)]


def test_kept_events_that_cannot_be_read_or_written_stop_nothing(tmp_path: Path) -> None:
    """A torn line is passed over; without a directory there is no memory, and no error."""
    (tmp_path / KEPT_EVENTS).write_text('{"type": "fail\n[1]\n{"at_wall_ms": 7, "term": 1}\n')
    assert KeptEvents(tmp_path).events() == [{"at_wall_ms": 7, "term": 1}]
    gone = KeptEvents(tmp_path / "gone")
    gone.keep(event(1))
    gone.flush()
    assert not (tmp_path / "gone").exists()
