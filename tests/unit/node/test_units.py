"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.node.units import format_duration, format_size, parse_duration_ms, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100ms", 100), ("2s", 2_000), ("1.5s", 1_500), ("10m", 600_000), ("1h", 3_600_000)],
)
def test_duration_is_read_in_milliseconds(text: str, expected: int) -> None:
    """Every unit of the documentation is understood."""
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("512B", 512), ("4KiB", 4096), ("64MiB", 64 * 1024**2)]
)
def test_size_is_read_in_bytes(text: str, expected: int) -> None:
    """Units are powers of 1024, as their names say."""
    assert parse_size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "2", "s", "2 parsecs", "-1s", "1e3s", "0.5ms", "0.0001s"])
def test_duration_that_is_none_is_refused_by_its_text(text: str) -> None:
    """The message names what was written; nothing is guessed or rounded."""
    with pytest.raises(ValueError, match="is not") as refusal:
        parse_duration_ms(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize("text", ["64MB", "64m", "1.0001KiB", "MiB"])
def test_size_that_is_none_is_refused(text: str) -> None:
    """Powers of 1000 are not silently taken for powers of 1024."""
    with pytest.raises(ValueError, match="is not"):
        parse_size_bytes(text)


@given(st.integers(0, 2**45))
def test_what_is_written_is_read_back(amount: int) -> None:
    """Formatting loses nothing."""
    assert parse_duration_ms(format_duration(amount)) == amount
    assert parse_size_bytes(format_size(amount)) == amount
