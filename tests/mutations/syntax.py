"""Edits of the sources, found by qualified name and syntax tree.

Neither a path nor the layout of the text is part of an edit: it still fits when a module moves,
when lines are added, or when the formatter breaks them elsewhere.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

PACKAGES = ("raftstore", "jepsen_like", "pyspark_raftstore")
"""Where definitions are looked for; ``raftstore`` holds ``cli`` by a link."""
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a compound statement that are no part of its head."""
_FIRST_WORDS = re.compile(r"^[ \t]*(?:(?:async )?def |class )?(\w+)", re.MULTILINE)


class EditError(Exception):
    """An edit does not fit the sources, fits at several places, or changes nothing."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change within one function, class, constant or class attribute.

    ``old`` and ``new`` are source text, and ``old`` occurs exactly once in the definitions named
    ``name``. An empty ``new`` deletes what ``old`` is. They are one of these:

    * an expression each;
    * statements. A compound one whose body is ``...`` stands for its head with any body; a head in
      ``new`` gets that body, and a ``...`` by itself there is that body without its head;
    * elements, with a comma behind the last: arguments, or items of a list, a tuple or a dict;
    * cases of a ``match``.
    """

    name: str
    """Qualified, without its module: ``Leader.count``, ``RETRIES_MAX``, ``Settings.poll_ms``."""
    old: str
    new: str
    module: str = ""
    """Stem of the file, only where definitions of this name in several files hold ``old``."""

    def __str__(self) -> str:
        where = f"{self.name} of a module {self.module}" if self.module else self.name
        return f"in {where}: {self.old!r}"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a list of statements holds what is looked for: ``body[start:end]``."""

    body: list[ast.stmt]
    start: int
    end: int
    may_be_empty: bool = False
    """Whether the list may lose its last statement, as that behind an ``else`` may."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Elements or cases that are looked for: those from start to end of each list.

    There are two lists for a dict, its keys and its values.
    """

    lists: tuple[list[Any], ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a node holds the expression that is looked for."""

    parent: ast.AST
    field: str
    index: int | None


_Match = _Place | _Run | _Slot


class SourceTree:
    """The packages below one folder, parsed where an edit asks for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts = dict(_texts(root))
        self._trees: dict[str, ast.Module] = {}
        self._words: dict[str, frozenset[str]] = {}
        self._defined: dict[str, dict[str, list[_Place]]] = {}

    def path_of(self, edit: Edit) -> str:
        """The file that the edit changes, below the root; EditError unless it fits exactly once."""
        _check_itself(edit)
        found = [path for path in self._files(edit) for _ in self._matches(path, edit)]
        if len(found) != 1:
            raise EditError(self._complaint(edit, found))
        return found[0]

    def line_of(self, edit: Edit) -> tuple[str, int]:
        """The file and the line where what it looks for begins; EditError unless it fits once."""
        path = self.path_of(edit)
        (found,) = self._matches(path, edit)
        match found:
            case _Place(body, start):
                node: Any = body[start]
            case _Run(lists, start):
                node = lists[-1][start]
            case _Slot(parent, field, index):
                held = getattr(parent, field)
                node = held if index is None else held[index]
        return path, getattr(node, "pattern", node).lineno

    def check(self, edits: Sequence[Edit]) -> None:
        """EditError unless each edit fits exactly once, the others being made before it."""
        if len(edits) == 1:
            self.path_of(edits[0])
        else:
            self.patched(edits)

    def patched(self, edits: Sequence[Edit]) -> dict[str, ast.Module]:
        """The modules that change, by path; EditError when an edit does not fit or does nothing."""
        trees: dict[str, ast.Module] = {}
        for edit in edits:
            path = self.path_of(edit)
            if path not in trees:
                trees[path] = ast.parse(self._texts[path])
            scopes = [scope for name, scope in _definitions(trees[path]) if name == edit.name]
            matches = list(_matches(scopes, edit))
            if len(matches) != 1:
                raise EditError(f"an edit before it changes what is looked for {edit}")
            _replace(matches[0], edit)
        return trees

    def _files(self, edit: Edit) -> Iterator[str]:
        """Files that may have the definition."""
        parts = edit.name.split(".")
        for path, text in self._texts.items():
            if edit.module in ("", _stem(path)) and all(part in text for part in parts):
                if path not in self._words:
                    self._words[path] = frozenset(_FIRST_WORDS.findall(text))
                if self._words[path].issuperset(parts):
                    yield path

    def _scopes(self, path: str) -> dict[str, list[_Place]]:
        if path not in self._defined:
            defined: dict[str, list[_Place]] = {}
            for name, scope in _definitions(self._tree(path)):
                defined.setdefault(name, []).append(scope)
            # Only when it is complete: mutations are tried in several threads.
            self._defined[path] = defined
        return self._defined[path]

    def _matches(self, path: str, edit: Edit) -> Iterator[_Match]:
        return _matches(self._scopes(path).get(edit.name, ()), edit)

    def _tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self._texts[path])
        return self._trees[path]

    def _complaint(self, edit: Edit, found: Sequence[str]) -> str:
        if found:
            return f"{len(found)} places, instead of one, have {edit}; they are in {_joined(found)}"
        scopes = {
            path: scope
            for path in self._files(edit)
            for scope in self._scopes(path).get(edit.name, ())
        }
        if not scopes:
            known = {name for path in self._texts for name in self._scopes(path)}
            leaf = edit.name.rpartition(".")[2]
            near = [name for name in sorted(known) if name.rpartition(".")[2] == leaf]
            near += difflib.get_close_matches(edit.name, known, 3)
            return f"nothing is named {edit.name}; near are {_joined(near[:5]) or 'none'}"
        lines = [
            line.strip()
            for scope in scopes.values()
            for line in ast.unparse(scope.body[scope.start]).splitlines()
        ]
        near = difflib.get_close_matches(edit.old.strip().partition("\n")[0], lines, 3, 0.3)
        return f"no place, instead of one, has {edit} ({_joined(list(scopes))}); near are {near}"


def source_of(tree: ast.Module) -> str:
    """The text of a patched module, which means exactly the same."""
    text = ast.unparse(tree)
    if ast.dump(ast.parse(text)) != ast.dump(tree):
        raise EditError("the patched module cannot be written as text; patch another place of it")
    return text


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for folder, folders, files in os.walk(root / package, followlinks=True):
            folders.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    path = Path(folder, name)
                    yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")


def _joined(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


# --- definitions ----------------------------------------------------------------------------------


def _definitions(tree: ast.Module) -> Iterator[tuple[str, _Place]]:
    """Everything that has a qualified name, with its own statement."""
    return _named_in(tree, "", has_variables=True)


def _named_in(parent: ast.AST, prefix: str, *, has_variables: bool) -> Iterator[tuple[str, _Place]]:
    """``has_variables``: what is assigned here belongs to the module or to a class."""
    for body, may_be_empty in _bodies(parent):
        for index, node in enumerate(body):
            place = _Place(body, index, index + 1, may_be_empty)
            match node:
                case ast.ClassDef(name=name):
                    yield prefix + name, place
                    yield from _named_in(node, f"{prefix}{name}.", has_variables=True)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield prefix + name, place
                    yield from _named_in(node, f"{prefix}{name}.", has_variables=False)
                case ast.Assign(targets=targets) if has_variables:
                    names = [target.id for target in targets if isinstance(target, ast.Name)]
                    yield from ((prefix + name, place) for name in names)
                case ast.AnnAssign(target=ast.Name(id=name)) if has_variables:
                    yield prefix + name, place
                case _:
                    yield from _named_in(node, prefix, has_variables=has_variables)


def _bodies(node: ast.AST) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Lists of statements of a node, and whether each may be empty."""
    for field in BODIES:
        body = getattr(node, field, None)
        if isinstance(body, list):
            yield body, field != "body"


# --- what is looked for ---------------------------------------------------------------------------


def _matches(scopes: Iterable[_Place], edit: Edit) -> Iterator[_Match]:
    """Every place of these definitions that the edit fits."""
    for scope in scopes:
        node = scope.body[scope.start]
        if _is_of_elements(edit.old):
            yield from _runs_like(node, _elements(edit.old))
        elif _is_of_expressions(edit):
            yield from _expressions_like(node, _expression(edit.old))
        else:
            yield from _statements_like(scope, _statements(edit.old))


@lru_cache(maxsize=64)
def _is_of_expressions(edit: Edit) -> bool:
    try:
        return bool(_expression(edit.old)) and bool(_expression(edit.new))
    except SyntaxError:
        return False


def _is_of_elements(text: str) -> bool:
    return text.rstrip().endswith(",") or text.lstrip().startswith("case ")


def _elements(text: str) -> tuple[list[Any], ...]:
    """The lists that a run of elements is made of: arguments, keywords, keys and values, cases."""
    text = textwrap.dedent(text).strip()
    if text.startswith("case "):
        match = _statements("match x:\n" + textwrap.indent(text, "    "))[0]
        return (match.cases,) if isinstance(match, ast.Match) else ()
    with contextlib.suppress(SyntaxError):
        call = ast.parse(f"f({text}\n)", mode="eval").body
        assert isinstance(call, ast.Call)
        if bool(call.args) != bool(call.keywords):
            return (call.args or call.keywords,)
    with contextlib.suppress(SyntaxError):
        items = ast.parse(f"{{{text}\n}}", mode="eval").body
        if isinstance(items, ast.Dict):
            return items.keys, items.values
    raise EditError(f"neither arguments alone, nor keywords, nor items of a dict: {text!r}")


def _runs_like(scope: ast.AST, wanted: tuple[list[Any], ...]) -> Iterator[_Run]:
    count = len(wanted[0])
    for node in ast.walk(scope):
        for lists in _lists_of(node, wanted):
            for start in range(len(lists[0]) - count + 1):
                here = [part[start : start + count] for part in lists]
                if all(_alike(ours, theirs) for ours, theirs in zip(here, wanted, strict=True)):
                    yield _Run(lists, start, start + count)


def _lists_of(node: ast.AST, wanted: tuple[list[Any], ...]) -> Iterator[tuple[list[Any], ...]]:
    """The lists of a node that may hold such elements."""
    if len(wanted) == 2:
        if isinstance(node, ast.Dict):
            yield node.keys, node.values
        return
    fields = {ast.keyword: ("keywords",), ast.match_case: ("cases",)}
    for field in fields.get(type(wanted[0][0]), ("args", "elts", "bases")):
        part = getattr(node, field, None)
        if isinstance(part, list):
            yield (part,)


def _alike(nodes: list[Any], wanted: list[Any]) -> bool:
    return all(_is_like(node, one) for node, one in zip(nodes, wanted, strict=True))


def _expression(text: str) -> ast.expr:
    if not text.strip():
        raise SyntaxError("nothing is no expression")
    return ast.parse(f"({textwrap.dedent(text).strip()}\n)", mode="eval").body


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(text)).body
    except SyntaxError as error:
        raise EditError(f"neither statements nor an expression: {text!r} ({error.msg})") from None


def _expressions_like(scope: ast.AST, wanted: ast.expr) -> Iterator[_Slot]:
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                for index, part in enumerate(value):
                    if _is_same(part, wanted):
                        yield _Slot(parent, field, index)
            elif _is_same(value, wanted):
                yield _Slot(parent, field, None)


def _statements_like(scope: _Place, wanted: Sequence[ast.stmt]) -> Iterator[_Place]:
    within = [
        _Place(body, 0, len(body), may_be_empty)
        for node in ast.walk(scope.body[scope.start])
        for body, may_be_empty in _bodies(node)
    ]
    for place in (scope, *within):
        for start in range(place.start, place.end - len(wanted) + 1):
            end = start + len(wanted)
            if all(map(_is_like, place.body[start:end], wanted)):
                yield _Place(place.body, start, end, place.may_be_empty)


def _is_like(node: ast.AST | None, wanted: ast.AST | None) -> bool:
    if node is None or wanted is None or type(node) is not type(wanted):
        return node is wanted  # None as the key of a dict: what is unpacked into it
    if not _is_head(wanted):
        return _is_same(node, wanted)
    return all(
        _is_same(getattr(node, field), getattr(wanted, field))
        for field in wanted._fields
        if field not in BODIES
    )


def _is_head(node: ast.AST) -> bool:
    """Whether the statement, or the case, stands for itself with any body."""
    body = getattr(node, "body", None)
    return isinstance(body, list) and [_is_rest(inner) for inner in body] == [True]


def _is_rest(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Constant) and node.value.value is ...
    )


def _is_same(ours: object, theirs: object) -> bool:
    """Whether two nodes, lists or values mean the same; ends at the first difference."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, ast.AST):
        fields = ours._fields
        return all(_is_same(getattr(ours, f, None), getattr(theirs, f, None)) for f in fields)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_is_same, ours, theirs))
    return ours == theirs


def _check_itself(edit: Edit) -> None:
    """EditError when the edit makes no sense whatever the sources are."""
    if not edit.old.strip():
        raise EditError(f"it looks for nothing; name what it is put next to, {edit}")
    old, new = _fragments(edit)
    if len(old) != len(new):
        raise EditError(f"it puts something of another kind {edit}")
    if _is_same(list(old), list(new)):
        raise EditError(f"it changes nothing {edit}")
    looked_for = sum(_is_head(node) for node in old[0] if node is not None)
    if looked_for < sum(_is_head(n) or _is_rest(n) for n in new[0] if n is not None):
        raise EditError(f"it has more bodies to keep than it looks for {edit}")


def _fragments(edit: Edit) -> tuple[tuple[list[Any], ...], tuple[list[Any], ...]]:
    """The code that is looked for, and the code that takes its place."""
    if _is_of_elements(edit.old):
        old = _elements(edit.old)
        return old, _elements(edit.new) if edit.new.strip() else tuple([] for _ in old)
    if _is_of_expressions(edit):
        return ([_expression(edit.old)],), ([_expression(edit.new)],)
    return (_statements(edit.old),), (_statements(edit.new),)


# --- the change -----------------------------------------------------------------------------------


def _replace(place: _Match, edit: Edit) -> None:
    match place:
        case _Slot():
            _replace_expression(place, edit)
        case _Run():
            _replace_elements(place, edit)
        case _Place():
            _replace_statements(place, edit)


def _replace_elements(run: _Run, edit: Edit) -> None:
    old, new = _fragments(edit)
    pairs = zip(run.lists[0][run.start : run.end], old[0], strict=True)
    heads = iter([node for node, wanted in pairs if wanted is not None and _is_head(wanted)])
    near = getattr(run.lists[-1][run.start], "pattern", run.lists[-1][run.start])
    for part, elements in zip(run.lists, new, strict=True):
        for element in elements:
            if element is not None:
                _locate(near, element)
        part[run.start : run.end] = [
            kept
            for element in elements
            for kept in ([element] if element is None else _with_its_body(element, heads))
        ]


def _replace_expression(slot: _Slot, edit: Edit) -> None:
    new = _expression(edit.new)
    if slot.index is None:
        setattr(slot.parent, slot.field, new)
    else:
        getattr(slot.parent, slot.field)[slot.index] = new
    _locate(slot.parent, new)


def _replace_statements(place: _Place, edit: Edit) -> None:
    matched = place.body[place.start : place.end]
    pairs = zip(matched, _statements(edit.old), strict=True)
    heads = iter([node for node, wanted in pairs if _is_head(wanted)])
    new = _statements(edit.new)
    for node in new:
        _locate(matched[0], node)
    replaced = [kept for node in new for kept in _with_its_body(node, heads)]
    place.body[place.start : place.end] = replaced
    if not place.body and not place.may_be_empty:
        place.body.append(ast.copy_location(ast.Pass(), matched[0]))


def _with_its_body(node: Any, heads: Iterator[Any]) -> list[Any]:
    """Statements that one statement or case of ``new`` stands for: a head gets the next body of
    ``old``.
    """
    if not _is_rest(node) and not _is_head(node):
        return [node]
    kept = next(heads)
    if _is_rest(node):
        return list(getattr(kept, "body", []))
    for field in BODIES:
        if field in node._fields and field in kept._fields:
            if field == "body" or not getattr(node, field):
                setattr(node, field, getattr(kept, field))
    return [node]


def _locate(near: ast.AST, new: ast.AST) -> None:
    """Line numbers of what is new: those of the place where it was put."""
    line = getattr(near, "lineno", 1)
    for node in ast.walk(new):
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
