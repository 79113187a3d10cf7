"""A node that is refused ends although nobody reads why: its supervisor waits for the exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from threading import Thread
from threading import enumerate as enumerate_threads

import pytest

from raftstore.cli import errors
from raftstore.cli.errors import EXIT_CONFIG, EXIT_USAGE, run_guarded
from raftstore.cli.main import cli

PATIENCE_S = 5.0
"""A line that waits for its reader waits for ever."""


@contextmanager
def full_pipe(writers: str) -> Iterator[None]:
    """Stderr is a pipe without room for a single byte, until all such threads shall end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writing, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writing, True)
    stderr = os.fdopen(writing, "w")
    try:
        with redirect_stderr(stderr):
            yield
    finally:
        os.read(reading, 1 << 20)  # writers that still wait go on
        for thread in enumerate_threads():
            if thread.name.startswith(writers):
                thread.join(PATIENCE_S)
        stderr.close()
        os.close(reading)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["node", "--nonsense"], EXIT_USAGE),
        (["node", "--id", "n1", "--listen", "0.0.0.0:4999"], EXIT_CONFIG),
    ],
)
def test_refused_node_ends_with_its_code_although_nobody_reads_why(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    """Wrong options, and settings that no node starts with."""
    monkeypatch.setattr(errors, "LAST_WORDS_S", 0.05)
    codes: list[int] = []

    def refuse() -> None:
        codes.append(run_guarded(cli, arguments))

    refused = Thread(target=refuse, name="raftstore-refused", daemon=True)
    with full_pipe("raftstore-"):
        refused.start()
        refused.join(PATIENCE_S)
        found = list(codes)
    assert found == [code]
