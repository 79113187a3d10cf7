"""``python -m jepsen_like.trimming_kills [--kills N] [--seed N]``: nodes die while they trim.

Three real nodes keep little of their logs, and are killed at the named places of what retention
does: barriers, the floor of the log, merges of tables, and copies of a table by a replica that was
away for longer than the logs reach back, at either side. In the end every acknowledged write must
be there, and all replicas equal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError
from raftstore.faults import FAILPOINTS, VARIABLE
from raftstore.local_cluster import LocalCluster

NAMES: Final = ("n1", "n2", "n3")
TABLE: Final = "t"
PLACES: Final = ("barrier", "floor", "merge", "copy", "files")
POINTS: Final = tuple(name for name in FAILPOINTS if name.split(".")[0] in PLACES)
LITTLE: Final = {
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "1MiB",
    "RAFTSTORE_RETENTION_SLOW_REPLICA_BYTES": "64KiB",
    "RAFTSTORE_RETENTION_AGE_MS": "100ms",
    "RAFTSTORE_RETENTION_INTERVAL_MS": "50ms",
    "RAFTSTORE_RETENTION_LOG_BYTES": "64MiB",
    "RAFTSTORE_STORAGE_SEGMENT_BYTES": "16MiB",
    "RAFTSTORE_STORAGE_WRITE_BUFFER_BYTES": "1MiB",
}
"""Retention with which a few megabytes reach every place."""
ROWS: Final = 10
ROW_BYTES: Final = 100_000
AWAY_ROUNDS: Final = 6
"""Megabytes that a replica misses before it has to copy the table."""
PATIENCE_S: Final = 60.0
CALL_S: Final = 10.0
EQUAL_S: Final = 0.2


class Trial:
    """A cluster whose nodes die, and its one writer. Raises AssertionError for what is wrong."""

    def __init__(self, cluster: LocalCluster, client: Client, orders: Path, seed: int) -> None:
        self._cluster = cluster
        self._table = client.table(TABLE)
        self._client = client
        self._orders = orders
        self._rng = random.Random(seed)
        self._number = 0
        self._round = 0
        self._acknowledged = 0
        """The last round that was: all rows have its number, or that of a later one."""
        client.create_table(TABLE, key="k", partitions=1, timeout=PATIENCE_S)
        self.write()

    def write(self) -> None:
        """Update all rows; what becomes of it may be unknown while nodes die."""
        self._round += 1
        text = self._rng.randbytes(ROW_BYTES // 2).hex()
        rows = [{"k": key, "v": self._round, "text": text} for key in range(ROWS)]
        with contextlib.suppress(RaftstoreError):
            self._table.put_many(rows, timeout=CALL_S)
            self._acknowledged = self._round

    def remove_others(self) -> None:
        """Write rows besides, and remove them: where LevelDB keeps up with updates by itself,
        only removed rows make a table worth a merge."""
        others = range(ROWS, 2 * ROWS)
        text = self._rng.randbytes(ROW_BYTES // 2).hex()
        with contextlib.suppress(RaftstoreError):
            rows = [{"k": key, "v": 0, "text": text} for key in others]
            self._table.put_many(rows, timeout=CALL_S)
        with contextlib.suppress(RaftstoreError):
            self._table.delete_many(others, timeout=CALL_S)

    def die_at(self, point: str) -> None:
        """A node dies there, and comes back."""
        victims = [self._rng.choice(NAMES)]
        where = point.partition(".")[0]
        away = victims[0]
        if where in ("copy", "files"):
            self._cluster.kill(away)
            for _ in range(AWAY_ROUNDS):
                self.write()
            if where == "files":  # who gives the table dies, and either of them may
                victims = [name for name in NAMES if name != away]
        for victim in victims:
            self._order(victim, point)
        if where in ("copy", "files"):
            self._cluster.start(away)
        end = time.monotonic() + PATIENCE_S
        while set(victims) <= set(self._cluster.running()):
            assert time.monotonic() < end, f"{victims} never passed {point}"
            self.write()
            if where == "merge":
                self.remove_others()
        for victim in victims:
            self._order(victim, "")
        for victim in set(victims) - set(self._cluster.running()):
            self._cluster.start(victim)
        self._wait_until_equal()

    def check(self) -> None:
        """Every row has the number of the last acknowledged round, or of one behind it."""
        rows = list(self._table.scan(timeout=PATIENCE_S))
        found = {row["k"]: row["v"] for row in rows if row["k"] < ROWS}
        assert set(found) == set(range(ROWS)), f"rows are missing or too many: {found}"
        assert min(found.values()) >= self._acknowledged, f"{self._acknowledged} is lost: {found}"
        assert max(found.values()) <= self._round, f"nobody wrote this: {found}"

    def _order(self, node: str, point: str) -> None:
        self._number += 1
        draft = self._orders / f"{node}.draft"
        draft.write_text(json.dumps({"number": self._number, "crash_at": point}))
        draft.rename(self._orders / node)

    def _wait_until_equal(self) -> None:
        """Before the next one dies, for two of three have to be up."""
        end, contents = time.monotonic() + PATIENCE_S, set[str]()
        while len(contents) != 1:
            assert time.monotonic() < end, f"replicas stay different: {contents}"
            time.sleep(EQUAL_S)
            with contextlib.suppress(RaftstoreError):
                hashes = [self._client.content_hash(TABLE, name) for name in NAMES]
                contents = {str(each.content()) for each in hashes}


def tell(line: str) -> None:
    """Say how far it is."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(points: Sequence[str], seed: int) -> float:
    """Kill one node after the other at these places; return the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="raftstore-kills-") as directory:
        orders = Path(directory)
        environment = {name: {VARIABLE: str(orders / name), **LITTLE} for name in NAMES}
        nodes = LocalCluster(nodes=3, directory=orders / "nodes", environment=environment)
        with nodes as cluster, cluster.connect(timeout=PATIENCE_S) as client:
            trial = Trial(cluster, client, orders, seed)
            for number, point in enumerate(points, 1):
                trial.die_at(point)
                trial.check()
                tell(f"{number} of {len(points)}: died at {point}, nothing is lost")
    return time.monotonic() - began


def main() -> int:
    """Every place in turn, as often as asked for."""
    parser = argparse.ArgumentParser(prog="python -m jepsen_like.trimming_kills")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    points = [POINTS[number % len(POINTS)] for number in range(chosen.kills)]
    tell(f"{chosen.kills} kills in {run(points, chosen.seed):.0f} s, nothing is lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
