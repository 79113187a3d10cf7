"""The operator of a simulated cluster whose members faults change (S8): its requests travel over
the simulated network."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from jepsen_like.checker.voters import VoterSets
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.member_goals import Drain, MemberGoals, MembersView, Order, Step
from raftstore.protocol import members
from raftstore.protocol.members import JoinAccepted
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
NANOSECONDS: Final = 1_000_000

Channels = Callable[[], Mapping[str, ChannelId]]
"""Name -> id of every partition."""


class SimMembers:
    """Carries out what faults want of the members, from the first such fault on."""

    def __init__(
        self, cluster: SimCluster, channels: Channels, adopt: Callable[[SimNode], None]
    ) -> None:
        """``adopt``: a node has joined and is to be started."""
        # Nodes that have left are refused by the others from now on.
        cluster.change_members()
        self._cluster = cluster
        self._channels = channels
        self._adopt = adopt
        self._rng = random.Random(f"members {cluster.options.seed}")
        self._operator = SimOperator(cluster, self._rng)
        self._goals = MemberGoals(len(cluster.nodes), cluster.options.replicas)
        self._asked: dict[str, None] = {}
        """Requests under way, by what they are about: one each."""
        self.voters = VoterSets()
        """Who votes in each partition, since when."""
        self._look()

    # --- faults -----------------------------------------------------------------------------------

    def replicas(self) -> dict[str, tuple[str, ...]]:
        """Partition -> nodes that vote in it, where nobody is changing that."""
        return self._goals.free(self._view())

    def staying(self) -> tuple[str, ...]:
        """Nodes that may be given a replica."""
        return self._goals.staying(self._view())

    def move(self, channel: str, voters: Sequence[str]) -> None:
        """Order that these nodes vote, and no other."""
        self._goals.move(self._view(), channel, voters)
        self._look_now()

    def restore(self, channel: str) -> None:
        """Order the replicas that were there before; FaultUnavailableError, after that, when what
        the fault ordered was never accepted."""
        was_taken = self._goals.restore(channel)
        self._look_now()
        if not was_taken:
            raise FaultUnavailableError(f"nobody took the order for the replicas of {channel}")

    def join(self) -> str:
        """Let a new node join; its name. It is one of the nodes once it has."""
        name = self._goals.join(self._view())
        self._begin_join(name)
        return name

    def remove(self, node: str) -> None:
        """Let a node leave; FaultUnavailableError, after that, when it has not even joined."""
        if not self._goals.remove(node):
            raise FaultUnavailableError(f"{node} did not come to join")

    def drain(self, node: str) -> None:
        """Order that the node gives its replicas to others."""
        self._goals.drain(node)

    def keep(self, node: str) -> None:
        """Take that back; FaultUnavailableError, after that, when it was never accepted."""
        if not self._goals.keep(node):
            raise FaultUnavailableError(f"nobody took the order to drain {node}")

    def heal(self) -> None:
        """No fault from now on: what cannot end is given up."""
        self._goals.is_healing = True

    # --- what is so -------------------------------------------------------------------------------

    def why_not_settled(self) -> str:
        """Changes that are wanted and not so; empty: none."""
        if self._goals.why_open:
            return self._goals.why_open
        catalog = self._catalog()
        if catalog is None:
            return "the catalog has no leader"
        return why_not_settled(self._cluster, catalog, self._lost())

    def _lost(self) -> list[NodeId]:
        return [node for node in self._cluster.node_ids if is_gone(self._cluster, node)]

    def _catalog(self) -> Catalog | None:
        leader = self._operator.metadata_leader()
        if leader is None or leader.runner is None:
            return None
        return leader.runner.controller.catalog

    def _view(self) -> MembersView | None:
        catalog = self._catalog()
        if catalog is None:
            return None
        busy = dict(open_orders(catalog))
        voters = {
            name: self._voters_of(channel)
            for name, channel in self._channels().items()
            if channel not in busy
        }
        return MembersView(
            draining={node_name(node): node in catalog.draining for node in self._cluster.node_ids},
            voters={name: found for name, found in voters.items() if found is not None},
            lost=[node_name(node) for node in self._lost()],
        )

    def _voters_of(self, channel: ChannelId) -> tuple[str, ...] | None:
        """By the leader's log; None while there is no leader or a change is under way."""
        node = self._cluster.leaders().get(channel)
        if node is None or node.runner is None:
            return None
        view = node.runner.channels[channel].core.membership()
        if view.config.is_joint or not view.is_committed:
            return None
        return tuple(sorted(map(node_name, view.config.voters)))

    # --- the operator -----------------------------------------------------------------------------

    def _look(self) -> None:
        self._look_now()
        self._cluster.scheduler.after(LOOK_MS, self._look)

    def _look_now(self) -> None:
        self._note_voters()
        view = self._view()
        for step in () if view is None else self._goals.steps(view):
            if step.about not in self._asked:
                self._ask(step)

    def _ask(self, step: Step) -> None:
        self._asked[step.about] = None

        def answered(sender: NodeId, answer: Message | None) -> None:
            del sender
            self._asked.pop(step.about)
            if isinstance(answer, Done):
                self._goals.taken(step)

        if isinstance(step, Order):
            channel, guid = self._channels()[step.about], self._rng.randbytes(ORDER_ID_BYTES)
            self._operator.ask(
                lambda number: OrderReplicas(
                    number, channel, step.voters, guid, "chaos", ANSWER_MS, (), True
                ),
                answered,
            )
            return
        node = next(each for each in self._cluster.node_ids if node_name(each) == step.about)

        def build(number: int) -> Request:
            if isinstance(step, Drain):
                return members.Drain(number, node, step.drains, ANSWER_MS)
            return members.Retire(number, node, ANSWER_MS)

        self._operator.ask(build, answered)

    # --- joins ------------------------------------------------------------------------------------

    def _begin_join(self, name: str) -> None:
        SimJoin(self._operator, name, None, self._joined, self._refused)

    def _joined(self, node: NodeId, answer: JoinAccepted) -> None:
        added = self._cluster.add_node(node, answer)
        self._goals.joined(added.name)
        self._adopt(added)

    def _refused(self, join: SimJoin) -> None:
        name = node_name(join.node)
        if name in self._goals.leaving:
            self._goals.joined(name)  # it is nobody, and so has left
        else:
            self._operator.pause(self._begin_join, name)

    # --- who votes --------------------------------------------------------------------------------

    def _note_voters(self) -> None:
        """Every set of voters that some replica's log or an open order names."""
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
