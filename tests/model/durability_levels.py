"""A model of three replicas that acknowledge what a stop may take from them (S0.6).

At the levels below fsync a replica acknowledges records that it has not synced. After a stop that
may have cost some of them it is *in doubt*: how many it lost, nothing here can say. Term and vote
are synced, and a log loses its end only. In doubt it neither votes, stands nor acknowledges, until
it knows a *target*, a history that is at or above everything that it ever acknowledged and that
any replica still holds:

* the end of a leader's log, given in answer to a question of this life, by the leader of its own
  term or a higher one; or
* the highest end among all replicas, each given in answer to a question of this life.

Either may replace a target: what the one before came from may be lost as well, and then nobody
ever comes so far. With a target it votes, for candidates that have come at least as far; it stands
once its own log has. What must hold:

* who is elected has every acknowledged record that any replica still holds: it is lost only when
  all that held it lost it;
* once nothing stops any more, everybody takes part again.

``FAULTS`` are rules taken out, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

REPLICAS = range(3)
QUORUM = 2
STOPS_MAX = 2

FAULTS = {
    "no doubt": "a replica that may have lost records takes part as if it had not",
    "votes in doubt": "it votes before it has a target",
    "forgets the target": "with a target it votes by the end of its own log",
    "stands below the target": "with a target it stands, whatever its log holds",
    "a majority tells": "the ends of a majority are enough for a target",
    "any leader tells": "a leader of a term below its own is believed",
    "earlier lives are told": "an answer to a question of an earlier life is believed",
    "a target stays": "a target is never replaced, although nobody may hold that much any more",
    "no end without a leader": "only a leader gives a target",
}

Log = tuple[int, ...]
History = tuple[int, int]
"""Term and number of the last record."""


class One(NamedTuple):
    """A replica; ``log`` has the term of each record."""

    log: Log = ()
    term: int = 0
    leads: int = 0
    matched: tuple[int, int, int] = (0, 0, 0)
    """As a leader: records that each replica acknowledged."""
    in_doubt: bool = False
    target: History | None = None
    heard: History | None = None
    """The answer of a leader, for the fault that believes it after a stop."""

    @property
    def end(self) -> History:
        """The history that elections compare."""
        return (self.log[-1] if self.log else 0, len(self.log))


class State(NamedTuple):
    """Of all of them; ``acknowledged``: (number, term) of records that were reported to clients."""

    ones: tuple[One, One, One] = (One(), One(), One())
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    stops: int = 0

    def put(self, number: int, one: One) -> State:
        """One replica is another."""
        ones = [*self.ones]
        ones[number] = one
        return self._replace(ones=(ones[0], ones[1], ones[2]))


class Model:
    """All moves there are, with at most one rule taken out."""

    def __init__(self, fault: str = "", *, terms_max: int, records_max: int) -> None:
        assert not fault or fault in FAULTS
        self._fault = fault
        self.terms_max = terms_max
        self._records_max = records_max

    # --- elections --------------------------------------------------------------------------------

    def _may_stand(self, one: One) -> bool:
        if self._fault == "stands below the target" and one.target is not None:
            return True
        return not one.in_doubt

    def _votes(self, voter: One, candidate: One) -> bool:
        end = voter.end
        if voter.in_doubt and self._fault != "votes in doubt":
            if voter.target is None:
                return False
            if self._fault != "forgets the target":
                end = max(end, voter.target)
        return candidate.end >= end

    def elections(self, state: State, terms_max: int) -> Iterator[tuple[int, State]]:
        """Each that some quorum gives."""
        for number, one in enumerate(state.ones):
            term = one.term + 1
            if term > terms_max or not self._may_stand(one):
                continue
            voters = [
                other
                for other in REPLICAS
                if other != number
                and state.ones[other].term < term
                and self._votes(state.ones[other], one)
            ]
            for count in range(QUORUM - 1, len(voters) + 1):
                for some in combinations(voters, count):
                    after = state
                    for voter in some:
                        deposed = state.ones[voter]._replace(term=term, leads=0)
                        after = after.put(voter, deposed)
                    log = (*one.log, term)  # S2.2
                    matched = [0, 0, 0]
                    matched[number] = len(log)
                    won = one._replace(
                        log=log, term=term, leads=term, matched=(matched[0], matched[1], matched[2])
                    )
                    yield number, after.put(number, won)

    # --- replication ------------------------------------------------------------------------------

    def replicate(self, state: State, leader: int, number: int) -> State | None:
        """A follower takes the leader's log, and acknowledges it if it may; None: it does not."""
        led, one = state.ones[leader], state.ones[number]
        if not led.leads or one.term > led.leads or leader == number:
            return None
        one = one._replace(log=led.log, term=led.leads, leads=0)
        one = self.recovered(one)
        if not one.in_doubt:
            matched = [*led.matched]
            matched[number] = len(led.log)
            led = led._replace(matched=(matched[0], matched[1], matched[2]))
        return state.put(number, one).put(leader, led)

    @staticmethod
    def recovered(one: One) -> One:
        """It has come as far as its target."""
        if one.target is None or one.end < one.target:
            return one
        return one._replace(in_doubt=False, target=None)

    @staticmethod
    def _commit(state: State, leader: int) -> State:
        led = state.ones[leader]
        count = sorted(led.matched)[-QUORUM]
        if not led.leads or not count or led.log[count - 1] != led.leads:
            return state
        records = enumerate(led.log[:count])
        return state._replace(acknowledged=state.acknowledged | frozenset(records))

    # --- doubt ------------------------------------------------------------------------------------

    def stop(self, state: State, number: int) -> Iterator[State]:
        """It stops and comes back with a part of its log."""
        one = state.ones[number]
        for kept in range(len(one.log) + 1):
            back = One(one.log[:kept], one.term, in_doubt=self._fault != "no doubt")
            if self._fault == "earlier lives are told" and one.heard is not None:
                back = self.recovered(back._replace(target=one.heard))
            yield state.put(number, back)._replace(stops=state.stops + 1)

    def targets(self, state: State, number: int) -> Iterator[State]:
        """A replica in doubt is answered by a leader, or by all others."""
        one = state.ones[number]
        if self._fault == "earlier lives are told" and one.heard is None:
            for led in state.ones:
                if led.leads >= max(1, one.term) and led is not one:
                    yield state.put(number, one._replace(heard=led.end))
        if not one.in_doubt or (one.target is not None and self._fault == "a target stays"):
            return
        others = [state.ones[other] for other in REPLICAS if other != number]
        for led in others:
            if led.leads and (led.leads >= one.term or self._fault == "any leader tells"):
                yield state.put(number, self.recovered(one._replace(target=led.end)))
        groups = [others]
        if self._fault == "a majority tells":
            groups = [[each] for each in others] + groups
        if self._fault != "no end without a leader":
            for group in groups:
                target = max(one.end, *(each.end for each in group))
                yield state.put(number, self.recovered(one._replace(target=target)))

    # --- all of it --------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[State]:
        """All that may happen next."""
        for _, after in self.elections(state, self.terms_max):
            yield after
        for number, one in enumerate(state.ones):
            if one.leads:
                if len(one.log) < self._records_max:
                    matched = [*one.matched]
                    matched[number] = len(one.log) + 1
                    longer = one._replace(log=(*one.log, one.leads))
                    longer = longer._replace(matched=(matched[0], matched[1], matched[2]))
                    yield state.put(number, longer)
                yield self._commit(state, number)
            if state.stops < STOPS_MAX:
                yield from self.stop(state, number)
            yield from self.targets(state, number)
            for other in REPLICAS:
                after = self.replicate(state, number, other)
                if after is not None:
                    yield after

    def heals(self, state: State) -> bool:
        """Whether everybody takes part in the end, when all are up and nothing stops any more."""
        for number in REPLICAS:
            for after in self.targets(state, number):
                state = after  # the last one is that of all ends
        highest = max(one.term for one in state.ones)
        for number, one in enumerate(state.ones):
            state = state.put(number, self.recovered(one._replace(term=highest, leads=0)))
        elected = next(self.elections(state, highest + 1), None)
        if elected is None:
            return False
        leader, state = elected
        for number in REPLICAS:
            state = next(self.targets(state, number), state)
            state = self.replicate(state, leader, number) or state
        return not any(one.in_doubt for one in state.ones)


class Found(NamedTuple):
    """The outcome of a search."""

    states: int
    violation: str


def _lacks(state: State, leader: int) -> bool:
    """Whether the leader lacks an acknowledged record that some replica still holds."""
    led = state.ones[leader]
    return any(
        led.log[number : number + 1] != (term,)
        and any(one.log[number : number + 1] == (term,) for one in state.ones)
        for number, term in state.acknowledged
    )


def search(fault: str = "", *, terms_max: int, records_max: int) -> Found:
    """Through all states, to the first that must not be; a log has one record more for each term
    in which its replica was elected."""
    model = Model(fault, terms_max=terms_max, records_max=records_max)
    seen = {State()}
    waiting = deque(seen)
    while waiting:
        state = waiting.popleft()
        elections = model.elections(state, model.terms_max + 1)
        if any(_lacks(after, leader) for leader, after in elections):
            return Found(len(seen), "a leader lacks an acknowledged record that a replica holds")
        if not model.heals(state):
            return Found(len(seen), "not everybody takes part again")
        for after in model.moves(state):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return Found(len(seen), "")
