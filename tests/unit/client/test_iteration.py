"""Rows of another thread's loop: how they come, and what becomes of an unfinished iteration."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.iteration import iterate

UNFINISHED = """
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.iteration import iterate


async def numbers():
    for number in range(5):
        yield number


rows = iterate(numbers(), BackgroundLoop("left running"), 2)
print(next(rows))
"""


def test_items_come_in_order_and_the_generator_is_closed() -> None:
    """All of them, however many come at once; leaving early closes what made them."""
    loop = BackgroundLoop("test loop")
    closed: list[int] = []

    async def numbers(count: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(count):
                yield number
        finally:
            closed.append(count)

    for at_once in (1, 2, 5, 6):
        assert list(iterate(numbers(5), loop, at_once)) == [0, 1, 2, 3, 4]
    left = iterate(numbers(7), loop, 3)
    assert next(left) == 0
    left.close()
    assert closed == [5, 5, 5, 5, 7]
    loop.stop()


def test_interrupted_step_raises_the_interrupt_itself() -> None:
    """Ctrl-C while rows are awaited is a KeyboardInterrupt, whatever the generator was doing."""
    loop = BackgroundLoop("test loop")
    caller, closed = threading.current_thread(), threading.Event()

    async def rows() -> AsyncGenerator[int, None]:
        try:
            yield 1
            while not _is_waiting(caller):  # noqa: ASYNC110 - nothing says when it begins to wait
                await asyncio.sleep(0)
            assert caller.ident is not None
            signal.pthread_kill(caller.ident, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.set()

    scan = iterate(rows(), loop, 1)
    assert next(scan) == 1
    with pytest.raises(KeyboardInterrupt):
        next(scan)
    assert closed.is_set()
    loop.stop()


def _is_waiting(thread: threading.Thread) -> bool:
    """Whether a thread sleeps until a call has its result.

    On its way there it is not enough: a signal that comes between Python's last look for one and
    the system call waits as long as that does.
    """
    assert thread.ident is not None
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and frame.f_code.co_name != "result":
        frame = frame.f_back
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return frame is not None and stat.rpartition(") ")[2].startswith("S")


@pytest.mark.slow
def test_program_ends_although_an_iteration_was_left_unfinished() -> None:
    """A script that keeps a half-read scan and never closes the client exits, and says nothing."""
    command = [sys.executable, "-c", UNFINISHED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
