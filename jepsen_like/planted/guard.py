"""Who must catch a planted bug: random runs of one kind, or directed tests."""

from __future__ import annotations

from dataclasses import dataclass

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Worlds:
    """`raftstore simulate`: swarm worlds with readers and writers of their own, the oracle and
    the bound for liveness; ``options`` replace what the seed draws."""

    options: Options = ()

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

    @property
    def label(self) -> str:
        """Workload and faults."""
        return f"{self.workload} under {', '.join(self.nemeses)}"


@dataclass(frozen=True, slots=True)
class ClientWorlds:
    """Worlds whose writers are the real client on virtual time."""

    options: Options = ()

    @property
    def label(self) -> str:
        """What is changed about the drawn worlds."""
        return _label("client worlds", self.options)


@dataclass(frozen=True, slots=True)
class DiskLives:
    """Random lives of one real store: writes, crashes, failing and rotting files."""

    label: str = "disk lives"


@dataclass(frozen=True, slots=True)
class DirectedTests:
    """Tests of exactly this situation; ``why`` says what keeps random runs from seeing it."""

    tests: tuple[str, ...]
    why: str
    label: str = "directed test"


Guard = Worlds | Chaos | ClientWorlds | DiskLives | DirectedTests
"""All but directed tests are drawn from a seed; ``label`` names what runs on one line."""


def _label(name: str, options: Options) -> str:
    return " ".join((name, *(f"{option}={value}" for option, value in options)))
