"""The leader's part of a change of members: asks for the next step, and appends it (M6 to M11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftstore.core.configs import encode_config
from raftstore.core.hand_over import HandOver
from raftstore.core.membership import (
    MemberView,
    Situation,
    is_legal,
    is_open,
    next_step,
)
from raftstore.core.progress import Progress
from raftstore.core.state import ChannelState
from raftstore.types import ChannelConfig, NodeId, Role, Seq


@dataclass(slots=True)
class Rounds:
    """How fast a learner follows: it comes to where the log ended, again and again (M11)."""

    end_seq: Seq
    began_ms: int
    took_ms: int | None = None
    """How long the last round took; None: none is over."""
    slow: int = 0
    """Rounds that took too long."""

    def on_match(self, match_seq: Seq, last_seq: Seq, now_ms: int, round_ms: int) -> None:
        """The learner holds the log up to ``match_seq``."""
        if match_seq < self.end_seq:
            return
        self.took_ms = now_ms - self.began_ms
        self.slow += self.took_ms >= round_ms
        self.end_seq, self.began_ms = last_seq, now_ms


class Change:
    """The change of members under way, if one is, at the leader of one term."""

    def __init__(
        self,
        state: ChannelState,
        progress: Mapping[NodeId, Progress],
        hand_over: HandOver,
        append: Callable[[ChannelConfig, bytes], None],
        probe: Callable[[NodeId], None],
    ) -> None:
        """``append``: replicate a configuration record; ``probe``: have a member acknowledge."""
        self._state = state
        self._progress = progress
        self._hand_over = hand_over
        self._append = append
        self._probe = probe
        self._rounds: dict[NodeId, Rounds] = {}
        self._hand_overs = 0
        self.due_ms: int | None = None
        """When it is looked at again; None: no change is under way."""
        self.waits_for = ""
        """Why the next step is not taken, for status."""

    def on_ack(self, node: NodeId, progress: Progress) -> None:
        """A member acknowledged: a learner may be fast enough now, or a voter live."""
        state = self._state
        if node in state.configs.current.learners:
            began = Rounds(state.last_seq, state.now_ms)
            rounds = self._rounds.setdefault(node, began)
            round_ms = state.membership.promote_round_ms
            rounds.on_match(progress.match_seq, state.last_seq, state.now_ms, round_ms)
        self.advance()

    def on_config(self) -> None:
        """Another configuration counts: learners that are new begin with their rounds."""
        learners = self._state.configs.current.learners
        self._rounds = {node: each for node, each in self._rounds.items() if node in learners}

    def advance(self) -> None:
        """Take the next step, if there is one and it may be taken now."""
        state, configs = self._state, self._state.configs
        if not (configs.current.is_joint or is_open(configs.current, state.target)):
            self.due_ms, self.waits_for = None, ""
            return
        self.due_ms = state.now_ms + state.membership.retry_ms
        self.waits_for = self._why_not_now()
        if self.waits_for:
            return
        step = next_step(self._situation())
        self.waits_for = step.waits_for
        if step.hands_over:
            self._leave()
        elif step.config is not None:
            self._take(step.config)

    def on_timer(self) -> None:
        """Look again; members that said nothing for long are asked to acknowledge (M10)."""
        if self.due_ms is None or self._state.now_ms < self.due_ms:
            return
        for node, progress in self._progress.items():
            if not self._is_heard(progress):
                self._probe(node)
        self.advance()

    def _why_not_now(self) -> str:
        """M6, A11: also the last step of a joint configuration waits for a hand-over, once."""
        state, configs = self._state, self._state.configs
        if state.lineage.term_at(state.commit_seq) != state.term:
            return "no record of the leader's term is committed"
        if state.storage_stalled is not None:
            return state.storage_stalled
        goes_first = configs.current.is_joint and self._hand_over.has_failed
        if self._hand_over.deadline_ms is not None and not goes_first:
            return "the leadership is being handed over"
        return ""

    def _situation(self) -> Situation:
        state, configs = self._state, self._state.configs
        tries = state.membership.hand_over_tries
        return Situation(
            config=configs.current,
            is_committed=configs.current_seq <= state.commit_seq,
            is_own_term=configs.current_term == state.term,
            target=state.target,
            me=state.own_id,
            views={node: self._view(node, each) for node, each in self._progress.items()},
            may_hand_over=self._hand_overs < tries,
        )

    def _view(self, node: NodeId, progress: Progress) -> MemberView:
        is_live = self._is_steady(progress) and self._is_heard(progress)
        holds_config = progress.match_seq >= self._state.configs.current_seq
        return MemberView(is_live, self._why_not_promoted(node, progress), holds_config)

    def _is_steady(self, progress: Progress) -> bool:
        """Messages may come in another order than they were sent (S12): what a replica holds says
        more than a request for history that came behind its report of being steady."""
        holds_all = progress.match_seq >= self._state.commit_seq
        return holds_all or not progress.is_catching_up

    def _is_heard(self, progress: Progress) -> bool:
        heard_ms = self._state.now_ms - self._state.membership.heard_ms
        return progress.acked_ms is not None and progress.acked_ms >= heard_ms

    def _why_not_promoted(self, node: NodeId, progress: Progress) -> str:
        """M11: for availability, not for safety: the channel would wait for a replica that is far
        behind."""
        state, settings = self._state, self._state.membership
        rounds = self._rounds.get(node)
        if not self._is_heard(progress):
            return "is not heard"
        if not self._is_steady(progress) or rounds is None or rounds.took_ms is None:
            return "catches up"
        if progress.match_seq < max(state.configs.current_seq, state.configs.committed.seq):
            return "does not hold the configuration that adds it"
        is_behind = progress.match_seq < rounds.end_seq
        is_late = is_behind and state.now_ms - rounds.began_ms >= settings.promote_round_ms
        if rounds.took_ms >= settings.promote_round_ms or is_late:
            return f"is too slow: {rounds.slow} rounds took over {settings.promote_round_ms} ms"
        lag = state.last_seq - progress.applied_seq
        if lag > settings.promote_lag_max:
            return f"has {lag} rows to apply, more than {settings.promote_lag_max}"
        return ""

    def _leave(self) -> None:
        """M26: a leader that is to leave gives its leadership to a voter that stays."""
        self._hand_overs += 1
        self._hand_over.request(None, "this replica leaves the channel")

    def _take(self, config: ChannelConfig) -> None:
        state, configs = self._state, self._state.configs
        is_committed = configs.current_seq <= state.commit_seq
        # M6: what an older leader's configuration committed must be known to be behind this one.
        assert state.lineage.term_at(state.commit_seq) == state.term, "a change before M6"
        assert is_legal(configs.current, config, is_committed=is_committed), (
            f"{config} would follow {configs.current} (M7, M8)"
        )
        assert state.role is Role.LEADER, f"the role {state.role} changes members (M1)"
        self._append(config, encode_config(config))
