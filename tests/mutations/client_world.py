"""Worlds whose writers do what real clients do to the publisher: bursts, deadlines, cancellations.

Nodes, faults and publisher are those of `raftstore simulate`. Connections end often, with answers
under way, and nodes of a newer version refuse with a code this client does not know. The oracle
holds every outcome to its word; a write that stands twice, under whatever guid, is a violation as
well (S4.5), and so are two writes of one key that one client began in the other order. Writes share
records, are put back and leave again.
"""

from __future__ import annotations

import hashlib
import random
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from raftstore.client.settings import ClientSettings
from raftstore.client.writes.kinds import RowWrite
from raftstore.errors import ERRORS_BY_CODE, RequestError
from raftstore.protocol.message import Message
from raftstore.protocol.payload import decode_rows, encode_rows
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.rows.sealing import seal
from raftstore.testing.invariants import InvariantError
from raftstore.testing.options import draw_options, override
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.sim_publisher import SimPublisher
from raftstore.testing.simulation import Simulation
from raftstore.types import ChannelId, Guid, NodeId, Outcome, RecordKind

if TYPE_CHECKING:
    from asyncio import Task

    from raftstore.testing.sim_cluster import SimCluster
    from raftstore.testing.sim_writes import SimWriter

PATIENCE_MS: Final = (400, 3_000)
"""Before an attempt without answer is sent again; drawn once per world."""
DEADLINES_MS: Final = (300, 1_000, 5_000)
"""Of a write; drawn for each."""
BURSTS: Final = (1, 1, 2, 6)
"""Writes that are begun at the same moment; drawn each time."""
CANCEL_CHANCE: Final = 0.03
"""That the caller of a write is cancelled."""
FORGED_CHANCE: Final = 0.03
"""That a follower gets another payload under a guid before the right one."""
REUSE_MS: Final = 150.0
"""Between two attempts to use a guid again for something else."""
STEP_DOWN_MS: Final = 700.0
"""Mean time between two hand-overs."""
FIRST_STEP_DOWN_MS: Final = 1_500.0
FIRST_HANDLE: Final = 3_000
RESET_MS: Final = 3_000.0
"""Mean time between two connections of a client that end by themselves."""
NEWER_CHANCE: Final = 0.2
"""That a refusal whose outcome is unknown comes from a node of a newer version."""


class _Reuser:
    """A broken client: it publishes something else under a guid that is taken (S4.6)."""

    NAME = "reuser"

    def __init__(self, cluster: SimCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"reuser {seed}")
        self._taken: dict[Guid, None] = {}
        cluster.add_client(self.NAME, FIRST_HANDLE - 1, self._on_message)
        cluster.scheduler.after(REUSE_MS, self._publish)

    def _publish(self) -> None:
        channel = self._rng.choice(self._cluster.table_channels or [None])
        found = None if channel is None else self._cluster.believed_leader(channel)
        known = [] if channel is None else list(self._cluster.oracle.acknowledged.get(channel, ()))
        if channel is not None and found is not None and known:
            guid = self._rng.choice(known)
            self._taken[guid] = None
            payload = encode_rows([(b"stolen", seal(b"stolen", self._rng.randbytes(8)))])
            digest = hashlib.blake2b(payload, digest_size=16).digest()
            message = PubMsg(
                channel=channel, term=found[1], leader=found[0], guid=guid, digest=digest,
                rows=1, kind=RecordKind.ROWS, payload=payload, attempt=99,
            )  # fmt: skip
            for node in self._cluster.node_ids:
                self._cluster.network.send(self.NAME, node, message)
        self._cluster.scheduler.after(REUSE_MS, self._publish)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck) and message.guid in self._taken:
            raise InvariantError(
                f"S4.6: {sender} acknowledged another payload under guid {message.guid.hex()}"
            )


class Place(NamedTuple):
    """One write: its cell distinguishes it from all others."""

    channel: ChannelId
    key: bytes
    cell: bytes | None


def _places(channel: ChannelId, payload: bytes) -> list[Place]:
    """The writes of a record."""
    flat = decode_rows(payload)
    return [
        Place(channel, key, cell)
        for key, cell in zip(flat[::2], flat[1::2], strict=True)
        if key is not None
    ]


class ClientWriter:
    """One client with up to three bursts of writes under way; stands in for a `SimWriter`."""

    def __init__(self, cluster: SimCluster, index: int, outcomes: Outcomes) -> None:
        self.name = f"client{index}"
        self.is_stopped = False
        self.acknowledged: list[Place] = []
        self._cluster = cluster
        self._rng = cluster.rng
        self._outcomes = outcomes
        self._number = 0
        self._open: dict[Place, None] = {}
        self._numbers: dict[Place, int] = {}
        self._guids: dict[Place, dict[Guid, None]] = {}
        settings = ClientSettings(
            resend_ms=self._rng.choice(PATIENCE_MS), suspect_ms=100, retry_max_ms=60
        )
        self._publisher = SimPublisher(
            cluster, cluster.rng, self._sent, settings=settings, reset_ms=RESET_MS
        )
        cluster.add_client(self.name, FIRST_HANDLE + index, self._on_message)

    @property
    def is_idle(self) -> bool:
        """No write is open."""
        return not self._open

    def start(self) -> None:
        """Begin writing."""
        for _ in range(3):
            self._pause()

    def _sent(self, node: NodeId, message: PubMsg) -> None:
        """An attempt leaves; a payload may miss one replica."""
        for place in _places(message.channel, message.payload):
            self._guids.setdefault(place, {})[message.guid] = None
        missed = self._rng.random() * 100 < self._cluster.options.payload_loss_percent
        if node != message.leader and self._rng.random() < FORGED_CHANCE:
            self._cluster.network.send(self.name, node, _forged(message, self._rng))
        if node == message.leader or not missed:
            self._cluster.network.send(self.name, node, message)

    def _pause(self) -> None:
        self._cluster.scheduler.after(self._rng.uniform(5.0, 60.0), self._begin)

    def _begin(self) -> None:
        if self.is_stopped or not self._cluster.table_channels:
            return
        channel = self._rng.choice(self._cluster.table_channels)
        burst = self._rng.choice(BURSTS)
        for number in range(burst):
            self._begin_one(channel, is_last=number == burst - 1)

    def _begin_one(self, channel: ChannelId, *, is_last: bool) -> None:
        self._outcomes.started += 1
        self._number += 1
        key = b"k%03d" % self._rng.randrange(self._cluster.options.keys)
        place = Place(channel, key, seal(key, f"{self.name}/{self._number}".encode()))
        self._open[place] = None
        self._numbers[place] = self._number
        write = RowWrite(place.channel, place.key, place.cell)
        within_ms = self._rng.choice(DEADLINES_MS) * self._rng.uniform(0.9, 1.0)
        task = self._publisher.write_row(write, within_ms, partial(self._told, place))
        if self._rng.random() < CANCEL_CHANCE:
            self._cluster.scheduler.after(self._rng.uniform(0.0, 80.0), _cancel, task)
        task.add_done_callback(partial(self._end, place, is_last=is_last))

    def _told(self, place: Place, result: PubAck | RequestError) -> None:
        if isinstance(result, PubAck):
            self._outcomes.ok += 1
            if result.guid not in self._guids.get(place, ()):
                raise InvariantError(f"O4: a write was told the place of guid {result.guid.hex()}")
            self.acknowledged.append(place)
        elif result.outcome is Outcome.NOT_APPLIED:
            self._outcomes.not_applied += 1
            for guid in self._guids.get(place, ()):
                self._cluster.oracle.on_not_applied(place.channel, guid)
        else:
            self._outcomes.unknown += 1

    def _end(self, place: Place, task: Task[None], *, is_last: bool) -> None:
        del self._open[place]
        if task.cancelled():
            self._outcomes.unknown += 1
        if is_last:
            self._pause()

    def in_order(self) -> list[Place]:
        """Acknowledged writes, in the order in which they were begun."""
        return sorted(self.acknowledged, key=self._numbers.__getitem__)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(message.channel, message)
        elif isinstance(message, PubReject):
            is_unknown = ERRORS_BY_CODE[message.code].outcome is Outcome.UNKNOWN
            if is_unknown and self._rng.random() < NEWER_CHANCE:
                message = msgspec.structs.replace(message, code="said_by_a_newer_version")
        self._publisher.on_message(sender, message)


def _forged(message: PubMsg, rng: random.Random) -> PubMsg:
    """Another payload under the guid of a write that is on its way (S5.2)."""
    payload = encode_rows([(b"forged", seal(b"forged", rng.randbytes(8)))])
    digest = hashlib.blake2b(payload, digest_size=16).digest()
    return msgspec.structs.replace(message, payload=payload, digest=digest)


def run_client_world(seed: int, changes: dict[str, str]) -> str | None:
    """Run one world; the violation, None when every promise was kept."""
    wanted = {
        "writers": "0",
        "readers": "1",
        "operations": "250",
        "fault_phase_ms": "8000",
        **changes,
    }
    world = Simulation(override(draw_options(seed), wanted))
    cluster = world.cluster
    _step_down(cluster, random.Random(f"step down {seed}"))
    clients = [ClientWriter(cluster, index, world.outcomes) for index in range(3)]
    world.writers = cast("list[SimWriter]", clients)
    _Reuser(cluster, seed)
    verdict = world.run()
    return verdict.violation or _falling_back(cluster) or _log_wrong(cluster, clients)


def _step_down(cluster: SimCluster, rng: random.Random) -> None:
    """Leaders hand over often: then writes are refused in the middle of their way."""
    leaders = list(cluster.leaders().values())
    if leaders and cluster.scheduler.now_ms > FIRST_STEP_DOWN_MS:
        rng.choice(leaders).hand_over_all()
    cluster.scheduler.after(rng.expovariate(1.0 / STEP_DOWN_MS), _step_down, cluster, rng)


def _falling_back(cluster: SimCluster) -> str | None:
    """S10: timestamps rise from record to record, whichever clock gave them."""
    for channel in cluster.table_channels:
        stamps = [known.record.timestamp_ms for known in cluster.oracle.truth(channel).records]
        for before, after in pairwise(stamps):
            if after <= before:
                return f"S10: timestamp {after} was committed behind {before}"
    return None


def _log_wrong(cluster: SimCluster, clients: list[ClientWriter]) -> str | None:
    """S4.5: an acknowledged write is in the log, none twice, those of one key in order."""
    places = _places_in_log(cluster)
    for seqs in places.values():
        if len(seqs) > 1:
            return f"S4.5: one write is at the seqs {seqs}"
    for client in clients:
        for place in client.acknowledged:
            if place not in places:
                return f"O4: an acknowledged write of {client.name} is nowhere in the log"
        wrong = _out_of_order([(place, places[place][0]) for place in client.in_order()])
        if wrong is not None:
            return f"order of a key: {client.name} {wrong}"
    return None


def _places_in_log(cluster: SimCluster) -> dict[Place, list[int]]:
    """Seqs of each write in the true log."""
    places: dict[Place, list[int]] = {}
    for channel in cluster.table_channels:
        for known in cluster.oracle.truth(channel).records:
            if known.record.kind is RecordKind.ROWS:
                for place in _places(channel, known.record.payload):
                    places.setdefault(place, []).append(known.record.last_seq)
    return places


def _out_of_order(stands: list[tuple[Place, int]]) -> str | None:
    """Writes of one key by one client are in the order in which they were begun."""
    newest: dict[tuple[ChannelId, bytes], int] = {}
    for place, seq in stands:
        key = place.channel, place.key
        if seq <= newest.get(key, 0):
            return f"began a write at seq {seq} behind the one at seq {newest[key]}"
        newest[key] = seq
    return None


def _cancel(task: Task[None]) -> None:
    task.cancel()
