"""How often clients may have a leadership moved: each move costs its channel a moment without.

A channel takes a few requests at once and then one in a while, of one client fewer than of all
together, so that one that asks without end leaves something for an operator. More connections give
nobody more: what all may ask is bounded, too. Each node counts for itself, for the channels that it
leads.
"""

from __future__ import annotations

from typing import Final

from raftstore.types import ChannelId

CHANNEL_BURST: Final = 6
"""Requests that a channel takes at once, of all clients together."""
CLIENT_BURST: Final = 3
"""The same of one client."""
INTERVAL_MS: Final = 10_000
"""After that there is one more in this time."""
KEPT_MIN: Final = 64
"""So many counts are kept before those are looked for that have run out."""

_ALL: Final = 0
"""Stands for all clients of a channel; the handles of connections begin at 1."""


class StepDownLimit:
    """Counts the requests that were taken, by channel and client."""

    def __init__(self) -> None:
        self._spent_ms: dict[tuple[ChannelId, int], int] = {}
        """When the requests that were taken have run out, each an interval after the one before."""
        self._looked_at = KEPT_MIN
        self.refused = 0
        """Since the start."""

    def __len__(self) -> int:
        """Counts that are kept."""
        return len(self._spent_ms)

    def refusal(self, channel: ChannelId, name: str, client: int, now_ms: int) -> str | None:
        """Take one more request in; why it is not taken, or None: it is."""
        bounds = (((channel, client), CLIENT_BURST), ((channel, _ALL), CHANNEL_BURST))
        wait_ms = 0
        for key, burst in bounds:
            left_ms = self._spent_ms.get(key, now_ms) - now_ms
            wait_ms = max(wait_ms, left_ms - (burst - 1) * INTERVAL_MS)
        if wait_ms > 0:
            self.refused += 1
            return (
                f"channel {name} was asked too often to change its leader: {CLIENT_BURST} times at "
                f"once by one client, {CHANNEL_BURST} times by all, then once in "
                f"{INTERVAL_MS // 1000} s; ask again in {-(-wait_ms // 1000)} s"
            )
        for key, _ in bounds:
            self._spent_ms[key] = max(now_ms, self._spent_ms.get(key, now_ms)) + INTERVAL_MS
        if len(self._spent_ms) > self._looked_at:
            self._forget(now_ms)
        return None

    def _forget(self, now_ms: int) -> None:
        self._spent_ms = {key: at_ms for key, at_ms in self._spent_ms.items() if at_ms > now_ms}
        self._looked_at = max(KEPT_MIN, 2 * len(self._spent_ms))
