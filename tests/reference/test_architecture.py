"""The tables of stops in docs/architecture.md name functions of the tree, and count them right."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.reference.pages import setting_texts
from tests.reference.picture import picture_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DECISION = (ROOT / "docs" / "decisions" / "0018-rooms-by-subject.md").read_text(encoding="utf-8")
WAYS = ("A put", "A linearizable get", "A bounded get", "A micro-batch", "A catch-up")
ROW = re.compile(
    r"^\| (\d+) \| `([\w/]+\.py)` `([\w.]+)` \| (.+?) \| (.+?) \| (.*?) ?\|$", re.MULTILINE
)
STOPS_MAX = 30
"""Of any way: a new stop on the longest one has to take the place of another."""


def section(title: str) -> str:
    """The text below a heading, down to the next."""
    return re.split(r"^#+ ", PAGE.split(f"### {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


class Names(NamedTuple):
    """Names that a module defines."""

    functions: frozenset[str]
    """With methods, by qualified name."""
    others: frozenset[str]
    """Classes, and all that a module or a class assigns."""


@cache
def names_of(path: Path) -> Names:
    """Look through the source of a module."""
    functions: set[str] = set()
    others: set[str] = set()

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.add(prefix + child.name)
            elif isinstance(child, ast.ClassDef):
                others.add(child.name)
                look(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                others.update(each.id for each in targets if isinstance(each, ast.Name))

    look(ast.parse(path.read_text(encoding="utf-8")), "")
    return Names(frozenset(functions), frozenset(others))


@cache
def modules() -> tuple[Path, ...]:
    """All of the package, of the command line and of the kit for faults."""
    folders = ("raftstore", "cli", "jepsen_like")
    return tuple(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("way", WAYS)
def test_every_stop_of_a_way_is_a_function_of_the_tree(way: str) -> None:
    """Rows are numbered without a gap; each says where it runs and what it does."""
    text = section(way)
    rows = ROW.findall(text)
    assert len(rows) == len(re.findall(r"^\| \d", text, re.MULTILINE)), (
        "a row that is none of a stop"
    )
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    known = {row[1]: names_of(ROOT / "raftstore" / row[1]).functions for row in rows}
    assert [row[1:3] for row in rows if row[2] not in known[row[1]]] == []


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_stops_and_files_are_those_of_the_table(way: str) -> None:
    """The sums are those of the rows, and stay below a bound."""
    text = section(way)
    rows = ROW.findall(text)
    told = re.search(r"^(\d+) stops in (\d+) files", text, re.MULTILINE)
    assert told is not None
    assert (int(told[1]), int(told[2])) == (len(rows), len({row[1] for row in rows}))
    assert len(rows) <= STOPS_MAX


PROSE = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
METHOD = re.compile(r"`([A-Z]\w+\.\w+)`")
NAME = re.compile(r"`(\w*[A-Z_]\w*)`")
"""A capital or an underscore distinguishes names of the code from words."""
VALUES = {"reader_of_changes"}
"""Names that are texts in the code."""


@pytest.mark.slow
def test_names_that_the_text_names_exist() -> None:
    """The text says where things go by names that a search finds."""
    functions = {name for path in modules() for name in names_of(path).functions}
    assert [name for name in METHOD.findall(PROSE) if name not in functions] == []
    known = {name.rpartition(".")[2] for name in functions}
    known |= {name for path in modules() for name in names_of(path).others}
    known |= {path.parent.name if path.stem == "__init__" else path.stem for path in modules()}
    named = set(NAME.findall(PROSE))
    assert len(named) > 50, "names were not found"
    assert sorted(named - known - VALUES) == []


ROOM = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", re.MULTILINE)


def test_table_of_rooms_is_that_of_the_tree() -> None:
    """Every room of the package, every module beside them, and every folder of a room is there."""
    table = PAGE.split("| room | in it |", 1)[1].split("\n\n", 1)[0]
    told: dict[str, set[str]] = {}
    for cell, text in ROOM.findall(table):
        folders = set(re.findall(r"`(\w+)/`", text))
        told |= dict.fromkeys(re.findall(r"\w+", cell), folders)
    package = ROOT / "raftstore"
    present = {
        path.name: {each.parent.name for each in path.glob("*/__init__.py")}
        for path in package.iterdir()
        if (path / "__init__.py").exists()
    }
    present |= {path.stem: set() for path in package.glob("*.py") if path.stem != "__init__"}
    assert told == present


REFERENCE = re.compile(r"``((?:[a-z_]+\.)+\w+)``")
OBJECTS = {
    "base", "client", "connection", "context", "loop", "options", "spec", "state", "table",
}  # fmt: skip
"""Names of values, whose attributes or methods a docstring names."""
ELSEWHERE = (
    "history.jsonl", "jdk.incubator.vector", "multiprocessing.Pool", "raftstore.connect",
    "raftstore.json",
)  # fmt: skip
"""Files, names of other libraries, and what the package makes on demand."""


def resolves(reference: str, path: Path) -> bool:
    """Whether it is a module, or a name in one: from the package, or from a folder above."""
    above = [parent for parent in path.parents if parent.is_relative_to(ROOT)]
    for parent in (*above, ROOT / "raftstore"):
        module = parent
        for at, part in enumerate(parts := reference.split(".")):
            if (module / part).is_dir():
                module /= part
            elif (file := (module / part).with_suffix(".py")).exists():
                known = {name.partition(".")[0] for name in names_of(file).functions}
                if at == len(parts) - 1 or parts[at + 1] in known | names_of(file).others:
                    return True
                break
            else:
                break
        else:
            return True
    return False


def test_names_with_dots_in_docstrings_resolve() -> None:
    """A stranger follows them: they are modules, names in one, settings, or of a known object."""
    keys = set(setting_texts())
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        for name in REFERENCE.findall(path.read_text(encoding="utf-8"))
        if name.partition(".")[0] not in OBJECTS
        and not name.startswith(ELSEWHERE)
        and name not in keys
        and not resolves(name, path)
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ["engine", "protocol"])
def test_docstring_of_a_room_names_its_parts(room: str) -> None:
    """The docstrings of the largest rooms list all of their parts."""
    folder = ROOT / "raftstore" / room
    parts = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    parts |= {path.parent.name for path in folder.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert sorted(parts - set(re.findall(r"``(\w+)``", text or ""))) == []


PATH = re.compile(r"`((?:raftstore|tests|jepsen_like|docs)/[\w/.-]+|[a-z_]+(?:/[\w.-]+)+)`")


NO_PATHS = {"data/clicks", "found/script.txt", "text/plain"}
"""Of a user, and a media type."""


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name
)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    """From the root, or below raftstore or tests."""
    named = set(PATH.findall(page.read_text(encoding="utf-8"))) - NO_PATHS
    bases = (ROOT, ROOT / "raftstore", ROOT / "tests")
    assert sorted(path for path in named if not any((base / path).exists() for base in bases)) == []


def test_paths_are_found_where_they_are_many() -> None:
    """The test above finds the paths of this page, of which there are many."""
    assert len(set(PATH.findall(PAGE))) > 60


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
    r"^\| parts of `(\w+)` \| \d+ files, \d+, \d+ \| (\d+), \d+, \d+ \| (\d+), \d+, \d+ \|",
    re.MULTILINE,
)


def test_imports_between_parts_stay_fewer_than_before_the_rooms() -> None:
    """In folders, the subjects of a room know less of each other than files in a heap did."""
    before = {
        room: (int(arrows), int(floors)) for room, arrows, floors in COUNTED.findall(DECISION)
    }
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
    classes = {name for path in modules() for name in names_of(path).others}
    assert [name for name in named if name not in classes] == []
