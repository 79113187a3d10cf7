"""Sizes of what a replica holds, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from raftstore.core.live_queue import LiveQueueStatistics
from raftstore.core.pending import PendingStatistics


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
