"""Rows of another thread's loop: how they come, and what becomes of an unfinished iteration."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator

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
    caller, closed = threading.get_ident(), threading.Event()

    async def rows() -> AsyncGenerator[int, None]:
        try:
            yield 1
            while not _is_waiting(caller):  # noqa: ASYNC110 - nothing tells when it begins to wait
                await asyncio.sleep(0)
            signal.pthread_kill(caller, signal.SIGINT)
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


def _is_waiting(thread: int) -> bool:
    """Whether a thread waits for the result of a call."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_name != "result":
        frame = frame.f_back
    return frame is not None


@pytest.mark.slow
def test_program_ends_although_an_iteration_was_left_unfinished() -> None:
    """A script that keeps a half-read scan and never closes the client exits, and says nothing."""
    command = [sys.executable, "-c", UNFINISHED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
