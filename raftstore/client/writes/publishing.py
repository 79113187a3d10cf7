"""One write from guid to outcome. Pure: no clock, no sockets, no randomness of its own.

An attempt is one PubMsg addressed to one leader in one term (S5.6). While it is outstanding nothing
else is sent for the guid, unless a newer leader is learned of or the silence lasts too long; both
leave the attempt behind *in doubt*. The rules, each in one place below:

* an answer NOT_APPLIED settles its attempt and nothing else;
* once one attempt was in doubt, the request stays UNKNOWN until some answer is OK (S5.6, S4.1);
* every attempt carries the same guid, so it is applied once at most (S4.5).

The driver feeds what happened (``sent``, ``unsent``, ``on_ack``, ``on_reject``, ``on_lost``) and
asks ``poll`` what to do, with what it knows of the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftstore.client.cluster.backoff import Backoff
from raftstore.client.cluster.topology import Leader
from raftstore.client.requests.outcomes import error_of
from raftstore.errors import (
    ConnectionInDoubtError,
    GuidExpiredError,
    NoLeaderError,
    NotLeaderError,
    RequestError,
    RequestTimeoutError,
)
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.types import Guid, NodeId, Outcome, node_name


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """Send to every replica, addressed to this leader; report ``sent`` or ``unsent``."""

    leader: Leader
    attempt: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until_ms``, an answer, or news about the leader.

    ``wants_leader``: ask the cluster who leads the channel.
    """

    until_ms: int
    wants_leader: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome; it never changes."""

    result: PubAck | RequestError


Action = SendAttempt | Wait | Finished


@dataclass(frozen=True, slots=True)
class PublishTimes:
    """Times of one publish in ms; see ``ClientSettings``."""

    deadline_ms: int
    last_call_ms: int
    grace_ms: int
    suspect_ms: int
    resend_ms: int
    seek_ms: int


@dataclass(slots=True)
class _Outstanding:
    leader: Leader
    attempt: int
    sent_ms: int
    suspect_at_ms: int


class Publishing:
    """State of one publish; see the module. ``what`` names the channel in messages, ``write_name``
    the write, as ``raftstore fate`` takes it."""

    __slots__ = (
        "_attempts",
        "_backoff",
        "_doubt",
        "_is_leaderless",
        "_not_before_ms",
        "_obstacle",
        "_outstanding",
        "_refusal",
        "_result",
        "_times",
        "_tried",
        "_what",
        "_write_name",
        "guid",
    )

    def __init__(
        self, *, guid: Guid, write_name: str, what: str, times: PublishTimes, backoff: Backoff
    ) -> None:
        self.guid = guid
        self._write_name = write_name
        self._what = what
        self._times = times
        self._backoff = backoff
        self._attempts = 0
        self._outstanding: _Outstanding | None = None
        self._doubt: RequestError | None = None
        self._refusal: RequestError | None = None
        self._obstacle = "no node was asked yet"
        self._is_leaderless = False
        self._tried: Leader | None = None
        self._not_before_ms = 0
        self._result: PubAck | RequestError | None = None

    @property
    def addressed(self) -> Leader | None:
        """The leader that the outstanding attempt is addressed to; None while there is none."""
        return None if self._outstanding is None else self._outstanding.leader

    @property
    def is_certainly_not_applied(self) -> bool:
        """Nothing of it is under way: what was sent, if anything, was refused."""
        return self._result is None and self._outstanding is None and self._doubt is None

    @property
    def trouble(self) -> str:
        """The reason of the wait, in a few words."""
        if self._outstanding is not None:
            return f"{node_name(self._outstanding.leader.node)} has not answered yet"
        return str(self._doubt or self._refusal or self._obstacle)

    # --- what happened ---------------------------------------------------------------------------

    def doubt(self, reason: str) -> None:
        """An earlier call sent attempts of it, and what became of them is not known (S5.6)."""
        assert self._attempts == 0, "attempts of this call are under way"
        self._attempts = 1
        self._doubt = ConnectionInDoubtError(reason)

    def sent(self, leader: Leader, now_ms: int) -> None:
        """The attempt is on its way to its leader."""
        assert self._outstanding is None
        self._tried = leader
        suspect_at_ms = now_ms + self._times.suspect_ms
        self._outstanding = _Outstanding(leader, self._attempts, now_ms, suspect_at_ms)
        self._attempts += 1

    def unsent(self, leader: Leader, reason: str, now_ms: int) -> None:
        """No byte of the attempt left: there is no connection to its leader."""
        self._obstacle = f"the leader {node_name(leader.node)} cannot be reached: {reason}"
        self._tried = leader
        self._not_before_ms = now_ms + self._backoff.next_ms()

    def on_reachable(self, node: NodeId) -> None:
        """A connection to the node was made: no need to wait out the pause."""
        if self._tried is not None and self._tried.node == node:
            self._not_before_ms = 0

    def on_ack(self, ack: PubAck) -> None:
        """Committed, by whichever attempt; also late, also after doubt (S4.4)."""
        if self._result is None:
            self._result = ack
            self._outstanding = None

    def on_reject(self, node: NodeId, reject: PubReject, now_ms: int) -> Leader | None:
        """A node answered the attempt that is outstanding at it; others were settled before.

        Returns whom it refused as; None when the answer is of another attempt or node.
        """
        outstanding = self._outstanding
        if self._result is not None or outstanding is None or outstanding.leader.node != node:
            return None
        is_for_good = reject.code == GuidExpiredError.code  # true of all attempts, and in doubt
        if reject.attempt != outstanding.attempt and not is_for_good:
            return None  # S12: a late answer to an earlier attempt, which is in doubt already
        self._outstanding = None
        error = error_of(reject.code, str(reject.message), leader_hint=reject.leader_hint)
        if error.outcome is Outcome.UNKNOWN:
            self._doubt = error  # S5.6: from here on only an OK settles the request
        else:
            self._refusal = error
        if error.retriable:
            self._not_before_ms = now_ms + self._backoff.next_ms()
        else:
            self._result = self._settled(error)
        return outstanding.leader

    def on_lost(self, node: NodeId, reason: str, now_ms: int) -> None:
        """The connection to a node ended: whether it took the attempt is unknown."""
        outstanding = self._outstanding
        if self._result is None and outstanding is not None and outstanding.leader.node == node:
            self._leave_in_doubt(f"the connection to {node_name(node)} was lost ({reason})")
            self._not_before_ms = now_ms + self._backoff.next_ms()

    def give_up(self, reason: RequestError) -> None:
        """The caller stops here; the outcome is what is known now."""
        assert reason.outcome is Outcome.NOT_APPLIED
        if self._result is None:
            if self._outstanding is not None:
                self._leave_in_doubt(str(reason))
            self._result = self._settled(reason)

    # --- what to do ------------------------------------------------------------------------------

    def poll(self, now_ms: int, leader: Leader | None) -> Action:
        """Return what to do at ``now_ms`` when ``leader`` is the newest one known."""
        if self._result is None and now_ms >= self._times.deadline_ms:
            self._result = self._at_deadline()
        if self._result is not None:
            return Finished(self._result)
        outstanding = self._outstanding
        if outstanding is not None:
            waiting = self._poll_outstanding(outstanding, now_ms, leader)
            if waiting is not None:
                return waiting
        self._is_leaderless = leader is None
        if leader is None:
            self._obstacle = "no leader is known"
            return self._wait(now_ms, now_ms + self._times.seek_ms, wants_leader=True)
        if leader == self._tried and now_ms < self._not_before_ms:
            return self._wait(now_ms, self._not_before_ms, wants_leader=True)
        is_certain = self._refusal is not None and self._doubt is None
        if is_certain and now_ms >= self._times.deadline_ms - self._times.last_call_ms:
            # One more attempt would hardly be answered in time, and leave everything in doubt.
            return self._wait(now_ms, self._times.deadline_ms, wants_leader=False)
        return SendAttempt(leader, self._attempts)

    def _poll_outstanding(
        self, outstanding: _Outstanding, now_ms: int, leader: Leader | None
    ) -> Wait | None:
        """Return how long to wait for the answer; None when the attempt was given up."""
        addressed = outstanding.leader
        name = node_name(addressed.node)
        grace_ends_ms = 0
        if leader is not None and leader.term > addressed.term:
            # A deposed leader that lives answers in a moment, and then nothing is in doubt.
            grace_ends_ms = outstanding.sent_ms + self._times.grace_ms
            if now_ms >= grace_ends_ms:
                self._leave_in_doubt(
                    f"{name} was succeeded in term {leader.term} before it answered"
                )
                return None
        resend_at_ms = outstanding.sent_ms + self._times.resend_ms
        if now_ms >= resend_at_ms:
            self._leave_in_doubt(f"{name} did not answer within {self._times.resend_ms} ms")
            self._not_before_ms = 0
            return None
        is_suspect = now_ms >= outstanding.suspect_at_ms
        if is_suspect:
            outstanding.suspect_at_ms = now_ms + self._times.suspect_ms
        until_ms = min(outstanding.suspect_at_ms, resend_at_ms, grace_ends_ms or resend_at_ms)
        return self._wait(now_ms, until_ms, wants_leader=is_suspect)

    def _wait(self, now_ms: int, until_ms: int, *, wants_leader: bool) -> Wait:
        return Wait(max(now_ms + 1, min(until_ms, self._times.deadline_ms)), wants_leader)

    # --- outcomes --------------------------------------------------------------------------------

    def _leave_in_doubt(self, reason: str) -> None:
        self._outstanding = None
        self._doubt = ConnectionInDoubtError(reason)  # S5.6: sent, and no answer

    def _settled(self, error: RequestError) -> RequestError:
        """Return the final error of a request whose newest attempt ended with ``error``."""
        # S5.6: a refusal of this attempt says nothing about an earlier one that is in doubt.
        if self._doubt is None:
            return error
        is_doubt_itself = self._doubt is error
        return self._unknown(str(error) if is_doubt_itself else f"{self._doubt}; then: {error}")

    def _at_deadline(self) -> RequestError:
        if self._outstanding is not None and self._doubt is None:
            name = node_name(self._outstanding.leader.node)
            self._leave_in_doubt(f"{name} did not answer before the deadline")
        if self._doubt is not None:
            return self._unknown(str(self._doubt))
        if self._refusal is not None:
            # Where a leader was deposed, "there is none now" says more than "not I".
            if isinstance(self._refusal, NotLeaderError) and self._is_leaderless:
                return NoLeaderError(f"{self._what}: no leader before the deadline; retry later")
            return self._refusal
        return RequestTimeoutError(
            f"{self._what}: nothing was sent before the deadline, {self._obstacle}; retry later"
        )

    def _unknown(self, reason: str) -> RequestError:
        assert self._doubt is not None
        kind = type(self._doubt)
        attempts = "attempt" if self._attempts == 1 else "attempts"
        error = kind(
            f"{self._what}: the outcome of the write is unknown after {self._attempts} "
            f"{attempts}: {reason}; ask what became of it: raftstore fate {self._write_name}",
            leader_hint=self._doubt.leader_hint,
        )
        error.retriable = self._doubt.retriable
        return error
