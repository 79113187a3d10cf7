"""A writer beside what a test does to a cluster, and the shell as its operator."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raftstore.client.blocking.client import Table
from raftstore.local_cluster import LocalCluster


@contextmanager
def rows_written(table: Table) -> Iterator[list[int]]:
    """Put rows one after the other meanwhile; gives the ids that were acknowledged so far.

    A put that fails ends the writer, and is raised at the end.
    """
    acknowledged: list[int] = []
    is_over = threading.Event()
    failures: list[Exception] = []

    def write() -> None:
        try:
            while not is_over.is_set():
                number = len(acknowledged)
                table.put({"id": number})
                acknowledged.append(number)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread of the test
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield acknowledged
    finally:
        is_over.set()
        writer.join()
    if failures:
        raise failures[0]


def shell_json(cluster: LocalCluster, *words: str, is_check: bool = False) -> Any:
    """The JSON that a command prints; an exit code beside 0 is a failure, unless of a check."""
    command = [sys.executable, "-m", "raftstore.cli.main", "-o", "json", "--endpoints"]
    command += [",".join(cluster.endpoints), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert is_check or done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr
