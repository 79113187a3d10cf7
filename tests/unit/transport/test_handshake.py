"""The first frames: who is heard, and who is not mistaken for somebody else (S0.1, S12)."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from raftstore.config import PROTOCOL_VERSION
from raftstore.engine.message_kinds import (
    BATCH_KINDS,
    ELECTION_KINDS,
    REPLICATION_KINDS,
    SNAPSHOT_KINDS,
)
from raftstore.protocol.codec import MESSAGE_TYPES
from raftstore.protocol.leader_moves import LeaderMoveMessage, TakeLead
from raftstore.protocol.node import Hello
from raftstore.protocol.payload_repair import GapReport
from raftstore.protocol.replication import StoreAck
from raftstore.protocol.trimming import TrimmingMessage
from raftstore.testing.invariants import InvariantError
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_transport import SimTransport
from raftstore.transport.handshake import (
    TO_ACCEPTOR,
    TO_DIALLER,
    Identity,
    Purpose,
    check_acceptor,
    check_dialler,
)
from raftstore.types import NodeId, Seq, Term, channel_id, node_id

CLUSTER = b"c" * 16
CHANNEL = channel_id(b"t" * 16, 0)
N1, N2 = node_id("n1", b"1" * 16), node_id("n2", b"2" * 16)
ME = Identity(N1, CLUSTER, b"boot", "127.0.0.1:1")


def answer(node: NodeId, *, version: int = PROTOCOL_VERSION, cluster_id: bytes = CLUSTER) -> Hello:
    """The Hello of the side that was dialled."""
    return Hello(version, Purpose.PEER, cluster_id, node, b"boot")


def test_acceptor_is_taken_when_it_is_who_was_dialled() -> None:
    """The same node, cluster and protocol version as expected."""
    assert check_acceptor(answer(N2), ME, N2) is None


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (answer(node_id("n2", b"3" * 16)), "wrong_store"),
        (answer(node_id("n3", b"3" * 16)), "wrong_node"),
        (answer(N2, cluster_id=b"d" * 16), "wrong_cluster"),
        (answer(N2, version=PROTOCOL_VERSION + 1), "unsupported_version"),
    ],
)
def test_acceptor_is_refused_when_it_is_not_who_was_dialled(hello: Hello, code: str) -> None:
    """S0.1: neither another store of that name nor another node or cluster gets our messages."""
    refusal = check_acceptor(hello, ME, N2)
    assert refusal is not None
    assert refusal.code == code


@pytest.mark.parametrize(
    ("dialled", "code"),
    [
        ("", None),
        (N1, None),
        (node_id("n1", b"3" * 16), "wrong_store"),
        (node_id("n3", b"3" * 16), "wrong_node"),
    ],
)
def test_dialler_that_means_another_node_is_told_who_is_here(
    dialled: str, code: str | None
) -> None:
    """An older one does not say whom it means."""
    hello = Hello(PROTOCOL_VERSION, Purpose.PEER, CLUSTER, N2, b"boot", dialled=dialled)
    refusal = check_dialler(hello, ME, (N2,))
    assert (None if refusal is None else refusal.code) == code


def test_m27_retired_node_is_refused_by_that_name_whatever_else_is_known() -> None:
    """Its id never comes back; a stranger is answered that it is one."""
    hello = Hello(PROTOCOL_VERSION, Purpose.PEER, CLUSTER, N2, b"boot")
    for known in ((), (N2,)):
        refusal = check_dialler(hello, ME, known, {N2: None})
        assert refusal is not None
        assert refusal.code == "retired"
        assert f"{N2} was retired" in refusal.message
    stranger = check_dialler(hello, ME, ())
    assert stranger is not None
    assert stranger.code == "unknown_node"
    elsewhere = check_dialler(msgspec.structs.replace(hello, cluster_id=b"d" * 16), ME, (), {N2})
    assert elsewhere is not None
    assert elsewhere.code == "wrong_cluster"


def test_every_message_is_taken_on_some_connection() -> None:
    """One that no connection takes ends the connection it comes on, again and again."""
    taken = set[type]().union(*TO_ACCEPTOR.values(), *TO_DIALLER.values())
    assert {kind.__name__ for kind in set(MESSAGE_TYPES) - taken} == {"Hello", "Goodbye"}


def test_s6_6_nodes_take_from_each_other_all_that_channels_are_told() -> None:
    """A kind of message that only simulated nodes exchanged would be no message."""
    told = ELECTION_KINDS | REPLICATION_KINDS | BATCH_KINDS | SNAPSHOT_KINDS
    assert told <= TO_ACCEPTOR[Purpose.PEER]


def test_control_connections_take_all_that_nodes_send_over_them() -> None:
    """Worlds send nothing over a lane whose other end would drop the connection for it; here the
    kinds that are rare in worlds."""
    rare = {GapReport, *get_args(TrimmingMessage), *get_args(LeaderMoveMessage)}
    assert rare <= TO_ACCEPTOR[Purpose.CONTROL]
    cluster = SimCluster(SimOptions(seed=1))
    cluster.start()
    transport = SimTransport(next(iter(cluster.nodes.values())))
    with pytest.raises(InvariantError, match="a StoreAck would end a connection"):
        transport.send_control(NodeId("n2@00"), StoreAck(CHANNEL, Term(1), Seq(1)))
    with pytest.raises(InvariantError, match="a TakeLead would end a connection"):
        transport.send(NodeId("n2@00"), TakeLead(CHANNEL, Term(1)))
