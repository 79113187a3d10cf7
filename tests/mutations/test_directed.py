"""A mutation counts as noticed if every test that the table names fails by itself, and not by
chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.mutations.directed import TESTS_FAILED, Workplace, run_one
from tests.mutations.guard import directed
from tests.mutations.mutation import mutation
from tests.mutations.syntax import Edit
from tests.mutations.warm import BROKEN

BOTH = mutation("S9-x", "It breaks.", Edit("x", "a", "b"), directed("a.py::test_a", "b.py::test_b"))


class _Place:
    """A copy whose tests end with the codes that are given for them, one a run."""

    def __init__(self, codes: dict[str, list[int]]) -> None:
        self.path = Path()
        self._codes = {test: iter(given) for test, given in codes.items()}

    @contextmanager
    def edited(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Edit nothing."""
        del edits
        yield

    def run_tests(self, tests: Sequence[str]) -> tuple[int, str]:
        """One failure ends a run, as ``-x`` does: the tests behind it are not run."""
        for test in tests:
            if code := next(self._codes[test]):
                return code, f"FAILED {test}"
        return 0, "passed"


@pytest.mark.parametrize(
    ("codes_of_a", "codes_of_b", "noticed"),
    [
        ([1], [1], True),
        ([1, 1], [0, 0], False),
        ([0, 0], [1, 1], False),
        ([1, 1, 1], [0, 1, 1], True),
        ([1, 1, 1], [0, 1, 0], False),
        ([1, 1], [BROKEN, BROKEN], False),
    ],
    ids=["both fail", "second passes", "first passes", "two of three", "one of three", "broken"],
)
def test_mutation_is_noticed_when_each_test_fails_by_itself(
    codes_of_a: list[int],
    codes_of_b: list[int],
    noticed: bool,
) -> None:
    """A test behind a failing one must bite, too; one that fails once in three times does not."""
    assert TESTS_FAILED == 1
    place = _Place(dict(zip(BOTH.tests, (codes_of_a, codes_of_b), strict=True)))
    result = run_one(cast("Workplace", place), BOTH)
    assert result.noticed is noticed
    assert result.detail
