"""Progress of a start, for its log and for /readyz: the phase, how far it is, how long it takes.

The log of a node is read by its main loop, and its channels are opened there: it does nothing else
meanwhile. The HTTP thread answers from the one value that is written here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from raftstore.node.http_port import LiveFacts, StartPhase
from raftstore.node.logs import fields, write_lines

logger = logging.getLogger("raftstore.node")

REPORT_EVERY_MS: Final = 3_000
"""A log line reports a long reading this often."""
_MIB: Final = 1024**2


class Start:
    """Writes the phase of a start where the HTTP interface reads it, and long ones into the log."""

    def __init__(self, facts: LiveFacts, now_ms: Callable[[], int]) -> None:
        self._facts = facts
        self._now_ms = now_ms
        self._began_ms = self._reported_ms = now_ms()

    def enters(self, name: str, doing: str) -> None:
        """Begin a phase; ``doing`` goes on from "the node"."""
        self._began_ms = self._reported_ms = self._now_ms()
        self._facts.start = StartPhase(name, f"the node {doing}")

    def has_read(self, done_bytes: int, total_bytes: int) -> None:
        """Note how much of the log has been read."""
        done, total = done_bytes // _MIB, total_bytes // _MIB
        percent, left_s = self._progress(done_bytes, total_bytes)
        self._facts.start = StartPhase(
            "reading_log",
            f"the node reads its log: {percent} %, {done} of {total} MiB, about {left_s} s left; "
            "ask another node, or retry then",
            percent,
            left_s,
        )
        self._log("reading the log", percent=percent, read_mib=done, total_mib=total, left_s=left_s)

    def has_opened(self, phase: str, what: str, done: int, total: int) -> None:
        """Note how many of them are open; ``what``: tables or channels."""
        percent, left_s = self._progress(done, total)
        self._facts.start = StartPhase(
            phase,
            f"the node opens its {what}: {done} of {total}, about {left_s} s left; "
            "ask another node, or retry then",
            percent,
            left_s,
        )
        self._log(f"opening {what}", percent=percent, opened=done, total=total, left_s=left_s)

    def _progress(self, done: int, total: int) -> tuple[int, int]:
        """Percent of the phase, and about how many seconds are left of it."""
        took_ms = self._now_ms() - self._began_ms
        left_s = -(-took_ms * (total - done) // max(1, done) // 1000)
        return 100 * done // max(1, total), left_s

    def _log(self, line: str, **reported: int) -> None:
        """A line every few seconds: a short phase leaves none."""
        now_ms = self._now_ms()
        if now_ms - self._reported_ms < REPORT_EVERY_MS:
            return
        self._reported_ms = now_ms
        logger.info(line, extra=fields(**reported))
        write_lines()  # the turn in which all of that happens is a long one
