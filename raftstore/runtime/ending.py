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

from raftstore.runtime.logs import drain_lines, fields

logger = logging.getLogger("raftstore.node")

EXIT_STORAGE: Final = 70
LAST_PANIC_NAME: Final = "last_panic.json"
NOTE_S: Final = 1.0
"""How long the note beside the data is waited for."""


def end_process(directory: Path, node: str, wall_ms: int, reason: str) -> NoReturn:
    """S0.4: say why, then vanish with exit code 70; may be called from any thread."""
    logger.critical("panic", extra=fields(reason=reason, exit_code=EXIT_STORAGE))
    panic = {"node": node, "wall_ms": wall_ms, "reason": reason}
    note = Thread(target=_note, args=(directory / LAST_PANIC_NAME, panic), daemon=True)
    note.start()
    note.join(NOTE_S)
    if note.is_alive():
        text = f"the disk did not take it within {NOTE_S} s"
        logger.critical("the panic could not be noted", extra=fields(reason=text))
    drain_lines()
    os._exit(EXIT_STORAGE)


def _note(path: Path, panic: dict[str, object]) -> None:
    try:
        path.write_text(json.dumps(panic), encoding="utf-8")
    except OSError as error:
        logger.critical("the panic could not be noted", extra=fields(reason=str(error)))
