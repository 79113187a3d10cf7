"""The next step of a move of a rebalance, from what the catalog says of it (FIP-13, FIP-28).

Pure: any leader of the metadata channel decides the same, and a step that was taken already is not
taken again. The order of a move has an id made of those of the rebalance and of the channel, so it
is one order however often it is proposed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftstore.protocol.rebalance import MoveState, WantedMove
from raftstore.protocol.replica_orders import ORDER_ID_BYTES
from raftstore.state_machines.catalog_rebalance import (
    MoveEntry,
    RebalanceEntry,
    StepMove,
    rebalance_command,
)
from raftstore.state_machines.catalog_replicas import (
    ChangeReplicas,
    ReplicaEntry,
    ReplicaOrder,
    cancel_change_command,
    change_replicas_command,
)
from raftstore.types import ChannelId, NodeId, Seq, node_name

REASON: Final = "rebalance {}"


class Step(NamedTuple):
    """A command to propose now, or the reason to wait."""

    command: bytes = b""
    waits_for: str = ""
    is_order: bool = False


NOTHING: Final = Step()


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """Everything that is known of a move."""

    rebalance: RebalanceEntry
    entry: MoveEntry
    table: str
    """Name of the channel's table; empty: it was dropped."""
    replicas: ReplicaEntry
    """The channel's row."""
    row_seq: Seq
    stuck: str
    """Why it is given up: nothing has changed for too long; empty: it goes on."""
    hosts: Callable[[NodeId], bool]
    """Whether a node that is up reports a replica of the channel."""
    why_wait: Callable[[], str]
    """Why its order must not be given now; empty: it may."""
    why_never: Callable[[], str]
    """Why its order can never be given; empty: it may some time."""

    @property
    def move(self) -> WantedMove:
        """The replicas."""
        return self.entry.move

    @property
    def order_id(self) -> bytes:
        """Id of the order that carries the move out."""
        return order_id(self.rebalance.guid, self.move.channel)

    @property
    def order(self) -> ReplicaOrder | None:
        """Its order, while that is open."""
        order = self.replicas.order
        return order if order is not None and order.guid == self.order_id else None


def order_id(rebalance: bytes, channel: ChannelId) -> bytes:
    """The id of the order by which a channel is changed in a rebalance."""
    return hashlib.blake2b(rebalance + channel, digest_size=ORDER_ID_BYTES).digest()


def next_move_step(facts: MoveFacts) -> Step:
    """The step to take now."""
    order, ended = facts.order, facts.replicas.ended
    if facts.entry.state.is_end:
        # An order that was on its way when the move was cancelled: it must not go on alone.
        if order is not None and not order.target.cancelled:
            return _cancel_order(facts, order)
        return NOTHING
    if not facts.table:
        return _to(facts, MoveState.CANCELED, "its table was dropped")
    if order is not None:
        return _while_open(facts, order)
    if ended is not None and ended.guid == facts.order_id:
        change = ended.change
        return _shrink(facts, change) if ended.is_done else _undone(facts, change)
    if facts.entry.state.is_under_way:  # its order ended, and another one followed it
        if _is_reached(facts):
            return _to(facts, MoveState.COMPLETED)
        return _to(facts, MoveState.FAILED, f"another order followed order {facts.entry.change}")
    return _before(facts)


def _before(facts: MoveFacts) -> Step:
    """Begin a move, or end one that cannot begin."""
    move, config = facts.move, facts.replicas.config
    if facts.rebalance.is_cancelled:
        return _to(facts, MoveState.CANCELED, "it was cancelled before it began")
    if facts.replicas.order is not None:
        change = facts.replicas.order.target.change
        return _wait(facts, f"order {change} of the channel is open")
    present = set(config.voters), set(config.learners)
    if _is_reached(facts):
        return _to(facts, MoveState.COMPLETED, "it has these replicas already")
    if present != (set(move.old_voters), set(move.old_learners)):
        names = ", ".join(map(node_name, config.members))
        return _to(facts, MoveState.FAILED, f"its replicas are {names} since it was planned")
    if why := facts.why_never():
        return _to(facts, MoveState.FAILED, why)
    if why := facts.why_wait():
        return _wait(facts, why)
    command = ChangeReplicas(
        move.channel,
        facts.table,
        move.voters,
        facts.row_seq,
        facts.order_id,
        REASON.format(facts.rebalance.number),
        move.learners,
    )
    return Step(change_replicas_command(command), is_order=True)


def _wait(facts: MoveFacts, why: str) -> Step:
    if facts.stuck:
        return _to(facts, MoveState.TIMEOUT, f"it never began: {why}")
    return Step(waits_for=why)


def _while_open(facts: MoveFacts, order: ReplicaOrder) -> Step:
    """Its order is being carried out, or cancelled."""
    entry, change = facts.entry, order.target.change
    state = max(_seen_state(facts), entry.state, key=lambda each: each.rank)
    if order.target.cancelled:
        if facts.stuck:
            text = f"{entry.reason or facts.stuck}; order {change} is cancelled and has not ended"
            return _to(facts, MoveState.TIMEOUT, text)
    elif facts.rebalance.is_cancelled or entry.ends_as is not None:
        return _cancel_order(facts, order)
    elif facts.stuck and entry.state.is_under_way:
        return _to(facts, entry.state, facts.stuck, change, ends_as=MoveState.TIMEOUT)
    if state is not entry.state:
        return _to(facts, state, change=change)
    return Step(waits_for=f"order {change} is carried out")


def _seen_state(facts: MoveFacts) -> MoveState:
    config = facts.replicas.config
    if config.is_joint:
        return MoveState.SWITCHING
    if any(node in config.members for node in facts.move.targets):
        return MoveState.CATCHING_UP
    return MoveState.EXPANDING


def _shrink(facts: MoveFacts, change: int) -> Step:
    """M12: the voters are those that were wanted, and the old replicas delete what they hold."""
    left = [node_name(node) for node in facts.move.sources if facts.hosts(node)]
    if not left or facts.stuck:
        return _to(facts, MoveState.COMPLETED, change=change)
    if facts.entry.state is not MoveState.SHRINKING:
        return _to(facts, MoveState.SHRINKING, change=change)
    return Step(waits_for=f"{', '.join(left)} has not deleted its replica")


def _undone(facts: MoveFacts, change: int) -> Step:
    """Its order was cancelled before it was carried out."""
    entry = facts.entry
    if entry.ends_as is not None:
        return _to(facts, entry.ends_as, change=change)
    if facts.rebalance.is_cancelled:
        return _to(facts, MoveState.CANCELED, f"order {change} was cancelled", change)
    text = f"order {change} was cancelled, and not by `raftstore rebalance cancel`"
    return _to(facts, MoveState.FAILED, text, change)


def _is_reached(facts: MoveFacts) -> bool:
    config, move = facts.replicas.config, facts.move
    wanted = set(move.voters), set(move.learners)
    return not config.is_joint and (set(config.voters), set(config.learners)) == wanted


def _cancel_order(facts: MoveFacts, order: ReplicaOrder) -> Step:
    return Step(cancel_change_command(facts.move.channel, order.target.change))


def _to(
    facts: MoveFacts,
    state: MoveState,
    reason: str = "",
    change: int = 0,
    ends_as: MoveState | None = None,
) -> Step:
    entry = facts.entry
    command = StepMove(
        entry.rebalance, entry.move.channel, entry.state, state, reason, change, ends_as
    )
    return Step(rebalance_command(command))
