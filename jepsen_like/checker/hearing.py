"""Up to when a replica must count what was committed, by the age it stated of its knowledge (S7.3).

A lag is counted from the last report of the leader, and its age from the moment when that arrived.
So what was committed when the word was sent must be counted, and nothing later. Between the two are
a leader that lost its quorum and calls itself leader until it notices, a network that holds
messages back, a node that stood still for less than it notices. Each is allowed for as much as it
can take in the run that is judged, and no more.
"""

from __future__ import annotations

from typing import Final

from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.config import ElectionSettings, HeartbeatSettings, ReadSettings

INFO_AGE_MS: Final = ReadSettings().leader_info_age_max_ms
DEPOSED_MS: Final = ElectionSettings().quorum_contact_ms + 2 * HeartbeatSettings().check_interval_ms
"""So long a leader whose quorum follows another may not know it, by its own clock; the longest
interval between its looks is that of a world with heartbeats half as often."""
UNNOTICED_MS: Final = (
    ReadSettings().stall_guard_ms + 2 * HeartbeatSettings().check_interval_ms + 250
)
"""A stop that no node notices, and a message on a slow link."""
HELD_MS: Final = {
    "reorder": 3_000.0, "narrow-link": INFO_AGE_MS,
    "machine-starved": INFO_AGE_MS, "machine-stalled": INFO_AGE_MS,
}  # fmt: skip
"""Faults under which messages wait, and for how long."""
ROUNDING_MS: Final = 2
"""Replicas count whole milliseconds."""
_MS: Final = 1_000_000


class Hearing:
    """The commits that replicas of one run may not have heard of yet."""

    def __init__(self, run: Run, clock_ns: float, unknown_ms: float) -> None:
        """``clock_ns``: a millisecond of the slowest clock; ``unknown_ms``: the age of what a
        replica knows when it stated none.
        """
        self._clock_ns = clock_ns
        self._unknown_ns = unknown_ms * _MS
        self._held_ns = run.held_ms * _MS
        self._holding = [
            (float(fault.get("started", 0)), float(fault.get("ended", float("inf"))), held * _MS)
            for fault in run.faults
            if (held := HELD_MS.get(str(fault.get("kind")))) is not None
        ]

    def counted_until(self, read: Operation) -> float:
        """The moment up to which commits must be in the lag that the read reported."""
        reported = read.details.get("leader_info_age_ms")
        if not isinstance(reported, int):
            return read.invoked - self._unknown_ns
        known = reported + ROUNDING_MS + DEPOSED_MS
        sent = read.invoked - known * self._clock_ns - UNNOTICED_MS * _MS
        until = read.invoked if read.returned is None else read.returned
        held = [
            held
            for started, ended, held in self._holding
            if started <= until and ended >= sent - held
        ]
        return sent - max([self._held_ns, *held])
