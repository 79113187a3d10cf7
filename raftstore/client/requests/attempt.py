"""One request at one node: how it is sent, and the one rule for how long it is waited for.

Every request that may go to another node, or to the same one again, is an attempt: reads at
replicas and at leaders, gets that share a request, table commands. The rule, in ``verdict``:

* An attempt ends at its deadline.
* One at a leader is left when a newer leader is known; after a while without an answer the others
  are asked who leads.
* One at a replica is left when its node has said nothing at all for a moment: a node that answers
  others is busy, and a busy cluster is not helped by asking twice.
* One that waits for a position is left after a while, too: others may have reached it already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from raftstore.client.cluster.links import NodeLink
from raftstore.client.cluster.topology import Leader
from raftstore.client.context import Context
from raftstore.client.settings import ClientSettings
from raftstore.protocol.message import Request
from raftstore.types import ChannelId, NodeId

BuildRequest = Callable[[int, int], Request]
"""(request id, what is left of the time in ms) -> request."""

LOOK_MS: Final = 25
"""How often attempts without an answer are looked at. A look that comes later than planned by more
than this says nothing of silence: this loop has not read yet what was said meanwhile."""


class Verdict(Enum):
    """The next step for an attempt that has no answer yet."""

    WAIT = "wait"
    OVERDUE = "overdue"
    """Wait, and ask who leads."""
    SILENT = "silent"
    """Its node has said nothing to anybody for ``hedge_ms``: ask another."""
    SLOW = "slow"
    """Its node waits for a position that others may have: ask another."""
    SUCCEEDED = "succeeded"
    """Another node leads in a later term."""
    EXPIRED = "expired"
    """Its deadline has passed."""

    @property
    def reason(self) -> str:
        """Why the node did not serve it, for errors."""
        return _REASONS[self]


_REASONS: Final = {
    Verdict.WAIT: "",
    Verdict.OVERDUE: "",
    Verdict.SILENT: "it has not answered",
    Verdict.SLOW: "it has not reached the position yet",
    Verdict.SUCCEEDED: "it did not answer, and another node leads now",
    Verdict.EXPIRED: "it did not answer before the deadline",
}


@dataclass(slots=True, eq=False)
class Attempt:
    """One request at one node, sent and not answered."""

    channel: ChannelId
    node: NodeId
    sent_s: float
    """On the clock of the loop."""
    deadline_ms: int
    leader: Leader | None = None
    """Asked as the leader of this term; None: as any replica."""
    may_wait: bool = False
    """It names a position, which others may have reached already."""

    @property
    def sent_ms(self) -> int:
        """The same in whole milliseconds."""
        return int(self.sent_s * 1000)


class Patience:
    """See the module. Pure; ``leader_of`` and ``heard_ms`` return what is known by now."""

    def __init__(
        self,
        settings: ClientSettings,
        leader_of: Callable[[ChannelId], Leader | None],
        heard_ms: Callable[[NodeId], int],
    ) -> None:
        self._settings = settings
        self._leader_of = leader_of
        self._heard_ms = heard_ms

    @classmethod
    def of(cls, context: Context) -> Patience:
        """Return the patience of a client's requests."""

        def heard_ms(node: NodeId) -> int:
            link = context.links.query(node)
            return 0 if link is None else link.heard_ms

        return cls(context.settings, context.topology.leader_of, heard_ms)

    def verdict(self, attempt: Attempt, now_ms: int, *, is_late: bool = False) -> Verdict:
        """Judge an attempt; ``is_late``: this look was planned for ``LOOK_MS`` ago or longer."""
        settings = self._settings
        if now_ms >= attempt.deadline_ms:
            return Verdict.EXPIRED
        waited_ms = now_ms - attempt.sent_ms
        if attempt.leader is not None:
            newest = self._leader_of(attempt.channel)
            if newest is not None and newest.term > attempt.leader.term:
                return Verdict.SUCCEEDED
            return Verdict.OVERDUE if waited_ms >= settings.suspect_ms else Verdict.WAIT
        heard_ms = max(attempt.sent_ms, self._heard_ms(attempt.node))
        if not is_late and now_ms - heard_ms >= settings.hedge_ms:
            return Verdict.SILENT
        is_slow = attempt.may_wait and waited_ms >= settings.suspect_ms
        return Verdict.SLOW if is_slow else Verdict.WAIT

    def next_look_ms(self, attempt: Attempt, now_ms: int) -> int:
        """Return when to judge it again."""
        return max(now_ms + 1, min(now_ms + LOOK_MS, attempt.deadline_ms))

    def is_late(self, planned_ms: int, now_ms: int) -> bool:
        """Return whether a look comes too late to distinguish silence from what was not read
        yet."""
        return now_ms - planned_ms > LOOK_MS


async def reach(link: NodeLink, patience_ms: int) -> bool:
    """Wait for a connection for so long at most; return whether the node can be asked."""
    if link.is_open:
        return True
    try:
        async with asyncio.timeout(max(0, patience_ms) / 1000):
            return await link.open()
    except TimeoutError:
        return False
