"""The tables of stops in docs/architecture.md name functions of the tree, and count them right."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.reference.picture import picture_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WAYS = ("A put", "A linearizable get", "A bounded get", "A micro-batch", "A catch-up")
ROW = re.compile(
    r"^\| (\d+) \| `([\w/]+\.py)` `([\w.]+)` \| (.+?) \| (.+?) \| (.*?) ?\|$", re.MULTILINE
)
STOPS_MAX = 30
"""Of any way: a new stop on the longest one has to take the place of another."""


def section(title: str) -> str:
    """The text below a heading, down to the next."""
    return re.split(r"^#+ ", PAGE.split(f"### {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@cache
def names_of(path: str) -> frozenset[str]:
    """Functions and methods of a module, by qualified name."""
    found: set[str] = set()

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
            elif isinstance(child, ast.ClassDef):
                look(child, f"{prefix}{child.name}.")

    look(ast.parse((ROOT / "raftstore" / path).read_text(encoding="utf-8")), "")
    return frozenset(found)


@pytest.mark.parametrize("way", WAYS)
def test_every_stop_of_a_way_is_a_function_of_the_tree(way: str) -> None:
    """Rows are numbered without a gap; each says where it runs and what it does."""
    text = section(way)
    rows = ROW.findall(text)
    assert len(rows) == len(re.findall(r"^\| \d", text, re.MULTILINE)), (
        "a row that is none of a stop"
    )
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert [row[1:3] for row in rows if row[2] not in names_of(row[1])] == []


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_stops_and_files_are_those_of_the_table(way: str) -> None:
    """A way is told as long as it is, and stays below a bound."""
    text = section(way)
    rows = ROW.findall(text)
    told = re.search(r"^(\d+) stops in (\d+) files", text, re.MULTILINE)
    assert told is not None
    assert (int(told[1]), int(told[2])) == (len(rows), len({row[1] for row in rows}))
    assert len(rows) <= STOPS_MAX


NAMED = re.compile(r"`([A-Z]\w+\.\w+)`")


def test_methods_that_the_text_names_exist() -> None:
    """Where the next things go is told by names that a search finds."""
    known = {
        name
        for path in (ROOT / "raftstore").rglob("*.py")
        for name in names_of(str(path.relative_to(ROOT / "raftstore")))
    }
    assert [name for name in NAMED.findall(PAGE) if name not in known] == []


PATH = re.compile(r"`((?:raftstore|tests|jepsen_like|docs)/[\w/.-]+|[a-z_]+(?:/[\w.-]+)+)`")


def test_paths_that_the_text_names_exist() -> None:
    """From the root, or below raftstore."""
    named = set(PATH.findall(PAGE))
    assert len(named) > 60, "paths were not found"
    gone = [
        path
        for path in named
        if not ((ROOT / path).exists() or (ROOT / "raftstore" / path).exists())
    ]
    assert sorted(gone) == []


THREAD = re.compile(r"(?:name=|Worker\(|Executor\([A-Z_]+, )\"(raftstore-[a-z]+)\"")


def test_table_of_threads_is_that_of_the_tree() -> None:
    """By the names that a debugger shows."""
    section_of_threads = PAGE.split("## A node's threads", 1)[1].split("\n## ", 1)[0]
    started = {
        name
        for path in (ROOT / "raftstore").rglob("*.py")
        for name in THREAD.findall(path.read_text(encoding="utf-8"))
    }
    assert set(re.findall(r"`(raftstore-[a-z]+)`", section_of_threads)) == started


COUNTED = re.compile(
    r"^\| parts of `(\w+)` \| \d+ files, now \d+ \| (\d+), now \d+ \| (\d+), now \d+ \|",
    re.MULTILINE,
)


def test_imports_between_parts_stay_fewer_than_before_the_rooms() -> None:
    """In folders, the subjects of a room know less of each other than files in a heap did."""
    before = {room: (int(arrows), int(floors)) for room, arrows, floors in COUNTED.findall(PAGE)}
    assert sorted(before) == ["client", "engine", "spark", "storage"]
    for room, (arrows, floors) in before.items():
        now = picture_of(f"raftstore.{room}")
        assert now.arrows < arrows, f"{room}: {now}"
        assert now.floors < floors, f"{room}: {now}"


NAMES_OF_TYPES = re.compile(r"\((ReadOptions, .*?)\) and \d+ more where it fails \((.*?)\)")


def test_types_on_the_way_of_a_get_exist() -> None:
    """Those that the page names; the others are parts of a file."""
    told = NAMES_OF_TYPES.search(PAGE)
    assert told is not None
    named = re.findall(r"\b[A-Z]\w+", f"{told[1]}, {told[2]}")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "raftstore").rglob("*.py")]
    classes = {name for text in sources for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    assert [name for name in named if name not in classes] == []
