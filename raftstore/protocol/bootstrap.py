"""How the members of a new cluster agree that it exists (S0.7)."""

from __future__ import annotations

from raftstore.protocol.message import Message
from raftstore.protocol.tags import tag_of
from raftstore.types import NodeId


class BirthQuery(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Founder not born -> every other: who are you, and do you belong to a cluster already?"""

    name: str


class BirthInfo(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Answer to BirthQuery; ``cluster_id`` and ``accepted_proposal`` are empty if there is none."""

    node: NodeId
    advertise: str
    cluster_id: bytes
    accepted_proposal: bytes


class BirthProposal(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The lowest name -> every initial member: the creation configuration of the metadata channel.

    ``members`` is (node id, advertised address). A node accepts and fsyncs at most one, ever.
    """

    cluster_id: bytes
    members: tuple[tuple[NodeId, str], ...]


class BirthAccepted(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Member -> proposer: this proposal is durable here."""

    cluster_id: bytes
    node: NodeId


class BirthComplete(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Proposer -> members: all accepted; start the metadata channel."""

    cluster_id: bytes


BirthMessage = BirthQuery | BirthInfo | BirthProposal | BirthAccepted | BirthComplete
