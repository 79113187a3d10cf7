"""Simulate every machine of ``tests.machines.worlds`` over many seeds: ``make machine-worlds``."""

from __future__ import annotations

import argparse
import sys
import time

from raftstore.testing import MachineSimulationError, simulate_machine
from raftstore.testing.options import parse_seeds
from tests.machines.broken import MemoryCounter
from tests.machines.worlds import WORLDS, World, additions


def main() -> int:
    """Print a line for each machine, and the first failing world of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=list(range(1, 201)))
    parser.add_argument("--members", action="store_true", help="nodes and replicas come and go")
    given = parser.parse_args()
    failed = 0
    for name, world in {**WORLDS, "memory_counter": World(MemoryCounter, additions)}.items():
        started = time.process_time()
        try:
            runs = simulate_machine(
                world.machine,
                world.workload,
                seeds=given.seeds,
                check=world.check,
                **({"member_changes": True, "nodes": 4} if given.members else {}),
            )
        except MachineSimulationError as error:
            failed += 1
            sys.stdout.write(f"{name}: FAILED\n{error}\n")
            continue
        seconds = time.process_time() - started
        sys.stdout.write(
            f"{name}: {len(runs.seeds)} worlds, {runs.commands} commands, {runs.unknown} unknown, "
            f"{runs.queries} queries, {runs.crashes} crashes, {runs.elections} elections, "
            f"{seconds:.0f} s of processor time\n"
        )
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
