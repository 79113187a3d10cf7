"""Judges what this node answers to reads of keys, and keeps what clients found (features N7).

It stands where requests come in and answers leave, so it sees what clients see and nothing of how
an answer came about. What it holds answers against is what it knew when the request came: the
newest committed position that anybody had reported, and what it answered before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from raftstore.audit.finding import EVIDENCE_BYTES_MAX, AuditFinding
from raftstore.audit.judge import Judge
from raftstore.audit.observation import Action, Observation, hash_of_key, hash_of_row
from raftstore.audit.sampling import KeySample
from raftstore.audit.settings import AuditSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.machines import ReplicaRead
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import ChannelKeys, FoundKeys, Get, GetAnswer, GetMany, GetManyAnswer
from raftstore.types import ChannelId, Durability, Seq, node_name

EVENT: Final = "audit_violation"
NODE: Final = "node"
CLIENT: Final = "client"
REQUESTS_MAX: Final = 1_024
"""Requests under way that are watched; of more than that the answers are not judged."""
KEYS_LOOKED_AT: Final = 64
"""Of one part of a request: one that names many keys is not slowed down for all of them."""
MOMENT_MS: Final = 0.001
"""Between two moments of one millisecond."""
REPORTS_PAUSE_MS: Final = 10_000
"""Of what the node finds within this the first is an event, and the others are counted: one cause
has many effects. The same holds for clients by themselves, which may report what they like."""


class KnownCommits(Protocol):
    """The watch of other nodes, as an audit uses it."""

    def known_commit(self, runner: ChannelRunner) -> Seq:
        """Return the highest seq that anybody reported as committed."""


class _Watched(NamedTuple):
    """The watched keys of one part of a request."""

    runner: ChannelRunner
    named: int
    """Keys of the part, watched or not."""
    places: tuple[int, ...]
    keys: tuple[bytes, ...]


class _Asked(NamedTuple):
    """A request that names watched keys."""

    request: Get | GetMany
    began_ms: float
    parts: Mapping[int, _Watched]


class NodeAudit:
    """See the module."""

    def __init__(
        self,
        settings: AuditSettings,
        seed: bytes,
        watch: KnownCommits,
        tell: Callable[..., None],
    ) -> None:
        """``tell`` takes an event."""
        self.settings = settings
        self.judge = Judge(keys_max=settings.keys_max)
        self.reported = 0
        """Violations that clients reported."""
        self._sample = KeySample(settings.keys_per_million / 1_000_000, seed)
        self._is_off = self._sample.is_empty
        self._known_commit = watch.known_commit
        self._tell = tell
        self._asked: dict[tuple[int, int], _Asked] = {}
        """By client and request."""
        self._newest: dict[int, int] = {}
        """The highest request id of each client."""
        self._rotate_at_ms: int | None = None
        self._next_event_ms = dict.fromkeys((NODE, CLIENT), 0)
        """By source: reports of clients keep no finding of the node back."""
        self._last_ms = 0.0

    # --- requests and answers ---------------------------------------------------------------------

    def read_began(
        self, client: int, request: ReplicaRead | GetMany,
        channels: Mapping[ChannelId, ChannelRunner], now_ms: int,
    ) -> None:  # fmt: skip
        """A client asks for keys, or for something that is not judged."""
        if self._is_off or not isinstance(request, Get | GetMany):
            return
        place = client, request.request_id
        if request.request_id <= self._newest.get(client, -1):
            # It may have been used before, and which of them is answered is unknown: none of them
            # is judged. Clients count their requests, so theirs are unique.
            self._asked.pop(place, None)
            return
        self._newest[client] = request.request_id
        if len(self._asked) >= REQUESTS_MAX:
            return
        has, parts = self._sample.has, dict[int, _Watched]()
        named: Sequence[Get | ChannelKeys] = (
            (request,) if isinstance(request, Get) else request.parts
        )
        for number, part in enumerate(named):
            places = [at for at, key in enumerate(part.keys[:KEYS_LOOKED_AT]) if has(key)]
            runner = channels.get(part.channel) if places else None
            if runner is None or not _is_judged(request, runner):
                continue
            keys = tuple([part.keys[at] for at in places])
            parts[number] = _Watched(runner, len(part.keys), tuple(places), keys)
            known = self._known_commit(runner)
            self.judge.committed(runner.channel, runner.name, self._moment(now_ms), known)
        if parts:
            self._asked[place] = _Asked(request, self._moment(now_ms), parts)

    def answered(self, client: int, message: Message, now_ms: int) -> None:
        """An answer leaves."""
        if not self._asked:
            return
        if isinstance(message, GetAnswer):
            asked = self._asked.pop((client, message.request_id), None)
            if asked is not None and 0 in asked.parts:
                self._judge(asked, asked.parts[0], message, now_ms)
        elif isinstance(message, GetManyAnswer):
            self._judge_parts(client, message, now_ms)
        elif isinstance(message, Failed):
            self._asked.pop((client, message.request_id), None)

    def client_gone(self, client: int) -> None:
        """Its requests get no answer."""
        self._newest.pop(client, None)
        for place in [place for place in self._asked if place[0] == client]:
            del self._asked[place]

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Forget a channel: later answers may be of another table or another life of it."""
        self.judge.forget(runner.channel)
        for place, asked in tuple(self._asked.items()):
            if any(part.runner is runner for part in asked.parts.values()):
                del self._asked[place]

    def _judge_parts(self, client: int, message: GetManyAnswer, now_ms: int) -> None:
        place = client, message.request_id
        asked = self._asked.get(place)
        if asked is None:
            return
        left = dict(asked.parts)
        for refused in message.refused:
            left.pop(refused.part, None)
        for found in message.found:
            part = left.pop(found.part, None)
            if part is not None:
                self._judge(asked, part, found, now_ms)
        if left:
            self._asked[place] = asked._replace(parts=left)
        else:
            del self._asked[place]

    def _judge(
        self, asked: _Asked, part: _Watched, answer: GetAnswer | FoundKeys, now_ms: int
    ) -> None:
        if not _fits(part, answer):
            return
        if self._rotate_at_ms is None or now_ms >= self._rotate_at_ms:
            if self._rotate_at_ms is not None:
                self._sample.turn()
                self.judge.rotate()
            self._rotate_at_ms = now_ms + self.settings.rotate_ms
        request, served, runner = asked.request, answer.served, part.runner
        ended_ms = self._moment(now_ms)
        for at, key in zip(part.places, part.keys, strict=True):
            seen = Observation(
                Action.GET,
                hash_of_key(key),
                asked.began_ms,
                ended_ms,
                served.applied_seq,
                answer.seqs[at],
                hash_of_row(answer.values[at]),
                node_name(served.node),
                served.term,
                request.level,
                served.staleness_ms,
                served.lag,
                request.min_seq if isinstance(request, Get) else Seq(0),
                request.max_staleness_ms,
                request.max_lag,
            )
            for finding in self.judge.observe(runner.channel, runner.name, seen):
                self._report(finding, now_ms)

    def _moment(self, now_ms: int) -> float:
        """The present moment, later than any before: within a millisecond the order counts, too."""
        self._last_ms = max(now_ms, self._last_ms + MOMENT_MS)
        return self._last_ms

    # --- findings ---------------------------------------------------------------------------------

    def _report(self, finding: AuditFinding, now_ms: int) -> None:
        if self._may_report(NODE, now_ms):
            self._tell(
                EVENT,
                source=NODE,
                kind=finding.kind.value,
                channel=finding.channel,
                text=finding.text,
                evidence=finding.evidence(),
            )

    def on_report(self, report: ReportViolation, now_ms: int) -> None:
        """A client found something."""
        self.reported += 1
        if self._may_report(CLIENT, now_ms):
            self._tell(
                EVENT,
                source=CLIENT,
                kind=report.kind,
                channel=report.channel,
                text=report.text,
                evidence=report.evidence[:EVIDENCE_BYTES_MAX],
            )

    def _may_report(self, source: str, now_ms: int) -> bool:
        if now_ms < self._next_event_ms[source]:
            return False
        self._next_event_ms[source] = now_ms + REPORTS_PAUSE_MS
        return True

    # --- reports ----------------------------------------------------------------------------------

    def status(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The part of ``raftstore status -o json``; ``events``: the newest one, if any."""
        return {
            "keys_per_million": self.settings.keys_per_million,
            "operations": self.judge.observed,
            "dropped": self.judge.dropped,
            "violations": self.judge.violations,
            "reported": self.reported,
            "last_at_wall_ms": events[0]["at_wall_ms"] if events else None,
        }


def _is_judged(request: Get | GetMany, runner: ChannelRunner) -> bool:
    """Whether an answer says what the log says: not of a pinned state, which may be of long ago,
    nor of a table whose durability lets acknowledged writes be lost (S0.6)."""
    is_pinned = isinstance(request, Get) and request.pin != 0
    return not is_pinned and runner.durable.durability is Durability.FSYNC


def _fits(part: _Watched, answer: GetAnswer | FoundKeys) -> bool:
    """Whether it can be the answer to this part."""
    is_its_channel = answer.served.channel == part.runner.channel
    return is_its_channel and len(answer.seqs) == len(answer.values) == part.named
