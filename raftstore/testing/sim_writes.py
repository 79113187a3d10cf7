"""Writers of a simulated world: each is the production publisher.

Outcomes are recorded the way a checker must see them: OK, NOT_APPLIED, UNKNOWN (S4, S5.6).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace as replace_fields

from raftstore.client.writes.kinds import Write
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.errors import RequestError
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_conditional, encode_mark, encode_rows
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.rows.sealing import seal
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.sim_publisher import SimPublisher
from raftstore.types import ChannelId, NodeId, Outcome, RecordKind, Seq

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster

DEADLINES_MS: Final = (300.0, 1_000.0, 3_000.0, 3_000.0, 3_000.0, 3_000.0)
"""Of a write, drawn for each: the short ones end with refusals that are certainly not applied, and
only then can the oracle hold that answer to what it says (S5.6)."""


TTLS_MS: Final = (1, 100, 500, 2_000, 10_000)
"""Lifetimes of rows, where there are any: over before they are applied, or long after."""


class SimWriter:
    """One client that writes with the production publisher, one record at a time."""

    def __init__(self, cluster: SimCluster, index: int, outcomes: Outcomes) -> None:
        self.name = f"writer{index}"
        self.handle = 1 + index
        self._cluster = cluster
        self._rng = cluster.rng
        self._outcomes = outcomes
        # Of its own: how often a client draws depends on nothing but itself.
        own_rng = random.Random(f"{self.name} {cluster.options.seed}")
        self._publisher = SimPublisher(cluster, own_rng, self._deliver)
        self._own_rng = random.Random(f"{self.name} lifetimes {cluster.options.seed}")
        self._counter = 0
        self._write: Write | None = None
        self._sent: PubMsg | None = None
        """The newest attempt."""
        self._last_ok: tuple[PubMsg, Seq] | None = None
        self._known_seq: dict[bytes, Seq] = {}
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
        self._publish(self._new_write(channel))

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
        if self._last_ok is not None and rng.random() * 100 < cluster.options.duplicate_percent:
            self._repeat(self._last_ok[0])
            self._pause()
            return
        self._outcomes.started += 1
        self._publish(self._new_write(rng.choice(channels)))

    def _new_write(self, channel: ChannelId) -> Write:
        rng, options = self._rng, self._cluster.options
        self._counter += 1
        value = rng.randbytes(options.value_bytes)
        if options.many_bounds and self._counter % 8 == 0:
            # Each one again, as replays are.
            payload = encode_mark(self.name, self._counter // 16)
            return Write(channel, RecordKind.BATCH_MARK, payload, 1)
        if rng.random() * 100 < options.conditional_percent:
            key = self._key()
            expected = rng.choice((Seq(0), self._known_seq.get(key, Seq(0))))
            payload = encode_conditional(key, seal(key, value), expected)
            return Write.of_rows(channel, RecordKind.CONDITIONAL, payload, 1, self._ttl_ms())
        pairs = {}
        for _ in range(rng.randint(1, options.rows_per_write_max)):
            key = self._key()
            pairs[key] = None if rng.random() < 0.1 else seal(key, value)
        payload = encode_rows(pairs.items())
        return Write.of_rows(channel, RecordKind.ROWS, payload, len(pairs), self._ttl_ms())

    def _ttl_ms(self) -> int:
        """How long the rows of a write live; 0: for ever."""
        if self._own_rng.random() * 100 >= self._cluster.options.ttl_percent:
            return 0
        return self._own_rng.choice(TTLS_MS)

    def _key(self) -> bytes:
        return b"k%03d" % self._rng.randrange(self._cluster.options.keys)

    def _publish(self, write: Write) -> None:
        self._write = write
        self._publisher.publish(write, self._rng.choice(DEADLINES_MS), self._ended)

    def _repeat(self, acknowledged: PubMsg) -> None:
        """Try again what was acknowledged, as a client does whose answer was lost: it is answered
        with the same place, or as expired (S4.5)."""
        found = self._cluster.believed_leader(acknowledged.channel)
        if found is not None:
            again = replace_fields(
                acknowledged,
                leader=found[0],
                term=found[1],
                attempt=acknowledged.attempt + 1,
                is_settled=False,
            )
            for node in self._cluster.node_ids:
                self._deliver(node, again)

    def _deliver(self, node: NodeId, message: PubMsg) -> None:
        """An attempt leaves; a payload may miss one replica."""
        self._sent = message
        missed = self._rng.random() * 100 < self._cluster.options.payload_loss_percent
        if node == message.leader or not missed:
            self._cluster.network.send(self.name, node, message)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(message.channel, message)
            known = self._last_ok
            if known is not None and known[0].guid == message.guid:
                self._cluster.oracle.check_same(message.guid, known[1], message.last_seq)
        self._publisher.on_message(sender, message)

    def _ended(self, result: PubAck | RequestError) -> None:
        write, self._write = self._write, None
        assert write is not None
        if isinstance(result, PubAck):
            assert self._sent is not None
            self._outcomes.ok += 1
            self._outcomes.conflicts += result.conflict
            self._last_ok = self._sent, result.last_seq
            self._know(result)
        elif result.outcome is Outcome.NOT_APPLIED:
            self._outcomes.not_applied += 1
            if result.guid is not None:
                self._cluster.oracle.on_not_applied(*parse_guid(result.guid))
        else:
            self._outcomes.unknown += 1
        self._pause()

    def _know(self, ack: PubAck) -> None:
        """Read at the position of a write what a next condition may expect."""
        if not self._cluster.options.conditional_percent:
            return
        truth = self._cluster.oracle.truth(ack.channel)
        for key in truth.versions:
            self._known_seq[key] = truth.value_at(key, ack.last_seq)[0]
