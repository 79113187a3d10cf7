"""What a planted bug is: a name, the rule it breaks, the edit that plants it, who must catch it."""

from __future__ import annotations

from dataclasses import dataclass

from jepsen_like.planted.guard import Chaos, ClientWorlds, DirectedTests, DiskLives, Guard, Worlds
from jepsen_like.planted.source_patch import Edit

CORE = "raftstore/core/"
ENGINE = "raftstore/engine/"
ELECTION = "raftstore/election/"
STORAGE = "raftstore/storage/"
CLIENT = "raftstore/client/"


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One way to break the protocol, the store or the client."""

    rule: str
    """Number of the contract's rule it breaks, as "S3.1"."""
    name: str
    text: str
    """What the broken system does, in one sentence."""
    edits: tuple[Edit, ...]
    guard: Guard

    @property
    def is_directed(self) -> bool:
        """Whether directed tests catch it."""
        return isinstance(self.guard, DirectedTests)


def in_worlds(rule: str, name: str, text: str, *edits: Edit, **options: str) -> PlantedBug:
    """Make a bug that simulated worlds catch, with some of their drawn options replaced."""
    return PlantedBug(rule, name, text, edits, Worlds(tuple(options.items())))


def in_chaos(
    rule: str, name: str, text: str, *edits: Edit, workload: str, nemesis: str, seconds: float = 15
) -> PlantedBug:
    """Make a bug that the checkers of a workload catch under these faults, named by comma."""
    guard = Chaos(workload, tuple(nemesis.split(",")), seconds)
    return PlantedBug(rule, name, text, edits, guard)


def in_client_worlds(rule: str, name: str, text: str, *edits: Edit, **options: str) -> PlantedBug:
    """Make a bug of the client, caught by worlds it writes in."""
    return PlantedBug(rule, name, text, edits, ClientWorlds(tuple(options.items())))


def on_disk(rule: str, name: str, text: str, *edits: Edit) -> PlantedBug:
    """Make a bug of the store, caught in a random life on real files."""
    return PlantedBug(rule, name, text, edits, DiskLives())


def by_tests(
    rule: str, name: str, text: str, *edits: Edit, tests: tuple[str, ...], why: str
) -> PlantedBug:
    """Make a bug that directed tests catch."""
    return PlantedBug(rule, name, text, edits, DirectedTests(tests, why))
