"""How deep a value is nested, compared with what a decoder finds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.nesting import LEVELS_MAX, is_too_deep

packed = msgspec.msgpack.encode
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
EXTENSIONS = [msgspec.msgpack.Ext(1, bytes(size)) for size in (0, 1, 2, 4, 8, 16, 300, 70_000)]


def nested(value: Any, levels: int) -> Any:
    """The value within so many lists and maps."""
    for level in range(levels):
        value = {"k": value, "after": [0]} if level % 2 else [0, value, "behind"]
    return value


@pytest.mark.slow
@given(
    st.recursive(LEAVES, lambda v: st.lists(v, max_size=20) | st.dictionaries(st.text(), v)),
    st.integers(0, LEVELS_MAX + 3),
)
def test_levels_are_counted_whatever_lies_in_them(value: Any, levels: int) -> None:
    """Texts full of bytes that look like lists are passed over."""
    noise = b"\x91" * (LEVELS_MAX + 1)
    inner = [noise, value, *EXTENSIONS, "ä" * 200, "é" * 70_000, bytes(70_000)]
    depth = levels + 1 + height(value)
    assert is_too_deep(packed(nested(inner, levels))) == (depth > LEVELS_MAX)


def height(value: Any) -> int:
    """Levels of a value that are not empty."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list) and value:
        return 1 + max(map(height, value))
    return 0


@pytest.mark.parametrize("ending", [b"", b"\xc1", b"\xda\xff", b"\xdd\x00", b"\xc5\xff\xff"])
def test_malformed_values_are_judged_up_to_their_fault(ending: bytes) -> None:
    """A decoder stops there, too."""
    assert not is_too_deep(b"\x91" * LEVELS_MAX + b"\x90" + ending)
    assert not is_too_deep(b"\x92\x90" * LEVELS_MAX + ending)
    assert is_too_deep(b"\x91" * (LEVELS_MAX + 1) + ending)
