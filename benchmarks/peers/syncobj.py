"""pysyncobj, three processes: a replicated counter as its readme makes one, and as it ships.

Who uses pysyncobj is a member: calls are made in a process that holds a replica, here the leader's,
so they take no way over a socket before they are in the log. Without ``journal`` a log is in memory
alone, which is what it does unless asked; with one it is a mapped file, which nobody syncs.
``--member`` makes this module one of the processes; it does what lines on its input say.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.peers import NODES, START_TIMEOUT_S, PeerMissingError
from benchmarks.peers.processes import free_ports

CALLBACKS: Final = "callbacks"
"""``add(..., callback=...)``: the next call is begun when one is over."""
SYNC: Final = "sync"
"""``add(..., sync=True)``: a thread for each call in flight."""
COUNTERS: Final = 1024
ANSWER_TIMEOUT_S: Final = 30.0


class SyncObjCounters:
    """Three running members; ``pids`` of all, and the one that leads does the work."""

    def __init__(self, *, journal: bool) -> None:
        """PeerMissingError without the package."""
        if importlib.util.find_spec("pysyncobj") is None:
            raise PeerMissingError("the Python package pysyncobj is missing")
        self._directory = Path(tempfile.mkdtemp(prefix="raftstore-pysyncobj-"))
        addresses = [f"127.0.0.1:{port}" for port in free_ports(NODES)]
        self._members: list[subprocess.Popen[str]] = []
        for number, own in enumerate(addresses):
            others = [address for address in addresses if address != own]
            file = str(self._directory / f"{number}.journal") if journal else ""
            command = [sys.executable, "-m", __spec__.name, "--member", file, own, *others]
            self._members.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self._members:
            member.kill()
        for member in self._members:
            member.wait()
            for pipe in (member.stdin, member.stdout):
                assert pipe is not None
                pipe.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the members."""
        return tuple(member.pid for member in self._members)

    def calls(self, way: str, lanes: int, seconds: float) -> list[float]:
        """Seconds that each call took, with so many in flight for so long."""
        found: list[float] = self._asked(self._leader(), {"do": way, "lanes": lanes, "s": seconds})
        return found

    def total(self) -> int:
        """The sum of all counters at the leader."""
        return int(self._asked(self._leader(), {"do": "total"}))

    def _leader(self) -> subprocess.Popen[str]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            for member in self._members:
                if self._asked(member, {"do": "leads"}):
                    return member
            assert time.monotonic() < deadline, "pysyncobj has no leader"
            time.sleep(0.1)

    @staticmethod
    def _asked(member: subprocess.Popen[str], request: dict[str, Any]) -> Any:
        assert member.stdin is not None
        assert member.stdout is not None
        print(json.dumps(request), file=member.stdin, flush=True)
        answer = member.stdout.readline()
        assert answer, f"pysyncobj's process {member.pid} ended"
        return json.loads(answer)


# --- a member -------------------------------------------------------------------------------------


def _counters(journal: str, own: str, others: list[str]) -> Any:
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class Counters(SyncObj):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__(own, others, SyncObjConf(journalFile=journal or None))
            self.totals: dict[str, int] = {}

        @replicated  # type: ignore[untyped-decorator, unused-ignore]
        def add(self, name: str, amount: int) -> int:
            self.totals[name] = self.totals.get(name, 0) + amount
            return self.totals[name]

    return Counters()


def by_callbacks(counters: Any, lanes: int, seconds: float) -> list[float]:
    """Each lane begins its next call in the callback of the one before."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    left = threading.Semaphore(0)

    def begin(name: str) -> None:
        began = time.perf_counter()
        if began >= end:
            left.release()
            return

        def done(_total: int, failure: int) -> None:
            assert not failure, f"pysyncobj refused a call: {failure}"
            times.append(time.perf_counter() - began)
            begin(name)

        counters.add(name, 1, callback=done)

    for lane in range(lanes):
        begin(f"counter{lane % COUNTERS}")
    for _ in range(lanes):
        assert left.acquire(timeout=seconds + ANSWER_TIMEOUT_S), "a call of pysyncobj has no end"
    return times


def by_threads(counters: Any, lanes: int, seconds: float) -> list[float]:
    """Each lane is a thread that waits for each of its calls."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    def lane(name: str) -> None:
        while (began := time.perf_counter()) < end:
            counters.add(name, 1, sync=True, timeout=ANSWER_TIMEOUT_S)
            times.append(time.perf_counter() - began)

    names = [f"counter{number % COUNTERS}" for number in range(lanes)]
    threads = [threading.Thread(target=lane, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


WAYS: Final[dict[str, Callable[[Any, int, float], list[float]]]] = {
    CALLBACKS: by_callbacks,
    SYNC: by_threads,
}


def _serve(journal: str, own: str, others: list[str]) -> None:
    """Answer lines of the benchmark until its end of the pipe is closed."""
    counters = _counters(journal, own, others)
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any
        match request["do"]:
            case "leads":
                answer = counters.isReady() and counters._isLeader()  # noqa: SLF001 - no other name
            case "total":
                answer = sum(counters.totals.values())
            case way:
                answer = WAYS[way](counters, request["lanes"], request["s"])
        print(json.dumps(answer), flush=True)
    os._exit(0)  # its threads would go on


if __name__ == "__main__":
    _, option, *arguments = sys.argv
    assert option == "--member", option
    _serve(arguments[0], arguments[1], arguments[2:])
