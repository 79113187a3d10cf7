"""Removes from the tables what only readers of changes needed and no log can be read for any more.

What became of a micro-batch or a conditional write is state beside the rows, and stays there when
the log is trimmed. The leader of a channel has it removed by TRIM_OUTCOMES records, so that every
replica removes the same at the same seq (``state_machines.trimmed_outcomes``). In this order:

1. The leader's own log was trimmed, and there are outcomes in front of its base.
2. It asks the other replicas that are up how far theirs are (``AskTrimmed``): a reader of changes
   holds the log of the replica that it reads, and shall find there what belongs to it. A replica
   that is down, or does not answer, holds nothing.
3. It names outcomes up to the lowest of these bases, one record at a time and a bounded number in
   each, until there are none.

Nothing is written while a node does not read such records, and nothing for a channel without old
outcomes. Nothing is remembered over a change of leaders: the next one looks itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.retention.floors import RetentionParts
from raftstore.engine.retention.looks import Looks
from raftstore.policy.levels import TRIM_LEVEL
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.trimming import (
    AskTrimmed,
    TrimmedAnswer,
    TrimmingMessage,
    encode_trim,
)
from raftstore.state_machines.trimmed_outcomes import has_outcomes, old_outcomes
from raftstore.types import ChannelId, NodeId, RecordKind, Role, Seq

RECORDS_PER_LOOK: Final = 2
"""TRIM_OUTCOMES records that one look makes: each reads up to some MiB of outcomes."""
ASKS_MAX: Final = 3
"""Questions to a replica that is up; one that answers none of them holds nothing."""
NEXT_MS: Final = 50
"""Pause before the next record while there is more to be trimmed."""
HELD_MS: Final = 10_000
"""Pause when another replica's log has more, or after a record that was refused."""


@dataclass(slots=True)
class _Work:
    """A channel, led here, with outcomes in front of its base."""

    runner: ChannelRunner
    base_seq: Seq
    bases: dict[NodeId, Seq] = field(default_factory=dict)
    """The bases of other replicas."""
    asks: int = 0
    again_ms: int = 0
    """It is not looked at before that."""
    is_open: bool = False
    """A record of it has no outcome yet."""
    named_seq: Seq = Seq(0)
    """The end of the last one: what it named is still there until it is applied."""
    after: bytes = b""
    """The last outcome that was named."""


class OutcomeTrimmer:
    """Trims the stored outcomes of channels led by one node."""

    def __init__(self, parts: RetentionParts) -> None:
        self._parts = parts
        self._channels = parts.channels
        self._settings = parts.settings
        self._done: dict[ChannelId, Seq] = {}
        """Up to this seq a channel has no outcomes any more."""
        self._work: dict[ChannelId, _Work] = {}
        self._next_channel = 0
        self.trimmed_total = 0
        """Outcomes named by records that this node has written as a leader."""
        interval_ms, is_wanted = parts.settings.interval_ms, parts.settings.enabled
        self._looks = Looks(parts.channels, interval_ms, is_wanted=is_wanted)
        self.deadlines = self._looks.deadlines

    def start(self, now_ms: int) -> None:
        """Look from time to time, if logs are trimmed at all."""
        self._looks.start(now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Look for channels with outcomes that nobody can ask for."""
        while self._looks.is_due(now_ms):
            if self._parts.refusal_of(RecordKind.TRIM_OUTCOMES) is None:
                self._look(now_ms)

    def on_message(self, sender: NodeId, message: TrimmingMessage) -> None:
        """A question of another node, or the answer to one of this."""
        runner = self._channels.get(message.channel)
        if runner is None:
            return  # S0.8: it holds nothing, and does not answer
        if isinstance(message, AskTrimmed):
            self._send(sender, TrimmedAnswer(message.channel, runner.core.base.seq))
        elif (work := self._work.get(message.channel)) is not None and work.asks:
            work.bases[sender] = message.base_seq

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Forget a channel that was closed, or is opened anew."""
        self._done.pop(runner.channel, None)
        self._work.pop(runner.channel, None)

    # --- what is due ------------------------------------------------------------------------------

    def _look(self, now_ms: int) -> None:
        start, runners = self._looks.channels(self._next_channel)
        made = 0
        for number, runner in enumerate(runners, 1):
            self._next_channel = start + number
            if self._may_trim(runner):
                made += self._trim(runner, now_ms)
            if made >= RECORDS_PER_LOOK:
                break
        if made or any(map(self._is_under_way, self._work.values())):
            self._looks.next_at(now_ms + NEXT_MS)

    def _is_under_way(self, work: _Work) -> bool:
        """Whether a record of the channel is not applied here yet."""
        applied_seq = self._parts.tables.applied_seq(work.runner.channel)
        return work.is_open or applied_seq < work.named_seq

    def _may_trim(self, runner: ChannelRunner) -> bool:
        is_leader = runner.elector.role is Role.LEADER and runner.core.leader_is_ready
        if not is_leader or runner.table_damage is not None:
            self._work.pop(runner.channel, None)
            return False
        return runner.core.base.seq > self._done.get(runner.channel, Seq(0))

    def _trim(self, runner: ChannelRunner, now_ms: int) -> int:
        """One step of a channel; the number of records that were made."""
        channel, tables = runner.channel, self._parts.tables
        scan = partial(tables.state_scan, channel)
        work = self._work.get(channel)
        if work is None:
            base_seq = runner.core.base.seq
            if not has_outcomes(scan, base_seq):
                self._done[channel] = base_seq
                return 0
            work = self._work[channel] = _Work(runner, base_seq)
        if now_ms < work.again_ms or self._is_under_way(work) or not self._is_answered(work):
            return 0
        to_seq = min((work.base_seq, *work.bases.values()))
        keys = old_outcomes(scan, to_seq, after=work.after)
        if keys:
            self._propose(work, to_seq, keys, now_ms)
            return 1
        del self._work[channel]
        if to_seq == work.base_seq:
            self._done[channel] = to_seq
        else:
            self._work[channel] = _Work(runner, runner.core.base.seq, again_ms=now_ms + HELD_MS)
        return 0

    def _is_answered(self, work: _Work) -> bool:
        """Whether all others that are up have answered; those that have not are asked (again)."""
        me, watch = self._parts.me, self._parts.watch
        missing = [
            node
            for node in work.runner.core.config().members
            if node != me and node not in work.bases and watch.is_up(node)
        ]
        if not missing or work.asks >= ASKS_MAX:
            return True
        work.asks += 1
        for node in missing:
            self._send(node, AskTrimmed(work.runner.channel))
        return False

    def _send(self, to: NodeId, message: TrimmingMessage) -> None:
        """Send the message, unless the node came back as a version that does not know it."""
        if to in self._parts.nodes_at_level(TRIM_LEVEL):
            self._parts.outbox.send_known(to, message)

    # --- records ----------------------------------------------------------------------------------

    def _propose(self, work: _Work, to_seq: Seq, keys: list[bytes], now_ms: int) -> None:
        work.is_open = True

        def done(outcome: PubAck | PubReject, now_ms: int) -> None:
            work.is_open = False
            if isinstance(outcome, PubAck):
                work.named_seq, work.after = outcome.last_seq, keys[-1]
                self.trimmed_total += len(keys)
            else:
                work.again_ms, work.after = now_ms + HELD_MS, b""

        self._parts.proposals.propose(
            work.runner,
            encode_trim(to_seq, keys),
            done,
            now_ms,
            kind=RecordKind.TRIM_OUTCOMES,
            refusal=self._parts.refusal_of(RecordKind.TRIM_OUTCOMES),
        )
