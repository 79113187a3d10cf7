"""What an ablation is: one rule of the safety contract, and the edit that switches it off."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "raftstore/core/"
ENGINE = "raftstore/engine/"
ELECTION = "raftstore/election/"
STORAGE = "raftstore/storage/"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one file; ``old`` occurs in it exactly once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Ablation:
    """A rule, how to remove it, and who must notice.

    Either ``tests`` (pytest node ids, each of which must fail by itself) or ``seeds`` (simulated
    worlds of which at least one must violate a promise, run with ``options``) is given.
    """

    name: str
    """Unique; begins with the rule's number in the contract."""
    off: str
    """What the system does without the rule, in a few words."""
    edits: tuple[Edit, ...]
    tests: tuple[str, ...] = ()
    seeds: range = range(0)
    options: tuple[tuple[str, str], ...] = ()

    @property
    def rule(self) -> str:
        """The rule's number in the contract."""
        return self.name.partition("-")[0]

    @property
    def guard(self) -> str:
        """Who notices, for the table."""
        if self.tests:
            return ", ".join(test.rpartition("/")[2].replace("::", " :: ") for test in self.tests)
        changes = "".join(f" {name}={value}" for name, value in self.options)
        return f"seeds {self.seeds[0]}..{self.seeds[-1]}{changes}"


def directed(name: str, off: str, path: str, old: str, new: str, *tests: str) -> Ablation:
    """An ablation of one edit that directed tests must notice."""
    return Ablation(name, off, (Edit(path, old, new),), tests=tests)


def simulated(name: str, off: str, *edits: Edit, seeds: range, **options: str) -> Ablation:
    """An ablation that the simulator must notice by itself."""
    return Ablation(name, off, edits, seeds=seeds, options=tuple(options.items()))
