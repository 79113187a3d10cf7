"""How reads are wished for: every contradiction is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.client.position import Position
from raftstore.client.reads import ReadOptions, read_wish
from raftstore.errors import ConfigError, SchemaError
from raftstore.types import Level, Seq, Term

UUID = b"u" * 16
POSITION = Position.at(UUID, 1, Term(2), Seq(7))


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ({}, Level.LINEARIZABLE),
        ({"max_lag": 0}, Level.BOUNDED),
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
        ({"max_staleness": 2.0}, "max_staleness=2.0 is not available yet"),
        ({"maxlag": 1}, "no option 'maxlag'; there are level, max_lag"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: Any, text: str) -> None:
    """Each refusal names the option, its value and the remedy."""
    with pytest.raises(ConfigError, match=text):
        read_wish(options)


def test_position_bounds_only_its_own_partitions() -> None:
    """A read waits for the seq of the partition that it reads."""
    wish = read_wish({"at_least": POSITION})
    assert wish.min_seq(UUID, 1) == 7
    assert wish.min_seq(UUID, 0) == 0
    assert wish.min_seq(b"v" * 16, 1) == 0
    assert read_wish({}).min_seq(UUID, 1) == 0


def test_position_must_be_a_token() -> None:
    """A damaged position is refused before it is used."""
    with pytest.raises(SchemaError, match="is not a position"):
        read_wish({"at_least": "abc"})
