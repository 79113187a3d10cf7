"""The end of a process that must not go on: said where it can be said, and never waited for.

What makes a node end may hang itself: a disk that finishes nothing takes no note either, and a pipe
that nobody reads takes no line. So each word gets a bounded time, and then the process ends.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from threading import Thread
from typing import Final, NoReturn

from raftstore.node.logs import drain_lines, fields

logger = logging.getLogger("raftstore.node")

EXIT_STORAGE: Final = 70
LAST_PANIC_NAME: Final = "last_panic.json"
NOTE_S: Final = 1.0
"""How long the note beside the data is waited for."""


def end_process(directory: Path | None, node: str, wall_ms: int, reason: str) -> NoReturn:
    """S0.4: say why, then vanish with exit code 70; may be called from any thread.

    The reason is noted in ``directory`` unless that is None, and is always in the last line.
    """
    logger.critical("panic", extra=fields(reason=reason, exit_code=EXIT_STORAGE))
    if directory is not None:
        panic = {"node": node, "wall_ms": wall_ms, "reason": reason}
        not_noted = _noted(directory / LAST_PANIC_NAME, panic)
        if not_noted is not None:
            # The reason again: docs/operations.md names the last line as its place.
            reported = fields(reason=reason, exit_code=EXIT_STORAGE, not_noted=not_noted)
            logger.critical("panic", extra=reported)
    drain_lines()
    os._exit(EXIT_STORAGE)


def _noted(path: Path, panic: dict[str, object]) -> str | None:
    """Write the note; return why there is none."""
    failures: list[str] = []

    def write() -> None:
        try:
            path.write_text(json.dumps(panic), encoding="utf-8")
        except OSError as error:
            failures.append(str(error))

    note = Thread(target=write, daemon=True)
    note.start()
    note.join(NOTE_S)
    if note.is_alive():
        return f"the disk did not take it within {NOTE_S} s"
    return failures[0] if failures else None
