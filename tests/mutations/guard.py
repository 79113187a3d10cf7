"""Guards that must notice a mutation: tests of exactly this situation, or runs
drawn from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Options = tuple[tuple[str, str], ...]
SEEDS: Final = range(1, 51)
"""Tried until one notices."""


@dataclass(frozen=True, slots=True)
class Directed:
    """Tests of exactly this situation, each of which must fail by itself."""

    names: tuple[str, ...]
    """Pytest's node ids."""
    why: str = ""
    """What keeps runs drawn from a seed from noticing, where somebody looked into it."""
    kind = "tests"

    @property
    def label(self) -> str:
        """The tests without their folders."""
        return ", ".join(name.rpartition("/")[2].replace("::", " :: ") for name in self.names)


@dataclass(frozen=True, slots=True)
class Worlds:
    """`raftstore simulate`: swarm worlds with readers and writers of their own, the oracle and
    the bound for liveness; ``options`` replace what the seed draws."""

    options: Options = ()
    seeds: range = SEEDS
    """One of these must notice."""
    kind = "worlds"

    @property
    def label(self) -> str:
        """The words of `raftstore simulate`."""
        return _label("worlds", self.options)


@dataclass(frozen=True, slots=True)
class Chaos:
    """`raftstore chaos run --simulated`: a workload under faults, its checkers and the oracle."""

    workload: str
    nemeses: tuple[str, ...]
    seconds: float = 15.0
    clients: int = 6
    seeds: range = SEEDS
    kind = "chaos"

    @property
    def label(self) -> str:
        """Workload and faults."""
        return f"{self.workload} under {', '.join(self.nemeses)}"


@dataclass(frozen=True, slots=True)
class ClientWorlds:
    """Worlds whose writers are the real client on virtual time."""

    options: Options = ()
    seeds: range = SEEDS
    kind = "client_worlds"

    @property
    def label(self) -> str:
        """The changed options of the drawn worlds."""
        return _label("client worlds", self.options)


@dataclass(frozen=True, slots=True)
class DiskRuns:
    """Random runs of one real store: writes, crashes, failing and rotting files."""

    seeds: range = SEEDS
    kind = "disk"
    label = "disk runs"


Drawn = Worlds | Chaos | ClientWorlds | DiskRuns
"""Guards of which a seed makes one run; ``label`` names on one line what runs."""
Guard = Directed | Drawn
KINDS: Final = ("tests", "worlds", "client_worlds", "disk", "chaos")


def directed(*names: str, why: str = "") -> Directed:
    """Make a guard of tests, each of which must notice by itself."""
    return Directed(names, why)


def worlds(seeds: range = SEEDS, **options: str) -> Worlds:
    """Simulated worlds, with some of their drawn options replaced."""
    return Worlds(tuple(options.items()), seeds)


def client_worlds(**options: str) -> ClientWorlds:
    """Worlds that the real client writes in, with some of their drawn options replaced."""
    return ClientWorlds(tuple(options.items()))


def disk_runs() -> DiskRuns:
    """Random runs of a store on real files."""
    return DiskRuns()


def chaos(workload: str, *nemeses: str, seconds: float = 15) -> Chaos:
    """The checkers of a workload under these faults."""
    return Chaos(workload, nemeses, seconds)


def _label(name: str, options: Options) -> str:
    return " ".join((name, *(f"{option}={value}" for option, value in options)))
