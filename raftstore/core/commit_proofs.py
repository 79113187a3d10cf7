"""Pairs (t, seq): everything committed before t on this node's clock is at or below seq (S7.3).

``raftstore.core.proof_requests`` says where they come from.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from raftstore.types import Seq

PAIRS_MAX = 64
"""Beyond it pairs are spaced out: the farther back, the wider apart. So what is known reaches back
for minutes however often something commits, and an age is reported too high by half of it at
most."""
PAIRS_KEPT = 48
"""So many of them at most are left then."""
MERGED_MS = 10
"""Of pairs closer together than this only the outer ones are kept."""


class Freshness:
    """The pairs of one replica, and whether a leader's report may be believed at all."""

    def __init__(self) -> None:
        self._times: list[int] = []  # strictly increasing, like the seqs beside them
        self._seqs: list[Seq] = []
        self._woke_ms: int | None = None
        self.is_trusted = True
        """False from the end of a stop until a round trip that started after it."""

    def learn(self, known_ms: int, seq: Seq) -> None:
        """A round trip that started at ``known_ms`` found nothing committed above ``seq``."""
        # S7.3: only what started after the node woke says that its view is of the present.
        if self._woke_ms is not None and known_ms >= self._woke_ms:
            self._woke_ms = None
            self.is_trusted = True
        after = bisect_right(self._times, known_ms)
        if after < len(self._times) and self._seqs[after] <= seq:
            return  # a later pair says more
        before = after
        while before and self._seqs[before - 1] >= seq:
            before -= 1
        assert not before or self._times[before - 1] <= known_ms, "times rise (S7.3)"
        assert not before or self._seqs[before - 1] < seq, f"seq {seq} proves nothing new (S7.3)"
        self._times[before:after] = [known_ms]
        self._seqs[before:after] = [seq]
        self._thin()

    def as_of(self, applied: Seq) -> int | None:
        """The newest moment at which a state that is applied so far was complete; None: unknown."""
        known = bisect_right(self._seqs, applied)
        return self._times[known - 1] if known else None

    @property
    def newest_ms(self) -> int | None:
        """The newest t of all pairs."""
        return self._times[-1] if self._times else None

    def distrust(self, now_ms: int) -> None:
        """The node stood still until now: what it receives from now on may be old, and what it knew
        is of a time before the stop."""
        self._woke_ms = now_ms
        self.is_trusted = False
        self._times.clear()
        self._seqs.clear()

    def _thin(self) -> None:
        times, seqs = self._times, self._seqs
        if len(times) >= 3 and times[-1] - times[-3] < MERGED_MS:
            del times[-2], seqs[-2]
        elif len(times) > PAIRS_MAX:
            self._space_out()

    def _space_out(self) -> None:
        """Keep the newest pair, and behind each that is kept the oldest that is near enough."""
        times, seqs = self._times, self._seqs
        kept = [len(times) - 1]
        while kept[-1] > 0 and len(kept) < PAIRS_KEPT:
            at = kept[-1]
            gap_ms = max(MERGED_MS, (times[-1] - times[at]) // 2)
            kept.append(min(at - 1, bisect_left(times, times[at] - gap_ms, 0, at)))
        kept.reverse()
        self._times, self._seqs = [times[at] for at in kept], [seqs[at] for at in kept]
