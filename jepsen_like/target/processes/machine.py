"""Notes when the machine gives nodes no disk or no processor: nobody injected that.

A channel that stops meanwhile says nothing about the store. Such times stand among the faults of a
run, in kinds of their own (``by``: the machine), so that the checker of progress knows of them and
a reader sees them; what is promised in spite of any delay is judged as ever.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from jepsen_like.nemesis.fault import BY_MACHINE

STALLED: Final = "machine-stalled"
"""Everything stood still, or a small write of ours took so long to reach the same disk."""
STARVED: Final = "machine-starved"
"""A node could have run and was given next to nothing."""
LATE_S_MIN: Final = 1.0
STARVED_S_MIN: Final = 2.0
STARVED_SHARE_MIN: Final = 0.8
"""Of the time, waiting for a processor; nodes and clients that share two wait for half."""
TICK_S: Final = 0.25
_NS: Final = 1_000_000_000

Waited = Mapping[tuple[str, int], int]
"""By node and process: nanoseconds so far in which it could run and had no processor."""


class Stretches:
    """Turns what was seen at each look into stretches of time, kept among the ``faults``."""

    def __init__(self, faults: list[dict[str, Any]]) -> None:
        self._faults = faults
        self._waited: dict[tuple[str, int], int] = {}
        self._since: dict[str, int] = {}
        self._open: dict[str, dict[str, Any]] = {}

    def look(self, began: int, now: int, waited: Waited) -> None:
        """One look: it ``began`` when the one before had ended, both in nanoseconds of the run."""
        if now - began >= (LATE_S_MIN + TICK_S) * _NS:
            self._note(STALLED, None, began, now)
        starved = {
            node
            for (node, process), ns in waited.items()
            if (before := self._waited.get((node, process))) is not None
            and ns - before >= STARVED_SHARE_MIN * (now - began)
        }
        self._waited = dict(waited)
        for node in [node for node in self._since if node not in starved]:
            del self._since[node]
            self._open.pop(node, None)
        for node in sorted(starved):
            since = self._since.setdefault(node, began)
            if node in self._open:
                self._open[node]["ended"] = now
            elif now - since >= STARVED_S_MIN * _NS:
                self._open[node] = self._note(STARVED, node, since, now)

    def _note(self, kind: str, node: str | None, began: int, ended: int) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "kind": kind,
            "by": BY_MACHINE,
            "started": began,
            "ended": ended,
            "fired": True,
            # One starved node of three is no excuse; a machine that stands still is.
            "is_minority": node is not None,
            "nodes": [] if node is None else [node],
            "links": [],
            "where": node or "",
        }
        self._faults.append(entry)
        return entry


class MachineWatch:
    """Looks several times a second, in a thread of its own, as long as the ``with`` lasts.

    ``processes``: of each node that runs. ``now``: nanoseconds of the run.
    """

    def __init__(
        self,
        directory: Path,
        processes: Callable[[], Mapping[str, int]],
        now: Callable[[], int],
        faults: list[dict[str, Any]],
    ) -> None:
        self._probe = directory / "machine-probe"
        self._processes = processes
        self._now = now
        self._stretches = Stretches(faults)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self._probe.unlink(missing_ok=True)

    def _run(self) -> None:
        with self._probe.open("wb", buffering=0) as file:
            began = self._now()
            while not self._done.wait(TICK_S):
                file.seek(0)
                file.write(time.monotonic_ns().to_bytes(8))
                os.fdatasync(file.fileno())
                now = self._now()
                self._stretches.look(began, now, self._waited())
                began = now

    def _waited(self) -> Waited:
        found = {(node, process): waited_ns(process) for node, process in self._processes().items()}
        return {key: ns for key, ns in found.items() if ns is not None}


def waited_ns(process: int) -> int | None:
    """How long its main thread has waited for a processor; None where Linux does not report it."""
    try:
        fields = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(fields[1])
