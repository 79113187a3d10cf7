"""The first frames: who is heard, and who is not mistaken for somebody else (S0.1, S12)."""

from __future__ import annotations

import pytest

from raftstore.config import PROTOCOL_VERSION
from raftstore.protocol.node import Hello
from raftstore.transport.handshake import Identity, Purpose, check_acceptor
from raftstore.types import NodeId, node_id

CLUSTER = b"c" * 16
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
