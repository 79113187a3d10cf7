"""Reasons to end a founding before a message travels, or because it cannot succeed (S0.7)."""

from __future__ import annotations

import asyncio

import pytest

from raftstore.config import NodeSettings
from raftstore.errors import BirthRefusedError, ConfigError
from raftstore.node.bootstrap.birth import Members
from raftstore.node.bootstrap.founding import Founding, check_founders_are_named
from raftstore.protocol.bootstrap import BirthInfo
from raftstore.protocol.tickets import Token, token_text
from raftstore.transport.handshake import Identity
from raftstore.types import NodeId, node_id

CLUSTER = b"the one cluster!"
NOBODY = "127.0.0.1:1"
"""A port that nobody listens on."""
N1, N2 = node_id("n1", b"1" * 16), node_id("n2", b"2" * 16)


class MemoryStore:
    """The durable side of a birth."""

    def __init__(self, node: NodeId, cluster_id: bytes = b"", members: Members = ()) -> None:
        self.node = node
        self.cluster_id = self.accepted_proposal = cluster_id
        self.members = members

    def record_proposal(self, cluster_id: bytes, members: Members) -> None:
        """Accept one."""
        self.accepted_proposal, self.members = cluster_id, members

    def record_birth(self, cluster_id: bytes, members: Members) -> None:
        """Belong to it."""
        self.record_proposal(cluster_id, members)
        self.cluster_id = cluster_id


def founding(store: MemoryStore, *founders: tuple[str, str], token: str = "") -> Founding:
    """A node's part in the founding by these members."""
    settings = NodeSettings(name="n1", data_dir="/data", initial_cluster=founders, join=token)
    identity = Identity(store.node, store.cluster_id, b"boot", NOBODY)
    return Founding(store, settings, NOBODY, lambda: identity, CLUSTER)


def outcome(ours: Founding) -> bool:
    """Whether the store belongs to a cluster in the end."""

    async def run() -> bool:
        try:
            async with asyncio.timeout(10):
                return await ours.wait_until_born(asyncio.Event())
        finally:
            await ours.close()

    return asyncio.run(run())


def test_store_without_a_cluster_needs_founders() -> None:
    """A node that knows of no others must not wait for them without end."""
    with pytest.raises(ConfigError, match=r"/data belongs to no cluster yet .*--initial-cluster"):
        check_founders_are_named(NodeSettings(name="n1", data_dir="/data"))
    check_founders_are_named(
        NodeSettings(name="n1", data_dir="/data", initial_cluster=(("n1", NOBODY),))
    )


def test_node_that_is_no_founder_is_refused() -> None:
    """The founders are one list everywhere, and every one of them is in it."""
    with pytest.raises(ConfigError, match="'n1' is not among the founding members n2, n3"):
        outcome(founding(MemoryStore(N1), ("n2", NOBODY), ("n3", NOBODY)))


def test_store_of_other_founders_is_refused() -> None:
    """A store born elsewhere is not taken into the cluster that is configured now."""
    members = ((N1, NOBODY), (N2, NOBODY))
    with pytest.raises(ConfigError, match="founded by n1, n2, but --initial-cluster names n1, n3"):
        outcome(founding(MemoryStore(N1, CLUSTER, members), ("n1", NOBODY), ("n3", NOBODY)))


def test_born_store_starts_with_the_founders_of_its_birth_or_without_a_list() -> None:
    """After the birth the configuration may keep the list, with new addresses, or drop it."""
    members = ((N2, NOBODY), (N1, NOBODY))
    for founders in ((), (("n2", "127.0.0.1:2"), ("n1", "127.0.0.1:3"))):
        assert outcome(founding(MemoryStore(N2, CLUSTER, members), *founders))


def test_store_of_another_cluster_does_not_join_by_a_token() -> None:
    """It would go on in its own cluster in silence; a token of that one may stay."""

    def given(cluster: bytes) -> Founding:
        token = token_text(Token(cluster, bytes(16), bytes(32), (NOBODY,)))
        return founding(MemoryStore(N1, CLUSTER, ((N1, NOBODY),)), token=token)

    with pytest.raises(ConfigError, match=rf"belongs to cluster {CLUSTER.hex()}, but the token"):
        outcome(given(b"another cluster!"))
    assert outcome(given(CLUSTER))


def test_single_founder_is_born_at_once() -> None:
    """A cluster of one asks nobody."""
    store = MemoryStore(N1)
    assert outcome(founding(store, ("n1", NOBODY)))
    assert store.cluster_id == CLUSTER


def test_founding_ends_when_another_founder_belongs_to_a_cluster() -> None:
    """An operator must look: asking on cannot help."""
    ours = founding(MemoryStore(N1), ("n1", NOBODY), ("n2", NOBODY))
    ours.on_message(BirthInfo(N2, NOBODY, b"another cluster!", b""))
    with pytest.raises(BirthRefusedError, match=r"n2 at 127\.0\.0\.1:1 already belongs to cluster"):
        outcome(ours)
