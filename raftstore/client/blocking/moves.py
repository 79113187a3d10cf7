"""Nodes that come and go, replicas and leaderships that move, for programs without asyncio."""

from __future__ import annotations

from collections.abc import Sequence

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.members import TOKEN_LIFETIME_S, ClusterMember
from raftstore.client.rebalancing import RebalanceProposal, RebalanceStatus
from raftstore.client.replicas import ReplicaChange


class MovesClient:
    """The part of ``Client`` that is about members of the cluster, replicas and leaders."""

    _client: AsyncClient
    _loop: BackgroundLoop

    def members(self, *, timeout: float | None = None) -> tuple[ClusterMember, ...]:
        """Return the nodes of the cluster, as one of them knows them."""
        return self._loop.call(self._client.members(timeout=timeout))

    def join_token(
        self,
        *,
        replaces: str | None = None,
        lifetime: float = TOKEN_LIFETIME_S,
        force: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Let one new node join within ``lifetime`` seconds; returns the token for its ``--join``.

        ``replaces``: a node whose store is lost and whose place the new one takes.
        """
        return self._loop.call(
            self._client.join_token(
                replaces=replaces, lifetime=lifetime, force=force, timeout=timeout
            )
        )

    def drain_node(self, node: str, *, drains: bool = True, timeout: float | None = None) -> None:
        """Place no further replicas on a node; ``drains=False`` takes that back."""
        self._loop.call(self._client.drain_node(node, drains=drains, timeout=timeout))

    def remove_node(self, node: str, *, timeout: float | None = None) -> None:
        """Retire a node that drains and has no replica any more; its id never comes back."""
        self._loop.call(self._client.remove_node(node, timeout=timeout))

    def order_replicas(
        self,
        channel: str,
        nodes: Sequence[str],
        *,
        learners: Sequence[str] = (),
        witnesses: Sequence[str] = (),
        reason: str | None = None,
        force: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Order that ``nodes`` vote in ``table/partition``; returns the number of the order."""
        return self._loop.call(
            self._client.order_replicas(
                channel, nodes, learners=learners, witnesses=witnesses, reason=reason, force=force,
                timeout=timeout,
            )
        )  # fmt: skip

    def cancel_order(self, channel: str, change: int, *, timeout: float | None = None) -> None:
        """End an order for the replicas of ``table/partition`` where it is."""
        self._loop.call(self._client.cancel_order(channel, change, timeout=timeout))

    def replicas(self, *, timeout: float | None = None) -> tuple[ReplicaChange, ...]:
        """Return every channel with its replicas, and the orders for others."""
        return self._loop.call(self._client.replicas(timeout=timeout))

    def plan_rebalance(self, *, timeout: float | None = None) -> RebalanceProposal:
        """Plan which replicas should move so that nodes hold even shares; nothing is moved."""
        return self._loop.call(self._client.plan_rebalance(timeout=timeout))

    def start_rebalance(
        self, plan: RebalanceProposal, *, reason: str | None = None, timeout: float | None = None
    ) -> int:
        """Begin the moves of a plan; returns the number of the rebalance."""
        call = self._client.start_rebalance(plan, reason=reason, timeout=timeout)
        return self._loop.call(call)

    def rebalance_status(self, *, timeout: float | None = None) -> RebalanceStatus:
        """Return how far the open rebalance is, or how the last one ended."""
        return self._loop.call(self._client.rebalance_status(timeout=timeout))

    def cancel_rebalance(self, number: int = 0, *, timeout: float | None = None) -> None:
        """Begin no further move, and end those under way where they are. 0: of the open one."""
        self._loop.call(self._client.cancel_rebalance(number, timeout=timeout))

    def throttle_copies(self, bytes_per_s: int, *, timeout: float | None = None) -> None:
        """Let each node send so many bytes of tables a second at most; 0: as it is set."""
        self._loop.call(self._client.throttle_copies(bytes_per_s, timeout=timeout))

    def balance_leaders(self, is_on: bool | None, *, timeout: float | None = None) -> None:  # noqa: FBT001
        """Have leaders made even by themselves, or not; None: as ``rebalance.leaders`` is set."""
        self._loop.call(self._client.balance_leaders(is_on, timeout=timeout))

    def tag_node(self, node: str, tag: str, *, timeout: float | None = None) -> None:
        """Tag a node ``permanent_offline`` or ``temporary_offline``; ``none`` takes it away."""
        self._loop.call(self._client.tag_node(node, tag, timeout=timeout))

    def step_down(
        self, channel: str, *, target: str | None = None, timeout: float | None = None
    ) -> None:
        """Have the leader of ``table/partition`` hand over, to the node ``target`` if given."""
        self._loop.call(self._client.step_down(channel, target=target, timeout=timeout))
