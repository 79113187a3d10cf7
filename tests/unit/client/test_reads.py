"""Specifications of reads: every contradiction is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.client.position import Position
from raftstore.client.reads.read_spec import Pin, ReadOptions, pinned, spec_of
from raftstore.errors import ConfigError, PositionError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.types import Level, NodeId, Seq, Term

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
    """Without options a read is linearizable; a bound or a position chooses its level (BLOG-07)."""
    spec = spec_of(options)
    assert spec.level is level
    assert spec.needs_leader == (level in (Level.LINEARIZABLE, Level.LEADER))


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
        spec_of(options)


def table(uuid: bytes = UUID) -> TableInfo:
    """A table of two partitions."""
    return TableInfo("orders", uuid, ("id",), 2, 3, "fsync", None, "", ())


def test_position_bounds_only_its_own_partitions() -> None:
    """A read waits for the seq of the partition that it reads."""
    spec = spec_of({"at_least": POSITION})
    assert spec.min_seq(table(), 1) == 7
    assert spec.min_seq(table(), 0) == 0
    assert spec_of({}).min_seq(table(), 1) == 0
    assert spec_of({"at_least": Position()}).min_seq(table(), 1) == 0


def test_position_of_another_table_is_no_position_of_this_one() -> None:
    """It is refused: without it the read could go back behind what was seen."""
    with pytest.raises(PositionError, match="is of another table than 'orders'"):
        spec_of({"at_least": POSITION}).min_seq(table(b"v" * 16), 1)
    merged = POSITION | Position.at(b"v" * 16, 0, Term(1), Seq(9))
    assert spec_of({"at_least": merged}).min_seq(table(b"v" * 16), 0) == 9
    beyond = Position.at(UUID, 2, Term(1), Seq(9))
    with pytest.raises(PositionError, match="names partition 2 of table 'orders', which has 2"):
        spec_of({"at_least": beyond}).min_seq(table(), 1)


def test_staleness_is_sent_in_milliseconds_and_never_loosened() -> None:
    """Rounded down, but 0.07 s is 70 ms and 8.2 s is 8200 ms, whatever floating point makes it."""
    bounds = (0, 1e-9, 0.0019, 0.07, 2.5, 8.2)
    found = [spec_of({"max_staleness": bound}).max_staleness_ms for bound in bounds]
    assert found == [0, 0, 1, 70, 2500, 8200]


def test_position_must_be_a_token() -> None:
    """A damaged position is refused before it is used."""
    with pytest.raises(SchemaError, match="is not a position"):
        spec_of({"at_least": "abc"})


def test_equal_options_make_equal_specifications() -> None:
    """Gets share a request by what they ask for, not by which object says it."""
    first, second = (
        spec_of({"max_lag": 5, "columns": ["v"]}),
        spec_of({"columns": ["v"], "max_lag": 5}),
    )
    assert first is not second
    assert first == second
    assert hash(first) == hash(second)
    others: list[ReadOptions] = [
        {"max_lag": 4, "columns": ["v"]},
        {"max_lag": 5},
        {"max_staleness": 0.005, "columns": ["v"]},
        {"max_batches_behind": 5, "columns": ["v"]},
        {"max_lag": 5, "columns": ["v"], "prefer": "nearest"},
    ]
    assert all(spec_of(other) != first for other in others)


def test_only_reads_that_name_nothing_else_share_a_request() -> None:
    """A position, a replica, hedging or a pin is a reason for a request of one's own."""
    assert spec_of({}).may_share
    assert spec_of({"max_lag": 5, "prefer": "nearest"}).may_share
    alone: list[ReadOptions] = [{"at_least": POSITION}, {"replica": "n2"}, {"hedge": False}]
    assert not any(spec_of(options).may_share for options in alone)
    assert not pinned(Pin(NodeId("n1"), 7)).may_share
