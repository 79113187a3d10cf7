"""The main job: three nodes, a Spark stream into them, queries through a kill -9, and the proof.

One asyncio loop owns the clients and the view; node processes and Spark are processes of their own.
Whatever ends the demo (success, a difference, an error, Ctrl-C), every process is ended with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from pyarrow import parquet
from rich.console import Console

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.demo.data import DemoData, prepare_data
from raftstore.demo.load import PUTS_TABLE, Load
from raftstore.demo.spark_job import JobConfig, expected_path
from raftstore.demo.verify import (
    Comparison,
    check_puts,
    compare,
    expected_rows,
    stored_rows,
    wait_until_settled,
)
from raftstore.demo.view import Scene, View, channels_of, leaders_by_node
from raftstore.errors import RaftstoreError, RequestError
from raftstore.local_cluster import LocalCluster
from raftstore.spark.java import find_java

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_DIFFERENCE: Final = 7
KILL_AFTER_BATCH: Final = 2
"""Batch ids count from 0: the third micro-batch of the rows is over."""
RESTART_AFTER_BATCH: Final = 4
STATUS_INTERVAL_S: Final = 0.5
CATCH_UP_TIMEOUT_S: Final = 60.0
SAMPLE_KEYS: Final = 5_000
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the command line."""

    input_path: Path | None = None
    key: tuple[str, ...] = ()
    group_by: str = ""
    source: str = ""
    keep: Path | None = None
    is_short: bool = False
    nodes: int = 3
    partitions: int = 4


@dataclass(slots=True)
class _Outcome:
    """Figures of the run, for the end."""

    killed: str | None = None
    killed_at: float = 0.0
    restarted_at: float | None = None
    catch_up_s: float | None = None
    first_batch_at: float | None = None
    last_batch_at: float | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    equal_hashes: bool = False


class Demo:
    """One run."""

    def __init__(self, options: DemoOptions, directory: Path, console: Console) -> None:
        self._options = options
        self._directory = directory
        self._console = console
        self._scene = Scene()
        self._view = View(self._scene, console)
        self._outcome = _Outcome()
        self._cluster: LocalCluster | None = None
        self._spark: asyncio.subprocess.Process | None = None
        self._catching_up: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """The whole job; returns the exit code."""
        data = await asyncio.to_thread(self._prepare)
        self._tell(f"input: {data.description}; {len(data.files)} micro-batches")
        try:
            cluster = await asyncio.to_thread(self._start_cluster)
            self._cluster = cluster
            for name, endpoint in sorted(cluster.endpoints_by_node().items()):
                self._tell(f"node {name} serves at {endpoint}")
            client = await aio.connect(cluster.endpoints, timeout=10.0)
            try:
                with self._view:
                    await self._stream(data, client)
                    await self._finish_catch_up()
                await self._verify(data, client)
            finally:
                await client.close()
        finally:
            await self._stop_spark()
            if self._cluster is not None:
                await asyncio.to_thread(self._cluster.close)
        return self._report(data)

    # --- phases -----------------------------------------------------------------------------------

    def _prepare(self) -> DemoData:
        return prepare_data(
            self._directory / "input",
            short=self._options.is_short,
            source=self._options.source,
            input_path=self._options.input_path,
            key=self._options.key,
            group_by=self._options.group_by,
        )

    def _start_cluster(self) -> LocalCluster:
        cluster = LocalCluster(nodes=self._options.nodes, directory=self._directory / "nodes")
        cluster.__enter__()
        return cluster

    async def _stream(self, data: DemoData, client: AsyncClient) -> None:
        scene = self._scene
        scene.rows_total = data.rows
        load = Load(client, self._sample_keys(data))
        await load.start()
        scene.load = load
        watching = asyncio.create_task(self._watch(client))
        try:
            async for event in self._spark_events(data):
                await self._on_spark_event(data, event)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await load.stop()

    async def _spark_events(self, data: DemoData) -> AsyncIterator[dict[str, Any]]:
        """Start the Spark process and yield what it reports, until it is done."""
        assert self._cluster is not None
        config = JobConfig(
            bootstrap_servers=",".join(self._cluster.endpoints),
            data=data,
            work_dir=str(self._directory / "spark"),
            trigger_s=1.0 if self._options.is_short else 1.5,
            partitions=self._options.partitions,
            replicas=min(3, self._options.nodes),
        )
        (self._directory / "spark").mkdir(parents=True, exist_ok=True)
        config_file = self._directory / "spark-job.json"
        config_file.write_bytes(msgspec.json.encode(config))
        log = (self._directory / "spark.log").open("wb")
        with log:
            self._spark = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "raftstore.demo.spark_job",
                "--config",
                f"@{config_file}",
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._tell("starting Spark")
        assert self._spark.stdout is not None
        async for line in self._spark.stdout:
            yield json.loads(line)
        code = await self._spark.wait()
        if code != 0:
            raise RaftstoreError(
                f"the Spark job ended with exit code {code}; see {self._directory / 'spark.log'}"
            )

    async def _on_spark_event(self, data: DemoData, event: dict[str, Any]) -> None:
        scene, outcome = self._scene, self._outcome
        match event["event"]:
            case "spark":
                self._tell(f"Spark {event['version']} is up after {event['seconds']:.1f} s")
            case "batch":
                now = time.monotonic()
                outcome.first_batch_at = outcome.first_batch_at or now - event["duration_ms"] / 1000
                outcome.last_batch_at = now
                scene.batches[event["query"]] = event["batch_id"]
                self._tell(
                    f"batch {event['batch_id']} of {event['query']}: {event['rows']:,} rows "
                    f"in {event['duration_ms'] / 1000:.1f} s"
                )
                if event["query"] == data.table:
                    scene.rows_stored = event["total_rows"]
                    scene.rows_per_s = event["total_rows"] / (now - outcome.first_batch_at)
                    await self._maybe_kill(event["batch_id"])
            case "failed":
                raise RaftstoreError(f"the Spark job failed: {event['message']}")
            case _:
                return

    async def _maybe_kill(self, batch_id: int) -> None:
        outcome, cluster = self._outcome, self._cluster
        assert cluster is not None
        if batch_id >= KILL_AFTER_BATCH and outcome.killed is None:
            outcome.killed = self._busiest_leader()
            outcome.killed_at = time.monotonic()
            cluster.kill(outcome.killed)
            self._tell(f"kill -9 {outcome.killed}, which leads most channels")
        elif (
            batch_id >= RESTART_AFTER_BATCH
            and outcome.killed is not None
            and outcome.restarted_at is None
        ):
            outcome.restarted_at = time.monotonic()
            self._tell(f"starting {outcome.killed} again")
            await asyncio.to_thread(cluster.start, outcome.killed)
            self._catching_up = asyncio.create_task(self._measure_catch_up())

    def _busiest_leader(self) -> str:
        assert self._scene.status is not None
        counts = leaders_by_node(self._scene.status)
        return max(sorted(counts), key=counts.__getitem__)

    async def _watch(self, client: AsyncClient) -> None:
        """Keep the view current; report which node took over after the kill."""
        is_failover_reported = False
        while True:
            try:
                self._scene.status = await client.cluster_status(timeout=5.0)
            except RequestError as error:
                self._scene.messages.append(f"status: {error}")
            if self._outcome.killed is not None and not is_failover_reported:
                is_failover_reported = self._tell_failover()
            self._view.tick()
            await asyncio.sleep(STATUS_INTERVAL_S)

    def _tell_failover(self) -> bool:
        status = self._scene.status
        assert status is not None
        victim = self._outcome.killed
        leaders: dict[str, str] = {}
        for channel, replicas in channels_of(status).items():
            for node, replica in replicas.items():
                if node != victim and replica["role"] == "leader":
                    leaders[channel] = node
        if len(leaders) < len(channels_of(status)):
            return False
        counts = leaders_by_node(status)
        spread = ", ".join(f"{node} leads {n}" for node, n in sorted(counts.items()) if n)
        self._tell(f"failover: every channel has a leader again ({spread})")
        return True

    async def _measure_catch_up(self) -> None:
        """From the restart until the node has applied what is committed, in every channel."""
        outcome, victim = self._outcome, self._outcome.killed
        assert outcome.restarted_at is not None
        while time.monotonic() - outcome.restarted_at < CATCH_UP_TIMEOUT_S:
            status = self._scene.status
            node = None if status is None else status.node(victim or "")
            if node is not None and node.status is not None and status is not None:
                lags = [
                    replicas[node.name]["lag"] if node.name in replicas else None
                    for replicas in channels_of(status).values()
                ]
                modes = [channel["mode"] for channel in node.status["channels"]]
                if lags and all(lag == 0 for lag in lags) and all(m == "steady" for m in modes):
                    outcome.catch_up_s = time.monotonic() - outcome.restarted_at
                    self._tell(f"{victim} has caught up after {outcome.catch_up_s:.1f} s")
                    return
            await asyncio.sleep(0.05)

    async def _finish_catch_up(self) -> None:
        if self._catching_up is None:
            return
        client_status = asyncio.create_task(self._refresh_status())
        await self._catching_up
        client_status.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client_status

    async def _refresh_status(self) -> None:
        assert self._scene.load is not None
        while True:
            with contextlib.suppress(RequestError):
                self._scene.status = await self._scene.load.client.cluster_status(timeout=5.0)
            await asyncio.sleep(0.1)

    async def _verify(self, data: DemoData, client: AsyncClient) -> None:
        """Every row of every table on every replica; then the hashes."""
        assert self._cluster is not None
        load, outcome = self._scene.load, self._outcome
        assert load is not None
        replicas = sorted(self._cluster.endpoints_by_node())
        tables = [data.table, data.aggregate.table, PUTS_TABLE]
        self._tell("waiting until all replicas have applied everything")
        outcome.equal_hashes = await wait_until_settled(client, tables, replicas)
        config_dir = JobConfig(
            bootstrap_servers="", data=data, work_dir=str(self._directory / "spark")
        )
        keys = {data.table: data.key, data.aggregate.table: (data.aggregate.group_by,)}
        for table, key in keys.items():
            expected = await asyncio.to_thread(expected_rows, expected_path(config_dir, table), key)
            for replica in replicas:
                stored = await stored_rows(client, table, replica, key)
                self._compared(compare(table, replica, expected, stored))
        for replica in replicas:
            self._compared(await check_puts(client, replica, load.acknowledged, load.in_doubt))

    def _compared(self, comparison: Comparison) -> None:
        self._outcome.comparisons.append(comparison)
        verdict = "equal" if comparison.is_equal else "DIFFERENT"
        self._tell(
            f"{comparison.table} on {comparison.replica}: {comparison.rows:,} rows, {verdict}"
        )
        for example in comparison.examples:
            self._tell(f"  {example}")

    # --- the end ----------------------------------------------------------------------------------

    def _report(self, data: DemoData) -> int:
        load, outcome = self._scene.load, self._outcome
        assert load is not None
        good = outcome.equal_hashes and all(c.is_equal for c in outcome.comparisons)
        seconds = (outcome.last_batch_at or 0.0) - (outcome.first_batch_at or 0.0)
        catch_up = "-" if outcome.catch_up_s is None else f"{outcome.catch_up_s:.1f} s"
        lines = [
            "",
            f"rows end to end:            {data.rows:,} in {seconds:.1f} s "
            f"({data.rows / seconds if seconds else 0:,.0f} rows/s, both tables)",
            f"single puts acknowledged:   {len(load.acknowledged):,}, lost: "
            f"{sum(c.missing for c in outcome.comparisons if c.table == PUTS_TABLE)}",
            f"longest gap of writes:      {load.writes.longest_gap_s * 1000:.0f} ms",
            f"longest gap, bounded reads: {load.bounded.longest_gap_s * 1000:.0f} ms",
            f"longest gap, linearizable:  {load.linearizable.longest_gap_s * 1000:.0f} ms",
            f"killed and restarted:       {outcome.killed}, caught up after {catch_up}",
            f"replicas equal by hash:     {'yes' if outcome.equal_hashes else 'NO'}",
            f"equal to Spark's own result: {'yes' if good else 'NO'}",
            f"whole run:                  {time.monotonic() - self._scene.started:.0f} s",
        ]
        for line in lines:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        return EXIT_OK if good else EXIT_DIFFERENCE

    async def _stop_spark(self) -> None:
        spark = self._spark
        if spark is None or spark.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(spark.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await spark.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(spark.pid, signal.SIGKILL)
            await spark.wait()

    def _tell(self, message: str) -> None:
        self._view.tell(message)

    @staticmethod
    def _sample_keys(data: DemoData) -> list[tuple[str, list[Any]]]:
        """Keys of both tables for the readers, from the first file of the input."""
        first = parquet.read_table(Path(data.directory) / data.files[0])
        rows = first.slice(0, SAMPLE_KEYS).to_pylist()
        keys = [tuple(row[name] for name in data.key) for row in rows]
        groups = [row[data.aggregate.group_by] for row in rows]
        groups = [group for group in dict.fromkeys(groups) if group is not None]
        single = [key[0] if len(key) == 1 else key for key in keys]
        return [(data.table, single), (data.aggregate.table, groups)]


def run_demo(options: DemoOptions, console: Console) -> int:
    """Run the demo in a temporary directory (or ``options.keep``); return the exit code.

    Raises ConfigError, before anything is started or written, when there is no Java for Spark.
    """
    find_java(os.environ)
    directory = options.keep or Path(tempfile.mkdtemp(prefix="raftstore-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return asyncio.run(_run(options, directory, console))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # SIGTERM
    finally:
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


async def _run(options: DemoOptions, directory: Path, console: Console) -> int:
    """Run until the end or until asked to stop; SIGTERM ends it like Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    return await Demo(options, directory, console).run()
