"""Tokens as text: opaque, safe in an address and in a header, and checked when they come back.

A letter that was changed on the way must not make another token: a position that is a little lower
would let its holder go back behind what it has seen.
"""

from __future__ import annotations

import base64
from typing import Final

from raftstore.crc import crc32

_CRC_BYTES: Final = 4


def token_text(prefix: str, packed: bytes) -> str:
    """Return the text of a token; ``prefix`` names its kind and version."""
    sealed = crc32(packed).to_bytes(_CRC_BYTES, "big") + packed
    return prefix + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def token_bytes(prefix: str, text: object) -> bytes:
    """Return what a token's text was made of; ValueError with the reason when it is none."""
    if not isinstance(text, str) or not text.startswith(prefix):
        raise ValueError("it does not begin with " + prefix)
    encoded = text[len(prefix) :].encode("ascii")
    sealed = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), b"-_", validate=True)
    packed = sealed[_CRC_BYTES:]
    if crc32(packed).to_bytes(_CRC_BYTES, "big") != sealed[:_CRC_BYTES]:
        raise ValueError("it is damaged")
    return packed
