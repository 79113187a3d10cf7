"""A mutation: one rule that is switched off, or one way to break what keeps it, and its guards."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutations.guard import Directed, Drawn, Guard
from tests.mutations.syntax import Edit


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule, the edits that break it, and everyone who must notice."""

    name: str
    """Unique; begins with the rule's number in the contract, or with the room of the rule."""
    text: str
    """What the broken system does, in one sentence."""
    edits: tuple[Edit, ...]
    guards: tuple[Guard, ...]
    also: tuple[str, ...] = ()
    """Further rules that the same edits break."""

    @property
    def rule(self) -> str:
        """The rule's number in the contract."""
        return self.name.partition("-")[0]

    @property
    def rules(self) -> tuple[str, ...]:
        """All rules that it breaks."""
        return (self.rule, *self.also)

    @property
    def tests(self) -> tuple[str, ...]:
        """Node ids of all its directed tests."""
        guards = (guard for guard in self.guards if isinstance(guard, Directed))
        return tuple(name for guard in guards for name in guard.names)

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """Its guards that are drawn from a seed."""
        return tuple(guard for guard in self.guards if not isinstance(guard, Directed))


def mutation(name: str, text: str, *parts: Edit | Guard, also: tuple[str, ...] = ()) -> Mutation:
    """Put a mutation together from its edits and its guards."""
    edits = tuple(part for part in parts if isinstance(part, Edit))
    guards = tuple(part for part in parts if not isinstance(part, Edit))
    return Mutation(name, text, edits, guards, also)
