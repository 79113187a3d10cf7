"""One read of one channel, from its candidates to an answer or an error.

The router names the candidates; each is asked once at a time (``Attempt``) until ``Patience`` says
to go on to the next. A node that refuses, is lost or stays silent is followed by the next one
within the same read (KLIP-37, KIP-01), so a node that is killed costs a few milliseconds. When all
have failed the round is repeated until the deadline, and the error names a reason per node
(BLOG-21).
A leader is a single candidate, and the next one is its successor.

Gets that share a request (``get_batcher``) come here when that request failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from raftstore.client.context import Context
from raftstore.client.reads.router import Router, RoutingPolicy
from raftstore.client.requests.attempt import Attempt, BuildRequest, Patience, Verdict, reach
from raftstore.client.requests.leader_requests import learn_of_leader
from raftstore.client.requests.outcomes import error_of
from raftstore.errors import (
    ERRORS_BY_CODE,
    DataLossError,
    LagExceededError,
    MachineStoppedError,
    NoLeaderError,
    NotLeaderError,
    NotUpToBoundError,
    OverloadedError,
    QueryError,
    RequestError,
    SnapshotExpiredError,
    TransportError,
    UnknownChannelError,
    UnknownTableError,
    UnsupportedRequestError,
)
from raftstore.policy.routing import no_replica_available
from raftstore.protocol.admin import ContentHashAnswer
from raftstore.protocol.message import Failed
from raftstore.protocol.reads import CountAnswer, GetAnswer, ScanAnswer
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import ChannelId, NodeId, node_name

REFUSED_ROUNDS: Final = 3
"""When every replica is alive and has refused for its lag this often in a row, the read is refused:
more patience is for nodes that may come back, not for a bound that nobody meets. So it is when
those that are alive have refused for themselves."""
OWN_REFUSALS: Final = (DataLossError, SnapshotExpiredError, UnsupportedRequestError)
"""Final at one replica, and only there: each keeps states and changes for itself, may have been
built anew, and is upgraded when its turn comes."""


class _Read:
    """One read: who is being asked, and why the others did not serve it."""

    def __init__(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        what: str,
        policy: RoutingPolicy,
        hosts: Mapping[str, str] | None,
    ) -> None:
        self.policy = policy
        self.channel = channel
        self.build = build
        self.deadline_ms = deadline_ms
        self.what = what
        self.pending: dict[asyncio.Future[ClientAnswer], Attempt] = {}
        self.hosts: dict[str, str] = dict(hosts or {})
        self.refusals: dict[NodeId, RequestError] = {}
        self.refused_rounds = 0
        self.leader_error: RequestError | None = None
        """Why the leader asked last did not serve it; None: it did not answer."""
        self.stopped: MachineStoppedError | None = None
        """A leader's machine stands at a command: no patience short of a person's helps."""

    def failed(self, node: NodeId, reason: str) -> None:
        """A node did not serve it, and did not refuse it either."""
        self.hosts[node_name(node)] = reason
        self.refusals.pop(node, None)

    def attempt_at(self, node: NodeId) -> Attempt | None:
        """Return what is under way at a node."""
        return next((each for each in self.pending.values() if each.node == node), None)

    def leave(self, attempt: Attempt, reason: str) -> None:
        """Wait for an answer no longer."""
        for answer, each in tuple(self.pending.items()):
            if each is attempt:
                del self.pending[answer]
                answer.cancel()
        self.failed(attempt.node, reason)
        self.leader_error = None

    def is_final(self, refusal: RequestError) -> bool:
        """Whether no other node need be asked."""
        if self.policy.at_leader:
            # It has waited for the position all the time there was.
            return not refusal.retriable or isinstance(refusal, NotUpToBoundError)
        if self.policy.takes_newer and isinstance(refusal, SnapshotExpiredError):
            return True
        return not refusal.retriable and not isinstance(refusal, OWN_REFUSALS)

    def own_refusal(self) -> RequestError | None:
        """Why a replica cannot serve it, once none that is there could or might do so yet."""
        refusals = list(self.refusals.values())
        is_all = all(isinstance(refusal, OWN_REFUSALS) for refusal in refusals)
        return refusals[0] if refusals and is_all and not self.pending else None


class ReadEngine:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.router = Router(context)
        self.patience = Patience.of(context)

    async def ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        *,
        what: str,
        policy: RoutingPolicy,
        hosts: Mapping[str, str] | None = None,
    ) -> ClientAnswer:
        """Return the first good answer; of two that were hedged the newer one.

        ``hosts``: which nodes did not serve it before, and why.

        Raises at the deadline NoReplicaAvailableError (NotUpToBoundError when it was a position
        that was waited for), for a leader NoLeaderError, QueryError or its last refusal; and at
        once what no node can answer: a request that is too large, an unknown table, a bound that
        no replica meets although all of them are alive, a state that none of them keeps.
        """
        context = self._context
        backoff = context.backoff()
        read = _Read(channel, build, deadline_ms, what, policy, hosts)
        try:
            while context.now_ms() < read.deadline_ms:
                context.check_open()
                replicas = context.topology.readable_of(channel)
                if not replicas:
                    raise UnknownTableError(f"{what}: the table was dropped")
                leader = self.router.leader(channel, policy)
                candidates = self.router.candidates(channel, policy)
                if not candidates:
                    await self._await_leader(read)
                    continue
                answer = await self._round(read, candidates)
                if answer is not None:
                    return answer
                if _is_refused(read, replicas):
                    break
                successor = self.router.leader(channel, policy)
                if successor is not None and successor != leader:
                    continue
                context.discovery.want_leaders()
                pause_ms = min(backoff.next_ms(), read.deadline_ms - context.now_ms())
                answer = await self._next_answer(read, pause_ms)
                if answer is not None:
                    return answer
        finally:
            for silent in read.pending:
                silent.cancel()
        raise _failure(read)

    # --- one round over the candidates ------------------------------------------------------------

    async def _await_leader(self, read: _Read) -> None:
        context = self._context
        if read.leader_error is None:
            read.leader_error = NoLeaderError(f"{read.what}: no leader is known; retry later")
        until_ms = min(read.deadline_ms, context.now_ms() + context.settings.suspect_ms)
        await context.discovery.news(until_ms)

    async def _round(self, read: _Read, candidates: tuple[NodeId, ...]) -> ClientAnswer | None:
        """Ask one candidate after the other; None when all have failed or stay silent."""
        if read.policy.hedge and len(candidates) > 1:
            answer = await self._hedged(read, candidates[:2])
            if answer is not None:
                return answer
            candidates = candidates[2:]
        for node in candidates:
            # One that is silent is not asked again, and still may answer.
            if read.attempt_at(node) is None and await self._send(read, node):
                answer = await self._until_left(read, node)
                if answer is not None:
                    return answer
        return None

    async def _hedged(self, read: _Read, nodes: tuple[NodeId, ...]) -> ClientAnswer | None:
        """KLIP-47: of the two best the one that has applied more; the slower gets a moment."""
        settings = self._context.settings
        for node in nodes:
            if read.attempt_at(node) is None:
                await self._send(read, node)
        answers: list[ClientAnswer] = []
        patience_ms = settings.suspect_ms
        while read.pending and len(answers) < len(nodes):
            left_ms = read.deadline_ms - self._context.now_ms()
            asked = len(read.pending)
            answer = await self._next_answer(read, min(patience_ms, left_ms))
            if answer is not None:
                answers.append(answer)
                patience_ms = settings.hedge_ms
            elif len(read.pending) == asked:
                break  # neither said anything
        return max(answers, key=_applied_seq, default=None)

    async def _send(self, read: _Read, node: NodeId) -> bool:
        context = self._context
        link = context.links.query(node)
        if link is None:
            self._unreachable(read, node, "it is not known to the cluster")
            return False
        leader = self.router.leader(read.channel, read.policy)
        left_ms = read.deadline_ms - context.now_ms()
        # A leader has no substitute: its connection is waited for as long as there is time.
        patience_ms = left_ms if leader is not None else min(context.settings.warm_up_ms, left_ms)
        if not link.is_open and not await reach(link, patience_ms):
            reason = link.last_error if link.is_settled else "no connection yet"
            self._unreachable(read, node, reason)
            return False
        left_ms = context.node_patience_ms(read.deadline_ms)
        try:
            answer = link.request(lambda request_id: read.build(request_id, left_ms))
        except (TransportError, OverloadedError) as error:
            self._unreachable(read, node, str(error))
            return False
        read.pending[answer] = Attempt(
            read.channel,
            node,
            asyncio.get_running_loop().time(),
            read.deadline_ms,
            leader,
            may_wait=read.policy.may_wait,
        )
        return True

    async def _until_left(self, read: _Read, node: NodeId) -> ClientAnswer | None:
        """Wait for an answer; None when the node just asked has failed, or is left."""
        context = self._context
        while (attempt := read.attempt_at(node)) is not None:
            now_ms = context.now_ms()
            look_ms = self.patience.next_look_ms(attempt, now_ms)
            answer = await self._next_answer(read, look_ms - now_ms)
            if answer is not None:
                return answer
            if read.attempt_at(node) is None:
                return None
            now_ms = context.now_ms()
            is_late = self.patience.is_late(look_ms, now_ms)
            verdict = self.patience.verdict(attempt, now_ms, is_late=is_late)
            if verdict is Verdict.OVERDUE:
                context.discovery.want_leaders()
            elif verdict is Verdict.SILENT:
                context.book.failed(read.channel, node, now_ms)
            if verdict is Verdict.EXPIRED:
                return None
            if verdict is Verdict.SUCCEEDED:
                read.leave(attempt, verdict.reason)
                return None
            if verdict in (Verdict.SILENT, Verdict.SLOW) and read.policy.hedge is not False:
                return None
        return None

    # --- answers ----------------------------------------------------------------------------------

    async def _next_answer(self, read: _Read, patience_ms: int) -> ClientAnswer | None:
        """Wait for an answer of any node asked; None after a failure, or when patience ends.

        Raises a refusal that every node would repeat.
        """
        patience_s = max(0, patience_ms) / 1000
        if not read.pending:
            await asyncio.sleep(patience_s)
            return None
        done, _ = await asyncio.wait(
            read.pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        for future in done:
            attempt = read.pending.pop(future)
            try:
                answer = future.result()
            except TransportError as error:
                self._lost(read, attempt, str(error))
                continue
            if not isinstance(answer, Failed):
                if attempt.leader is None:
                    took_s = asyncio.get_running_loop().time() - attempt.sent_s
                    self._context.book.took(attempt.node, took_s * 1000)
                return answer
            self._refused(read, attempt, answer)
        return None

    def _refused(self, read: _Read, attempt: Attempt, failed: Failed) -> None:
        """Learn from a refusal; raise it if no other node need be asked."""
        node = attempt.node
        refusal = error_of(
            failed.code, failed.message, leader_hint=failed.leader_hint, hosts=failed.hosts
        )
        if attempt.leader is None:
            self._failed(read, node, failed.message)
        else:
            read.failed(node, str(refusal))
            learn_of_leader(self._context, read.channel, attempt.leader, refusal)
        read.refusals[node] = read.leader_error = refusal
        if isinstance(refusal, MachineStoppedError):
            wait_ms = read.policy.stopped_wait_ms
            if read.stopped is None and wait_ms is not None:
                read.deadline_ms = min(read.deadline_ms, self._context.now_ms() + wait_ms)
            read.stopped = refusal
        # What a newer node calls by a name that is not known here is its own refusal alone.
        if (attempt.leader is not None or failed.code in ERRORS_BY_CODE) and read.is_final(refusal):
            raise refusal

    def _unreachable(self, read: _Read, node: NodeId, reason: str) -> None:
        """Nothing was sent to the node."""
        if read.policy.at_leader:
            read.failed(node, reason)
            read.leader_error = NoLeaderError(
                f"{read.what}: the leader {node_name(node)} cannot be reached ({reason}); "
                "retry later"
            )
        else:
            self._failed(read, node, reason)

    def _lost(self, read: _Read, attempt: Attempt, reason: str) -> None:
        """The connection broke; there will be no answer."""
        if attempt.leader is None:
            self._failed(read, attempt.node, reason)
        else:
            read.failed(attempt.node, reason)
            read.leader_error = None

    def _failed(self, read: _Read, node: NodeId, reason: str) -> None:
        read.failed(node, reason)
        self._context.book.failed(read.channel, node, self._context.now_ms())


def _is_refused(read: _Read, replicas: tuple[NodeId, ...]) -> bool:
    """Whether no patience helps: a named replica is not the one that may serve, or every replica
    is alive and too far behind, and was so for several rounds; or none can that is there."""
    if read.policy.at_leader:
        return False
    only = read.policy.only
    if only is not None:
        replicas = (only,)
        if isinstance(read.refusals.get(only), NotLeaderError | UnknownChannelError):
            return True
    refusals = [read.refusals.get(node) for node in replicas]
    is_lagging = all(isinstance(refusal, LagExceededError) for refusal in refusals)
    is_own = read.own_refusal() is not None
    if is_own and None not in refusals:
        return True
    read.refused_rounds = read.refused_rounds + 1 if is_lagging or is_own else 0
    return read.refused_rounds >= REFUSED_ROUNDS


def _failure(read: _Read) -> RequestError:
    """The error to raise when no node served the read in time."""
    is_at_leader = read.policy.at_leader
    own = None if is_at_leader else read.own_refusal()
    if own is not None:
        return own
    for attempt in read.pending.values():
        # Asked again just now: what it refused for before says more than that the time is up.
        if is_at_leader or attempt.node not in read.refusals:
            read.failed(attempt.node, Verdict.EXPIRED.reason)
    reasons = "; ".join(f"{host}: {reason}" for host, reason in sorted(read.hosts.items()))
    if is_at_leader:
        if read.stopped is not None:  # it says more than how the last of many attempts ended
            return read.stopped
        if read.leader_error is not None and not read.pending:
            return read.leader_error
        return QueryError(
            f"{read.what}: no answer before the deadline ({reasons}); retry later",
            hosts=read.hosts,
        )
    if any(isinstance(refusal, NotUpToBoundError) for refusal in read.refusals.values()):
        return NotUpToBoundError(
            f"{read.what}: the position was not reached before the deadline ({reasons}); "
            "retry with more time, or check where the position comes from",
            hosts=read.hosts,
        )
    codes = {node_name(node): refusal.code for node, refusal in read.refusals.items()}
    return no_replica_available(read.what, read.hosts, codes)


def _applied_seq(answer: ClientAnswer) -> int:
    """How new the state is that an answer was read from."""
    if isinstance(answer, GetAnswer | ScanAnswer | CountAnswer | ContentHashAnswer):
        return answer.served.applied_seq
    return 0
