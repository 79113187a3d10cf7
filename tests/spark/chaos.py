"""Micro-batches of a real Spark under kills: ``python -m tests.spark.chaos --batches 2000``.

A stream writes N files, each a micro-batch, into three real nodes. A seeded plan kills one
process after the other: the driver with all its processes (and now and then removes Spark's note of
its last commit), executors, Python workers, the leader of a partition or a follower. Drivers are
numbered: each writes its number into its rows and cuts them into another number of tasks; every
second one runs on ``local-cluster[2,1,1024]``, the others on ``local[2,4]``, all with speculation.
Readers take snapshots all the while. In the end the table must be the fold of each batch once, and
the change feed must show each batch once.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from raftstore.errors import ConfigError, RaftstoreError
from raftstore.local_cluster import LocalCluster
from tests.spark.chaos_table import TABLE, Files, Reader, Truth, write_inputs

ROOT = Path(__file__).parents[2]
MASTERS = ("local[2,4]", "local-cluster[2,1,1024]")
FAULTS = ("driver", "driver", "replay", "executor", "worker", "worker", "leader", "follower")
REPORT_S = 10.0
PATIENCE = 0.9
"""How often a driver is spared that has not written a batch yet."""
FAILED_DRIVERS_MAX = 20
"""Drivers that end by themselves one after the other without a batch between."""


class Job:
    """The stream, one driver after the other."""

    def __init__(self, directory: Path, servers: str, rng: random.Random, masters) -> None:
        self._directory = directory
        self._servers = servers
        self._rng = rng
        self._masters = masters
        self.drivers = 0
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the next driver."""
        master = self._masters[self.drivers % len(self._masters)]
        self.drivers += 1
        arguments = [
            master, self._servers, self._directory / "in", self._directory / "checkpoint",
            self.drivers, self._rng.randint(1, 5),
        ]  # fmt: skip
        with (self._directory / f"driver-{self.drivers}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.chaos_driver", *map(str, arguments)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def ended(self) -> int | None:
        """The exit code of the driver; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def processes(self, text: str) -> list[int]:
        """Process ids of this driver whose command line has the text."""
        assert self._process is not None
        found = []
        for path in Path("/proc").iterdir():
            if not path.name.isdigit():
                continue
            with contextlib.suppress(OSError, ProcessLookupError):
                session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if session == self._process.pid and text in command:
                    found.append(int(path.name))
        return sorted(found)

    def kill(self) -> None:
        """Kill all processes of this driver with signal 9."""
        assert self._process is not None
        for pid in self.processes(""):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def forget_last_commit(self) -> None:
        """Remove Spark's note of its last commit: the batch is replayed although it is in the
        table.
        """
        commits = self._directory / "checkpoint" / "commits"
        numbers = [int(path.name) for path in commits.glob("*") if path.name.isdigit()]
        for name in (str(max(numbers)), f".{max(numbers)}.crc") if numbers else ():
            (commits / name).unlink(missing_ok=True)


class Chaos:
    """One run."""

    def __init__(self, options: argparse.Namespace, directory: Path, cluster: LocalCluster) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.cluster = cluster
        self.truth = Truth()
        self.readers = [Reader(cluster, self.truth, level) for level in ("linearizable", "any")]
        servers = ",".join(cluster.endpoints)
        self.job = Job(directory, servers, self.rng, options.masters)
        self.files = Files(directory / "checkpoint")
        self.struck: Counter[str] = Counter()
        self.down: dict[str, float] = {}
        self.failed_drivers = 0
        self.newest_of_before = -1
        """The newest batch when the present driver started."""
        self.began = time.monotonic()

    def run(self) -> None:
        """Strike until every batch is in the table, then look at it."""
        for reader in self.readers:
            reader.start()
        self.job.start()
        next_fault, next_report = self._soon(), time.monotonic() + REPORT_S
        try:
            while not self._is_done():
                time.sleep(0.1)
                now = time.monotonic()
                self.files.look()
                self._revive(now)
                for reader in self.readers:
                    assert reader.failure is None, reader.failure
                if now >= next_report:
                    next_report = now + REPORT_S
                    self._report()
                if now >= next_fault and sum(self.struck.values()) < self.options.faults_max:
                    self._strike(self.rng.choice(FAULTS), now)
                    next_fault = self._soon()
        finally:
            self.job.kill()
            self._revive(float("inf"))
            for reader in self.readers:
                reader.stop()
                reader.join(30.0)
        self._judge()

    # --- inside -----------------------------------------------------------------------------------

    def _soon(self) -> float:
        return time.monotonic() + self.rng.expovariate(1.0 / self.options.every)

    def _is_done(self) -> bool:
        """The driver ended by itself with every batch written; one that failed is started again."""
        code = self.job.ended()
        if code is None:
            return False
        if code == 0:
            return True
        self.failed_drivers += 1
        self.struck["driver failed"] += 1
        if self.failed_drivers > FAILED_DRIVERS_MAX:
            raise SystemExit("the driver does not come back; see its logs")
        self.job.kill()
        self.job.start()
        return False

    def _strike(self, fault: str, now: float) -> None:
        if fault in ("driver", "replay"):
            if self._newest() == self.newest_of_before and self.rng.random() < PATIENCE:
                return  # it has just begun: killed again and again, it would never come to anything
            self.job.kill()
            if fault == "replay":
                self.job.forget_last_commit()
            self.failed_drivers = 0
            self.newest_of_before = self._newest()
            self.job.start()
        elif fault in ("executor", "worker"):
            text = "CoarseGrainedExecutorBackend" if fault == "executor" else "pyspark.daemon"
            found = self.job.processes(text)
            if not found:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(found), signal.SIGKILL)
        elif not self._strike_node(fault, now):
            return
        self.struck[fault] += 1

    def _strike_node(self, fault: str, now: float) -> bool:
        if self.down:  # a majority shall be left
            return False
        leaders: set[str] = set()
        with contextlib.suppress(RaftstoreError, OSError, TimeoutError):
            with self.cluster.connect(timeout=2.0) as client:
                channels = client.table_info(TABLE).channels
                leaders = {each.leader.partition("@")[0] for each in channels if each.leader}
        names = [f"n{number}" for number in (1, 2, 3)]
        wanted = [name for name in names if (name in leaders) == (fault == "leader")]
        name = self.rng.choice(wanted or names)
        with contextlib.suppress(ConfigError):
            self.cluster.kill(name)
            self.down[name] = now + self.rng.uniform(0.5, 4.0)
        return True

    def _revive(self, now: float) -> None:
        for name, until in tuple(self.down.items()):
            if now >= until:
                del self.down[name]
                self.cluster.start(name)

    def _newest(self) -> int:
        return max(reader.newest for reader in self.readers)

    def _report(self) -> None:
        newest = self._newest()
        snapshots = sum(reader.snapshots for reader in self.readers)
        click.echo(
            f"{time.monotonic() - self.began:6.0f} s  {newest + 1} of {self.options.batches} "
            f"files  {self.job.drivers} drivers  {snapshots} snapshots  "
            f"{', '.join(f'{name} {count}' for name, count in sorted(self.struck.items()))}",
        )

    def _judge(self) -> None:
        """The fold of each batch once, and one commit for each."""
        for reader in self.readers:
            assert reader.failure is None, reader.failure
        self.files.look()
        files = self.files.by_batch()
        with self.cluster.connect(timeout=60.0) as client:
            newest = self.truth.check(list(client.table(TABLE).scan()))
            told = client.table(TABLE).writers()
            shown = self.truth.check_feed(client.table(TABLE).changes(), files)
        assert newest == self.options.batches - 1, f"the newest file is {newest}"
        [view] = told.writers
        assert view.last_batch == len(files) - 1
        assert told.next_commit == len(files) + 1, f"{told.next_commit - 1} commits"
        self._report()
        click.echo(
            f"{self.options.batches} files in {len(files)} batches, each once and whole, of "
            f"{self.truth.drivers} drivers; the change feed shows each of the last {shown} once"
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.chaos", description=__doc__)
    parser.add_argument("--batches", type=int, default=200, help="files, each a micro-batch (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the plan of kills (1)")
    parser.add_argument("--every", type=float, default=8.0, help="seconds between kills (8)")
    parser.add_argument("--faults-max", type=int, default=10**9, help="kills at most")
    parser.add_argument(
        "--masters", nargs="+", default=MASTERS, help="of one driver after the other"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run it in a directory that is removed when all went well."""
    options = parse(arguments)
    directory = Path(tempfile.mkdtemp(prefix="raftstore-spark-chaos-"))
    click.echo(f"everything is in {directory}, which stays if something is wrong")
    write_inputs(directory / "in", options.batches)
    with LocalCluster(nodes=3, directory=directory / "nodes") as cluster:
        Chaos(options, directory, cluster).run()
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
