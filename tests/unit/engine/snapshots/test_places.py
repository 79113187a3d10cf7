"""Places for channels that take tables or bases: bounded each by itself, the oldest first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import SnapshotSettings
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.engine.snapshots.places import BASES_MAX, WOKEN, Places
from raftstore.engine.snapshots.transfer import SMALL_BYTES, Stage, Transfer
from raftstore.types import ChannelId, NodeId

SETTINGS = SnapshotSettings(fetch_max=2, large_fetch_max=1, request_ms=200)
RUNNER: Any = SimpleNamespace(name="orders/1")
CATALOG: Any = SimpleNamespace(name=METADATA_NAME)
NOW_MS = 10_000


def name(number: int) -> ChannelId:
    """A channel."""
    return ChannelId(b"%018d" % number)


def transfer(
    *, for_base: bool = False, stage: Stage = Stage.COPYING, table_bytes: int = SMALL_BYTES
) -> Transfer:
    """One that takes something, and moved just now."""
    return Transfer(RUNNER, NodeId(2), for_base, stage, table_bytes=table_bytes, started_ms=NOW_MS)


def places_of(*transfers: Transfer, **changed: int) -> Places:
    """The places of a node on which these are under way."""
    settings = SnapshotSettings(**{"fetch_max": 2, "request_ms": 200, **changed})
    return Places({name(at): each for at, each in enumerate(transfers)}, Deadlines(), settings)


def test_tables_and_bases_are_bounded_each_by_itself() -> None:
    """Tables by the setting: they take memory, disk and processor; bases are one message each."""
    transfers = dict[ChannelId, Transfer]()
    places = Places(transfers, Deadlines(), SETTINGS)
    for number in range(2):
        assert not places.is_full(RUNNER, NOW_MS, for_base=False)
        transfers[name(number)] = transfer()
    assert places.is_full(RUNNER, NOW_MS, for_base=False)
    for number in range(BASES_MAX):
        assert not places.is_full(RUNNER, NOW_MS, for_base=True)
        transfers[name(10 + number)] = transfer(for_base=True)
    assert places.is_full(RUNNER, NOW_MS, for_base=True)
    del transfers[name(0)]
    assert not places.is_full(RUNNER, NOW_MS, for_base=False)
    assert places.is_full(RUNNER, NOW_MS, for_base=True)


@pytest.mark.parametrize("stage", [Stage.COPYING, Stage.VERIFYING])
def test_large_tables_come_one_after_the_other(stage: Stage) -> None:
    """Each is read back before the next one begins; requests would wait behind both."""
    large = transfer(stage=stage, table_bytes=SMALL_BYTES + 1)
    assert places_of(large).is_full(RUNNER, NOW_MS, for_base=False)
    assert not places_of(transfer(stage=stage)).is_full(RUNNER, NOW_MS, for_base=False)
    assert not places_of(large, large_fetch_max=2).is_full(RUNNER, NOW_MS, for_base=False)


@pytest.mark.parametrize("stage", [Stage.LOOKING, Stage.REREADING, Stage.ASKING])
def test_table_of_which_no_offer_says_how_large_it_is_may_be_large(stage: Stage) -> None:
    """All that begin at one moment would find nobody in their way."""
    unknown = transfer(stage=stage, table_bytes=0)
    assert places_of(unknown).is_full(RUNNER, NOW_MS, for_base=False)


def test_large_table_that_is_only_switched_to_keeps_nobody() -> None:
    """It waits for the log and for records under way, and takes nothing from anybody."""
    ending = transfer(stage=Stage.ENDING, table_bytes=SMALL_BYTES + 1)
    assert not places_of(ending).is_full(RUNNER, NOW_MS, for_base=False)


def test_large_table_that_does_not_move_keeps_nobody() -> None:
    """Its sender hangs, or a disk: the others get theirs from somebody else."""
    places = places_of(transfer(table_bytes=SMALL_BYTES + 1))
    until_ms = NOW_MS + SETTINGS.request_ms
    assert places.is_full(RUNNER, until_ms - 1, for_base=False)
    assert not places.is_full(RUNNER, until_ms, for_base=False)


def test_catalog_waits_for_no_table() -> None:
    """Large tables take minutes, and a node does nothing that its catalog does not say."""
    large = transfer(table_bytes=SMALL_BYTES + 1)
    assert not places_of(large, large).is_full(CATALOG, NOW_MS, for_base=False)


def test_others_look_when_a_table_that_moved_keeps_nobody_any_more() -> None:
    """They do not wait for their next look: that would be a second of nothing for each table."""
    deadlines = Deadlines[ChannelId]()
    large = transfer(stage=Stage.VERIFYING, table_bytes=SMALL_BYTES + 1)
    places = Places({name(1): large}, deadlines, SETTINGS)
    places.wait(name(2), for_base=False)
    places.moved(large, NOW_MS + 150)
    assert places.is_full(RUNNER, NOW_MS + 349, for_base=False)
    assert name(2) not in deadlines
    large.stage = Stage.ENDING
    places.moved(large, NOW_MS + 151)
    assert list(deadlines.due(NOW_MS + 151)) == [name(2)]


def test_tables_are_counted_by_the_node_they_come_from() -> None:
    """A base is one message, and burdens nobody."""
    assert places_of(transfer(), transfer(for_base=True)).sending() == {NodeId(2): 1}


def test_those_that_wait_longest_are_first_and_only_for_what_they_wait() -> None:
    """Some more than one, for the first may have no use for it any more."""
    deadlines = Deadlines[ChannelId]()
    places = Places({}, deadlines, SETTINGS)
    for number in range(20):
        places.wait(name(number), for_base=number % 2 == 1)
    places.wait(name(0), for_base=False)
    places.leave(name(2))
    places.leave(name(99))
    for for_base, expected in ((False, (0, 4, 6, 8)), (True, (1, 3, 5, 7))):
        places.wake(NOW_MS, for_base=for_base)
        woken = list(deadlines.due(NOW_MS))
        assert sorted(woken) == list(map(name, expected))
        assert len(woken) == WOKEN
