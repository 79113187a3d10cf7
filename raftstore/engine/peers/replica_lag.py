"""A bound on how far replicas may fall behind (BLOG-31): ``max_replica_lag`` of a table.

While a live replica has more rows to fetch than the bound, the leader takes no new writes of that
channel, so that the replica catches up instead of falling further behind. Publishers are asked
``overloaded``, which they retry with growing pauses: they write as fast as the slowest replica
stores. That has an end: a replica that stays beyond the bound for ``replication.lag_patience_ms``,
or that says that it cannot catch up (NATS-150), is no longer waited for, until it has caught up
again, so that one sick disk cannot stop a table.
Reads need nothing of this: their own bounds turn away from a replica that is too far behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raftstore.core.progress import ProgressView
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_ports import Tell
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.errors import OverloadedError, Refusal
from raftstore.types import ChannelId, NodeId, Term, node_name

WAITED_FOR: Final = "replica_waited_for"
LEFT_BEHIND: Final = "replica_left_behind"
WITHIN_BOUND: Final = "replica_within_bound"


@dataclass(slots=True)
class _Late:
    """One replica beyond the bound."""

    since_ms: int
    is_left: bool = False


@dataclass(slots=True)
class _Watched:
    """One channel in one term."""

    term: Term
    late: dict[NodeId, _Late] = field(default_factory=dict)


class ReplicaLagGuard:
    """Says which new writes have to wait for a replica; only channels with late ones cost state."""

    def __init__(self, watch: PeerWatch, tell: Tell, patience_ms: int) -> None:
        self._watch = watch
        self._tell_event = tell
        self._patience_ms = patience_ms
        self._channels: dict[ChannelId, _Watched] = {}
        self.refused = 0
        """Writes that were answered with a wait, since the start."""

    def refusal(self, led: ChannelRunner, bound: int | None, now_ms: int) -> Refusal | None:
        """Why a new write of this channel must wait; None: it may be sequenced."""
        if bound is None:
            self._channels.pop(led.channel, None)
            return None
        watched = self._channels.get(led.channel)
        if watched is None or watched.term != led.elector.term:
            # S3.4: a new term knows nothing of the followers; who was late shows it again.
            watched = _Watched(led.elector.term)
        waited_for: tuple[NodeId, int] | None = None
        for node, progress in led.core.progress().items():
            behind = self._behind(watched, led, node, progress, bound, now_ms)
            if behind is not None and (waited_for is None or behind > waited_for[1]):
                waited_for = node, behind
        if watched.late:
            self._channels[led.channel] = watched
        else:
            self._channels.pop(led.channel, None)
        if waited_for is None:
            return None
        self.refused += 1
        node, behind = waited_for
        text = (
            f"replica {node_name(node)} of {led.name} is {behind} rows behind, the table's "
            f"max_replica_lag is {bound}: writes wait for it, at most {self._patience_ms} ms "
            "(replication.lag_patience_ms); retry"
        )
        return Refusal(OverloadedError, text)

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Nothing of it is watched any more."""
        self._channels.pop(runner.channel, None)

    def _behind(
        self,
        watched: _Watched,
        led: ChannelRunner,
        node: NodeId,
        progress: ProgressView,
        bound: int,
        now_ms: int,
    ) -> int | None:
        """Rows that the replica is behind, if writes have to wait for it."""
        # Unheard of in this term its match is no measure; and the dead catch up when they are back.
        behind = led.core.last_seq - progress.match_seq
        if progress.heard_ms is None or behind <= bound or not self._watch.is_up(node):
            if watched.late.pop(node, None) is not None and behind <= bound:
                self._tell(WITHIN_BOUND, led, node, behind, bound)
            return None
        late = watched.late.get(node)
        if late is None:
            late = watched.late[node] = _Late(now_ms)
            self._tell(WAITED_FOR, led, node, behind, bound)
        has_waited = now_ms - late.since_ms >= self._patience_ms
        if not late.is_left and (has_waited or progress.cannot_complete):
            late.is_left = True
            self._tell(LEFT_BEHIND, led, node, behind, bound)
        return None if late.is_left else behind

    def _tell(self, name: str, led: ChannelRunner, node: NodeId, behind: int, bound: int) -> None:
        self._tell_event(
            name,
            channel=led.name,
            replica=node_name(node),
            rows_behind=behind,
            max_replica_lag=bound,
        )
