"""How deep JSON text is nested, found without recursion.

What reads a value, shows it or writes it calls itself once per level. Text that a parser has just
been able to read may be too deep for what comes after it, so text from outside is asked here.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

from raftstore.nesting import LEVELS_MAX

JSON_LEVELS_MAX: Final = 3 * LEVELS_MAX + 8
"""A map with keys that are no text takes three levels, and bodies have some around their values."""

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def is_too_deep(text: bytes) -> bool:
    """Whether JSON has more than ``JSON_LEVELS_MAX`` lists and objects within each other."""
    # Each level has an opening byte, so nearly every text is let through by counting them.
    if text.count(b"[") + text.count(b"{") <= JSON_LEVELS_MAX:
        return False
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > JSON_LEVELS_MAX
