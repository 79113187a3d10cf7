"""Clients of a simulated world: writers with retries under one GUID, and readers of every level.

They use only what real clients may: answers, hints, deadlines. Outcomes are recorded the way a
checker must see them: OK, NOT_APPLIED, UNKNOWN (S4, S5.6).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from raftstore.errors import RequestError
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_conditional, encode_mark, encode_rows
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.reads import Consistency, Get, GetAnswer, Served, row_read
from raftstore.rows.sealing import seal, unseal
from raftstore.testing.invariants import InvariantError
from raftstore.types import (
    ChannelId,
    Guid,
    Level,
    NodeId,
    Outcome,
    RecordKind,
    Seq,
    Term,
    make_guid,
)

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster

ATTEMPT_TIMEOUT_MS = 400.0
OPERATION_DEADLINE_MS = 3_000.0
RETRY_PAUSE_MS = 30.0
GIVE_UP_PERCENT = 30
"""Writes given up at the first answer that says they are certainly not applied: only then can the
oracle hold that answer to its word (S5.6)."""


def _error_codes() -> dict[str, type[RequestError]]:
    """Code -> class, for every RequestError there is."""
    found: dict[str, type[RequestError]] = {}
    pending: list[type[RequestError]] = [RequestError]
    while pending:
        kind = pending.pop()
        found[kind.code] = kind
        pending.extend(kind.__subclasses__())
    return found


ERROR_BY_CODE = _error_codes()


@dataclass(slots=True)
class Outcomes:
    """Counts of finished operations."""

    ok: int = 0
    not_applied: int = 0
    unknown: int = 0
    conflicts: int = 0
    reads_ok: int = 0
    reads_refused: int = 0
    started: int = 0

    @property
    def finished(self) -> int:
        """Operations with an outcome."""
        return self.ok + self.not_applied + self.unknown + self.reads_ok + self.reads_refused


@dataclass(slots=True)
class _Write:
    channel: ChannelId
    guid: Guid
    kind: RecordKind
    payload: bytes
    rows: int
    digest: bytes
    deadline_ms: float
    after_seq: Seq
    """What was known to be committed when the write began: the proof of its age (S4.5)."""
    attempt: int = 0
    in_doubt: bool = False
    is_duplicate_check: bool = False
    tried: dict[NodeId, None] = field(default_factory=dict)


class SimWriter:
    """One producer session, one write at a time."""

    def __init__(self, cluster: SimCluster, index: int, outcomes: Outcomes) -> None:
        self.name = f"writer{index}"
        self.handle = 1 + index
        self._cluster = cluster
        self._rng = cluster.rng
        self._outcomes = outcomes
        self._session = self._rng.randbytes(8)
        self._counter = 0
        self._write: _Write | None = None
        self._attempt_id = 0
        self._last_ok: tuple[_Write, Seq] | None = None
        self._known_seq: dict[bytes, Seq] = {}
        self._acked_seq: dict[ChannelId, Seq] = {}
        self.is_stopped = False
        cluster.add_client(self.name, self.handle, self._on_message)

    def start(self) -> None:
        """Begin writing after a moment."""
        self._pause()

    @property
    def is_idle(self) -> bool:
        """No write is open."""
        return self._write is None

    def write_to(self, channel: ChannelId) -> None:
        """One write there, now; until it has an outcome this writer is not idle."""
        assert self._write is None
        self._outcomes.started += 1
        deadline = self._cluster.scheduler.now_ms + OPERATION_DEADLINE_MS
        self._write = self._new_write(channel, deadline)
        self._attempt()

    def _pause(self) -> None:
        self._cluster.scheduler.after(self._rng.uniform(5.0, 60.0), self._begin)

    def _begin(self) -> None:
        if self.is_stopped or self._write is not None:
            return
        cluster, rng = self._cluster, self._rng
        channels = cluster.table_channels
        if not channels:
            self._pause()
            return
        self._outcomes.started += 1
        deadline = cluster.scheduler.now_ms + OPERATION_DEADLINE_MS
        again = self._last_ok
        if again is not None and rng.random() * 100 < cluster.options.duplicate_percent:
            old = again[0]
            self._write = _Write(
                old.channel, old.guid, old.kind, old.payload, old.rows, old.digest, deadline,
                old.after_seq, attempt=old.attempt + 1, in_doubt=True, is_duplicate_check=True,
            )  # fmt: skip
        else:
            self._write = self._new_write(rng.choice(channels), deadline)
        self._attempt()

    def _new_write(self, channel: ChannelId, deadline: float) -> _Write:
        rng, options = self._rng, self._cluster.options
        self._counter += 1
        guid = make_guid(self._session, self._counter)
        value = guid + rng.randbytes(4)
        if options.many_bounds and self._counter % 8 == 0:
            kind, rows = RecordKind.BATCH_MARK, 1
            payload = encode_mark(self.name, self._counter // 16)  # each one again, as replays are
        elif rng.random() * 100 < options.conditional_percent:
            key = self._key()
            expected = rng.choice((Seq(0), self._known_seq.get(key, Seq(0))))
            kind, rows = RecordKind.CONDITIONAL, 1
            payload = encode_conditional(key, seal(key, value), expected)
        else:
            rows = rng.randint(1, options.rows_per_write_max)
            pairs = {}
            for _ in range(rows):
                key = self._key()
                pairs[key] = None if rng.random() < 0.1 else seal(key, value)
            kind, rows = RecordKind.ROWS, len(pairs)
            payload = encode_rows(pairs.items())
        digest = hashlib.blake2b(payload, digest_size=16).digest()
        after_seq = self._acked_seq.get(channel, Seq(0))
        return _Write(channel, guid, kind, payload, rows, digest, deadline, after_seq)

    def _key(self) -> bytes:
        return b"k%03d" % self._rng.randrange(self._cluster.options.keys)

    def _attempt(self) -> None:
        write, cluster = self._write, self._cluster
        if write is None:
            return
        if cluster.scheduler.now_ms >= write.deadline_ms:
            self._finish(Outcome.UNKNOWN if write.in_doubt else Outcome.NOT_APPLIED)
            return
        found = cluster.believed_leader(write.channel)
        if found is None:
            cluster.scheduler.after(RETRY_PAUSE_MS, self._attempt)
            return
        leader, term = found
        self._attempt_id += 1
        message = PubMsg(
            channel=write.channel,
            term=term,
            leader=leader,
            guid=write.guid,
            digest=write.digest,
            rows=write.rows,
            kind=write.kind,
            payload=write.payload,
            attempt=write.attempt,
            after_seq=write.after_seq,
            is_settled=not write.in_doubt,
        )
        write.attempt += 1
        for node in cluster.node_ids:
            missed = self._rng.random() * 100 < cluster.options.payload_loss_percent
            if node == leader or not missed:
                cluster.network.send(self.name, node, message)
        cluster.scheduler.after(ATTEMPT_TIMEOUT_MS, self._timed_out, self._attempt_id)

    def _timed_out(self, attempt_id: int) -> None:
        if self._write is not None and attempt_id == self._attempt_id:
            self._write.in_doubt = True  # sent, no answer
            self._attempt()

    def _on_message(self, sender: NodeId, message: Message) -> None:
        del sender
        write = self._write
        if write is None or not isinstance(message, (PubAck, PubReject)):
            return
        if message.guid != write.guid:
            return
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(write.channel, message)
            self._acked_seq[write.channel] = message.last_seq
            self._known_seq_of(write, message)
            self._finish(Outcome.OK, message)
            return
        if message.attempt != write.attempt - 1:
            return  # S12: a late or doubled answer to an earlier attempt
        error = ERROR_BY_CODE[message.code]
        self._attempt_id += 1
        if error.outcome is Outcome.UNKNOWN:
            write.in_doubt = True
        gives_up = not write.in_doubt and self._rng.random() * 100 < GIVE_UP_PERCENT
        if error.retriable and not gives_up:
            self._cluster.scheduler.after(RETRY_PAUSE_MS, self._retry, self._attempt_id)
        else:
            self._finish(Outcome.UNKNOWN if write.in_doubt else Outcome.NOT_APPLIED)

    def _retry(self, attempt_id: int) -> None:
        if attempt_id == self._attempt_id:
            self._attempt()

    def _known_seq_of(self, write: _Write, ack: PubAck) -> None:
        truth = self._cluster.oracle.truth(write.channel)
        for key in truth.versions:
            self._known_seq[key] = truth.value_at(key, ack.last_seq)[0]

    def _finish(self, outcome: Outcome, ack: PubAck | None = None) -> None:
        write, self._write = self._write, None
        assert write is not None
        self._attempt_id += 1
        if outcome is Outcome.OK:
            assert ack is not None
            self._outcomes.ok += 1
            self._outcomes.conflicts += ack.conflict
            if write.is_duplicate_check and self._last_ok is not None:
                self._cluster.oracle.check_same(write.guid, self._last_ok[1], ack.last_seq)
            self._last_ok = (write, ack.last_seq)
        elif outcome is Outcome.NOT_APPLIED:
            self._outcomes.not_applied += 1
            if not write.is_duplicate_check:
                self._cluster.oracle.on_not_applied(write.channel, write.guid)
        else:
            self._outcomes.unknown += 1
        self._pause()


BOUNDS: Final[tuple[dict[str, int], ...]] = (
    {"max_lag": 5},
    {"max_staleness_ms": 30},
    {"max_staleness_ms": 300},
    {"max_staleness_ms": 3_000},
    {"max_batches_behind": 0},
    {"max_batches_behind": 1, "max_staleness_ms": 1_000},
)
"""What the bounded reads of a world with ``many_bounds`` name, in turn."""


class Knew(NamedTuple):
    """The commit position that a node knew when it was asked, and in which of its lives."""

    node: NodeId
    incarnation: int
    commit_seq: Seq


def knows(cluster: SimCluster, node: NodeId, channel: ChannelId) -> Knew | None:
    """The commit position that the node knows; None when it is down or has no such channel."""
    place = cluster.nodes[node]
    runner = None if place.runner is None else place.runner.channels.get(channel)
    return None if runner is None else Knew(node, place.incarnation, runner.core.commit_seq)


def _check_level(request: Get, served: Served) -> None:
    """S7.3: what the level promises."""
    if served.applied_seq < request.min_seq:
        _fail(f"a read at least at {request.min_seq} was served at {served.applied_seq}")
    if request.level == Level.BOUNDED.value:
        for bound, is_at in (
            (request.max_lag, served.lag),
            (request.max_staleness_ms, served.staleness_ms),
            (request.max_batches_behind, served.batches_behind),
        ):
            if bound is not None and (is_at is None or is_at > bound):
                _fail(f"a read of {request} was served {served}")


def check_lag(cluster: SimCluster, served: Served, knew: Knew | None) -> None:
    """S7.3: a lag hides nothing that its node knew of; ``knew``: before it was asked."""
    if served.lag is None or knew is None or knew.node != served.node:
        return
    is_same_life = cluster.nodes[knew.node].incarnation == knew.incarnation
    if is_same_life and served.applied_seq + served.lag < knew.commit_seq:
        _fail(
            f"lag {served.lag} at {served.applied_seq} was told by a node that knew "
            f"{knew.commit_seq} to be committed"
        )


def check_leader_read(level: str, served: Served, acked: Mapping[Term, Seq]) -> None:
    """S7.0: a read of level leader shows all that its leader had acknowledged before it began.

    ``acked``: by term the newest seq that was acknowledged by then. A deposed leader may miss what
    its successor acknowledged, and nothing of its own term.
    """
    wanted = acked.get(served.term, Seq(0))
    if level == Level.LEADER.value and served.applied_seq < wanted:
        _fail(
            f"a read of level leader was served at {served.applied_seq} in term {served.term}, "
            f"whose leader had acknowledged {wanted} before it began"
        )


def _fail(text: str) -> None:
    message = f"O5: {text}"
    raise InvariantError(message)


class SimReader:
    """Reads random keys at random levels, one at a time."""

    def __init__(self, cluster: SimCluster, index: int, outcomes: Outcomes) -> None:
        self.name = f"reader{index}"
        self.handle = 1_000 + index
        self._cluster = cluster
        self._rng = cluster.rng
        self._outcomes = outcomes
        self._request: Get | None = None
        self._must_include: Seq | None = None
        self._acked: Mapping[Term, Seq] = {}
        self._knew: Knew | None = None
        self._requests = 0
        self.is_stopped = False
        cluster.add_client(self.name, self.handle, self._on_message)

    def start(self) -> None:
        """Begin reading after a moment."""
        self._pause()

    @property
    def is_idle(self) -> bool:
        """No read is open."""
        return self._request is None

    def _pause(self) -> None:
        self._cluster.scheduler.after(self._rng.uniform(5.0, 60.0), self._begin)

    def _begin(self) -> None:
        cluster, rng = self._cluster, self._rng
        if self.is_stopped or self._request is not None:
            return
        if not cluster.table_channels:
            self._pause()
            return
        self._outcomes.started += 1
        self._requests += 1
        channel = rng.choice(cluster.table_channels)
        level = rng.choice((Level.LINEARIZABLE, Level.LINEARIZABLE, Level.BOUNDED, Level.ANY))
        key = b"k%03d" % rng.randrange(cluster.options.keys)
        max_lag = rng.choice((0, 50))
        wants_newest = level is Level.ANY and self._requests % 2 == 1
        if level is Level.ANY and self._requests % 4 == 0:
            level = Level.LEADER
        min_seq = cluster.oracle.visible_end(channel) if wants_newest else Seq(0)
        bounds = {"max_lag": max_lag}
        if cluster.options.many_bounds and level is Level.BOUNDED:
            bounds = BOUNDS[self._requests % len(BOUNDS)]
        wanted = Consistency(level.value, min_seq, **bounds)
        self._send(row_read(Get, self._requests, channel, wanted, 500, keys=(key,)), level)

    def read_from(self, channel: ChannelId) -> None:
        """One linearizable read there, now; until it is over this reader is not idle."""
        assert self._request is None
        self._outcomes.started += 1
        self._requests += 1
        level = Level.LINEARIZABLE
        self._send(Get(self._requests, channel, (b"k000",), level.value, None, Seq(0), 500), level)

    def _send(self, request: Get, level: Level) -> None:
        cluster, rng, channel = self._cluster, self._rng, request.channel
        self._request = request
        is_linearizable = level is Level.LINEARIZABLE
        self._must_include = cluster.oracle.visible_end(channel) if is_linearizable else None
        target = rng.choice(cluster.node_ids)
        found = cluster.believed_leader(channel)
        if level in (Level.LINEARIZABLE, Level.LEADER) and found is not None:
            target = found[0]
        self._acked = dict(cluster.oracle.acknowledged_in.get(channel, {}))
        self._knew = knows(cluster, target, channel)
        cluster.network.send(self.name, target, request)
        cluster.scheduler.after(ATTEMPT_TIMEOUT_MS * 2, self._timed_out, self._requests)

    def _timed_out(self, number: int) -> None:
        if self._request is not None and self._request.request_id == number:
            self._done(ok=False)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        del sender
        request = self._request
        if request is None or getattr(message, "request_id", None) != request.request_id:
            return
        if isinstance(message, GetAnswer):
            _check_level(request, message.served)
            check_lag(self._cluster, message.served, self._knew)
            check_leader_read(request.level, message.served, self._acked)
            self._cluster.oracle.on_read(
                request.channel,
                request.keys[0],
                None if message.values[0] is None else unseal(request.keys[0], message.values[0]),
                message.seqs[0],
                message.served.applied_seq,
                must_include=self._must_include,
            )
            self._done(ok=True)
        elif isinstance(message, Failed):
            self._done(ok=False)

    def _done(self, *, ok: bool) -> None:
        self._request = None
        if ok:
            self._outcomes.reads_ok += 1
        else:
            self._outcomes.reads_refused += 1
        self._pause()
