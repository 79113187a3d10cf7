"""Patched sources in a fresh process: production code is broken without knowing about it.

A process that installs the patches before it imports the modules compiles them from their patched
trees; nothing on disk changes, and no other process sees it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutations.syntax import Edit, SourceTree


class PatchError(Exception):
    """A patch comes too late, or nothing of it is used."""


class Patches:
    """Sources patched in this process, and the modules that were made from them."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        patched = SourceTree(source_root()).patched(edits) if edits else {}
        self.by_module = {_module_of(path): tree for path, tree in patched.items()}
        self.used: dict[str, None] = {}

    def check_used(self) -> None:
        """PatchError when a patched module was not imported: then nothing ran that was broken."""
        for name in self.by_module:
            if name not in self.used:
                raise PatchError(
                    f"{name} was patched and never imported, so that the run shows nothing; "
                    "give the mutation a guard that uses it"
                )


class _PatchedLoader(SourceFileLoader):
    """Compiles one module from its patched tree; never reads or writes a compiled file."""

    def __init__(self, fullname: str, path: str, patches: Patches) -> None:
        super().__init__(fullname, path)
        self._patches = patches

    def get_code(self, fullname: str) -> CodeType:
        """Code of the patched source."""
        self._patches.used[fullname] = None
        tree = self._patches.by_module[fullname]
        return compile(tree, self.get_filename(fullname), "exec", dont_inherit=True)


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


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
