"""Sizes of what a replica holds, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raftstore.core.live_queue import LiveQueueStatistics
from raftstore.core.pending import PendingStatistics
from raftstore.types import Seq


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """Sizes of what a replica holds in memory, for status."""

    pending_payloads: PendingStatistics
    live_queue: LiveQueueStatistics
    uncommitted_records: int
    uncommitted_bytes: int
    waiting_publishers: int
    producer_sessions: int
    outcomes: int
    """Records by which repeated writes would be recognised (S4.5)."""
    repeated_writes: int
    """Writes since the start that were recognised as repeated."""
    payloads_repaired: int = 0
    """Payloads that other replicas gave since the start (S5.4)."""


class CatchUpView(NamedTuple):
    """How far a replica is that catches up. Rows and bytes ahead are taken from the leader's last
    answer: the leader's end moves on."""

    reason: str
    """Why it catches up (NATS-131)."""
    for_ms: int
    """Since it began, under this leader."""
    from_seq: Seq
    """Where its log parted from the leader's; 0: not known yet."""
    verified_seq: Seq
    end_seq: Seq
    """The leader's end; 0: not known yet."""
    rows_left: int
    bytes_left: int
    """As many as the rows left would have if they were like those of the last answer."""
    bytes_taken: int
    rows_per_s: int
    bytes_per_s: int
    written_per_s: int
    """Rows a second by which the leader's end moved on."""
    left_ms: int | None
    """Until it is there, at this pace; None: never, or not known."""
    is_far: bool
    """Live requests are not queued yet (NATS-145)."""
    cannot_complete: bool
    """It fell further behind in each of the last windows (NATS-150)."""
