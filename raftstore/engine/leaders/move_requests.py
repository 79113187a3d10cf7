"""A move of a leadership at the nodes that it is about: at the one that shall lead, then at the one
that does.

Each judges by what only it knows: the first one its disk, its processor and its replica, the second
one how far the replicas of the channel are. A hand-over that is refused here costs nothing; one
that is begun stops the writes of the channel until the other node is equal (S9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.leaders.parts import LeaderParts
from raftstore.engine.leaders.standbys import Standbys
from raftstore.protocol.leader_moves import AskLead, LeadRefused, TakeLead
from raftstore.types import ChannelId, FollowerMode, NodeId, ReplicaId, Role, Term, node_name

BEHIND_MAX: Final = 1_000
"""Rows that replicas which are up may be behind the leader when a hand-over begins: more than are
under way in a busy channel, and little to wait for without writes."""
STALL_MS: Final = 20_000
"""A node that stood still takes no more leaderships for so long."""

REASON: Final = "leaders are spread evenly"
"""As writers are answered whose write the hand-over holds up."""


class MoveRequests:
    """The requests about moves that one node gets."""

    def __init__(
        self,
        parts: LeaderParts,
        standbys: Standbys,
        refused: Callable[[NodeId, LeadRefused], None],
    ) -> None:
        """``refused``: takes a refusal where this node has planned the move itself."""
        self._parts = parts
        self._channels = parts.channels
        self._standbys = standbys
        self._refused = refused
        self._stood_still_ms: int | None = None

    def stood_still(self, now_ms: int) -> None:
        """This node was late by more than a moment: its processor or machine is overloaded."""
        self._stood_still_ms = now_ms

    # --- the node that shall lead -----------------------------------------------------------------

    def on_take_lead(self, sender: NodeId, message: TakeLead) -> None:
        """Ask the leader, or refuse."""
        if sender != self._parts.planner:
            return  # deposed: the present one plans by itself
        runner = self._channels.get(message.channel)
        reason = self._why_not_lead(runner, message.term)
        if reason is not None:
            self._refuse(message.channel, message.term, reason)
            return
        assert runner is not None
        leader = runner.elector.leader
        assert leader is not None
        self._parts.send(leader, AskLead(message.channel, message.term))

    def _why_not_lead(  # noqa: C901 - one reason after the other
        self, runner: ChannelRunner | None, term: Term
    ) -> str | None:
        """Why this node cannot take the channel over; None: it can."""
        node, me = self._parts.node, node_name(self._parts.me)
        if self._parts.drain.is_draining:
            return f"{me} is stopping"
        if node.guard.reason is not None:
            return node.guard.reason
        if node.guard.space.is_low:
            return node.guard.space.reason
        stood_still_ms = self._stood_still_ms
        if stood_still_ms is not None and node.clock.now_ms - stood_still_ms < STALL_MS:
            return f"{me} stood still less than {STALL_MS // 1000} s ago"
        if runner is None or not runner.config().may_lead(ReplicaId(self._parts.me, runner.number)):
            return f"{me} has no replica that votes and has rows"
        leader = runner.elector.leader
        if runner.elector.term != term or leader in (None, self._parts.me):
            return f"the channel is not led in term {term} any more, as far as {me} knows"
        if not self._parts.knows_moves(leader):
            return f"{node_name(leader)} is of a version that moves no leaders"
        if runner.is_paused or not runner.core.may_stand():
            return f"the replica of {me} is recovering or stopped"
        if runner.core.mode is not FollowerMode.STEADY or runner.core.is_flapping:
            return f"the replica of {me} catches up, or left steady state again and again"
        if runner.commands is not None and (stop := runner.commands.stop) is not None:
            return f"the state machine of {me} stopped at seq {stop.seq}"
        return None

    # --- the leader -------------------------------------------------------------------------------

    def on_ask_lead(self, sender: NodeId, message: AskLead, now_ms: int) -> None:
        """Hand over, or refuse."""
        runner = self._channels.get(message.channel)
        reason = self._why_not_hand_over(runner, sender, message.term)
        if reason is not None:
            self._refuse(message.channel, message.term, reason)
            return
        assert runner is not None
        self._parts.node.active.touch(runner.channel)
        runner.request_hand_over(sender, REASON, now_ms)

    def _why_not_hand_over(
        self, runner: ChannelRunner | None, target: NodeId, term: Term
    ) -> str | None:
        """Why the channel stays here; None: the target can have it."""
        me = node_name(self._parts.me)
        elector = None if runner is None else runner.elector
        if runner is None or elector is None or (elector.role, elector.term) != (Role.LEADER, term):
            return f"{me} does not lead the channel in term {term} any more"
        if runner.channel == self._parts.controller.metadata_channel:
            return "the metadata channel is not moved"
        if not runner.core.leader_is_ready:
            return f"{me} has committed nothing in term {term} yet"
        if self._is_handing_over(runner):
            return f"another hand-over of {me} is under way"
        followers = runner.core.progress()
        if target not in followers:
            return f"{node_name(target)} has no replica of it"
        for node, progress in followers.items():
            if not self._parts.node.is_up(node):
                continue
            # Of a follower that was not heard in this term the match says nothing.
            behind = runner.core.last_seq - progress.match_seq
            if progress.heard_ms is None or behind > BEHIND_MAX:
                return f"the channel recovers: {node_name(node)} is {behind} rows behind"
        # FIP-14: writes would wait for what its table lacks.
        late = self._standbys.why_not_in_sync(runner, target)
        return f"{node_name(target)} is no standby in sync: {late}" if late else None

    def _is_handing_over(self, runner: ChannelRunner) -> bool:
        """Whether the node gives the leadership away already, by itself or for an operator."""
        guard = self._parts.node.guard
        return (
            self._parts.drain.is_draining
            or guard.reason is not None
            or guard.space.is_low
            or self._parts.controller.commands.is_handing_over(runner)
        )

    def _refuse(self, channel: ChannelId, term: Term, reason: str) -> None:
        planner, refusal = self._parts.planner, LeadRefused(channel, term, reason)
        if planner == self._parts.me:
            self._refused(planner, refusal)
        elif planner is not None:
            self._parts.send(planner, refusal)
