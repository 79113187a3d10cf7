"""Digests of who leads what: one comparison per heartbeat, whatever the number of channels (S1.8).

Every heartbeat carries the digest of the (channel, term) pairs that its sender leads and its
receiver hosts. The receiver keeps the digest of what it believes the sender leads; while both agree
nothing needs to be said. On a difference it asks for the list.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from raftstore.types import ChannelId, Term

LEADERSHIP_DIGEST_BYTES: Final = 16


class LeadershipDigest:
    """Digest of a set of (channel, term) pairs, changed one pair at a time in any order.

    The XOR of the pairs' hashes: adding and removing cost the same however many pairs there are.
    Pairs are remembered, because adding one twice would cancel it.
    """

    __slots__ = ("_number", "_pairs")

    def __init__(self) -> None:
        self._number = 0
        self._pairs: dict[tuple[ChannelId, Term], None] = {}

    def add(self, channel: ChannelId, term: Term) -> None:
        """Enter a leadership; nothing changes if it is entered already."""
        if (channel, term) not in self._pairs:
            self._pairs[channel, term] = None
            self._number ^= _hash(channel, term)

    def remove(self, channel: ChannelId, term: Term) -> None:
        """Take a leadership out; nothing changes if it is not entered."""
        if (channel, term) in self._pairs:
            del self._pairs[channel, term]
            self._number ^= _hash(channel, term)

    @property
    def value(self) -> bytes:
        """The digest; zeros while nothing is entered."""
        return self._number.to_bytes(LEADERSHIP_DIGEST_BYTES, "big")

    @property
    def pairs(self) -> tuple[tuple[ChannelId, Term], ...]:
        """Entries, oldest first."""
        return tuple(self._pairs)

    def matches(self, digest: bytes) -> bool:
        """Whether a peer's digest says the same."""
        return digest == self.value

    def __repr__(self) -> str:
        return f"LeadershipDigest({self.value.hex()}, {len(self._pairs)} pairs)"


def _hash(channel: ChannelId, term: Term) -> int:
    data = channel + term.to_bytes(8, "big")
    return int.from_bytes(blake2b(data, digest_size=LEADERSHIP_DIGEST_BYTES).digest(), "big")
