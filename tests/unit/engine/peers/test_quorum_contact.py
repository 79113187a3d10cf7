"""A leader whose voters' nodes live, and host its replicas no more (NATS-035, M4, M5)."""

from __future__ import annotations

from raftstore.engine.peers.quorum_contact import REPORTS_MISSED_MAX
from raftstore.protocol.node import ChannelPosition, LagReport
from raftstore.types import ChannelConfig, NodeId, ReplicaNumber, Seq, Term
from tests.unit.engine.watch_bench import (
    ELECTION,
    FAR,
    ME,
    ONE,
    TWO,
    WALL_MS,
    Channel,
    WatchBench,
    tell,
)

REPORT_MS = 1_000
"""``lag.report_interval_ms`` of the bench."""
CHECK_MS = 50
NEW = ReplicaNumber(40)


class World:
    """Leaders of one node, and what the others report; all heartbeats come in both directions."""

    def __init__(self) -> None:
        self.bench = WatchBench()
        self.now_ms = 0
        self.counter = 0
        self.hosted: dict[NodeId, dict[Channel, tuple[Term, ReplicaNumber]]] = {ONE: {}, TWO: {}}
        """What each node reports; one that is missing reports nothing."""

    def add_node(self, node: NodeId) -> None:
        """A third peer."""
        self.bench.watch.add_peer(node, self.now_ms)
        self.bench.watch.on_connected(node, self.now_ms)
        self.hosted[node] = {}

    def lead(self, number: int = 0, config: ChannelConfig | None = None) -> Channel:
        """A channel that is led here, and whose voters confirm nothing when they are asked."""
        channel = self.bench.open(number, ME)
        if config is not None:
            channel.core.config = lambda: config
        channel.is_confirmed = False
        for node in channel.core.config().voters:
            if node in self.hosted:
                replica = channel.core.config().number_of(node)
                self.hosted[node][channel] = (channel.elector.term, replica)
        return channel

    def run(self, ms: int) -> None:
        """Heartbeats, reports and checks for so long."""
        for _ in range(0, ms, CHECK_MS):
            for node in tuple(self.bench.watch.peers):
                self.bench.beat(node, self.now_ms)
                if self.now_ms % REPORT_MS == 0 and node in self.hosted:
                    self.report(node)
            self.bench.check(self.now_ms)
            self.now_ms += CHECK_MS

    def report(self, node: NodeId) -> None:
        """The node reports the replicas that it hosts now."""
        self.counter += 1
        positions = tuple(
            ChannelPosition(
                channel.channel, term, False, Seq(0), Seq(0), Seq(10), b"", replica=replica
            )
            for channel, (term, replica) in self.hosted[node].items()
        )
        tell(self.bench, node, LagReport(WALL_MS, positions, self.counter), self.now_ms)


LATEST_MS = 2 * REPORT_MS + ELECTION.quorum_contact_ms + 2 * CHECK_MS
"""From the loss of the last replica to the end of the role, at most."""


def gave_up(channel: Channel) -> bool:
    """For want of contact."""
    assert {reason for reason, _ in channel.gave_up} <= {"no contact to a quorum"}
    return bool(channel.gave_up)


def test_leader_whose_voters_nodes_live_and_host_nothing_gives_up() -> None:
    """A4: their nodes are in contact, and their replicas were moved away. A channel that they
    still host is led on."""
    world = World()
    moved, kept = world.lead(0), world.lead(1)
    world.run(5_000)
    assert not gave_up(moved)
    assert moved.asked == [], "an idle channel costs no message while reports name its replicas"
    for node in (ONE, TWO):
        del world.hosted[node][moved]
    lost_ms = world.now_ms
    world.run(LATEST_MS)
    assert gave_up(moved)
    assert moved.gave_up[0][1] - lost_ms >= ELECTION.quorum_contact_ms
    world.run(5_000)
    assert not gave_up(kept)
    assert kept.asked == []


def test_one_voter_that_hosts_its_replica_holds_a_leader_of_three() -> None:
    """It and the leader are a quorum."""
    world = World()
    channel = world.lead()
    world.run(2_000)
    del world.hosted[ONE][channel]
    world.run(10_000)
    assert not gave_up(channel)
    assert channel.asked == []


def test_quorum_that_confirms_a_leader_holds_it_whatever_is_reported() -> None:
    """S7.1: the reports are the cheaper proof, not the only one; once it is confirmed no more, the
    time counts from then."""
    world = World()
    channel = world.lead()
    for node in (ONE, TWO):
        del world.hosted[node][channel]
    channel.is_confirmed = True
    world.run(10_000)
    assert not gave_up(channel)
    assert len(channel.asked) >= 10_000 // ELECTION.quorum_contact_ms
    assert len(channel.asked) <= 2 * 10_000 // ELECTION.quorum_contact_ms
    channel.is_confirmed = False
    proven_ms = channel.core.proven_ms
    world.run(LATEST_MS)
    assert channel.gave_up[0][1] == proven_ms + ELECTION.quorum_contact_ms


def test_replica_of_another_number_is_no_contact() -> None:
    """M4: nodes that were given the channel again host another life of their replicas."""
    world = World()
    channel = world.lead()
    for node in (ONE, TWO):
        world.hosted[node][channel] = (channel.elector.term, NEW)
    world.run(LATEST_MS)
    assert gave_up(channel)


def test_replica_of_a_later_term_is_no_contact() -> None:
    """S1.4: it may have voted for a leader that does what this one does not know; one of an
    earlier term has not heard of this one yet."""
    world = World()
    behind, ahead = world.lead(0), world.lead(1)
    for node in (ONE, TWO):
        world.hosted[node][behind] = (Term(behind.elector.term - 1), ReplicaNumber(0))
        world.hosted[node][ahead] = (Term(ahead.elector.term + 1), ReplicaNumber(0))
    world.run(LATEST_MS)
    assert (gave_up(behind), gave_up(ahead)) == (False, True)


def test_both_voter_sets_of_a_joint_configuration_are_needed() -> None:
    """S1.3: the voters that leave are hosted, of those that come there is no quorum."""
    world = World()
    world.add_node(FAR)
    joint = ChannelConfig(((ME, ONE, TWO), (FAR, NodeId("n5"), NodeId("n6"))))
    whole = ChannelConfig(((ME, ONE, TWO), (ME, TWO, FAR)))
    alone, held = world.lead(0, joint), world.lead(1, whole)
    for node in (ONE, TWO):
        del world.hosted[node][held]
    world.hosted[TWO][held] = (held.elector.term, ReplicaNumber(0))
    world.run(LATEST_MS)
    assert (gave_up(alone), gave_up(held)) == (True, False)


def test_leader_counts_itself_only_as_the_replica_that_votes() -> None:
    """M5: one of three voters beside a leader that is none of them, or another life of one, is no
    quorum, though its node is."""
    world = World()
    world.add_node(FAR)
    outside = world.lead(0, ChannelConfig(((ONE, TWO, FAR),)))
    another = world.lead(1, ChannelConfig(((ME, ONE, TWO),), (), {ME: NEW}))
    same = world.lead(2, ChannelConfig(((ME, ONE, TWO),), (), {ME: NEW}))
    same.core.number = NEW
    for channel in (outside, another, same):
        for node in (TWO, FAR):
            world.hosted[node].pop(channel, None)
    world.run(LATEST_MS)
    assert (gave_up(outside), gave_up(another), gave_up(same)) == (True, True, False)


def test_reports_that_stay_out_say_nothing_any_more() -> None:
    """Heartbeats go on. The same after a restart of the nodes: what they hosted may be lost."""
    for is_restarted in (False, True):
        world = World()
        channel = world.lead()
        world.run(2_000)
        world.hosted = {}
        stopped_ms = world.now_ms
        if is_restarted:
            for node in (ONE, TWO):
                world.bench.watch.reports.restarted(node)
        world.run(REPORTS_MISSED_MAX * REPORT_MS + LATEST_MS)
        assert gave_up(channel)
        took_ms = channel.gave_up[0][1] - stopped_ms
        assert (took_ms < REPORTS_MISSED_MAX * REPORT_MS) is is_restarted


def test_leadership_that_ended_counts_no_time_of_missing_replicas_for_the_next() -> None:
    """A leader of a later term has its own time."""
    world = World()
    channel = world.lead()
    for node in (ONE, TWO):
        del world.hosted[node][channel]
    world.run(1_000)
    world.bench.led(channel, TWO)
    world.run(5_000)
    assert not gave_up(channel)
    world.bench.led(channel, ME)
    again_ms = world.now_ms
    world.run(LATEST_MS)
    assert channel.gave_up[0][1] - again_ms >= ELECTION.quorum_contact_ms
