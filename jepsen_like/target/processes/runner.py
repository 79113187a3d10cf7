"""A run in real time: clients and faults together, then heal, converge, read back, compare.

The history is written while it goes (``history.jsonl``), so that a run that dies leaves one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, TextIO

from jepsen_like.calls import Answer, Call, argument, asked, details_of
from jepsen_like.checker.channelsets import ChannelSetLog
from jepsen_like.checker.hearing import INFO_AGE_MS
from jepsen_like.checker.repeats import RepeatWatch
from jepsen_like.checker.status import StatusWatch, untruths
from jepsen_like.checker.voters import VoterSets
from jepsen_like.history import Operation
from jepsen_like.nemesis.fault import Fault
from jepsen_like.nemesis.witness import witnessed
from jepsen_like.plan import FAULT_PAUSE_S, Progress
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.own_cluster import OwnCluster
from jepsen_like.target.processes import power
from jepsen_like.target.processes.calls import Caller
from jepsen_like.target.processes.channelset_logs import read_channelsets
from jepsen_like.target.processes.clients import Clients, StruckClient
from jepsen_like.target.processes.commits import read_commits
from jepsen_like.target.processes.http_calls import HttpCaller
from jepsen_like.target.processes.machine import MachineWatch
from jepsen_like.target.processes.network import LOOPBACK
from jepsen_like.target.processes.strikes import Strike
from jepsen_like.target.processes.target import ProcessTarget
from jepsen_like.workload.base import Client, Committed, Run, Workload
from jepsen_like.workload.fates import asking_fates
from raftstore.client.asyncio_client import AsyncClient
from raftstore.errors import OperationInDoubtError, RaftstoreError, RequestError
from raftstore.protocol.admin import TableInfo
from raftstore.types import Outcome

HISTORY_NAME: Final = "history.jsonl"
CALL_TIMEOUT_S: Final = 3.0
PAUSE_S: Final = (0.0, 0.03)
"""Between two calls of a client: the store, not the runner, shall be what is busy."""
QUIET_MIN: Final = 0.2
QUIET_MAX: Final = 0.8
"""Pauses between two faults, in parts of the plan's: the faults last, too."""
CREATE_S: Final = 60.0
CONVERGE_S: Final = 60.0
OWN_CONVERGE_S: Final = 180.0
"""Of a cluster that its owner goes on striking."""
SETTLE_S: Final = 120.0
PROGRESS_S: Final = 5.0
POLL_S: Final = 0.2
STATUS_EVERY_S: Final = 1.0
STATUS_MAX_S: Final = 5.0
"""After all replicas are equal, what nodes say must be true within this time."""
STRIKE_WAITS: Final = 60
STRIKE_WAIT_S: Final = 3.0
"""How long an ordered fault may take until it strikes."""


class RunFailedError(Exception):
    """The cluster did not become whole after healing; the text says what is missing."""


def run_on_processes(  # noqa: PLR0913 - a run has many parts, all by name
    workload: Workload,
    faults: Sequence[Fault],
    *,
    seconds: float,
    clients: int,
    seed: int,
    directory: Path,
    on_progress: Progress = lambda _line: None,
    fault_pause_s: float = FAULT_PAUSE_S,
    network: str = LOOPBACK,
) -> Run:
    """Run it on three processes of their own below ``directory``; nothing is left running.

    Nodes get disks of their own that lose power where a fault wants that and this machine can do
    it; elsewhere, and when stores shall be swapped too, power loss takes unsynced writes back from
    files. A fault that could not be injected, or never struck, is in ``Run.faults`` with ``fired``
    False and the reason; without the wanted ``network`` there is no run, but
    FaultUnavailableError. A cluster that does not become whole again raises RunFailedError, or
    NotRunError if that is because somebody else took a port of its nodes.
    """
    names = {fault.name for fault in faults}
    wants_power = any(fault.needs_root or "power" in fault.name for fault in faults)
    reason = power.why_unavailable()
    if wants_power and reason is not None:
        on_progress(f"power loss takes unsynced writes back from files: {reason}")
    with_power = wants_power and reason is None and "swap-stores" not in names
    over_http = getattr(workload, "is_over_http", False)
    if over_http and network != LOOPBACK:
        raise FaultUnavailableError(f"HTTP of nodes is not reached on the network {network}")
    environment = getattr(workload, "environment", {})
    target_of = functools.partial(
        ProcessTarget, with_power=with_power, http=over_http, environment=environment
    )
    with target_of(directory, seed=seed, network=network) as target:
        # Proxies lose what a cut takes; a kernel repeats it, some time after the cut is healed.
        held_ms = 0.0 if network == LOOPBACK else INFO_AGE_MS
        run = _Run(workload, faults, target, seed, on_progress, fault_pause_s, held_ms=held_ms)
        with target.blaming_the_machine():
            return run.run(seconds, clients)


def run_on_own_cluster(
    workload: Workload,
    endpoints: Sequence[str],
    *,
    seconds: float,
    clients: int,
    seed: int,
    directory: Path,
    on_progress: Progress = lambda _line: None,
) -> Run:
    """Run it without faults of ours on a cluster that runs already, in tables of its own.

    The owner of the cluster strikes it meanwhile. The tables are dropped when the run ends.
    RunFailedError as above, OSError or RaftstoreError when nobody answers.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = OwnCluster(endpoints, directory)
    # Nobody knows what its owner does to the network.
    run = _Run(workload, (), target, seed, on_progress, held_ms=INFO_AGE_MS)
    return run.run(seconds, clients)


class _Run:
    def __init__(
        self,
        workload: Workload,
        faults: Sequence[Fault],
        target: ProcessTarget | OwnCluster,
        seed: int,
        on_progress: Progress,
        fault_pause_s: float = FAULT_PAUSE_S,
        *,
        held_ms: float = 0.0,
    ) -> None:
        self._workload = workload
        self._held_ms = held_ms
        self._faults = faults
        self._target = target
        self._seed = seed
        self._say = on_progress
        self._quiet_s = fault_pause_s * QUIET_MIN, fault_pause_s * QUIET_MAX
        self._history: list[Operation] = []
        self._faults_noted: list[dict[str, Any]] = []
        self._tables: dict[str, TableInfo] = {}
        self._began = time.monotonic_ns()
        self._file: TextIO | None = None
        self._repeats = RepeatWatch()
        self._status = StatusWatch()

    def run(self, seconds: float, clients: int) -> Run:
        """Everything, in order."""
        with (
            (self._target.directory / HISTORY_NAME).open("w", encoding="utf-8") as file,
            self._machine_watched(),
        ):
            self._file = file
            hashes = asyncio.run(self._all(seconds, clients))
        commits = self._commits()
        channelsets = self._channelsets()
        target = self._target
        nodes = target.watched() if isinstance(target, ProcessTarget) else None
        return Run(
            self._history, commits, hashes, self._faults_noted, self._status, self._repeats,
            self._held_ms, nodes, channelsets, self._voters(),
        )  # fmt: skip

    def _voters(self) -> VoterSets:
        target = self._target
        return target.voters(self._began) if isinstance(target, ProcessTarget) else VoterSets()

    def _settle_members(self) -> None:
        """Wait until the members that faults changed are as before (S8)."""
        target = self._target
        why = target.settle_members(SETTLE_S) if isinstance(target, ProcessTarget) else ""
        if why:
            raise RunFailedError(f"members did not settle within {SETTLE_S:.0f} s: {why}")

    def _machine_watched(self) -> AbstractContextManager[object]:
        """Nodes elsewhere may have any machine."""
        target = self._target
        if not isinstance(target, ProcessTarget):
            return nullcontext()
        return MachineWatch(target.directory, target.processes, self._now, self._faults_noted)

    def _commits(self) -> Mapping[tuple[str, int], Sequence[Committed]]:
        """From the first node's log, after all have caught up; somebody else's stay closed."""
        target = self._target
        if not isinstance(target, ProcessTarget):
            return {}
        node = target.nodes[0]
        target.stop(node)
        tables = {name: (info.uuid, info.partitions) for name, info in self._tables.items()}
        return read_commits(target.data(node), node, tables)

    def _channelsets(self) -> Mapping[tuple[str, int], ChannelSetLog]:
        """The same of channel sets, with the state of every replica."""
        target = self._target
        sets = {
            name: (info.uuid, info.partitions)
            for name, info in self._tables.items()
            if info.machine
        }
        if not sets or not isinstance(target, ProcessTarget):
            return {}
        for node in target.nodes:
            target.stop(node)
        return read_channelsets({n: target.data(n) for n in target.nodes}, target.nodes[0], sets)

    async def _all(
        self, seconds: float, clients: int
    ) -> Mapping[tuple[str, int], Mapping[str, str]]:
        admin = await self._connect()
        try:
            for table, partitions in self._workload.tables.items():
                self._tables[table] = await self._create(admin, table, partitions)
            await self._trouble(seconds, clients, admin)
            self._say("healing")
            await asyncio.to_thread(self._target.heal)
            await asyncio.to_thread(self._settle_members)
            hashes = await self._converged(admin)
            await self._look_at_status(admin)
            self._say("reading back")
            final = self._workload.final_client(random.Random(f"{self._seed} final"))
            caller = Caller(admin, self._tables, CALL_TIMEOUT_S)
            await self._drive("final", final, caller, lambda: False)
            if self._target.table_prefix:
                for made in self._tables.values():
                    await admin.drop_table(made.name)
        finally:
            await admin.close()
        return hashes

    async def _create(self, admin: AsyncClient, table: str, partitions: int) -> TableInfo:
        """Again as long as that may help: the cluster may have no leader just now, and one that is
        in doubt is there or not, which asking again shows."""
        name, end = self._target.table_prefix + table, time.monotonic() + CREATE_S
        machine = getattr(self._workload, "machines", {}).get(table)
        while True:
            try:
                if machine is not None:
                    return await admin.create_channelset(
                        name, machine, partitions=partitions, if_not_exists=True
                    )
                return await admin.create_table(
                    name, key="k", partitions=partitions, if_not_exists=True
                )
            except RequestError as error:
                may_help = error.retriable or isinstance(error, OperationInDoubtError)
                if not may_help or time.monotonic() > end:
                    raise
            await asyncio.sleep(POLL_S)

    async def _trouble(self, seconds: float, clients: int, admin: AsyncClient) -> None:
        """Clients and faults until the time is over; every open call is waited for."""
        end = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() >= end

        struck = Clients(clients, self._repeats)
        if isinstance(self._target, ProcessTarget):
            self._target.clients = struck
        drivers = [self._client(number, is_over, struck) for number in range(clients)]
        await asyncio.gather(
            *drivers, self._nemesis(end), self._watch(admin, end), self._report(end)
        )

    async def _client(self, number: int, is_over: Callable[[], bool], clients: Clients) -> None:
        """One client after another, each until it is killed."""
        for start in itertools.count():
            process = f"c{number}" if not start else f"c{number}.{start}"
            rng = random.Random(f"{self._seed} client {process}")
            connection = await StruckClient.connect(self._target.endpoints, timeout=CALL_TIMEOUT_S)
            calls = asking_fates(self._workload.client(number, rng))
            caller = self._caller(connection, process)
            driver = asyncio.ensure_future(self._drive(process, calls, caller, is_over))
            clients.begin(number, connection, driver)
            try:
                await asyncio.wait((driver,))
            finally:
                driver.cancel()
                await connection.close()
            if not driver.cancelled():
                driver.result()
                return

    def _caller(self, connection: AsyncClient, process: str) -> Caller | HttpCaller:
        """The caller that carries out the calls of a client."""
        target = self._target
        if getattr(self._workload, "is_over_http", False) and isinstance(target, ProcessTarget):
            addresses = list(target.cluster.http_by_node().values())
            rng = random.Random(f"{self._seed} addresses {process}")
            return HttpCaller(addresses, self._tables, CALL_TIMEOUT_S, rng)
        return Caller(connection, self._tables, CALL_TIMEOUT_S)

    async def _drive(
        self, process: str, client: Client, caller: Caller | HttpCaller, is_over: Callable[[], bool]
    ) -> None:
        rng = random.Random(f"{self._seed} pauses {process}")
        call = _first(client)
        while call is not None and not is_over():
            invoked = self._now()
            try:
                answer = await caller.call(call)
            except asyncio.CancelledError:
                self._record(process, call, caller.unanswered(call), invoked)
                raise
            self._record(process, call, answer, invoked)
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            call = _next(client, answer)
        client.close()

    async def _nemesis(self, end: float) -> None:
        rng = random.Random(f"{self._seed} nemesis")
        while self._faults and time.monotonic() < end:
            await asyncio.sleep(min(rng.uniform(*self._quiet_s), max(0.0, end - time.monotonic())))
            if time.monotonic() >= end:
                return
            await self._strike(rng.choice(self._faults), rng, end)

    async def _strike(self, fault: Fault, rng: random.Random, end: float) -> None:
        """Start a fault, let it last, end it; report what was done and whether it happened."""
        target = self._target
        assert isinstance(target, ProcessTarget), "nobody else's cluster is ever struck"
        reported: dict[str, Any] = {"kind": fault.name, "started": self._now(), "did": []}
        self._faults_noted.append(reported)
        witness = witnessed(target, fault, reported)
        before = target.frames()
        reasons: list[str] = []
        missed: list[str] = []
        has_struck = False
        until = min(time.monotonic() + rng.uniform(*fault.lasts_ms) / 1000, end)
        pause_s = fault.repeats_ms / 2000
        is_over = False
        while not is_over:
            try:
                heal = await asyncio.to_thread(fault.inject, witness, rng)
                left_s = max(0.0, until - time.monotonic())
                await asyncio.sleep(min(pause_s or left_s, left_s))
                missed = await self._not_happened(target.take_strikes(), reported)
                has_struck = has_struck or not missed
                await asyncio.to_thread(heal)
            except FaultUnavailableError as error:
                reasons.append(str(error))
            target.take_strikes()  # What healing did is no fault.
            is_over = bool(reasons) or not pause_s or time.monotonic() + 2 * pause_s > until
            if not is_over:
                await asyncio.sleep(pause_s)
        # One that comes and goes may find nothing to strike at times.
        reasons += [] if has_struck else missed
        after = target.frames()
        reported |= {
            "ended": self._now(),
            "fired": not reasons,
            "frames": {name: after[name] - before[name] for name in after if name != "passed"},
        }
        if reasons:
            reported["reason"] = reasons[0]

    async def _not_happened(self, strikes: Sequence[Strike], reported: dict[str, Any]) -> list[str]:
        """Why what was done is no fault after all; a slow machine is given a little time."""
        reported["did"] += [each.what for each in strikes]
        for _ in range(STRIKE_WAITS):
            if all(each.has_happened() for each in strikes):
                break
            await asyncio.sleep(STRIKE_WAIT_S / STRIKE_WAITS)
        return [each.otherwise for each in strikes if not each.has_happened()]

    async def _report(self, end: float) -> None:
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(PROGRESS_S, left))
            self._say(
                f"{len(self._history)} operations, {len(self._faults_noted)} faults, "
                f"{max(0.0, end - time.monotonic()):.0f} s to go"
            )

    async def _watch(self, admin: AsyncClient, end: float) -> None:
        """Remember what nodes say of each other while the faults last."""
        while time.monotonic() < end:
            await asyncio.sleep(min(STATUS_EVERY_S, max(0.0, end - time.monotonic())))
            with contextlib.suppress(RaftstoreError, OSError, TimeoutError):
                self._status.observe(await self._views(admin))

    async def _look_at_status(self, admin: AsyncClient) -> None:
        """Wait until the status of every node is true; note how long that took."""
        began = time.monotonic()
        while time.monotonic() < began + STATUS_MAX_S:
            try:
                views = await self._views(admin)
            except (RaftstoreError, OSError, TimeoutError) as error:
                self._status.last_untruths = (f"no node reports: {error}",)
            else:
                self._status.observe(views)
                self._status.last_untruths = tuple(untruths(views, tuple(views)))
            if not self._status.last_untruths:
                self._status.true_after_ms = (time.monotonic() - began) * 1_000
                return
            await asyncio.sleep(POLL_S)

    async def _views(self, admin: AsyncClient) -> Mapping[str, Mapping[str, Any] | None]:
        nodes = (await admin.cluster_status(timeout=CALL_TIMEOUT_S)).nodes
        return {node.name: node.status for node in nodes}

    async def _converged(self, admin: AsyncClient) -> Mapping[tuple[str, int], Mapping[str, str]]:
        """Wait until all replicas hold the same; return their hashes.

        The last look decides: one before it may have been at replicas that were still copied, or
        that have gone since.
        """
        seconds = CONVERGE_S if isinstance(self._target, ProcessTarget) else OWN_CONVERGE_S
        end = time.monotonic() + seconds
        last = "nobody answered"
        hashes: dict[tuple[str, int], dict[str, str]] = {}
        while time.monotonic() < end:
            try:
                hashes = await self._hashes(admin)
            except (RaftstoreError, OSError, TimeoutError) as error:
                last, hashes = str(error), {}
            else:
                if all(len(set(of.values())) == 1 for of in hashes.values()):
                    return hashes
                last = f"replicas differ: {hashes}"
            await asyncio.sleep(POLL_S)
        if hashes:
            return hashes  # the checker of replicas says that they differ
        raise RunFailedError(
            f"the cluster in {self._target.directory} was not whole {seconds:.0f} s after "
            f"healing: {last}; see the logs there"
        )

    async def _hashes(self, admin: AsyncClient) -> dict[tuple[str, int], dict[str, str]]:
        hashes: dict[tuple[str, int], dict[str, str]] = {}
        nodes = [node.name for node in (await admin.cluster_status()).nodes]
        for table, made in self._tables.items():
            for node in nodes:
                digest = await admin.content_hash(made.name, node, timeout=CALL_TIMEOUT_S)
                for part in digest.partitions:
                    of = hashes.setdefault((table, part.partition), {})
                    of[node] = f"{part.digest}@{part.applied_seq}"
        return hashes

    async def _connect(self) -> AsyncClient:
        return await AsyncClient.connect(self._target.endpoints, timeout=CALL_TIMEOUT_S)

    def _now(self) -> int:
        return time.monotonic_ns() - self._began

    def _record(self, process: str, call: Call, answer: Answer, invoked: int) -> None:
        operation = Operation(
            process=process,
            action=call.action.value,
            key=call.key,
            value=argument(call),
            invoked=invoked,
            returned=None if answer.outcome is Outcome.UNKNOWN else self._now(),
            outcome=answer.outcome,
            result=answer.value,
            details={**asked(call), **details_of(answer, self._now())},
        )
        self._history.append(operation)
        assert self._file is not None
        self._file.write(json.dumps(operation.as_json(), ensure_ascii=False) + "\n")
        self._file.flush()


def _first(client: Generator[Call, Answer, None]) -> Call | None:
    return next(client, None)


def _next(client: Generator[Call, Answer, None], answer: Answer) -> Call | None:
    try:
        return client.send(answer)
    except StopIteration:
        return None
