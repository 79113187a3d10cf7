"""Liveness of peers: KLIP-12's heartbeat windows, by arrival on the local monotonic clock.

The window of a peer is cut into slots of one send interval, counted back from now. A slot without
an arrival is a missed heartbeat. Half an interval is allowed for delays, so a heartbeat on its way
does not count as missed yet. ``missed_threshold`` missed slots in a row up to now make a peer down
(KLIP-27), ``received_threshold`` received ones make it up again (KLIP-28). Clocks of other machines
play no part (KLIP-31).

Heartbeats do not count as missed while this node was starved of its processor: then they wait
unread in its own sockets and queues, and leave late. Their reader says up to when it has read, and
how late it was itself in the last window (``listened``): a slot is missed only so much later. A
node that is never late judges by the settings alone (the local health of Lifeguard).

Everything said here is suspicion from one node's viewpoint: it starts elections and orders queries,
but only votes decide who leads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile

from raftstore.config import HeartbeatSettings
from raftstore.types import NodeId


class HealthState(Enum):
    """This node's belief about a peer."""

    UNKNOWN = "unknown"
    """Discovered less than a window ago; taken for up (KLIP-28)."""
    UP = "up"
    SUSPECT = "suspect"
    """Its connection broke and no heartbeat came since; asked last, not down yet (KLIP-49)."""
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A peer came up or went down, and why."""

    node: NodeId
    up: bool
    reason: str


@dataclass(slots=True)
class _Peer:
    state: HealthState
    since_ms: int
    """Missed slots count from here: discovered, last heard before its connection broke, or this
    node stood still itself."""
    changed_ms: int
    arrivals: deque[int]
    discovered_ms: int
    last_heard_ms: int | None = None
    skew_ms: int | None = None
    missed: int = 0


@dataclass(slots=True)
class HealthTable:
    """All peers of a node. ``check`` decides; call it every check interval."""

    settings: HeartbeatSettings
    _peers: dict[NodeId, _Peer] = field(default_factory=dict)
    _checked_ms: int | None = None
    _excused_ms: int = -(10**12)
    _listened_ms: int | None = None
    """None: the transport does not report it, and what is not here has not come."""
    _late_ms: int = 0

    # --- what happens ----------------------------------------------------------------------------

    def add_peer(self, node: NodeId, now_ms: int) -> None:
        """A node was discovered: it counts as up until it is found silent (KLIP-28)."""
        if node not in self._peers:
            # KLIP-29: bounded memory; ``_remember`` keeps two for each slot and half of one more.
            arrivals: deque[int] = deque(maxlen=2 * (self._slots() + 1))
            self._peers[node] = _Peer(HealthState.UNKNOWN, now_ms, now_ms, arrivals, now_ms)

    def remove_peer(self, node: NodeId) -> None:
        """The node has left the cluster; its silence is no failure."""
        self._peers.pop(node, None)

    def on_heartbeat(self, node: NodeId, arrived_ms: int, *, skew_ms: int | None = None) -> None:
        """A heartbeat arrived; from an unknown node it is ignored.

        ``skew_ms`` is the sender's clock minus ours, for display only (KLIP-31).
        """
        peer = self._peers.get(node)
        if peer is None:
            return
        self._remember(peer.arrivals, arrived_ms)
        if peer.last_heard_ms is not None:
            # Half an interval is allowed for delays, as where they are judged.
            late_ms = arrived_ms - peer.last_heard_ms - self.settings.send_interval_ms // 2
            peer.missed += max(0, late_ms // self.settings.send_interval_ms)
        peer.last_heard_ms = max(arrived_ms, peer.last_heard_ms or arrived_ms)
        if skew_ms is not None:
            peer.skew_ms = skew_ms

    def listened(self, until_ms: int, late_ms: int) -> None:
        """Every heartbeat that had come by then was reported before this.

        ``late_ms``: how late this node's own heartbeats were at worst in the last window.
        """
        self._listened_ms = until_ms
        self._late_ms = min(late_ms, self.settings.window_ms)

    def connection_lost(self, node: NodeId, now_ms: int, *, refused: bool) -> HealthChange | None:
        """A connection broke, or was refused because nobody listens there any more (KLIP-49).

        Refused is down at once: no process is there. Broken is suspect. Heartbeats that came before
        are forgotten: they say nothing about the peer behind the next connection.
        """
        peer = self._peers.get(node)
        if peer is None or peer.state is HealthState.DOWN:
            return None
        peer.arrivals.clear()
        if peer.last_heard_ms is not None:
            peer.since_ms = max(peer.since_ms, peer.last_heard_ms)
        if not refused:
            self._set(peer, HealthState.SUSPECT, now_ms)
            return None
        self._set(peer, HealthState.DOWN, now_ms)
        return HealthChange(node, up=False, reason="connection refused")

    def check(self, now_ms: int) -> list[HealthChange]:
        """KLIP-12's decide-status for every peer; return those that went up or down."""
        limit_ms = self.settings.missed_threshold * self.settings.send_interval_ms
        # Checks are an interval apart when all is well; only what is beyond it is a standstill.
        late_ms = 0 if self._checked_ms is None else now_ms - self._checked_ms
        stood_still = late_ms > limit_ms + self.settings.check_interval_ms
        self._checked_ms = now_ms
        if stood_still and now_ms - self._excused_ms >= self.settings.window_ms:
            # This node itself stood still: what it did not read does not count as missed. Once per
            # window only, or a node that is always late would never find anybody dead.
            self._excused_ms = now_ms
            for peer in self._peers.values():
                peer.since_ms = now_ms
        heard_ms = self._heard_until(now_ms)
        changes = (
            self._decide(node, peer, heard_ms, now_ms)
            for node, peer in self._peers.items()
            if not _is_well(peer, heard_ms, limit_ms)
        )
        return [change for change in changes if change is not None]

    # --- what is known ---------------------------------------------------------------------------

    def is_up(self, node: NodeId) -> bool:
        """Not down; a node nobody discovered is not up."""
        return self.state(node) not in (HealthState.DOWN, None)

    def state(self, node: NodeId) -> HealthState | None:
        """The belief about a peer; None for a node that was never discovered."""
        peer = self._peers.get(node)
        return None if peer is None else peer.state

    def since_ms(self, node: NodeId) -> int | None:
        """When the peer's state began (local monotonic clock)."""
        peer = self._peers.get(node)
        return None if peer is None else peer.changed_ms

    def last_heard_ms(self, node: NodeId) -> int | None:
        """When the last heartbeat arrived; None if there was none."""
        peer = self._peers.get(node)
        return None if peer is None else peer.last_heard_ms

    def skew_ms(self, node: NodeId) -> int | None:
        """The peer's clock minus ours, as far as its heartbeats reported; for display only."""
        peer = self._peers.get(node)
        return None if peer is None else peer.skew_ms

    def missed_total(self, node: NodeId) -> int:
        """Heartbeats that were due between two that came; a silent peer's are counted when it is
        heard again."""
        peer = self._peers.get(node)
        return 0 if peer is None else peer.missed

    # --- decide-status ---------------------------------------------------------------------------

    def _heard_until(self, now_ms: int) -> int:
        """Up to when silence is judged. A node that read nothing for a whole window excuses
        none."""
        listened_ms = self._listened_ms
        if listened_ms is None or now_ms - listened_ms > self.settings.window_ms:
            return now_ms
        return min(listened_ms, now_ms) - self._late_ms

    def _slots(self) -> int:
        return max(1, self.settings.window_ms // self.settings.send_interval_ms)

    def _remember(self, arrivals: deque[int], arrived_ms: int) -> None:
        """The newest one takes the place of another less than an interval after the one before.

        So no slot in which anything came is without one, however often the peer sends.
        """
        interval_ms = self.settings.send_interval_ms
        if len(arrivals) > 1 and arrived_ms - arrivals[-2] < interval_ms:
            arrivals[-1] = max(arrivals[-1], arrived_ms)
        else:
            arrivals.append(arrived_ms)

    def _decide(self, node: NodeId, peer: _Peer, heard_ms: int, now_ms: int) -> HealthChange | None:
        """``heard_ms``: up to when silence counts; what came later still came."""
        # KLIP-29: older heartbeats are expunged, as late as the oldest slot allows for delays.
        expired_ms = heard_ms - self.settings.window_ms - self.settings.send_interval_ms // 2
        while peer.arrivals and peer.arrivals[0] <= expired_ms:
            peer.arrivals.popleft()
        if not peer.arrivals and peer.state is HealthState.DOWN:
            return None  # nothing came: nothing can bring it up
        # Slots since the newest one in which a heartbeat arrived (KLIP-30).
        newest = self._slot_of(max(peer.arrivals), heard_ms) if peer.arrivals else self._slots()
        missed = min(newest, self._slots())
        # Slots that began before anything could come from the peer cannot have been missed.
        missed = min(missed, self._slot_of(peer.since_ms, heard_ms))
        settings = self.settings
        if peer.state is HealthState.DOWN:
            received = sum(1 for _ in takewhile(bool, self._heard_slots(peer.arrivals, now_ms)))
            if received < settings.received_threshold:
                return None
            self._set(peer, HealthState.UP, now_ms)
            return HealthChange(node, up=True, reason=f"{received} heartbeats in a row")
        if missed >= settings.missed_threshold:  # KLIP-27: at the threshold, not above it
            self._set(peer, HealthState.DOWN, now_ms)
            return HealthChange(node, up=False, reason=f"{missed} heartbeats missed in a row")
        heard_again = peer.state is HealthState.SUSPECT and bool(peer.arrivals)
        first_window_ends_ms = peer.discovered_ms + settings.window_ms
        if heard_again or (peer.state is HealthState.UNKNOWN and now_ms >= first_window_ends_ms):
            self._set(peer, HealthState.UP, now_ms)
        return None

    def _heard_slots(self, arrivals: Iterable[int], now_ms: int) -> list[bool]:
        """Per slot of the window, newest first, whether a heartbeat arrived in it (KLIP-30)."""
        heard = [False] * self._slots()
        for arrived_ms in arrivals:
            slot = self._slot_of(arrived_ms, now_ms)
            if slot < len(heard):
                heard[slot] = True
        return heard

    def _slot_of(self, moment_ms: int, now_ms: int) -> int:
        """Slots that ended after a moment; half an interval is allowed for delays."""
        interval_ms = self.settings.send_interval_ms
        return max(0, now_ms - interval_ms // 2 - moment_ms) // interval_ms

    @staticmethod
    def _set(peer: _Peer, state: HealthState, now_ms: int) -> None:
        peer.state = state
        peer.changed_ms = now_ms


def _is_well(peer: _Peer, now_ms: int, limit_ms: int) -> bool:
    """Up, and its last sign is too recent for the threshold of missed slots: there is nothing to
    decide."""
    arrivals = peer.arrivals
    return peer.state is HealthState.UP and bool(arrivals) and now_ms - arrivals[-1] < limit_ms
