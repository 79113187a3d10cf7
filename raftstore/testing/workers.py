"""Processes that work through a list, in order; a process that dies ends the work with a sentence.

``multiprocessing.Pool`` starts a dead process again, for ever when it can never start.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Self, TypeVar

from raftstore.errors import RaftstoreError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Workers:
    """A number of processes, ended at once when the block is left, whatever they are doing."""

    def __init__(self, jobs: int) -> None:
        # Spawn, never fork: a fork of a process with an open LevelDB hangs.
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(jobs, context, initializer=_leave_ctrl_c)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The executor has no word for ending what runs; it holds None when it broke.
        processes = dict(self._executor._processes or {})  # noqa: SLF001
        for process in processes.values():
            process.terminate()
        self._executor.shutdown(cancel_futures=True)

    def each(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """Start on the items now; answers come in their order.

        ``work`` must be importable by its name. Raises RaftstoreError when a process died.
        """
        try:
            waiting = deque(self._executor.submit(work, item) for item in items)
        except BrokenProcessPool as error:
            raise _lost() from error
        return _answers(waiting)


def _answers(waiting: deque[Future[Answer]]) -> Iterator[Answer]:
    while waiting:
        try:
            answer = waiting.popleft().result()
        except BrokenProcessPool as error:
            raise _lost() from error
        yield answer


def _lost() -> RaftstoreError:
    return RaftstoreError(
        "a worker process ended before its work was done (it could not start, was killed, or ran "
        "out of memory); see what it wrote above, or use --jobs 1 to do without worker processes"
    )


def _leave_ctrl_c() -> None:
    """The process that started this one gets Ctrl-C too, and ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
