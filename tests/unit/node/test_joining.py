"""A node's way into a cluster that exists (M28): whom it asks, what ends it, what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest

from raftstore.errors import ConfigError, ConnectionLostError
from raftstore.node.bootstrap import joining
from raftstore.node.bootstrap.birth import Members
from raftstore.node.bootstrap.joining import Joining
from raftstore.node.logs import fields
from raftstore.protocol.admin import ChannelInfo, ClusterInfo, ClusterInfoAnswer, NodeInfo
from raftstore.protocol.members import AskJoin, Join, JoinAccepted, JoinNonce
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.tickets import JoinClaim, Token, is_proven, stored_key
from raftstore.types import NodeId, Term, channel_id, node_id

CLUSTER, TICKET, SECRET = b"the one cluster!", b"t" * 16, bytes(range(32))
N1, N2, N4 = (node_id(f"n{number}", bytes([number] * 16)) for number in (1, 2, 4))
SEEDS = ("n1:1", "n2:1")
NONCE = b"n" * 16
FOUNDERS = ((N1, "n1:1"), (N2, "n2:1"))
Answer = Message | Exception | None


class MemoryStore:
    """The durable side."""

    def __init__(self, cluster_id: bytes = b"", accepted_proposal: bytes = b"") -> None:
        self.node = N4
        self.cluster_id = cluster_id
        self.accepted_proposal = accepted_proposal or cluster_id
        self.joined: list[tuple[bytes, Members, Members, int]] = []

    def record_joining(
        self, cluster_id: bytes, founders: Members, nodes: Members, number: int
    ) -> None:
        """The store belongs to the cluster from now on."""
        self.joined.append((cluster_id, founders, nodes, number))
        self.cluster_id = cluster_id


class Cluster:
    """Nodes by address; ``join`` says what each answers to one that wants to join."""

    def __init__(self, **join: Callable[[Join], Answer]) -> None:
        self.join = {f"{name}:1": answer for name, answer in join.items()}
        self.leader: NodeId | None = N1
        self.dialled: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.foreign: tuple[str, ...] = ()
        """Addresses of nodes that are not of the cluster."""
        self.others: tuple[tuple[NodeId, str], ...] = ()
        """Nodes that the cluster lists beside the founders."""

    async def connect(self, address: str, *, on_message: Any, on_lost: Any, **how: Any) -> Any:
        """As ClientConnection does it."""
        assert how["hello"].cluster_id == CLUSTER
        self.dialled.append(address)
        if address not in self.join:
            raise ConnectionLostError(f"cannot connect to {address}")
        if address in self.foreign:
            raise ConnectionLostError("you belong to another", code="wrong_cluster")
        return Connection(self, address, on_message, on_lost)


class Connection:
    """One connection to one of them."""

    def __init__(self, cluster: Cluster, address: str, on_message: Any, on_lost: Any) -> None:
        self.cluster, self.address = cluster, address
        self.on_message, self.on_lost = on_message, on_lost

    def send(self, message: Any) -> None:
        """Answer it in the next turn of the loop."""
        self.cluster.asked.append((self.address, type(message).__name__))
        answer: Answer
        match message:
            case AskJoin():
                answer = JoinNonce(message.request_id, NONCE)
            case ClusterInfo():
                answer = self._info(message.request_id)
            case _:
                answer = self.cluster.join[self.address](message)
        loop = asyncio.get_running_loop()
        if isinstance(answer, Exception):
            loop.call_soon(self.on_lost, answer)
        elif answer is not None:
            loop.call_soon(self.on_message, answer)

    def _info(self, request_id: int) -> Message:
        listed = (*FOUNDERS, (N1, "n1:1"), *self.cluster.others)
        nodes = tuple(NodeInfo(node, at, True) for node, at in listed)
        metadata = ChannelInfo(channel_id(CLUSTER, 0), (N1, N2), self.cluster.leader, Term(1))
        return ClusterInfoAnswer(request_id, CLUSTER, 1, 0, N1, nodes, (), metadata)

    def close(self) -> None:
        """End it."""

    async def wait_closed(self) -> Self:
        """It is."""
        return self


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "ROUND_MS", 1)
    monkeypatch.setattr(joining, "ANSWER_MS", 50)


def accepts(message: Join) -> Answer:
    """The leader, which judges the proof."""
    claim = JoinClaim(CLUSTER, TICKET, N4, "n4:1", 6, NONCE)
    assert is_proven(message.proof, stored_key(SECRET), claim)
    nodes = (*FOUNDERS, (N4, "n4:1"))
    return JoinAccepted(message.request_id, FOUNDERS, nodes, 17, 17)


def refuses(code: str, text: str = "why", hint: NodeId | None = None) -> Callable[[Join], Answer]:
    """A node that does not take it in."""
    return lambda message: Failed(message.request_id, code, text, hint)


def in_turn(*answers: Callable[[Join], Answer]) -> Callable[[Join], Answer]:
    """Another answer each time, the last one for ever."""
    left = list(answers)

    def answer(message: Join) -> Answer:
        return (left.pop(0) if len(left) > 1 else left[0])(message)

    return answer


def join(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, store: MemoryStore | None = None
) -> MemoryStore:
    """Join; the store as it is then."""
    monkeypatch.setattr(joining.ClientConnection, "connect", cluster.connect)
    store = store or MemoryStore()
    token = Token(CLUSTER, TICKET, SECRET, SEEDS)

    async def run() -> None:
        async with asyncio.timeout(10):
            assert await Joining(store, token, "n4:1", 6).wait_until_joined(asyncio.Event())

    asyncio.run(run())
    return store


def test_accepted_node_belongs_to_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """M28: with the founders, its number, and where the others are; itself it knows."""
    store = join(monkeypatch, Cluster(n1=accepts))
    assert store.joined == [(CLUSTER, FOUNDERS, FOUNDERS, 17)]


def test_leader_is_found_by_asking_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any node of the token will do, and the leader may be none of them."""
    cluster = Cluster(n2=refuses("not_leader", hint=N1), n1=accepts)
    monkeypatch.setattr(f"{__name__}.SEEDS", ("n2:1",))
    assert join(monkeypatch, cluster).cluster_id == CLUSTER
    assert cluster.asked[-1] == ("n1:1", "Join")


@pytest.mark.parametrize(
    "first",
    [
        refuses("no_leader"),
        refuses("overloaded"),
        refuses("quorum_timeout"),
        refuses("unavailable"),
        lambda _: ConnectionLostError("gone"),
        lambda _: None,
    ],
)
def test_lost_or_passing_refusal_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[Join], Answer]
) -> None:
    """The same id may ask with the same token as often as it needs to."""
    store = join(monkeypatch, Cluster(n1=in_turn(first, accepts)))
    assert len(store.joined) == 1


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        ("join_refused", "the token has expired; make a new one", "has expired; make a new one"),
        ("store_too_old", "n4 is at level 5; upgrade it", "n4 is at level 5; upgrade it"),
        ("unsupported_request", "no Join", "upgrade the nodes of the cluster first"),
    ],
)
def test_refusal_that_stays_ends_the_node(
    monkeypatch: pytest.MonkeyPatch, code: str, text: str, told: str
) -> None:
    """Exit 78: an operator has to do something."""
    store = MemoryStore()
    with pytest.raises(ConfigError, match=told):
        join(monkeypatch, Cluster(n1=refuses(code, text)), store)
    assert store.joined == []


def test_log_has_the_leaders_reason_and_not_that_others_do_not_lead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A14: an operator reads there why a replacement waits; all nodes are asked in each round."""
    waits = [refuses("unavailable", "n3 is up again")] * 3
    cluster = Cluster(
        n1=in_turn(*waits, accepts), n2=refuses("not_leader", "led by n1, ask there", N1)
    )
    with caplog.at_level("INFO", logger="raftstore.node"):
        join(monkeypatch, cluster)
    lines = [each for each in caplog.records if each.msg == "joining"]
    expected = fields(waits_because="n1:1: n3 is up again")
    assert [expected.items() <= vars(each).items() for each in lines] == [True]


def test_refusal_of_a_leader_that_was_deposed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot know a ticket that its successor made, nor for a moment that it has one."""
    deposed = [refuses("join_refused", "no such ticket")] * (joining.REFUSED_ROUNDS - 1)
    cluster = Cluster(
        n1=in_turn(*deposed, refuses("not_leader", "ask there", N2)),
        n2=in_turn(*[refuses("unavailable", "no leader now")] * joining.REFUSED_ROUNDS, accepts),
    )
    assert join(monkeypatch, cluster).cluster_id == CLUSTER


def test_token_of_another_cluster_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address may have been given to another cluster since."""
    cluster = Cluster(n1=accepts)
    cluster.foreign = SEEDS
    with pytest.raises(ConfigError, match="is not of cluster"):
        join(monkeypatch, cluster)


def test_node_that_was_entered_before_it_died_does_not_ask_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cluster lists it already; it belongs to none yet, and would take that for a refusal."""
    passing = refuses("unavailable")
    cluster = Cluster(n1=in_turn(passing, passing, accepts), n4=passing)
    cluster.others = ((N4, "n4:1"),)
    cluster.foreign = ("n4:1",)
    assert join(monkeypatch, cluster).joined
    assert "n4:1" not in cluster.dialled


def test_stranger_behind_a_learned_address_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that joins, too, may have the address that another one had; the token names it not."""
    passing = refuses("unavailable")
    cluster = Cluster(n1=in_turn(passing, passing, accepts), n5=passing)
    cluster.others = ((node_id("n5", b"5" * 16), "n5:1"),)
    cluster.foreign = ("n5:1",)
    assert join(monkeypatch, cluster).joined
    assert "n5:1" in cluster.dialled


def test_node_that_takes_part_in_a_founding_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """S0.7: at most one, ever."""
    store = MemoryStore(accepted_proposal=b"another-cluster!")
    with pytest.raises(ConfigError, match="takes part in the founding"):
        join(monkeypatch, Cluster(n1=accepts), store)


def test_node_of_a_cluster_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """M28: it ignores the token it was started with once."""
    assert join(monkeypatch, Cluster(), MemoryStore(CLUSTER)).joined == []


def test_node_that_is_stopped_joins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody answers."""
    monkeypatch.setattr(joining.ClientConnection, "connect", Cluster().connect)
    store = MemoryStore()

    async def run() -> bool:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, stop.set)
        token = Token(CLUSTER, TICKET, SECRET, SEEDS)
        return await Joining(store, token, "n4:1", 6).wait_until_joined(stop)

    assert not asyncio.run(run())


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (lambda _: None, "n1:1 did not answer within 50 ms"),
        (lambda _: ConnectionLostError("it is gone"), "n1:1 did not answer"),
        (refuses("no_leader", "there is none"), "n1:1: there is none"),
        (None, "cannot connect to n1:1"),
    ],
)
def test_node_says_why_it_has_not_joined_yet(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    first: Callable[[Join], Answer] | None,
    why: str,
) -> None:
    """An operator waits for it. One that has joined asks nobody again."""
    monkeypatch.setattr(f"{__name__}.SEEDS", ("n1:1",))
    cluster = Cluster(n1=in_turn(first or accepts, accepts))
    if first is None:
        connect, left = cluster.connect, [1]

        async def lost_once(address: str, **how: Any) -> Any:
            if left.pop() if left else 0:
                raise ConnectionLostError(f"cannot connect to {address}")
            return await connect(address, **how)

        monkeypatch.setattr(cluster, "connect", lost_once)
    with caplog.at_level("INFO", logger="raftstore"):
        join(monkeypatch, cluster)
    assert [record.getMessage() for record in caplog.records] == ["joining", "joined"]
    assert why in str(caplog.records[0].__dict__)
    assert cluster.asked[-1] == ("n1:1", "Join")


@pytest.mark.parametrize("answer", [None, Failed(3, "unavailable", "not now")])
def test_node_that_does_not_learn_where_the_others_are_goes_on_asking(
    monkeypatch: pytest.MonkeyPatch, answer: Message | None
) -> None:
    """The next round asks those that it knows."""
    monkeypatch.setattr(Connection, "_info", lambda *_: answer)
    cluster = Cluster(n1=in_turn(refuses("no_leader"), accepts))
    assert join(monkeypatch, cluster).cluster_id == CLUSTER
