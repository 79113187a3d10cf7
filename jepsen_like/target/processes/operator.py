"""Looks and requests of an operator of real nodes, one attempt at a time.

Every method may raise what the client raises; callers ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raftstore.client.blocking.client import Client
from raftstore.client.members import ClusterMember
from raftstore.client.replicas import ReplicaChange

CALL_S: Final = 10.0


class Operator:
    """Commands about members and replicas, by one client."""

    def __init__(self, client: Client, call_s: float = CALL_S) -> None:
        self._client = client
        self._call_s = call_s

    # --- looking ----------------------------------------------------------------------------------

    def members(self) -> list[ClusterMember]:
        """The nodes, by the time of their coming."""
        found = self._client.members(timeout=self._call_s)
        return sorted(found, key=lambda each: int(each.name[1:]))

    def names(self) -> list[str]:
        """Theirs."""
        return [each.name for each in self.members()]

    def is_up(self, name: str) -> bool:
        """Whether there is this node, and it is heard."""
        return any(each.name == name and each.up for each in self.members())

    def replicas(self) -> tuple[ReplicaChange, ...]:
        """Every partition, with its replicas and the order for others."""
        return self._client.replicas(timeout=self._call_s)

    def channel(self, name: str) -> ReplicaChange | None:
        """One of them; None: there is none."""
        return next((each for each in self.replicas() if each.channel == name), None)

    def has(self, channel: str, voters: Sequence[str]) -> bool:
        """Whether exactly these vote and no order is open, or there is no such partition."""
        known = self.channel(channel)
        return known is None or (not known.change and set(known.voters) == set(voters))

    # --- asking -----------------------------------------------------------------------------------

    def order(self, channel: str, voters: Sequence[str]) -> bool:
        """Order that these vote, unless they do or it is ordered."""
        known = self.channel(channel)
        if known is None or (set(known.voters) == set(voters) and not known.change):
            return True
        if known.change and set(known.ordered) == set(voters):
            return True
        self._client.order_replicas(channel, voters, timeout=self._call_s, force=True)
        return True

    def cancel(self, channel: str) -> bool:
        """Cancel the order of the partition; whether none is open."""
        known = self.channel(channel)
        if known is not None and known.change:
            self._client.cancel_order(channel, known.change, timeout=self._call_s)
            return False
        return True

    def token(self, *, replaces: str | None = None) -> str:
        """By which one node joins."""
        return self._client.join_token(
            replaces=replaces, force=replaces is not None, timeout=self._call_s
        )

    def drain(self, name: str, *, drains: bool = True) -> bool:
        """Have a node give its replicas away, or keep them after all."""
        self._client.drain_node(name, drains=drains, timeout=self._call_s)
        return True

    def retire(self, name: str) -> bool:
        """Have a node leave for good; whether it is no member any more."""
        if name in self.names():
            self._client.remove_node(name, timeout=self._call_s)
        return name not in self.names()
