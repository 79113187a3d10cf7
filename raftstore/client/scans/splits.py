"""Where to cut the keys of a partition so that several readers have about as many each.

Keys are looked at as numbers between 0 and 1, their bytes being the digits. A few dozen questions
for the first key at or above a number find the lowest and about the highest; the cuts are evenly
between these. That is fair where keys are spread evenly, such as counters, digests and names, and
right in any case: every key is in one part.

Pure but for the questions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

DIGITS: Final = 32
"""Bytes of a key that are looked at; keys that differ behind these are not parted."""
PRECISION: Final = 64
"""The highest key is known to this part of the distance from the lowest."""

Probe = Callable[[bytes], Awaitable[bytes | None]]
"""Return the first key at or above; None if there is none."""


async def cuts_of(probe: Probe, start: bytes, stop: bytes, parts: int) -> list[bytes]:
    """Return fewer than ``parts`` keys within (start, stop), ascending, at which to cut the keys of
    [start, stop); b"" as stop is open. No key need be one of them."""
    first = await probe(start) if parts > 1 else None
    if first is None:
        return []
    lowest = low = _number(first)
    high = _number(stop) + 1 if stop else 1 << 8 * DIGITS  # every key is below
    while high - low > 1 + (low - lowest) // PRECISION:
        middle = (low + high) // 2
        found = await probe(_key(middle))
        if found is None:
            high = middle
        else:
            low = max(middle, _number(found))
    cuts = {_key(lowest + (high - lowest) * part // parts) for part in range(1, parts)}
    return sorted(cut for cut in cuts if first < cut and (not stop or cut < stop))


def _number(key: bytes) -> int:
    return int.from_bytes(key[:DIGITS].ljust(DIGITS, b"\0"), "big")


def _key(number: int) -> bytes:
    return number.to_bytes(DIGITS, "big").rstrip(b"\0")
