"""Small changes of a program's meaning, each in the body of one function.

A change is made in the syntax tree of one statement, or of the expression at its head, and put into
the source as text. It is named by its function and by that statement before and after, so that its
name stays when lines move. Left out is what no test should notice: annotations, docstrings, texts,
log calls, assertions, and what runs at import (bounds mostly: one more or less is as good).
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNSWAPPED = frozenset({"isinstance", "cast", "getattr", "NewType", "range", "starting"})
"""Calls whose arguments stay in their order: ``starting`` only makes a message of them."""
LOG_CALLS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
UNTOUCHED = frozenset({"__repr__", "__str__"})
NUMBERS = frozenset({"int", "Seq", "Term", "float"})
EMPTY = {"list": "[]", "tuple": "()", "dict": "{}", "bytes": "b''", "str": "''"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function."""

    path: str
    """Of the file, from the top of the checkout."""
    function: str
    """Qualified name in the module."""
    first_line: int
    """Of the function, its decorators included: properties share a name with their setters."""
    line: int
    last_line: int
    """Of what is replaced."""
    before: str
    after: str
    number: int
    """Counts equal changes of one function."""
    start: int
    end: int
    """What is replaced in the source, in bytes."""
    text: str

    @property
    def name(self) -> str:
        """Stays the same when other lines change."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.path}::{self.function}: {self.before} -> {self.after}{again}"

    def apply(self, source: str) -> str:
        """The source of its file with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.text.encode() + raw[self.end :]).decode()


@cache
def source_of(path: str) -> str:
    """The file as it was when this process first looked."""
    return (ROOT / path).read_text(encoding="utf-8")


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All changes of a file, in the order of its functions."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    known: set[tuple[int, str]] = set()
    for name, function in _functions(ast.parse(source)):
        counts: Counter[tuple[str, str]] = Counter()
        first_line = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        for place, changed, is_test in _changes_of(function):
            assert place.end_lineno is not None
            assert place.end_col_offset is not None
            before, after = ast.unparse(place), ast.unparse(changed)
            is_statement = isinstance(place, ast.stmt)
            start = starts[place.lineno - 1] + place.col_offset
            if before == after or (start, after) in known:
                continue  # two ways to the same change
            known.add((start, after))
            counts[before, after] += 1
            mutant = Mutant(
                path=path,
                function=name,
                first_line=first_line,
                line=place.lineno,
                last_line=place.end_lineno,
                before=f"if {before}" if is_test else before,
                after=f"if {after}" if is_test else after,
                number=counts[before, after],
                start=start,
                end=starts[place.end_lineno - 1] + place.end_col_offset,
                text=after if is_statement else f"({after})",
            )
            found.append(mutant)
    return found


def _functions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions of a module and of its classes; those within functions belong to these."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in UNTOUCHED:
                yield prefix + node.name, node


def _changes_of(function: Function) -> Iterator[tuple[ast.AST, ast.AST, bool]]:
    """Each replaced node with its replacement, and whether it is a condition."""
    for statement in _statements(function.body):
        # Without an attribute nothing works at all, which says little of the tests.
        if function.name != "__init__" or not isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from ((statement, change, False) for change in _of_statement(statement))
        for head, is_test in _heads(statement):
            if is_test:
                verdicts = (False,) if isinstance(statement, ast.While) else (True, False)
                yield from ((head, ast.Constant(verdict), True) for verdict in verdicts)
            yield from ((head, change, is_test) for change in _inside(head))
    for inner in (function, *_inner(function)):
        for returned in _returns(inner):
            yield from ((returned, change, False) for change in _other_values(inner, returned))


def _inner(function: Function) -> Iterator[Function]:
    for node in ast.walk(function):
        if node is not function and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _statements(part.body)


def _heads(statement: ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, bool]]:
    """The parts of a statement that are changed one at a time; whether each is a condition."""
    match statement:
        case ast.If() | ast.While():
            yield statement.test, True
        case ast.For() | ast.AsyncFor():
            yield statement.iter, False
        case ast.With() | ast.AsyncWith():
            yield from ((item.context_expr, False) for item in statement.items)
        case ast.Match():
            yield statement.subject, False
            yield from ((case.guard, True) for case in statement.cases if case.guard is not None)
        case ast.Expr(value=value) if not isinstance(value, ast.Constant) and not _logs(value):
            yield statement, False
        case ast.Return() | ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.Delete():
            yield statement, False


def _logs(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in LOG_CALLS


def _of_statement(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Without the statement, or with another jump."""
    match statement:
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Return(value=None) | ast.Raise():
            yield ast.Pass()
        case ast.Delete(targets=targets) if not all(isinstance(t, ast.Name) for t in targets):
            yield ast.Pass()  # of a name it only says that nobody needs it
        case ast.Expr(value=ast.Call() | ast.Await()) if not _logs(statement.value):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.AugAssign() | ast.AnnAssign(target=ast.Attribute()):
            yield ast.Pass()


def _inside(head: ast.AST) -> Iterator[ast.AST]:
    """The head with one of its parts changed."""
    for index, node in enumerate(_parts(head)):
        for change in _of_node(node):
            yield _replaced(head, index, change)


def _parts(head: ast.AST) -> Iterator[ast.AST]:
    """Parts of an expression or of a simple statement, always in the same order."""
    yield head
    for name, value in ast.iter_fields(head):
        if name == "annotation" or isinstance(head, ast.JoinedStr):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _parts(part)


def _replaced(head: ast.AST, index: int, change: ast.AST) -> ast.AST:
    if index == 0:
        return change
    changed = copy.deepcopy(head)
    target = list(_parts(changed))[index]
    for parent in ast.walk(changed):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, change)
            elif isinstance(value, list) and any(part is target for part in value):
                value[:] = [change if part is target else part for part in value]
    return changed


def _of_node(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp():
            yield from _of_condition(node)
        case ast.Constant():
            yield from _of_constant(node)
        case ast.BinOp(left=left, right=right):
            other = ARITHMETIC.get(type(node.op))
            if other and not (_is_text(left) or _is_text(right)):
                yield ast.BinOp(left, other(), right)
        case ast.AugAssign(target=target, value=value):
            other = ARITHMETIC.get(type(node.op))
            if other and not _is_text(value):
                yield ast.AugAssign(target, other(), value)
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.comprehension(target=target, iter=iterated, ifs=[_, *rest]):
            yield ast.comprehension(target, iterated, rest, node.is_async)
        case ast.Call():
            yield from _of_call(node)


def _of_condition(node: ast.Compare | ast.BoolOp | ast.UnaryOp) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=others):
            if other := COMPARISONS.get(type(operator)):
                yield ast.Compare(left, [other()], others)
        case ast.BoolOp(op=joined_by, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(joined_by, ast.And) else ast.And(), values)
            for left_out in range(len(values)):
                rest = values[:left_out] + values[left_out + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(joined_by, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand


def _of_constant(node: ast.Constant) -> Iterator[ast.Constant]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        if value:
            yield ast.Constant(value - 1)


def _is_text(value: ast.expr) -> bool:
    literal = isinstance(value, ast.Constant) and isinstance(value.value, str | bytes)
    return literal or isinstance(value, ast.JoinedStr | ast.Tuple | ast.List | ast.Dict)


def _of_call(call: ast.Call) -> Iterator[ast.Call]:
    called = call.func.id if isinstance(call.func, ast.Name) else ""
    if called in NAMES:
        yield ast.Call(ast.Name(NAMES[called]), call.args, call.keywords)
        return
    if called in UNSWAPPED or any(isinstance(argument, ast.Starred) for argument in call.args):
        return
    for index in range(len(call.args) - 1):
        args = list(call.args)
        args[index], args[index + 1] = args[index + 1], args[index]
        yield ast.Call(call.func, args, call.keywords)


def _returns(function: Function) -> Iterator[ast.Return]:
    for statement in _statements(function.body):
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield statement


def _other_values(function: Function, returned: ast.Return) -> Iterator[ast.Return]:
    """Another value of the type that the function promises."""
    promised = ast.unparse(function.returns) if function.returns is not None else "None"
    value = returned.value
    assert value is not None
    is_literal = isinstance(value, ast.Constant)
    if promised == "bool" and not is_literal and not isinstance(value, ast.Compare | ast.UnaryOp):
        yield ast.Return(ast.UnaryOp(ast.Not(), value))
    elif promised in NUMBERS and not is_literal:
        yield ast.Return(ast.BinOp(value, ast.Add(), ast.Constant(1)))
    elif promised.endswith("| None") and not is_literal:
        yield ast.Return(ast.Constant(None))
    elif (empty := EMPTY.get(promised.partition("[")[0])) and not is_literal:
        if ast.unparse(value) != empty:
            yield ast.Return(ast.parse(empty, mode="eval").body)
