"""Members of a simulated cluster as faults change them: nodes come and go, replicas move (S8).

What a fault wants is noted, and the operator asks for it again and again until it is so: requests
travel over the simulated network and are lost there, leaders change, an order waits for another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jepsen_like.checker.voters import VoterSets
from jepsen_like.target.base import FaultUnavailableError
from raftstore.protocol.members import Drain, JoinAccepted, Retire
from raftstore.protocol.message import Done, Message, Request
from raftstore.protocol.replica_orders import ORDER_ID_BYTES, OrderReplicas
from raftstore.state_machines.catalog import Catalog
from raftstore.testing.settled_members import is_gone, open_orders, runners_of, why_not_settled
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_operator import ANSWER_MS, SimJoin, SimOperator
from raftstore.types import ChannelId, NodeId, node_name

LOOK_MS: Final = 200.0
"""How often the operator looks whether all is as it is wanted."""
NODES_MAX: Final = 7
NANOSECONDS: Final = 1_000_000

Channels = Callable[[], Mapping[str, ChannelId]]
"""Name -> id of every partition."""


@dataclass(slots=True)
class _Move:
    """Replicas of a partition that a fault has moved, or takes back."""

    before: tuple[str, ...]
    wanted: tuple[str, ...]
    is_taken: bool = False
    """The order of the fault was accepted."""
    is_restoring: bool = False


class SimMembers:
    """The operator of a world whose faults change its members."""

    def __init__(
        self, cluster: SimCluster, channels: Channels, adopt: Callable[[SimNode], None]
    ) -> None:
        """``adopt``: a node has joined and is to be started."""
        # Who has left is refused by the others from now on.
        cluster.options = replace(cluster.options, member_changes=True)
        self._cluster = cluster
        self._channels = channels
        self._adopt = adopt
        self._rng = random.Random(f"members {cluster.options.seed}")
        self._operator = SimOperator(cluster, self._rng)
        self._moves: dict[str, _Move] = {}
        self._joins: dict[str, None] = {}
        """Names of nodes that are on their way in."""
        self._drains: dict[str, bool] = {}
        """Nodes whose drain is begun or taken back, until that is so."""
        self._drained: dict[str, None] = {}
        """Nodes of which the cluster took the order to drain."""
        self._leaving: dict[str, None] = {}
        self._asked: dict[object, None] = {}
        """Requests under way, by what they are about: one each."""
        self._names_given = len(cluster.nodes)
        self._is_healing = False
        self.voters = VoterSets()
        """Who votes in each partition, since when."""
        self._look()

    # --- faults -----------------------------------------------------------------------------------

    def replicas(self) -> dict[str, tuple[str, ...]]:
        """Partition -> nodes that vote in it, where no order is under way."""
        catalog = self._catalog()
        if catalog is None:
            return {}
        busy = {channel for channel, _ in open_orders(catalog)}
        found: dict[str, tuple[str, ...]] = {}
        for name, channel in self._channels().items():
            voters = self._voters_of(channel)
            if channel not in busy and name not in self._moves and voters is not None:
                found[name] = voters
        return found

    def staying(self) -> tuple[str, ...]:
        """Nodes that may be given a replica."""
        away = {**self._leaving, **dict.fromkeys(n for n, drains in self._drains.items() if drains)}
        away |= self._drained
        return tuple(name for name in self._live() if name not in away)

    def move(self, channel: str, voters: Sequence[str]) -> None:
        """Order that these nodes vote, and no other."""
        before = self.replicas().get(channel)
        if before is None:
            raise FaultUnavailableError(f"the replicas of {channel} are being changed already")
        if len(voters) < len(before) and self.lost():
            raise FaultUnavailableError(
                f"a node is gone for good; with a replica fewer {channel} could lose its majority"
            )
        self._moves[channel] = _Move(before, tuple(voters))
        self._look_now()

    def restore(self, channel: str) -> None:
        """Order the replicas that were there before; FaultUnavailableError, after that, when what
        the fault ordered was never accepted."""
        move = self._moves[channel]
        move.is_restoring = True
        self._look_now()
        if not move.is_taken:
            raise FaultUnavailableError(f"nobody took the order for the replicas of {channel}")

    def join(self) -> str:
        """Let a new node join; its name. It is one of the nodes once it has."""
        if len(self._live()) + len(self._joins) >= NODES_MAX:
            raise FaultUnavailableError(f"there are {NODES_MAX} nodes, which is enough")
        self._names_given += 1
        name = f"n{self._names_given}"
        self._joins[name] = None
        self._begin_join(name)
        return name

    def remove(self, node: str) -> None:
        """Let a node leave for good, as soon as it hosts nothing any more; FaultUnavailableError,
        when it has not even joined."""
        self._leaving[node] = None
        if node in self._joins:
            raise FaultUnavailableError(f"{node} did not come to join")

    def drain(self, node: str) -> None:
        """Order that the node gives its replicas to others."""
        if self._drains or self._drained or self._leaving:
            raise FaultUnavailableError("another node is on its way out; one at a time")
        self._drains[node] = True

    def keep(self, node: str) -> None:
        """Take that back; FaultUnavailableError, after that, when it was never accepted."""
        self._drains[node] = False
        if node not in self._drained:
            raise FaultUnavailableError(f"nobody took the order to drain {node}")

    def heal(self) -> None:
        """No fault from now on: what cannot end is given up."""
        self._is_healing = True

    # --- what is so -------------------------------------------------------------------------------

    def lost(self) -> list[NodeId]:
        """Members that never start again."""
        return [node for node in self._cluster.node_ids if is_gone(self._cluster, node)]

    def why_not_settled(self) -> str:
        """What is still wanted, and not so; empty: nothing."""
        wanted = (*self._moves, *self._joins, *self._drains, *self._leaving)
        if wanted:
            return f"{', '.join(wanted)} are being changed"
        catalog = self._catalog()
        if catalog is None:
            return "the catalog has no leader"
        return why_not_settled(self._cluster, catalog, self.lost())

    def _catalog(self) -> Catalog | None:
        leader = self._operator.metadata_leader()
        if leader is None or leader.runner is None:
            return None
        return leader.runner.controller.catalog

    def _live(self) -> list[str]:
        nodes = self._cluster.node_ids
        return [node_name(node) for node in nodes if not is_gone(self._cluster, node)]

    def _voters_of(self, channel: ChannelId) -> tuple[str, ...] | None:
        """By the leader's log; None while there is no leader or a change is under way."""
        node = self._cluster.leaders().get(channel)
        if node is None or node.runner is None:
            return None
        view = node.runner.channels[channel].core.membership()
        if view.config.is_joint or not view.is_committed:
            return None
        return tuple(sorted(map(node_name, view.config.voters)))

    def _id_of(self, name: str) -> NodeId | None:
        return next((node for node in self._cluster.node_ids if node_name(node) == name), None)

    # --- the operator -----------------------------------------------------------------------------

    def _look(self) -> None:
        self._look_now()
        self._cluster.scheduler.after(LOOK_MS, self._look)

    def _look_now(self) -> None:
        self._watch()
        catalog = self._catalog()
        if catalog is None:
            return
        for channel in tuple(self._moves):
            self._see_to_move(catalog, channel)
        for node in tuple(self._drains):
            self._see_to_drain(catalog, node)
        for node in tuple(self._leaving):
            self._see_to_leaving(catalog, node)

    def _see_to_move(self, catalog: Catalog, channel: str) -> None:
        move, of = self._moves[channel], self._channels()[channel]
        now = self._voters_of(of)
        if now is None or of in dict(open_orders(catalog)):
            return
        if move.is_restoring:
            move.wanted = self._filled(move.before, now)
        if now == tuple(sorted(move.wanted)):
            move.is_taken = True
            if move.is_restoring:
                del self._moves[channel]
            return
        ids = [self._id_of(name) for name in move.wanted]
        if None in ids:
            return  # it has yet to join
        guid = self._rng.randbytes(ORDER_ID_BYTES)
        names = tuple(move.wanted)

        def taken() -> None:
            move.is_taken = move.is_taken or not move.is_restoring

        self._ask(
            channel,
            lambda number: OrderReplicas(number, of, names, guid, "chaos", ANSWER_MS, (), True),
            taken,
        )

    def _filled(self, before: Collection[str], now: Collection[str]) -> tuple[str, ...]:
        """As many voters as before, the same where they stay."""
        staying = self.staying()
        ordered = dict.fromkeys((*before, *now, *staying))
        found = [name for name in ordered if name in staying][: len(before)]
        return tuple(found) if len(found) == len(before) else tuple(before)

    def _see_to_drain(self, catalog: Catalog, name: str) -> None:
        node, drains = self._id_of(name), self._drains[name]
        if node is None:  # it has left meanwhile
            self._drained.pop(name, None)
            del self._drains[name]
            return
        if name in self._leaving or (drains and self._joins):
            return  # those that come make room for what it gives away
        if (node in catalog.draining) == drains:
            self._drained.pop(name, None)
            if drains:
                self._drained[name] = None
            del self._drains[name]
            return
        self._ask(name, lambda number: Drain(number, node, drains, ANSWER_MS))

    def _see_to_leaving(self, catalog: Catalog, name: str) -> None:
        node = self._id_of(name)
        if name in self._joins:
            return
        if node is None:
            del self._leaving[name]
        elif self._is_healing and not self._has_room():
            del self._leaving[name]
            self._drains[name] = False
        elif node not in catalog.draining:
            self._ask(name, lambda number: Drain(number, node, True, ANSWER_MS))
        else:
            self._ask(name, lambda number: Retire(number, node, ANSWER_MS))

    def _has_room(self) -> bool:
        """Whether those that stay can host what tables need."""
        return len(self.staying()) >= self._cluster.options.replicas

    def _ask(
        self,
        about: object,
        build: Callable[[int], Request],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        if about in self._asked:
            return
        self._asked[about] = None

        def answered(sender: NodeId, answer: Message | None) -> None:
            del sender
            self._asked.pop(about)
            if isinstance(answer, Done):
                then()

        self._operator.ask(build, answered)

    # --- joins ------------------------------------------------------------------------------------

    def _begin_join(self, name: str) -> None:
        SimJoin(self._operator, name, None, self._joined, self._refused)

    def _joined(self, node: NodeId, answer: JoinAccepted) -> None:
        added = self._cluster.add_node(node, answer)
        del self._joins[added.name]
        self._adopt(added)

    def _refused(self, join: SimJoin) -> None:
        name = node_name(join.node)
        if name in self._leaving:
            del self._joins[name], self._leaving[name]
        else:
            self._operator.pause(self._begin_join, name)

    # --- who votes --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Note every set of voters that some replica's log or an open order names."""
        now = int(self._cluster.scheduler.now_ms * NANOSECONDS)
        for name, channel in self._channels().items():
            table, _, partition = name.rpartition("/")
            sets: dict[frozenset[str], None] = {}
            for runner in runners_of(self._cluster, channel):
                groups = [g for each in runner.core.known_configs() for g in each.config.voter_sets]
                target = runner.core.membership().target
                if target is not None:
                    groups.append(target.voters)
                sets |= dict.fromkeys(frozenset(map(node_name, group)) for group in groups)
            self.voters.note((table, int(partition)), now, sets)
