"""The cost of 10, 100 and 1,000 nodes: messages, catalog, plans and even leaders (docs/scaling.md).

* Messages and bytes of an idle cluster per node and second, counted in simulated clusters, and by a
  formula made of the sizes of the messages; the formula for larger clusters.
* Thirty nodes with 1,000 channels: how long until leaders are even after a creation, a restart and
  a join, and what moving replicas to a new node and away from a drained one costs.
* Plans, in processor seconds, up to 1,000 nodes and 10,000 channels.
* As many processes as this machine carries, idle: bytes on their sockets beside the formula.
"""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.idle import cpu_seconds, memory_mb
from benchmarks.scaling_world import ScalingWorld
from raftstore.config import HeartbeatSettings, LagSettings
from raftstore.local_cluster import LocalCluster
from raftstore.policy.evacuation import HostedChannel, plan_evacuations
from raftstore.policy.leader_balance import LedChannel, plan_moves
from raftstore.policy.placement import place_table
from raftstore.policy.rebalance import ClusterNodes, PlacedChannel, plan_rebalance
from raftstore.protocol.codec import encode
from raftstore.protocol.framing import HEADER_BYTES
from raftstore.protocol.node import ChannelPosition, Heartbeat, InSync, LagReport
from raftstore.types import ChannelId, Seq, Term, node_id

REPLICAS: Final = 3
COUNTED: Final = ((3, 30), (10, 100), (10, 1_000), (30, 1_000))
EXTRAPOLATED: Final = ((100, 1_000), (100, 10_000), (1_000, 10_000))
PLANNED: Final = ((10, 1_000), (30, 1_000), (100, 1_000), (100, 10_000), (1_000, 10_000))
PROCESSES: Final = 9
PROCESS_CHANNELS: Final = 90
_SENT: Final = re.compile(r"pid=(\d+),.*?bytes_sent:(\d+)")


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """All figures; a few nodes if tiny."""
    counted = ((3, 6), (5, 20)) if tiny else COUNTED
    planned = ((10, 100),) if tiny else PLANNED
    return {
        "idle, per node and second": [_idle(*size) for size in counted],
        "by the formula": [formula(*size) for size in (*counted, *EXTRAPOLATED)],
        **_events(*((5, 20) if tiny else (30, 1_000))),
        "plans, processor s": [_plans(*size) for size in planned],
        "processes": _processes(*((3, 6, 3.0) if tiny else (PROCESSES, PROCESS_CHANNELS, 20.0))),
    }


# --- messages -------------------------------------------------------------------------------------


def _idle(nodes: int, channels: int) -> dict[str, Any]:
    world = ScalingWorld(nodes, channels)
    world.create()
    rows = {row["kind"]: row for row in world.idle(10)}
    beats, reports = rows.pop("Heartbeat"), rows.pop("LagReport")
    return {
        "nodes x channels": f"{nodes} x {channels}",
        "heartbeats": beats["messages"],
        "bytes of them": beats["bytes"],
        "reports": reports["messages"],
        "bytes of these": reports["bytes"],
        "others": round(sum(row["messages"] for row in rows.values()), 2),
    }


def formula(nodes: int, channels: int) -> dict[str, Any]:
    """Per node and second: a heartbeat and a report to each other node, and in the report a
    position of each replica here, with its hash for who hosts the channel, too."""
    each = _sizes()
    beats_s = 1_000 / HeartbeatSettings().send_interval_ms
    reports_s = 1_000 / LagSettings().report_interval_ms
    peers, replicas = nodes - 1, channels * min(REPLICAS, nodes) / nodes
    shared = replicas * (min(REPLICAS, nodes) - 1)
    """Pairs of a replica here and another node that hosts its channel."""
    positions = peers * (replicas * each["position"] + channels / nodes * each["leader"])
    report = peers * each["report"] + positions + shared * each["hash"]
    return {
        "nodes x channels": f"{nodes} x {channels}",
        "heartbeats": round(peers * beats_s),
        "bytes of them": round(peers * beats_s * each["heartbeat"]),
        "reports": round(peers * reports_s),
        "bytes of these": round(report * reports_s),
        "MB/s of all nodes": round(
            nodes * (peers * beats_s * each["heartbeat"] + report * reports_s) / 1e6, 1
        ),
    }


def _sizes() -> dict[str, int]:
    """Bytes of the parts of messages, of an idle channel with some thousand records."""
    others = tuple(node_id(f"n{number}", bytes(16)) for number in (1, 2))
    whole = ChannelPosition(
        ChannelId(bytes(18)), Term(2), False, Seq(5_000), Seq(5_000), Seq(5_000), bytes(32), 0, 0
    )
    hashless = ChannelPosition(
        ChannelId(bytes(18)), Term(2), False, Seq(5_000), Seq(5_000), Seq(5_000), b"", 0, 0
    )
    leader = ChannelPosition(
        ChannelId(bytes(18)), Term(2), True, Seq(5_000), Seq(5_000), Seq(5_000), b"", 0, 0,
        in_sync=InSync(others, 2),
    )  # fmt: skip

    def size(*positions: ChannelPosition) -> int:
        return len(encode(LagReport(1_700_000_000_000, positions, 5_000, "")))

    beat = Heartbeat(bytes(16), 5_000, 1_700_000_000_000, bytes(8), heard_receiver=True)
    return {
        "heartbeat": HEADER_BYTES + len(encode(beat)),
        "report": HEADER_BYTES + size(),
        "position": size(hashless) - size(),
        "hash": size(whole) - size(hashless),
        "leader": size(leader) - size(hashless),
    }


# --- nodes that come and go -----------------------------------------------------------------------


def _events(nodes: int, channels: int) -> dict[str, Any]:
    world = ScalingWorld(nodes, channels, spare=1)
    title = f"{nodes} nodes, {channels} channels"
    return {
        f"{title}: created": world.create(),
        f"{title}: a node restarts": world.restart(),
        f"{title}: one more node": world.join(world.cluster.node_ids[-1]),
        f"{title}: a node drains": world.drain(),
    }


# --- plans ----------------------------------------------------------------------------------------


def _plans(nodes: int, channels: int) -> dict[str, Any]:
    names = [node_id(f"n{number}", number.to_bytes(16, "big")) for number in range(nodes)]
    racks = {name: f"r{number % 10}" for number, name in enumerate(names)}
    ids = [ChannelId(number.to_bytes(18, "big")) for number in range(channels)]
    draw = random.Random(1)
    placed = place_table(partitions=channels, replicas=REPLICAS, nodes=names)
    led = [
        LedChannel(channel, draw.choice(group), group)
        for channel, group in zip(ids, placed, strict=True)
    ]
    same = [PlacedChannel(*each) for each in zip(ids, placed, strict=True)]
    sized = [each._replace(table_bytes=int(1e7 * draw.paretovariate(1.0))) for each in same]
    joined = node_id("new", b"\xff" * 16)
    hosted = [HostedChannel(each.channel, each.voters) for each in same]
    plans: dict[str, Callable[[], object]] = {
        "placing": lambda: place_table(
            partitions=channels, replicas=REPLICAS, nodes=names, domains=racks
        ),
        "leaders": lambda: plan_moves(led, names, (), racks),
        "one joins": lambda: plan_rebalance(same, ClusterNodes((*names, joined))),
        "one leaves": lambda: plan_rebalance(same, ClusterNodes(names[1:], names[:1])),
        "ten racks": lambda: plan_rebalance(same, ClusterNodes(names, (), racks)),
        "uneven sizes": lambda: plan_rebalance(sized, ClusterNodes(names)),
        "a drain": lambda: plan_evacuations(hosted, {names[0]: None}, names[1:]),
    }
    return {"nodes x channels": f"{nodes} x {channels}"} | {
        name: _seconds(plan) for name, plan in plans.items()
    }


def _seconds(plan: Callable[[], object]) -> float:
    begun = time.process_time()
    plan()
    return round(time.process_time() - begun, 3)


# --- processes ------------------------------------------------------------------------------------


def _processes(nodes: int, channels: int, seconds: float) -> dict[str, Any]:
    with LocalCluster(nodes=nodes) as cluster:
        with cluster.connect(timeout=60.0) as client:
            client.create_table("t", key="id", partitions=channels, timeout=60.0)
        pids = [cluster.pid(name) for name in cluster.running()]
        time.sleep(10.0)
        before, used_s, begun = _bytes_sent(pids), sum(map(cpu_seconds, pids)), time.monotonic()
        time.sleep(seconds)
        sent, wall_s = _bytes_sent(pids) - before, time.monotonic() - begun
        used_s = sum(map(cpu_seconds, pids)) - used_s
        memory = max(memory_mb(pid) for pid in pids)
    by_formula = formula(nodes, channels)
    return {
        "nodes x channels": f"{nodes} x {channels}",
        "bytes per node and second, sent on sockets": round(sent / nodes / wall_s),
        "by the formula": by_formula["bytes of them"] + by_formula["bytes of these"],
        "idle, percent of one core per node": round(100 * used_s / wall_s / nodes, 1),
        "memory per node, MB": round(memory),
    }


def _bytes_sent(pids: list[int]) -> int:
    """By all sockets of these processes that are connected."""
    listed = subprocess.run(["ss", "-tinpO"], capture_output=True, text=True, check=True)
    found = (match.groups() for line in listed.stdout.splitlines() if (match := _SENT.search(line)))
    return sum(int(count) for pid, count in found if int(pid) in pids)
