"""Runs tests against mutants, each in a fork of one process that has collected all tests.

A plugin of pytest: where its loop would run the tests, it hands out the work. In a fork the code
of one function is replaced, then tests run until one fails. So neither the checkout nor any other
process ever sees a mutant, and starting Python, importing and collecting happen once, not once per
mutant. What a test starts as a process of its own is not mutated. Linux only.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutants.mutator import ROOT, Mutant, source_of
from tests.mutants.recorder import files_of

PROFILE = "mutants"
FAILED, PASSED, BROKEN = 1, 0, 70
PROCESSOR_SECONDS = 10
"""A run that has used so much more than ten times what its tests need is a hang."""
TIMES_SLOWER = 10
WALL_SECONDS = 120
"""One that has not ended after so much more is taken for stuck, when it ends without its mutant."""
WALL_TIMES = 40


class End(Enum):
    """How a run of tests ended."""

    PASSED = "passed"
    FAILED = "failed"
    HANGS = "hangs"
    STUCK = "stuck"


class Ran(NamedTuple):
    """The result of a run."""

    end: End
    detail: str


class NotPatchableError(Exception):
    """No function that is imported has the code that the mutant changes."""


def register_profile() -> None:
    """Of Hypothesis: as many examples as the CI tries, and no search for the smallest one."""
    settings.register_profile(
        PROFILE,
        max_examples=80,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


class Forks:
    """The plugin; ``work`` is called with it when all tests are collected."""

    def __init__(self, work: Callable[[Forks], None]) -> None:
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        self._failed: list[str] = []

    # --- hooks of pytest --------------------------------------------------------------------------

    def pytest_configure(self) -> None:
        """A process in the background ignores SIGINT, and tests send it."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running all tests once."""
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _imported_functions()
        gc.freeze()
        self._work(self)
        session.items = []
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the test that noticed."""
        if report.failed:
            said = report.longreprtext.strip().splitlines()
            self._failed.append(f"{report.nodeid}: {said[-1] if said else ''}")

    # --- running ----------------------------------------------------------------------------------

    @property
    def tests(self) -> list[str]:
        """Those that were collected."""
        return list(self._items)

    def run(self, mutant: Mutant | None, tests: Sequence[str], seconds: float) -> Ran:
        """Run these tests up to the first failure; ``seconds`` is what they need by themselves."""
        patched = None if mutant is None else self._patched(mutant)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = BROKEN
            try:
                os.close(reading)
                os.setsid()
                sink = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(sink, descriptor)
                limit = int(PROCESSOR_SECONDS + TIMES_SLOWER * seconds)
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
                if patched is not None:
                    for function in patched[0]:
                        function.__code__ = patched[1]
                code = self._run_tests(tests)
                os.write(writing, "; ".join(self._failed).encode()[:4_000])
            except BaseException:  # noqa: BLE001 - a fork must never return into its parent's loop
                os.write(writing, traceback.format_exc().encode()[-4_000:])
            finally:
                os._exit(code)
        os.close(writing)
        try:
            return _outcome(child, reading, WALL_SECONDS + WALL_TIMES * seconds)
        finally:
            os.close(reading)

    def _run_tests(self, tests: Sequence[str]) -> int:
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return FAILED
        return PASSED

    def _patched(self, mutant: Mutant) -> tuple[list[FunctionType], CodeType]:
        path = str(ROOT / mutant.path)
        key = path, mutant.function, mutant.first_line
        functions = self._functions.get(key, [])
        source = mutant.apply(source_of(mutant.path))
        try:
            module = compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise NotPatchableError(str(error)) from error
        code = _code_in(module, mutant.function, mutant.first_line)
        if not functions or code is None:
            raise NotPatchableError("no such function is imported")
        if any(function.__code__.co_freevars != code.co_freevars for function in functions):
            raise NotPatchableError("it has other free variables")
        return functions, code


def _outcome(child: int, reading: int, seconds: float) -> Ran:
    ended = os.pidfd_open(child)
    try:
        is_over = bool(select.select([ended], [], [], seconds)[0])
    finally:
        os.close(ended)
    if not is_over:
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.set_blocking(reading, False)
    try:
        said = os.read(reading, 8_192).decode(errors="replace")
    except BlockingIOError:  # something that it started has the other end
        said = ""
    if not is_over:
        return Ran(End.STUCK, f"no end within {seconds:.0f} s")
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return Ran(End.HANGS, "used ten times the processor time of its tests")
    if status == PASSED:
        return Ran(End.PASSED, said)
    return Ran(End.FAILED, said or f"exit code {status}")


def _imported_functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """All functions of raftstore by file, qualified name and first line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    top = str(ROOT / "raftstore")
    for value in functions_below(top):
        code = value.__code__
        key = code.co_filename, code.co_qualname, code.co_firstlineno
        found.setdefault(key, []).append(value)
    return found


def functions_below(folder: str) -> list[FunctionType]:
    """All functions whose source is in the folder, of a process that may have frozen them."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = [
        value
        for value in gc.get_objects()
        if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(folder)
    ]
    if was_frozen:
        gc.freeze()
    return found


def _code_in(code: CodeType, name: str, first_line: int) -> CodeType | None:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if (part.co_qualname, part.co_firstlineno) == (name, first_line):
                return part
            if name.startswith(f"{part.co_qualname}.") and (
                inner := _code_in(part, name, first_line)
            ):
                return inner
    return None


def import_rooms(rooms: Sequence[str]) -> None:
    """So that all their functions are there to be patched."""
    for room in rooms:
        for path in files_of(room):
            name = path.removesuffix(".py").replace("/", ".")
            importlib.import_module(name.removesuffix(".__init__"))


def processor_seconds() -> float:
    """Of the runs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


__all__ = [
    "PROFILE",
    "End",
    "Forks",
    "NotPatchableError",
    "Ran",
    "functions_below",
    "import_rooms",
    "processor_seconds",
    "register_profile",
]
