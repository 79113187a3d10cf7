"""Messages of clients and nodes reach the part of the batch service that they concern, and its
events reach every part.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from raftstore.config import BatchSettings, ReadSettings, RetentionSettings
from raftstore.engine.batches.service import BatchService, BatchStores
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.protocol.batches import (
    APPLIED,
    STAGED,
    ApplyBatchReply,
    AskStaged,
    BatchMessage,
    ChannelPart,
    ResolvedWriter,
    ResolveWriter,
    StagedReply,
    Writers,
)
from raftstore.protocol.snapshots import OpenSnapshot
from raftstore.types import NodeId, Role, Seq, Term, channel_id

TABLE = b"orders-table-id!"
BEFORE = (Term(2), Role.FOLLOWER, None)
CHANNEL, OTHER_CHANNEL, CATALOG = (channel_id(TABLE, n) for n in (0, 1, 2))
ME, OTHER = NodeId("n1"), NodeId("n2")


class World:
    """A service whose parts note what they are called with."""

    def __init__(self) -> None:
        self.node = MagicMock(name="node")
        self.node.controller.leader_of.return_value = (OTHER, Term(5))
        self.node.log.last_operation.return_value = 41
        settings: Any = SimpleNamespace(
            batch=BatchSettings(), read=ReadSettings(), retention=RetentionSettings()
        )
        stores = BatchStores(self.node.log, self.node.tables, self.node.outbox)
        parts = self.node.controller, self.node.reader, self.node.answers
        self.service = BatchService(ME, {}, stores, *parts, settings)
        self.parts = MagicMock(name="parts")
        for name in ("coordinator", "staged", "states", "feeds"):
            setattr(self.service, name, getattr(self.parts, name))

    def told(self) -> list[Any]:
        """Calls of the parts since the last time."""
        calls = list(self.parts.mock_calls)
        self.parts.reset_mock()
        return calls


def runner(channel: Any = CHANNEL, *, role: Role = Role.LEADER, term: int = 3) -> Any:
    """A channel of the table."""
    elector = SimpleNamespace(role=role, term=Term(term))
    core = SimpleNamespace(leader_is_ready=True)
    name = METADATA_NAME if channel == CATALOG else "t/0"
    return SimpleNamespace(channel=channel, name=name, elector=elector, core=core)


PART = ChannelPart(1, 1, 1, 10, 5)
MESSAGES: list[tuple[BatchMessage, str, tuple[Any, ...]]] = [
    (
        ApplyBatchReply(CHANNEL, Term(5), OTHER_CHANNEL, 1, 1, APPLIED),
        "coordinator.on_apply_reply",
        (OTHER, 7),
    ),
    (
        AskStaged(CHANNEL, Term(5), OTHER_CHANNEL, 9, "w", 1, ((0, 7),), PART),
        "staged.on_ask_staged",
        (OTHER, 7),
    ),
    (
        StagedReply(CHANNEL, Term(5), OTHER_CHANNEL, 9, STAGED),
        "coordinator.on_staged_reply",
        (OTHER, 7),
    ),
    (ResolveWriter(CHANNEL, Term(5), OTHER_CHANNEL, ("w",)), "coordinator.on_resolve", (OTHER,)),
    (ResolvedWriter(CHANNEL, Term(5), OTHER_CHANNEL, ()), "staged.on_resolved", (7,)),
]


@pytest.mark.parametrize(("message", "method", "rest"), MESSAGES, ids=lambda m: type(m).__name__)
def test_message_reaches_the_part_it_concerns(
    message: BatchMessage, method: str, rest: tuple[Any, ...]
) -> None:
    """With its sender and the time, where these count."""
    world = World()
    world.service.on_message(OTHER, message, 7)
    [made] = world.told()
    assert str(made).startswith(f"call.{method}(")
    assert [each for each in made.args if each is not message] == list(rest)
    assert message in made.args


def test_questions_of_a_leader_of_the_past_are_not_heard() -> None:
    """S1.4: a question of an earlier term is ignored; replies name the term they belong to."""
    world = World()
    for term, heard in ((4, 0), (5, 1), (6, 1)):
        question = AskStaged(CHANNEL, Term(term), OTHER_CHANNEL, 9, "w", 1, (), PART)
        world.service.on_message(OTHER, question, 7)
        assert len(world.told()) == heard
    world.service.on_message(OTHER, StagedReply(CHANNEL, Term(1), OTHER_CHANNEL, 9, STAGED), 7)
    assert len(world.told()) == 1


def test_requests_go_by_their_kind() -> None:
    """States by commit, and everything else to the coordinator."""
    world = World()
    opened = OpenSnapshot(1, CHANNEL, 0, False, 0, 900)
    world.service.on_request(9, opened, 7)
    writers = Writers(2, CHANNEL, 900)
    world.service.on_request(9, writers, 8)
    assert world.told() == [
        call.states.on_request(9, opened, 7),
        call.coordinator.on_request(9, writers, 8),
    ]


def test_timer_reaches_every_part_and_is_due_when_the_first_of_them_is() -> None:
    """A coordinator without its timer closes and repeats nothing."""
    world = World()
    world.service.on_timer(7)
    assert world.told() == [
        call.coordinator.on_timer(7),
        call.staged.on_timer(7),
        call.states.on_timer(7),
    ]
    parts = world.parts
    assert world.service.deadlines == (
        parts.coordinator.deadlines,
        parts.coordinator.waiting.deadlines,
        parts.staged.deadlines,
        parts.states.waiting.deadlines,
    )


def test_applied_records_are_told_to_every_part_and_a_leadership_begins_once() -> None:
    """When its first record is applied: by then everything of earlier terms is."""
    world = World()
    led = runner()
    world.service.on_applied(led, ((Seq(1), b""),), 7)
    told = [
        call.staged.on_applied(led, 7),
        call.states.on_applied(led, 7),
        call.coordinator.on_applied(led, ((Seq(1), b""),), 7),
    ]
    assert world.told() == [*told, call.coordinator.leads(led, 7)]
    world.service.on_applied(led, ((Seq(1), b""),), 7)
    assert world.told() == told
    led.elector.term = Term(4)
    led.core.leader_is_ready = False
    world.service.on_applied(led, ((Seq(1), b""),), 7)
    assert world.told() == told
    led.core.leader_is_ready = True
    world.service.on_applied(led, ((Seq(1), b""),), 7)
    assert world.told() == [*told, call.coordinator.leads(led, 7)]


@pytest.mark.parametrize(
    "other", [runner(OTHER_CHANNEL), runner(role=Role.FOLLOWER)], ids=["partition 1", "follower"]
)
def test_only_the_leader_of_partition_0_goes_to_work(other: Any) -> None:
    """Others coordinate nothing."""
    world = World()
    world.service.on_applied(other, (), 7)
    assert call.coordinator.leads(other, 7) not in world.told()


def test_catalog_has_no_batches() -> None:
    """Its channel belongs to no table."""
    world = World()
    catalog = runner(CATALOG)
    world.service.on_applied(catalog, (), 7)
    world.service.leader_changed(catalog, BEFORE, 7)
    assert world.told() == []
    other = runner()
    world.service.leader_changed(other, BEFORE, 7)
    assert world.told() == [
        call.coordinator.leader_changed(other),
        call.staged.leader_changed(other, 7),
    ]


def test_closed_channel_is_told_and_begins_anew_when_it_comes_back() -> None:
    """A table may be made again whose leader has the same term."""
    world = World()
    led = runner()
    world.service.on_applied(led, (), 7)
    world.told()
    world.service.on_channel_closed(led)
    assert world.told() == [
        call.coordinator.on_channel_closed(led),
        call.staged.on_channel_closed(led),
        call.states.on_channel_closed(led),
    ]
    world.service.on_applied(led, (), 7)
    assert call.coordinator.leads(led, 7) in world.told()


def test_opened_channel_is_told_to_those_who_wait_for_its_commits() -> None:
    """It may have been opened anew from another replica's table."""
    world = World()
    opened = runner()
    world.service.on_channel_opened(opened, 7)
    assert world.told() == [call.states.on_channel_opened(opened, 7)]


def test_what_is_sent_waits_for_the_disk_and_comes_to_this_node_at_once() -> None:
    """S0.5: it may speak of what is not durable yet; this node knows that of itself."""
    world = World()
    reply = StagedReply(CHANNEL, Term(5), OTHER_CHANNEL, 9, STAGED)
    world.service.sender.deliver(OTHER, reply)
    assert world.node.outbox.send.mock_calls == [call(OTHER, reply, after_operation=41)]
    assert world.told() == []
    world.service.on_message(OTHER, reply, 30)
    world.told()
    world.service.sender.deliver(ME, reply)
    assert world.told() == [call.coordinator.on_staged_reply(ME, reply, 30)]
    for earlier in (
        lambda: world.service.on_timer(40),
        lambda: world.service.on_request(9, Writers(2, CHANNEL, 900), 40),
        lambda: world.service.on_applied(runner(), (), 40),
    ):
        world.service._now_ms = 0
        earlier()
        world.told()
        world.service.sender.deliver(ME, reply)
        assert world.told() == [call.coordinator.on_staged_reply(ME, reply, 40)]
