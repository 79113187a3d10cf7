"""One run of a machine over a list of commands, step by step, comparable with another run.

As a program it makes the run of another process: ``check_machine`` starts it with another hash
seed, another clock and other random numbers.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from raftstore.machine import MemoryMachine, StateMachine
from raftstore.testing.machines.local_machine import (
    START_MS,
    STEP_MS,
    LocalMachine,
    MachineDefectError,
    Place,
)

CLOCK_OFFSET_S: Final = 123_456_789.25
"""How far the clocks of the second process are wrong: about four years."""


class Step(msgspec.Struct, frozen=True):
    """One command as it was applied."""

    outcome: str
    """Result in hexadecimal digits, why it was rejected, or what was raised."""
    digest: str
    """Of the whole state behind it."""
    answers: tuple[str, ...] = ()
    """To each of the queries, behind it."""


class Job(msgspec.Struct, frozen=True):
    """All that the second process needs."""

    module: str
    file: str
    name: str
    path: list[str]
    seed: int
    commands: list[tuple[bytes, bytes]]
    queries: list[tuple[bytes, bytes]]
    restarts: bool


def run_steps(
    machine: type[StateMachine],
    commands: Sequence[tuple[bytes, bytes]],
    queries: Sequence[tuple[bytes, bytes]],
    *,
    restarts: bool,
) -> list[Step]:
    """Apply all commands; ``restarts``: each by a new object, made of what replicas keep."""
    local = LocalMachine(machine)
    steps = []
    for at, (key, command) in enumerate(commands, 1):
        if restarts:
            local.restart()
        place = Place(seq=at, time_ms=START_MS + at * STEP_MS)
        before = local.digest()
        try:
            applied = local.apply(key, command, place)
        except MachineDefectError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a machine raises is its outcome
            outcome, is_refused = f"raised {type(error).__name__}: {error}", True
        else:
            is_refused = applied.result is None
            outcome = f"rejected: {applied.reason}"
            if applied.result is not None:
                outcome = applied.result.hex()
        after = local.digest()
        if is_refused and after != before and issubclass(machine, MemoryMachine):
            message = f"command {at} ({outcome}) changed the state of the {machine.__name__}"
            raise MachineDefectError(f"{message}; check everything before the first change")
        steps.append(Step(outcome, after, _answers(local, queries, after, at)))
    return steps


def _answers(
    local: LocalMachine, queries: Sequence[tuple[bytes, bytes]], digest: str, at: int
) -> tuple[str, ...]:
    answers = []
    for key, request in queries:
        try:
            answers.append(local.answer(key, request).hex())
        except Exception as error:  # noqa: BLE001 - as above
            answers.append(f"raised {type(error).__name__}: {error}")
    if queries and local.digest() != digest:
        message = f"a query behind command {at} changed the state"
        raise MachineDefectError(f"{message}; query must leave everything as it is")
    return tuple(answers)


def load_class(module: str, file: str, name: str) -> type[StateMachine]:
    """The class, by its module's name or else by its file; never runs a program's main part."""
    loaded: ModuleType | None = None
    if module != "__main__":
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            loaded = None
    if loaded is None:
        alias = "machine_under_test" if module == "__main__" else module
        spec = importlib.util.spec_from_file_location(alias, file)
        assert spec is not None, f"{file} is no Python file"
        assert spec.loader is not None, f"{file} is no Python file"
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[alias] = loaded
        spec.loader.exec_module(loaded)
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    return found


def _shift_clocks() -> None:
    """All clocks of this process are wrong from now on."""
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, _shifted(getattr(time, name), CLOCK_OFFSET_S))
        nanoseconds = getattr(time, f"{name}_ns")
        setattr(time, f"{name}_ns", _shifted(nanoseconds, int(CLOCK_OFFSET_S * 1e9)))

    class Wrong(dt.datetime):
        """Now is another time, also where modules import it by name from now on."""

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Wrong:
            return cls.fromtimestamp(time.time(), tz)

    setattr(dt, "datetime", Wrong)  # noqa: B010 - mypy refuses to assign to a type


def _shifted(clock: Any, offset: float) -> Any:
    return lambda: clock() + offset


def main() -> None:
    """Read a job from standard input, write its steps to standard output."""
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    out = sys.stdout.buffer
    # A machine that prints is none of our business.
    sys.stdout = sys.stderr
    sys.path[:] = job.path
    _shift_clocks()
    random.seed(job.seed)
    machine = load_class(job.module, job.file, job.name)
    try:
        made: Any = run_steps(machine, job.commands, job.queries, restarts=job.restarts)
    except MachineDefectError as error:
        made = str(error)
    out.write(msgspec.msgpack.encode(made))
    out.flush()


def file_of(machine: type[StateMachine]) -> str:
    """The file in which a class was written; empty: none."""
    module = sys.modules.get(machine.__module__)
    file = getattr(module, "__file__", None) or ""
    return str(Path(file).resolve()) if file else ""


if __name__ == "__main__":
    main()
