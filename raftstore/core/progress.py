"""The leader's view of one follower (S3.2, S3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raftstore.protocol.replication import StoreAck
from raftstore.types import FOUNDING_NUMBER, ReplicaNumber, Seq

RESEND_BACKOFF_MAX = 8
"""A follower that never answers is reminded at most this many times less often."""


class ProgressView(NamedTuple):
    """The leader's knowledge of a follower in this term, for status and placement."""

    match_seq: Seq
    applied_seq: Seq
    heard_ms: int | None
    is_catching_up: bool
    cannot_complete: bool = False

    def keeps_up(self, commit_seq: Seq) -> bool:
        """Whether the follower's log is in sync: it holds what is committed, or takes new records
        as they come (FIP-06)."""
        return self.heard_ms is not None and (
            self.match_seq >= commit_seq or not self.is_catching_up
        )


@dataclass(slots=True)
class Progress:
    """One follower in one term: everything starts at zero when the term is won (S3.4)."""

    number: ReplicaNumber = FOUNDING_NUMBER
    """Which life of the node's replica it is: what another one says is not counted (M4)."""
    match_seq: Seq = Seq(0)
    """Highest seq it reported durable and verified in this term; never goes back."""
    applied_seq: Seq = Seq(0)
    commit_seq: Seq = Seq(0)
    """Commit position it says it knows."""
    sent_commit: Seq = Seq(0)
    """Commit position we last sent it; it may have been lost."""
    heard_ms: int | None = None
    acked_ms: int | None = None
    """When its last ack came: recovering and stopped replicas send none (S0.3, S13)."""
    is_catching_up: bool = True
    cannot_complete: bool = False
    """It said that it falls further behind all the time (NATS-150)."""
    resend_at_ms: int | None = None
    _resend_factor: int = 1

    def on_ack(self, ack: StoreAck, *, last_seq: Seq, now_ms: int) -> bool:
        """Learn an ack; True if its match moved. Late and repeated ones change nothing."""
        moved = ack.match_seq > self.match_seq
        # S3.2, S3.4: a maximum per follower, and never beyond what this leader has.
        self.match_seq = max(self.match_seq, min(ack.match_seq, last_seq))
        assert self.match_seq <= last_seq, f"match {self.match_seq} beyond the end {last_seq}"
        self.applied_seq = max(self.applied_seq, ack.applied_seq)
        self.commit_seq = max(self.commit_seq, ack.commit_seq)
        self.on_heard(now_ms)
        self.acked_ms = now_ms
        return moved

    def on_heard(self, now_ms: int) -> None:
        """Any message of the follower: it is alive."""
        self.heard_ms = now_ms
        self._resend_factor = 1

    def needs(self, last_seq: Seq, commit_seq: Seq) -> bool:
        """Whether it stands below our end or does not know our commit position."""
        return self.match_seq < last_seq or self.commit_seq < commit_seq

    def arm_resend(self, now_ms: int, interval_ms: int, *, again: bool = False) -> None:
        """Remind the follower one interval from now; each reminder in silence waits longer."""
        if again:
            self._resend_factor = min(self._resend_factor * 2, RESEND_BACKOFF_MAX)
        assert 1 <= self._resend_factor <= RESEND_BACKOFF_MAX, f"{self._resend_factor} intervals"
        self.resend_at_ms = now_ms + interval_ms * self._resend_factor

    def view(self) -> ProgressView:
        """A copy for others."""
        return ProgressView(
            self.match_seq,
            self.applied_seq,
            self.heard_ms,
            self.is_catching_up,
            self.cannot_complete,
        )
