"""A node that is refused ends although nobody reads why: its supervisor waits for the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from raftstore.cli import errors
from raftstore.cli.errors import EXIT_CONFIG, EXIT_USAGE, run_guarded
from raftstore.cli.main import cli

PATIENCE_S = 10.0
"""A line that waits for its reader waits for ever."""


@pytest.fixture
def full_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stderr is a pipe without room for a single byte."""
    monkeypatch.setattr(errors, "LAST_WORDS_S", 0.05)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writing, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writing, True)
    with os.fdopen(writing, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        yield
        os.close(reading)  # whoever still waits for it fails


@pytest.mark.usefixtures("full_pipe")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["node", "--nonsense"], EXIT_USAGE),
        (["node", "--id", "n1", "--listen", "0.0.0.0:4999"], EXIT_CONFIG),
    ],
)
def test_refused_node_ends_with_its_code_although_nobody_reads_why(
    arguments: list[str], code: int
) -> None:
    """Wrong options, and settings that no node starts with."""
    codes: list[int] = []
    refused = Thread(target=lambda: codes.append(run_guarded(cli, arguments)), daemon=True)
    refused.start()
    refused.join(PATIENCE_S)
    assert codes == [code]
