"""A writer and a reader beside what a test does to a cluster, and the shell as its operator."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from raftstore.client.blocking.client import Table
from raftstore.local_cluster import LocalCluster

BOUND_ROWS: Final = 10_000


@contextmanager
def rows_written(table: Table) -> Iterator[list[int]]:
    """Put rows one after the other meanwhile; gives the ids that were acknowledged so far.

    A put that fails ends the writer, and is raised at the end.
    """
    acknowledged: list[int] = []

    def write() -> None:
        number = len(acknowledged)
        table.put({"id": number})
        acknowledged.append(number)

    with _again_and_again(write):
        yield acknowledged


@contextmanager
def bounded_reads(table: Table, key: int) -> Iterator[list[dict[str, Any] | None]]:
    """Get a row meanwhile, again and again, from any replica that is not far behind; gives what was
    found so far. A get that fails ends the reader, and is raised at the end."""
    found: list[dict[str, Any] | None] = []
    with _again_and_again(lambda: found.append(table.get(key, max_lag=BOUND_ROWS))):
        yield found


@contextmanager
def _again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """In a thread of its own."""
    is_over = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            while not is_over.is_set():
                work()
        except Exception as error:  # noqa: BLE001 - raised below, in the thread of the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise failures[0]


def shell_json(cluster: LocalCluster, *words: str, is_check: bool = False) -> Any:
    """The JSON that a command prints; an exit code beside 0 is a failure, unless of a check."""
    command = [sys.executable, "-m", "raftstore.cli.main", "-o", "json", "--endpoints"]
    command += [",".join(cluster.endpoints), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert is_check or done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr
