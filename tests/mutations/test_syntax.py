"""Edits find what they name, wherever it moves, and say clearly when they do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutations import syntax
from tests.mutations.syntax import Edit, EditError, SourceTree, source_of

COUNT = '''"""A room."""

LIMITS = {"rows": 3, "bytes": MIB}
RETRIES: int = 3

class Leader:
    """Counts."""

    patience_ms: int = 5

    @property
    def count(self) -> int:
        """Of those that hold it."""
        if self.a < self.b:  # a comment
            self.tell(
                "less",
                why=LIMITS,
            )
            return 1
        elif self.a:
            return 2
        else:
            self.tell("more")
        match self.a:
            case 1 | 2:
                return 3
            case Other(kind):
                self.tell(kind)
        return call(1, *rest, limit=3, seconds=1.5)

def call(a, b=2):
    def inner():
        return a >= b
    return inner()
'''
TELL = 'self.tell("less", why=LIMITS)'


def _tree(tmp_path: Path, **modules: str) -> SourceTree:
    for name, text in modules.items():
        path = tmp_path / "raftstore" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return SourceTree(tmp_path)


def _patched(tmp_path: Path, *edits: Edit) -> str:
    """The text of the sample after the edits, in Python's own layout."""
    (patched,) = _tree(tmp_path, rooms=COUNT).patched(edits).values()
    compile(patched, "rooms.py", "exec")
    return source_of(patched)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (Edit("Leader.count", "self.a < self.b", "False"), "if self.a < self.b", "if False"),
        (
            Edit("Leader.count", "if self.a < self.b: ...", "if True: ..."),
            "if self.a < self.b",
            "if True",
        ),
        (Edit("Leader.count", TELL, ""), "self.tell('less', why=LIMITS)\n            ", ""),
        (Edit("Leader.count", 'self.tell("more")', ""), "else:\n            self.tell('more')", ""),
        (Edit("Leader.count", "why=LIMITS,", ""), ", why=LIMITS", ""),
        (Edit("Leader.count", "*rest,", "*rest, None,"), "*rest", "*rest, None"),
        (Edit("Leader.count", "case 1 | 2: ...", "case 1: ..."), "case 1 | 2", "case 1"),
        (Edit("Leader.count", "1.5", "2.5"), "1.5", "2.5"),
        (Edit("Leader.patience_ms", "5", "6"), "patience_ms: int = 5", "patience_ms: int = 6"),
        (Edit("LIMITS", '"rows": 3,', ""), "'rows': 3, ", ""),
        (Edit("LIMITS", "MIB", "KIB"), "MIB", "KIB"),
        (Edit("RETRIES", "3", "4"), "RETRIES: int = 3", "RETRIES: int = 4"),
        (Edit("call", "def call(a, b=2): ...", "def call(a, b=3): ..."), "b=2", "b=3"),
        (
            Edit("call", "return inner()", "x()\nreturn inner()"),
            "return inner()",
            "x()\n    return inner()",
        ),
        (Edit("call.inner", "a >= b", "a > b"), "a >= b", "a > b"),
        (
            Edit("Leader", "@property\ndef count(self) -> int: ...", "def count(self) -> int: ..."),
            "@property\n    ",
            "",
        ),
    ],
    ids=lambda value: value.new or "delete" if isinstance(value, Edit) else "",
)
def test_edit_changes_what_it_names_and_nothing_else(
    tmp_path: Path, edit: Edit, before: str, after: str
) -> None:
    """Conditions, statements, arguments, cases, defaults, decorators, attributes, constants."""
    sound = ast.unparse(ast.parse(COUNT))
    assert sound.count(before) == 1
    expected = "\n".join(line for line in sound.replace(before, after).splitlines() if line.strip())
    found = _patched(tmp_path, edit)
    assert "\n".join(line for line in found.splitlines() if line.strip()) == expected


def test_head_may_lose_its_body_or_the_body_its_head(tmp_path: Path) -> None:
    """``...`` is what stood below the statement."""
    text = _patched(tmp_path, Edit("Leader.count", "if self.a < self.b: ...", "..."))
    assert "self.a < self.b" not in text
    assert "self.tell('less', why=LIMITS)\n        return 1\n" in text


def test_edit_follows_its_definition_to_another_file(tmp_path: Path) -> None:
    """No path is part of it, nor is the layout of the text."""
    edit = Edit("Leader.count", TELL, "")
    assert _tree(tmp_path, rooms=COUNT).path_of(edit) == "raftstore/rooms.py"
    (tmp_path / "raftstore" / "rooms.py").rename(tmp_path / "raftstore" / "others.py")
    assert SourceTree(tmp_path).path_of(edit) == "raftstore/others.py"


def test_name_in_several_files_is_told_apart_by_what_is_looked_for(tmp_path: Path) -> None:
    """The file's name is needed only where both hold it."""
    both = _tree(tmp_path, rooms=COUNT, others=COUNT.replace("self.b", "self.c"))
    assert both.path_of(Edit("Leader.count", "self.a < self.c", "True")) == "raftstore/others.py"
    with pytest.raises(EditError, match=r"2 places, instead of one, .*others.py, raftstore/rooms"):
        both.path_of(Edit("Leader.count", TELL, ""))
    assert both.path_of(Edit("Leader.count", TELL, "", "rooms")) == "raftstore/rooms.py"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            Edit("Leader.counts", "x", "y"),
            r"nothing is named Leader\.counts; near are Leader\.count",
        ),
        (
            Edit("Leader.count", "self.a < self.c", "y"),
            r"no place, .*near are \['if self\.a < self\.b:",
        ),
        (Edit("Leader.count", "self.a", "y"), r"3 places, instead of one"),
        (Edit("Leader.count", "1.5", "1.5"), "it changes nothing"),
        (Edit("Leader.count", TELL, 'self.tell("less",why=LIMITS)'), "it changes nothing"),
        (
            Edit("Leader.count", "if self.a < self.b: ...", "if self.a < self.b: ..."),
            "it changes nothing",
        ),
        (Edit("Leader.count", "why=LIMITS,", "why=LIMITS,"), "it changes nothing"),
        (Edit("Leader.count", "if if", ""), "neither statements nor an expression"),
        (Edit("Leader.count", "", "x"), "looks for nothing"),
        (Edit("Leader.count", "return 1", "..."), "more bodies to keep"),
    ],
    ids=range(10),
)
def test_edit_that_does_not_fit_is_refused(tmp_path: Path, edit: Edit, told: str) -> None:
    """The error says what was looked for, and what is like it."""
    with pytest.raises(EditError, match=told):
        _patched(tmp_path, edit)


def test_edits_of_one_module_are_made_one_after_the_other(tmp_path: Path) -> None:
    """Two changes of one function are one mutation."""
    text = _patched(
        tmp_path,
        Edit("Leader.count", "self.a < self.b", "self.a > self.b"),
        Edit("RETRIES", "3", "9"),
    )
    assert "if self.a > self.b:" in text
    assert "RETRIES: int = 9" in text
    with pytest.raises(EditError, match="an edit before it"):
        _patched(tmp_path, Edit("RETRIES", "3", "9"), Edit("RETRIES", "3", "8"))


def test_definitions_are_looked_up_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations share the sources; one that asks while another still reads a file finds all."""
    sources = _tree(tmp_path, module="def first():\n    return 1\n\n\ndef last():\n    return 2\n")
    real, found = syntax._definitions, list[str]()

    def interrupted(tree: ast.Module) -> Iterator[Any]:
        for number, definition in enumerate(real(tree)):
            if number == 1 and not found:
                found.append("another thread")
                found.append(sources.path_of(Edit("last", "2", "3")))
            yield definition

    monkeypatch.setattr(syntax, "_definitions", interrupted)
    path = sources.path_of(Edit("first", "1", "3"))
    assert found == ["another thread", path]
