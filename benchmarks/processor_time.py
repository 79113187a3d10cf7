"""Processor time by what it was spent for: Spark's JVM, its Python workers, servers, ourselves.

Where cores are shared by everybody it says more than the clock. Spark ends idle Python workers, and
what begins them ignores their end, so that nobody inherits their figures: all are looked at now and
then.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

JVM: Final = "Spark's JVM"
WORKERS: Final = "Python workers"
OURSELVES: Final = "the driver's Python"
PERIOD_S: Final = 0.2
"""What a process uses between the last look and its end is not seen."""

_Process = tuple[int, str]
"""Its id and when it began: ids are used again."""


@dataclass
class Used:
    """Processor time used between entering and leaving; ``servers``: name -> its processes."""

    servers: Mapping[str, Collection[int]] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    """By group: the three above, and each of the servers."""

    def __enter__(self) -> Self:
        self._seen: dict[_Process, tuple[str, int]] = {}
        self._look()
        self._before = dict(self._seen)
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="processor time")
        self._watcher.start()
        self._started = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wall_s = time.perf_counter() - self._started
        self._done.set()
        self._watcher.join()
        self._look()
        ticks = dict.fromkeys((JVM, WORKERS, OURSELVES, *self.servers), 0)
        for process, (group, now) in self._seen.items():
            ticks[group] += now - self._before.get(process, (group, 0))[1]
        per_second = os.sysconf("SC_CLK_TCK")
        self.cpu_s = {group: count / per_second for group, count in ticks.items()}

    def _watch(self) -> None:
        while not self._done.wait(PERIOD_S):
            self._look()

    def _look(self) -> None:
        stats = _stats()
        apart = {pid: name for name, pids in self.servers.items() for pid in pids}
        family, found = {os.getpid()}, 0
        while found != len(family):
            found = len(family)
            children = {pid for pid, (_, fields) in stats.items() if int(fields[1]) in family}
            family |= children - apart.keys()
        for pid in (family | apart.keys()) & stats.keys():
            name, fields = stats[pid]
            group = apart.get(pid) or (
                OURSELVES if pid == os.getpid() else JVM if name == "java" else WORKERS
            )
            self._seen[pid, fields[19]] = (group, int(fields[11]) + int(fields[12]))


def machine_seconds() -> float:
    """Processor time that all processes of the machine have used so far, the kernel's included."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _idle, _waiting, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def main_thread_seconds(pid: int) -> float:
    """Processor time of a process's first thread so far."""
    text = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    return sum(map(int, text.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def _stats() -> dict[int, tuple[str, list[str]]]:
    """Process -> its name and what stands behind it in its stat."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue  # it has just ended
        found[int(path.parent.name)] = (head.partition("(")[2], rest.split())
    return found
