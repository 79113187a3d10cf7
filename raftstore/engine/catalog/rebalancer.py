"""The metadata leader's part in a rebalance: it orders the moves, few at a time, and notes how far
they are.

What was decided is in the catalog, so that any later leader goes on (FIP-29). In memory there is
only what was proposed and not answered, and since when each move has looked the same: a new leader
gives all of them their time anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from raftstore.config import RebalanceSettings
from raftstore.engine.catalog.copy_reports import CopyReports
from raftstore.engine.catalog.move_steps import MoveFacts, Step, next_move_step
from raftstore.engine.catalog.table_commands import CatalogView
from raftstore.engine.channel.proposals import OnOutcome
from raftstore.engine.node_ports import Tell
from raftstore.policy.open_moves import OpenMoves
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.rebalance import MoveState, WantedMove
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.state_machines.catalog_rebalance import (
    CancelMoves,
    EndRebalance,
    KnownRebalance,
    MoveEntry,
    RebalanceEntry,
    rebalance_command,
)
from raftstore.state_machines.catalog_replicas import ReplicaEntry
from raftstore.types import ChannelConfig, ChannelId, NodeId, Seq, channel_partition, node_name

PROPOSED_MAX: Final = 16
"""Steps that wait for their place in the catalog at a time."""
OTHERS_FIRST: Final = "others are moved first"
_WHOLE: Final = ChannelId(b"")
"""Stands for the rebalance itself among the channels with a proposal."""


class Replicas(Protocol):
    """Reports of nodes about their replicas."""

    def is_up(self, node: NodeId) -> bool:
        """Whether the node is up, as seen here."""

    def hosts(self, node: NodeId, channel: ChannelId) -> bool:
        """Whether it reports a replica of the channel."""

    def last_seq(self, node: NodeId, channel: ChannelId) -> int:
        """The end of its log there, as far as reported."""


class _Look(NamedTuple):
    """How a move looked, and since when it has looked so."""

    seen: tuple[object, ...]
    since_ms: int


class Rebalancer:
    """Moves of one node, while it leads the metadata channel."""

    def __init__(
        self,
        view: CatalogView,
        replicas: Replicas,
        copies: CopyReports,
        settings: RebalanceSettings,
        tell: Tell,
    ) -> None:
        self._view = view
        self._replicas = replicas
        self._copies = copies
        self._settings = settings
        self._tell = tell
        self._proposed: set[ChannelId] = set()
        self._ordered: dict[ChannelId, tuple[NodeId, ...]] = {}
        """Of these the moves of which the order was proposed, and who gets a replica by it."""
        self._looks: dict[ChannelId, _Look] = {}
        self.waits_for: dict[ChannelId, str] = {}
        """Why each move of the open rebalance does not go on now."""
        self.moved_total = self.failed_total = 0
        """Moves that ended while this node led the metadata channel: completed, and not."""
        self.moves_left = 0
        """Of the open rebalance."""

    def forget(self) -> None:
        """The leader changed: what was proposed is answered or lost."""
        self._proposed.clear()
        self._ordered.clear()
        self._looks.clear()
        self.waits_for.clear()
        self.moves_left = 0

    def look(self, now_ms: int) -> None:
        """Take the steps that may be taken now. The caller leads the metadata channel."""
        catalog = self._view.catalog
        known = catalog.rebalance
        if self._view.refusal_of_format(MEMBERS_FORMAT) is not None:
            return
        rebalance = known.open
        if rebalance is None:
            self._look_after_end(catalog, known, now_ms)
            return
        if self._came_back(rebalance):
            self._propose(_WHOLE, CancelMoves(rebalance.number), now_ms)
        moves = self._open_moves(catalog)
        self.waits_for.clear()
        self.moves_left = sum(not known.moves[e].state.is_end for e in rebalance.channels)
        for channel in rebalance.channels:
            if len(self._proposed) >= PROPOSED_MAX:
                return
            entry = known.moves.get(channel)
            if entry is not None and channel not in self._proposed:
                self._look_at(catalog, rebalance, entry, moves, now_ms)
        if not self.moves_left:
            self._propose(_WHOLE, EndRebalance(rebalance.number), now_ms)

    def _look_at(
        self,
        catalog: Catalog,
        rebalance: RebalanceEntry,
        entry: MoveEntry,
        moves: OpenMoves,
        now_ms: int,
    ) -> None:
        if self._rests(catalog, rebalance, entry, moves):
            return
        channel = entry.move.channel
        step = self._step(catalog, rebalance, entry, moves, now_ms)
        if step.is_order:
            moves.add(entry.move.targets)
            self._ordered[channel] = entry.move.targets
        if step.waits_for:
            self.waits_for[channel] = step.waits_for
        if step.command:
            self._propose_bytes(channel, step.command, now_ms)

    def _look_after_end(self, catalog: Catalog, known: KnownRebalance, now_ms: int) -> None:
        """An order of a move that ended without it is cancelled, whenever it shows."""
        last = known.last
        self.moves_left = 0
        self._looks.clear()
        self.waits_for.clear()
        if last is None or not catalog.changes:
            return
        for channel in last.channels:
            replicas, entry = catalog.changes.get(channel), known.moves.get(channel)
            if replicas is None or replicas.order is None or entry is None:
                continue
            step = self._step(catalog, last, entry, self._open_moves(catalog), now_ms)
            if step.command and channel not in self._proposed:
                self._propose_bytes(channel, step.command, now_ms)

    def _open_moves(self, catalog: Catalog) -> OpenMoves:
        """All orders that are open, and those that were proposed a moment ago."""
        opened = {
            channel: entry.takers
            for channel, entry in catalog.changes.items()
            if entry.order is not None
        }
        return OpenMoves(len(catalog.placeable()), (self._ordered | opened).values())

    def _rests(
        self, catalog: Catalog, rebalance: RebalanceEntry, entry: MoveEntry, moves: OpenMoves
    ) -> bool:
        """Whether a move has ended, or waits for others and has not begun: then there is nothing to
        look at. A plan has up to a thousand moves, and each change of the catalog is a look."""
        channel = entry.move.channel
        replicas = catalog.changes.get(channel)
        if replicas is not None and replicas.order is not None:
            return False
        if entry.state.is_end:
            return True
        is_waiting = entry.state is MoveState.NOT_STARTED and not rebalance.is_cancelled
        was_ordered = replicas is not None and replicas.ended is not None
        if not is_waiting or was_ordered or catalog.table_of(channel) is None:
            return False
        if moves.may_take(entry.move.targets):
            return False
        self.waits_for[channel] = OTHERS_FIRST
        self._looks.pop(channel, None)
        return True

    def _came_back(self, rebalance: RebalanceEntry) -> bool:
        """Its replicas were to be replaced because the node was gone, and it is here again."""
        gone = NodeId(rebalance.replaces)
        return bool(gone) and not rebalance.is_cancelled and self._replicas.is_up(gone)

    # --- one move ---------------------------------------------------------------------------------

    def _step(
        self,
        catalog: Catalog,
        rebalance: RebalanceEntry,
        entry: MoveEntry,
        moves: OpenMoves,
        now_ms: int,
    ) -> Step:
        move = entry.move
        is_full = not moves.may_take(move.targets)
        table = catalog.table_of(move.channel)
        replicas = catalog.entry_of(move.channel) or ReplicaEntry(ChannelConfig((move.voters,)))
        return next_move_step(
            MoveFacts(
                rebalance,
                entry,
                "" if table is None else table.name,
                replicas,
                catalog.change_seqs.get(move.channel, Seq(0)),
                self._stuck(entry, replicas, now_ms, waits_for_room=is_full),
                lambda node: (
                    self._replicas.is_up(node) and self._replicas.hosts(node, move.channel)
                ),
                lambda: OTHERS_FIRST if is_full else self._why_wait(move),
                lambda: _why_never(catalog, move),
            )
        )

    def _why_wait(self, move: WantedMove) -> str:
        """N11: an order is given when it can be carried out, and costs the channel no spare."""
        down = [node for node in move.targets if not self._replicas.is_up(node)]
        if down:
            return f"{', '.join(map(node_name, down))} is down"
        spare, then = self._spare(move.old_voters), self._spare(move.voters)
        if min(spare, then) < 0:
            return "too few of its voters are up to change them"
        if then < spare:
            return "it could spare fewer nodes then"
        return ""

    def _spare(self, voters: Sequence[NodeId]) -> int:
        """How many more may go down before no majority is left."""
        up = sum(self._replicas.is_up(node) for node in voters)
        return up - (len(voters) // 2 + 1)

    def _stuck(
        self, entry: MoveEntry, replicas: ReplicaEntry, now_ms: int, *, waits_for_room: bool
    ) -> str:
        """Why a move that looks the same for too long does so; empty: it does not."""
        channel, move = entry.move.channel, entry.move
        order = replicas.order
        seen = (
            entry.state,
            entry.ends_as,
            waits_for_room,
            replicas.config_seq,
            None if order is None else (order.target.change, order.target.cancelled),
            *((self._copies.bytes_of(channel, n), self._replicas.last_seq(n, channel))
              for n in move.targets),
        )  # fmt: skip
        look = self._looks.get(channel)
        if look is None or look.seen != seen:
            self._looks[channel] = _Look(seen, now_ms)
            return ""
        waited_ms = now_ms - look.since_ms
        if waited_ms < self._settings.stuck_ms or (waits_for_room and order is None):
            return ""
        return f"nothing happened for {waited_ms // 1000} s: {self._why_stuck(entry)}"

    def _why_stuck(self, entry: MoveEntry) -> str:
        move = entry.move
        down = [node_name(n) for n in move.targets if not self._replicas.is_up(n)]
        if down:
            return f"{', '.join(down)} is down"
        leader, _ = self._view.leader_of(move.channel)
        if leader is None:
            return "the channel has no leader"
        names = ", ".join(map(node_name, move.targets))
        return f"{names} gets no further; `raftstore channel info` says what it waits for"

    # --- proposing --------------------------------------------------------------------------------

    def _propose(
        self, channel: ChannelId, command: CancelMoves | EndRebalance, now_ms: int
    ) -> None:
        if channel not in self._proposed:
            self._propose_bytes(channel, rebalance_command(command), now_ms)

    def _propose_bytes(self, channel: ChannelId, command: bytes, now_ms: int) -> None:
        self._proposed.add(channel)
        view = self._view
        view.proposals.propose(view.metadata, command, self._done(channel), now_ms)

    def _done(self, channel: ChannelId) -> OnOutcome:
        before = self._view.catalog.rebalance

        def done(answer: PubAck | PubReject, now_ms: int) -> None:
            del answer  # by what the catalog is then, the next step is taken, or this one again
            self._proposed.discard(channel)
            self._ordered.pop(channel, None)
            self._view.on_catalog_applied(now_ms)
            self._note(channel, before, self._view.catalog.rebalance)

        return done

    def _note(self, channel: ChannelId, before: KnownRebalance, after: KnownRebalance) -> None:
        """Say what happened, once it is in the catalog."""
        last = after.last
        if last is None:
            return
        if channel == _WHOLE:
            if not last.is_open and before.open is not None:
                states = [after.moves[each].state for each in last.channels]
                done = states.count(MoveState.COMPLETED)
                self._tell(
                    "rebalance_ended",
                    rebalance=last.number, state=last.state.value, moves=len(states),
                    completed=done,
                )  # fmt: skip
            return
        old, new = before.moves.get(channel), after.moves.get(channel)
        if new is None or (old is not None and old.state is new.state):
            return
        failed = new.state in (MoveState.FAILED, MoveState.TIMEOUT)
        self.moved_total += new.state is MoveState.COMPLETED
        self.failed_total += failed
        table = self._view.catalog.table_of(channel)
        name = channel.hex() if table is None else f"{table.name}/{channel_partition(channel)}"
        self._tell(
            "replica_move_failed" if failed else "replica_move",
            channel=name,
            source=",".join(map(node_name, new.move.sources)),
            target=",".join(map(node_name, new.move.targets)),
            state=new.state.value,
            reason=new.reason,
        )


def _why_never(catalog: Catalog, move: WantedMove) -> str:
    """M27: it would put a replica where none may go."""
    able = set(catalog.placeable())
    gone = [node_name(node) for node in move.targets if node not in able]
    if not gone:
        return ""
    return f"{', '.join(gone)} drains, has left or is tagged, and takes no replicas"
