"""The simulated disk of a node: its log and its tables."""

from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_tables import SimTables

__all__ = ["SimLog", "SimTables"]
