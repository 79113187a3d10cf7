"""The code of users' state machines on this node: found by module and class, or by entry point.

A module is imported once in the life of a process: changed code comes with a restart of the node.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from threading import Lock
from typing import Any, Final

from raftstore.errors import UnknownMachineError
from raftstore.machine import StateMachine
from raftstore.machine_lint import lint_machine
from raftstore.ports.machine import DEFAULT_RULES, MachineRules, MachineSource

GROUP: Final = "raftstore.machines"
"""Of entry points that name state machines."""
FINDINGS_MAX: Final = 20
"""Findings of one machine that are logged."""
OnFinding = Callable[[str, dict[str, object]], None]
VERSION_MAX: Final = 2**31 - 1


class InstalledMachines:
    """ports.Machines of a process. Any thread may load."""

    rules: MachineRules = DEFAULT_RULES

    def __init__(self, path: Sequence[str] = (), on_finding: OnFinding | None = None) -> None:
        """``path``: directories in which modules are looked for, too, behind those of Python.
        ``on_finding`` is called with each finding of the lint, on the thread that loads."""
        self._on_finding = on_finding
        self._path = tuple(path)
        self._lock = Lock()
        self._loaded: dict[str, MachineSource] = {}
        for directory in self._path:
            if directory not in sys.path:
                sys.path.append(directory)

    def load(self, name: str) -> MachineSource:
        """The code of this name. Raises UnknownMachineError."""
        with self._lock:
            source = self._loaded.get(name)
            if source is None:
                found = self._found(name)
                source = self._loaded[name] = source_of(name, found)
                if self._on_finding is not None:
                    for finding in lint_machine(found)[:FINDINGS_MAX]:
                        self._on_finding("machine_finding", {"machine": name, "why": str(finding)})
            return source

    def _found(self, name: str) -> Any:
        module, colon, attribute = name.partition(":")
        if not colon:
            for entry in entry_points(group=GROUP):
                if entry.name == name:
                    module, _, attribute = entry.value.partition(":")
                    break
            else:
                raise UnknownMachineError(
                    f"{name!r} is neither module:Class nor an entry point of the group {GROUP}; "
                    "install the package that has it on this node, or name module and class"
                )
        if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
            raise UnknownMachineError(
                f"{name!r} names no module and class; write package.module:Class"
            )
        try:
            # A file that came since the last try is found, too.
            importlib.invalidate_caches()
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:
            raise UnknownMachineError(self._missing(name, error)) from error
        return found

    def _missing(self, name: str, error: BaseException) -> str:
        text = f"{name}: {type(error).__name__}: {error}"
        looked = ", ".join(map(str, map(Path, self._path)))
        where = f" (machines.path is {looked})" if looked else ""
        return (
            f"{text}; install the package on this node, or name its directory in machines.path"
            f"{where}, and restart the node if the module was there before"
        )


def source_of(name: str, found: Any) -> MachineSource:
    """The source that a machine's class is. Raises UnknownMachineError where it is none."""
    if not (inspect.isclass(found) and issubclass(found, StateMachine)):
        raise UnknownMachineError(
            f"{name} is {found!r:.80}, and no class derived from raftstore.StateMachine"
        )
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise UnknownMachineError(f"{name} lacks {', '.join(missing)}; write these methods")
    version, oldest = found.version, found.oldest_version
    are_numbers = type(version) is int and type(oldest) is int
    if not are_numbers or not 1 <= oldest <= version <= VERSION_MAX:
        raise UnknownMachineError(
            f"{name} has version {version!r:.40} and oldest_version {oldest!r:.40}; give whole "
            f"numbers, 1 <= oldest_version <= version <= {VERSION_MAX}"
        )
    return MachineSource(name, found, version, oldest)
