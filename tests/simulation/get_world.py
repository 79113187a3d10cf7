"""Worlds whose readers are real clients: gets that begin in one turn share a request per node.

Nodes, faults and writers are those of `raftstore simulate`; from the client's gets down to a link
everything is the production code: the batcher, its patience, and the read engine that each get
falls back to. Links end with their nodes and by themselves. Each caller's rows are compared with
the committed log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from raftstore.client.reads.key_reads import FoundPart, KeyReads, KeysPart
from raftstore.client.reads.read_spec import ReadSpec, spec_of
from raftstore.errors import ConnectionLostError, RaftstoreError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.message import Message, Request
from raftstore.protocol.reads import GetMany
from raftstore.rows.sealing import unseal
from raftstore.testing.invariants import InvariantError
from raftstore.testing.options import draw_options, override
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.sim_reads import check_leader_read
from raftstore.testing.simulation import Simulation
from raftstore.types import Level, NodeId, Seq
from tests.sim_client import SimClient, SimLink

if TYPE_CHECKING:
    from raftstore.testing.sim_reads import SimReader

HANDLE: Final = 3_000
TIMEOUT_MS: Final = 1_500
BURSTS: Final = (1, 4, 12)
"""Gets that begin in one turn of the client's loop; drawn each time."""
KEYS_MAX: Final = 3
"""Of one get."""
PAUSE_MS: Final = (5.0, 60.0)
"""Between two bursts."""
LOOK_MS: Final = 40.0
"""After which a link notices at the latest that its node is gone, and connects again."""
RESET_CHANCE: Final = 0.02
"""At each look, that a link ends by itself."""
LEVELS: Final[tuple[dict[str, Any], ...]] = (
    {"level": Level.LINEARIZABLE},
    {"level": Level.LINEARIZABLE},
    {"level": Level.LEADER},
    {"level": Level.BOUNDED, "max_lag": 0},
    {"level": Level.BOUNDED, "max_lag": 50},
    {"level": Level.ANY},
)


class _Link(SimLink):
    """A link on which a shared request leaves, too; it belongs to one life of its node."""

    _life: int | None = None

    @property
    def level(self) -> int:
        """The level of the node's version."""
        return self._peer.level if self._is_connected else 0

    def start(self) -> None:
        """Connect, if the node is there."""
        was_connected = self._is_connected
        super().start()
        if self._is_connected and not was_connected:
            self._life = self._peer.incarnation

    def look(self) -> None:
        """Notice that the node is gone, or was started again meanwhile."""
        if self._is_connected and self._life is None:
            self._life = self._peer.incarnation
        if self._is_connected and not (self._peer.is_up and self._life == self._peer.incarnation):
            self.reset()

    def reset(self) -> None:
        """The connection ends, with whatever is under way."""
        self._is_connected = False
        self.last_error = "connection lost"
        self._fail_requests(ConnectionLostError(self.last_error))
        self.client.on_query_link_lost(self.node)

    def ask(self, build: Callable[[int], Request], on_answer: Any) -> int:
        """Send a request; ConnectionLostError when that finds out that the node is gone."""
        self.look()
        if not self._is_connected:
            raise ConnectionLostError(self.last_error)
        self._next_request += 1
        request = build(self._next_request)
        self._handlers[request.request_id] = on_answer
        self.client.sent.append((self.node, request))
        self.client.cluster.network.send(self.client.name, self.node, request)
        return request.request_id


class GetClient(SimClient):
    """A client whose messages may come twice, or after its link has ended."""

    _link_type = _Link

    def _on_message(self, sender: NodeId, message: Message) -> None:
        is_first = self._told is not None and not self._told.done()
        if is_first or (sender, "QUERY") in self.sim_links:
            with self.cluster.loop.running():
                super()._on_message(sender, message)


class SharedGets:
    """One client that begins several gets in one turn; stands in for a `SimReader`."""

    def __init__(self, cluster: SimCluster, index: int, outcomes: Outcomes, seed: int) -> None:
        self.is_stopped = False
        self.shared = 0
        """Requests for keys of several channels that were sent."""
        self._cluster = cluster
        self._outcomes = outcomes
        self._rng = random.Random(f"shared gets {seed} {index}")
        self._index = index
        self._under_way = 0

    @property
    def is_idle(self) -> bool:
        """No get is under way."""
        return not self._under_way

    def start(self) -> None:
        """Begin reading."""
        cluster = self._cluster
        home = cluster.nodes[cluster.node_ids[self._index % len(cluster.node_ids)]]
        with cluster.loop.running():
            self._client = GetClient(cluster, home, HANDLE + self._index)
            self._reads = KeyReads(self._client._channel_reads)
        self._look()
        self._pause()

    def _look(self) -> None:
        with self._cluster.loop.running():
            for link in list(self._client.sim_links.values()):
                link.look()
                if link.is_open and self._rng.random() < RESET_CHANCE and not self.is_stopped:
                    cast(_Link, link).reset()
                link.start()
        self._cluster.scheduler.after(LOOK_MS, self._look)

    def _pause(self) -> None:
        self._cluster.scheduler.after(self._rng.uniform(*PAUSE_MS), self._begin)

    def _begin(self) -> None:
        if not self.is_stopped:
            loop = self._cluster.loop
            with loop.running():
                loop.create_task(self._burst()).add_done_callback(self._ended)

    def _ended(self, burst: asyncio.Task[None]) -> None:
        burst.result()  # ends the world with what was wrong
        self._pause()

    async def _burst(self) -> None:
        client, rng = self._client, self._rng
        tables = client._context.topology.tables()
        if not tables:
            await client.learn()
            return
        specs = [spec_of(options) for options in rng.sample(LEVELS, 2)]
        gets = [self._get(tables[0], rng.choice(specs)) for _ in range(rng.choice(BURSTS))]
        self._under_way = len(gets)
        await asyncio.gather(*gets)
        self.shared += sum(isinstance(sent, GetMany) for _, sent in client.sent)
        client.sent.clear()

    async def _get(self, table: TableInfo, spec: ReadSpec) -> None:
        rng, oracle = self._rng, self._cluster.oracle
        partition = rng.randrange(len(table.channels))
        channel = table.channels[partition].channel
        keys = tuple(
            b"k%03d" % rng.randrange(self._cluster.options.keys)
            for _ in range(rng.randint(1, KEYS_MAX))
        )
        must_include = oracle.visible_end(channel) if spec.level is Level.LINEARIZABLE else None
        acked = dict(oracle.acknowledged_in.get(channel, {}))
        self._outcomes.started += 1
        deadline_ms = self._client._context.now_ms() + TIMEOUT_MS
        # No schema: rows are compared as they are stored.
        part = KeysPart(table, cast(Any, None), partition, keys)
        try:
            found = await self._reads.read(part, spec, TIMEOUT_MS, deadline_ms)
        except RaftstoreError:
            self._outcomes.reads_refused += 1
        else:
            check_leader_read(spec.level.value, found.answer.served, acked)
            self._judge(found, spec, must_include)
            self._outcomes.reads_ok += 1
        finally:
            self._under_way -= 1

    def _judge(self, found: FoundPart, spec: ReadSpec, must_include: Seq | None) -> None:
        """O5, for this caller's keys alone, wherever they are in the answer."""
        served, first = found.answer.served, found.first
        channel = found.part.info.channels[found.part.partition].channel
        last = first + len(found.keys)
        values, seqs = found.answer.values[first:last], found.answer.seqs[first:last]
        if served.channel != channel or len(values) != len(found.keys):
            raise InvariantError(f"O5: keys of {channel.hex()} were answered with {found.answer}")
        if spec.max_lag is not None and (served.lag is None or served.lag > spec.max_lag):
            raise InvariantError(f"O5: a get within {spec.max_lag} rows was served {served}")
        for key, value, seq in zip(found.keys, values, seqs, strict=True):
            self._cluster.oracle.on_read(
                channel,
                key,
                None if value is None else unseal(key, value),
                seq,
                served.applied_seq,
                must_include=must_include,
            )


def run_get_world(seed: int, changes: dict[str, str]) -> tuple[str | None, Outcomes, int]:
    """Run one world: the violation, if any, what its clients got, and how many gets were shared."""
    wanted = {"writers": "2", "readers": "0", "jobs": "0", "partitions": "3", **changes}
    world = Simulation(override(draw_options(seed), wanted))
    clients = [SharedGets(world.cluster, index, world.outcomes, seed) for index in range(2)]
    world.readers = cast("list[SimReader]", clients)
    verdict = world.run()
    return verdict.violation, world.outcomes, sum(client.shared for client in clients)
