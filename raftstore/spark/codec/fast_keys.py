"""Keys of one column as an Arrow array at once: an integer or a text is most of what keys are.

Returns None as soon as one row does not fit; the caller then takes the row-by-row path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

_INT_TAG: Final = 0x18
_INT_BYTES: Final = 9
_SIGN: Final = np.uint64(1 << 63)
_INT: Final = np.dtype([("tag", "u1"), ("value", ">u8")])
_TEXT_START: Final = {"string": b"\x30", "binary": b"\x38"}
_TEXT_END: Final = b"\x00\x01"

KeyArray = Callable[[Sequence[bytes]], pa.Array | None]
"""Return the column that encoded keys are of; None when they have to be decoded one by one."""


def key_array(kind: str) -> KeyArray | None:
    """Return what makes an array of keys that are one column of a type; None for other types."""
    if kind in _INTS:
        return lambda keys: _ints(keys, _INTS[kind])
    if kind in _TEXT_START:
        return lambda keys: _texts(keys, _TEXT_START[kind], is_text=kind == "string")
    return None


_INTS: Final = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}


def _ints(keys: Sequence[bytes], kind: pa.DataType) -> pa.Array | None:
    joined = b"".join(keys)
    if len(joined) != _INT_BYTES * len(keys):
        return None
    found = np.frombuffer(joined, _INT)
    if not (found["tag"] == _INT_TAG).all():
        return None
    # With the sign bit flipped back these are the bits of the signed number.
    values = (found["value"].astype(np.uint64) ^ _SIGN).view(np.int64)
    try:
        return pa.array(values).cast(kind)
    except pa.ArrowInvalid:
        return None


def _texts(keys: Sequence[bytes], start: bytes, *, is_text: bool) -> pa.Array | None:
    bodies = [key[1:-2] for key in keys]
    framed = start + (_TEXT_END + start).join(bodies) + _TEXT_END
    # A NUL within a text is escaped; and with this, every key begins and ends as it should.
    if b"".join(keys) != framed or b"\0" in b"".join(bodies):
        return None
    try:
        found = pa.array(bodies, pa.binary())
        return found.cast(pa.string()) if is_text else found
    except pa.ArrowInvalid:
        return None
