"""The order in which the channels of a node fetch history, and what is reported of them
(NATS-135)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import SLOW_ACTIONS, SLOW_EXIT, CatchUpSettings
from raftstore.core.effects import (
    CannotCatchUp,
    CatchUpNote,
    CatchUpPaced,
    ModeChanged,
    ReplicaCannotComplete,
    ReplicaFlapping,
)
from raftstore.core.statistics import CatchUpView
from raftstore.engine.channel.catch_ups import NEAR_BATCHES, CatchUps
from raftstore.protocol.replication import MsgSyncRequest
from raftstore.types import ChannelId, FollowerMode, NodeId, Seq, Term, channel_id

BATCH = 100
NEAR = NEAR_BATCHES * BATCH
A, B, C, D = (channel_id(bytes(16), number) for number in range(4))


class Node:
    """The order of one node; requests that left, and what was reported."""

    def __init__(self, **settings: Any) -> None:
        self.left: list[tuple[ChannelId, int]] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.ended: list[str] = []
        self._next = dict.fromkeys((A, B, C, D), 0)
        self.order = CatchUps(
            CatchUpSettings(**settings),
            BATCH,
            lambda name, **fields: self.told.append((name, fields)),
            self.ended.append,
        )

    def ask(self, channel: ChannelId, left: int | None, *, again: bool = False) -> bool:
        """The channel's next request, or its last one again; whether it left at once."""
        self._next[channel] += not again
        message = MsgSyncRequest(channel, Term(1), self._next[channel], Seq(1), (), BATCH)
        before = len(self.left)

        def send(request: MsgSyncRequest) -> None:
            self.left.append((channel, request.request_id))

        self.order.request(channel, message, left, send)
        return (channel, message.request_id) in self.left[before:]


def test_only_the_nearest_channels_fetch_at_a_time() -> None:
    """NATS-135: given four that lack much, the two that lack least; the next one begins when one
    of them is done.
    """
    node = Node()
    assert node.ask(A, 9 * NEAR)
    assert node.ask(B, 8 * NEAR)
    assert not node.ask(C, 10 * NEAR)
    assert node.ask(D, 2 * NEAR), "it is nearer than the others"
    assert not node.ask(A, 9 * NEAR), "so this one waits from now on"
    assert node.order.waiting == 2
    assert node.ask(D, NEAR), "it is near now"
    assert node.left[-2:] == [(A, 2), (D, 2)]
    assert node.order.waits(C)
    node.order.forget(B)
    assert node.left[-1] == (C, 1)
    assert node.order.waiting == 0


def test_channel_that_is_near_or_of_unknown_distance_never_waits() -> None:
    """A replica that lacks little may be the one that a quorum waits for."""
    node = Node(parallel=1)
    assert node.ask(A, 2 * NEAR)
    assert node.ask(B, None)
    assert node.ask(C, NEAR)
    assert not node.ask(D, 3 * NEAR)
    assert node.ask(D, NEAR)
    assert node.order.waiting == 0


def test_requests_that_waited_leave_in_their_order_and_no_more_than_may_be_under_way() -> None:
    """NATS-148: given requests of before a new connection, the newest ones count."""
    node = Node(parallel=1, inflight_requests=2)
    assert node.ask(A, 2 * NEAR)
    for _ in range(3):
        assert not node.ask(B, 3 * NEAR)
    node.order.forget(A)
    assert node.left[1:] == [(B, 2), (B, 3)]


def test_channel_without_answers_holds_up_no_other() -> None:
    """Given a leader that does not answer, its channel asks on, and the next one begins."""
    node = Node(parallel=1)
    assert node.ask(A, 2 * NEAR)
    assert not node.ask(B, 3 * NEAR)
    assert node.ask(A, 2 * NEAR, again=True)
    assert node.left[-1] == (B, 1)
    assert node.ask(A, 2 * NEAR), "an answer came, and it is the nearest"
    assert not node.ask(B, 3 * NEAR)


def test_repeated_request_of_a_channel_that_waits_goes_on_waiting() -> None:
    """The core repeats what got no answer, whether it left or not; it is kept once."""
    node = Node(parallel=1)
    assert node.ask(A, 2 * NEAR)
    assert not node.ask(B, 3 * NEAR)
    assert not node.ask(B, 3 * NEAR, again=True)
    node.order.forget(A)
    assert node.left == [(A, 1), (B, 1)]


def test_mode_that_changes_ends_what_was_asked() -> None:
    """Given a channel that is steady, or begins anew, its place is free and nothing of it waits."""
    node = Node(parallel=1)
    assert node.ask(A, 2 * NEAR)
    assert not node.ask(B, 3 * NEAR)
    node.order.note(B, "t/1", ModeChanged(FollowerMode.CATCHING_UP, "leader_changed"))
    assert node.order.waiting == 0
    assert not node.ask(B, 3 * NEAR)
    node.order.note(A, "t/0", ModeChanged(FollowerMode.STEADY, "caught_up"))
    assert node.left == [(A, 1), (B, 2)]
    assert node.told[-1] == ("mode", {"channel": "t/0", "mode": "steady", "reason": "caught_up"})


def test_channel_that_is_closed_or_has_another_leader_frees_its_place() -> None:
    """Requests that wait are dropped: another leader is asked anew (S6.2)."""
    node = Node(parallel=1)
    assert node.ask(A, 2 * NEAR)
    assert not node.ask(B, 3 * NEAR)
    assert not node.ask(C, 4 * NEAR)
    node.order.leader_changed(SimpleNamespace(channel=B), None, 0)
    assert node.order.waiting == 1
    node.order.channel_closed(SimpleNamespace(channel=A))
    assert node.left == [(A, 1), (C, 1)]


VIEW = CatchUpView("restart", 1, Seq(2), Seq(3), Seq(9), 6, 60, 10, 1, 2, 3, None, False, False)


@pytest.mark.parametrize(
    ("note", "name", "fields"),
    [
        (CatchUpPaced(VIEW), "catch_up", VIEW._asdict()),
        (ReplicaFlapping("gap", 2_000), "flapping", {"reason": "gap", "stay_ms": 2_000}),
        (
            ReplicaCannotComplete(NodeId("n2"), (5, 6)),
            "replica_cannot_complete",
            {"replica": "n2", "rows_behind": "5, 6"},
        ),
        (
            CannotCatchUp((5, 6), Seq(4)),
            "cannot_complete",
            {"verified_seq": 4, "rows_behind": "5, 6", "action": "retire"},
        ),
    ],
)
def test_notes_are_told_as_events(note: CatchUpNote, name: str, fields: dict[str, object]) -> None:
    """NATS-150, NATS-153: with the channel."""
    node = Node()
    node.order.note(A, "t/0", note)
    assert node.told == [(name, {"channel": "t/0", **fields})]


def test_mode_changes_are_counted() -> None:
    """NATS-028: by the mode that a channel came into."""
    node = Node()
    for mode in (FollowerMode.CATCHING_UP, FollowerMode.STEADY, FollowerMode.CATCHING_UP):
        node.order.note(A, "t/0", ModeChanged(mode, "test"))
    assert node.order.mode_changes == {FollowerMode.STEADY: 1, FollowerMode.CATCHING_UP: 2}


@pytest.mark.parametrize("action", SLOW_ACTIONS)
def test_node_ends_only_where_that_is_asked_for(action: str) -> None:
    """NATS-147, NATS-195: with the distances and what to do about it."""
    node = Node(slow_action=action)
    node.order.note(A, "t/0", CannotCatchUp((5, 6), Seq(4)))
    assert bool(node.ended) is (action == SLOW_EXIT)
    assert all("t/0" in reason and "5, 6" in reason for reason in node.ended)
