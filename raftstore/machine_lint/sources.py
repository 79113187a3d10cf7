"""The code that a machine consists of: its classes, and what of its package they use."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from raftstore.machine import MemoryMachine, StateMachine
from raftstore.machine_lint.finding import Finding

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_EXCUSE = re.compile(r"#\s*deterministic:\s*\S")
_LIBRARIES = frozenset({"raftstore.machine", "msgspec", "raftstore"})


@dataclass(slots=True)
class Source:
    """One module, read and parsed."""

    name: str
    file: str
    tree: ast.Module
    excused: frozenset[int]
    """Lines that are said to be deterministic, with a reason."""
    imported: dict[str, str] = field(default_factory=dict)
    """Local name -> the dotted name that it stands for."""
    defined: dict[str, Definition] = field(default_factory=dict)
    """Functions and classes at the top level."""
    variables: frozenset[str] = frozenset()
    """Other names at the top level."""


@dataclass(frozen=True, slots=True)
class Part:
    """A class or function that is read."""

    source: Source
    node: Definition
    is_machine: bool = False
    """A class of the machine, or one that it inherits from."""
    is_memory: bool = False
    """And its state is in the object."""


def reachable(machine: type[StateMachine]) -> tuple[list[Part], list[Finding]]:
    """All that is to be read, and a finding for each class that cannot be."""
    sources = _Sources(machine)
    is_memory = issubclass(machine, MemoryMachine)
    queue: deque[Part] = deque()
    unread = []
    for each in machine.__mro__:
        if not _is_of_user(each):
            continue
        source = sources.of(each.__module__)
        node = None if source is None else _class_node(source.tree, each.__qualname__)
        if source is None or node is None:
            what = f"the code of {each.__qualname__} cannot be read, so it is not checked"
            unread.append(Finding(each.__module__, 0, what, "write it into a file"))
            continue
        queue.append(Part(source, node, is_machine=True, is_memory=is_memory))
    parts: dict[int, Part] = {}
    while queue:
        part = queue.popleft()
        if id(part.node) not in parts:
            parts[id(part.node)] = part
            queue.extend(_used(part, sources))
    return list(parts.values()), unread


def dotted(source: Source, node: ast.AST) -> str:
    """The full name that an expression stands for, with its module; empty: none."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    names.append(source.imported.get(node.id, node.id))
    return ".".join(reversed(names))


def _is_of_user(each: type) -> bool:
    top = each.__module__.partition(".")[0]
    return each.__module__ not in _LIBRARIES and top not in sys.stdlib_module_names


class _Sources:
    """Modules, each read once."""

    def __init__(self, machine: type[StateMachine]) -> None:
        self._read: dict[str, Source | None] = {}
        self._package = machine.__module__.partition(".")[0]
        own = self.of(machine.__module__)
        self._folder = None if own is None else Path(own.file).parent

    def of(self, module: str) -> Source | None:
        """The module's code; None: there is none to read."""
        if module not in self._read:
            self._read[module] = _read(module)
        return self._read[module]

    def of_user(self, module: str) -> Source | None:
        """The same, of modules that belong to the machine: of its package, or files beside it."""
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or module in _LIBRARIES:
            return None
        if top == self._package and self._package != "raftstore":
            return self.of(module)
        file = _file_of(module)
        is_beside = file is not None and file.parent == self._folder
        return self.of(module) if is_beside else None


def _used(part: Part, sources: _Sources) -> Iterator[Part]:
    """Functions and classes that the part names."""
    for node in ast.walk(part.node):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = dotted(part.source, node)
        if name in part.source.defined:
            yield Part(part.source, part.source.defined[name])
        elif "." in name:
            module, _, last = name.rpartition(".")
            root = name.partition(".")[0]
            if root not in part.source.imported.values() and not _is_imported(part.source, module):
                continue
            source = sources.of_user(module)
            if source is not None and last in source.defined:
                yield Part(source, source.defined[last])


def _is_imported(source: Source, module: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in source.imported.values())


def _file_of(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file is None and loaded is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return None
        file = None if spec is None else spec.origin
    return Path(file) if file and file.endswith(".py") else None


def _read(module: str) -> Source | None:
    file = _file_of(module)
    if file is None:
        return None
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return None
    lines = enumerate(text.splitlines(), 1)
    source = Source(module, str(file), tree, frozenset(n for n, s in lines if _EXCUSE.search(s)))
    variables = dict[str, None]()
    _note_imports(source, file)
    for node in tree.body:
        if isinstance(node, Definition):
            source.defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inside = [each for target in targets for each in ast.walk(target)]
            named = [each for each in inside if isinstance(each, ast.Name)]
            variables |= {each.id: None for each in named if isinstance(each.ctx, ast.Store)}
    source.variables = frozenset(variables)
    return source


def _note_imports(source: Source, file: Path) -> None:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                source.imported[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(source.name, file, node)
            for alias in node.names:
                source.imported[alias.asname or alias.name] = f"{base}.{alias.name}"


def _absolute(module: str, file: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")
    if file.name == "__init__.py":
        package.append("")
    base = package[: len(package) - node.level]
    return ".".join([*base, *([node.module] if node.module else [])])


def _class_node(tree: ast.Module, qualname: str) -> ast.ClassDef | None:
    """The class of that name; also one that a function makes."""
    body: list[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for name in qualname.split("."):
        if name == "<locals>":
            continue
        inside = [each for each in body if isinstance(each, Definition) and each.name == name]
        if not inside:
            return None
        found = inside[-1]
        body = inside[-1].body
    return found if isinstance(found, ast.ClassDef) else None
