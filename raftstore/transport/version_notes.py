"""One line in the log when two nodes cannot talk: their versions differ, or one sends nonsense.

Such a connection is opened and lost again for as long as both run, so one line for each boot of the
peer and reason is enough, and none at all would leave an operator with a replica that never catches
up.
"""

from __future__ import annotations

import logging
from typing import Final

from raftstore.transport.connection import FramedProtocol
from raftstore.transport.handshake import GoodbyeCode
from raftstore.transport.log_fields import fields
from raftstore.types import NodeId, node_name

logger = logging.getLogger("raftstore.transport")


_LOGGED: Final = frozenset({GoodbyeCode.UNSUPPORTED_VERSION, GoodbyeCode.MALFORMED})
"""Reasons that are reported; others pass, or are reported elsewhere."""


class VersionNotes:
    """Notes reported already, per peer and reason; bounded by the number of peers."""

    def __init__(self) -> None:
        self._logged: dict[tuple[NodeId, str], bytes] = {}

    def forget(self, peer: NodeId) -> None:
        """Drop the notes of a node that is no peer any more."""
        for noted in [noted for noted in self._logged if noted[0] == peer]:
            del self._logged[noted]

    def on_closed(self, peer: NodeId, connection: FramedProtocol) -> None:
        """A connection that was open has ended; most reasons are none of ours."""
        reason, remote = connection.reason, connection.remote
        if reason is None or remote is None or reason.code not in _LOGGED:
            return
        if self._logged.get((peer, reason.code)) == remote.boot_id:
            return
        self._logged[peer, reason.code] = remote.boot_id
        if reason.code == GoodbyeCode.UNSUPPORTED_VERSION:
            older = node_name(peer) if reason.by_peer else "this node"
            title, remedy = "versions differ", f"run a newer version on {older}"
        else:
            wrong = "this node" if reason.by_peer else node_name(peer)
            title = "malformed message"
            remedy = f"see whether {wrong} is what it says it is, and run one version on all nodes"
        logger.warning(
            title,
            extra=fields(
                peer=node_name(peer),
                code=str(reason.code),
                reason=reason.message,
                remedy=remedy,
            ),
        )
