"""Structured logs: one line an event, the same fields in every room.

``2026-01-31T12:00:00.123Z INFO node=n1 channel=orders/3 term=5 event="became leader" reason=…``
is made by ``log.info("became leader", extra=fields(channel="orders/3", term=5, reason="…"))``.
Values are logfmt: quoted only where a space, a quote or an equals sign asks for it. With JSON a
line is one object with the same names. Lines go to stderr; nothing here rotates files: that is the
work of the process's supervisor. A node writes what one turn of its loop has to say at once: a
turn that opens channels says a hundred lines, and every write lets other threads go first. And it
writes in a thread of its own, since nobody may ever read what it writes (``line_stream``).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from raftstore.node.line_stream import LineStream

LOGGER: Final = "raftstore"
"""Root of our loggers; rooms use ``logging.getLogger("raftstore.<room>")``."""

LAST_LINES_S: Final = 1.0
"""How long the end of a process waits for its last lines to be written."""

_FIELDS: Final = "raftstore_fields"
_PLAIN_UNSAFE: Final = frozenset(' "=\\')


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Named values of a log line, for the ``extra`` argument; None values are left out."""
    return {_FIELDS: {name: value for name, value in values.items() if value is not None}}


def configure_logging(
    *, level: str, node: str, json_lines: bool = False, stream: TextIO | None = None
) -> None:
    """Send everything of raftstore at ``level`` and above to ``stream`` (default: stderr).

    Replaces what an earlier call had set up, so it may be called again.
    """
    handler = LineHandler(sys.stderr if stream is None else stream)
    formatter_class = JsonFormatter if json_lines else LogfmtFormatter
    handler.setFormatter(formatter_class(node=node))
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


@contextmanager
def lines_by_turn(call_soon: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Within this, what the calling thread says below a warning is written by ``call_soon``."""
    handlers = [h for h in logging.getLogger(LOGGER).handlers if isinstance(h, LineHandler)]
    for handler in handlers:
        handler.write_later(call_soon)
    try:
        yield
    finally:
        for handler in handlers:
            handler.write_later(None)


@contextmanager
def lines_aside() -> Iterator[None]:
    """Within this a thread of its own writes the lines, so that nobody waits for their reader.

    What other libraries say, asyncio for one, goes the same way.
    """
    handlers = [h for h in logging.getLogger(LOGGER).handlers if isinstance(h, LineHandler)]
    other, before = _LastResort(handlers), logging.lastResort
    for handler in handlers:
        handler.write_aside()
    if handlers:
        logging.lastResort = other
    try:
        yield
    finally:
        logging.lastResort = before
        for handler in handlers:
            handler.write_here_again()


def write_lines() -> None:
    """Write what was said in this turn now: it lasts."""
    for handler in logging.getLogger(LOGGER).handlers:
        handler.flush()


def drain_lines(timeout_s: float = LAST_LINES_S) -> None:
    """Wait until the lines said so far are written, at most so long."""
    for handler in logging.getLogger(LOGGER).handlers:
        if isinstance(handler, LineHandler):
            handler.flush()
            if isinstance(handler.stream, LineStream):
                handler.stream.drain(timeout_s)


def dropped_lines() -> int:
    """Lines that were dropped because nobody read them, since the start of the process."""
    return sum(
        handler.dropped
        for handler in logging.getLogger(LOGGER).handlers
        if isinstance(handler, LineHandler)
    )


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes each line at once, unless it was given the moments at which to write those of one
    thread."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._thread = 0
        self._real = stream

    @property
    def dropped(self) -> int:
        """Lines that were dropped because nobody read them."""
        return self.stream.dropped if isinstance(self.stream, LineStream) else 0

    def write_aside(self) -> None:
        """From now on no caller waits for the stream."""
        if not isinstance(self.stream, LineStream):
            self.setStream(LineStream(self._real, self._say_dropped))  # type: ignore[arg-type]

    def write_here_again(self) -> None:
        """Write what waits and end the thread; if it cannot, nobody else shall wait either."""
        self.flush()
        stream = self.stream
        if isinstance(stream, LineStream) and stream.end(LAST_LINES_S):
            self.setStream(self._real)

    def _say_dropped(self, count: int) -> str:
        """Format a line in place of so many that are lost."""
        record = logging.LogRecord(
            f"{LOGGER}.log", logging.WARNING, __file__, 0, "log lines dropped", None, None
        )
        reason = "stderr was not read in time"
        record.__dict__[_FIELDS] = {"lines": count, "reason": reason}
        return self.format(record) + self.terminator

    def write_later(self, call_soon: Callable[[Callable[[], None]], object] | None) -> None:
        """Let ``call_soon`` write what this thread says; None: write everything at once again."""
        self.flush()
        self._thread = threading.get_ident()
        self._call_soon = call_soon

    def emit(self, record: logging.LogRecord) -> None:
        """Write or keep a line; what is worse than usual is never kept."""
        is_here = threading.get_ident() == self._thread
        if self._call_soon is None or not is_here or record.levelno >= logging.WARNING:
            self.flush()
            super().emit(record)
            return
        if not self._lines:
            self._call_soon(self.flush)
        self._lines.append(self.format(record) + self.terminator)

    def flush(self) -> None:
        """Write what is kept."""
        with self.lock or threading.Lock():
            if self._lines:
                text = "".join(self._lines)
                self._lines.clear()
                self.stream.write(text)
        super().flush()


class _LastResort(logging.Handler):
    """Takes what libraries say that nobody configured, to where our lines go."""

    def __init__(self, handlers: list[LineHandler]) -> None:
        super().__init__(logging.WARNING)
        self._handlers = handlers

    def emit(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            handler.handle(record)


class EventFormatter(logging.Formatter):
    """Collect the fields of a line in their order: when, how bad, where, what, why."""

    def __init__(self, *, node: str) -> None:
        super().__init__()
        self._node = node

    def event(self, record: logging.LogRecord) -> dict[str, Any]:
        """The named values of one line, in order."""
        given: dict[str, object] = dict(getattr(record, _FIELDS, {}))
        line: dict[str, Any] = {"node": given.pop("node", self._node)}
        for name in ("channel", "term"):
            if name in given:
                line[name] = given.pop(name)
        line["event"] = record.getMessage()
        line |= given
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return line

    @staticmethod
    def when(record: logging.LogRecord) -> str:
        """The moment of the event: UTC with milliseconds."""
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LogfmtFormatter(EventFormatter):
    """``time LEVEL name=value …`` on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = self.event(record)
        # The event is always quoted, so that it is found at the same place by eye and by grep.
        words = [
            f"{name}={json.dumps(value, ensure_ascii=False) if name == 'event' else _plain(value)}"
            for name, value in line.items()
        ]
        return f"{self.when(record)} {record.levelname} {' '.join(words)}"


class JsonFormatter(EventFormatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.when(record), "level": record.levelname} | self.event(record)
        return json.dumps(line, ensure_ascii=False, default=str)


def _plain(value: object) -> str:
    text = str(value)
    is_safe = text.isprintable() and text and not _PLAIN_UNSAFE.intersection(text)
    return text if is_safe else json.dumps(text, ensure_ascii=False)
