"""Nodes that join, drain and leave: what operators and joining nodes ask (M27, M28)."""

from __future__ import annotations

from raftstore.protocol.message import Message, Request
from raftstore.protocol.tags import tag_of
from raftstore.protocol.tickets import Key, Ticket
from raftstore.types import Count63, NodeId, RequestId, Seq, Small31, TimeoutMs


class MakeTicket(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: let one node join, within ``lifetime_ms`` from now. The same ticket again is fine.

    ``stored_key``: of the secret (``protocol.tickets``), which stays with who asks. ``replaces``:
    name or id of the node whose place is taken; empty: none.
    """

    ticket: Ticket
    stored_key: Key
    lifetime_ms: Count63
    timeout_ms: TimeoutMs
    replaces: str = ""
    is_forced: bool = False
    """Also where the node that is replaced is up, or its channels lose their quorum by it."""


class AskJoin(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Joining node: what must my proof cover?"""


class JoinNonce(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Another one on each connection, in each boot of the node that was asked."""

    request_id: RequestId
    nonce: Ticket


class Join(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Joining node: enter me. ``proof``: see ``protocol.tickets``; it covers all of it."""

    ticket: Ticket
    node: NodeId
    endpoint: str
    level: Small31
    proof: Key
    timeout_ms: TimeoutMs


class JoinAccepted(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The node is registered. ``number``: its own in the metadata channel (M30).

    ``founders`` are the creation configuration of the metadata channel, for ever; ``nodes`` are
    where the nodes of the cluster are now. Both are (node id, host:port).
    """

    request_id: RequestId
    founders: tuple[tuple[NodeId, str], ...]
    nodes: tuple[tuple[NodeId, str], ...]
    number: Seq
    version: Count63


class Drain(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: place no further replica on this node, or (``drains`` False) do so again."""

    node: str
    drains: bool
    timeout_ms: TimeoutMs


class Retire(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: this node leaves for ever; refused while a channel has a replica there."""

    node: str
    timeout_ms: TimeoutMs
