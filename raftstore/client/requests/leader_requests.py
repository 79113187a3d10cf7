"""Commands and questions to the leader of a channel: follows hints, never waits past the deadline.

For requests that may be repeated (table commands are compare-and-set). Reads of rows go through
``client.reads``, writes of rows through ``publisher``, which knows about guids.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from raftstore.client.cluster.topology import Leader
from raftstore.client.context import Context
from raftstore.client.requests.attempt import Attempt, BuildRequest, Patience, Verdict, reach
from raftstore.client.requests.outcomes import error_of
from raftstore.errors import (
    ConnectionInDoubtError,
    NoLeaderError,
    NotLeaderError,
    NotUpToBoundError,
    OverloadedError,
    QueryError,
    RequestError,
    StoreTooOldError,
    TableExistsError,
    TransportError,
    UnknownChannelError,
    UnknownTableError,
)
from raftstore.protocol.message import Failed
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import ChannelId, NodeId, Outcome, node_name


@dataclass(slots=True)
class Asked:
    """How a request went so far, and what to report when the time is up."""

    what: str
    is_read: bool
    level: int = 0
    """A node below this protocol level would not do it as it is meant."""
    is_in_doubt: bool = False
    """A node may have begun to execute it without saying how it ended."""
    error: RequestError | None = None
    hosts: dict[str, str] = field(default_factory=dict)

    def refused(self, node: NodeId, error: RequestError) -> None:
        """A node answered that it did not do it, or does not know whether it did."""
        self.hosts[node_name(node)] = str(error)
        self.is_in_doubt = self.is_in_doubt or error.outcome is Outcome.UNKNOWN
        self.error = error

    def unreachable(self, node: NodeId, reason: str) -> None:
        """Nothing was sent to the node."""
        self.hosts[node_name(node)] = reason
        self.error = NoLeaderError(
            f"{self.what}: the leader {node_name(node)} cannot be reached ({reason}); retry later"
        )

    def unanswered(self, node: NodeId, reason: str) -> None:
        """Note that a request was sent to a node, and will get no answer."""
        self.hosts[node_name(node)] = reason
        self.is_in_doubt = True
        self.error = None

    def final(self, error: RequestError) -> RequestError:
        """Return what to raise for a refusal that ends the request.

        A table that exists, or is gone, may be the work of an attempt without answer: the caller
        judges that. Any other refusal leaves an earlier attempt in doubt.
        """
        is_telling = isinstance(error, TableExistsError | UnknownTableError)
        if not self.is_in_doubt or self.is_read or is_telling:
            return error
        return error if error.outcome is Outcome.UNKNOWN else self.outcome()

    def outcome(self) -> RequestError:
        """Return what to raise at the deadline."""
        reasons = "; ".join(f"{host}: {reason}" for host, reason in sorted(self.hosts.items()))
        if self.is_in_doubt and not self.is_read:
            return ConnectionInDoubtError(
                f"{self.what}: whether it was done is unknown ({reasons}); look before repeating it"
            )
        if self.error is not None:
            return self.error
        return QueryError(
            f"{self.what}: no answer before the deadline ({reasons}); retry later", hosts=self.hosts
        )


class LeaderRequests:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._patience = Patience.of(context)

    async def ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        *,
        asked: Asked,
        is_repeatable: bool = True,
    ) -> ClientAnswer:
        """Return the leader's answer.

        Raises ``asked.outcome()`` at the deadline, and a refusal that is final at once.
        ``is_repeatable=False``: after a request without answer raise ConnectionInDoubtError instead
        of asking again.
        """
        context = self._context
        backoff = context.backoff()
        while (now_ms := context.now_ms()) < deadline_ms:
            if asked.is_in_doubt and context.links.is_closed:
                break  # the client was closed: say what is unknown, not that nothing happened
            context.check_open()
            if not context.topology.replicas_of(channel):
                raise UnknownTableError(f"{asked.what}: the table was dropped")
            leader = context.topology.leader_of(channel)
            if leader is None:
                if asked.error is None:
                    asked.error = NoLeaderError(f"{asked.what}: no leader is known; retry later")
                await context.discovery.news(min(deadline_ms, now_ms + context.settings.suspect_ms))
                continue
            answer = await self._try(channel, leader, build, deadline_ms, asked)
            if answer is not None and not isinstance(answer, Failed):
                return answer
            if answer is not None:
                self._judge(channel, leader, answer, asked)
            if asked.is_in_doubt and not is_repeatable:
                break
            if context.topology.leader_of(channel) in (None, leader):
                pause_ms = min(backoff.next_ms(), deadline_ms - context.now_ms())
                context.discovery.want_leaders()
                await asyncio.sleep(max(0, pause_ms) / 1000)
        raise asked.outcome()

    async def _try(
        self,
        channel: ChannelId,
        leader: Leader,
        build: BuildRequest,
        deadline_ms: int,
        asked: Asked,
    ) -> ClientAnswer | None:
        """Return the answer of this leader; None when it was lost, succeeded, or too late."""
        context = self._context
        link = context.links.query(leader.node)
        if link is None or not await reach(link, deadline_ms - context.now_ms()):
            reason = "its address is not known" if link is None else link.last_error
            asked.unreachable(leader.node, reason)
            return None
        if link.level < asked.level:
            raise asked.final(
                StoreTooOldError(
                    f"{asked.what}: it needs level {asked.level}, but the leader "
                    f"{node_name(leader.node)} is at level {link.level}; upgrade this node"
                )
            )
        left_ms = max(1, deadline_ms - context.now_ms())
        if asked.is_read:
            left_ms = context.node_patience_ms(deadline_ms)
        try:
            answer = link.request(lambda request_id: build(request_id, left_ms))
        except (TransportError, OverloadedError) as error:
            asked.unreachable(leader.node, str(error))
            return None
        sent_s = asyncio.get_running_loop().time()
        attempt = Attempt(channel, leader.node, sent_s, deadline_ms, leader)
        try:
            while not answer.done():
                now_ms = context.now_ms()
                look_ms = self._patience.next_look_ms(attempt, now_ms)
                await asyncio.wait({answer}, timeout=(look_ms - now_ms) / 1000)
                if answer.done():
                    break
                verdict = self._patience.verdict(attempt, context.now_ms())
                if verdict in (Verdict.EXPIRED, Verdict.SUCCEEDED):
                    asked.unanswered(leader.node, verdict.reason)
                    return None
                if verdict is Verdict.OVERDUE:
                    context.discovery.want_leaders()
            return answer.result()
        except TransportError as error:
            asked.unanswered(leader.node, str(error))
            return None
        finally:
            answer.cancel()

    def _judge(self, channel: ChannelId, leader: Leader, failed: Failed, asked: Asked) -> None:
        """Learn from a refusal; raise it if asking again cannot help."""
        context = self._context
        error = error_of(
            failed.code, failed.message, leader_hint=failed.leader_hint, hosts=failed.hosts
        )
        asked.refused(leader.node, error)
        if learn_of_leader(context, channel, leader, error):
            return
        if not error.retriable or isinstance(error, NotUpToBoundError):
            raise asked.final(error)  # it has waited for the position all the time there was


def learn_of_leader(
    context: Context, channel: ChannelId, leader: Leader, refusal: RequestError
) -> bool:
    """Note what a refusal of ``leader`` says of who leads; return whether it says that at all."""
    if not isinstance(refusal, NotLeaderError | UnknownChannelError):
        return False
    now_ms, hint = context.now_ms(), refusal.leader_hint
    context.topology.refute(channel, leader, now_ms)
    if hint is not None and hint != leader.node:
        context.topology.hint(channel, Leader(hint, leader.term), now_ms)
    return True
