"""A mutation counts as noticed if every test that the table names fails by itself, and not by
chance.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.mutations.directed import TESTS_FAILED, DirectedError, Workplace, run_one
from tests.mutations.guard import directed
from tests.mutations.mutation import mutation
from tests.mutations.replaced import Functions, NotReplaceableError, changes
from tests.mutations.syntax import Edit
from tests.mutations.warm import BROKEN

BOTH = mutation("S9-x", "It breaks.", Edit("x", "a", "b"), directed("a.py::test_a", "b.py::test_b"))


class _Place:
    """A copy whose tests end with the codes that are given for them, one a run."""

    def __init__(self, codes: dict[str, list[int]], unedited: int = 0) -> None:
        self.path = Path()
        self._codes = {test: iter(given) for test, given in codes.items()}
        self._unedited = unedited
        self._is_edited = False

    @contextmanager
    def edited(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Edit nothing."""
        del edits
        self._is_edited = True
        yield
        self._is_edited = False

    def run_tests(self, tests: Sequence[str], seconds: float) -> tuple[int, str]:
        """As if everything edited had run at import: nothing is noticed."""
        del seconds
        return 0, f"passed: {tests}"

    def run_fresh(self, tests: Sequence[str], seconds: float) -> tuple[int, str]:
        """One failure ends a run, as ``-x`` does: the tests behind it are not run."""
        del seconds
        if not self._is_edited:
            return self._unedited, "FAILED as ever"
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


def test_failure_shows_nothing_where_the_test_fails_without_the_mutation() -> None:
    """The tests that run where everything is imported anew are tried without the mutation, too."""
    place = _Place({"a.py::test_a": [1], "b.py::test_b": [1]}, unedited=1)
    with pytest.raises(DirectedError, match="without any mutation"):
        run_one(cast("Workplace", place), BOTH)


SOURCE = """
LIMIT = 3

class Box:
    def __init__(self) -> None:
        # A comment, which a syntax tree does not have.
        self.held = [part for part in range(9) if part < LIMIT]

    @property
    def room(self) -> int:
        return LIMIT - len(self.held)

    @room.setter
    def room(self, value: int) -> None:
        self.held = [0] * value
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("# A comment", "# Another one", []),
        ("part < LIMIT", "part <= LIMIT", [("Box.__init__.<locals>.<listcomp>", 7)]),
        ("LIMIT - len", "LIMIT + len", [("Box.room", 9)]),
        ("[0] * value", "[0, value]", [("Box.room", 13)]),
    ],
)
def test_changed_functions_are_found_by_their_place_in_the_original(
    old: str, new: str, changed: list[tuple[str, int]]
) -> None:
    """The innermost function that differs is among them, with its line there, whatever the layout
    of the edited text; of a property, the one that differs.
    """
    edited = ast.unparse(ast.parse(SOURCE.replace(old, new)))
    found = [(before.co_qualname, before.co_firstlineno) for before, _ in changes(SOURCE, edited)]
    assert found[-1:] == changed


@pytest.mark.parametrize(
    ("old", "new"),
    [("LIMIT = 3", "LIMIT = 4"), ("@room.setter", "@other.setter"), ("value: int", "value=1")],
)
def test_edit_of_what_an_import_runs_cannot_be_put_into_functions(old: str, new: str) -> None:
    """A constant, a decorator and a default value have their effect when the module is imported."""
    with pytest.raises(NotReplaceableError, match="changes what its import does"):
        changes(SOURCE, SOURCE.replace(old, new))


def test_replaced_code_is_what_runs(tmp_path: Path) -> None:
    """In every function of that place, also in one that was made before; the others stay."""
    (tmp_path / "unedited").mkdir()
    original = "def outer(x):\n    def inner():\n        return x\n    return inner\n"
    (tmp_path / "unedited" / "m.py").write_text(original)
    (tmp_path / "m.py").write_text(original.replace("return x", "return x + 1"))
    scope: dict[str, Any] = {}
    exec(compile(original, str(tmp_path / "m.py"), "exec"), scope)
    made = scope["outer"](1)
    assert made() == 1
    Functions(tmp_path).replace(["m.py"])
    assert made() == 2
    assert scope["outer"](5)() == 6
