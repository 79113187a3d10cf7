"""The seal of a row: a checksum over its key and value, made by the writer, checked at each read.

A seal travels with the value from the publisher through log and table store to the reader, so a
value that was damaged anywhere on its way, or filed under another key, is never answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import add, itemgetter
from typing import Final

from raftstore.crc import crc32
from raftstore.errors import CorruptRecordError

SEAL_BYTES: Final = 4


def seal(key: bytes, value: bytes) -> bytes:
    """Return the value behind the big-endian CRC-32 of key and value."""
    return crc32(value, crc32(key)).to_bytes(4, "big") + value


def seal_rows(keys: Iterable[bytes], values: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Return keys with their sealed values: ``seal`` for many rows, in less time for each."""
    return [
        (key, crc32(value, crc32(key)).to_bytes(4, "big") + value)
        for key, value in zip(keys, values, strict=True)
    ]


def value_checksums(values: Iterable[bytes], key_crcs: Iterable[int]) -> Iterator[int]:
    """Return the CRC-32 that each value is sealed with, given that of its key."""
    return map(crc32, values, key_crcs)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Return the value; raise CorruptRecordError when its seal does not fit key and value."""
    value = sealed[SEAL_BYTES:]
    if crc32(value, crc32(key)).to_bytes(4, "big") != sealed[:SEAL_BYTES]:
        raise _mismatch(key, sealed)
    return value


def check_seal(key: bytes, sealed: bytes) -> None:
    """Raise CorruptRecordError when the seal does not fit key and value; it is left on."""
    # As one: beginning another checksum costs more than joining what is as short.
    if crc32(key + sealed[SEAL_BYTES:]).to_bytes(4, "big") != sealed[:SEAL_BYTES]:
        raise _mismatch(key, sealed)


def check_seals(keys: Iterable[bytes], sealed: Iterable[bytes | None]) -> None:
    """The same for many rows, in less time for each; None, a delete, has no seal."""
    for key, row in zip(keys, sealed, strict=True):
        if row is not None and crc32(key + row[SEAL_BYTES:]).to_bytes(4, "big") != row[:SEAL_BYTES]:
            raise _mismatch(key, row)


def checksums(keys: Iterable[bytes], sealed: Iterable[bytes]) -> Iterable[int]:
    """Return the numbers that the seals of rows have to be: ``check_seal`` for many rows, in less
    time for each. ``sealed``: one for each key."""
    # Of key and value as one: beginning a checksum costs more than joining what is as short.
    return map(crc32, map(add, keys, map(_VALUE, sealed)))


_VALUE: Final = itemgetter(slice(SEAL_BYTES, None))


def _mismatch(key: bytes, sealed: bytes) -> CorruptRecordError:
    return CorruptRecordError(
        f"the row with key {key.hex()} does not match its checksum "
        f"({len(sealed)} stored bytes); read it from another replica"
    )
