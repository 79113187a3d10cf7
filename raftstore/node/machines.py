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
from time import monotonic
from typing import Any, Final

from raftstore.errors import UnknownMachineError
from raftstore.machine import StateMachine
from raftstore.machine_lint import lint_machine
from raftstore.record_machine import DEFAULT_RULES, MachineRules, MachineSource

GROUP: Final = "raftstore.machines"
"""Of entry points that name state machines."""
REASON_CHARS_MAX: Final = 1_000
"""Of the text of what a module raised while it was imported."""
FAILED_KEEP_S: Final = 1.0
"""For so long a name that could not be imported is not tried again: each partition asks for it."""
FAILED_MAX: Final = 100
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
        self._failed: dict[str, tuple[float, str]] = {}
        """When a name could not be imported last, and why."""
        for directory in self._path:
            if directory not in sys.path:
                sys.path.append(directory)

    def is_at_hand(self, name: str) -> bool:
        """Whether it was imported before, and nobody has to wait for that."""
        return name in self._loaded

    def load(self, name: str) -> MachineSource:
        """The code of this name. Raises UnknownMachineError."""
        source = self._loaded.get(name)  # without the lock: another one may be imported for long
        if source is not None:
            return source
        with self._lock:
            source = self._loaded.get(name)
            return self._imported(name) if source is None else source

    def _imported(self, name: str) -> MachineSource:
        failed = self._failed.get(name)
        if failed is not None and monotonic() < failed[0] + FAILED_KEEP_S:
            raise UnknownMachineError(failed[1])
        try:
            found = self._found(name)
            source = source_of(name, found)
            _try_to_make(source)
            self._loaded[name] = source
        except UnknownMachineError as error:
            while len(self._failed) >= FAILED_MAX:
                del self._failed[next(iter(self._failed))]
            self._failed[name] = (monotonic(), str(error))
            raise
        self._failed.pop(name, None)
        if self._on_finding is not None:
            for finding in _findings(found):
                self._on_finding("machine_finding", {"machine": name, "why": finding})
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
        except BaseException as error:  # it is somebody else's, and must not end a thread
            raise UnknownMachineError(self._missing(name, error)) from error
        return found

    def _missing(self, name: str, error: BaseException) -> str:
        text = f"{name}: {type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        text = text.encode(errors="backslashreplace").decode()
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
    for attribute in ("commands", "results", "queries", "answers"):
        codec = getattr(found, attribute)
        if not all(callable(getattr(codec, method, None)) for method in ("encode", "decode")):
            raise UnknownMachineError(
                f"{name} has {attribute} = {codec!r:.80}, which is no codec; give raftstore.BYTES, "
                "raftstore.JSON or raftstore.codec(int)"
            )
    return MachineSource(name, found, version, oldest)


def _try_to_make(source: MachineSource) -> None:
    """Raises UnknownMachineError where no object can be made: each partition would stop by it."""
    try:
        source.make()
    except BaseException as error:  # it is somebody else's, and must not end a thread
        text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
        raise UnknownMachineError(
            f"{source.name} cannot be made without arguments ({text[:REASON_CHARS_MAX]}); take "
            "what it needs from commands, or from constants of its module"
        ) from error


def _findings(machine: type[StateMachine]) -> list[str]:
    """Findings of the lint; code that it cannot deal with runs all the same."""
    try:
        return [str(finding) for finding in lint_machine(machine)[:FINDINGS_MAX]]
    except Exception as error:  # noqa: BLE001 - it reads any code
        return [f"its code cannot be looked through: {type(error).__name__}: {error}"]
