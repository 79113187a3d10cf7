"""Nodes of several levels in one simulated world: what a node of a level can read.

A node sends nothing to a peer that is above the level of that peer (``SimTransport``), and no
record comes to a node that cannot read it.
"""

from __future__ import annotations

from raftstore.policy.levels import LEVEL_OF_KIND
from raftstore.protocol.codec import LEVEL_OF_MESSAGE
from raftstore.protocol.message import Message
from raftstore.protocol.replication import MsgSync, ReplicationBundle, StoreRequest
from raftstore.testing.invariants import InvariantError
from raftstore.types import RecordKind


def is_readable(message: Message, level: int) -> bool:
    """Whether a node of this level knows the kind of message."""
    return LEVEL_OF_MESSAGE.get(type(message), 0) <= level


def newest_kind(message: Message) -> RecordKind | None:
    """The kind of record in a peer's message that needs the highest level; None: it has none."""
    kinds = [kind for kind in _kinds_in(message) if kind in LEVEL_OF_KIND]
    return max(kinds, key=LEVEL_OF_KIND.__getitem__, default=None)


def _kinds_in(message: Message) -> list[RecordKind]:
    if isinstance(message, StoreRequest):
        return [record.kind for record in message.records]
    if isinstance(message, MsgSync):
        return [record.kind for record in message.records]
    if isinstance(message, ReplicationBundle):
        return [kind for request in message.store_requests for kind in _kinds_in(request)]
    return []


def check_records(node: str, level: int, message: Message) -> None:
    """A node that was never at a level meets no record of it: nothing was sequenced before."""
    kind = newest_kind(message)
    if kind is not None and LEVEL_OF_KIND[kind] > level:
        text = f"levels: a record of kind {kind.name} came to {node} at level {level}"
        raise InvariantError(text)
