"""The plan of a run: the same for every target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Progress = Callable[[str], None]
"""Called with a line for people every few seconds of a long run."""


FAULT_PAUSE_S: Final = 2.5
"""Long enough for majorities to be whole now and then, so that stops can be judged."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: a workload, the faults that may strike it, for how long."""

    workload: str
    nemeses: tuple[str, ...]
    """Names of faults; empty: a calm run."""
    target: str
    """simulated, processes or cluster (one that runs already)."""
    seconds: float
    """Length of the fault phase on the run's own clock; healing and read-back come after."""
    seed: int
    clients: int
    directory: Path
    """Where node directories, logs and the history go."""
    fault_pause_s: float = FAULT_PAUSE_S
    """Mean time from one fault to the next; on processes from the end of one to the next."""
    endpoints: tuple[str, ...] = ()
    """Of the cluster that runs already."""
    network: str = "loopback"
    """Of processes: loopback, or namespaces."""
    machines: tuple[str, ...] = ()
    """State machines of users, in the place of a workload; see ``machine_names``."""
    paths: tuple[Path, ...] = ()
    """Directories with the modules of these machines."""

    @property
    def replay(self) -> str:
        """The command that runs the same plan again."""
        faults = f" --nemesis {','.join(self.nemeses)}" if self.nemeses else ""
        if self.nemeses and self.fault_pause_s != FAULT_PAUSE_S:
            faults += f" --fault-pause {self.fault_pause_s:g}"
        where = f"cluster {','.join(self.endpoints)}" if self.endpoints else self.target
        where += f" --network {self.network}" if self.network != "loopback" else ""
        what = f"--workload {self.workload}"
        if self.machines:
            options = [*(f"--path {path}" for path in self.paths), *self._machine_options()]
            what = " ".join(options)
        return (
            f"raftstore chaos run --{where} {what}{faults} "
            f"--time-limit {self.seconds:g} --seed {self.seed} --clients {self.clients}"
        )

    def _machine_options(self) -> list[str]:
        return [f"--machine {name}" for name in self.machines]
