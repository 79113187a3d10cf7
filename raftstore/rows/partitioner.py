"""Which partition a key belongs to: one function for clients, Spark tasks and nodes (KIP-09)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from raftstore.crc import crc32

HASH_ID: Final = "crc32m-1"
"""Name of the function below; a changed function gets a new name, since it would move every key."""

_MULTIPLIER: Final = 2_654_435_761
"""Knuth's multiplicative constant: spreads keys whose CRC differs in few bits."""


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of an encoded key, 0 <= partition < partitions."""
    return (crc32(key) * _MULTIPLIER % 2**32) % partitions


def partitions_of(keys: Iterable[bytes], partitions: int) -> list[int]:
    """Return the same for many keys, in less time for each."""
    return [(crc32(key) * _MULTIPLIER % 2**32) % partitions for key in keys]


def key_crcs(keys: Iterable[bytes]) -> list[int]:
    """Return the CRC-32 of keys, which seals of values begin with, too."""
    return list(map(crc32, keys))


def partitions_of_crcs(crcs: Any, partitions: int) -> Any:
    """Return the same for an array of the CRC-32 of each key, of unsigned numbers of 64 bits."""
    return (crcs * _MULTIPLIER % 2**32) % partitions
