"""docs/requirements.md: every row of the design documents, its state, and the tests that show it.

The rows are in ``requirements.toml``. A test shows a row when its name (``test_klip_27_…``,
``test_kip_05_35_…``) or its docstring says the row's id.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

TESTS: Final = Path(__file__).parents[1]
FILE: Final = Path(__file__).with_name("requirements.toml")
STATES: Final = {
    "done": "done",
    "other": "by other means",
    "part": "in part",
    "planned": "planned",
    "unwanted": "not wanted",
}
"""As in the file -> as shown."""
NEED_REMARK: Final = ("other", "part", "unwanted")
LONG_ID: Final = re.compile(r"\b(?:NATS|KLIP|KIP|BLOG|FIP|GAP)-\d{2,3}\b|\bS\d{1,2}(?:\.\d)?\b")
"""An id wherever it stands."""
_SHORT_ID: Final = re.compile(r"\b[IO][1-7]\b|(?<=\()[NP]\d{1,2}(?=[),;])|^[NP]\d{1,2}(?=:)")
"""N1 is also the name of a node in tests: only `(N1)`, or `N1:` in front, is an id."""
_NAMED: Final = re.compile(r"_(nats|klip|kip|blog|fip|gap|n)_(\d+(?:_(?:and_)?\d+)*)(?=_|$)")
TESTS_SHOWN_MAX: Final = 4
"""Of a row; of more only the files are shown: they change less often than tests."""
FILES_SHOWN_MAX: Final = 6


class Row(NamedTuple):
    """One statement of a document."""

    state: str
    sentence: str
    remark: str


@cache
def documents() -> dict[str, str]:
    """Prefix -> title, in the order of the page."""
    found: dict[str, str] = tomllib.loads(FILE.read_text(encoding="utf-8"))["documents"]
    return found


@cache
def rows() -> dict[str, Row]:
    """Id -> row, in the order of the file."""
    told = tomllib.loads(FILE.read_text(encoding="utf-8"))
    remarks = told["remarks"]
    return {
        name: Row(state, sentence, remarks.get("".join(remark), "".join(remark)))
        for name, (state, sentence, *remark) in told["rows"].items()
    }


def prefix_of(row: str) -> str:
    """The document that a row is of."""
    return row.partition("-")[0] if "-" in row else row[0]


def ids_in(text: str) -> set[str]:
    """The ids in a text."""
    return set(LONG_ID.findall(text)) | set(_SHORT_ID.findall(text))


def ids_of(test: ast.FunctionDef) -> set[str]:
    """The rows that a test says it shows."""
    return ids_in(ast.get_docstring(test) or "") | ids_in_name(test.name)


def ids_in_name(name: str) -> set[str]:
    """The ids that the name of a test says."""
    found = set()
    for prefix, numbers in _NAMED.findall(name):
        for number in re.findall(r"\d+", numbers):
            found.add(f"N{int(number)}" if prefix == "n" else f"{prefix.upper()}-{number}")
    return found


@cache
def tests_by_row() -> dict[str, list[str]]:
    """Id -> ``file::test``, first those whose name or first words say the id."""
    found: dict[str, list[tuple[bool, str]]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for row in ids_of(node):
                    name = f"{path.relative_to(TESTS).as_posix()}::{node.name}"
                    opening = (ast.get_docstring(node) or "").partition(":")[0]
                    own = ids_in(f"{opening}:") | ids_in_name(node.name)
                    found.setdefault(row, []).append((row in own, name))
    return {
        row: [name for is_first in (True, False) for first, name in tests if first is is_first]
        for row, tests in found.items()
    }


def requirements_page(generated: str) -> str:
    """The page: a table of counts, then one table for each document."""
    lines = ["# Requirements", "", generated, *_counts()]
    for prefix, title in documents().items():
        lines += ["", f"## {title}", "", "| row | state | statement | tests |", "|---|---|---|---|"]
        for name, row in rows().items():
            if prefix_of(name) == prefix:
                sentence = f"{row.sentence} {row.remark}".rstrip()
                tests = "<br>".join(_shown(tests_by_row().get(name, [])))
                lines.append(f"| {name} | {STATES[row.state]} | {sentence} | {tests} |")
    return "\n".join([*lines, ""])


def _counts() -> Iterator[str]:
    yield "What the documents behind raftstore ask for, row by row, and the tests that show it."
    yield "Code, tests and docs name these ids. *Done*: tests show it. Other states say how or why."
    yield ""
    yield f"| document | {' | '.join(STATES.values())} |"
    yield "|---|" + "---|" * len(STATES)
    for prefix, title in documents().items():
        of_it = [row.state for name, row in rows().items() if prefix_of(name) == prefix]
        yield f"| {title} | {' | '.join(str(of_it.count(state)) for state in STATES)} |"


def _shown(tests: list[str]) -> Iterator[str]:
    if len(tests) <= TESTS_SHOWN_MAX:
        yield from (f"`{name}`" for name in tests)
        return
    files = dict.fromkeys(name.partition("::")[0] for name in tests)
    yield from (f"`{name}`" for name in list(files)[:FILES_SHOWN_MAX])
    if len(files) > FILES_SHOWN_MAX:
        yield "and others"
