"""Deterministic simulation, for raftstore's own tests and for users' (public).

Purpose: run the production core, engine and elector (the real pysyncobj) on virtual time over a
simulated network and disk, break them in every way, and check the promises of the safety contract
after every step. Everything is drawn from one seed; a failing seed replays exactly.

It owns: virtual time, the simulated network, log and tables, the oracle, the fault injector. It
does not own any protocol code: what runs here is what runs in a node.

``simulate`` runs one world of the library's own table. ``run_machine`` runs a state machine of
your own, as in this test of one that adds numbers up::

    from raftstore.record_machine import ApplyResult, RecordMachine
    from raftstore.rows.sealing import seal
    from raftstore.testing import rows_of, run_machine


    class Sums(RecordMachine):
        def apply(self, record, view):
            writes = []
            for key, added in rows_of(record):
                row = view.row(key)
                total = int(added) + (int(row.value) if row else 0)
                writes.append((key, seal(key, b"%d" % total)))
            return ApplyResult(writes)


    def test_sums_count_every_write_once():
        rows = run_machine(Sums, [{b"a": b"1", b"b": b"2"}] * 60, seed=7)
        assert rows == {b"a": b"60", b"b": b"120"}
"""

from raftstore.machine_lint import Finding, lint_machine
from raftstore.testing.machines.checking import check_machine
from raftstore.testing.machines.local_machine import LocalMachine, MachineDefectError
from raftstore.testing.machines.simulate import (
    MachineRuns,
    MachineSimulationError,
    simulate_machine,
)
from raftstore.testing.machines.workload import Command, Operation, Query
from raftstore.testing.options import SimOptions, draw_options
from raftstore.testing.own_machine import rows_of, run_machine
from raftstore.testing.simulation import Simulation, Verdict, simulate

__all__ = [
    "Command",
    "Finding",
    "LocalMachine",
    "MachineDefectError",
    "MachineRuns",
    "MachineSimulationError",
    "Operation",
    "Query",
    "SimOptions",
    "Simulation",
    "Verdict",
    "check_machine",
    "draw_options",
    "lint_machine",
    "rows_of",
    "run_machine",
    "simulate",
    "simulate_machine",
]
