"""Places for channels that take tables or bases: bounded each by itself, the oldest first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftstore.engine.snapshots.places import BASES_MAX, WOKEN, Places
from raftstore.engine.snapshots.transfer import Transfer
from raftstore.types import ChannelId, NodeId


def name(number: int) -> ChannelId:
    """A channel."""
    return ChannelId(b"%018d" % number)


def transfer(*, for_base: bool) -> Transfer:
    """One that takes something."""
    runner: Any = SimpleNamespace()
    return Transfer(runner, NodeId(2), for_base)


def test_tables_and_bases_are_bounded_each_by_itself() -> None:
    """Tables by the setting: they take memory, disk and processor; bases are one message each."""
    transfers = dict[ChannelId, Transfer]()
    places = Places(transfers, 2)
    for number in range(2):
        assert not places.is_full(for_base=False)
        transfers[name(number)] = transfer(for_base=False)
    assert places.is_full(for_base=False)
    for number in range(BASES_MAX):
        assert not places.is_full(for_base=True)
        transfers[name(10 + number)] = transfer(for_base=True)
    assert places.is_full(for_base=True)
    del transfers[name(0)]
    assert (places.is_full(for_base=False), places.is_full(for_base=True)) == (False, True)


def test_tables_are_counted_by_the_node_they_come_from() -> None:
    """A base is one message, and burdens nobody."""
    transfers = {name(1): transfer(for_base=False), name(2): transfer(for_base=True)}
    assert Places(transfers, 2).sending() == {NodeId(2): 1}


def test_those_that_wait_longest_are_first_and_only_for_what_they_wait() -> None:
    """Some more than one, for the first may have no use for it any more."""
    places = Places({}, 1)
    for number in range(20):
        places.wait(name(number), for_base=number % 2 == 1)
    places.wait(name(0), for_base=False)
    places.leave(name(2))
    places.leave(name(99))
    assert places.first(for_base=False) == tuple(map(name, (0, 4, 6, 8)))
    assert places.first(for_base=True) == tuple(map(name, (1, 3, 5, 7)))
    assert len(places.first(for_base=True)) == WOKEN
