"""The ways of docs/architecture.md are those of the code: played in calm worlds, stop by stop.

Simulated worlds run the production code from the client's gets to the log. What they have something
else for is left out: sockets, the process, Spark, LevelDB, and the client's tables and writes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec
import pytest

from raftstore.client.reads.key_reads import KeyReads, KeysPart
from raftstore.client.reads.read_spec import ReadOptions, spec_of
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, Level
from tests.reference.test_architecture import ROW, section
from tests.sim_client import play
from tests.simulation.get_world import GetClient
from tests.unit.engine.batch_world import BatchWorld
from tests.unit.engine.engine_world import calm_cluster, publish, run

NOT_SIMULATED = ("transport/", "node/", "spark/", "storage/tables/")
NOT_SIMULATED_CLIENT = ("client/table", "client/blocking/", "client/batches/", "client/writes/")
SKIPPED = {
    "ManyGets.on_request": "a get of one channel",
    "FoundPart.value": "the rows are not decoded here",
    "LeaderRequests.ask": "the driver asks by itself here",
}
CUT = ("StoreRequest", "PubMsg", "PayloadRelay", "ReplicationBundle", "CommitNotice")


class Stop(NamedTuple):
    """A row of a table."""

    number: int
    name: str
    place: str
    """The process and thread in which it runs."""
    code: CodeType


def stops_of(way: str) -> list[Stop]:
    """Those that a simulated world runs."""
    found = []
    for number, path, name, place, *_ in ROW.findall(section(way)):
        if path.startswith((*NOT_SIMULATED, *NOT_SIMULATED_CLIENT)) or name in SKIPPED:
            continue
        holder: Any = importlib.import_module(f"raftstore.{path[:-3].replace('/', '.')}")
        for part in name.split("."):
            holder = vars(holder)[part]
        found.append(Stop(int(number), name, place, getattr(holder, "__func__", holder).__code__))
    return found


@contextmanager
def noted(stops: list[Stop]) -> Iterator[list[int]]:
    """Numbers of stops, in the order in which their functions are called."""
    numbers = {stop.code: stop.number for stop in stops}
    calls: list[int] = []

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code in numbers:
            calls.append(numbers[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def out_of_order(stops: list[Stop], calls: list[int]) -> list[str]:
    """Stops that do not come behind those before them of the same place: places overlap."""
    wrong = []
    for place in dict.fromkeys(stop.place for stop in stops):
        at = 0
        for stop in stops:
            if stop.place != place:
                continue
            try:
                at = calls.index(stop.number, at) + 1
            except ValueError:
                wrong.append(f"{stop.number} {stop.name}")
    return wrong


def leader_and_follower(cluster: SimCluster, channel: ChannelId) -> tuple[SimNode, SimNode]:
    """The leader of the channel, and one of the others."""
    leader = cluster.leaders()[channel]
    return leader, next(node for node in cluster.nodes.values() if node is not leader)


def put(cluster: SimCluster, channel: ChannelId, number: int) -> None:
    """A client sends a row to every replica, and waits a moment for the answer."""
    leader = cluster.leaders()[channel]
    key = b"k%d" % number
    message = publish(cluster, leader, channel, number, encode_rows([(key, seal(key, b"v"))]))
    for node in cluster.node_ids:
        cluster.network.send("writer", node, msgspec.structs.replace(message, relay_to=()))
    run(cluster, 50)


def play_a_put() -> Callable[[], None]:
    """One row."""
    cluster, channel = calm_cluster()
    cluster.add_client("writer", 777, lambda _sender, _message: None)
    return lambda: put(cluster, channel, 1)


def play_a_get(options: ReadOptions, *, at_leader: bool) -> Callable[[], None]:
    """One key, at the leader or at a follower."""
    cluster, channel = calm_cluster()
    home = leader_and_follower(cluster, channel)[0 if at_leader else 1]
    with cluster.loop.running():
        client = GetClient(cluster, home, 4_000)
        reads = KeyReads(client._channel_reads)

    spec = spec_of(options if at_leader else {**options, "prefer": "nearest"})

    async def get() -> None:
        [table] = client._context.topology.tables()
        deadline_ms = client._context.now_ms() + 2_000
        part = KeysPart(table, None, 0, (b"k",))  # type: ignore[arg-type]
        await reads.read(part, spec, 2_000, deadline_ms)

    play(cluster.loop, cluster, client.learn(), 5_000)
    run(cluster, 500)
    return lambda: play(cluster.loop, cluster, get(), 5_000)


def play_a_batch() -> Callable[[], None]:
    """One chunk, staged and committed."""
    world = BatchWorld.start()

    def write() -> None:
        attempt = world.begin(1).attempt
        world.stage(attempt, 1, {b"k": b"v"})
        world.commit(attempt, 1)

    return write


def play_a_catch_up() -> Callable[[], None]:
    """A follower that several records did not reach gets the next one."""
    cluster, channel = calm_cluster()
    _, away = leader_and_follower(cluster, channel)
    cluster.add_client("writer", 777, lambda _sender, _message: None)
    send = cluster.network.send

    def filtered(sender: str, receiver: str, message: Message) -> None:
        if not (receiver == away.node and type(message).__name__ in CUT):
            send(sender, receiver, message)

    cluster.network.send = filtered  # type: ignore[method-assign]
    for number in range(1, 5):
        put(cluster, channel, number)

    def heal() -> None:
        cluster.network.send = send  # type: ignore[method-assign]
        put(cluster, channel, 5)
        run(cluster, 3_000)

    return heal


PLAYED = {
    "A put": (play_a_put, 14),
    "A linearizable get": (
        lambda: play_a_get({"level": Level.LINEARIZABLE}, at_leader=True),
        14,
    ),
    "A bounded get": (
        lambda: play_a_get({"level": Level.BOUNDED, "max_staleness": 0.02}, at_leader=False),
        14,
    ),
    "A micro-batch": (play_a_batch, 17),
    "A catch-up": (play_a_catch_up, 14),
}
"""With the number of stops that a simulated world runs."""


@pytest.mark.parametrize("way", PLAYED)
def test_way_is_passed_stop_by_stop(way: str) -> None:
    """Every stop is passed, and in each place in the order of the table."""
    begin, played = PLAYED[way]
    stops = stops_of(way)
    go = begin()
    with noted(stops) as calls:
        go()
    assert out_of_order(stops, calls) == []
    assert len(stops) >= played, "too few are left of the way"
    assert out_of_order(stops[::-1], calls), "a wrong order would not be noticed"
