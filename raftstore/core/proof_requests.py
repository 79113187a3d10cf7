"""Proofs of the commit position and of their time: by round trips, never by arrival (S7.3).

A pair says: everything committed before t, on this node's own monotonic clock, is at or below seq.
Only a round trip makes one. At the leader it is a ReadIndex round: t is when it started; or a
record of its own term that a quorum stored: t is when it was *appended*, for a voter that knew of a
higher term would not have stored it, so none had committed anything by then. At any other replica
it is a FreshRequest: t is when it was *sent*, for the leader that answers it starts a ReadIndex
round after it came. So no message that waited somewhere, however long, makes a pair.

A node that stood still (SIGSTOP, a sleeping machine, a long turn) finds messages in its buffers
that are as old as the stop was long, and its leadership may be over. It then trusts no report of a
leader, its own included, until a pair is newer than the moment at which it woke.
"""

from __future__ import annotations

from raftstore.core.effects import FreshnessProven
from raftstore.core.state import ChannelState
from raftstore.protocol.replication import FreshReply, FreshRequest
from raftstore.types import NodeId, Role


class ProofRequests:
    """A replica's requests to the leader for a proof: one at a time, only while somebody waits.

    Round ids are never used twice, not even by the process before this one (``first_round_id``):
    a reply may come late (S12), and one to an older request proves less than it would claim.
    """

    def __init__(self, state: ChannelState, first_round_id: int) -> None:
        self._state = state
        self._round_id = first_round_id
        self._sent_ms: int | None = None
        """When the request that is out was first sent; None while none is."""
        self._repeat_at_ms = 0
        self.until_ms: int | None = None
        """Somebody waits for a proof until then; None: nobody does, and nothing is due."""

    def request(self, until_ms: int) -> None:
        """Ask now unless a request is out, and repeat it until the reply, or until then."""
        self.until_ms = max(until_ms, self.until_ms or until_ms)
        if self._sent_ms is None:
            self._begin()

    def restart(self) -> None:
        """A new leader, a new connection, or the node stood still: what was out proves nothing."""
        self._sent_ms = None
        if self.until_ms is not None:
            self._begin()

    def on_reply(self, sender: NodeId, reply: FreshReply) -> None:
        """When the request was sent, nothing was committed above ``read_seq``."""
        state = self._state
        # S7.3: only the leader of the term is believed, and only in answer to the present request.
        if sender != state.leader or self._sent_ms is None or reply.round_id != self._round_id:
            return
        state.freshness.learn(self._sent_ms, reply.read_seq)
        state.leader_commit = max(state.leader_commit, reply.read_seq)
        state.batches.reported(reply.read_seq, reply.batches)
        state.emit(FreshnessProven(self._sent_ms))
        self._sent_ms = self.until_ms = None

    def on_timer(self) -> None:
        """Repeat what was not answered; stop when nobody waits any more."""
        now_ms = self._state.now_ms
        if self.until_ms is not None and self.until_ms <= now_ms:
            self._sent_ms = self.until_ms = None
        elif self._sent_ms is not None and self._repeat_at_ms <= now_ms:
            self._send()

    def next_deadline_ms(self) -> int | None:
        """Next repetition, or the end of the last wait."""
        if self._sent_ms is None or self.until_ms is None:
            return self.until_ms
        return min(self._repeat_at_ms, self.until_ms)

    def _begin(self) -> None:
        state = self._state
        if state.role is Role.LEADER or state.leader is None or state.stopped is not None:
            return  # a leader proves it by its own rounds; without one it begins when one is known
        assert self._sent_ms is None, "two proofs are asked for at a time (S7.3)"
        self._round_id += 1
        self._sent_ms = state.now_ms
        self._send()

    def _send(self) -> None:
        state = self._state
        assert state.leader is not None, "a proof is asked of no node"
        assert state.role is not Role.LEADER, "a leader proves its position by its own rounds"
        message = FreshRequest(state.channel, state.term, self._round_id, state.number)
        state.send(state.leader, message)
        self._repeat_at_ms = state.now_ms + state.settings.read_index_retry_ms
