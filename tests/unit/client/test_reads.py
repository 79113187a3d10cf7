"""How reads are wished for: every contradiction is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.client.position import Position
from raftstore.client.reads.read_spec import ReadOptions, read_wish
from raftstore.errors import ConfigError, PositionError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.types import Level, Seq, Term

UUID = b"u" * 16
POSITION = Position.at(UUID, 1, Term(2), Seq(7))


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ({}, Level.LINEARIZABLE),
        ({"max_lag": 0}, Level.BOUNDED),
        ({"max_staleness": 2}, Level.BOUNDED),
        ({"max_batches_behind": 3, "max_staleness": 0.5, "max_lag": 9}, Level.BOUNDED),
        ({"max_lag": None, "at_least": None}, Level.LINEARIZABLE),
        ({"at_least": POSITION}, Level.ANY),
        ({"at_least": str(POSITION), "max_lag": 5}, Level.BOUNDED),
        ({"level": "leader"}, Level.LEADER),
        ({"level": Level.BOUNDED}, Level.BOUNDED),
        ({"level": "any", "replica": "n2"}, Level.ANY),
    ],
)
def test_level_follows_from_the_options(options: ReadOptions, level: Level) -> None:
    """Without options a read is linearizable; a bound or a position chooses its level."""
    wish = read_wish(options)
    assert wish.level is level
    assert wish.needs_leader == (level in (Level.LINEARIZABLE, Level.LEADER))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"level": "strong"}, "'strong' is unknown; use one of linearizable, leader"),
        ({"max_lag": -1}, "max_lag=-1 is no number of rows"),
        ({"max_lag": True}, "max_lag=True is no number of rows"),
        ({"max_lag": "9"}, "max_lag='9' is no number of rows"),
        ({"max_lag": 1, "level": "any"}, "has no meaning at level any"),
        ({"max_lag": 1.0}, "max_lag=1.0 is no number of rows"),
        ({"max_lag": 2**63}, "max_lag=9223372036854775808 is no number of rows"),
        ({"max_batches_behind": -2}, "max_batches_behind=-2 is no number of micro-batches"),
        ({"max_batches_behind": False}, "max_batches_behind=False is no number"),
        ({"max_staleness": -0.1}, "max_staleness=-0.1 is no number of seconds"),
        ({"max_staleness": float("nan")}, "max_staleness=nan is no number of seconds"),
        ({"max_staleness": float("inf")}, "max_staleness=inf is no number of seconds"),
        ({"max_staleness": True}, "max_staleness=True is no number of seconds"),
        ({"max_staleness": "2s"}, "max_staleness='2s' is no number of seconds"),
        ({"max_staleness": 1e300}, "is no number of seconds"),
        ({"max_staleness": 1, "level": "leader"}, "max_staleness=1 has no meaning at level leader"),
        ({"max_batches_behind": 1, "level": "linearizable"}, "has no meaning at level linear"),
        ({"prefer": "fastest"}, "prefer='fastest' is unknown; use one of leader, nearest, any_in_"),
        ({"hedge": 1}, "hedge=1 is neither True nor False"),
        ({"replica": 2}, "replica=2 is no text"),
        ({"columns": "id"}, "columns='id' is no list of column names"),
        ({"columns": []}, "is no list of column names"),
        ({"columns": [1]}, "is no list of column names"),
        ({"level": None, "max_lag": []}, r"max_lag=\[\] is no number of rows"),
        ({"maxlag": 1}, "no option 'maxlag'; there are level, max_lag"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: Any, text: str) -> None:
    """Each refusal names the option, its value and the remedy."""
    with pytest.raises(ConfigError, match=text):
        read_wish(options)


def table(uuid: bytes = UUID) -> TableInfo:
    """A table of two partitions."""
    return TableInfo("orders", uuid, ("id",), 2, 3, "fsync", None, "", ())


def test_position_bounds_only_its_own_partitions() -> None:
    """A read waits for the seq of the partition that it reads."""
    wish = read_wish({"at_least": POSITION})
    assert wish.min_seq(table(), 1) == 7
    assert wish.min_seq(table(), 0) == 0
    assert read_wish({}).min_seq(table(), 1) == 0
    assert read_wish({"at_least": Position()}).min_seq(table(), 1) == 0


def test_position_of_another_table_is_no_position_of_this_one() -> None:
    """It is refused: without it the read could go back behind what was seen."""
    with pytest.raises(PositionError, match="is of another table than 'orders'"):
        read_wish({"at_least": POSITION}).min_seq(table(b"v" * 16), 1)
    merged = POSITION | Position.at(b"v" * 16, 0, Term(1), Seq(9))
    assert read_wish({"at_least": merged}).min_seq(table(b"v" * 16), 0) == 9
    beyond = Position.at(UUID, 2, Term(1), Seq(9))
    with pytest.raises(PositionError, match="names partition 2 of table 'orders', which has 2"):
        read_wish({"at_least": beyond}).min_seq(table(), 1)


def test_staleness_is_sent_in_milliseconds_and_never_loosened() -> None:
    """Rounded down, but 0.07 s is 70 ms and 8.2 s is 8200 ms, whatever floating point makes it."""
    bounds = (0, 1e-9, 0.0019, 0.07, 2.5, 8.2)
    found = [read_wish({"max_staleness": bound}).max_staleness_ms for bound in bounds]
    assert found == [0, 0, 1, 70, 2500, 8200]


def test_position_must_be_a_token() -> None:
    """A damaged position is refused before it is used."""
    with pytest.raises(SchemaError, match="is not a position"):
        read_wish({"at_least": "abc"})
