"""Replicas that are moved so that nodes hold even shares: plans, their way, and tags of nodes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raftstore.client.context import Context
from raftstore.client.requests.attempt import BuildRequest
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.errors import ArgumentError, RaftstoreError, UnsupportedRequestError
from raftstore.policy.levels import LEADER_SWITCH_LEVEL, REBALANCE_LEVEL
from raftstore.policy.open_moves import bytes_in_turn
from raftstore.policy.rebalance import (
    ClusterNodes,
    NodeShare,
    PlacedChannel,
    RebalancePlan,
    plan_rebalance,
)
from raftstore.protocol.admin import ClusterInfoAnswer, NodeInfo
from raftstore.protocol.message import Done
from raftstore.protocol.rebalance import (
    AskRebalance,
    AskTableSizes,
    CancelRebalance,
    MoveReport,
    MoveState,
    NodeTag,
    RebalanceAnswer,
    StartRebalance,
    SwitchLeaders,
    TableSizesAnswer,
    TagNode,
    ThrottleCopies,
    WantedMove,
)
from raftstore.protocol.replica_orders import (
    ORDER_ID_BYTES,
    AskOrders,
    OrderedReplicas,
    OrdersAnswer,
)
from raftstore.types import ChannelId, NodeId, Seq, node_name

SIZES_WAIT_S: Final = 2.0
"""A node that does not report the sizes of its tables within this is left out."""
NO_TAG: Final = "none"
TAGS: Final = (*(tag.value for tag in NodeTag), NO_TAG)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """Other replicas for a channel."""

    channel: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    bytes: int
    """To be copied; 0: not known."""
    spare: int
    """Voters that may go down meanwhile without the channel losing its majority; below 0: it has
    none now."""
    wanted: WantedMove

    @property
    def risk(self) -> str:
        """Danger to the channel meanwhile; empty: none that was not there before."""
        if self.spare < 0:
            return "it has no majority now: the move waits for one"
        return "it stops if one more of its nodes goes down" if self.spare == 0 else ""


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """Holdings of a node, now and after the moves."""

    node: str
    replicas: int
    replicas_after: int
    bytes: int
    bytes_after: int
    preferred: int
    """Channels that prefer it as their leader."""
    preferred_after: int


@dataclass(frozen=True, slots=True)
class RebalanceProposal:
    """A plan: nothing is moved before it is started."""

    moves: tuple[PlannedMove, ...]
    nodes: tuple[PlannedNode, ...]
    crowded: int
    """Replicas that share a failure domain with another one of their channel."""
    crowded_after: int
    bytes: int
    seconds: float
    """About how long the copies take at this rate."""
    rate: int
    """Bytes a second of one copy."""
    is_rate_measured: bool
    """False: there was no copy yet, and it is what nodes may send at most."""
    staying: tuple[str, ...]
    """``channel on node``: on a node that leaves, and there is no other node for it."""
    unknown: tuple[str, ...]
    """Nodes that did not report how large their tables are."""


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """How far a move is."""

    channel: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    state: str
    bytes: int
    copied: int
    change: int
    reason: str
    """Why it ended so, or what it waits for."""


@dataclass(frozen=True, slots=True)
class RebalanceStatus:
    """The rebalance that is open, else the last one; ``number`` 0: there was none."""

    number: int
    state: str
    reason: str
    begun_ms: int
    ended_ms: int
    """0: it is open."""
    is_cancelled: bool
    moves: tuple[MoveStatus, ...]
    throttle: int
    """Bytes of tables that a node sends in a second at most; 0: its setting counts."""
    tags: dict[str, str]
    """Of nodes that have one."""
    leaders: bool | None = None
    """Whether leaders are made even, as an operator has said; None: as each node is set."""

    @property
    def is_open(self) -> bool:
        """Moves may be under way."""
        return self.number > 0 and self.ended_ms == 0


class Rebalancing:
    """Questions and commands of one client. Every method is bounded by its deadline."""

    def __init__(self, context: Context, leaders: LeaderRequests) -> None:
        self._context = context
        self._leaders = leaders

    # --- plans ------------------------------------------------------------------------------------

    async def plan(self, deadline_ms: int) -> RebalanceProposal:
        """Make a plan of what the cluster is now."""
        cluster = await self._context.discovery.refresh(deadline_ms)
        orders = await self._orders(deadline_ms)
        known = await self._known(deadline_ms)
        answers = await asyncio.gather(*(self._sizes(n, deadline_ms) for n in cluster.nodes))
        sizes: dict[ChannelId, int] = {}
        for answer in answers:
            for channel, size in () if answer is None else answer.sizes:
                sizes[channel] = max(size, sizes.get(channel, 0))
        nodes = _nodes(cluster, known)
        plan = plan_rebalance(_placed(cluster, orders, sizes), nodes)
        up = {info.node for info in cluster.nodes if info.up}
        rate, is_measured = _rate([each for each in answers if each is not None], known.throttle)
        names = {
            channel.channel: f"{table.name}/{number}"
            for table in cluster.tables
            for number, channel in enumerate(table.channels)
        }
        silent = zip(cluster.nodes, answers, strict=True)
        return _proposal(
            plan, names, up, rate, is_measured=is_measured,
            unknown=tuple(node_name(info.node) for info, answer in silent if answer is None),
        )  # fmt: skip

    async def _orders(self, deadline_ms: int) -> dict[ChannelId, OrderedReplicas]:
        answer = await self._ask("list the orders of replicas", AskOrders, deadline_ms)
        if not isinstance(answer, OrdersAnswer):
            raise UnsupportedRequestError(f"the list of orders is answered with {answer}")
        return {each.channel: each for each in answer.channels}

    async def _sizes(self, info: NodeInfo, deadline_ms: int) -> TableSizesAnswer | None:
        left_s = (deadline_ms - self._context.now_ms()) / 1000
        try:
            async with asyncio.timeout(max(0, min(SIZES_WAIT_S, left_s))):
                link = self._context.links.know(info.node, info.endpoint)
                if not info.up or not await link.open() or link.level < REBALANCE_LEVEL:
                    return None
                answer = await link.request(AskTableSizes)
        except (TimeoutError, RaftstoreError):
            return None
        return answer if isinstance(answer, TableSizesAnswer) else None

    # --- the way of one ---------------------------------------------------------------------------

    async def start(self, plan: RebalanceProposal, reason: str, deadline_ms: int) -> int:
        """Begin the moves of a plan; returns the number of the rebalance."""
        if not isinstance(plan, RebalanceProposal):
            raise ArgumentError(
                f"plan={plan!r:.80} is no plan; give what plan_rebalance returned, or a part of it"
            )
        # One for all attempts: a repeated request is the same rebalance.
        order = secrets.token_bytes(ORDER_ID_BYTES)
        moves = tuple(move.wanted for move in plan.moves)
        done = await self._ask(
            "start a rebalance",
            lambda request_id, left_ms: StartRebalance(request_id, order, moves, reason, left_ms),
            deadline_ms,
            is_read=False,
        )
        number = done.detail.get("rebalance") if isinstance(done, Done) else None
        if type(number) is not int:
            raise UnsupportedRequestError(f"the answer names no rebalance: {done}")
        return number

    async def status(self, deadline_ms: int) -> RebalanceStatus:
        """Look at the rebalance that is open, or at the last one."""
        await self._context.discovery.refresh(deadline_ms)
        known = await self._known(deadline_ms)
        tags = {node_name(node): tag.value for node, tag in known.tags.items()}
        found = known.rebalance
        if found is None:
            none = MoveState.NOT_STARTED.value
            return RebalanceStatus(
                0, none, "", 0, 0, False, (), known.throttle, tags, known.leaders
            )
        name_of = self._context.topology.name_of
        return RebalanceStatus(
            found.number,
            found.state.value,
            found.reason,
            found.begun_ms,
            found.ended_ms,
            found.is_cancelled,
            tuple(_move_status(name_of(each.move.channel), each) for each in found.moves),
            known.throttle,
            tags,
            known.leaders,
        )

    async def cancel(self, number: int, deadline_ms: int) -> None:
        """Begin no further move, and end those under way where they are."""
        await self._ask(
            "cancel the rebalance",
            lambda request_id, left_ms: CancelRebalance(request_id, Seq(number), left_ms),
            deadline_ms,
            is_read=False,
        )

    async def throttle(self, bytes_per_s: int, deadline_ms: int) -> None:
        """Bound what each node sends of tables; 0: its setting counts."""
        await self._ask(
            "throttle copies",
            lambda request_id, left_ms: ThrottleCopies(request_id, bytes_per_s, left_ms),
            deadline_ms,
            is_read=False,
        )

    async def switch_leaders(self, is_on: bool | None, deadline_ms: int) -> None:  # noqa: FBT001
        """Have leaders made even or not; None: as each node is set."""
        await self._ask(
            "turn even leaders on or off",
            lambda request_id, left_ms: SwitchLeaders(request_id, is_on, left_ms),
            deadline_ms,
            is_read=False,
            level=LEADER_SWITCH_LEVEL,
        )

    async def tag(self, node: str, tag: str, deadline_ms: int) -> None:
        """Tag a node, or take its tag away."""
        if tag not in TAGS:
            raise ArgumentError(f"{tag!r:.80} is no tag; give one of {', '.join(TAGS)}")
        node_tag = None if tag == NO_TAG else NodeTag(tag)
        await self._ask(
            f"tag node {node!r}",
            lambda request_id, left_ms: TagNode(request_id, node, node_tag, left_ms),
            deadline_ms,
            is_read=False,
        )

    # --- inside -----------------------------------------------------------------------------------

    async def _known(self, deadline_ms: int) -> RebalanceAnswer:
        answer = await self._ask("look at the rebalance", AskRebalance, deadline_ms)
        if not isinstance(answer, RebalanceAnswer):
            raise UnsupportedRequestError(f"the rebalance is answered with {answer}")
        return answer

    async def _ask(
        self,
        what: str,
        build: type[AskOrders | AskRebalance] | BuildRequest,
        deadline_ms: int,
        *,
        is_read: bool = True,
        level: int = REBALANCE_LEVEL,
    ) -> object:
        await self._context.discovery.refresh(deadline_ms)
        channel = self._context.topology.metadata_channel
        assert channel is not None
        asked = Asked(what, is_read=is_read, level=level)
        if isinstance(build, type):
            question = build
            return await self._leaders.ask(
                channel, lambda request_id, _left_ms: question(request_id), deadline_ms, asked=asked
            )
        return await self._leaders.ask(channel, build, deadline_ms, asked=asked)


def _nodes(cluster: ClusterInfoAnswer, known: RebalanceAnswer) -> ClusterNodes:
    """Nodes that may be given replicas, those that leave, and their failure domains."""
    takers = [
        info.node
        for info in cluster.nodes
        if info.up and not info.state and info.level >= REBALANCE_LEVEL
        and info.node not in known.tags
    ]  # fmt: skip
    leaving = [n for n, tag in known.tags.items() if tag is NodeTag.PERMANENT_OFFLINE]
    domains = {info.node: info.failure_domain for info in cluster.nodes}
    return ClusterNodes(takers, leaving, domains)


def _placed(
    cluster: ClusterInfoAnswer,
    orders: dict[ChannelId, OrderedReplicas],
    sizes: dict[ChannelId, int],
) -> list[PlacedChannel]:
    """Every channel; those are left alone that have an order or a witness, or will get an order
    because one of their nodes drains or was replaced."""
    stays = {info.node for info in cluster.nodes if info.state != "draining"}
    placed: list[PlacedChannel] = []
    for table in cluster.tables:
        for info in table.channels:
            order = orders.get(info.channel)
            voters: Sequence[NodeId] = info.replicas if order is None else order.config.voters
            learners: Sequence[NodeId] = () if order is None else order.config.learners
            has_order = order is not None and order.change != 0
            # A plan knows no roles: a witness must not become a voter with rows, nor one a witness.
            has_witness = order is not None and any(map(order.config.is_witness, voters))
            is_left_alone = has_order or has_witness
            may_move = not is_left_alone and stays.issuperset((*voters, *learners))
            size = sizes.get(info.channel, 0)
            placed.append(
                PlacedChannel(info.channel, tuple(voters), tuple(learners), size, may_move)
            )
    return placed


def _rate(answers: Sequence[TableSizesAnswer], throttle: int) -> tuple[int, bool]:
    """Bytes a second of one copy, and whether it was measured."""
    copied_ms = sum(each.copied_ms for each in answers)
    copied = sum(each.copied_bytes for each in answers)
    most = min((each.second_bytes_max for each in answers), default=throttle or 1)
    is_measured = copied > 0 and copied_ms > 0
    rate = copied * 1_000 // copied_ms if is_measured else most
    return max(1, min(rate, most)), is_measured


def _proposal(
    plan: RebalancePlan,
    names: dict[ChannelId, str],
    up: set[NodeId],
    rate: int,
    *,
    is_measured: bool,
    unknown: tuple[str, ...],
) -> RebalanceProposal:
    moves: list[PlannedMove] = []
    for move in plan.moves:
        old, new = move.before, move.after
        wanted = WantedMove(
            old.channel, new.voters, new.learners, old.voters, old.learners, old.table_bytes
        )
        moves.append(
            PlannedMove(
                names[old.channel],
                _names(wanted.sources),
                _names(wanted.targets),
                move.bytes_to_copy,
                min(_spare(old.voters, up), _spare(new.voters, up)),
                wanted,
            )
        )
    total = sum(move.bytes for move in moves)
    in_turn = bytes_in_turn([(move.wanted.targets, move.bytes) for move in moves], len(plan.after))
    none = NodeShare(0, 0, 0)
    pairs = [(n, plan.before.get(n, none), plan.after.get(n, none)) for n in plan.after]
    return RebalanceProposal(
        moves=tuple(moves),
        nodes=tuple(
            PlannedNode(
                node_name(node), held.replicas, holds.replicas, held.table_bytes, holds.table_bytes,
                held.preferred, holds.preferred,
            )
            for node, held, holds in pairs
        ),
        crowded=plan.crowded_before,
        crowded_after=plan.crowded_after,
        bytes=total,
        seconds=in_turn / rate,
        rate=rate,
        is_rate_measured=is_measured,
        staying=tuple(f"{names[channel]} on {node_name(n)}" for channel, n in plan.staying),
        unknown=unknown,
    )  # fmt: skip


def _spare(voters: Sequence[NodeId], up: set[NodeId]) -> int:
    return sum(node in up for node in voters) - (len(voters) // 2 + 1)


def _move_status(name: str, each: MoveReport) -> MoveStatus:
    move = each.move
    return MoveStatus(
        name,
        _names(move.sources),
        _names(move.targets),
        each.state.value,
        move.table_bytes,
        move.table_bytes if each.state is MoveState.COMPLETED else each.copied_bytes,
        each.change,
        each.reason or each.waits_for,
    )


def _names(nodes: Sequence[NodeId]) -> tuple[str, ...]:
    return tuple(map(node_name, nodes))
