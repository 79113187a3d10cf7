"""A leader publishes its own records and gets the outcome of each exactly once."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.errors import Refusal, UnavailableError
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import NodeId, RecordKind, Seq, Term, make_guid
from tests.storage_helpers import CHANNEL

ME, SECOND, THIRD = NodeId("n1"), NodeId("n2"), NodeId("n3")
REFUSED = Refusal(UnavailableError, "it cannot")


class Ids:
    """Ids of a run of the node."""

    def uuid(self) -> bytes:
        """The first half is the session of what the node publishes."""
        return b"session1" + b"not used"


class Runner:
    """A channel that this node leads in term 3; keeps what is published on it."""

    channel = CHANNEL
    me = ME
    elector = SimpleNamespace(term=Term(3))
    core = SimpleNamespace(config=lambda: SimpleNamespace(members=(SECOND, ME, THIRD)))

    def __init__(self) -> None:
        self.published: list[tuple[Any, ...]] = []

    def on_publish(
        self, client: int, message: PubMsg, now_ms: int, *, refusal: Refusal | None
    ) -> None:
        """Keep it."""
        self.published.append((client, message, now_ms, refusal))


class World:
    """The proposals of a node and what they led to."""

    def __init__(self) -> None:
        self.runner: Any = Runner()
        self.proposals = Proposals(Ids())  # type: ignore[arg-type]
        self.outcomes: list[tuple[str, PubAck | PubReject, int]] = []

    def propose(self, name: str, now_ms: int = 0, **how: Any) -> PubMsg:
        """Propose a record and return the message that publishes it."""
        self.proposals.propose(
            self.runner,
            name.encode(),
            lambda answer, at_ms: self.outcomes.append((name, answer, at_ms)),
            now_ms,
            **how,
        )
        message = self.runner.published[-1][1]
        assert isinstance(message, PubMsg)
        return message


@pytest.fixture
def world() -> World:
    """A node that has proposed nothing."""
    return World()


def ack_of(message: PubMsg) -> PubAck:
    """The record is committed."""
    return PubAck(CHANNEL, Term(3), message.guid, Seq(7), Seq(7), Term(3), "fsync", 2)


def test_record_is_published_by_its_leader_and_relayed_to_all_others(world: World) -> None:
    """GAP-07, S5.6: the leader sends the payload to every other member, never to itself."""
    world.propose("first", 40, kind=RecordKind.TXN, rows=5, refusal=REFUSED)
    [(client, message, now_ms, refusal)] = world.runner.published
    assert (client, now_ms, refusal) == (CLIENT_HANDLE_SELF, 40, REFUSED)
    assert message == PubMsg(
        channel=CHANNEL,
        term=Term(3),
        leader=ME,
        guid=make_guid(b"session1", 1),
        digest=hashlib.blake2b(b"first", digest_size=16).digest(),
        rows=5,
        kind=RecordKind.TXN,
        payload=b"first",
        relay_to=(SECOND, THIRD),
    )


def test_record_is_a_command_of_one_row_unless_told_otherwise(world: World) -> None:
    """Each has a guid of its own: they are numbered one by one."""
    first, second = world.propose("first"), world.propose("second")
    assert (first.kind, first.rows) == (RecordKind.COMMAND, 1)
    assert [first.guid, second.guid] == [make_guid(b"session1", n) for n in (1, 2)]
    assert [refusal for *_, refusal in world.runner.published] == [None, None]


def test_outcome_goes_to_its_own_proposal_and_only_once(world: World) -> None:
    """In whatever order they come; a repeated answer and one of another publisher say nothing."""
    assert world.proposals.open == 0
    first, second = world.propose("first"), world.propose("second")
    assert world.proposals.open == 2
    ack = ack_of(second)
    world.proposals.on_answer(ack, 50)
    assert (world.outcomes, world.proposals.open) == ([("second", ack, 50)], 1)
    world.proposals.on_answer(ack, 60)
    stranger = PubReject(CHANNEL, Term(3), make_guid(b"session2", 1), "overloaded", "")
    world.proposals.on_answer(stranger, 60)
    assert (len(world.outcomes), world.proposals.open) == (1, 1)
    reject = PubReject(CHANNEL, Term(3), first.guid, "overloaded", "later")
    world.proposals.on_answer(reject, 70)
    assert (world.outcomes[1:], world.proposals.open) == ([("first", reject, 70)], 0)
