"""The hands of one channel: each effect of the core, done to the node's log, tables and peers.

Effects are executed in the order in which the core lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftstore.core.effects import (
    Append,
    CommitAdvanced,
    Effect,
    FreshnessProven,
    Halt,
    HandOverFailed,
    ModeChanged,
    ReadReady,
    ReadRefused,
    Reply,
    Send,
    ServeSync,
    StepDown,
    StopServing,
    TransferLeadership,
    Truncate,
)
from raftstore.engine.channel.history_feed import history_for

if TYPE_CHECKING:
    from raftstore.engine.channel.runner import ChannelRunner


def execute(  # noqa: C901, PLR0915 - one arm per effect
    effect: Effect, runner: ChannelRunner
) -> None:
    """Do what the core of this channel decided."""
    host = runner.host
    match effect:
        case Send(to, message):
            # S0.5: no message of a term leaves before the term is durable here.
            host.outbox.send(to, message, after_operation=runner.term_operation)
        case Append(records):
            operation = host.log.append(runner.channel, records)
            runner.durable.appended(operation, records[-1].last_seq)
            host.log_used(runner)
        case Truncate(from_seq):
            assert from_seq > runner.feed.queued_seq, "truncation below an applied record"
            host.event("truncate", channel=runner.name, from_seq=from_seq)
            runner.durable.truncated(host.log.truncate(runner.channel, from_seq), from_seq)
            host.log_used(runner)
        case Reply(client, message):
            host.reply(client, message)
        case CommitAdvanced(_, apply_to):
            runner.feed.advance(apply_to)
        case ServeSync(to):
            bytes_max = host.replication.sync_batch_bytes_max
            answer = history_for(effect, runner.channel, host.log, bytes_max)
            host.outbox.send(to, answer, after_operation=runner.term_operation)
        case ReadReady(token, read_seq):
            host.read_ready(token, read_seq)
        case ReadRefused(token, code, text):
            host.read_refused(token, code, text)
        case FreshnessProven(known_ms):
            runner.on_position(known_ms)
            host.freshness_proven(runner)
        case StepDown(reason):
            host.event("step_down", channel=runner.name, term=runner.elector.term, reason=reason)
            runner.elector.step_down(reason)
        case TransferLeadership(to):
            host.event("transfer", channel=runner.name, term=runner.elector.term, to=to)
            runner.elector.transfer(to)
        case HandOverFailed(reason, was_asked):
            host.hand_over_failed(runner, reason, was_asked=was_asked)
        case ModeChanged(mode, reason):
            host.event("mode", channel=runner.name, mode=mode.value, reason=reason)
        case StopServing(reason):
            runner.stopped_reason = reason
            host.event("stop_serving", channel=runner.name, reason=reason)
        case Halt(reason):
            host.halt(f"channel {runner.name}: {reason}")
