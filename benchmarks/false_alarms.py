"""Three nodes under full write load: nobody may be taken for dead, and heartbeats keep their beat.

Bulk writes as fast as they go, from two client processes. With ``--http-flood N`` also N
connections that read single rows and pages of 1,000 over HTTP without pause; with ``--slow-disk
MS`` every sync of every node takes so much longer. Every word a node says of a peer's health is in
its log; the longest silences come from asking every node ten times a second how long ago it heard
each peer (so they are exact to a tenth of a second). How late heartbeats left and the main loops
turned comes from the nodes' own metrics. A process that does nothing but sleep reports when it was
the machine itself that let everybody wait, and how much of its processors other machines got.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.readers import http_connected, http_get
from benchmarks.reads import BULK_TABLE, write_rows
from raftstore import aio, faults
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

WRITERS: Final = 2
ASK_EVERY_S: Final = 0.1
WITNESS_S: Final = 0.01
WORST: Final = 5
"""Of the times when the machine let a sleeping process wait, and of the seconds it lacked most."""
PROCESSORS: Final = Path("/proc/stat")
SETTLE_S: Final = 3.0
"""Nodes that have just started do not know each other yet; then what counts begins."""


def run(minutes: float, *, http_flood: int = 0, slow_disk_ms: float = 0.0) -> dict[str, Any]:
    """Changes of health reported by any node, and the longest silences seen."""
    with tempfile.TemporaryDirectory(prefix="raftstore-alarms-") as directory:
        return _run(Path(directory), minutes, http_flood, slow_disk_ms)


def _run(directory: Path, minutes: float, http_flood: int, slow_disk_ms: float) -> dict[str, Any]:
    control = directory / "faults.json"
    control.write_text(json.dumps({"number": 1, "sync_delay_ms": slow_disk_ms}))
    disk = {faults.VARIABLE: str(control)} if slow_disk_ms else {}
    environment = {f"n{number}": disk for number in (1, 2, 3)}
    with LocalCluster(nodes=3, http=True, environment=environment) as cluster:
        time.sleep(SETTLE_S)
        before = {name: len(list(_health(cluster, name))) for name in cluster.running()}
        context = multiprocessing.get_context("spawn")
        out = context.Queue()
        writers = [
            context.Process(target=_writer, args=(cluster.endpoints, minutes * 60.0, out))
            for _ in range(WRITERS)
        ]
        late = context.Queue()
        witness = context.Process(target=_witness, args=(minutes * 60.0, late))
        addresses = list(cluster.http_by_node().values())
        flood = [
            context.Process(target=_flood, args=(addresses, number, minutes * 60.0))
            for number in range(http_flood)
        ]
        for process in (*writers, *flood, witness):
            process.start()
        silences, asked = asyncio.run(_watch(cluster, minutes * 60.0))
        rates = [out.get(timeout=120.0) for _ in writers]
        latest, stolen, worst_stolen = late.get(timeout=120.0)
        for process in (*writers, *flood, witness):
            process.join()
        measured = {name: _measured(at) for name, at in cluster.http_by_node().items()}
        reported = {
            name: list(_health(cluster, name))[already:] for name, already in before.items()
        }
    ordered = sorted(silences)
    return {
        "minutes": minutes,
        "connections that read over HTTP": http_flood,
        "a sync takes longer by, ms": slow_disk_ms,
        "rows/s written meanwhile": round(sum(rates)),
        "changes of health (goal 0)": sum(map(len, reported.values())),
        "what they were": {name: lines[:5] for name, lines in reported.items() if lines},
        "times asked": asked,
        "heartbeats, main loop, fsync: late by at most, ms (99 %, all)": measured,
        "a process that only sleeps woke up late by at most, ms (when)": latest,
        "processors that went to other machines, %": stolen,
        "in the worst seconds, % (when)": worst_stolen,
        "silence of a peer, p50 / p99 / worst ms": [
            ordered[int((len(ordered) - 1) * share)] for share in (0.5, 0.99, 1.0)
        ],
    }


def _witness(seconds: float, out: Any) -> None:
    """Measure delays and stolen time of the machine with a process that only
    wants to be woken up.
    """
    late: list[tuple[int, str]] = []
    stolen: list[tuple[int, str]] = []
    end = time.monotonic() + seconds
    begun = second = time.monotonic()
    at_first = before = _stolen_s()
    while (began := time.monotonic()) < end:
        time.sleep(WITNESS_S)
        now = time.monotonic()
        at = time.strftime("%H:%M:%S", time.gmtime())
        late = sorted([*late, (round(1000 * (now - began - WITNESS_S)), at)])[-WORST:]
        if now - second >= 1.0:
            ticks = _stolen_s()
            stolen = sorted([*stolen, (_share(ticks - before, now - second), at)])[-WORST:]
            second, before = now, ticks
    mean = _share(_stolen_s() - at_first, time.monotonic() - begun)
    out.put((late[::-1], mean, stolen[::-1]))


def _stolen_s() -> float:
    """Seconds of all processors in which a virtual machine could not run; 0 where the system does
    not report it."""
    try:
        return int(PROCESSORS.read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def _share(stolen_s: float, passed_s: float) -> int:
    return round(100 * stolen_s / passed_s / (os.cpu_count() or 1))


def _writer(endpoints: list[str], seconds: float, out: Any) -> None:
    out.put(asyncio.run(write_rows(endpoints, seconds, None)))


def _flood(addresses: list[str], number: int, seconds: float) -> None:
    """Read the table that the writers fill, as fast as a node answers; errors are answers, too."""
    asyncio.run(_read_all_the_time(addresses[number % len(addresses)], seconds))


async def _read_all_the_time(address: str, seconds: float) -> None:
    reader, writer = await http_connected(address)
    end = time.monotonic() + seconds
    paths = (
        f"/v1/tables/{BULK_TABLE}/keys/AAAAAAAAAAAAAAAAAAAAAA?level=any",
        f"/v1/tables/{BULK_TABLE}:scan?level=any",
    )
    while time.monotonic() < end:
        for path in paths:
            await http_get(reader, writer, path)
    writer.close()


_BUCKET: Final = re.compile(
    r"^raftstore_(heartbeat_lateness|main_loop_lateness|fsync_duration)_seconds_bucket"
    r'\{le="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)


def _measured(address: str) -> dict[str, tuple[float, float]]:
    """Upper bounds, in ms, that 99 % and all of what a node measured stayed within."""
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        text = answer.read().decode()
    buckets: dict[str, list[tuple[float, float]]] = {}
    for name, bound, count in _BUCKET.findall(text):
        buckets.setdefault(name, []).append((1000 * float(bound), float(count)))
    return {
        name: (_within(found, 0.99), _within(found, 1.0)) for name, found in sorted(buckets.items())
    }


def _within(buckets: list[tuple[float, float]], share: float) -> float:
    wanted = share * buckets[-1][1]
    return next(bound for bound, count in buckets if count >= wanted)


def _health(cluster: LocalCluster, name: str) -> Iterator[str]:
    with cluster.log_file(name).open(encoding="utf-8") as log:
        for line in log:
            if 'event="peer health' in line or 'event="peer_health' in line:
                yield line.strip()


async def _watch(cluster: LocalCluster, seconds: float) -> tuple[list[int], int]:
    """How long ago each node heard each peer, in ms, each time it was asked."""
    clients = [await aio.connect([at], timeout=5.0) for at in cluster.endpoints]
    silences: list[int] = []
    asked, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for client in clients:
            try:
                status = await client.cluster_status()
            except RaftstoreError:
                continue
            asked += 1
            for node in status.nodes:
                for peer in (node.status or {}).get("nodes", ()):
                    heard = peer["last_heard_ms"]
                    if peer["name"] != node.name and heard is not None:
                        silences.append(heard)
        await asyncio.sleep(ASK_EVERY_S)
    for client in clients:
        await client.close()
    return silences, asked
