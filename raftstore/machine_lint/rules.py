"""Rules of the lint: all that is looked for in the code of a machine."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from raftstore.machine_lint.finding import Finding
from raftstore.machine_lint.sources import Definition, Part, dotted

EXCUSE: Final = "or end the line with `# deterministic: reason`"
_CLOCK: Final = ("reads a clock", f"take context.time_ms, {EXCUSE}")
_CHANCE: Final = ("draws chance", f"take context.chance or context.new_id(), {EXCUSE}")
_OUTSIDE: Final = (
    "reaches outside of the machine",
    f"put what it needs into the command, {EXCUSE}",
)
_HASH: Final = (
    "differs between processes",
    f"compare by value, or hash bytes with hashlib, {EXCUSE}",
)
_NAMES: Final = {
    **dict.fromkeys(("time", "datetime.datetime.now", "datetime.datetime.utcnow"), _CLOCK),
    **dict.fromkeys(("datetime.datetime.today", "datetime.date.today"), _CLOCK),
    **dict.fromkeys(("random", "secrets", "uuid.uuid1", "uuid.uuid4", "os.urandom"), _CHANCE),
    "numpy.random": _CHANCE,
    **dict.fromkeys(("os", "io", "pathlib", "shutil", "tempfile", "platform"), _OUTSIDE),
    **dict.fromkeys(("socket", "ssl", "select", "urllib.request", "http", "requests"), _OUTSIDE),
    **dict.fromkeys(("httpx", "aiohttp", "asyncio", "threading", "concurrent"), _OUTSIDE),
    **dict.fromkeys(("multiprocessing", "subprocess", "signal", "sqlite3"), _OUTSIDE),
}
"""Dotted name, or the module that it begins with -> what is wrong and what helps."""
_HARMLESS: Final = ("os.path.join", "os.path.basename", "os.path.dirname", "io.BytesIO",
                    "io.StringIO", "pathlib.PurePath", "pathlib.PurePosixPath")  # fmt: skip
_BUILTINS: Final = {
    "hash": _HASH,
    "id": _HASH,
    "open": _OUTSIDE,
    "input": _OUTSIDE,
}
_IN_ORDER: Final = frozenset(
    {"list", "tuple", "enumerate", "iter", "next", "map", "filter", "zip", "sum", "dict", "join"}
)
"""Functions whose result depends on the order of what they are given."""
_ORDER_FREE: Final = frozenset(
    {"sorted", "min", "max", "any", "all", "set", "frozenset", "len", "fsum"}
)
_SET_METHODS: Final = frozenset(
    {"union", "intersection", "difference", "symmetric_difference", "copy"}
)
_CHANGERS: Final = frozenset(
    {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert",
     "remove", "discard", "appendleft", "popleft", "sort", "reverse"}
)  # fmt: skip
_MUTABLE_CALLS: Final = frozenset(
    {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict"}
)
_SORT: Final = f"sort it, or keep a dict, {EXCUSE}"
_IN_STATE: Final = f"keep it in context.state, {EXCUSE}"


def findings_in(part: Part) -> Iterator[Finding]:
    """All findings in a class or function."""
    for rule in (_names, _set_orders, _float_sums, _shared_variables, _class_level, _kept):
        for node, what, remedy in rule(part):
            last = node.end_lineno or node.lineno
            if part.source.excused.isdisjoint(range(node.lineno, last + 1)):
                yield Finding(part.source.file, node.lineno, what, remedy)


_Found = Iterator[tuple[ast.expr | ast.stmt, str, str]]
Rule = Callable[[Part], _Found]


def _names(part: Part) -> _Found:
    """Names of clocks, chance and the outside world, and of builtins of one process."""
    source, local = part.source, _local_names(part.node)
    inner = {id(n.value) for n in ast.walk(part.node) if isinstance(n, ast.Attribute)}
    for node in _code_of(part.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            known = name in local or name in source.defined or name in source.imported
            if name in _BUILTINS and hasattr(builtins, name) and not known:
                what, remedy = _BUILTINS[name]
                yield node, f"{name}() {what}", remedy
        if not isinstance(node, ast.Name | ast.Attribute) or id(node) in inner:
            continue
        name, root = dotted(source, node), _root(node)
        if not name or root in local or root not in source.imported:
            continue
        if name.startswith(_HARMLESS):
            continue
        for start, (what, remedy) in _NAMES.items():
            if name == start or name.startswith(f"{start}."):
                yield node, f"{name} {what}", remedy
                break


def _set_orders(part: Part) -> _Found:
    """Loops over sets, and lists and sums that are made of them."""
    known = _names_of_sets(part)
    free = _order_free(part.node)
    for node in _code_of(part.node):
        for expression in [] if id(node) in free else _looped_over(node):
            if _is_set(expression, known):
                what = f"depends on the order of the set `{ast.unparse(expression)[:60]}`"
                yield expression, what, _SORT


def _float_sums(part: Part) -> _Found:
    """Sums of fractions in the order of a dict, which is another one after ``restore``."""
    floats = {
        _last_name(node.target): None
        for node in ast.walk(part.source.tree)
        if isinstance(node, ast.AnnAssign)
        and ast.unparse(node.annotation).replace(" ", "").endswith(",float]")
    }
    for node in _code_of(part.node):
        if isinstance(node, ast.Call) and _last_name(node.func) == "sum" and node.args:
            values = node.args[0]
            if (
                isinstance(values, ast.Call)
                and isinstance(values.func, ast.Attribute)
                and values.func.attr == "values"
                and _last_name(values.func.value) in floats
            ):
                what = f"`{ast.unparse(node)[:60]}` depends on the order in which floats are added"
                yield node, what, f"use math.fsum, or whole numbers, {EXCUSE}"


def _shared_variables(part: Part) -> _Found:
    """Changes of variables of the module: no replica finds them again."""
    variables, local = part.source.variables, _local_names(part.node)
    for node in _code_of(part.node):
        if isinstance(node, ast.Global):
            what = f"changes the variable {', '.join(node.names)} of the module"
            yield node, what, _IN_STATE
        for target in _changed(node):
            root = _root(target)
            if root in variables and root not in local and not isinstance(target, ast.Name):
                yield node, f"changes the variable {root} of the module", _IN_STATE


def _class_level(part: Part) -> _Found:
    """Lists, dicts and sets of the class: all partitions of a node share them."""
    if not part.is_machine or not isinstance(part.node, ast.ClassDef):
        return
    for node in part.node.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        is_mutable = isinstance(
            value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
        ) or (isinstance(value, ast.Call) and _last_name(value.func) in _MUTABLE_CALLS)
        if is_mutable:
            what = f"`{ast.unparse(node)[:60]}` is shared by all partitions of a node"
            remedy = f"make it a tuple, a frozenset or a MappingProxyType, {EXCUSE}"
            yield node, what, remedy


def _kept(part: Part) -> _Found:
    """Attributes that a machine other than a ``MemoryMachine`` changes: nothing keeps them."""
    if not part.is_machine or part.is_memory or not isinstance(part.node, ast.ClassDef):
        return
    for method in part.node.body:
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for node in _code_of(method):
            for target in _changed(node):
                if _root(target) == "self" and not isinstance(target, ast.Name):
                    what = f"`{ast.unparse(target)[:60]}` is kept in the object"
                    yield node, what, f"{_IN_STATE}, or derive from raftstore.MemoryMachine"


# --- reading code ---------------------------------------------------------------------------------


def _code_of(node: Definition) -> Iterator[ast.expr | ast.stmt]:
    """All statements and expressions that run; annotations do not."""
    quiet = dict[int, None]()
    for each in ast.walk(node):
        kind = getattr(each, "annotation", None) or getattr(each, "returns", None)
        if isinstance(kind, ast.expr):
            quiet |= dict.fromkeys(map(id, ast.walk(kind)))
    for each in ast.walk(node):
        if isinstance(each, ast.expr | ast.stmt) and id(each) not in quiet:
            yield each


def _looped_over(node: ast.AST) -> list[ast.expr]:
    """Expressions whose order shows in what the node leads to."""
    if isinstance(node, ast.For):
        return [node.iter]
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        return [each.iter for each in node.generators]
    if isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Load):
        return [node.value]
    if isinstance(node, ast.Call) and _last_name(node.func) in _IN_ORDER:
        return node.args
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.value] if node.func.attr == "pop" and not node.args else []
    return []


def _changed(node: ast.AST) -> list[ast.expr]:
    """Places that a statement or call changes."""
    if isinstance(node, ast.Assign):
        return [each for target in node.targets for each in _flat(target)]
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value):
        return [node.target]
    if isinstance(node, ast.Delete):
        return node.targets
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _CHANGERS:
            # `self.f()` is a method of the machine's own; `self.x.append(...)` changes something.
            inner = node.func.value
            is_plain = isinstance(inner, ast.Name) and inner.id == "self"
            return [] if is_plain else [node.func]
    return []


def _flat(target: ast.expr) -> Iterable[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [each for inner in target.elts for each in _flat(inner)]
    return [target]


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _local_names(node: Definition) -> frozenset[str]:
    """Arguments and variables of the functions inside."""
    names = [each.arg for each in ast.walk(node) if isinstance(each, ast.arg)]
    names += [
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    ]
    return frozenset(names)


def _order_free(node: Definition) -> frozenset[int]:
    """Expressions whose order makes no difference, as they are sorted or counted at once."""
    return frozenset(
        id(argument)
        for each in ast.walk(node)
        if isinstance(each, ast.Call) and _last_name(each.func) in _ORDER_FREE
        for argument in each.args
    )


def _names_of_sets(part: Part) -> frozenset[str]:
    """Variables and attributes that are set to a set, or annotated as one, in what is read."""
    known = dict[str, None]()
    for _ in range(2):  # once more for those that are made of others
        names = frozenset(known)
        for node in ast.walk(part.node):
            if isinstance(node, ast.Assign) and _is_set(node.value, names):
                known |= {_last_name(target): None for target in node.targets}
            elif isinstance(node, ast.AnnAssign):
                kind = ast.unparse(node.annotation)
                if kind.startswith(("set", "frozenset", "AbstractSet")):
                    known[_last_name(node.target)] = None
            elif isinstance(node, ast.arg) and node.annotation is not None:
                if ast.unparse(node.annotation).startswith(("set", "frozenset", "AbstractSet")):
                    known[node.arg] = None
    known.pop("", None)
    return frozenset(known)


def _is_set(node: ast.expr, known: frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor
    ):
        return _is_set(node.left, known) or _is_set(node.right, known)
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        if isinstance(node.func, ast.Attribute):
            return name in _SET_METHODS and _is_set(node.func.value, known)
        return name in ("set", "frozenset")
    return _last_name(node) in known
