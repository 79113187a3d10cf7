"""What a planted bug is: a name, the rule it breaks, the edit that plants it, who must catch it."""

from __future__ import annotations

from dataclasses import dataclass

from jepsen_like.planted.source_patch import Edit

CORE = "raftstore/core/"
ENGINE = "raftstore/engine/"
ELECTION = "raftstore/election/"
STORAGE = "raftstore/storage/"
CLIENT = "raftstore/client/"


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One way to break the protocol, the store or the client.

    With ``tests`` directed tests catch it, and ``why`` says why random worlds do not; without, a
    simulated world whose drawn options are changed by ``options``.
    """

    rule: str
    """Number of the contract's rule it breaks, as "S3.1"."""
    name: str
    text: str
    """What the broken system does, in one sentence."""
    edits: tuple[Edit, ...]
    options: tuple[tuple[str, str], ...] = ()
    tests: tuple[str, ...] = ()
    why: str = ""

    @property
    def is_directed(self) -> bool:
        """Whether directed tests catch it."""
        return bool(self.tests)

    @property
    def guard(self) -> str:
        """Workload that catches it, with what is changed about it."""
        if self.is_directed:
            return "directed test"
        return " ".join(("worlds", *(f"{name}={value}" for name, value in self.options)))


def in_worlds(rule: str, name: str, text: str, *edits: Edit, **options: str) -> PlantedBug:
    """Make a bug that simulated worlds catch."""
    return PlantedBug(rule, name, text, edits, options=tuple(options.items()))


def by_tests(
    rule: str, name: str, text: str, *edits: Edit, tests: tuple[str, ...], why: str
) -> PlantedBug:
    """Make a bug that directed tests catch."""
    return PlantedBug(rule, name, text, edits, tests=tests, why=why)
