"""A plugin of pytest that records which test reaches which line of the mutated rooms.

    python -m pytest -p tests.mutants.recorder --record-reach FILE ...

The lines that run while modules are imported belong to no test.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutants.mutator import ROOT

ROOMS = {
    **{
        room: (room,)
        for room in (
            *("core", "election", "storage", "state_machines", "engine", "policy", "protocol"),
            *("client", "backup", "audit", "http", "node"),
        )
    },
    "machines": ("machine.py", "record_machine.py", "machine_lint", "recipes"),
}
"""Mutated rooms, each with its places below ``raftstore``."""


def files_of(room: str) -> list[str]:
    """Files of a room, or of a package or module below ``raftstore``, from the checkout's top."""
    files: list[Path] = []
    for place in ROOMS.get(room, (room,)):
        path = ROOT / "raftstore" / place
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path.relative_to(ROOT).as_posix() for path in files]


_seconds: dict[str, float] = {}
_failed: set[str] = set()
"""Tests that could notice nothing: they fail without any mutant."""
_recording: list[coverage.Coverage] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--record-reach``: where to write what was recorded."""
    parser.addoption("--record-reach", required=True, help="file to write, as JSON")


def pytest_configure() -> None:
    """Start before a test file imports any room."""
    # A process in the background ignores it, and tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    recording = coverage.Coverage(
        data_file=None,
        config_file=False,
        include=[str(ROOT / path) for room in ROOMS for path in files_of(room)],
    )
    recording.start()
    _recording.append(recording)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines that run from here on are the test's; its processor time is kept, too."""
    _recording[0].switch_context(item.nodeid)
    started = time.process_time()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = time.process_time() - started
        _recording[0].switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what failed."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write ``{"seconds": {test: seconds}, "lines": {file: {line: [test]}}}``."""
    recording = _recording[0]
    recording.stop()
    data = recording.get_data()
    tests = [test for test in _seconds if test not in _failed]
    numbers = {test: number for number, test in enumerate(tests)}
    lines: dict[str, dict[int, list[int]]] = {}
    for path in data.measured_files():
        reached = data.contexts_by_lineno(path)
        lines[Path(path).relative_to(ROOT).as_posix()] = {
            line: [numbers[test] for test in contexts if test in numbers]
            for line, contexts in sorted(reached.items())
        }
    told: dict[str, Any] = {
        "tests": tests,
        "seconds": [round(_seconds[test], 4) for test in tests],
        "lines": lines,
    }
    Path(session.config.getoption("--record-reach")).write_text(json.dumps(told))
