"""Admission of connections: purposes, the checks of a Hello, the reasons of a Goodbye.

Pure decisions. The rule of S12: the node id that votes and acks are counted under is the one the
connection was opened with, and of S0.1: a node whose store is another one than its peers know is
another node.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import UnionType
from typing import Final, NamedTuple

from raftstore.config import LEVEL, PROTOCOL_VERSION
from raftstore.protocol.batches import BatchMessage
from raftstore.protocol.bootstrap import BirthMessage
from raftstore.protocol.election import ElectionMessage
from raftstore.protocol.healing import HealingMessage
from raftstore.protocol.leader_moves import LeaderMoveMessage
from raftstore.protocol.machines import CommandAck, MachineMessage
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hello, NodeMessage
from raftstore.protocol.payload_repair import GapReport
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.rebalance import CopyReport
from raftstore.protocol.replica_snapshots import ReplicaSnapshotMessage
from raftstore.protocol.replication import ReplicationBundle, ReplicationMessage
from raftstore.protocol.requests import BatchReply, BatchRequest, ClientAnswer, ClientRequest
from raftstore.protocol.shared_commands import CommandsAck
from raftstore.protocol.trimming import TrimmingMessage
from raftstore.types import NodeId, node_name


class Purpose(StrEnum):
    """The purpose of a connection; in the dialler's Hello."""

    PEER = "peer"
    CONTROL = "control"
    CLIENT = "client"
    QUERY = "query"
    """Requests without writes: read on while back-pressure stops the writes of clients."""
    OPERATOR = "operator"
    """The same as query, with places of its own: who mends a node must get in when it is full."""
    BIRTH = "birth"


class GoodbyeCode(StrEnum):
    """Why a connection ended, as a stable word. The last three are not sent but concluded."""

    UNSUPPORTED_VERSION = "unsupported_version"
    MALFORMED = "malformed"
    UNEXPECTED_MESSAGE = "unexpected_message"
    UNKNOWN_PURPOSE = "unknown_purpose"
    NO_CLUSTER = "no_cluster"
    WRONG_CLUSTER = "wrong_cluster"
    WRONG_STORE = "wrong_store"
    WRONG_NODE = "wrong_node"
    UNKNOWN_NODE = "unknown_node"
    RETIRED = "retired"
    TOO_MANY_CLIENTS = "too_many_clients"
    SLOW_CLIENT = "slow_client"
    SLOW_FRAME = "slow_frame"
    IDLE = "idle"
    HELLO_TIMEOUT = "hello_timeout"
    REPLACED = "replaced"
    CLOSING = "closing"
    BAD_ADDRESS = "bad_address"
    EOF = "eof"
    BROKEN = "broken"


STRANGE: Final = (GoodbyeCode.UNKNOWN_NODE, GoodbyeCode.WRONG_STORE)
"""Peers that are refused with these may have joined, or taken the place of another node, while this
one was away."""


class CloseReason(NamedTuple):
    """Why a connection ended: a ``GoodbyeCode`` (or a newer one), a sentence, and whose choice."""

    code: str
    message: str
    by_peer: bool


class Refusal(NamedTuple):
    """The reason in the Goodbye to a Hello that is not accepted."""

    code: GoodbyeCode
    message: str


def _members(*unions: UnionType | type[Message]) -> frozenset[type[Message]]:
    types: list[type[Message]] = []
    for union in unions:
        types.extend(union.__args__ if isinstance(union, UnionType) else (union,))
    return frozenset(types)


TO_ACCEPTOR: Final[dict[Purpose, frozenset[type[Message]]]] = {
    Purpose.PEER: _members(
        ReplicationMessage,
        ReplicationBundle,
        ReplicaSnapshotMessage,
        BatchMessage,
        ElectionMessage,
        NodeMessage,
        HealingMessage,
    ),
    Purpose.CONTROL: _members(
        ElectionMessage,
        NodeMessage,
        GapReport,
        LeaderMoveMessage,
        TrimmingMessage,
        CopyReport,
        MachineMessage,
    ),
    Purpose.CLIENT: _members(PubMsg, ClientRequest, BatchRequest),
    Purpose.QUERY: _members(ClientRequest, BatchRequest),
    Purpose.OPERATOR: _members(ClientRequest, BatchRequest),
    Purpose.BIRTH: _members(BirthMessage),
}
"""What the side that was dialled takes. Nothing with a payload travels on control connections."""

TO_DIALLER: Final[dict[Purpose, frozenset[type[Message]]]] = {
    Purpose.PEER: _members(),
    Purpose.CONTROL: _members(),
    Purpose.CLIENT: _members(PubAck, CommandAck, CommandsAck, PubReject, ClientAnswer, BatchReply),
    Purpose.QUERY: _members(ClientAnswer, BatchReply),
    Purpose.OPERATOR: _members(ClientAnswer, BatchReply),
    Purpose.BIRTH: _members(BirthMessage),
}
"""What the side that dialled takes: nodes answer each other on what they dialled themselves."""


CLIENT_LANES: Final = (Purpose.CLIENT, Purpose.QUERY, Purpose.OPERATOR)
"""The connections that a client may have to a node."""


@dataclass(frozen=True, slots=True)
class Identity:
    """This node in a handshake; ``cluster_id`` is b"" before the cluster's birth (S0.7)."""

    node: NodeId
    cluster_id: bytes
    boot_id: bytes
    advertise: str
    level: int = LEVEL
    failure_domain: str = ""

    def hello(self, purpose: Purpose, dialled: str = "") -> Hello:
        """First frame of a connection of this node; ``dialled``: the node that it means."""
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            purpose=purpose,
            cluster_id=self.cluster_id,
            node=self.node,
            boot_id=self.boot_id,
            advertise=self.advertise,
            level=self.level,
            failure_domain=self.failure_domain,
            dialled=dialled,
        )


def client_hello(cluster_id: bytes = b"", purpose: Purpose = Purpose.CLIENT) -> Hello:
    """First frame of a client; with a cluster id, another cluster at that address refuses it."""
    assert purpose in CLIENT_LANES
    return Hello(
        protocol_version=PROTOCOL_VERSION,
        purpose=purpose,
        cluster_id=cluster_id,
        node="",
        boot_id=b"",
    )


def check_version(hello: Hello) -> Refusal | None:
    """Refuse another protocol version than ours."""
    if hello.protocol_version == PROTOCOL_VERSION:
        return None
    return Refusal(
        GoodbyeCode.UNSUPPORTED_VERSION,
        f"you speak protocol version {hello.protocol_version}, this node speaks "
        f"{PROTOCOL_VERSION}; install the same raftstore version on both sides",
    )


def check_dialler(
    hello: Hello,
    identity: Identity,
    peers: Iterable[NodeId],
    retired: Container[NodeId] = (),
) -> Refusal | None:
    """Decide about the first frame on an accepted connection (S0.1, S12, M27)."""
    refusal = check_version(hello)
    if refusal is not None:
        return refusal
    match hello.purpose:
        case Purpose.PEER | Purpose.CONTROL:
            if NodeId(hello.node) in retired and hello.cluster_id == identity.cluster_id:
                return _retired(hello)
            return _check_peer_cluster(hello, identity) or _check_peer(hello, identity, peers)
        case Purpose.CLIENT | Purpose.QUERY | Purpose.OPERATOR:
            if hello.cluster_id in (b"", identity.cluster_id):
                return None
            return _wrong_cluster(hello, identity)
        case Purpose.BIRTH:
            # Also answered after the birth: "I belong to a cluster already" is an answer (S0.7).
            return None
        case _:
            return Refusal(
                GoodbyeCode.UNKNOWN_PURPOSE,
                f"the purpose {hello.purpose!r} is not known; expected one of {', '.join(Purpose)}",
            )


def judge_dialler(
    hello: Hello,
    identity: Identity,
    peers: Iterable[NodeId],
    retired: Container[NodeId],
    on_stranger: Callable[[NodeId, str], None],
) -> Refusal | None:
    """The same, and report to ``on_stranger(node, address)`` who may have joined, or taken the
    place of another node, while this one was away."""
    refusal = check_dialler(hello, identity, peers, retired)
    if refusal is not None and refusal.code in STRANGE:
        on_stranger(NodeId(hello.node), hello.advertise)
    return refusal


def check_acceptor(hello: Hello, identity: Identity, expected: NodeId) -> Refusal | None:
    """Decide about the answer of a node that was dialled as ``expected`` (S0.1, S12)."""
    refusal = check_version(hello)
    if refusal is None and hello.cluster_id != identity.cluster_id:
        refusal = _wrong_cluster(hello, identity)
    if refusal is None and hello.node != expected:
        refusal = _wrong_node(hello.node, expected)
    return refusal


def ending(node: NodeId, *, is_retired: bool) -> Refusal:
    """Why what a peer has open ends. Retired is for ever, and its process stops; any other may
    come back when this node knows it again."""
    if is_retired:
        return Refusal(GoodbyeCode.RETIRED, f"{node} was retired from the cluster")
    text = f"{node} is no node of this cluster as far as this node knows; register it first"
    return Refusal(GoodbyeCode.UNKNOWN_NODE, text)


def _check_peer_cluster(hello: Hello, identity: Identity) -> Refusal | None:
    if not identity.cluster_id:
        return Refusal(
            GoodbyeCode.NO_CLUSTER,
            f"{identity.node} does not belong to a cluster yet; try again after its birth",
        )
    if hello.cluster_id != identity.cluster_id:
        return _wrong_cluster(hello, identity)
    return None


def _check_peer(hello: Hello, identity: Identity, peers: Iterable[NodeId]) -> Refusal | None:
    if hello.node == identity.node:
        return Refusal(
            GoodbyeCode.WRONG_NODE,
            f"{identity.node} was dialled by itself; correct the address it is known by",
        )
    # Before the connection is taken: it would end the one by which that peer means this node.
    if hello.dialled not in ("", identity.node):
        return _wrong_node(identity.node, NodeId(hello.dialled))
    known = tuple(peers)
    if hello.node in known:
        return None
    for peer in known:
        if node_name(peer) == node_name(NodeId(hello.node)):
            return _wrong_node(hello.node, peer)
    return Refusal(
        GoodbyeCode.UNKNOWN_NODE,
        f"{hello.node!r} is not a node of this cluster as far as {identity.node} knows; "
        f"register it first",
    )


def _retired(hello: Hello) -> Refusal:
    return Refusal(
        GoodbyeCode.RETIRED,
        f"{hello.node} was retired from this cluster and never comes back; stop it, and remove its "
        "data directory",
    )


def _wrong_cluster(hello: Hello, identity: Identity) -> Refusal:
    return Refusal(
        GoodbyeCode.WRONG_CLUSTER,
        f"you belong to cluster {hello.cluster_id.hex() or '(none)'}, "
        f"{identity.node or 'this client'} to {identity.cluster_id.hex() or '(none)'}; "
        "correct the address",
    )


def _wrong_node(node: str, expected: NodeId) -> Refusal:
    if node_name(NodeId(node)) == node_name(expected):
        return Refusal(
            GoodbyeCode.WRONG_STORE,
            f"the node is known as {expected}, but this is {node}, another store; "
            f"if that one's store is lost, `raftstore cluster replace {node_name(expected)}` "
            "prints a token by which this node takes its place (--join)",
        )
    return Refusal(
        GoodbyeCode.WRONG_NODE,
        f"expected {expected} at this address, but this is {node!r}; correct the address",
    )
