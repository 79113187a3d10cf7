"""Readers of a simulated world, and what every answer is held against (O5, S7.0, S7.3).

A reader asks one node at a time: for a key of one channel (``Get``), or for keys of all channels in
one request (``GetMany``), each part of which is judged like a Get of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from raftstore.protocol.machines import MachineQuery
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import (
    ChannelKeys,
    Consistency,
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    Served,
    row_read,
)
from raftstore.rows.sealing import unseal
from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.types import ChannelId, Level, NodeId, Seq, Term

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster

READ_MS: Final = 800.0
"""Before a read counts as refused."""
NODE_PATIENCE_MS: Final = 500
"""How long a node may wait until it may answer."""
KEYS_MAX: Final = 3
"""Of one channel in a request for keys of all."""

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


def check_level(request: Get | GetMany | MachineQuery, served: Served) -> None:
    """S7.3: what the level promises."""
    if isinstance(request, Get | MachineQuery) and served.applied_seq < request.min_seq:
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
            f"lag {served.lag} at {served.applied_seq} was stated by a node that knew "
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """Keys of one channel, and what was true when they were asked for."""

    channel: ChannelId
    keys: tuple[bytes, ...]
    must_include: Seq | None
    """What a linearizable read has to show (O5)."""
    acked: Mapping[Term, Seq]
    knew: Knew | None


class SimReader:
    """Reads random keys at random levels, one request at a time."""

    def __init__(self, cluster: SimCluster, index: int, outcomes: Outcomes) -> None:
        self.name = f"reader{index}"
        self.handle = 1_000 + index
        self._cluster = cluster
        self._rng = cluster.rng
        self._outcomes = outcomes
        self._request: Get | GetMany | None = None
        self._left: dict[int, _Asked] = {}
        """By their number, the parts of the request that are not answered."""
        self._found = 0
        """Parts that were served."""
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

    def read_from(self, channel: ChannelId) -> None:
        """One linearizable read there, now; until it is over this reader is not idle."""
        assert self._request is None
        self._outcomes.started += 1
        self._requests += 1
        wanted = Consistency(Level.LINEARIZABLE.value)
        self._read_one(channel, b"k000", wanted)

    # --- asking -----------------------------------------------------------------------------------

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
        wants_newest = level is Level.ANY and self._requests % 2 == 1
        if level is Level.ANY and self._requests % 4 == 0:
            level = Level.LEADER
        min_seq = cluster.oracle.visible_end(channel) if wants_newest else Seq(0)
        bounds = {"max_lag": rng.choice((0, 50))}
        if cluster.options.many_bounds and level is Level.BOUNDED:
            bounds = BOUNDS[self._requests % len(BOUNDS)]
        wanted = Consistency(level.value, min_seq, **bounds)
        if rng.random() * 100 < cluster.options.many_gets_percent:
            self._read_many(channel, wanted)
        else:
            self._read_one(channel, self._key(), wanted)

    def _key(self) -> bytes:
        return b"k%03d" % self._rng.randrange(self._cluster.options.keys)

    def _read_one(self, channel: ChannelId, key: bytes, wanted: Consistency) -> None:
        request = row_read(Get, self._requests, channel, wanted, NODE_PATIENCE_MS, keys=(key,))
        self._send(request, channel, (ChannelKeys(channel, (key,)),))

    def _read_many(self, first: ChannelId, wanted: Consistency) -> None:
        """Keys of all channels at the node that ``first`` alone would be asked of."""
        parts = tuple(
            ChannelKeys(channel, tuple(self._key() for _ in range(self._rng.randint(1, KEYS_MAX))))
            for channel in self._cluster.table_channels
        )
        request = GetMany(
            self._requests, parts, wanted.level, wanted.max_lag, NODE_PATIENCE_MS,
            wanted.max_staleness_ms, wanted.max_batches_behind,
        )  # fmt: skip
        self._send(request, first, parts)

    def _send(
        self, request: Get | GetMany, channel: ChannelId, parts: Sequence[ChannelKeys]
    ) -> None:
        cluster = self._cluster
        target = self._rng.choice(cluster.node_ids)
        found = cluster.believed_leader(channel)
        if Level(request.level) in (Level.LINEARIZABLE, Level.LEADER) and found is not None:
            target = found[0]
        self._request, self._found = request, 0
        self._left = {
            number: self._asked(target, request.level, part) for number, part in enumerate(parts)
        }
        cluster.network.send(self.name, target, request)
        cluster.scheduler.after(READ_MS, self._timed_out, self._requests)

    def _asked(self, target: NodeId, level: str, part: ChannelKeys) -> _Asked:
        oracle, channel = self._cluster.oracle, part.channel
        return _Asked(
            channel,
            part.keys,
            oracle.visible_end(channel) if level == Level.LINEARIZABLE.value else None,
            dict(oracle.acknowledged_in.get(channel, {})),
            knows(self._cluster, target, channel),
        )

    # --- answers ----------------------------------------------------------------------------------

    def _timed_out(self, number: int) -> None:
        if self._request is not None and self._request.request_id == number:
            self._done(ok=False)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        del sender
        request = self._request
        if request is None or getattr(message, "request_id", None) != request.request_id:
            return
        if isinstance(message, GetAnswer):
            self._take(request, 0, message)
        elif isinstance(message, GetManyAnswer):
            for refused in message.refused:
                self._left.pop(refused.part, None)
            for found in message.found:
                self._take(request, found.part, found)
        elif isinstance(message, Failed):
            self._left.clear()
        if not self._left:
            self._done(ok=self._found > 0)

    def _take(self, request: Get | GetMany, number: int, found: GetAnswer | FoundKeys) -> None:
        """Judge the answer to one part; messages come twice, parts are judged once."""
        asked = self._left.pop(number, None)
        if asked is None:
            return
        served = found.served
        if served.channel != asked.channel or len(found.values) != len(asked.keys):
            _fail(f"part {number} of {request} was answered with {found}")
        check_level(request, served)
        check_lag(self._cluster, served, asked.knew)
        check_leader_read(request.level, served, asked.acked)
        for key, value, seq in zip(asked.keys, found.values, found.seqs, strict=True):
            self._cluster.oracle.on_read(
                asked.channel,
                key,
                None if value is None else unseal(key, value),
                seq,
                served.applied_seq,
                must_include=asked.must_include,
            )
        self._found += 1

    def _done(self, *, ok: bool) -> None:
        self._request = None
        if ok:
            self._outcomes.reads_ok += 1
        else:
            self._outcomes.reads_refused += 1
        self._pause()
