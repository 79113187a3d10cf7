"""Log lines never make a node wait: not for a slow reader, and not for one that reads nothing."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import re
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from raftstore.node import line_stream
from raftstore.node.logs import LOGGER, configure_logging, drain_lines, dropped_lines, lines_aside

PIPE_BYTES = 4096
SECONDS = 5.0


@pytest.fixture(autouse=True)
def _untouched_logger() -> Iterator[None]:
    """Leave the process's logger as it was."""
    logger = logging.getLogger(LOGGER)
    before = (logger.handlers, logger.level, logger.propagate)
    yield
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A small pipe: the end to read from, and the stream that writes into it."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    stream = os.fdopen(writer, "w")
    yield reader, stream
    os.close(reader)
    stream.close()


def read_until(reader: int, wanted: str) -> str:
    """Text from the pipe, up to the wanted one."""
    text, deadline = "", time.monotonic() + SECONDS
    while wanted not in text:
        assert time.monotonic() < deadline, text[-500:]
        text += os.read(reader, 1 << 16).decode()
    return text


def log_when_there_is_room(log: logging.Logger) -> None:
    """Say something once everything before has found its reader."""
    drain_lines(SECONDS)
    log.warning("and on")


def test_lines_are_all_there_and_in_order() -> None:
    """Given lines written aside, all of them are in the stream at the end and in order, from any
    thread.
    """
    stream = io.StringIO()
    configure_logging(level="info", node="n1", stream=stream)
    log = logging.getLogger(LOGGER)
    with lines_aside():
        for number in range(100):
            log.info("line %d", number)
        log.warning("bad")
    log.info("after")
    said = re.findall(r'event="([^"]+)"', stream.getvalue())
    assert said == [*(f"line {number}" for number in range(100)), "bad", "after"]


def test_full_pipe_delays_nobody_and_its_lost_lines_are_told(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4: nobody reads stderr: the node goes on, memory is bounded, and later the gap is
    reported."""
    reader, stream = pipe
    monkeypatch.setattr(line_stream, "WAITING_BYTES_MAX", 20_000)
    configure_logging(level="info", node="n1", stream=stream)
    log = logging.getLogger(LOGGER)
    with lines_aside():
        begun = time.monotonic()
        for number in range(1_000):
            log.info("line %d %s", number, "x" * 100)
        assert time.monotonic() - begun < SECONDS / 5, "a line waited for its reader"
        assert 500 < dropped_lines() < 1_000
        log_later = Thread(target=log_when_there_is_room, args=(log,))
        log_later.start()
        text = read_until(reader, 'event="and on"')
        log_later.join()
        told = re.findall(r'event="log lines dropped" lines=(\d+)', text)
        assert (
            sum(map(int, told)) == dropped_lines() == 1_000 - len(re.findall(r"line \d+ x", text))
        )


def test_end_does_not_wait_for_a_reader_that_never_comes(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose stderr is blocked ends all the same, and says nothing more into it."""
    monkeypatch.setattr("raftstore.node.logs.LAST_LINES_S", 0.05)
    _, stream = pipe
    configure_logging(level="info", node="n1", stream=stream)
    log = logging.getLogger(LOGGER)
    begun = time.monotonic()
    with lines_aside():
        for _ in range(200):
            log.info("x" * 100)
        drain_lines(0.05)
    log.info("after the end")
    assert time.monotonic() - begun < SECONDS / 5


def test_what_other_libraries_say_waits_for_nobody_either(
    pipe: tuple[int, io.TextIOWrapper],
) -> None:
    """asyncio warns by itself; with nobody's handler Python would write it to stderr at once."""
    reader, stream = pipe
    configure_logging(level="info", node="n1", stream=stream)
    last_resort = logging.lastResort
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        with lines_aside():
            logging.getLogger("some.library").warning("socket.send() raised exception.")
            assert "socket.send() raised exception." in read_until(reader, "exception.")
    finally:
        root.handlers = handlers
    assert logging.lastResort is last_resort
