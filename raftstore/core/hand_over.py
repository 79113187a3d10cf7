"""Planned change of leader (S9): wait until a target is near, stop accepting, wait for an equal one
that has applied everything (FIP-20), ask it to take over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raftstore.core.effects import HandOverFailed, StepDown, TransferLeadership
from raftstore.core.membership import is_open
from raftstore.core.progress import Progress
from raftstore.core.sequencer import Sequencer, answer_held
from raftstore.core.state import ChannelState
from raftstore.protocol.replication import AskApplied
from raftstore.types import NodeId, node_name


class HandOver:
    """At most one hand-over of the leader of one term."""

    def __init__(
        self,
        state: ChannelState,
        sequencer: Sequencer,
        progress: Mapping[NodeId, Progress],
        probe: Callable[[NodeId], None],
    ) -> None:
        """``probe``: have a member acknowledge."""
        self._state = state
        self._sequencer = sequencer
        self._progress = progress
        self._probe = probe
        self._candidates: tuple[NodeId, ...] = ()
        self._reason = ""
        self.deadline_ms: int | None = None
        """When the hand-over, or this try of it, is given up."""
        self.due_ms: int | None = None
        """When it is looked at again; None: none is under way."""
        self._ask_at_ms: int | None = None
        """When the candidates are asked again how far they have applied."""
        self._were_asked: frozenset[NodeId] = frozenset()
        """Candidates that were asked so since they have the whole log."""
        self._is_closed = False
        """Writes are refused because of it."""
        self._needs_applied = True
        self._is_asked = False
        self._keeps_trying = False
        self._is_leaving = False
        self._steps_down = ""
        """Why the role is given up if nobody takes over in time."""
        self.standing_refusal: str | None = None
        """Why no write is accepted in this term, whatever becomes of hand-overs."""
        self.has_failed = False
        """A try of the present hand-over came to nothing."""

    # --- how it begins ----------------------------------------------------------------------------

    def leave(self, reason: str, down: tuple[NodeId, ...]) -> None:
        """S0.4: the disk of this node hangs: an equal replica takes over, else all elect.

        No write is accepted before the disk goes on, whatever becomes of it.
        """
        self._sequencer.refusal = reason
        others = self._takers()
        if not others:
            return  # nobody else could lead
        self._is_leaving = True
        self._begin_at_once(others, down)

    def stay(self) -> None:
        """The disk goes on before anybody took over: accept writes again."""
        if self._is_leaving:
            self._is_leaving = False
            self._end()
        if self.deadline_ms is None or not self._is_closed:
            self._reopen()

    def yield_lead(self, reason: str) -> bool:
        """M18: this replica was elected for its log alone: the first voter that holds all of it
        leads, or all elect if none can. False: there is no voter to be asked."""
        others = self._takers()
        if not others:
            return False
        self._sequencer.refusal = reason
        self._steps_down = reason
        self._begin_at_once(others, ())
        return True

    def _begin_at_once(self, others: tuple[NodeId, ...], down: tuple[NodeId, ...]) -> None:
        """Writes are refused already, so a successor that applies the rest later is soon enough."""
        self._candidates = tuple(sorted(others, key=lambda node: self._rank(node, down)))
        self._keeps_trying = self.has_failed = self._needs_applied = False
        self._is_closed = True
        self._begin_try()

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

        ``keeps_trying``: never resume, ask another one instead; for a node that stops. Once a try
        has failed, the first voter with the whole log may lead there, applied or not.
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
        self._candidates = alive if target is None else (target,)
        self._reason = reason
        self.has_failed = self._is_closed = False
        self._needs_applied = True
        self._keeps_trying = keeps_trying
        if keeps_trying:
            self._close()
        self._begin_try()

    # --- how it goes on ---------------------------------------------------------------------------

    def advance(self) -> None:
        """Ask the target as soon as it durably holds everything this leader has, and its table
        shows it (FIP-20)."""
        state = self._state
        if self.deadline_ms is None or self._is_asked:
            return
        if not self._is_closed and any(map(self._is_near, self._candidates)):
            # S9: stop accepting first, or the target never gets equal under load.
            self._close()
            self.deadline_ms = state.now_ms + state.settings.hand_over_timeout_ms
            self._forget_asked()
        for node in self._candidates if self._is_closed else ():
            progress = self._progress.get(node)
            # S9: the target's durable match equals our end, so nothing can be lost on the way.
            if progress is not None and progress.match_seq == state.last_seq:
                if self._needs_applied and progress.applied_seq < state.last_seq:
                    continue
                assert self._sequencer.refusal is not None, "S9: writes are accepted meanwhile"
                self._is_asked = True
                # Should it not take over, it is the last one to be asked again.
                self._candidates = (*(n for n in self._candidates if n != node), node)
                state.refused.expect(state.now_ms)
                state.emit(TransferLeadership(node))
                break
        self._ask_applied()
        self._arm()

    def _is_near(self, node: NodeId) -> bool:
        """Whether so little is left to a replica that writes may wait for it."""
        progress = self._progress.get(node)
        if progress is None or progress.acked_ms is None:
            return False
        left = self._state.last_seq - progress.applied_seq
        return left <= self._state.settings.hand_over_lag_max

    def _ask_applied(self) -> None:
        """An idle replica acknowledges nothing, and one that applies does so later than it
        acknowledges: have them say how far they are, again and again for what gets lost."""
        state = self._state
        if self._is_asked or not self._needs_applied:
            self._forget_asked()
            return
        equal = frozenset(filter(self._is_equal, self._candidates))
        # Who gets equal after the last question is asked at once: writes wait for the answer.
        is_answered_for = equal <= self._were_asked
        if self._ask_at_ms is not None and state.now_ms < self._ask_at_ms and is_answered_for:
            return
        if self._is_closed and state.commit_seq < state.last_seq:
            self._forget_asked()  # nobody can have applied it; the commit leads here again
            return
        self._ask_at_ms = state.now_ms + state.settings.commit_notice_interval_ms
        self._were_asked = equal
        for node in self._candidates:
            if node not in self._progress:
                continue
            self._probe(node)
            if node in equal:
                ask = AskApplied(channel=state.channel, term=state.term, seq=state.last_seq)
                state.send_if_known(node, ask)

    def _is_equal(self, node: NodeId) -> bool:
        """Whether writes wait already, and the replica durably holds everything."""
        progress = self._progress.get(node)
        is_held = progress is not None and progress.match_seq == self._state.last_seq
        return self._is_closed and is_held

    def _forget_asked(self) -> None:
        self._ask_at_ms, self._were_asked = None, frozenset()

    def on_timer(self) -> None:
        """S9: on timeout accept writes again, or ask the next one if this node stops."""
        now_ms = self._state.now_ms
        if self.deadline_ms is None:
            return
        if now_ms < self.deadline_ms:
            self.advance()
            return
        self.has_failed = True
        stalled = self._state.storage_stalled
        text = self._why_failed() + (f"; {stalled}" if stalled else "")
        self._state.emit(HandOverFailed(text, was_asked=self._is_asked))
        steps_down = stalled if self._is_leaving else self._steps_down
        if steps_down:
            self._end()
            self._state.emit(StepDown(steps_down))  # the others elect by their histories (S1.1)
        elif self._keeps_trying:
            self._needs_applied = False
            self._begin_try()
        else:
            self._end()
            self._reopen()

    def _why_failed(self) -> str:
        """The outcome of the try, by the candidate that came furthest."""
        state, settings = self._state, self._state.settings
        within = f"within {settings.hand_over_timeout_ms} ms"
        if self._is_asked:
            return f"the target did not take over {within}"
        heard = [
            (progress.applied_seq, progress.match_seq, node)
            for node in self._candidates
            if (progress := self._progress.get(node)) is not None and progress.acked_ms is not None
        ]
        if not heard:
            return f"no target became equal {within}: none acknowledged anything in this term"
        applied_seq, match_seq, node = max(heard)
        left = f"{node_name(node)} has {state.last_seq - applied_seq} rows to apply"
        if not self._is_closed:
            return (
                f"no target came near enough {within}: {left}, more than "
                f"{settings.hand_over_lag_max} (replication.hand_over_lag_max); writes went on"
            )
        if match_seq == state.last_seq:
            return f"no target became equal {within}: {left}"
        lacks = f"{node_name(node)} lacks {state.last_seq - match_seq} rows"
        return f"no target became equal {within}: {lacks}"

    def _begin_try(self) -> None:
        assert self._sequencer.refusal is not None or not self._is_closed, (
            "S9: a target is waited for while writes come"
        )
        self.deadline_ms = self._state.now_ms + self._state.settings.hand_over_timeout_ms
        self._is_asked = False
        self._forget_asked()
        self.advance()

    def _close(self) -> None:
        self._is_closed = self._sequencer.hands_over = True
        self._sequencer.refusal = (
            f"the leader hands its role to another replica ({self._reason}); retry"
        )

    def _reopen(self) -> None:
        self._is_closed = self._sequencer.hands_over = False
        answer_held(self._state, self._state.refused.take_all())
        self._sequencer.refusal = self._state.storage_stalled or self.standing_refusal

    def _arm(self) -> None:
        self.due_ms = self.deadline_ms
        if self._ask_at_ms is not None and self.due_ms is not None:
            self.due_ms = min(self.due_ms, self._ask_at_ms)

    def _end(self) -> None:
        self.deadline_ms = self.due_ms = None
        self._forget_asked()
        self._steps_down = ""
