"""Checks of the mutations under their earlier path, which scripts of developers still name."""

from __future__ import annotations

from tests.mutations.test_table import (
    test_every_edit_fits_the_sources_once_and_changes_something,
    test_every_test_named_exists,
)

__all__ = [
    "test_every_edit_fits_the_sources_once_and_changes_something",
    "test_every_test_named_exists",
]
