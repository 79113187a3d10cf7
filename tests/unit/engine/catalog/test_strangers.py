"""Nodes that a catalog does not name yet, as its controller takes them (S0.1, S0.7)."""

from __future__ import annotations

from raftstore.config import LEVEL
from raftstore.engine.catalog.strangers import KEPT_MS, STRANGERS_MAX
from raftstore.protocol.rebalance import CopyReport, CopyState
from raftstore.state_machines.catalog import NodeEntry
from raftstore.types import NodeId, channel_id
from tests.unit.engine.catalog.controller_bench import (
    INTERVAL_MS,
    METADATA,
    NEWCOMER,
    OTHER,
    UUID,
    Bench,
)


def test_stranger_is_reachable_while_nobody_leads_the_metadata_channel_here() -> None:
    """S0.7: it joined while this node was away, and may be the leader who could say so. It is no
    node that the catalog is made of: what it says of itself is not registered from here."""
    bench = Bench()
    bench.register()
    controller = bench.start()
    bench.runners[METADATA].elector.leader = None
    controller.on_stranger(NEWCOMER, "new:4", 3)
    assert controller.reachable() == {**controller.endpoints(), NEWCOMER: "new:4"}
    assert ("peer", NEWCOMER, 3) in bench.calls
    controller.on_introduced(NEWCOMER, "new:4", LEVEL)
    assert NEWCOMER not in controller.endpoints()
    assert NEWCOMER not in controller.levels()
    controller.on_timer(2 * INTERVAL_MS)
    assert not any(b"new:4" in command for command in bench.proposed)
    bench.put(NodeEntry(NEWCOMER, "named:4"))
    controller.on_catalog_applied(4)
    assert controller.reachable() == controller.endpoints()
    assert controller.endpoints()[NEWCOMER] == "named:4"


def test_no_stranger_is_believed_beside_a_leader_or_when_it_was_retired() -> None:
    """S0.1: the leader's catalog says who is a node, and M27 who is none any more."""
    bench = Bench()
    controller = bench.start()
    controller.on_stranger(NEWCOMER, "new:4", 1)
    assert NEWCOMER not in controller.reachable()
    bench.runners[METADATA].elector.leader = None
    bench.retire(NEWCOMER)
    controller.on_catalog_applied(2)
    controller.on_stranger(NEWCOMER, "new:4", 3)
    assert NEWCOMER not in controller.reachable()
    controller.on_stranger(OTHER, "else:2", 4)
    assert controller.reachable()[OTHER] == controller.endpoints()[OTHER] != "else:2"
    controller.on_introduced(OTHER, "moved:2", LEVEL)
    assert controller.endpoints()[OTHER] == "moved:2", "it is a node of the cluster as before"


def test_stranger_that_turns_out_to_be_retired_is_left_alone() -> None:
    """M27: it left while this node was away, and never heard of it."""
    bench = Bench()
    controller = bench.start()
    bench.runners[METADATA].elector.leader = None
    controller.on_stranger(NEWCOMER, "new:4", 1)
    bench.retire(NEWCOMER)
    controller.on_catalog_applied(2)
    assert NEWCOMER not in controller.reachable()
    assert ("gone", NEWCOMER, 2) in bench.calls


def stranger(number: int) -> NodeId:
    """One of many that say that they are nodes of this cluster."""
    return NodeId(f"n{100 + number}@" + "9" * 32)


class Crowd:
    """A node without a leader of the metadata, whose places for strangers are all taken."""

    def __init__(self, *, connected: bool) -> None:
        self.bench = Bench()
        self.controller = self.bench.start()
        self.bench.runners[METADATA].elector.leader = None
        for number in range(STRANGERS_MAX):
            self.dial(number, number, connected=connected)
        assert self.believed() == list(map(stranger, range(STRANGERS_MAX)))

    def dial(self, number: int, now_ms: int, *, connected: bool = False) -> None:
        """One dials, is refused, and may be connected the next time."""
        node = stranger(number)
        self.bench.down.add(node)
        self.controller.on_stranger(node, f"new:{number}", now_ms)
        if connected:
            self.bench.down.remove(node)
            self.controller.on_introduced(node, f"new:{number}", LEVEL)

    def believed(self) -> list[NodeId]:
        """The strangers that this node would take."""
        named = self.controller.endpoints()
        return sorted(node for node in self.controller.reachable() if node not in named)


def test_stranger_that_dials_gets_the_place_of_the_one_that_dialled_longest_ago() -> None:
    """S0.7: those that the catalog never names must not keep the leader out that would bring it;
    and no more are believed than there are places, since anybody may say that it is a node."""
    crowd = Crowd(connected=False)
    crowd.dial(0, 50)
    crowd.dial(STRANGERS_MAX, 51)
    assert crowd.believed() == [stranger(n) for n in range(STRANGERS_MAX + 1) if n != 1]
    assert crowd.bench.named("gone") == [(stranger(1), 51)]
    crowd.controller.on_introduced(stranger(3), "new:3", LEVEL)
    crowd.dial(STRANGERS_MAX + 1, 52)
    crowd.dial(STRANGERS_MAX + 2, 53)
    assert crowd.bench.named("gone")[1:] == [(stranger(2), 52), (stranger(4), 53)]
    assert ("peer", stranger(STRANGERS_MAX + 2), 53) in crowd.bench.calls


def test_stranger_without_an_address_gets_no_place() -> None:
    """It could not be answered."""
    bench = Bench()
    controller = bench.start()
    bench.runners[METADATA].elector.leader = None
    controller.on_stranger(NEWCOMER, "", 1)
    assert controller.reachable() == controller.endpoints()
    assert ("peer", NEWCOMER, 1) not in bench.calls


def test_all_that_came_of_a_stranger_goes_with_its_place() -> None:
    """Its level and what it says later, too: what was under way when it lost its place makes no
    node of it."""
    crowd = Crowd(connected=False)
    for number in range(STRANGERS_MAX):
        crowd.controller.on_introduced(stranger(number), f"new:{number}", LEVEL)
    crowd.dial(STRANGERS_MAX, 50)
    assert stranger(0) not in crowd.bench.levels.by_node
    crowd.controller.on_introduced(stranger(0), "new:0", LEVEL)
    assert stranger(0) not in {*crowd.controller.endpoints(), *crowd.controller.reachable()}
    assert stranger(0) not in crowd.bench.levels.by_node
    assert stranger(1) in crowd.bench.levels.by_node


def test_copies_of_one_that_lost_its_place_are_forgotten_and_not_taken_again() -> None:
    """Anybody could fill the memory of a node with reports of copies under many names."""
    crowd = Crowd(connected=False)
    controller, channel = crowd.controller, channel_id(UUID, 0)
    report = CopyReport((CopyState(channel, 7),))
    controller.on_introduced(stranger(0), "new:0", LEVEL)
    for number in range(2):
        assert controller.on_message(stranger(number), report, 40)
    seen = controller.copy_reports.bytes_of
    assert [seen(channel, stranger(number)) for number in range(2)] == [7, 0]
    for number in range(STRANGERS_MAX):
        crowd.dial(STRANGERS_MAX + number, 50)
    assert seen(channel, stranger(0)) == 0
    assert controller.on_message(stranger(0), report, 51)
    assert seen(channel, stranger(0)) == 0


def test_stranger_that_is_connected_keeps_its_place_as_long_as_it_may_need() -> None:
    """S0.7: until it is known as the leader, or gets elected; those that only dial cannot throw it
    out meanwhile, and those that are connected cannot stay for ever."""
    crowd = Crowd(connected=True)
    crowd.dial(STRANGERS_MAX, KEPT_MS - 1)
    assert stranger(STRANGERS_MAX) not in crowd.believed()
    assert crowd.bench.named("gone") == []
    crowd.bench.down.add(stranger(9))
    crowd.dial(STRANGERS_MAX, KEPT_MS - 1)
    assert crowd.bench.named("gone") == [(stranger(9), KEPT_MS - 1)]
    crowd.dial(STRANGERS_MAX + 1, KEPT_MS)
    assert crowd.bench.named("gone")[1:] == [(stranger(0), KEPT_MS)]
    crowd.dial(1, KEPT_MS + 1, connected=True)
    crowd.dial(STRANGERS_MAX + 2, KEPT_MS + 3)
    assert crowd.bench.named("gone")[2:] == [(stranger(2), KEPT_MS + 3)]
