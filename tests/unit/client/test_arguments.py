"""Errors about arguments, and the values that they name."""

from __future__ import annotations

import pytest

from raftstore.client.arguments import whole
from raftstore.errors import ArgumentError


@pytest.mark.parametrize(
    ("given", "named"),
    [(2**63, f"from 0 to {2**63 - 1}; give one"), (-1, "from 0 on; give one")],
)
def test_number_that_is_too_large_has_the_largest_named(given: int, named: str) -> None:
    """Only the bound says what is wrong with a whole number from 0 on."""
    with pytest.raises(ArgumentError, match=named):
        whole("bytes_per_s", given, 0)
