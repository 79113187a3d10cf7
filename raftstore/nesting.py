"""How deep a msgpack value is nested, found without recursion.

What decodes a value calls itself once per level, and how often it may depends on who called it. A
state machine must come to the same end on every replica (S10), so it asks here first.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

LEVELS_MAX: Final = 128
"""Lists and maps within each other that a state machine looks into; few callers leave less room."""

_OPENINGS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of lists and maps; bytes of texts and numbers may look like them."""
_LENGTHS: Final = {1: Struct(">B"), 2: Struct(">H"), 4: Struct(">I")}
_FIXED: Final = {
    0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,
    0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18,
}  # fmt: skip
"""First byte -> bytes in all."""
_COUNTED: Final = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
"""First byte -> (bytes of the length, bytes behind it besides the content)."""
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte -> (bytes of the number, values for each)."""


def is_too_deep(value: bytes, levels: int = LEVELS_MAX) -> bool:
    """Whether more than ``levels`` lists and maps are open at once before the value ends.

    Of a malformed value the part before the fault counts: decoding stops there.
    """
    # Each level has an opening byte, so nearly every value is let through by counting them.
    if len(value) - len(value.translate(None, _OPENINGS)) <= levels:
        return False
    open_ones: list[int] = []
    at = 0
    try:
        while True:
            size, values = _element(value, at)
            at += size
            if values:
                open_ones.append(values)
                if len(open_ones) > levels:
                    return True
                continue
            while open_ones and open_ones[-1] == 1:
                open_ones.pop()
            if not open_ones:
                return False
            open_ones[-1] -= 1
    except (IndexError, KeyError):
        return False


def _element(value: bytes, at: int) -> tuple[int, int]:
    """Bytes up to what follows, and how many values belong to it; KeyError: there is no such."""
    first = value[at]
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
        return 1, 0
    if first < 0x90:
        return 1, 2 * (first & 0x0F)
    if first < 0xA0:
        return 1, first & 0x0F
    if first < 0xC0:
        return 1 + (first & 0x1F), 0
    if first in _FIXED:
        return _FIXED[first], 0
    if first in _COUNTED:
        width, more = _COUNTED[first]
        return 1 + width + more + _number(value, at, width), 0
    width, each = _CONTAINERS[first]
    return 1 + width, each * _number(value, at, width)


def _number(value: bytes, at: int, width: int) -> int:
    if at + 1 + width > len(value):
        raise IndexError(at)
    found: int = _LENGTHS[width].unpack_from(value, at + 1)[0]
    return found
