"""Patched sources in a fresh process: production code is broken without knowing about it.

A process that installs the patches before it imports the modules compiles them from their patched
text; nothing on disk changes, and no other process sees it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class PatchError(Exception):
    """A patch does not fit the source, or comes too late."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one source file; ``old`` occurs in it exactly once."""

    path: str
    """From the folder that holds the packages, as ``raftstore/core/leader.py``."""
    old: str
    new: str

    @property
    def module(self) -> str:
        """Name under which the file is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def apply(self, source: str) -> str:
        """Return the source with the change; PatchError unless ``old`` occurs exactly once."""
        if (count := source.count(self.old)) != 1:
            raise PatchError(
                f"the patch does not fit the source: {self.path} has {count} times, instead of "
                f"once: {self.old!r}"
            )
        return source.replace(self.old, self.new)

    def lines(self, source: str) -> range:
        """Numbers of the lines that ``old`` touches."""
        at = source.index(self.old)
        first = source.count("\n", 0, at + len(self.old) - len(self.old.lstrip("\n"))) + 1
        return range(first, first + self.old.strip("\n").count("\n") + 1)


class Patches:
    """What is patched in this process, and which modules were made from patched text."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.by_module: dict[str, list[Edit]] = {}
        self.used: dict[str, None] = {}
        for edit in edits:
            self.by_module.setdefault(edit.module, []).append(edit)

    def check_used(self) -> None:
        """PatchError when a patched module was not imported: then nothing ran that was broken."""
        for name in self.by_module:
            if name not in self.used:
                raise PatchError(
                    f"{name} was patched and never imported, so that the run shows nothing; "
                    "give the bug a guard that uses it"
                )


class _PatchedLoader(SourceFileLoader):
    """Compiles one module from its patched text; never reads or writes a compiled file."""

    def __init__(self, fullname: str, path: str, patches: Patches) -> None:
        super().__init__(fullname, path)
        self._patches = patches

    def get_code(self, fullname: str) -> CodeType:
        """Code of the patched source."""
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        for edit in self._patches.by_module[fullname]:
            source = edit.apply(source)
        self._patches.used[fullname] = None
        return compile(source, path, "exec", dont_inherit=True)


class _PatchedFinder(MetaPathFinder):
    """Finds the modules that have edits; every other one is found as always."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Spec with the patching loader, or None."""
        if fullname not in self._patches.by_module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            raise PatchError(f"the patch does not fit: there is no source of {fullname}")
        spec.loader = _PatchedLoader(fullname, spec.origin, self._patches)
        return spec


def install(edits: Sequence[Edit]) -> Patches:
    """Patch the modules of this process; they must not have been imported yet."""
    patches = Patches(edits)
    for name in patches.by_module:
        if name in sys.modules:
            raise PatchError(f"{name} is imported already; patch it in a fresh process")
    sys.meta_path.insert(0, _PatchedFinder(patches))
    return patches


def source_root() -> Path:
    """The folder that holds the package raftstore."""
    spec = importlib.util.find_spec("raftstore")
    if spec is None or spec.origin is None:
        raise PatchError("the source of raftstore is not found; install it as source")
    return Path(spec.origin).parents[1]


def check(root: Path, edits: Sequence[Edit]) -> None:
    """PatchError unless every edit fits the sources under ``root``."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.path)
        if text is None:
            text = (root / edit.path).read_text()
        texts[edit.path] = edit.apply(text)
