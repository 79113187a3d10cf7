"""One leader among the processes of another program, for each key.

::

    seen = election.command("indexer", Campaign("host-a", lease_ms=5_000, address="10.0.0.1:80"))
    if seen.leader == "host-a":
        ...  # lead in term seen.term; campaign again well before seen.until_ms
        election.command("indexer", Resign("host-a", seen.term))

Candidates stand in the order in which they came; each keeps its place by campaigning again before
its lease is over. The first of those whose lease is not over leads. Every other leader has a higher
term, which protects what it writes as the token of a lock does. A leadership ends by a Resign that
names its term, and by no other: one that was sent late, or twice, ends no later leadership.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

import raftstore
from raftstore.recipes.names import name_of

LeaseMs = Annotated[int, msgspec.Meta(ge=1, le=24 * 3_600_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
CANDIDATES_MAX: Final = 1_000
NAMED_TERMS: Final = 2
"""The version from which on a Resign has to name the term that it ends. Before, it ended whatever
leadership its candidate had when it came."""


class Campaign(msgspec.Struct, frozen=True, tag=True):
    """Stand for the election, or go on doing so."""

    candidate: Name
    lease_ms: LeaseMs
    address: Annotated[str, msgspec.Meta(max_length=1_000)] = ""
    """For those who look for the leader."""


class Resign(msgspec.Struct, frozen=True, tag=True):
    """Stand no longer; a leader makes place for the next candidate at once."""

    candidate: Name
    term: int = 0
    """Of the leadership that it ends; 0: the candidate does not lead, and only stands no longer.
    What was sent before there were terms has none."""


class Leadership(msgspec.Struct, frozen=True):
    """The leader at the time of a command."""

    leader: str
    """Empty: there is no candidate."""
    term: int
    until_ms: int
    """End of its lease, in milliseconds since 1970."""
    address: str = ""
    candidates: int = 0


class _Candidate(msgspec.Struct, frozen=True, array_like=True):
    name: str
    until_ms: int
    address: str


class _Race(msgspec.Struct, frozen=True, array_like=True):
    leader: str = ""
    term: int = 0
    candidates: tuple[_Candidate, ...] = ()
    """In the order in which they came."""


_RACE = raftstore.codec(_Race)


class Election(raftstore.StateMachine):
    """Commands: Campaign, Resign. Result and answer: the Leadership."""

    version = NAMED_TERMS
    commands = raftstore.codec(Campaign | Resign)
    results = answers = raftstore.codec(Leadership)

    def apply(self, command: Campaign | Resign, context: raftstore.CommandContext) -> Leadership:
        """Change the candidates, and the leader where it has to be another.

        RejectedError: there are too many candidates, or a Resign is not of the term that is led.
        """
        name = name_of(context)
        race = self._race(context.state, name)
        standing = {c.name: c for c in race.candidates if c.until_ms > context.time_ms}
        led = race.leader in standing
        if isinstance(command, Resign):
            if context.version >= NAMED_TERMS:
                _check_term(command, race, leads=led and race.leader == command.candidate)
            standing.pop(command.candidate, None)
        else:
            if command.candidate not in standing and len(standing) >= CANDIDATES_MAX:
                raise raftstore.RejectedError(f"there are {CANDIDATES_MAX} candidates already")
            until_ms = context.time_ms + command.lease_ms
            # One that stands already keeps its place in the order.
            standing[command.candidate] = _Candidate(command.candidate, until_ms, command.address)
        stays = led and race.leader in standing
        leader = race.leader if stays else next(iter(standing), "")
        # A leader whose lease was over and that wins again has another term, too.
        term = race.term if stays or not leader else race.term + 1
        after = _Race(leader, term, tuple(standing.values()))
        context.state.put(name, _RACE.encode(after))
        return _leadership(after)

    def query(self, request: bytes, context: raftstore.QueryContext) -> Leadership:
        """The leader behind the last command; its lease may be over."""
        del request
        return _leadership(self._race(context.state, name_of(context)))

    @staticmethod
    def _race(state: raftstore.StateView, name: bytes) -> _Race:
        found = state.get(name)
        race: _Race = _Race() if found is None else _RACE.decode(found)
        return race


def _check_term(resign: Resign, race: _Race, *, leads: bool) -> None:
    """RejectedError where a Resign would end a leadership that it does not name."""
    says = f"{race.leader} leads in term {race.term}" if race.leader else "nobody leads"
    if resign.term and (race.leader, race.term) != (resign.candidate, resign.term):
        message = f"{resign.candidate} does not lead in term {resign.term}: {says}"
        raise raftstore.RejectedError(message)
    if leads and not resign.term:
        raise raftstore.RejectedError(f"{says}; a Resign that ends that has term={race.term}")


def _leadership(race: _Race) -> Leadership:
    count = len(race.candidates)
    for candidate in race.candidates:
        if candidate.name == race.leader:
            address = candidate.address
            return Leadership(race.leader, race.term, candidate.until_ms, address, count)
    return Leadership("", race.term, 0, candidates=count)
