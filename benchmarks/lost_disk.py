"""The disk of one node of three is lost under 200 writes/s and 200 bounded reads/s, and the two
commands make the cluster whole again.

A table of 8 partitions with rows of 1 KiB. n3 is killed and its directory removed; once it is found
down, a token that replaces it is made, and an empty n3 joins by it. It is whole when every channel,
that of the catalog too, has three live voters, and the new one follows in the mode ``steady``, less
than half a second of writes behind. The same rows sent through a socket into one plain LevelDB say
what copying them takes: beside the same writes and reads, before the disk is lost, and on a machine
that does nothing else. With ``--rounds N`` (1 by default) so many nodes lose their disks one after
the other, so that after three no founder is left. At the end every acknowledged write is read back.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from benchmarks.failover import Gaps, read_at_rate, write_at_rate
from benchmarks.far_behind import plain_copy_beside, plain_copy_s
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

TABLE: Final = "lost"
PARTITIONS: Final = 8
ROWS: Final = 300_000
TINY_ROWS: Final = 4_000
VALUE_BYTES: Final = 1_000
CHUNK_ROWS: Final = 500
LOADERS: Final = 4
NAMES: Final = ("n3", "n2", "n1")
NEAR_ROWS: Final = 100
LOOK_S: Final = 0.1
PATIENCE_S: Final = 300.0
BESIDE: Final = "plain copy beside the same writes and reads, s"
GOAL_COPY: Final = 1.5


def run(tiny: bool, *, rows: int | None, rounds: int | None) -> dict[str, Any]:  # noqa: FBT001
    """Seconds, and how many times as long as the plain copy that is."""
    rows = rows or (TINY_ROWS if tiny else ROWS)
    copied_s = plain_copy_s(rows, VALUE_BYTES, in_order=True)
    with LocalCluster(nodes=3) as cluster:
        found = asyncio.run(_measure(cluster, rows, NAMES[: rounds or 1]))
    beside_s = found[BESIDE]
    for lost in found["lost disks"]:
        whole_s = lost["whole after, s"]
        lost[f"/ plain copy beside that, goal {GOAL_COPY}"] = round(whole_s / beside_s, 2)
        lost["/ plain copy alone"] = round(whole_s / copied_s, 2)
    return {"rows of 1 KiB": rows, "plain copy of as many alone, s": round(copied_s, 2)} | found


async def _measure(cluster: LocalCluster, rows: int, names: tuple[str, ...]) -> dict[str, Any]:
    client = await aio.connect(cluster.endpoints, timeout=30.0)
    await client.create_table(TABLE, key="id", partitions=PARTITIONS)
    await _fill(client, rows)
    writes, reads = Gaps(), Gaps()
    acknowledged: dict[int, int] = {}
    tasks = [
        asyncio.create_task(write_at_rate(client, TABLE, writes, acknowledged)),
        asyncio.create_task(read_at_rate(client, TABLE, reads, {"max_lag": 100_000})),
    ]
    await asyncio.sleep(2.0)
    beside_s = await plain_copy_beside(rows, VALUE_BYTES, in_order=True)
    lost = [await _lose(cluster, client, name, writes, reads) for name in names]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    written = set(acknowledged)
    stored = {row["id"] async for row in client.table(TABLE).scan(level="linearizable")}
    await client.close()
    return {
        BESIDE: round(beside_s, 2),
        "lost disks": lost,
        "acknowledged writes": len(written),
        "acknowledged writes lost": len(written - stored),
        "failed": {"writes": writes.failed, "bounded": reads.failed},
    }


async def _fill(client: AsyncClient, rows: int) -> None:
    table, text = client.table(TABLE), "x" * VALUE_BYTES
    chunks = iter(range(rows // CHUNK_ROWS))

    async def lane() -> None:
        for chunk in chunks:
            first = 1_000_000 + chunk * CHUNK_ROWS
            await table.put_many(
                [{"id": first + row, "n": chunk, "text": text} for row in range(CHUNK_ROWS)]
            )

    await asyncio.gather(*[lane() for _ in range(LOADERS)])


async def _lose(
    cluster: LocalCluster, client: AsyncClient, name: str, writes: Gaps, reads: Gaps
) -> dict[str, Any]:
    failed = writes.failed, reads.failed
    old = next(member.id for member in await client.members() if member.name == name)
    killed = time.monotonic()
    cluster.forget(name)
    while True:
        await asyncio.sleep(LOOK_S)
        if not any(member.up for member in await client.members() if member.name == name):
            break
    begun = time.monotonic()
    cluster.join(name, await client.join_token(replaces=name))
    joined_s = 0.0
    while True:
        assert time.monotonic() - begun < PATIENCE_S, f"not whole after {PATIENCE_S} s"
        await asyncio.sleep(LOOK_S)
        try:
            if not joined_s and any(
                member.name == name and member.id != old for member in await client.members()
            ):
                joined_s = time.monotonic() - begun
            if joined_s and await _is_whole(client, name):
                break
        except RaftstoreError:
            continue
    ended = time.monotonic()
    return {
        "node": name,
        "found down after, s": round(begun - killed, 2),
        "joined after, s": round(joined_s, 2),
        "whole after, s": round(ended - begun, 2),
        "writes: longest gap, ms": round(writes.longest(killed, ended), 1),
        "bounded: longest gap, ms": round(reads.longest(killed, ended), 1),
        "errors": {"writes": writes.failed - failed[0], "bounded": reads.failed - failed[1]},
    }


async def _is_whole(client: AsyncClient, name: str) -> bool:
    """Whether every channel has three live voters, and those of the node are not behind."""
    members = [member for member in await client.members() if member.up]
    if sum(member.catalog == "voter" for member in members) < len(NAMES):
        return False
    live = {member.name for member in members}
    placed = [each for each in await client.replicas() if each.channel.startswith(f"{TABLE}/")]
    if len(placed) < PARTITIONS or any(set(each.voters) != live or each.change for each in placed):
        return False
    status = await client.cluster_status()
    own, ends = _positions(status, name), dict[str, int]()
    for each in live:
        for channel, (end, _, _) in _positions(status, each).items():
            ends[channel] = max(end, ends.get(channel, 0))
    behind = sum(ends[channel] - applied for channel, (_, applied, _) in own.items())
    is_steady = all(mode == "steady" for _, _, mode in own.values())
    return len(own) >= PARTITIONS and is_steady and behind < NEAR_ROWS


def _positions(status: Any, name: str) -> dict[str, tuple[int, int, str]]:
    """Channel -> end of the log, applied seq and mode, by a node's own report."""
    node = status.node(name)
    if node is None or node.status is None:
        return {}
    return {
        each["channel"]: (each["last_seq"], each["applied_seq"], each["mode"])
        for each in node.status["channels"]
    }
