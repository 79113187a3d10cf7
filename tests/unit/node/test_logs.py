"""Log lines: one a event, the same fields in the same places, readable and parseable."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator

import pytest

from raftstore.node.logs import LOGGER, configure_logging, fields, lines_by_turn


@pytest.fixture(autouse=True)
def _untouched_logger() -> Iterator[None]:
    """Leave the process's logger as it was."""
    logger = logging.getLogger(LOGGER)
    before = (logger.handlers, logger.level, logger.propagate)
    yield
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def lines_of(*, level: str = "info", json_lines: bool = False) -> io.StringIO:
    """Configure logging of node n1 into a buffer."""
    stream = io.StringIO()
    configure_logging(level=level, node="n1", json_lines=json_lines, stream=stream)
    return stream


def test_line_names_node_channel_term_event_and_reason() -> None:
    """Where comes before what, what before why, whatever the order of the call."""
    stream = lines_of()
    logging.getLogger("raftstore.core").info(
        "became leader", extra=fields(reason="it died", term=5, channel="orders/3")
    )
    line = stream.getvalue()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ", line)
    assert line.endswith(
        'INFO node=n1 channel=orders/3 term=5 event="became leader" reason="it died"\n'
    )


def test_line_stays_one_line_whatever_the_values() -> None:
    """A value with a line break, a quote or nothing in it is quoted."""
    stream = lines_of()
    logging.getLogger(LOGGER).warning("odd\nevent", extra=fields(a='x"y', b="", c="p\nq", d="k=v"))
    assert stream.getvalue().count("\n") == 1
    assert r'event="odd\nevent" a="x\"y" b="" c="p\nq" d="k=v"' in stream.getvalue()


def test_absent_values_are_left_out() -> None:
    """None says that there is nothing to report."""
    assert fields(leader=None, term=0) == {"raftstore_fields": {"term": 0}}


def test_json_line_has_the_same_names() -> None:
    """Machines read the same fields without parsing logfmt."""
    stream = lines_of(json_lines=True)
    logging.getLogger(LOGGER).error("stopped", extra=fields(term=7, reason=ValueError("full")))
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "ERROR",
        "node": "n1",
        "term": 7,
        "event": "stopped",
        "reason": "full",
    }


def test_traceback_is_a_field_of_its_line() -> None:
    """Even a programmer's mistake is one line."""
    stream = lines_of()
    try:
        raise AssertionError("impossible")
    except AssertionError:
        logging.getLogger(LOGGER).exception("halted")
    assert stream.getvalue().count("\n") == 1
    assert "AssertionError: impossible" in stream.getvalue()


def test_level_hides_what_is_below_it() -> None:
    """The setting node.log_level decides; configuring again replaces, never doubles."""
    lines_of(level="debug")
    stream = lines_of(level="warning")
    logging.getLogger("raftstore.engine").info("quiet")
    logging.getLogger("raftstore.engine").warning("loud")
    assert stream.getvalue().count("\n") == 1
    assert 'event="loud"' in stream.getvalue()


def test_lines_of_one_turn_are_written_at_once_and_in_order() -> None:
    """A turn with a hundred lines costs one write; what is bad is written where it happens."""
    stream, soon = lines_of(), list[Callable[[], None]]()
    log = logging.getLogger(LOGGER)
    with lines_by_turn(soon.append):
        log.info("one")
        log.info("two")
        assert stream.getvalue() == ""
        soon.pop()()
        assert re.findall(r'event="(\w+)"', stream.getvalue()) == ["one", "two"]
        assert soon == []
        log.info("three")
        log.warning("four")
        assert re.findall(r'event="(\w+)"', stream.getvalue())[2:] == ["three", "four"]
        log.info("five")
    log.info("six")
    assert re.findall(r'event="(\w+)"', stream.getvalue())[4:] == ["five", "six"]


def test_lines_of_other_threads_do_not_wait_for_the_turn() -> None:
    """A thread that says why it ends must be heard even if the main loop stands still."""
    stream = lines_of()
    with lines_by_turn(lambda _: None):
        logging.getLogger(LOGGER).info("kept")
        other = threading.Thread(target=lambda: logging.getLogger(LOGGER).info("other"))
        other.start()
        other.join()
        assert re.findall(r'event="(\w+)"', stream.getvalue()) == ["kept", "other"]
