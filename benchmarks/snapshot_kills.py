"""The receiver or the sender of a replica snapshot is killed (-9) again and again, on three nodes.

A node is away while the others write and trim their logs: only another table helps it then. It
is started, and killed some steps of 100 ms after it began to copy, or its sender is; then that one
is started again, until the kills are used up and the copy ends. In the end every row that was
acknowledged is on all three nodes, and no log has a hole. While receivers are killed rows are
written all along; while senders are, nothing is written, so that another replica has the same table
and goes on with it. Before that: how long reads take while a table is copied.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any, Final

from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

NAMES: Final = ("n1", "n2", "n3")
AWAY: Final = "n3"
ROWS: Final = 5_000
TINY_ROWS: Final = 1_500
ROW_BYTES: Final = 2_000
ROWS_PER_CALL: Final = 250
KILLS: Final = 50
TINY_KILLS: Final = 2
STEP_S: Final = 0.1
STEPS: Final = 10
"""Kills come so many steps after the copy began, at most."""
POLL_S: Final = 0.02
PATIENCE_S: Final = 60.0
WRITE_EVERY_S: Final = 0.05
READS: Final = 2_000
ENVIRONMENT: Final = {
    "RAFTSTORE_RETENTION_ENABLED": "true",
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "1MiB",
    "RAFTSTORE_RETENTION_SLOW_REPLICA_BYTES": "64KiB",
    "RAFTSTORE_RETENTION_INTERVAL_MS": "50ms",
    "RAFTSTORE_SNAPSHOT_CHUNK_BYTES_MAX": "64KiB",
    "RAFTSTORE_SNAPSHOT_SECOND_BYTES_MAX": "2MiB",
    "RAFTSTORE_SNAPSHOT_RETRY_MS": "100ms",
    "RAFTSTORE_SNAPSHOT_REQUEST_MS": "200ms",
}
EVENTS: Final = ("resumed", "begun_anew", "finished")


def run(tiny: bool, *, rows: int | None, rounds: int | None) -> dict[str, Any]:  # noqa: FBT001
    """Outcomes of the copies and of the rows; ``rounds``: kills of each side."""
    rows = rows or (TINY_ROWS if tiny else ROWS)
    kills = rounds or (TINY_KILLS if tiny else KILLS)
    with (
        TemporaryDirectory(prefix="raftstore-kills-") as directory,
        LocalCluster(directory=directory, environment=dict.fromkeys(NAMES, ENVIRONMENT)) as cluster,
        cluster.connect(timeout=15.0) as client,
    ):
        client.create_table("points", key="id", partitions=1)
        world = _World(cluster, client, rows)
        world.fill()
        figures = {} if tiny else world.measure_reads()
        for victim in ("receiver", "sender"):
            figures |= world.kill_all_along(victim, kills)
        return figures | world.verify()


class _World:
    """Three nodes and what was written to them."""

    def __init__(self, cluster: LocalCluster, client: Client, rows: int) -> None:
        self._cluster = cluster
        self._client = client
        self._table = client.table("points")
        self._rows = rows
        self._expected: dict[int, int] = {}
        """Key and version of each row that was acknowledged."""
        self._version = 0
        self._next_key = rows

    def fill(self) -> None:
        """Write every row anew."""
        self._version += 1
        for first in range(0, self._rows, ROWS_PER_CALL):
            keys = range(first, min(first + ROWS_PER_CALL, self._rows))
            text = os.urandom(ROW_BYTES // 2).hex()
            self._table.put_many([{"id": k, "v": self._version, "text": text} for k in keys])
            self._expected.update(dict.fromkeys(keys, self._version))

    def leave_behind(self) -> None:
        """One node is away until no log reaches back to its end."""
        before = self._channel(AWAY)["last_seq"]
        self._cluster.kill(AWAY)
        self.fill()
        others = [name for name in NAMES if name != AWAY]
        self._until(lambda: all(self._channel(each)["base_seq"] > before for each in others))

    def measure_reads(self) -> dict[str, Any]:
        """p99 of gets of the nodes that stay, calm and while a table is copied."""
        self.leave_behind()
        calm = self._reads(READS)
        self._cluster.start(AWAY)
        self._until(lambda: bool(self._sender()))
        served = self._reads(READS, lambda: bool(self._sender()))
        self._until(self._is_whole)
        return {
            "reads calm, p99 ms": _p99(calm),
            "reads while a table is copied, p99 ms": _p99(served),
            "reads while a table is copied": len(served),
        }

    def kill_all_along(self, victim: str, kills: int) -> dict[str, Any]:
        """Kill one side so many times, in as many installations as that takes."""
        before, installations, left = self._counted(), 0, kills
        while left:
            self.leave_behind()
            installations += 1
            copied = self._counted()["finished"]
            with self._writing() if victim == "receiver" else contextlib.nullcontext():
                self._cluster.start(AWAY)
                while left and self._counted()["finished"] == copied:
                    sender = self._sender()
                    if not sender:
                        time.sleep(POLL_S)
                        continue
                    time.sleep(STEP_S * (left % STEPS))
                    name = AWAY if victim == "receiver" else sender
                    self._cluster.kill(name)
                    self._cluster.start(name)
                    left -= 1
            self._until(self._is_whole)
        after = self._counted()
        reported = {f"{victim} killed, {name}": after[name] - before[name] for name in EVENTS}
        return {
            f"{victim} killed": kills,
            f"{victim} killed, installations": installations,
            **reported,
        }

    def verify(self) -> dict[str, Any]:
        """Compare every node with what was acknowledged."""
        self._until(self._is_whole)
        hashes = {str(self._client.content_hash("points", name).content()) for name in NAMES}
        found = {int(row["id"]): int(row["v"]) for row in self._table.scan()}
        lost = [key for key, version in self._expected.items() if found.get(key, 0) < version]
        holes = sum(self._log(name).count('"hole"') for name in NAMES)
        assert len(hashes) == 1, f"replicas differ: {hashes}"
        assert not lost, f"{len(lost)} acknowledged rows are gone, one has the key {lost[0]}"
        assert not holes, f"{holes} times a log had a hole"
        return {"rows acknowledged and found": len(self._expected)}

    # --- inside -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """New rows all along; what became of those that failed is unknown."""
        is_over = threading.Event()

        def write() -> None:
            while not is_over.is_set():
                self._next_key += 1
                with contextlib.suppress(RaftstoreError):
                    self._table.put({"id": self._next_key, "v": 1, "text": "written meanwhile"})
                    self._expected[self._next_key] = 1
                is_over.wait(WRITE_EVERY_S)

        writer = threading.Thread(target=write, name="writer")
        writer.start()
        try:
            yield
        finally:
            is_over.set()
            writer.join()

    def _reads(self, count: int, goes_on: Callable[[], bool] = lambda: True) -> list[float]:
        times: list[float] = []
        while len(times) < count and (len(times) % 100 or goes_on()):
            began = time.perf_counter()
            self._table.get(len(times) % self._rows, level="any")
            times.append((time.perf_counter() - began) * 1_000)
        return times

    def _channel(self, name: str) -> dict[str, Any]:
        """The report of a node on the table's channel; nothing while it starts."""
        with contextlib.suppress(RaftstoreError):
            node = self._client.cluster_status().node(name)
            if node is not None and node.status is not None:
                for channel in dict(node.status)["channels"]:
                    return dict(channel)  # there is one
        return {"base_seq": 0, "last_seq": 0, "mode": "", "reason": ""}

    def _sender(self) -> str:
        """Name of the node whose table is copied now; empty: none is."""
        reported = str(self._channel(AWAY)["reason"])
        if "copying" not in reported:
            return ""
        return reported.partition("from ")[2].partition(":")[0]

    def _is_whole(self) -> bool:
        """Whether the one that was away follows, or leads, like any other."""
        seqs = [self._channel(name) for name in NAMES]
        return (
            all(each["mode"] == "steady" for each in seqs)
            and len({each["applied_seq"] for each in seqs}) == 1
            and seqs[0]["applied_seq"] > 0
        )

    def _log(self, name: str) -> str:
        return self._cluster.log_file(name).read_text(encoding="utf-8", errors="replace")

    def _counted(self) -> dict[str, int]:
        log = self._log(AWAY)
        return {name: log.count(f"replica_snapshot_{name}") for name in EVENTS}

    @staticmethod
    def _until(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, "the nodes did not get so far"
            time.sleep(POLL_S)


def _p99(times: list[float]) -> float:
    return round(statistics.quantiles(times, n=100)[98], 2) if len(times) > 1 else 0.0
