"""Standbys in sync as a leader's node judges and reports them (FIP-10, FIP-17, FIP-18)."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import IssSettings, NodeSettings
from raftstore.engine.leaders.standbys import CHANGES_SHOWN, LOOK_MS, Standbys
from raftstore.protocol.admin import ChannelView
from raftstore.protocol.node import InSync, LagReport
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import STORAGE, SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Seq, node_name
from tests.unit.engine.engine_world import ask, publish, run

MAX_LAG = 5


class World:
    """Three nodes and a channel that one of them leads."""

    def __init__(self, partitions: int = 1) -> None:
        options = SimOptions(seed=1, partitions=partitions, evict_percent=0)
        base = NodeSettings(name="", data_dir="", storage=STORAGE, iss=IssSettings(MAX_LAG))
        self.cluster = cluster = SimCluster(options, base)
        cluster.start()
        cluster.create_table(partitions)
        run(cluster, 5_000)
        (self.channel, *_) = cluster.table_channels
        self.leader = cluster.leaders()[self.channel]
        self.others = [node for node in cluster.nodes.values() if node is not self.leader]

    def runner_of(self, node: SimNode) -> Any:
        """The runner of a live node."""
        assert node.runner is not None
        return node.runner

    @property
    def standbys(self) -> Standbys:
        """As the leader's node judges them."""
        found: Standbys = self.runner_of(self.leader).leaders.standbys
        return found

    @property
    def iss(self) -> set[NodeId]:
        """In sync with the leader."""
        record = self.standbys.record(self.runner_of(self.leader).channels[self.channel])
        return set() if record is None else set(record.iss)

    def late(self, node: SimNode) -> str:
        """Why a node is not in sync."""
        return self.standbys.why_not_in_sync(
            self.runner_of(self.leader).channels[self.channel], node.node
        )

    def events(self) -> list[dict[str, Any]]:
        """Entries and exits, as the leader's node reported them."""
        _, events = self.runner_of(self.leader).ring.since(0, ("iss_changed",), 1_000)
        return list(events)

    def write(self, rows: int) -> None:
        """A client writes rows one after the other."""
        for counter in range(rows):
            key = b"k%d" % counter
            payload = encode_rows([(key, seal(key, b"v"))])
            message = publish(self.cluster, self.leader, self.channel, counter + 1, payload)
            ask(self.cluster, self.leader, message)
        run(self.cluster, 1_500)

    def report(self, node: SimNode, behind: int, **others: Any) -> None:
        """A node says of the channel what its next report will not."""
        leading = self.runner_of(self.leader)
        core = leading.channels[self.channel].core
        own = self.runner_of(node).watch.reports._position(
            self.runner_of(node).channels[self.channel]
        )
        fields = {name: getattr(own, name) for name in own.__struct_fields__}
        fields |= {"applied_seq": Seq(core.last_seq - behind), **others}
        leading.watch.reports.on_report(
            node.node,
            LagReport(0, (type(own)(**fields),), 0, ""),
            leading.clock.now_ms,
            leading.clock.now_ms,
        )

    def view(self, node: SimNode, channel: ChannelId) -> ChannelView:
        """A channel as a node shows it."""
        runner = self.runner_of(node)
        found: ChannelView = runner.views.channels(runner.clock.now_ms)[channel]
        return found


@pytest.fixture
def world() -> World:
    """A calm cluster."""
    return World()


def test_all_standbys_of_a_calm_channel_are_in_sync_and_every_node_knows(world: World) -> None:
    """FIP-06, FIP-10: from what they report to have applied; the leader reports it to all."""
    others = {node.node for node in world.others}
    assert world.iss == others
    for node in world.cluster.nodes.values():
        sync = world.view(node, world.channel).sync
        assert sync is not None
        assert (set(sync.iss), set(sync.hot_standbys)) == (others, others)
        assert set(sync.isr) == {*others, world.leader.node}


def test_standby_that_is_beyond_the_bound_leaves_and_comes_back_when_it_is_equal(
    world: World,
) -> None:
    """FIP-17, FIP-18: with an event for each, which names the channel and the reason."""
    late = world.others[0]
    world.write(2 * MAX_LAG)
    world.report(late, MAX_LAG)
    assert late.node in world.iss
    world.report(late, MAX_LAG + 1)
    assert late.node not in world.iss
    assert world.late(late) == f"it has {MAX_LAG + 1} rows to apply"
    world.report(late, 1)
    assert late.node not in world.iss, "near is not enough to come back"
    run(world.cluster, 3_000)
    assert late.node in world.iss
    assert world.late(late) == ""
    seen = [change for event in world.events() for change in event["first"].split("; ")]
    name = world.runner_of(world.leader).channels[world.channel].name
    assert f"{name} {late.name} left: it has {MAX_LAG + 1} rows to apply" in seen
    assert seen[-1] == f"{name} {late.name} entered"


def test_standby_that_falls_silent_leaves_and_comes_back(world: World) -> None:
    """FIP-17: heartbeats are to be current; who is down is shown as out at once."""
    gone = world.others[0]
    gone.crash("test")
    run(world.cluster, 3 * LOOK_MS)
    assert world.iss == {world.others[1].node}
    assert world.late(gone) == "it is not heard"
    assert world.standbys.left_total >= 1
    sync = world.view(world.others[1], world.channel).sync
    assert sync is not None
    assert gone.node not in {*sync.iss, *sync.isr}
    gone.boot()
    run(world.cluster, 5_000)
    assert gone.node in world.iss


def test_node_that_is_lost_is_in_sync_with_nobody_at_once_in_views_and_reports(
    world: World,
) -> None:
    """Nothing else happens to the channel: no write, no answer, no look at who is silent."""
    runner, lost = world.runner_of(world.leader), world.others[0].node

    def in_sync() -> list[set[NodeId]]:
        """As this node shows it in its next view, and has it in its next report."""
        views = {at.channel: at.sync for at in runner.views._build(runner.clock.now_ms).channels}
        reports = {at.channel: at.in_sync for _, at, _ in runner.watch.reports._positions_here()}
        view, report = views[world.channel], reports[world.channel]
        assert view is not None
        return [{*view.isr[1:], *view.iss}, {*report.nodes, *report.standbys}]

    assert all(lost in known for known in in_sync())
    runner.on_peer_lost(lost, runner.clock.now_ms, refused=False)
    assert not any(lost in known for known in in_sync())
    runner.on_peer_connected(lost, "", 0, runner.clock.now_ms)
    assert all(lost in known for known in in_sync())


def test_what_another_life_of_a_replica_reports_is_not_counted(world: World) -> None:
    """M4: it may have applied everything once, and hold nothing now."""
    late = world.others[0]
    world.write(2 * MAX_LAG)
    world.report(late, MAX_LAG + 1)
    world.report(late, 0, replica=77)
    assert late.node not in world.iss


def test_new_leader_judges_anew(world: World) -> None:
    """FIP-15: nothing that an earlier leader knew is taken over, and reports may come twice."""
    old = world.leader
    old.crash("test")
    run(world.cluster, 8_000)
    world.leader = world.cluster.leaders()[world.channel]
    assert world.leader is not old
    assert world.iss == {node.node for node in world.others if node is not world.leader}
    entered = world.standbys.entered_total
    for _ in range(3):
        for node in world.others:
            if node is not world.leader:
                world.report(node, 0)
    assert world.standbys.entered_total == entered
    old.boot()
    run(world.cluster, 5_000)
    assert old.node in world.iss
    assert world.runner_of(old).leaders.standbys.counts() == {"hot_standbys": 0, "in_sync": 0}


def test_many_changes_of_one_look_are_one_event() -> None:
    """A node with many channels that dies floods nobody."""
    world = World(partitions=3 * CHANGES_SHOWN)
    before = {id(event) for event in world.events()}
    world.others[0].crash("test")
    run(world.cluster, 5_000)
    events = [event for event in world.events() if id(event) not in before and event["left"]]
    assert len(events) == 1
    assert events[0]["first"].count("; ") < CHANGES_SHOWN
    name = node_name(world.others[0].node)
    assert all(
        f"{name} left: it is not heard" in change for change in events[0]["first"].split("; ")
    )


def test_leader_that_has_committed_nothing_knows_nobody(world: World) -> None:
    """FIP-06: what followers held in another term says nothing in this one."""
    runner = world.runner_of(world.leader).channels[world.channel]
    leader = runner.core._leader
    assert leader is not None
    leader.is_ready = False
    assert world.standbys.in_sync(runner) is None
    assert world.standbys.record(runner) is None
    leader.is_ready = True
    assert isinstance(world.standbys.in_sync(runner), InSync)
