"""A client's beliefs about a cluster: newer news wins, and everything is a hint (S7.4)."""

from __future__ import annotations

from raftstore.client.cluster.topology import REFUTED_MS, Leader, Topology
from raftstore.protocol.admin import ChannelInfo, ClusterInfoAnswer, NodeInfo, TableInfo
from raftstore.types import ChannelId, NodeId, Term, channel_id, node_id

A, B = node_id("a", b"a" * 16), node_id("b", b"b" * 16)
UUID = b"u" * 16
CHANNEL = channel_id(UUID, 0)
METADATA = channel_id(b"c" * 16, 0)


def channel(leader: NodeId | None, term: int, id_: ChannelId = CHANNEL) -> ChannelInfo:
    return ChannelInfo(id_, (A, B), leader, Term(term))


def table(*channels: ChannelInfo, name: str = "t", uuid: bytes = UUID) -> TableInfo:
    return TableInfo(name, uuid, ("id",), len(channels), 2, "fsync", None, "", channels)


def answer(
    *tables: TableInfo, version: int = 1, b_is_up: bool = True, cluster: bytes = b"c" * 16
) -> ClusterInfoAnswer:
    nodes = (NodeInfo(A, "h:1", True), NodeInfo(B, "h:2", b_is_up))
    metadata = ChannelInfo(METADATA, (A, B), A, Term(1))
    return ClusterInfoAnswer(1, cluster, version, 0, A, nodes, tables, metadata)


def known(leader: NodeId | None = A, term: int = 3) -> Topology:
    topology = Topology()
    topology.merge(answer(table(channel(leader, term))), 0)
    return topology


def test_topology_knows_tables_replicas_and_leaders() -> None:
    """One answer of any node fills everything."""
    topology = known()
    assert topology.leader_of(CHANNEL) == Leader(A, Term(3))
    assert topology.leader_of(METADATA) == Leader(A, Term(1))
    assert topology.replicas_of(CHANNEL) == (A, B)
    assert topology.name_of(CHANNEL) == "t/0"
    assert topology.node_named("b") == topology.node_named(B) == B
    assert topology.node_named("z") is None


def test_topology_keeps_the_leader_of_the_highest_term() -> None:
    """An older term never replaces a newer one, whatever order answers and words come in."""
    topology = known(A, 3)
    topology.merge(answer(table(channel(B, 2))), 0)
    topology.hint(CHANNEL, Leader(B, Term(2)), 0)
    assert topology.leader_of(CHANNEL) == Leader(A, Term(3))
    topology.merge(answer(table(channel(B, 4))), 0)
    assert topology.leader_of(CHANNEL) == Leader(B, Term(4))


def test_topology_keeps_the_leader_when_a_node_knows_none() -> None:
    """A node that is cut off says "none" in a high term: no reason to forget the leader."""
    topology = known(A, 3)
    topology.merge(answer(table(channel(None, 9))), 0)
    assert topology.leader_of(CHANNEL) == Leader(A, Term(3))


def test_topology_forgets_a_leader_that_denies_and_reports_about_it() -> None:
    """After "not I" the same claim is not believed for a while; a newer term is."""
    topology = known(A, 3)
    topology.refute(CHANNEL, Leader(A, Term(3)), 0)
    assert topology.leader_of(CHANNEL) is None
    topology.hint(CHANNEL, Leader(A, Term(3)), REFUTED_MS - 1)
    assert topology.leader_of(CHANNEL) is None
    topology.hint(CHANNEL, Leader(B, Term(2)), 0)
    assert topology.leader_of(CHANNEL) is None
    topology.hint(CHANNEL, Leader(B, Term(4)), 0)
    assert topology.leader_of(CHANNEL) == Leader(B, Term(4))


def test_topology_believes_a_denied_leader_again_after_a_while() -> None:
    """A refusal that was a passing moment does not exclude a leader for its whole term."""
    topology = known(A, 3)
    topology.refute(CHANNEL, Leader(A, Term(3)), 0)
    topology.hint(CHANNEL, Leader(A, Term(3)), REFUTED_MS)
    assert topology.leader_of(CHANNEL) == Leader(A, Term(3))


def test_topology_keeps_a_newer_leader_when_an_older_one_denies() -> None:
    """A late refusal of a former leader changes nothing."""
    topology = known(A, 3)
    topology.hint(CHANNEL, Leader(B, Term(4)), 0)
    topology.refute(CHANNEL, Leader(A, Term(3)), 0)
    assert topology.leader_of(CHANNEL) == Leader(B, Term(4))


def test_topology_tells_listeners_of_changes_only() -> None:
    """Listeners are called for a changed leader only: news wakes a caller that waits for one,
    repetitions do not.
    """
    topology = known(A, 3)
    heard: list[ChannelId] = []
    topology.on_leader_change(heard.append)
    topology.merge(answer(table(channel(A, 3))), 0)
    assert heard == []
    topology.hint(CHANNEL, Leader(B, Term(4)), 0)
    topology.refute(CHANNEL, Leader(B, Term(4)), 0)
    assert heard == [CHANNEL, CHANNEL]


def test_topology_keeps_the_newer_catalog() -> None:
    """A node that is behind does not bring a dropped table back, but its leaders still count."""
    topology = Topology()
    other = channel_id(b"v" * 16, 0)
    old = (table(channel(A, 3)), table(channel(A, 1, other), name="o", uuid=b"v" * 16))
    topology.merge(answer(*old, version=1), 0)
    topology.merge(answer(table(channel(A, 3)), version=2), 0)
    topology.merge(answer(table(channel(B, 5)), old[1], version=1), 0)
    assert [info.name for info in topology.tables()] == ["t"]
    assert topology.replicas_of(other) == ()
    assert topology.leader_of(other) is None
    assert topology.leader_of(CHANNEL) == Leader(B, Term(5))


def test_topology_keeps_the_address_of_a_replica_that_an_answer_leaves_out() -> None:
    """A node that has not met all others yet takes no replica's address away; others go."""
    topology = known(A, 3)
    unlisted = node_id("s", b"s" * 16)
    full = answer(table(channel(A, 3)))
    values = {name: getattr(full, name) for name in full.__struct_fields__}
    only_a = (NodeInfo(A, "h:9", True), NodeInfo(unlisted, "h:3", True))
    topology.merge(ClusterInfoAnswer(**(values | {"nodes": only_a})), 0)
    assert {n: info.endpoint for n, info in topology.nodes.items()} == {
        A: "h:9",
        B: "h:2",
        unlisted: "h:3",
    }
    topology.merge(full, 0)
    assert list(topology.nodes) == [A, B]


def test_topology_ignores_another_cluster() -> None:
    """An address that was taken by a node of another cluster is not believed."""
    topology = known(A, 3)
    topology.merge(answer(table(channel(B, 9)), version=9, cluster=b"x" * 16), 0)
    assert topology.leader_of(CHANNEL) == Leader(A, Term(3))
    assert topology.version == 1


def test_topology_shows_no_leader_when_its_node_is_reported_down() -> None:
    """Tables are described with the newest leaders; one whose node is down counts as none."""
    topology = Topology()
    topology.merge(answer(table(channel(B, 3)), b_is_up=False), 0)
    (info,) = topology.tables()
    assert info.channels[0].leader is None
    topology.merge(answer(table(channel(B, 3)), b_is_up=True), 0)
    (info,) = topology.tables()
    assert info.channels[0].leader == B
