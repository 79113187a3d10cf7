"""Planned change of leader (S9): stop accepting, wait for an equal target, ask it to take over."""

from __future__ import annotations

from collections.abc import Mapping

from raftstore.core.effects import HandOverFailed, StepDown, TransferLeadership
from raftstore.core.membership import is_open
from raftstore.core.progress import Progress
from raftstore.core.sequencer import Sequencer
from raftstore.core.state import ChannelState
from raftstore.types import NodeId


class HandOver:
    """At most one hand-over of the leader of one term."""

    def __init__(
        self, state: ChannelState, sequencer: Sequencer, progress: Mapping[NodeId, Progress]
    ) -> None:
        self._state = state
        self._sequencer = sequencer
        self._progress = progress
        self._candidates: tuple[NodeId, ...] = ()
        self.deadline_ms: int | None = None
        """When the hand-over, or this try of it, is given up."""
        self._is_asked = False
        self._keeps_trying = False
        self._is_leaving = False
        self.has_failed = False
        """A try of the present hand-over came to nothing."""

    def leave(self, reason: str, down: tuple[NodeId, ...]) -> None:
        """S0.4: the disk of this node hangs: an equal replica takes over, else all elect.

        No write is accepted before the disk goes on, whatever becomes of it.
        """
        self._sequencer.refusal = reason
        others = self._takers()
        if not others:
            return  # nobody else could lead
        self._candidates = tuple(sorted(others, key=lambda node: self._rank(node, down)))
        self._keeps_trying = self.has_failed = False
        self._is_leaving = True
        self._begin_try()

    def stay(self) -> None:
        """The disk goes on before anybody took over: accept writes again."""
        if self._is_leaving:
            self._is_leaving = False
            self.deadline_ms = None
        if self.deadline_ms is None:
            self._sequencer.refusal = None

    def _takers(self) -> tuple[NodeId, ...]:
        """M25, W4: the other voters of all sets in force that have rows; others would have to give
        it up at once."""
        state, config = self._state, self._state.configs.current
        return tuple(
            node
            for node in config.voters
            if node != state.me
            and not config.is_witness(node)
            and all(node in group for group in config.voter_sets)
        )

    def _stays(self, node: NodeId) -> bool:
        """M25: whether no open order removes the voter."""
        config, target = self._state.configs.current, self._state.target
        if target is None or target.cancelled or not is_open(config, target):
            return True
        return node in target.voters and config.number_of(node) == target.number_of(node)

    def on_config(self) -> None:
        """Another configuration counts: replicas that it does not name take over no more."""
        takers = self._takers()
        self._candidates = tuple(node for node in self._candidates if node in takers)

    def _rank(self, node: NodeId, down: tuple[NodeId, ...]) -> tuple[bool, int]:
        """Nodes that live first, and of them the one that is verified furthest."""
        progress = self._progress.get(node)
        return node in down, 0 if progress is None else -progress.match_seq

    def request(
        self,
        target: NodeId | None,
        reason: str,
        *,
        down: tuple[NodeId, ...] = (),
        keeps_trying: bool = False,
    ) -> None:
        """Begin; None lets any voter that is equal to our end and not ``down`` take over.

        ``keeps_trying``: never resume, ask another one instead; for a node that stops.
        """
        state = self._state
        others = self._takers()
        ordered = tuple(node for node in others if self._stays(node))
        if not keeps_trying or ordered:
            others = ordered
        if target is not None and target not in others:
            state.emit(HandOverFailed(f"{target} is no other voter of the channel"))
            return
        if not others:
            state.emit(HandOverFailed("the channel has no other voter to take over"))
            return
        alive = tuple(node for node in others if node not in down)
        if target is None and not alive:
            state.emit(HandOverFailed("no other voter of the channel is up to take over"))
            return
        # S9: stop accepting first, or the target never gets equal under load.
        self._sequencer.refusal = f"the leader hands its role to another replica ({reason}); retry"
        self._candidates = alive if target is None else (target,)
        self.has_failed = False
        self._keeps_trying = keeps_trying
        self._begin_try()

    def advance(self) -> None:
        """Ask the target as soon as it durably holds everything this leader has."""
        state = self._state
        if self.deadline_ms is None or self._is_asked:
            return
        for node in self._candidates:
            progress = self._progress.get(node)
            # S9: the target's durable match equals our end, so nothing can be lost on the way.
            if progress is not None and progress.match_seq == state.last_seq:
                assert self._sequencer.refusal is not None, "S9: writes are accepted meanwhile"
                self._is_asked = True
                # Should it not take over, it is the last one to be asked again.
                self._candidates = (*(n for n in self._candidates if n != node), node)
                state.emit(TransferLeadership(node))
                return

    def on_timer(self) -> None:
        """S9: on timeout accept writes again, or ask the next one if this node stops."""
        if self.deadline_ms is None or self._state.now_ms < self.deadline_ms:
            return
        self.has_failed = True
        waited, stalled = self._state.settings.hand_over_timeout_ms, self._state.storage_stalled
        what = "the target did not take over" if self._is_asked else "no target became equal"
        text = f"{what} within {waited} ms" + (f"; {stalled}" if stalled else "")
        self._state.emit(HandOverFailed(text, was_asked=self._is_asked))
        if self._is_leaving and stalled is not None:
            self.deadline_ms = None
            self._state.emit(StepDown(stalled))  # the others elect by their histories (S1.1)
        elif self._keeps_trying:
            self._begin_try()
        else:
            self.deadline_ms = None
            self._sequencer.refusal = stalled

    def _begin_try(self) -> None:
        assert self._sequencer.refusal is not None, "S9: a target is waited for while writes come"
        self.deadline_ms = self._state.now_ms + self._state.settings.hand_over_timeout_ms
        self._is_asked = False
        self.advance()
