"""Rebalances as a client asks for them: what a plan is made of, and what is sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.errors import ArgumentError, ChangeDoneError
from raftstore.protocol.message import Done, Message
from raftstore.protocol.rebalance import (
    AskRebalance,
    AskTableSizes,
    CancelRebalance,
    MoveReport,
    MoveState,
    NodeTag,
    RebalanceAnswer,
    RebalanceReport,
    StartRebalance,
    SwitchLeaders,
    TableSizesAnswer,
    TagNode,
    ThrottleCopies,
)
from raftstore.protocol.replica_orders import AskOrders, OrderedReplicas, OrdersAnswer
from raftstore.types import ChannelConfig, NodeId, Seq
from tests.integration.client.fake_cluster import FakeCluster, FakeNode, fail
from tests.integration.client.play import QUICK

MIB = 1024**2


class Rebalanced(FakeCluster):
    """Four nodes, and a table of four partitions on the first three of them."""

    def __init__(self) -> None:
        super().__init__("n1", "n2", "n3", "n4")
        self.asked: list[Message] = []
        self.orders: tuple[OrderedReplicas, ...] = ()
        self.tags: dict[NodeId, NodeTag] = {}
        self.copied = (0, 0)
        self.leaders: bool | None = None
        self.report: RebalanceReport | None = None
        for channel in self.add_table("t", 4):
            channel.replicas = self._ids()[:3]
        for node in self.nodes.values():
            node.request_scripts = deque([self.answer] * 200)

    def answer(self, node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        """As a node would that leads the metadata channel."""
        match message:
            case AskOrders():
                reply(OrdersAnswer(message.request_id, self.orders))
            case AskRebalance():
                known = self.report, 5_000_000, self.tags, self.leaders
                reply(RebalanceAnswer(message.request_id, *known))
            case AskTableSizes():
                held = [c for c in self.channels.values() if node.id in c.replicas]
                sizes = tuple((c.channel, 10 * MIB) for c in held)
                most = 40 * MIB
                reply(TableSizesAnswer(message.request_id, sizes, *self.copied, most))
            case _:
                self.asked.append(message)
                request: Any = message
                reply(Done(request.request_id, {"version": self.version, "rebalance": 61}))


def play(test: Callable[[Rebalanced, AsyncClient], Awaitable[None]]) -> None:
    """Run a test with such a cluster and a client."""

    async def run() -> None:
        async with (
            Rebalanced() as cluster,
            await aio.connect(cluster.endpoints, settings=QUICK) as client,
        ):
            await test(cluster, client)

    asyncio.run(run())


def test_plan_is_made_of_what_nodes_report_and_started_as_it_was_shown() -> None:
    """N11: bytes of the tables, seconds at the rate of the copies that were, nobody knows more."""

    async def test(cluster: Rebalanced, client: AsyncClient) -> None:
        plan = await client.plan_rebalance()
        assert len(plan.moves) == 3
        assert {move.targets for move in plan.moves} == {("n4",)}
        assert {move.bytes for move in plan.moves} == {10 * MIB}
        assert {move.spare for move in plan.moves} == {1}
        assert {node.node: node.replicas_after for node in plan.nodes} == dict.fromkeys(
            cluster.nodes, 3
        )
        assert (plan.bytes, plan.rate, plan.is_rate_measured) == (30 * MIB, 40 * MIB, False)
        assert plan.unknown == ()
        cluster.copied = 2 * MIB, 1_000
        measured = await client.plan_rebalance()
        assert (measured.rate, measured.is_rate_measured) == (2 * MIB, True)
        assert measured.seconds == pytest.approx(5.0)
        assert await client.start_rebalance(measured, reason="why") == 61
        (start,) = cluster.asked
        assert isinstance(start, StartRebalance)
        assert start.moves == tuple(move.wanted for move in measured.moves)
        assert (start.reason, len(start.order)) == ("why", 16)

    play(test)


def test_plan_empties_tagged_nodes_and_leaves_alone_what_moves_already() -> None:
    """Nodes that are down or drain get nothing, nor does one that is away for a while."""

    async def test(cluster: Rebalanced, client: AsyncClient) -> None:
        first, *others = cluster.tables["t"].channels
        three = cluster._ids()[:3]
        config = ChannelConfig((three,))
        cluster.orders = (OrderedReplicas(first.channel, config, Seq(1), 7, three),)
        cluster.tags = {cluster.nodes["n1"].id: NodeTag.PERMANENT_OFFLINE}
        plan = await client.plan_rebalance()
        assert {move.sources for move in plan.moves} == {("n1",)}
        assert len(plan.moves) == len(others)
        cluster.tags = {cluster.nodes["n4"].id: NodeTag.TEMPORARY_OFFLINE}
        assert (await client.plan_rebalance()).moves == ()
        cluster.tags = {}
        cluster.nodes["n4"].state = "draining"
        assert (await client.plan_rebalance()).moves == ()
        cluster.nodes["n4"].state = ""
        await cluster.nodes["n4"].kill()
        plan = await client.plan_rebalance()
        assert (plan.moves, plan.unknown) == ((), ("n4",))

    play(test)


def test_status_names_channels_and_nodes() -> None:
    """Before the first rebalance there is none; the reason of a move is what it waits for."""

    async def test(cluster: Rebalanced, client: AsyncClient) -> None:
        none = await client.rebalance_status()
        assert (none.number, none.is_open, none.throttle) == (0, False, 5_000_000)
        plan = await client.plan_rebalance()
        report = MoveReport(
            plan.moves[0].wanted, MoveState.CATCHING_UP, change=7, copied_bytes=5, waits_for="a"
        )
        done = MoveReport(plan.moves[1].wanted, MoveState.COMPLETED, "b", 8)
        state = MoveState.CATCHING_UP
        cluster.report = RebalanceReport(
            Seq(61), "why", state, 1, 0, is_cancelled=False, moves=(report, done)
        )
        cluster.tags = {cluster.nodes["n1"].id: NodeTag.TEMPORARY_OFFLINE}
        found = await client.rebalance_status()
        assert (found.number, found.state, found.is_open) == (61, "CATCHING_UP", True)
        assert found.tags == {"n1": "temporary_offline"}
        first, second = found.moves
        assert (first.channel, first.targets, first.copied, first.reason) == (
            plan.moves[0].channel, ("n4",), 5, "a",
        )  # fmt: skip
        assert (second.copied, second.change, second.reason) == (10 * MIB, 8, "b")

    play(test)


def test_commands_say_what_is_asked_and_wrong_ones_ask_for_nothing() -> None:
    """A refusal of the cluster is raised as such."""

    async def test(cluster: Rebalanced, client: AsyncClient) -> None:
        await client.cancel_rebalance()
        await client.throttle_copies(20 * MIB)
        await client.tag_node("n3", "permanent_offline")
        await client.tag_node("n3", "none")
        cancel, throttle, tagged, untagged = cluster.asked
        assert isinstance(cancel, CancelRebalance)
        assert cancel.number == 0
        assert isinstance(throttle, ThrottleCopies)
        assert throttle.bytes_per_s == 20 * MIB
        for asked, tag in ((tagged, NodeTag.PERMANENT_OFFLINE), (untagged, None)):
            assert isinstance(asked, TagNode)
            assert (asked.node, asked.node_tag) == ("n3", tag)
        with pytest.raises(ArgumentError, match="'offline' is no tag; give one of"):
            await client.tag_node("n3", "offline")
        with pytest.raises(ArgumentError):
            await client.cancel_rebalance(-1)
        assert len(cluster.asked) == 4
        for node in cluster.nodes.values():
            node.request_scripts.extendleft([fail("change_done", "it has ended")] * 3)
        with pytest.raises(ChangeDoneError, match="it has ended"):
            await client.cancel_rebalance(61)

    play(test)


def test_even_leaders_are_turned_on_and_off_and_shown() -> None:
    """Three states, of which one is that the settings count; an older leader is asked nothing."""

    async def test(cluster: Rebalanced, client: AsyncClient) -> None:
        for is_on in (True, False, None):
            await client.balance_leaders(is_on)
        assert [type(asked) for asked in cluster.asked] == [SwitchLeaders] * 3
        told: list[Any] = cluster.asked
        assert [asked.is_on for asked in told] == [True, False, None]
        with pytest.raises(ArgumentError, match="is_on='off' is no switch"):
            await client.balance_leaders("off")  # type: ignore[arg-type]
        for leaders in (None, False):
            cluster.leaders = leaders
            assert (await client.rebalance_status()).leaders is leaders

    play(test)
