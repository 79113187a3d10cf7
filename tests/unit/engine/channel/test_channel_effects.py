"""Every effect of the core reaches the log, the tables, the elector or the node as it is."""

from __future__ import annotations

from functools import partial
from typing import Any, cast
from unittest.mock import MagicMock, call

import pytest

from raftstore.config import ReplicationSettings
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
    Rebase,
    ReplicaSnapshotNeeded,
    Reply,
    Send,
    ServeSync,
    StepDown,
    StopServing,
    TransferLeadership,
    Truncate,
)
from raftstore.engine.channel.channel_parts import ChannelNotices
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.errors import NoLeaderError
from raftstore.protocol.publish import PubReject
from raftstore.protocol.replication import CaughtUp, MsgSync, MsgSyncRequest
from raftstore.types import FollowerMode, NodeId, Seq, Term, make_guid
from tests.storage_helpers import CHANNEL, record

PEER = NodeId("n2")
MESSAGE = CaughtUp(channel=CHANNEL, term=Term(3), seq=Seq(4))
BASE: Any = "the state in front of the log"
CAUGHT_UP = ModeChanged(FollowerMode.STEADY, "caught_up")
REJECT = PubReject(CHANNEL, Term(3), make_guid(b"session1", 1), "overloaded", "later")


def runner_of(term: int = 3) -> Any:
    """A runner whose parts note what is done to them."""
    runner = MagicMock(name="runner")
    runner.channel, runner.name, runner.term_operation = CHANNEL, "t/0", 17
    runner.elector.term = Term(term)
    runner.feed.queued_seq, runner.is_table_ahead = Seq(4), False
    runner.commands = None
    runner._send = partial(ChannelRunner._send, runner)
    runner.parts.log.append.return_value = 21
    runner.parts.log.truncate.return_value = 22
    runner.parts.settings.replication = ReplicationSettings(sync_batch_bytes_max=10)
    runner.parts.log.extent.return_value.reach.return_value = Seq(5)
    return runner


CASES: list[tuple[Effect, list[Any]]] = [
    (Send(PEER, MESSAGE), [call.parts.outbox.send(PEER, MESSAGE, after_operation=17)]),
    (
        Append((record(5, rows=2), record(7))),
        [
            call.parts.log.append(CHANNEL, (record(5, rows=2), record(7))),
            call.durable.appended(21, Seq(7)),
            call.parts.active.await_log(CHANNEL),
        ],
    ),
    (
        Truncate(Seq(5)),
        [
            call.parts.tell("truncate", channel="t/0", from_seq=Seq(5)),
            call.parts.log.truncate(CHANNEL, Seq(5)),
            call.durable.truncated(22, Seq(5)),
            call.parts.active.await_log(CHANNEL),
        ],
    ),
    (
        Rebase(BASE),
        [call.parts.log.rebase(CHANNEL, BASE), call.parts.active.await_log(CHANNEL)],
    ),
    (Reply(9, REJECT), [call.parts.reply(9, REJECT)]),
    (CommitAdvanced(Seq(9), Seq(8)), [call.feed.advance(Seq(8))]),
    (ReadReady(3, Seq(8)), [call.confirmations.confirm(3, Seq(8))]),
    (
        ReadRefused(3, NoLeaderError, "retry"),
        [call.confirmations.refuse(3, NoLeaderError, "retry")],
    ),
    (
        TransferLeadership(PEER),
        [
            call.parts.tell("transfer", channel="t/0", term=Term(3), to=PEER),
            call.elector.transfer(PEER),
        ],
    ),
    (
        ReplicaSnapshotNeeded(Seq(4), Seq(9)),
        [
            call.parts.tell(
                "replica_snapshot_needed", channel="t/0", have_seq=Seq(4), first_seq=Seq(9)
            )
        ],
    ),
    (
        StepDown("no quorum"),
        [
            call.parts.tell("step_down", channel="t/0", term=Term(3), reason="no quorum"),
            call.elector.step_down("no quorum"),
        ],
    ),
    (CAUGHT_UP, [call.parts.catch_ups.note(CHANNEL, "t/0", CAUGHT_UP)]),
    (
        StopServing("hashes differ"),
        [call.parts.tell("stop_serving", channel="t/0", reason="hashes differ")],
    ),
    (Halt("two leaders"), [call.parts.halt("channel t/0: two leaders")]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "done"), CASES, ids=lambda case: type(case).__name__)
def test_effect_is_done_once_with_its_values(effect: Effect, done: list[Any]) -> None:
    """In this order; a leader that is asked to step down and does not would block its channel."""
    runner = runner_of()
    ChannelRunner.execute(cast(ChannelRunner, runner), effect)
    found = [made for made in runner.mock_calls if made in done]
    assert found == done
    if isinstance(effect, StopServing):
        assert runner.stopped_reason == "hashes differ"


def test_failed_hand_over_and_proof_are_told_of_their_channel() -> None:
    """Those who are notified know which one it was; a leadership that somebody was asked to take
    over may still end, so the client that waits for it goes on waiting."""
    runner = runner_of()
    told: list[tuple[Any, ...]] = []
    runner.parts.notices = ChannelNotices(
        freshness_proven=(lambda *of: told.append(("fresh", *of)),),
        hand_over_refused=(lambda *of: told.append(("stays", *of)),),
    )
    ChannelRunner.execute(runner, HandOverFailed("too late", was_asked=True))
    line = call.parts.tell("hand_over_failed", channel="t/0", reason="too late")
    assert line in runner.mock_calls
    assert told == []
    ChannelRunner.execute(runner, HandOverFailed("nobody", was_asked=False))
    ChannelRunner.execute(runner, FreshnessProven(70))
    assert runner.mock_calls[-1] == call.on_position(70)
    assert told == [("stays", runner, "nobody"), ("fresh", runner)]


def test_history_is_served_within_the_bound_and_after_the_term_is_durable() -> None:
    """S0.5: the answer goes to the peer that asked, from the log of this channel."""
    runner = runner_of()
    runner.parts.log.read.return_value = [record(5)]
    request = MsgSyncRequest(CHANNEL, Term(3), 7, Seq(5), (), 1_000)
    ChannelRunner.execute(
        runner, ServeSync(PEER, request, Term(3), Seq(5), Term(2), Seq(4), Seq(5))
    )
    [read] = runner.parts.log.read.mock_calls
    assert read == call(CHANNEL, Seq(5), to_seq=Seq(5), bytes_max=10)
    [sent] = runner.parts.outbox.send.mock_calls
    assert (sent.args[0], sent.kwargs) == (PEER, {"after_operation": 17})
    assert isinstance(sent.args[1], MsgSync)
    assert sent.args[1].records == (record(5),)


def test_request_for_history_leaves_when_it_is_its_turn() -> None:
    """NATS-135: with what the channel lacks, and after its term is durable (S0.5)."""
    runner = runner_of()
    request = MsgSyncRequest(CHANNEL, Term(3), 7, Seq(5), (), 1_000)
    ChannelRunner.execute(runner, Send(PEER, request))
    runner.parts.outbox.send.assert_not_called()
    [asked] = runner.parts.catch_ups.request.mock_calls
    channel, message, left, send = asked.args
    assert (channel, message, left) == (CHANNEL, request, runner.core.history_left_bytes)
    send(request)
    runner.parts.outbox.send.assert_called_once_with(PEER, request, after_operation=17)


def test_truncation_of_what_is_handed_to_the_tables_stops_the_node() -> None:
    """S10: it would be applied, and gone from the log."""
    runner = runner_of()
    with pytest.raises(AssertionError):
        ChannelRunner.execute(runner, Truncate(Seq(4)))


def test_tail_beside_another_replicas_table_is_cut() -> None:
    """S6.4: what is applied came with the table, not from this log."""
    runner = runner_of()
    runner.is_table_ahead = True
    ChannelRunner.execute(runner, Truncate(Seq(4)))
    runner.parts.log.truncate.assert_called_once_with(CHANNEL, Seq(4))
