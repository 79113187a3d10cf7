"""Payloads that clients' writes make a node hold, over all of its channels.

A node holds a payload that was addressed to another leader until a StoreRequest names it (a cache,
S5.3), and answers for one that is addressed to itself until its outcome is known. Each channel has
bounds of its own (``replication.pending_bytes_max``, ``replication.uncommitted_bytes_max``); a node
has thousands of channels, so the bytes are counted here for each client and for all of them, too.
"""

from __future__ import annotations

from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.engine.shares import Shares
from raftstore.errors import OverloadedError, Refusal
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import ChannelId, Guid

WRITE_BYTES = 256
"""What a write without a payload counts: its place in tables and queues."""


class ClientWrites:
    """The payloads of one node by client. Implements ``core.pending.PayloadRoom`` for copies."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` is of one client."""
        self._bytes_max = bytes_max
        self._held: Shares[tuple[ChannelId, Guid, bytes]] = Shares(
            "bytes of writes", "replication.client_payload_bytes_max"
        )

    @property
    def held_bytes(self) -> int:
        """Bytes that are held for all clients."""
        return self._held.total

    def holds_for(self, client: int) -> bool:
        """Whether the client waits for a write, or a copy of one is held."""
        return self._held.amount_of(client) > 0

    # --- addressed to this node -------------------------------------------------------------------

    def begin(self, client: int, message: PubMsg) -> Refusal | None:
        """A write to be answered here is counted until ``settled``; code and text if there is no
        room for a new one. One that is under way already has its place."""
        item = (message.channel, message.guid, b"")
        if self._held.holds(client, item):
            return None
        size = len(message.payload) + WRITE_BYTES
        full = self._held.refusal(client, self._bytes_max, size)
        if full is not None:
            return Refusal(OverloadedError, full)
        self._held.take(client, item, size)
        return None

    def settled(self, client: int, message: PubAck | PubReject | PubMsg) -> None:
        """The client was answered, or gets no answer."""
        self._held.give(client, (message.channel, message.guid, b""))

    def on_client_gone(self, client: int) -> None:
        """Forget the client's answers. Copies stay until they are named or too old: the leader
        may have given their write its place."""
        for item in self._held.of(client):
            if not item[2]:
                self._held.give(client, item)

    # --- addressed to others ----------------------------------------------------------------------

    def admit(self, client: int, channel: ChannelId, guid: Guid, digest: bytes, size: int) -> bool:
        """Whether a copy may be held; then it is counted until ``release``."""
        item = (channel, guid, digest)
        if client == CLIENT_HANDLE_SELF or self._held.holds(client, item):
            return True  # what a leader relays has the bound of its channel
        if self._held.refusal(client, self._bytes_max, size + WRITE_BYTES) is not None:
            return False
        self._held.take(client, item, size + WRITE_BYTES)
        return True

    def release(self, client: int, channel: ChannelId, guid: Guid, digest: bytes) -> None:
        """The copy is in the log, or was dropped."""
        self._held.give(client, (channel, guid, digest))
