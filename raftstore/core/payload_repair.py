"""Asking other replicas for payloads that did not come, before catching up (S5.4, NATS-205).

A follower has the metadata of a record and not its payload. It asks one replica after another for
it and for the others that its live queue lacks, then catches up. Bounds: ``PAYLOADS_MAX`` payloads
and ``replication.sync_batch_bytes_max`` bytes of a request, ``SOURCES_MAX`` replicas, and
``replication.payload_request_timeout_ms`` for each.

A payload is named by guid, digest and length (S5.2), so it does not matter who gives it.
"""

from __future__ import annotations

from typing import Final

from raftstore.core.catch_up import payload_of
from raftstore.core.chain import digest_of
from raftstore.core.effects import AskPayloads, GivePayloads
from raftstore.core.live_queue import LiveQueue
from raftstore.core.pending import PendingPayloads
from raftstore.core.state import ChannelState
from raftstore.protocol.payload_repair import (
    PAYLOADS_MAX,
    FoundPayload,
    PayloadRequest,
    PayloadResponse,
    WantedPayload,
)
from raftstore.types import NodeId, Seq

SOURCES_MAX: Final = 3
"""Replicas that are asked for one payload before the follower catches up."""


class PayloadRepair:
    """The missing payloads of one follower under one leader."""

    def __init__(self, state: ChannelState, queue: LiveQueue, payloads: PendingPayloads) -> None:
        self._state = state
        self._queue = queue
        self._payloads = payloads
        self._seq = Seq(0)
        """Of the head of the live queue whose payload is asked for; 0: none is."""
        self._asked: list[NodeId] = []
        self._request: PayloadRequest | None = None

    def begin(self, seq: Seq) -> bool:
        """Ask the next replica for the payload of ``seq``, the head of the live queue; False: all
        that may be asked were, or too many payloads are missing."""
        if seq != self._seq:
            self._seq, self._asked = seq, []
        self._request = None
        if len(self._asked) >= SOURCES_MAX or len(self._missing()) > PAYLOADS_MAX:
            return False
        self._state.emit(AskPayloads(seq, tuple(self._asked)))
        return True

    def end(self) -> None:
        """The payload came, or the follower catches up."""
        self._seq, self._asked, self._request = Seq(0), [], None

    def ask(self, source: NodeId) -> None:
        """Send the request to the replica that was chosen."""
        state = self._state
        self._asked.append(source)
        state.sync_request_id += 1
        self._request = PayloadRequest(
            channel=state.channel,
            term=state.term,
            request_id=state.sync_request_id,
            wanted=self._missing(),
            max_bytes=state.settings.sync_batch_bytes_max,
        )
        state.send_if_known(source, self._request)

    def awaits_source(self, seq: Seq) -> bool:
        """Whether it is open who is asked for the payload of ``seq``."""
        return seq == self._seq != 0 and self._request is None

    def on_response(self, sender: NodeId, response: PayloadResponse) -> bool:
        """Hold what was asked for and nothing else; True if this answers the request."""
        request = self._request
        if request is None or response.request_id != request.request_id:
            return False
        if sender != self._asked[-1]:
            return False
        self._request = None
        wanted = {(each.guid, each.digest, each.length) for each in self._missing()}
        for found in response.payloads:
            # S5.2: guid, digest and length are those of the StoreRequest, and the digest is true.
            if (found.guid, found.digest, len(found.payload)) not in wanted:
                continue
            if digest_of(found.payload) != found.digest:
                continue
            self._payloads.hold(found.guid, found.digest, found.payload, self._state.now_ms)
            self._state.payloads_repaired += 1
        return True

    def _missing(self) -> tuple[WantedPayload, ...]:
        """Payloads that the live queue lacks, its head first; at most one more than asked for."""
        missing: list[WantedPayload] = []
        for entry in self._queue:
            meta = entry.meta
            if payload_of(self._payloads, entry) is None:
                missing.append(WantedPayload(meta.base_seq, meta.guid, meta.digest, meta.length))
                if len(missing) > PAYLOADS_MAX:
                    break
        return tuple(missing)


def give_payloads(
    state: ChannelState, payloads: PendingPayloads, sender: NodeId, request: PayloadRequest
) -> None:
    """Answer with what is held here, in the log or in front of it; in any role.

    The engine reads what is in the log. Nothing that a crash could take back is revealed: what is
    given is what the publisher sent (S0.5).
    """
    left = min(request.max_bytes, state.settings.sync_batch_bytes_max)
    held: list[FoundPayload] = []
    stored: list[WantedPayload] = []
    for wanted in request.wanted[:PAYLOADS_MAX]:
        payload = payloads.find(wanted.guid, wanted.digest, wanted.length)
        if payload is None:
            if state.base.seq < wanted.seq <= state.last_seq:
                stored.append(wanted)
            continue
        left -= len(payload)
        if held and left < 0:
            break
        held.append(FoundPayload(wanted.guid, wanted.digest, payload))
    if held and left <= 0:
        stored = []
    state.flush_batch()  # what the engine reads is in the log then
    state.emit(
        GivePayloads(sender, state.term, request.request_id, tuple(held), tuple(stored), left)
    )
