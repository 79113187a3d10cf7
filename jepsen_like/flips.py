"""Flipped bits: one at a time, in each kind of file of one replica, under real nodes.

Logs are trimmed already, and every node reads back what it stores all the time. Half of the bits
flip while the node runs, the others while it is stopped. A supervisor starts a node again that ends
with code 70, or by a signal: LevelDB maps table files into memory, so a bit that flips there flips
in a block that it has verified before, and its index may lead it outside of its memory.

Afterwards all replicas have to be equal and every row right, without anybody's doing. Damage to the
mark or the identity of a stopped node has to be refused; then its bytes come back.

    python -m jepsen_like.flips --count 200 --seed 1
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jepsen_like.target.processes.damage import PATTERNS
from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

TABLE: Final = "flipped"
ROWS: Final = 3_000
HEAL_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.1
EXIT_STORAGE: Final = 70
CRASHES: Final = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
"""Of LevelDB, while the node runs."""
REFUSED: Final = ("mark", "identity")
WHILE_RUNNING: Final = ("log", "table")
SETTINGS: Final = {
    "RAFTSTORE_SCRUB_INTERVAL_MS": "200ms",
    "RAFTSTORE_SCRUB_SECOND_BYTES_MAX": "64MiB",
    "RAFTSTORE_RETENTION_CHANNEL_RECORDS": "1000",
    "RAFTSTORE_RETENTION_INTERVAL_MS": "100ms",
    "RAFTSTORE_STORAGE_WRITE_BUFFER_BYTES": "64KiB",
}


@dataclass(slots=True)
class FlipFigures:
    """The results of the flips."""

    struck: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """healed: equal again by itself; refused: the node did not start, and its bytes came back."""
    heal_s: list[float] = field(default_factory=list)
    """From the flip, or from the start of the node, until all replicas are equal and serve."""
    wrong_reads: int = 0
    reads: int = 0
    violations: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """All of it in one line."""
        times = sorted(self.heal_s)
        p50 = statistics.median(times) if times else 0.0
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))] if times else 0.0
        return (
            f"{sum(self.struck.values())} flips ({dict(self.struck)}): {dict(self.outcomes)}, "
            f"time to heal p50 {p50:.1f} s p99 {p99:.1f} s, {self.wrong_reads} of {self.reads} "
            f"reads wrong, {len(self.violations)} violations"
        )


def run_flips(count: int, seed: int, directory: Path) -> FlipFigures:
    """Flip ``count`` bits below ``directory``; a violation is counted, never raised."""
    figures, rng = FlipFigures(), random.Random(f"{seed} flips")
    names = ("n1", "n2", "n3")
    environment = dict.fromkeys(names, SETTINGS)
    with LocalCluster(3, directory=directory, environment=environment) as cluster:
        with cluster.connect(timeout=HEAL_TIMEOUT_S) as client:
            client.create_table(TABLE, key="k", partitions=1)
            table = client.table(TABLE)
            for number in range(ROWS):
                table.put({"k": number % 500, "v": _value(number)})
        for number in range(count):
            file = tuple(PATTERNS)[number % len(PATTERNS)]
            name = rng.choice(names)
            try:
                _flip(cluster, directory / name, name, file, rng, figures)
            except (RaftstoreError, OSError, TimeoutError) as error:
                figures.violations.append(f"seed {seed} flip {number} of {file}: {error!r}")
                tell(figures.violations[-1])
                if name not in cluster.running():
                    cluster.start(name)
            tell(f"{number + 1}: {file} on {name}: {figures.describe()}")
    return figures


def tell(line: str) -> None:
    """Say how far it is."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _value(number: int) -> str:
    return f"value {number} " + "x" * 100


def _flip(
    cluster: LocalCluster, store: Path, name: str, file: str, rng: random.Random, of: FlipFigures
) -> None:
    is_live = file in WHILE_RUNNING and rng.random() < 0.5
    if not is_live:
        cluster.stop(name)
    found = [path for path in sorted(store.glob(PATTERNS[file])) if path.stat().st_size]
    if not found:
        if not is_live:
            cluster.start(name)
        of.outcomes[f"no {file} there"] += 1
        return
    path = rng.choice(found)
    before = path.read_bytes()
    offset = rng.randrange(len(before.rstrip(b"\0")) or 1)
    with path.open("r+b") as opened:
        opened.seek(offset)
        opened.write(bytes([before[offset] ^ 1 << rng.randrange(8)]))
    of.struck[f"{file}{' live' if is_live else ''}"] += 1
    began = time.monotonic()
    if not is_live:
        cluster.start(name)
    if file in REFUSED:
        while name in cluster.running() and time.monotonic() < began + 5:
            time.sleep(POLL_S)
        if name not in cluster.running():
            path.write_bytes(before)
            cluster.start(name)
            of.outcomes["refused"] += 1
            _await_whole(cluster, name, of, is_live=False)
            return
    _await_whole(cluster, name, of, is_live=is_live)
    of.outcomes["healed"] += 1
    of.heal_s.append(time.monotonic() - began)


def _await_whole(cluster: LocalCluster, name: str, of: FlipFigures, *, is_live: bool) -> None:
    """Until two passes were read to their end and all is equal; rows are right all the time."""
    end, passes = time.monotonic() + HEAL_TIMEOUT_S, None
    last = "nobody answered"
    with cluster.connect(timeout=5.0) as client:
        while time.monotonic() < end:
            _supervise(cluster, name if is_live else None, of)
            time.sleep(POLL_S)
            try:
                _read(client, of)
                done = _passes(client, name)
                passes = done if passes is None or done < passes else passes
                hashes = {
                    str(client.content_hash(TABLE, n, timeout=5.0).content())
                    for n in ("n1", "n2", "n3")
                }
                if len(hashes) == 1 and (not is_live or done >= passes + 2):
                    return
                last = f"{len(hashes)} contents, {done - passes} passes"
            except RaftstoreError as error:
                last = str(error)
    raise RaftstoreError(f"not whole after {HEAL_TIMEOUT_S:.0f} s: {last}")


def _supervise(cluster: LocalCluster, live: str | None, of: FlipFigures) -> None:
    """Start every node again that ended as nodes do on damage; ``live``: it may have crashed. What
    an earlier flip hit may be met at any later start."""
    for name, ended in cluster.ended().items():
        if name in cluster.running():
            continue
        if name == live and ended in CRASHES:
            of.outcomes["crashed first"] += 1
        elif ended != EXIT_STORAGE:
            raise RaftstoreError(f"{name} ended with code {ended}")
        cluster.start(name)


def _read(client: Client, of: FlipFigures) -> None:
    """Some rows of every replica."""
    keys = random.sample(range(500), 20)
    for key in keys:
        row = client.table(TABLE).get({"k": key}, level="any")
        of.reads += 1
        if row is None or row["v"] != _value(ROWS - 500 + key):
            of.wrong_reads += 1
            of.violations.append(f"row {key} is {row}")


def _passes(client: Client, name: str) -> int:
    status = client.cluster_status(timeout=5.0)
    own = next(node for node in status.nodes if node.name == name)
    return int(own.status["scrub"]["passes"]) if own.status is not None else 0


def main() -> int:
    """Exit code 7 for a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = run_flips(options.count, options.seed, Path(directory))
    tell("\n".join((figures.describe(), *figures.violations)))
    return 7 if figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
