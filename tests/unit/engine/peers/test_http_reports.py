"""Reports over HTTP by themselves: which count, until when, and when they are forgotten."""

from __future__ import annotations

import pytest

from raftstore.config import HeartbeatSettings
from raftstore.engine.peers.http_reports import HttpReports, SaidPosition
from raftstore.types import NodeId, Seq, channel_id

NODE, OTHER = NodeId("n2@00"), NodeId("n3@00")
FIRST, SECOND = (channel_id(b"t" * 16, number) for number in range(2))
SILENT_MS = 3 * 100


def reports() -> HttpReports:
    """Nothing was said yet; a node that is silent for 300 ms is down."""
    return HttpReports(HeartbeatSettings(missed_threshold=3, send_interval_ms=100))


@pytest.mark.parametrize(
    ("now_ms", "after_ms", "lives"),
    [
        (500, None, True),
        (500 + SILENT_MS, None, True),
        (501 + SILENT_MS, None, False),
        (500, 499, True),
        (500, 500, False),
        (500, 501, False),
    ],
)
def test_heartbeat_counts_for_as_long_as_silence_is_borne(
    now_ms: int, after_ms: int | None, lives: bool
) -> None:
    """KLIP-19: and not when the node was found to be down after it, or at the same time."""
    said = reports()
    said.on_heartbeat(NODE, 500)
    assert said.lives(NODE, now_ms, after_ms=after_ms) is lives
    assert not said.lives(OTHER, now_ms, after_ms=after_ms)


def test_newest_position_of_each_replica_counts() -> None:
    """KLIP-35: by channel and by node."""
    said = reports()
    said.on_positions(NODE, [(FIRST, Seq(3), Seq(9)), (SECOND, Seq(4), Seq(4))], 100)
    said.on_positions(OTHER, [(FIRST, Seq(5), Seq(6))], 150)
    said.on_positions(NODE, [(FIRST, Seq(7), Seq(8))], 200)
    assert said.position(FIRST, NODE) == SaidPosition(Seq(7), Seq(8), 200)
    assert said.position(FIRST, OTHER) == SaidPosition(Seq(5), Seq(6), 150)
    assert said.position(SECOND, NODE) == SaidPosition(Seq(4), Seq(4), 100)
    assert said.position(SECOND, OTHER) is None
    assert set(said.channels()) == {FIRST, SECOND}


@pytest.mark.parametrize(("until_ms", "is_gone"), [(99, False), (100, True), (101, True)])
def test_word_of_the_node_itself_replaces_what_was_said_before(
    until_ms: int, is_gone: bool
) -> None:
    """A later word of others counts again, and its other channels keep theirs."""
    said = reports()
    said.on_positions(NODE, [(FIRST, Seq(3), Seq(9)), (SECOND, Seq(4), Seq(4))], 100)
    said.on_positions(OTHER, [(SECOND, Seq(4), Seq(4))], 100)
    assert said.forget(FIRST, NODE, until_ms=until_ms) is is_gone
    assert (said.position(FIRST, NODE) is None) is is_gone
    assert (FIRST in said.channels()) is not is_gone
    assert not said.forget(FIRST, OTHER, until_ms=until_ms)
    assert not said.forget(channel_id(b"x" * 16, 0), NODE, until_ms=until_ms)
    assert said.forget(SECOND, OTHER, until_ms=200)
    assert said.position(SECOND, NODE) is not None


def test_channels_of_dropped_tables_are_forgotten_and_no_others() -> None:
    """A channel that is forgotten by no call would be kept for ever."""
    said = reports()
    said.on_positions(NODE, [(FIRST, Seq(3), Seq(9)), (SECOND, Seq(4), Seq(4))], 100)
    said.forget_unless(lambda channel: channel == SECOND)
    assert list(said.channels()) == [SECOND]
