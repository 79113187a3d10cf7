"""The checksum of all that is stored and sent: the numbers of zlib, whatever computes them."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from raftstore.crc import crc32


@given(st.binary(max_size=10_000), st.integers(0, 2**32 - 1))
def test_it_is_the_one_of_zlib(content: bytes, before: int) -> None:
    """Other numbers would be another format, and another partition for every key."""
    assert crc32(content) == zlib.crc32(content)
    assert crc32(content, before) == zlib.crc32(content, before)
    assert crc32(memoryview(content)) == zlib.crc32(content)


def test_standard_check_value() -> None:
    """Of CRC-32 as Ethernet and gzip have it; a large content is computed in other steps."""
    assert crc32(b"123456789") == 0xCBF43926
    large = bytes(range(256)) * 65_536
    assert crc32(large) == zlib.crc32(large)
