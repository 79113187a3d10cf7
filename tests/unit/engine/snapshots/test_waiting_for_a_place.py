"""Channels that find no place to take a table wait for one, and begin as soon as it is free."""

from __future__ import annotations

import pytest

from raftstore.protocol.replica_snapshots import AskBase, AskReplicaSnapshot
from raftstore.types import Seq
from tests.unit.engine.receiver_bench import RETRY_MS, Receiving
from tests.unit.engine.snapshots_bench import CHANNEL, OTHER, SETTINGS, B


def need_another(bench: Receiving, trimmed_to: int) -> None:
    """Another channel needs what the leader's log below this seq does not say any more."""
    bench.channels[OTHER].core.trimmed_to = Seq(trimmed_to)
    bench.receiver.needed(bench.channels[OTHER], bench.now_ms)
    bench.timer()


def test_no_more_channels_fetch_at_a_time_than_the_setting_allows() -> None:
    """The others look again later."""
    bench = Receiving(fetch_max=1)
    bench.looking()
    need_another(bench, trimmed_to=41)
    assert list(bench.receiver.transfers) == [CHANNEL]
    assert bench.due_ms == RETRY_MS
    bench.receiver.channel_closed(bench.mine)
    bench.timer(RETRY_MS)
    assert list(bench.receiver.transfers) == [OTHER]


@pytest.mark.parametrize("end", ["failed", "ended"])
def test_channel_without_a_place_begins_when_one_is_free(end: str) -> None:
    """It does not wait for its next look: that would be a second of nothing for each place."""
    bench = Receiving(fetch_max=1)
    bench.copying()
    need_another(bench, trimmed_to=41)
    bench.timer(bench.now_ms + 1)
    assert list(bench.receiver.transfers) == [CHANNEL]
    if end == "failed":
        bench.receiver.peer_lost(B, bench.now_ms)
    else:
        for number in range(3):
            bench.chunk(number)
            bench.step()
        bench.run_steps()
        assert not bench.receiver.transfers
    assert bench.due_ms == bench.now_ms
    bench.timer()
    assert list(bench.receiver.transfers) == [OTHER]


def test_nobody_looks_for_a_channel_that_was_closed_while_it_waited() -> None:
    """The place stays free for others."""
    bench = Receiving(fetch_max=1)
    bench.copying()
    need_another(bench, trimmed_to=41)
    bench.receiver.channel_closed(bench.channels[OTHER])
    bench.receiver.peer_lost(B, bench.now_ms)
    assert bench.due_ms == bench.now_ms + SETTINGS.retry_ms


def test_base_waits_for_no_place_among_the_tables() -> None:
    """A copied table needs its leader's base next: while it waits more of the log is trimmed, and
    the copy would have been in vain."""
    bench = Receiving(fetch_max=1)
    bench.copying()
    need_another(bench, trimmed_to=6)
    bench.barrier(33)
    assert [type(one) for one in bench.said()] == [AskBase]
    assert list(bench.receiver.transfers) == [CHANNEL, OTHER]


def test_table_that_is_needed_after_all_waits_for_its_place() -> None:
    """The barrier says less than was thought before it."""
    bench = Receiving(fetch_max=1)
    bench.copying()
    need_another(bench, trimmed_to=6)
    bench.barrier(3)
    assert (bench.said(), list(bench.receiver.transfers)) == ([], [CHANNEL])
    assert bench.due_ms == bench.now_ms + SETTINGS.retry_ms
    bench.receiver.peer_lost(B, bench.now_ms)
    assert bench.due_ms == bench.now_ms


def test_table_that_is_needed_after_all_takes_a_place() -> None:
    """If one is free; then no other is."""
    bench = Receiving(fetch_max=1)
    bench.mine.core.lacks_rows, bench.mine.core.trimmed_to = False, Seq(6)
    bench.looking()
    bench.barrier(3)
    assert [type(one) for one in bench.said()] == [AskReplicaSnapshot]
    need_another(bench, trimmed_to=41)
    assert list(bench.receiver.transfers) == [CHANNEL]


def test_as_many_channels_fetch_as_the_setting_allows() -> None:
    """Two here."""
    bench = Receiving()
    bench.looking()
    need_another(bench, trimmed_to=6)
    assert len(bench.receiver.transfers) == len(bench.barriers) == 2
