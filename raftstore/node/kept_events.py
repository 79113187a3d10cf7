"""Failovers that a node noticed, kept in a file beside its log: they outlive the process (N8).

For people only: nothing is decided by it, so it is not synced, a line that cannot be read is passed
over, and a file that cannot be written costs the memory of failovers and nothing else. Writing is
done by a thread of its own, for a disk may hang.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Final

KEPT_EVENTS: Final = "failovers.jsonl"
KEPT_MAX: Final = 1_024
"""Events kept, the newest ones; the file is cut to them when it has twice as many lines."""
LINE_BYTES_MAX: Final = 4_608
"""A longer event is not kept, so the file has 9 MiB at most; failovers take 300 bytes each."""
WAITING_MAX: Final = 4_096
"""Events that wait for the disk; more than that are not kept."""


class KeptEvents:
    """The file, and the events of earlier lives of the node."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / KEPT_EVENTS
        self._lines: deque[str] = deque(_read(self._path), maxlen=KEPT_MAX)
        self._in_file = 2 * KEPT_MAX  # what is there is cut with the first event
        self._waiting: Queue[str] = Queue(WAITING_MAX)
        # A daemon: a disk that hangs must not keep the process from ending.
        Thread(target=self._write_all, name="raftstore-events", daemon=True).start()

    def events(self) -> list[dict[str, Any]]:
        """Events kept before, oldest first."""
        found: list[dict[str, Any]] = []
        for line in tuple(self._lines):
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("at_wall_ms"), int):
                    found.append(event)
        return found

    def keep(self, event: dict[str, Any]) -> None:
        """Have an event written soon."""
        line = json.dumps(event)
        if len(line) < LINE_BYTES_MAX:
            with suppress(Full):
                self._waiting.put_nowait(line)

    def flush(self) -> None:
        """Wait until everything is written, or given up."""
        self._waiting.join()

    def _write_all(self) -> None:
        while True:
            self._write(self._waiting.get())
            self._waiting.task_done()

    def _write(self, line: str) -> None:
        self._lines.append(line)
        with suppress(OSError):
            if self._in_file >= 2 * KEPT_MAX:
                self._cut()
            else:
                with self._path.open("a") as file:
                    file.write(line + "\n")
                self._in_file += 1

    def _cut(self) -> None:
        """Write the newest lines to a new file in its place."""
        beside = self._path.with_suffix(".tmp")
        beside.write_text("".join(f"{line}\n" for line in self._lines))
        beside.replace(self._path)
        self._in_file = len(self._lines)


def _read(path: Path) -> list[str]:
    with suppress(OSError), path.open("rb") as file:
        return file.read(2 * KEPT_MAX * LINE_BYTES_MAX).decode(errors="replace").splitlines()
    return []
