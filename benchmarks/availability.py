"""One of three nodes is killed at random every 30 s: what bounded reads notice, and what they read.

Three readers ask for bounded reads with a deadline of 500 ms, 60 a second each: by rows and by time
in turn. Beside them rows are written all the time, and a few registers are written and read at
level linearizable. At the end the committed log is read from the stores of the stopped nodes:
no read may have been served beyond its bound (``jepsen_like.checker.staleness``), and the registers
have to be linearizable.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.checker.linearizable import check_linearizable
from jepsen_like.checker.models import model_named
from jepsen_like.checker.rw_register import check_rw_register, puts_and_gets
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.target.processes.commits import read_commits
from jepsen_like.workload.base import Run
from jepsen_like.workload.judging import as_register
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.results import GetResult
from raftstore.demo.verify import wait_until_settled
from raftstore.errors import RaftstoreError, RequestError
from raftstore.local_cluster import LocalCluster
from raftstore.types import Level, Outcome

ROWS: Final = "rows"
REGISTERS: Final = "registers"
PARTITIONS: Final = 4
KEYS: Final = 512
REGISTER_KEYS: Final = 8
READERS: Final = 3
READS_PER_SECOND: Final = 60
WRITES_PER_SECOND: Final = 100
REGISTER_CLIENTS: Final = 3
DEADLINE_S: Final = 0.5
MAX_LAG: Final = 20
"""Less than what is written to a partition in a second, so that a replica that is behind shows."""
HELD_MS: Final = 1_000.0
"""What the judge allows for: nobody watches whether the machine starved a node."""
MAX_STALENESS_S: Final = 2.0
KILL_EVERY_S: Final = 30.0
LOOK_S: Final = 3.0
"""How long after a kill the gaps between successful reads are looked at."""


@dataclass(slots=True)
class _Seen:
    """All requests and answers of clients, on one clock."""

    began: int = field(default_factory=time.monotonic_ns)
    history: list[Operation] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    """``ok``, or the code of the error, of bounded reads."""
    times_ms: list[float] = field(default_factory=list)
    """Of the bounded reads that were answered."""
    answered_at: list[float] = field(default_factory=list)
    kills: list[tuple[float, str]] = field(default_factory=list)

    @property
    def now(self) -> int:
        """Nanoseconds since the beginning."""
        return time.monotonic_ns() - self.began

    def record(self, process: str, call: Call, answer: Answer, invoked: int, bound: int) -> None:
        """One finished operation, in the words of the checkers."""
        details = {
            "table": call.table,
            "level": call.level.value,
            "positions": [list(pair) for pair in answer.positions],
            "lag": answer.lag,
            "leader_info_age_ms": answer.leader_info_age_ms,
            "max_lag": call.max_lag,
            "staleness_ms": answer.staleness_ms,
            "max_staleness_ms": bound or None,
            "served_by": answer.served_by,
            "error": answer.error,
        }
        returned = None if answer.outcome is Outcome.UNKNOWN else self.now
        self.history.append(
            Operation(
                process=process,
                action=call.action.value,
                key=call.key,
                value=call.value,
                invoked=invoked,
                returned=returned,
                outcome=answer.outcome,
                result=answer.value,
                details=details,
            )
        )


def run(minutes: float, *, kill_every_s: float = KILL_EVERY_S) -> dict[str, Any]:
    """The figures and the verdicts; the stores are read after every node was stopped."""
    with LocalCluster(nodes=3) as cluster:
        seen, tables = asyncio.run(_traffic(cluster, minutes * 60.0, kill_every_s))
        for name in cluster.running():
            cluster.stop(name)
        commits = read_commits(cluster.directory / "n1", "n1", tables)
    history = sorted(seen.history, key=lambda operation: operation.invoked)
    run_ = Run(history, commits=commits, held_ms=HELD_MS)
    registers = [each for each in history if each.details["table"] == REGISTERS]
    verdicts = [
        check_staleness(run_, ROWS),
        check_linearizable(model_named("register"), as_register(registers)),
        check_rw_register(puts_and_gets(registers)),
    ]
    return _figures(seen, verdicts, minutes)


def _figures(seen: _Seen, verdicts: list[Verdict], minutes: float) -> dict[str, Any]:
    total, ok = seen.reads.total(), seen.reads["ok"]
    times = sorted(seen.times_ms)
    gaps = [_gap_ms(seen.answered_at, at) for at, _ in seen.kills]
    figures: dict[str, Any] = {
        "minutes": minutes,
        "kills": len(seen.kills),
        "bounded reads": total,
        "answered in time": f"{ok} = {100 * ok / max(1, total):.4f} % (goal 99.99)",
        "refused or late": {code: n for code, n in seen.reads.items() if code != "ok"},
        "p50 / p99.9 / worst ms": [
            round(times[int((len(times) - 1) * share)], 1) for share in (0.5, 0.999, 1.0)
        ],
        "longest gap of reads after each kill, ms (goal 60)": [round(gap) for gap in gaps],
    }
    for verdict in verdicts:
        figures[verdict.checker] = f"{verdict.validity.name}: {verdict.summary} {verdict.figures}"
    return figures


def _gap_ms(times: list[float], killed: float) -> float:
    """Longest silence between answers from the kill on, borders included."""
    end = killed + LOOK_S
    inside = [killed, *sorted(at for at in times if killed < at < end), end]
    return max(b - a for a, b in itertools.pairwise(inside)) * 1000


async def _traffic(
    cluster: LocalCluster, seconds: float, kill_every_s: float
) -> tuple[_Seen, dict[str, tuple[bytes, int]]]:
    clients = [await aio.connect(cluster.endpoints, timeout=10.0) for _ in range(READERS + 1)]
    writer = clients[0]
    infos = [
        await writer.create_table(name, key="k", partitions=PARTITIONS)
        for name in (ROWS, REGISTERS)
    ]
    await writer.table(ROWS).put_many([{"k": key, "v": 0} for key in range(KEYS)])
    seen, numbers = _Seen(), itertools.count(1)
    end = time.monotonic() + seconds
    jobs: list[Coroutine[Any, Any, None]] = [
        _paced(end, WRITES_PER_SECOND, lambda: _write(writer, seen, numbers)),
        _kill(cluster, seen, end, kill_every_s),
    ]
    for number, client in enumerate(clients[1:]):
        jobs.append(_paced(end, READS_PER_SECOND, _reader(client, seen, number)))
    jobs += [_registers(clients[n % READERS + 1], seen, n, end) for n in range(REGISTER_CLIENTS)]
    await asyncio.gather(*jobs)
    # The log that is read afterwards must have everything that was committed.
    await asyncio.to_thread(cluster.wait_until_ready)
    nodes = sorted(cluster.endpoints_by_node())
    assert await wait_until_settled(writer, [ROWS, REGISTERS], nodes)
    for client in clients:
        await client.close()
    return seen, {info.name: (info.uuid, info.partitions) for info in infos}


async def _paced(end: float, per_second: int, call: Callable[[], Awaitable[None]]) -> None:
    """Begin a call at each beat, whether or not the ones before are done."""
    started, number, open_calls = time.monotonic(), 0, set[asyncio.Task[None]]()

    async def one() -> None:
        await call()

    while time.monotonic() < end:
        number += 1
        task = asyncio.create_task(one())
        open_calls.add(task)
        task.add_done_callback(open_calls.discard)
        await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
    await asyncio.gather(*open_calls)


def _reader(client: AsyncClient, seen: _Seen, number: int) -> Callable[[], Awaitable[None]]:
    table, rng, turn = client.table(ROWS), random.Random(number), itertools.count()

    async def read() -> None:
        by_time = next(turn) % 2 == 1
        key = rng.randrange(KEYS)
        bound = None if by_time else MAX_LAG
        call = Call(Action.GET, ROWS, key, level=Level.BOUNDED, max_lag=bound)
        limits: dict[str, Any] = (
            {"max_staleness": MAX_STALENESS_S} if by_time else {"max_lag": bound}
        )
        invoked, began = seen.now, time.monotonic()
        try:
            found = await table.get_result(key, timeout=DEADLINE_S, prefer="any_in_bound", **limits)
        except RequestError as error:
            seen.reads[error.code] += 1
            answer = Answer(Outcome.NOT_APPLIED, error=error.code)
        else:
            ended = time.monotonic()
            in_time = ended - began <= DEADLINE_S * 1.1  # the client's own deadline is checked too
            seen.reads["ok" if in_time else "late"] += 1
            seen.times_ms.append((ended - began) * 1000)
            seen.answered_at.append(ended)
            answer = _answer(found)
        age_ms = int(MAX_STALENESS_S * 1000) if by_time else 0
        seen.record(f"reader{number}", call, answer, invoked, age_ms)

    return read


async def _write(client: AsyncClient, seen: _Seen, numbers: itertools.count[int]) -> None:
    number = next(numbers)
    call = Call(Action.PUT, ROWS, number * 7919 % KEYS, number)
    await _put(client, seen, f"writer{number}", call)


async def _put(client: AsyncClient, seen: _Seen, process: str, call: Call) -> None:
    invoked = seen.now
    try:
        ack = await client.table(call.table).put({"k": call.key, "v": call.value}, timeout=10.0)
    except RequestError as error:
        answer = Answer(error.outcome, error=error.code)
    else:
        answer = Answer(Outcome.OK, positions=((ack.partition, ack.seq),))
    seen.record(process, call, answer, invoked, 0)


async def _registers(client: AsyncClient, seen: _Seen, number: int, end: float) -> None:
    """Blind writes of values that nobody else writes, and linearizable reads; one at a time."""
    rng, value = random.Random(f"register {number}"), number
    while time.monotonic() < end:
        key = rng.randrange(REGISTER_KEYS)
        value += REGISTER_CLIENTS
        process = f"register{number}"
        if rng.random() < 0.5:
            await _put(client, seen, process, Call(Action.PUT, REGISTERS, key, value))
        else:
            invoked = seen.now
            call = Call(Action.GET, REGISTERS, key)
            try:
                answer = _answer(await client.table(REGISTERS).get_result(key, timeout=10.0))
            except RequestError as error:
                answer = Answer(Outcome.NOT_APPLIED, error=error.code)
            seen.record(process, call, answer, invoked, 0)
        await asyncio.sleep(0.02)


def _answer(found: GetResult) -> Answer:
    return Answer(
        Outcome.OK,
        None if found.value is None else found.value["v"],
        seqs=(found.seq,),
        positions=((found.partition, found.applied_seq),),
        served_by=found.node,
        lag=found.lag,
        leader_info_age_ms=found.leader_info_age_ms,
        staleness_ms=found.staleness_ms,
    )


async def _kill(cluster: LocalCluster, seen: _Seen, end: float, every_s: float) -> None:
    """Kill -9 of a node, and a start a few seconds later; a node at a time."""
    rng, due = random.Random("kills"), time.monotonic() + min(2.0, every_s)
    while due + LOOK_S < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        victim = rng.choice(sorted(cluster.running()))
        seen.kills.append((time.monotonic(), victim))
        await asyncio.to_thread(cluster.kill, victim)
        await asyncio.sleep(rng.uniform(0.1, 0.4) * every_s)
        await asyncio.to_thread(cluster.start, victim)
        try:
            await asyncio.to_thread(cluster.wait_until_ready)
        except RaftstoreError as error:
            print(f"not ready before the next kill: {error}", flush=True)
        due += every_s
