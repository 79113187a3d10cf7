"""Writes that reached followers and not the leader to whom they are addressed (S5.6, NATS-064).

A follower that holds a write for its leader that no StoreRequest names offers it to that
leader, once. The leader fetches what it does not know, and judges it as if the publisher's message
had come late: the answer goes back through the follower. Nothing is sequenced by anybody else.

Bounds: ``PAYLOADS_MAX`` writes of an offer and under way at the leader,
``replication.sync_batch_bytes_max`` bytes at once, ``RELAYED_MAX`` answers that a follower expects.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftstore.core.effects import Reply, TakeWrite
from raftstore.core.live_queue import LiveQueue
from raftstore.core.pending import PendingPayloads
from raftstore.core.sequencer import Sequencer
from raftstore.core.state import ChannelState
from raftstore.protocol.payload_repair import (
    PAYLOADS_MAX,
    OfferedWrite,
    PayloadResponse,
    RelayedAck,
    RelayedWrite,
    WriteOffer,
    WriteRequest,
)
from raftstore.types import FollowerMode, Guid, NodeId

RELAYED_MAX: Final = 256
"""Writes whose outcome a follower expects from the leader."""


class OfferingFollower:
    """The writes that a follower holds for its leader."""

    def __init__(self, state: ChannelState, queue: LiveQueue, payloads: PendingPayloads) -> None:
        self._state = state
        self._queue = queue
        self._payloads = payloads
        self._relayed: dict[Guid, int] = {}
        """Publisher of each write that was relayed, the oldest first."""

    def on_timer(self) -> None:
        """Offer what no StoreRequest of the leader has named for ``replication.write_offer_ms``."""
        state = self._state
        due = self._payloads.take_offers(state.now_ms)
        if not due or state.leader is None or state.mode is not FollowerMode.STEADY:
            return  # a follower that catches up does not know what the leader has
        queued = {entry.meta.guid for entry in self._queue}
        # S5.6: only the leader addressed, in the term addressed, may give the write a seq.
        offers = [
            OfferedWrite(write.guid, write.digest, len(write.payload), write.attempt)
            for write in due
            if (write.leader, write.term) == (state.leader, state.term)
            and write.guid not in queued
            and state.dedupe.find(write.guid) is None
        ]
        if offers:
            offer = WriteOffer(state.channel, state.term, tuple(offers[:PAYLOADS_MAX]))
            state.send_if_known(state.leader, offer)

    def on_request(self, request: WriteRequest) -> None:
        """Relay what the leader asks for and is still held."""
        state = self._state
        left = state.settings.sync_batch_bytes_max
        assert state.leader is not None, "asked by no leader"
        for wanted in request.writes[:PAYLOADS_MAX]:
            found = self._payloads.write_of(wanted.guid, wanted.digest)
            if found is None:
                continue
            client, write = found
            if (write.leader, write.term) != (state.leader, state.term):
                continue  # S5.6: it was addressed to another
            if left <= 0:
                return
            left -= len(write.payload)
            self._relayed[write.guid] = client
            if len(self._relayed) > RELAYED_MAX:
                del self._relayed[next(iter(self._relayed))]
            state.send_if_known(state.leader, RelayedWrite(state.channel, state.term, write))

    def on_ack(self, message: RelayedAck) -> None:
        """S4.4: the leader's OK, handed to the publisher that waits for it."""
        client = self._relayed.pop(message.ack.guid, None)
        if client is not None:
            self._state.emit(Reply(client, message.ack))


class _Asked(NamedTuple):
    node: NodeId
    write: OfferedWrite
    until_ms: int


class FetchingLeader:
    """The writes that a leader fetches from followers."""

    def __init__(self, state: ChannelState, sequencer: Sequencer) -> None:
        self._state = state
        self._sequencer = sequencer
        self._asked: dict[Guid, _Asked] = {}  # the longest ago first

    @property
    def asked(self) -> int:
        """Writes that were asked for and did not come yet."""
        return len(self._asked)

    def on_message(
        self, sender: NodeId, message: WriteOffer | RelayedWrite | PayloadResponse
    ) -> None:
        """A follower's part; a leader asked for no payload."""
        if isinstance(message, WriteOffer):
            self.on_offer(sender, message)
        elif isinstance(message, RelayedWrite):
            self.on_relayed(sender, message)

    def on_offer(self, sender: NodeId, offer: WriteOffer) -> None:
        """Ask for those of which nothing is known here."""
        state, asked = self._state, self._asked
        while asked and (oldest := next(iter(asked.values()))).until_ms <= state.now_ms:
            del asked[oldest.write.guid]
        until_ms = state.now_ms + state.settings.payload_request_timeout_ms
        wanted: list[OfferedWrite] = []
        for write in offer.writes[:PAYLOADS_MAX]:
            if write.guid in asked or len(asked) >= PAYLOADS_MAX:
                continue
            if self._sequencer.knows(write.guid, write.attempt):
                continue
            asked[write.guid] = _Asked(sender, write, until_ms)
            wanted.append(write)
        if wanted:
            state.send_if_known(sender, WriteRequest(state.channel, state.term, tuple(wanted)))

    def on_relayed(self, sender: NodeId, message: RelayedWrite) -> None:
        """A write that was asked for: it is judged as one that came from its publisher."""
        state, write = self._state, message.write
        asked = self._asked.get(write.guid)
        if asked is None or asked.node != sender:
            return
        described = (asked.write.digest, asked.write.length, asked.write.attempt)
        if (write.digest, len(write.payload), write.attempt) != described:
            return
        # S5.6: only the leader addressed, in the term addressed, may give the write a seq.
        if (write.channel, write.leader, write.term) != (state.channel, state.me, state.term):
            return
        del self._asked[write.guid]
        state.emit(TakeWrite(sender, write))
