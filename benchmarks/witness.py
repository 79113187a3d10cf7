"""Costs of a replica: of a voter with rows that leads or follows, and of a witness, under the same
writes.

Four nodes; a table of one partition with the voters n1, n2 and n3, of which one leads. Rows of
1 KiB are written, each key twice, and the processor time and the disk of each node are noted. Then
the same with a table in which n4 is a witness in the place of a voter. Reads, if there were any,
would cost a witness nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from benchmarks.processor_time import Used
from benchmarks.stored import file_bytes
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.local_cluster import LocalCluster
from raftstore.types import node_name

ROWS: Final = 50_000
TINY_ROWS: Final = 4_000
CHUNK_ROWS: Final = 500
VALUE: Final = "x" * 1_000
LANES: Final = 2
SETTLE_S: Final = 5.0
"""Logs are trimmed and tables merged meanwhile."""


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Per role processor seconds and MB on the disk."""
    rows = TINY_ROWS if tiny else ROWS
    found: dict[str, Any] = {"rows of 1 KiB": rows, "each key is written": "twice"}
    found["roles"] = [
        row for has_witness in (False, True) for row in _measured(rows, has_witness=has_witness)
    ]
    return found


def _measured(rows: int, *, has_witness: bool) -> list[dict[str, Any]]:
    with LocalCluster(nodes=4) as cluster:
        pids = {name: [cluster.pid(name)] for name in cluster.running()}
        used = Used(pids)
        roles = asyncio.run(_write(cluster, rows, used, has_witness=has_witness))
        return [
            {
                "role": role if role == "witness" or not has_witness else f"{role} beside it",
                "processor, s": round(used.cpu_s[name], 1),
                "log, MB": _megabytes(cluster.directory / name / "log"),
                "table, MB": _megabytes(cluster.directory / name / "tables"),
            }
            for name, role in sorted(roles.items(), key=lambda pair: pair[1])
        ]


async def _write(
    cluster: LocalCluster, rows: int, used: Used, *, has_witness: bool
) -> dict[str, str]:
    """The roles of the nodes that have a replica, once all is written."""
    async with aio.connect(cluster.endpoints, timeout=30.0) as client:
        for _ in range(100):  # the cluster has just been founded
            if all(member.state == "active" for member in await client.members()):
                break
            await asyncio.sleep(0.1)
        await client.create_table("t", key="id", partitions=1)
        (before,) = [each for each in await client.replicas() if each.channel == "t/0"]
        if has_witness:
            (witness,) = {"n1", "n2", "n3", "n4"} - set(before.voters)
            await client.order_replicas("t/0", (*before.voters[:2], witness), witnesses=(witness,))
            while True:
                (now,) = [each for each in await client.replicas() if each.channel == "t/0"]
                if now.stage == "done":
                    break
                await asyncio.sleep(0.1)
        with used:
            await _put_all(client, rows)
            await asyncio.sleep(SETTLE_S)
        (now,) = [each for each in await client.replicas() if each.channel == "t/0"]
        leader = (await client.table_info("t")).channels[0].leader
        roles = {name: now.role_of(name) for name in now.voters}
        named = "" if leader is None else node_name(leader)
        return {
            name: role if role == "witness" else "leader" if name == named else "follower"
            for name, role in roles.items()
        }


async def _put_all(client: AsyncClient, rows: int) -> None:
    table = client.table("t")
    chunks = iter([*range(rows // CHUNK_ROWS)] * 2)

    async def lane() -> None:
        for chunk in chunks:
            first = chunk * CHUNK_ROWS
            await table.put_many([{"id": first + row, "text": VALUE} for row in range(CHUNK_ROWS)])

    await asyncio.gather(*[lane() for _ in range(LANES)])


def _megabytes(place: Path) -> float:
    return round(file_bytes(place) / 1e6, 1)
