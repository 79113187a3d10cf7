"""Keeps leaders even: the leader of the metadata channel plans, a few moves at a time.

It looks at who leads what, as each node reports of itself, and waits until nodes and leaders have
been the same for a while. Once some node is off its share by more than one leader, it has
leaderships moved until no plan is more even; each is judged again by the two nodes that it is about
(``move_requests``). A move that is refused, or comes to nothing, is not tried again for a while,
longer each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from raftstore.config import RebalanceSettings
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.leaders.given_away import GivenAway
from raftstore.engine.leaders.parts import LeaderParts
from raftstore.engine.leaders.settled import SettledLeaders
from raftstore.policy.leader_balance import LeaderMove, LedChannel, plan_moves
from raftstore.protocol.leader_moves import LeadRefused, TakeLead
from raftstore.state_machines.catalog import Catalog
from raftstore.types import ChannelId, NodeId, Term, node_name

LOOK_MS: Final = 1_000
"""Between two looks, or one millisecond for each channel, whichever is longer."""
LOOKED_AT_MS: Final = 100
"""Channels for each millisecond that passes at least before a look that a move asked for: a look
takes three microseconds a channel, and the main loop has other things to do, too."""
MOVE_MS: Final = 5_000
"""A move after which nobody else leads by then has failed: a hand-over is given up far earlier."""
PAUSE_MS: Final = 10_000
PAUSE_MS_MAX: Final = 600_000
"""Before a channel whose move failed is moved again: doubled from the first to the second. A node
that refused to lead is asked for nothing for the first."""

_LOOK: Final = 0


@dataclass(frozen=True, slots=True)
class _OpenMove:
    """A move that was asked for."""

    name: str
    move: LeaderMove
    term: Term
    begun_ms: int


class LeaderBalancer:
    """Plans while this node leads the metadata channel, and does nothing otherwise."""

    def __init__(
        self,
        parts: LeaderParts,
        settings: RebalanceSettings,
        ask: Callable[[NodeId, TakeLead], None],
        given_away: GivenAway,
    ) -> None:
        """``ask``: takes a request to the node that shall lead."""
        self._parts = parts
        self._settings = settings
        self._ask = ask
        self._given_away = given_away
        self._settled = SettledLeaders(settings)
        self._plans = False
        """Whether this node led the metadata channel at the last look."""
        self._up_since_ms: dict[NodeId, int] = {}
        self._nodes_since_ms = 0
        """Since when the same nodes are up, as far as this node looked."""
        self._catalog: Catalog | None = None
        self._placed: dict[ChannelId, tuple[str, tuple[NodeId, ...]]] = {}
        """Name and placement of every channel in that catalog."""
        self._open: dict[ChannelId, _OpenMove] = {}
        self._leaderless_since_ms: dict[ChannelId, int] = {}
        """Channels without a leader that is up."""
        self._pauses: dict[ChannelId, tuple[int, int]] = {}
        """Until when a channel is not moved, and how long that pause is."""
        self._node_pauses: dict[NodeId, int] = {}
        """Until when a node that refused to lead is not asked."""
        self._looked_ms = 0
        """When the last look was."""
        self._balancing_since_ms: int | None = None
        """Since when moves are made, until no plan is more even."""
        self.moves_left = 0
        """Planned at the last look and not asked for yet."""
        self.moved_total = 0
        self.failed_total = 0
        self.deadlines: Deadlines[int] = Deadlines()
        """One: of the next look."""

    @property
    def moves_under_way(self) -> tuple[LeaderMove, ...]:
        """Moves that were asked for and are not done, while this node plans."""
        return tuple(found.move for found in self._open.values())

    @property
    def is_on(self) -> bool:
        """Whether leaders are made even: an operator's switch wins over the setting."""
        switch = self._parts.controller.catalog.rebalance.leaders
        return self._settings.leaders if switch is None else switch

    def switched(self, now_ms: int) -> None:
        """An operator has turned it on or off: where it is off, the next look is the last."""
        self.deadlines.push(_LOOK, now_ms)

    def status(self, now_ms: int) -> dict[str, Any]:
        """Plan and moves, for reports."""
        since_ms = self._balancing_since_ms
        return {
            "is_on": self.is_on,
            "switch": self._parts.controller.catalog.rebalance.leaders,
            "plans": self._plans,
            "drains": self._parts.me in self._leaving(),
            "balancing_ms": None if since_ms is None else now_ms - since_ms,
            "under_way": len(self._open),
            "moves_left": self.moves_left,
            "moved": self.moved_total,
            "failed": self.failed_total,
        }

    def leader_changed(self, channel: ChannelId, now_ms: int) -> None:
        """The channel has another leader: look soon if that is what was waited for, or may make
        this node the one that plans."""
        is_mine = channel in self._open or channel == self._parts.controller.metadata_channel
        if is_mine and self.is_on:
            soon_ms = self._looked_ms + len(self._placed) // LOOKED_AT_MS
            self.deadlines.push(_LOOK, max(now_ms, soon_ms))

    def on_timer(self, now_ms: int) -> None:
        """Look, when that is due."""
        for _ in self.deadlines.due(now_ms):
            self._look(now_ms)

    def on_refused(self, sender: NodeId, message: LeadRefused) -> None:
        """One of the two nodes of a move refused it."""
        found = self._open.get(message.channel)
        if found is None or found.term != message.term:
            return
        now_ms = self._parts.node.clock.now_ms
        if sender == found.move.target:
            self._node_pauses[sender] = now_ms + PAUSE_MS
        elif sender != found.move.source:
            return
        self._failed(found, message.reason, now_ms)

    # --- a look -----------------------------------------------------------------------------------

    def _look(self, now_ms: int) -> None:
        if not self._parts.is_planner or not self.is_on:
            self._rest(now_ms)
            return
        if not self._plans:
            # What was before is not known, and moves of an earlier planner may be under way: all
            # leaders count as new.
            self._plans = True
            self._settled.clear()
            self._leaderless_since_ms.clear()
        self._look_at_catalog()
        self._looked_ms = now_ms
        self.deadlines.push(_LOOK, now_ms + max(LOOK_MS, len(self._placed)))
        up = self._look_at_nodes(now_ms)
        self._settled.respect(self._given_away.kept(up, now_ms))
        for channel in self._placed:
            self._look_at(channel, up, now_ms)
        self._balance(up, now_ms)

    def _rest(self, now_ms: int) -> None:
        """Another node plans, or this one cannot do so yet, or is not to."""
        self._open.clear()
        self._plans = False
        self._balancing_since_ms = None
        self.moves_left = 0
        if self._parts.planner == self._parts.me and self.is_on:
            self.deadlines.push(_LOOK, now_ms + LOOK_MS)

    def _look_at_catalog(self) -> None:
        catalog = self._parts.controller.catalog
        if self._catalog is catalog:
            return
        self._catalog = catalog
        self._placed = {
            channel: (f"{table.name}/{partition}", catalog.leaders_of(channel))
            for table in catalog.tables.values()
            for partition, channel in enumerate(table.channels)
        }
        self._settled.forget_unless(self._placed)
        kept: dict[ChannelId, Any]
        for kept in (self._open, self._pauses, self._leaderless_since_ms):
            for gone in [each for each in kept if each not in self._placed]:
                del kept[gone]

    def _look_at_nodes(self, now_ms: int) -> Collection[NodeId]:
        """Nodes that are up."""
        watch = self._parts.watch
        up = {self._parts.me: 0}
        for node in watch.peers:
            since_ms = watch.health.since_ms(node)
            if since_ms is not None and watch.is_up(node):
                up[node] = since_ms
        if up != self._up_since_ms:
            self._up_since_ms = up
            self._nodes_since_ms = now_ms
            self._settled.nodes_changed()
        return up

    def _look_at(self, channel: ChannelId, up: Collection[NodeId], now_ms: int) -> None:
        """See who leads a channel, and whether a move of it is done."""
        leader, _ = self._parts.controller.leader_of(channel)
        found = self._open.get(channel)
        is_planned = found is not None and leader == found.move.target
        _, replicas = self._placed[channel]
        self._settled.look(channel, leader, now_ms, up=up, is_planned=is_planned, replicas=replicas)
        if leader in up:
            self._leaderless_since_ms.pop(channel, None)
        else:
            self._leaderless_since_ms.setdefault(channel, now_ms)
        if found is None:
            return
        if is_planned:
            del self._open[channel]
            self._pauses.pop(channel, None)
            self.moved_total += 1
            self._tell("leader_moved", found, took_ms=now_ms - found.begun_ms)
        elif leader is not None and leader != found.move.source:
            self._failed(found, f"{node_name(leader)} leads it now", now_ms)
        elif now_ms - found.begun_ms >= MOVE_MS:
            self._failed(found, f"no other node leads it after {MOVE_MS} ms", now_ms)

    # --- the plan ---------------------------------------------------------------------------------

    def _balance(self, up: Collection[NodeId], now_ms: int) -> None:
        led, targets = self._led(up, now_ms), self._targets(up, now_ms)
        domains = self._parts.controller.catalog.domains()
        plan = plan_moves(led, targets, self._leaving(), domains)
        is_calm = self._is_calm(now_ms)
        if plan.is_uneven and is_calm and self._balancing_since_ms is None:
            self._balancing_since_ms = now_ms
        if not plan.moves and not self._open:
            self._balancing_since_ms = None
        self.moves_left = 0
        if self._balancing_since_ms is None or not is_calm:
            return
        room = self._settings.moves_max - len(self._open)
        self.moves_left = max(0, len(plan.moves) - room)
        for move in plan.moves[:room]:
            self._begin(move, now_ms)

    def _leaving(self) -> Collection[NodeId]:
        """Nodes that are to lead nothing: they drain, or an operator says that they go."""
        catalog = self._parts.controller.catalog
        return catalog.draining.keys() | catalog.rebalance.tags.keys()

    def _is_calm(self, now_ms: int) -> bool:
        """Whether moves may begin. While nodes come and go, or channels have lost their leaders a
        moment ago, it is not known how many each node will lead. A channel that stays without a
        leader holds nothing up."""
        calm_ms = self._settings.calm_ms
        return now_ms - self._nodes_since_ms >= calm_ms and not any(
            now_ms - since_ms < calm_ms for since_ms in self._leaderless_since_ms.values()
        )

    def _targets(self, up: Collection[NodeId], now_ms: int) -> list[NodeId]:
        """Nodes that may be given more leaders."""
        relieved = self._settled.relieved(now_ms)
        return [
            node
            for node in up
            if now_ms >= self._node_pauses.get(node, 0)
            and node not in relieved
            and self._parts.knows_moves(node)
        ]

    def _led(self, up: Collection[NodeId], now_ms: int) -> Iterable[LedChannel]:
        """Channels with a live leader; one that is being moved counts where it goes."""
        for channel, (_, replicas) in self._placed.items():
            found = self._open.get(channel)
            if found is not None:
                yield LedChannel(channel, found.move.target, replicas, may_move=False)
                continue
            leader, _ = self._parts.controller.leader_of(channel)
            if leader is None or leader not in up:
                continue
            until_ms, _ = self._pauses.get(channel, (0, 0))
            may_move = (
                now_ms >= until_ms
                and self._settled.may_move(channel, now_ms)
                and self._parts.knows_moves(leader)
            )
            yield LedChannel(channel, leader, replicas, may_move)

    # --- moves ------------------------------------------------------------------------------------

    def _begin(self, move: LeaderMove, now_ms: int) -> None:
        _, term = self._parts.controller.leader_of(move.channel)
        name, _ = self._placed[move.channel]
        self._open[move.channel] = _OpenMove(name, move, term, now_ms)
        assert len(self._open) <= self._settings.moves_max, f"{len(self._open)} moves at a time"
        self._ask(move.target, TakeLead(move.channel, term))

    def _failed(self, found: _OpenMove, reason: str, now_ms: int) -> None:
        channel = found.move.channel
        del self._open[channel]
        _, before_ms = self._pauses.get(channel, (0, 0))
        pause_ms = min(max(2 * before_ms, PAUSE_MS), PAUSE_MS_MAX)
        self._pauses[channel] = (now_ms + pause_ms, pause_ms)
        self.failed_total += 1
        self._tell("leader_move_failed", found, reason=reason)

    def _tell(self, name: str, found: _OpenMove, **about: object) -> None:
        self._parts.node.tell(
            name,
            channel=found.name,
            source=node_name(found.move.source),
            target=node_name(found.move.target),
            **about,
        )
