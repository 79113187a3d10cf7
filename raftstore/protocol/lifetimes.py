"""Payloads about the lifetimes of rows (TTL), and the records by which rows expire.

ROWS_WITH_TTL and CONDITIONAL_WITH_TTL ``[lifetime in ms u64][payload as of ROWS or CONDITIONAL]``:
what is written lives for so long from the record's timestamp on, the leader's (S10).
EXPIRE ``[until in ms, key, key, ...]``, a msgpack list: it is now ``until`` in this channel, and of
these keys the rows that have expired by then are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from raftstore.config import KIB
from raftstore.errors import DecodeError
from raftstore.types import WALL_MS_MAX, RecordKind

TTL_MS_MAX: Final = 100 * 366 * 24 * 3_600_000
"""100 years: what lives longer is written without a lifetime."""
EXPIRE_BYTES_MAX: Final = 256 * KIB
"""Bytes of the keys of one EXPIRE record, but for a last one."""

LIFETIME_KINDS: Final = (
    RecordKind.ROWS_WITH_TTL,
    RecordKind.CONDITIONAL_WITH_TTL,
    RecordKind.EXPIRE,
)
"""Kinds of records about rows that expire; a channel that had one applies all its records with an
eye on lifetimes (``state_machines.lifetimes``)."""
WITH_TTL: Final = {
    RecordKind.ROWS: RecordKind.ROWS_WITH_TTL,
    RecordKind.CONDITIONAL: RecordKind.CONDITIONAL_WITH_TTL,
}
"""Kinds of records of rows, and the same with a lifetime."""
WITHOUT_TTL: Final = {timed: plain for plain, timed in WITH_TTL.items()}

_TTL: Final = Struct(">Q")
_ENCODER: Final = msgspec.msgpack.Encoder()
_EXPIRE: Final = msgspec.msgpack.Decoder(list[int | bytes])


def encode_with_ttl(ttl_ms: int, payload: bytes) -> bytes:
    """Put a lifetime before the payload of a ROWS or CONDITIONAL record."""
    return _TTL.pack(ttl_ms) + payload


def decode_with_ttl(payload: bytes | memoryview) -> tuple[int, memoryview]:
    """Return the lifetime in ms and the payload behind it; raise DecodeError if there is none."""
    view = memoryview(payload)
    if len(view) < _TTL.size:
        raise DecodeError(f"a payload of {len(view)} bytes has no room for a lifetime")
    ttl_ms = _TTL.unpack_from(view)[0]
    check_ttl(ttl_ms)
    return ttl_ms, view[_TTL.size :]


def check_ttl(ttl_ms: int) -> None:
    """Raise DecodeError unless this can be a lifetime."""
    if not 1 <= ttl_ms <= TTL_MS_MAX:
        raise DecodeError(f"a lifetime of {ttl_ms} ms is not between 1 and {TTL_MS_MAX}")


def encode_expire(until_ms: int, keys: Sequence[bytes]) -> bytes:
    """Encode the end of the rows of these keys that have expired by ``until_ms``."""
    return _ENCODER.encode([until_ms, *keys])


def decode_expire(payload: bytes | memoryview) -> tuple[int, list[bytes]]:
    """Return the channel time that the record states, and the keys; raise DecodeError otherwise."""
    try:
        until_ms, *keys = _EXPIRE.decode(payload)
    except ValueError as error:  # of msgspec, or nothing to unpack
        raise DecodeError(f"a payload of {len(payload)} bytes expires nothing: {error}") from error
    named = [key for key in keys if isinstance(key, bytes) and key]
    if not isinstance(until_ms, int) or not 0 <= until_ms <= WALL_MS_MAX or named != keys:
        raise DecodeError(
            f"a payload of {len(payload)} bytes expires nothing: it is no moment and keys"
        )
    return until_ms, named
