"""``check_machine``: the same commands several times over, and nothing may differ.

Replicas apply the same commands on other machines, at other times, in other processes, and some of
them after a restart in between. Here a machine is run in these four ways, and results and states
are compared command by command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from raftstore.errors import ArgumentError
from raftstore.machine import StateMachine
from raftstore.testing.machines.local_machine import MachineDefectError, as_key
from raftstore.testing.machines.tracing import Job, Step, file_of, run_steps

Pair = tuple[str | bytes, Any]
CHILD_SECONDS_MAX: Final = 120.0
HASH_SEEDS: Final = (1, 20_261)
"""Of second processes: sets and hashes come in another order under each."""

_KEPT_APART: Final = (
    "keep everything in context.state, or for a MemoryMachine in snapshot() and restore()"
)
_FROM_CONTEXT: Final = (
    "take time, chance and identity from the context, and sort sets before looping over them"
)


def check_machine(
    machine: type[StateMachine],
    commands: Iterable[Pair],
    *,
    queries: Iterable[Pair] = (),
    processes: int = 1,
) -> int:
    """Apply commands in several ways that must not make a difference; return how many there were.

    ``commands`` and ``queries`` are pairs of key and value, as for a channel set; queries are asked
    behind each command. The ways: one object for all commands; a new object for each, made of what
    a replica keeps; and in ``processes`` other processes with another hash seed, wrong clocks and
    other random numbers (at most 2; 0 for a class that is written inside a function).
    Raises MachineDefectError, which names the first command that made a difference.
    """
    encoded = [(as_key(key), machine.commands.encode(value)) for key, value in commands]
    asked = [(as_key(key), machine.queries.encode(value)) for key, value in queries]
    if not encoded:
        raise ArgumentError("commands is empty, which would check nothing; give some")
    if not 0 <= processes <= len(HASH_SEEDS):
        raise ArgumentError(f"processes={processes}; give 0 to {len(HASH_SEEDS)}")
    first = run_steps(machine, encoded, asked, restarts=False)
    _compare(machine, first, run_steps(machine, encoded, asked, restarts=False), "once more")
    restarted = run_steps(machine, encoded, asked, restarts=True)
    _compare(machine, first, restarted, "after a restart", _KEPT_APART)
    for hash_seed in HASH_SEEDS[:processes]:
        other = _elsewhere(machine, encoded, asked, hash_seed)
        _compare(machine, first, other, f"in another process (PYTHONHASHSEED={hash_seed})")
    return len(encoded)


def _compare(
    machine: type[StateMachine],
    first: Sequence[Step],
    other: Sequence[Step],
    how: str,
    remedy: str = _FROM_CONTEXT,
) -> None:
    for at, (one, two) in enumerate(zip(first, other, strict=True), 1):
        if one == two:
            continue
        if one.outcome != two.outcome:
            what = f"is {two.outcome[:200]!r} instead of {one.outcome[:200]!r}"
        elif one.digest != two.digest:
            what = "leads to another state"
        else:
            at_query = next(n for n, pair in enumerate(zip(one.answers, two.answers, strict=True))
                            if pair[0] != pair[1])  # fmt: skip
            answers = f"{two.answers[at_query][:200]!r} instead of {one.answers[at_query][:200]!r}"
            what = f"lets query {at_query} be answered with {answers}"
        message = f"{machine.__name__}: command {at} of {len(first)}, applied {how}, {what}"
        raise MachineDefectError(f"{message}; {remedy}")


def _elsewhere(
    machine: type[StateMachine],
    commands: list[tuple[bytes, bytes]],
    queries: list[tuple[bytes, bytes]],
    hash_seed: int,
) -> list[Step]:
    """The steps of a process with another hash seed, clock and random numbers."""
    file = file_of(machine)
    if "<locals>" in machine.__qualname__ or not file:
        message = f"{machine.__qualname__} cannot be imported by another process"
        raise ArgumentError(
            f"{message}; write the class at the top level of a file, or pass processes=0"
        )
    job = Job(
        module=machine.__module__,
        file=file,
        name=machine.__qualname__,
        path=sys.path,
        seed=hash_seed,
        commands=commands,
        queries=queries,
        restarts=False,
    )
    done = subprocess.run(
        [sys.executable, "-m", "raftstore.testing.machines.tracing"],
        input=msgspec.msgpack.encode(job),
        capture_output=True,
        env={
            **os.environ,
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        },
        timeout=CHILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")[-2000:]
        message = f"{machine.__name__} could not be run by another process"
        raise MachineDefectError(f"{message}: {said}")
    made = msgspec.msgpack.decode(done.stdout)
    if isinstance(made, str):
        raise MachineDefectError(f"in another process (PYTHONHASHSEED={hash_seed}): {made}")
    return msgspec.convert(made, list[Step])
