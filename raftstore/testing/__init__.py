"""Deterministic simulation, for raftstore's own tests and for users' (public).

Purpose: run the production core, engine and elector (the real pysyncobj) on virtual time over a
simulated network and disk, break them in every way, and check the promises of the safety contract
after every step. Everything is drawn from one seed; a failing seed replays exactly.

It owns: virtual time, the simulated network, log and tables, the oracle, the fault injector. It
does not own any protocol code: what runs here is what runs in a node.
"""

from raftstore.testing.options import SimOptions, draw_options
from raftstore.testing.simulation import Simulation, Verdict, simulate

__all__ = ["SimOptions", "Simulation", "Verdict", "draw_options", "simulate"]
