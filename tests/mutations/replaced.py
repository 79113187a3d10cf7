"""The functions that an edit changes, and their new code put into those that run.

An edited file is compiled and compared with the original. Where only bodies of functions differ,
their code is replaced in the functions that are imported, and nothing is imported again.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

from tests.mutants.forks import functions_below

Key = tuple[str, int, bytes]
"""Qualified name, first line and instructions of a function."""
Change = tuple[CodeType, CodeType]
"""The code of a function in the original file, and in the edited one."""


class NotReplaceableError(Exception):
    """The edit changes something that has run when the module was imported."""


class Functions:
    """The functions of a workplace's modules that this process has imported."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_file: dict[str, dict[Key, list[FunctionType]]] = {}
        for function in functions_below(str(root)):
            keys = self._by_file.setdefault(function.__code__.co_filename, {})
            keys.setdefault(_key(function.__code__), []).append(function)

    def replace(self, paths: Sequence[str]) -> None:
        """Give them the code of these files, which were edited; all of it, or nothing.

        Raises NotReplaceableError. A file that is not imported yet needs nothing: its import will
        have the edit.
        """
        found: list[tuple[FunctionType, CodeType]] = []
        for path in paths:
            file = self._root / path
            if functions := self._by_file.get(str(file)):
                original = (self._root / "unedited" / path).read_text(encoding="utf-8")
                for before, after in changes(original, file.read_text(encoding="utf-8")):
                    found.extend((one, after) for one in functions.get(_key(before), ()))
        for function, code in found:
            if function.__code__.co_freevars != code.co_freevars:
                raise NotReplaceableError(f"{code.co_qualname} has other free variables")
        for function, code in found:
            function.__code__ = code


def changes(original: str, edited: str) -> list[Change]:
    """The functions whose code differs; NotReplaceableError where other code does, too."""
    before = _compiled(original)
    # The edited text lost its layout, and instructions depend on which line is whose: so the
    # original is compared without its layout, too, and found again by its place in the file.
    plain = _compiled(ast.unparse(ast.parse(original)))
    by_plain = dict(zip(map(id, _all(plain)), _all(before), strict=True))
    return [(by_plain[id(old)], new) for old, new in _differing(plain, _compiled(edited))]


def _compiled(text: str) -> CodeType:
    return compile(text, "edited", "exec", dont_inherit=True)


def _key(code: CodeType) -> Key:
    return code.co_qualname, code.co_firstlineno, code.co_code


def _inner(code: CodeType) -> list[CodeType]:
    return [part for part in code.co_consts if isinstance(part, CodeType)]


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in _inner(code):
        yield from _all(part)


def _differing(before: CodeType, after: CodeType) -> Iterator[Change]:
    if _own(before) != _own(after):
        if not before.co_flags & inspect.CO_OPTIMIZED:
            raise NotReplaceableError(f"{before.co_qualname} changes what its import does")
        yield before, after
        return
    inner = [
        change
        for old, new in zip(_inner(before), _inner(after), strict=True)
        for change in _differing(old, new)
    ]
    if inner and before.co_flags & inspect.CO_OPTIMIZED:
        yield before, after  # what it makes from now on has the new code
    yield from inner


def _own(code: CodeType) -> tuple[object, ...]:
    """Everything of a code object but the functions within, and where its lines are."""
    constants = [
        part.co_qualname if isinstance(part, CodeType) else (type(part), repr(part))
        for part in code.co_consts
    ]
    return (
        code.co_qualname,
        code.co_code,
        code.co_exceptiontable,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
    )
