"""Worlds whose writers are the real client: its publisher over the simulated network.

The nodes are the simulated ones and the faults those of `raftstore simulate`. What a connection
would add is drawn from the seed, too: connections that end with answers under way, and nodes of a
newer version that refuse with a code this client does not know. The oracle holds every outcome to
its word; a write that stands twice, under whatever guid, is a violation as well (S4.5), and so are
two writes of one key that one client began in the other order. Writes are begun in bursts, with
deadlines of all kinds, and some callers are cancelled: so they share records, are put back and
leave again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from raftstore.client.cluster.route_book import RouteBook
from raftstore.client.cluster.topology import Leader, Topology
from raftstore.client.context import Context
from raftstore.client.settings import ClientSettings
from raftstore.client.writes import publisher as publisher_module
from raftstore.client.writes.kinds import RowWrite
from raftstore.client.writes.publisher import Publisher
from raftstore.errors import ConnectionLostError, RequestError
from raftstore.policy.health import HealthState
from raftstore.protocol.codec import decode
from raftstore.protocol.framing import HEADER_BYTES
from raftstore.protocol.message import Message
from raftstore.protocol.payload import decode_rows, encode_rows
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.rows.sealing import seal
from raftstore.testing.invariants import InvariantError
from raftstore.testing.options import draw_options, override
from raftstore.testing.sim_workload import ERROR_BY_CODE, Outcomes
from raftstore.testing.simulation import Simulation
from raftstore.types import ChannelId, Guid, NodeId, Outcome, RecordKind
from tests.mutations.scheduler_loop import SchedulerLoop

if TYPE_CHECKING:
    from asyncio import Task

    from raftstore.testing.sim_cluster import SimCluster
    from raftstore.testing.sim_workload import SimWriter

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
WATCH_MS: Final = 20.0
RESET_CHANCE: Final = 0.002
"""That a connection ends in one look at it."""
NEWER_CHANCE: Final = 0.2
"""That a refusal whose outcome is unknown comes from a node of a newer version."""


class _Link:
    """A connection as the publisher sees it."""

    is_settled = True
    can_send = True
    last_error = "the node does not answer"

    def __init__(self, writer: ClientWriter, node: NodeId) -> None:
        self._writer = writer
        self._node = node
        self.incarnation: int | None = None
        """The node's incarnation that the connection was made to; None: there is no connection."""

    @property
    def is_open(self) -> bool:
        """Whether something can be sent."""
        return self.incarnation is not None

    def start(self) -> None:
        """Connections are made by themselves."""

    def send_frame(self, frame: bytes) -> None:
        """To the simulated network."""
        if self.incarnation is None:
            raise ConnectionLostError(self.last_error)
        message = decode(frame[HEADER_BYTES:])
        assert isinstance(message, PubMsg)
        self._writer.sent(self._node, message)


class _Links:
    """All connections of one client."""

    def __init__(self, writer: ClientWriter, nodes: list[NodeId]) -> None:
        self.by_node = {node: _Link(writer, node) for node in nodes}

    def of(self, node: NodeId) -> _Link | None:
        """The connection to a node."""
        return self.by_node.get(node)


class _Map(Topology):
    """The real topology, whose catalog is the world's: every node hosts every channel."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def replicas_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        del channel
        return tuple(self._cluster.node_ids)


class _Guide:
    """Asks around who leads, as discovery does."""

    def __init__(self, cluster: SimCluster, topology: Topology, pause_ms: int) -> None:
        self._cluster = cluster
        self._topology = topology
        self._pause_ms = pause_ms
        self._is_asking = False

    def want_leaders(self) -> None:
        """News in a moment."""
        if not self._is_asking:
            self._is_asking = True
            self._cluster.scheduler.after(self._pause_ms, self._tell)

    def _tell(self) -> None:
        self._is_asking = False
        for channel in self._cluster.table_channels:
            found = self._cluster.believed_leader(channel)
            if found is not None:
                now_ms = int(self._cluster.scheduler.now_ms)
                self._topology.hint(channel, Leader(*found), now_ms)


class _Sessions:
    """Stands for the module `secrets` in the publisher: sessions come from the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_bytes(self, count: int) -> bytes:
        """Bytes of the world's generator."""
        return self._rng.randbytes(count)


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
    """One write: its cell tells it from all others."""

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

    def __init__(
        self, cluster: SimCluster, loop: SchedulerLoop, index: int, outcomes: Outcomes
    ) -> None:
        self.name = f"client{index}"
        self.is_stopped = False
        self.acknowledged: list[Place] = []
        self._cluster = cluster
        self._loop = loop
        self._rng = cluster.rng
        self._outcomes = outcomes
        self._number = 0
        self._open: dict[Place, None] = {}
        self._numbers: dict[Place, int] = {}
        self._guids: dict[Place, dict[Guid, None]] = {}
        topology = _Map(cluster)
        self._links = _Links(self, cluster.node_ids)
        settings = ClientSettings(
            resend_ms=self._rng.choice(PATIENCE_MS), suspect_ms=100, retry_max_ms=60
        )
        guide = _Guide(cluster, topology, settings.refresh_min_ms)
        self._publisher = Publisher(
            Context(
                topology=topology,
                links=cast("Any", self._links),
                discovery=cast("Any", guide),
                settings=settings,
                jitter=self._rng.random,
                book=RouteBook(lambda _: HealthState.UP),
                now_ms=lambda: int(cluster.scheduler.now_ms),
            )
        )
        cluster.add_client(self.name, FIRST_HANDLE + index, self._on_message)

    @property
    def is_idle(self) -> bool:
        """No write is open."""
        return not self._open

    def start(self) -> None:
        """Connect and begin writing."""
        self._watch()
        for _ in range(3):
            self._pause()

    def sent(self, node: NodeId, message: PubMsg) -> None:
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
        task = self._loop.create_task(self._write(place))
        if self._rng.random() < CANCEL_CHANCE:
            self._cluster.scheduler.after(self._rng.uniform(0.0, 80.0), _cancel, task)
        task.add_done_callback(partial(self._end, place, is_last=is_last))

    async def _write(self, place: Place) -> None:
        patience_ms = self._rng.choice(DEADLINES_MS) * self._rng.uniform(0.9, 1.0)
        deadline_ms = int(self._cluster.scheduler.now_ms + patience_ms)
        write = RowWrite(place.channel, place.key, place.cell)
        try:
            ack = await self._publisher.write_row(write, deadline_ms)
        except asyncio.CancelledError:
            self._outcomes.unknown += 1
            raise
        except RequestError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                self._outcomes.not_applied += 1
                for guid in self._guids.get(place, ()):
                    self._cluster.oracle.on_not_applied(place.channel, guid)
            else:
                self._outcomes.unknown += 1
        else:
            self._outcomes.ok += 1
            if ack.guid not in self._guids.get(place, ()):
                raise InvariantError(f"O4: a write was told the place of guid {ack.guid.hex()}")
            self.acknowledged.append(place)

    def _end(self, place: Place, task: Task[None], *, is_last: bool) -> None:
        del self._open[place]
        if not task.cancelled():
            task.result()  # what the client raised ends the world
        if is_last:
            self._pause()

    def in_order(self) -> list[Place]:
        """Acknowledged writes, in the order in which they were begun."""
        return sorted(self.acknowledged, key=self._numbers.__getitem__)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(message.channel, message)
        elif isinstance(message, PubReject):
            is_unknown = ERROR_BY_CODE[message.code].outcome is Outcome.UNKNOWN
            if is_unknown and self._rng.random() < NEWER_CHANCE:
                message = msgspec.structs.replace(message, code="said_by_a_newer_version")
        else:
            return
        self._publisher.on_publish_answer(sender, message)

    def _watch(self) -> None:
        """Connections end with their node's process, or by a reset; new ones follow in a moment."""
        for node, link in self._links.by_node.items():
            place = self._cluster.nodes[node]
            is_reset = self._rng.random() < RESET_CHANCE
            if link.incarnation is not None and (link.incarnation != place.incarnation or is_reset):
                link.incarnation = None
                self._publisher.on_link_lost(node, "connection reset by peer")
            elif link.incarnation is None and place.is_up:
                link.incarnation = place.incarnation
                self._publisher.on_link_open(node)
        self._cluster.scheduler.after(WATCH_MS, self._watch)


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
    loop = SchedulerLoop(cluster.scheduler)
    publisher_module.secrets = _Sessions(cluster.rng)  # type: ignore[attr-defined,assignment]
    _step_down(cluster, random.Random(f"step down {seed}"))
    with loop.running():
        clients = [ClientWriter(cluster, loop, index, world.outcomes) for index in range(3)]
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
