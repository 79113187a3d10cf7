"""Reading what is stored only to verify it: the places, and what is found there.

A step is prepared on the node's thread and run on another one; it changes nothing and never raises
for what a disk may do, so that damage is reported to the node and not met by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from raftstore.types import ChannelId


class LogPlace(NamedTuple):
    """Up to where the log was verified."""

    segment: int
    offset: int
    chain: int | None
    """The chain of checksums there; None: not known, the next entry says what it is."""


class LogDamage(NamedTuple):
    """Bytes of a segment that are not what was written, whole entries at least."""

    segment: int
    offset: int
    end: int
    reason: str


class LogStep(NamedTuple):
    """Some of the log was read."""

    place: LogPlace | None
    """Where the next step goes on; None: everything that is durable was read."""
    bytes: int
    damage: LogDamage | None = None


class TableStep(NamedTuple):
    """Some of a table was read."""

    after: bytes | None
    """Where the next step goes on; None: all of it was read."""
    bytes: int
    damage: str = ""
    """Why it cannot be believed; empty: it can."""


class LogVerifying(Protocol):
    """The log of a node, read back while the node runs."""

    def step(self, place: LogPlace | None, bytes_max: int) -> Callable[[], LogStep]:
        """Prepare a step behind ``place`` (None: from the first segment that is kept)."""

    def channels_hit(self, damage: LogDamage) -> tuple[ChannelId, ...]:
        """Channels whose records are in there, and needed."""

    def bases_hit(self, damage: LogDamage) -> tuple[ChannelId, ...]:
        """Channels whose newest base entry is in that segment, and may be in there."""

    def doubt(self, channel: ChannelId) -> None:
        """A quorum has another history than this log: ``MessageLog.rebase`` to the empty base may
        forget all of it, and the replica is recovering from what it promised (S0.3, S13)."""

    def lose(self, channel: ChannelId, damage: LogDamage) -> None:
        """The records of the channel in there are lost: it has a hole there, as a start would find
        it (S0.3). The channel is to be opened anew."""
