"""Which keys are watched: a share of them by a hash, so that of few keys everything is seen."""

from __future__ import annotations

from typing import Final

from raftstore.crc import crc32

_SPACE: Final = 1 << 32
_MASK: Final = _SPACE - 1


class KeySample:
    """A share of all keys, another one after each turn."""

    def __init__(self, share: float, seed: bytes) -> None:
        self._seed = seed
        self._below = min(_SPACE, round(share * _SPACE))
        self._turn = 0
        self._factor = crc32(seed) | 1

    @property
    def is_empty(self) -> bool:
        """Return whether it has no keys."""
        return self._below == 0

    def has(self, key: bytes) -> bool:
        """Return whether a key is watched."""
        # A checksum with another start would keep keys together: it is linear. A factor does not.
        return (crc32(key) * self._factor) & _MASK < self._below

    def turn(self) -> None:
        """Watch other keys from now on."""
        self._turn += 1
        self._factor = crc32(self._turn.to_bytes(8, "big"), crc32(self._seed)) | 1
