"""The next step of a move of a rebalance, for everything that the catalog may say (FIP-13, 28)."""

from __future__ import annotations

from typing import Any

import msgspec

from raftstore.engine.catalog.move_steps import MoveFacts, next_move_step, order_id
from raftstore.protocol.rebalance import MoveState, WantedMove
from raftstore.state_machines.catalog_rebalance import MoveEntry, RebalanceEntry, StepMove
from raftstore.state_machines.catalog_replicas import (
    CancelChange,
    ChangeReplicas,
    EndedOrder,
    ReplicaEntry,
    ReplicaOrder,
)
from raftstore.types import ChangeTarget, ChannelConfig, Seq, channel_id, node_id

N0, N1, N2, N3 = (node_id(f"n{number}", bytes([number + 1] * 16)) for number in range(4))
CHANNEL = channel_id(b"u" * 16, 0)
OLD, NEW = (N0, N1, N2), (N1, N2, N3)
MOVE = WantedMove(CHANNEL, NEW, (), OLD, ())
GUID = b"g" * 16
MINE = order_id(GUID, CHANNEL)
BEFORE = ReplicaEntry(ChannelConfig((OLD,)))
LEARNER = ChannelConfig((OLD,), (N3,))
JOINT = ChannelConfig((OLD, NEW))
AFTER = ChannelConfig((NEW,))
STATE = MoveState


def ordered(config: ChannelConfig = BEFORE.config, *, cancelled: bool = False) -> ReplicaEntry:
    """The row while the order of the move is open."""
    target = ChangeTarget(7, NEW, cancelled=cancelled)
    return ReplicaEntry(config, Seq(5), order=ReplicaOrder(target, MINE, "test", 1))


def ended(config: ChannelConfig = AFTER, *, is_done: bool = True) -> ReplicaEntry:
    """The row when it has ended."""
    return ReplicaEntry(config, Seq(5), ended=EndedOrder(7, MINE, is_done))


def step(state: MoveState, replicas: ReplicaEntry, **more: Any) -> Any:
    """The command of the next step, or the text of what it waits for."""
    entry = MoveEntry(Seq(3), MOVE, state, more.pop("reason", ""), more.pop("change", 0))
    entry = msgspec.structs.replace(entry, ends_as=more.pop("ends_as", None))
    is_cancelled = more.pop("is_cancelled", False)
    rebalance = RebalanceEntry(Seq(3), GUID, "test", (CHANNEL,), 1, is_cancelled=is_cancelled)
    wait, never = more.pop("why_wait", ""), more.pop("why_never", "")
    hosting = more.pop("hosting", ())
    facts = MoveFacts(
        rebalance, entry, more.pop("table", "orders"), replicas, Seq(4), more.pop("stuck", ""),
        lambda node: node in hosting, lambda: wait, lambda: never,
    )  # fmt: skip
    assert not more
    found = next_move_step(facts)
    if not found.command:
        return found.waits_for
    kinds = ChangeReplicas | CancelChange | StepMove
    return msgspec.msgpack.decode(found.command, type=kinds)


def test_order_is_given_for_the_row_that_was_seen_under_an_id_of_its_own() -> None:
    """The same however often it is proposed."""
    command = step(STATE.NOT_STARTED, BEFORE)
    assert isinstance(command, ChangeReplicas)
    assert (command.voters, command.base_seq, command.guid) == (NEW, 4, MINE)
    assert command.table == "orders"
    assert order_id(GUID, channel_id(b"u" * 16, 1)) != MINE
    assert order_id(b"h" * 16, CHANNEL) != MINE


def test_move_goes_through_its_states_as_its_channel_reports_them() -> None:
    """FIP-13: one that is quicker than the reports skips some, and none goes back."""
    way = (
        (STATE.NOT_STARTED, ordered(), STATE.EXPANDING),
        (STATE.EXPANDING, ordered(LEARNER), STATE.CATCHING_UP),
        (STATE.CATCHING_UP, ordered(JOINT), STATE.SWITCHING),
        (STATE.SWITCHING, ended(), STATE.SHRINKING),
        (STATE.EXPANDING, ordered(JOINT), STATE.SWITCHING),
    )
    for state, replicas, then in way:
        command = step(state, replicas, hosting=(N0,))
        assert (command.before, command.state, command.change) == (state, then, 7)
    assert step(STATE.SWITCHING, ordered(LEARNER)) == "order 7 is carried out"


def test_move_is_completed_when_the_old_replica_is_gone() -> None:
    """FIP-21: its node deletes what it holds; one that is down is not waited for."""
    assert "n0 has not deleted" in step(STATE.SHRINKING, ended(), hosting=(N0, N1))
    assert step(STATE.SHRINKING, ended(), hosting=(N1,)).state is STATE.COMPLETED
    assert step(STATE.SHRINKING, ended(), hosting=(N0,), stuck="long").state is STATE.COMPLETED


def test_move_that_is_stuck_has_its_order_cancelled_and_times_out() -> None:
    """First the reason is noted, so that any leader goes on with it."""
    command = step(STATE.CATCHING_UP, ordered(LEARNER), stuck="n3 is down")
    assert (command.state, command.ends_as) == (STATE.CATCHING_UP, STATE.TIMEOUT)
    noted = {"ends_as": STATE.TIMEOUT, "reason": "n3 is down"}
    assert step(STATE.CATCHING_UP, ordered(LEARNER), **noted) == CancelChange(CHANNEL, 7)
    assert step(STATE.CATCHING_UP, ordered(LEARNER, cancelled=True), **noted) == (
        "order 7 is carried out"
    )
    undone = ended(BEFORE.config, is_done=False)
    assert step(STATE.CATCHING_UP, undone, **noted).state is STATE.TIMEOUT
    assert step(STATE.CATCHING_UP, ended(), **noted).state is STATE.COMPLETED
    stays = step(STATE.CATCHING_UP, ordered(LEARNER, cancelled=True), stuck="long", **noted)
    assert stays.state is STATE.TIMEOUT
    assert "n3 is down; order 7 is cancelled and has not ended" in stays.reason


def test_cancelling_undoes_what_is_under_way_and_begins_nothing() -> None:
    """FIP-28: by the order's own cancel; what was too late to cancel is done."""
    assert step(STATE.NOT_STARTED, BEFORE, is_cancelled=True).state is STATE.CANCELED
    cancel = CancelChange(CHANNEL, 7)
    for config in (BEFORE.config, LEARNER, JOINT):
        assert step(STATE.EXPANDING, ordered(config), is_cancelled=True) == cancel
    undone = ended(BEFORE.config, is_done=False)
    assert step(STATE.EXPANDING, undone, is_cancelled=True).state is STATE.CANCELED
    assert step(STATE.EXPANDING, ended(), is_cancelled=True).state is STATE.COMPLETED


def test_order_that_shows_after_its_move_was_cancelled_is_cancelled_too() -> None:
    """It was on its way when the move was: it must not go on alone."""
    for state in (STATE.CANCELED, STATE.TIMEOUT, STATE.FAILED):
        assert step(state, ordered()) == CancelChange(CHANNEL, 7)
        assert step(state, ordered(cancelled=True)) == ""
        assert step(state, BEFORE) == ""


def test_order_that_was_cancelled_by_somebody_else_fails_the_move() -> None:
    """With the number of the order."""
    command = step(STATE.EXPANDING, ended(BEFORE.config, is_done=False))
    assert command.state is STATE.FAILED
    assert "order 7 was cancelled, and not by" in command.reason


def test_move_that_is_not_of_the_present_replicas_fails() -> None:
    """It was planned for others; one that is reached already is done."""
    other = ReplicaEntry(ChannelConfig(((N0, N1),)))
    command = step(STATE.NOT_STARTED, other)
    assert (command.state, "n0, n1" in command.reason) == (STATE.FAILED, True)
    assert step(STATE.NOT_STARTED, ReplicaEntry(AFTER)).state is STATE.COMPLETED
    assert step(STATE.NOT_STARTED, BEFORE, why_never="n3 drains").state is STATE.FAILED
    followed = step(STATE.CATCHING_UP, other, change=7)
    assert (followed.state, "followed order 7" in followed.reason) == (STATE.FAILED, True)
    assert step(STATE.CATCHING_UP, ReplicaEntry(AFTER), change=7).state is STATE.COMPLETED


def test_move_waits_for_another_order_and_for_its_node_and_not_for_ever() -> None:
    """N11: it is given when it can be carried out."""
    target = ChangeTarget(6, (N0, N1))
    busy = ReplicaEntry(BEFORE.config, order=ReplicaOrder(target, b"x" * 16, "other", 1))
    assert step(STATE.NOT_STARTED, busy) == "order 6 of the channel is open"
    assert step(STATE.NOT_STARTED, BEFORE, why_wait="n3 is down") == "n3 is down"
    late = step(STATE.NOT_STARTED, BEFORE, why_wait="n3 is down", stuck="nothing happened")
    assert (late.state, late.reason) == (STATE.TIMEOUT, "it never began: n3 is down")


def test_move_of_a_table_that_was_dropped_is_none() -> None:
    """Nothing failed."""
    assert step(STATE.EXPANDING, BEFORE, table="").state is STATE.CANCELED
