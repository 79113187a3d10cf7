"""One line in the log when two nodes cannot talk because their versions differ.

Such a connection is opened and lost again for as long as both run, so one line for each boot of the
peer is enough, and none at all would leave an operator with a replica that never catches up.
"""

from __future__ import annotations

import logging

from raftstore.transport.connection import FramedProtocol
from raftstore.transport.handshake import GoodbyeCode
from raftstore.transport.log_fields import fields
from raftstore.types import NodeId, node_name

logger = logging.getLogger("raftstore.transport")


class VersionNotes:
    """What was told already, per peer; bounded by the number of peers."""

    def __init__(self) -> None:
        self._told: dict[NodeId, bytes] = {}

    def on_closed(self, peer: NodeId, connection: FramedProtocol) -> None:
        """A connection that was open has ended; most reasons are none of ours."""
        reason, remote = connection.reason, connection.remote
        if reason is None or reason.code != GoodbyeCode.UNSUPPORTED_VERSION or remote is None:
            return
        if self._told.get(peer) == remote.boot_id:
            return
        self._told[peer] = remote.boot_id
        older = node_name(peer) if reason.by_peer else "this node"
        logger.warning(
            "versions differ",
            extra=fields(
                peer=node_name(peer),
                code=str(reason.code),
                reason=reason.message,
                remedy=f"run a newer version on {older}",
            ),
        )
