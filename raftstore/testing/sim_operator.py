"""The operator of a simulated world: commands about nodes and replicas, and the joins of nodes.

Everything travels as the messages of real operators and of real joining nodes, over the simulated
network: it is lost, late or doubled there, and asked again. A join goes on until the cluster has
taken the node in or refused it, as ``raftstore.node.bootstrap.joining`` does, with one id for all
attempts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from raftstore.config import LEVEL
from raftstore.errors import ERRORS_BY_CODE, RequestError
from raftstore.protocol.members import AskJoin, Join, JoinAccepted, JoinNonce, MakeTicket
from raftstore.protocol.message import Done, Failed, Message, Request
from raftstore.protocol.tickets import (
    ID_BYTES,
    SECRET_BYTES,
    JoinClaim,
    join_proof,
    stored_key,
)
from raftstore.types import NodeId, Outcome, Role, channel_id, node_id

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster
    from raftstore.testing.sim_node import SimNode

HANDLE: Final = 9_998
ANSWER_MS: Final = 2_000
"""Before a request counts as lost."""
AGAIN_MS: Final = (50.0, 400.0)
LIFETIMES_MS: Final = (300, 3_000, 600_000)
"""Of tickets: some expire before they are used."""

Build = Callable[[int], Request]
Then = Callable[[NodeId, Message | None], None]
"""Called with the node that was asked and its answer; None: there was none in time."""


def is_final(answer: Message | None) -> bool:
    """Whether asking the same again is of no use."""
    if not isinstance(answer, Failed):
        return answer is not None
    error = ERRORS_BY_CODE.get(answer.code, RequestError)
    return not error.retriable and error.outcome is not Outcome.UNKNOWN


class SimOperator:
    """Asks the leader of the metadata channel, where it is known."""

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.metadata = channel_id(cluster.cluster_id, 0)
        self._asked = 0
        self._open: dict[int, Then] = {}
        cluster.add_client("operator", HANDLE, self._on_answer)

    def ask(self, build: Build, then: Then) -> None:
        """Send it to the leader of the metadata channel, or to the node that is taken for it."""
        node = self.leader() or self.rng.choice(self.cluster.node_ids)
        self.ask_node(node, build, then)

    def ask_node(self, node: NodeId, build: Build, then: Then) -> None:
        """Send it to this node."""
        self._asked += 1
        number = self._asked
        self._open[number] = then
        self.cluster.network.send("operator", node, build(number))
        self.cluster.scheduler.after(ANSWER_MS, self._expire, number, node)

    def leader(self) -> NodeId | None:
        """The leader of the metadata channel as some live node knows it."""
        views = [
            node.runner.channels[self.metadata].elector.leader
            for node in self.cluster.nodes.values()
            if node.runner is not None and self.metadata in node.runner.channels
        ]
        known = [leader for leader in views if leader is not None]
        return self.rng.choice(known) if known else None

    def metadata_leader(self) -> SimNode | None:
        """The node that leads the metadata channel and is ready; None: there is none now."""
        found = self.cluster.leaders().get(self.metadata)
        if found is None or found.runner is None:
            return None
        runner = found.runner.channels[self.metadata]
        is_ready = runner.elector.role is Role.LEADER and runner.core.leader_is_ready
        return found if is_ready else None

    def pause(self, action: Callable[..., None], *of: object) -> None:
        """Do it a moment later."""
        self.cluster.scheduler.after(self.rng.uniform(*AGAIN_MS), action, *of)

    def _on_answer(self, sender: NodeId, message: Message) -> None:
        then = self._open.pop(getattr(message, "request_id", -1), None)
        if then is not None:
            then(sender, message)

    def _expire(self, number: int, node: NodeId) -> None:
        then = self._open.pop(number, None)
        if then is not None:
            then(node, None)


class SimJoin:
    """One node on its way into the cluster, from its ticket on."""

    def __init__(
        self,
        operator: SimOperator,
        name: str,
        replaces: NodeId | None,
        on_joined: Callable[[NodeId, JoinAccepted], None],
        on_refused: Callable[[SimJoin], None],
    ) -> None:
        self._operator = operator
        self._rng = operator.rng
        self.replaces = replaces
        self._on_joined = on_joined
        self._on_refused = on_refused
        self._ticket = self._rng.randbytes(ID_BYTES)
        self._secret = self._rng.randbytes(SECRET_BYTES)
        self.node = node_id(name, self._rng.randbytes(16))
        self._lifetime_ms = self._rng.choice(LIFETIMES_MS)
        self._make_ticket()

    def _make_ticket(self) -> None:
        key, replaces = stored_key(self._secret), self.replaces or ""
        self._operator.ask(
            lambda number: MakeTicket(
                number, self._ticket, key, self._lifetime_ms, ANSWER_MS, replaces, True
            ),
            self._ticket_made,
        )

    def _ticket_made(self, sender: NodeId, answer: Message | None) -> None:
        del sender
        if isinstance(answer, Done):
            self._ask()
        elif is_final(answer):
            self._on_refused(self)
        else:
            self._operator.pause(self._make_ticket)

    def _ask(self) -> None:
        self._operator.ask(AskJoin, self._challenged)

    def _challenged(self, sender: NodeId, answer: Message | None) -> None:
        if not isinstance(answer, JoinNonce):
            self._operator.pause(self._ask)
            return
        address = f"{self.node.partition('@')[0]}:1"
        claim = JoinClaim(
            self._operator.cluster.cluster_id,
            self._ticket,
            self.node,
            address,
            LEVEL,
            answer.nonce,
        )
        proof = join_proof(self._secret, claim)
        self._operator.ask_node(
            sender,
            lambda number: Join(number, self._ticket, self.node, address, LEVEL, proof, ANSWER_MS),
            self._answered,
        )

    def _answered(self, sender: NodeId, answer: Message | None) -> None:
        del sender
        if isinstance(answer, JoinAccepted):
            self._on_joined(self.node, answer)
        elif is_final(answer) and not self.is_entered:
            self._on_refused(self)
        else:
            self._operator.pause(self._ask)

    def go_on(self) -> None:
        """Ask again: a request whose answer was lost had entered the node."""
        self._ask()

    @property
    def is_entered(self) -> bool:
        """Some copy of the catalog has it: a real node asks until it knows, and is refused only on
        the connection that gave it its nonce."""
        nodes = self._operator.cluster.nodes.values()
        runners = [node.runner for node in nodes if node.runner is not None]
        return any(self.node in runner.controller.catalog.numbers for runner in runners)
