"""Members as faults want them, and the requests that are still to be made for that.

What a fault wants is noted here, and asked for again and again until it is so: requests are lost,
leaders change, an order waits for another. The same for simulated nodes and for real ones, which
look at the cluster and ask it in their own ways.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from jepsen_like.target.base import FaultUnavailableError

NODES_MAX: Final = 7


@dataclass(frozen=True, slots=True)
class MembersView:
    """The cluster as the operator sees it."""

    draining: Mapping[str, bool]
    """Every member, and whether it drains."""
    voters: Mapping[str, tuple[str, ...]]
    """Partition -> who votes there, of those in which no change is under way."""
    lost: Collection[str] = ()
    """Members that never start again."""


@dataclass(frozen=True, slots=True)
class Order:
    """These nodes are to vote in the partition, and no others."""

    about: str
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """The node is to give its replicas away, or to keep them after all."""

    about: str
    drains: bool


@dataclass(frozen=True, slots=True)
class Retire:
    """The node is to leave for good."""

    about: str


Step = Order | Drain | Retire


@dataclass(slots=True)
class _Move:
    """Replicas of a partition that a fault has moved, or takes back."""

    before: tuple[str, ...]
    wanted: tuple[str, ...]
    is_taken: bool = False
    """The order of the fault was accepted."""
    is_restoring: bool = False


@dataclass(slots=True)
class MemberGoals:
    """Changes that are wanted and not so yet."""

    nodes_given: int
    """Names n1, n2, … that were given away; none is given twice."""
    replicas: int
    """Of a table: so many nodes have to stay."""
    moves: dict[str, _Move] = field(default_factory=dict)
    joins: dict[str, None] = field(default_factory=dict)
    """Names of nodes that are on their way in."""
    drains: dict[str, bool] = field(default_factory=dict)
    """Nodes whose drain is begun or taken back, until that is so."""
    drained: dict[str, None] = field(default_factory=dict)
    """Nodes of which the cluster took the order to drain."""
    leaving: dict[str, None] = field(default_factory=dict)
    is_healing: bool = False

    # --- faults -----------------------------------------------------------------------------------

    def free(self, view: MembersView | None) -> dict[str, tuple[str, ...]]:
        """Partitions that nobody is changing, with their voters."""
        found = {} if view is None else view.voters
        return {name: voters for name, voters in found.items() if name not in self.moves}

    def staying(self, view: MembersView | None) -> tuple[str, ...]:
        """Nodes that may be given a replica."""
        away = {**self.leaving, **self.drained}
        away |= dict.fromkeys(name for name, drains in self.drains.items() if drains)
        members = () if view is None else view.draining
        lost = () if view is None else view.lost
        return tuple(name for name in members if name not in away and name not in lost)

    def move(self, view: MembersView | None, channel: str, voters: Sequence[str]) -> None:
        """A fault wants these to vote."""
        before = self.free(view).get(channel)
        if view is None or before is None:
            raise FaultUnavailableError(f"{channel} is being changed already, or nobody leads it")
        if len(voters) < len(before) and view.lost:
            raise FaultUnavailableError(
                f"a node is gone for good; with a replica fewer {channel} could lose its majority"
            )
        self.moves[channel] = _Move(before, tuple(voters))

    def restore(self, channel: str) -> bool:
        """The fault is over; whether its order was ever accepted."""
        move = self.moves[channel]
        move.is_restoring = True
        return move.is_taken

    def join(self, view: MembersView | None) -> str:
        """A new node is to join; its name."""
        count = len(self.joins) + (0 if view is None else len(view.draining) - len(view.lost))
        if count >= NODES_MAX:
            raise FaultUnavailableError(f"there are {NODES_MAX} nodes, which is enough")
        self.nodes_given += 1
        name = f"n{self.nodes_given}"
        self.joins[name] = None
        return name

    def joined(self, name: str) -> None:
        """This node has joined."""
        self.joins.pop(name, None)

    def remove(self, node: str) -> bool:
        """A node is to leave for good, as soon as it hosts nothing any more; whether it had
        joined."""
        self.leaving[node] = None
        return node not in self.joins

    def drain(self, node: str) -> None:
        """A node is to give its replicas away."""
        if self.drains or self.drained or self.leaving:
            raise FaultUnavailableError("another node is on its way out; one at a time")
        self.drains[node] = True

    def keep(self, node: str) -> bool:
        """A node is to stay after all; whether the drain was ever accepted."""
        self.drains[node] = False
        return node in self.drained

    @property
    def why_open(self) -> str:
        """Changes that are wanted and not so; empty: none."""
        wanted = dict.fromkeys((*self.moves, *self.joins, *self.drains, *self.leaving))
        return f"{', '.join(wanted)} are being changed" if wanted else ""

    # --- what is to be done -----------------------------------------------------------------------

    def steps(self, view: MembersView) -> list[Step]:
        """Requests to make now; what is as it is wanted is forgotten."""
        found = [self._of_move(view, channel) for channel in tuple(self.moves)]
        found += [self._of_drain(view, node) for node in tuple(self.drains)]
        found += [self._of_leaving(view, node) for node in tuple(self.leaving)]
        return [step for step in found if step is not None]

    def taken(self, step: Step) -> None:
        """A request was accepted."""
        if isinstance(step, Order) and step.about in self.moves:
            move = self.moves[step.about]
            move.is_taken = move.is_taken or not move.is_restoring
        elif isinstance(step, Drain) and step.drains and self.drains.get(step.about):
            self.drained[step.about] = None

    def _of_move(self, view: MembersView, channel: str) -> Step | None:
        move, now = self.moves[channel], view.voters.get(channel)
        if now is None:
            return None  # one order after the other
        if move.is_restoring:
            filled = self._filled(view, move.before, now)
            if filled is None:
                return None  # until nodes stay that can hold them
            move.wanted = filled
        if sorted(now) == sorted(move.wanted):
            if move.is_restoring:
                del self.moves[channel]
            else:
                move.is_taken = True
            return None
        if any(name not in view.draining for name in move.wanted):
            return None  # it has yet to join
        return Order(channel, move.wanted)

    def _filled(
        self, view: MembersView, before: Collection[str], now: Collection[str]
    ) -> tuple[str, ...] | None:
        """As many voters as before, the same where they stay; None: none can come back, and too few
        others stay."""
        staying = self.staying(view)
        ordered = dict.fromkeys((*before, *now, *staying))
        found = [name for name in ordered if name in staying][: len(before)]
        if len(found) == len(before):
            return tuple(found)
        return tuple(before) if {*before} <= {*now, *staying} else None

    def _of_drain(self, view: MembersView, node: str) -> Step | None:
        drains = self.drains[node]
        if node not in view.draining:  # it has left meanwhile
            self.drained.pop(node, None)
            del self.drains[node]
            return None
        if node in self.leaving or (drains and self.joins):
            return None  # those that come make room for what it gives away
        if view.draining[node] != drains:
            return Drain(node, drains)
        self.drained.pop(node, None)
        if drains:
            self.drained[node] = None
        del self.drains[node]
        return None

    def _of_leaving(self, view: MembersView, node: str) -> Step | None:
        if node in self.joins:
            return None
        if node not in view.draining:
            del self.leaving[node]
            self.drained.pop(node, None)
            return None
        if self.is_healing and len(self.staying(view)) < self.replicas:
            del self.leaving[node]  # what it hosts has no other place
            self.drains[node] = False
            return None
        return Retire(node) if view.draining[node] else Drain(node, drains=True)
