"""The figures of ``spark_write``, from what was measured; nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final, NamedTuple

from benchmarks.processor_time import JVM, OURSELVES, WORKERS
from benchmarks.spark_floor import Floor
from benchmarks.spark_session import SLOTS

COUNTING: Final = "counting sink"
BATCH: Final = "raftstore append (atomic)"
ROW: Final = "raftstore isolation=row"
NODES: Final = "three nodes"
SERVER: Final = "server"
GOAL: Final = 1.3


class Run(NamedTuple):
    """One write of so many rows: seconds by the wall, and of processors by group."""

    rows: int
    wall_s: float
    cpu_s: Mapping[str, float]

    @property
    def per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.wall_s


class Nodes(NamedTuple):
    """The work of the nodes meanwhile, all of them together."""

    loop_s: float
    """Processor time of their main threads."""
    syncs: int
    sync_s: float
    disk_bytes: int


@dataclass(frozen=True)
class Staged:
    """An append with clocks in its tasks; ``wall`` and ``cpu`` are sums over the tasks."""

    run: Run
    wall: Mapping[str, float]
    cpu: Mapping[str, float]
    commit_s: float
    nodes: Nodes


def rates(runs: Mapping[str, Sequence[Run]], rows: int) -> dict[str, Any]:
    """Median rows per second, all of them, and processor time a row by group."""
    reported: dict[str, Any] = {}
    for name, timed in runs.items():
        few = "" if timed[0].rows == rows else f" (of {timed[0].rows:,} rows)"
        reported[f"{name}, rows/s{few}"] = _median([one.per_s for one in timed])
        used = {
            group: round(median(one.cpu_s[group] / one.rows * 1e6 for one in timed), 2)
            for group in timed[0].cpu_s
        }
        reported[f"{name}, us of processors a row"] = used
    return reported


def ratios(
    runs: Mapping[str, Sequence[Run]], floors: Sequence[Floor], alone: Sequence[float], rows: int
) -> dict[str, Any]:
    """P15 and what it is made of."""
    reported: dict[str, Any] = {
        f"floor: three LevelDBs, rows/s (of {rows:,} rows)": _median(
            [f.rows_per_s for f in floors]
        ),
        f"store alone (P3), rows/s (of {rows:,} rows)": _median(alone),
    }
    for name in (BATCH, ROW):
        found = [
            ours.wall_s / (counted.wall_s + ours.rows / store)
            for ours, counted, store in zip(runs[name], runs[COUNTING], alone, strict=True)
        ]
        reported[f"P15 {name} : counting + P3 (goal {GOAL})"] = _median(found, digits=2)
    for name, timed in runs.items():
        if name.startswith("foreachPartition"):
            found = [a.per_s / b.per_s for a, b in zip(runs[BATCH], timed, strict=True)]
            reported[f"{BATCH} : {name}"] = _median(found, digits=2)
    return reported


def _median(found: Sequence[float], digits: int = 0) -> str:
    shown = f"{median(found):,.{digits}f}"
    if len(found) == 1:
        return shown
    return f"{shown} ({min(found):,.{digits}f} to {max(found):,.{digits}f})"


# --- where the time goes --------------------------------------------------------------------------


def breakdown(
    staged: Staged, runs: Mapping[str, Sequence[Run]], floors: Sequence[Floor]
) -> dict[str, Any]:
    """Two tables of the append with clocks: by the wall, and of processors."""
    return {
        "where the time of an append goes": _by_the_wall(staged),
        "where its processor time goes": _of_processors(staged, runs, floors),
        "bytes on disk of three nodes, MB": round(staged.nodes.disk_bytes / 1e6),
        "this append was, rows/s": round(staged.run.per_s),
    }


def _by_the_wall(staged: Staged) -> list[dict[str, Any]]:
    parts = [
        ("Spark: until the rows are in Python", staged.wall["spark"] / SLOTS),
        ("encoding in the task", staged.wall["encode"] / SLOTS),
        ("waiting for the store while staging", staged.wall["store"] / SLOTS),
        ("commit, until every partition applied it", staged.commit_s),
    ]
    known = ["measured in the tasks"] * 3 + ["measured on the driver"]
    rest = staged.run.wall_s - sum(seconds for _, seconds in parts)
    parts.append(("planning, starting tasks, a slot without a task", rest))
    return [
        {
            "part": part,
            "s": round(seconds, 2),
            "share": f"{seconds / staged.run.wall_s:.0%}",
            "known": how,
        }
        for (part, seconds), how in zip(parts, [*known, "the rest"], strict=True)
    ]


def _of_processors(
    staged: Staged, runs: Mapping[str, Sequence[Run]], floors: Sequence[Floor]
) -> list[dict[str, Any]]:
    cpu, rows, nodes = staged.run.cpu_s, staged.run.rows, staged.nodes
    counted = median(one.cpu_s[JVM] / one.rows for one in runs[COUNTING]) * rows
    in_tasks = sum(staged.cpu[part] for part in ("spark", "encode", "store", "client"))
    leveldb = mean(floor.cpu_us for floor in floors) * rows / 1e6
    total = sum(cpu.values())
    parts = [
        (JVM, cpu[JVM], "measured"),
        ("- of it in the counting job", counted, "measured in that job"),
        ("worker: Arrow batches into Python", staged.cpu["spark"], "measured in the tasks"),
        ("worker: encoding", staged.cpu["encode"], "measured in the tasks"),
        ("worker: the client", staged.cpu["store"] + staged.cpu["client"], "measured in the tasks"),
        ("workers: begin, plan, commit", cpu[WORKERS] - in_tasks, "the rest of their processes"),
        ("the driver's Python", cpu[OURSELVES], "measured"),
        ("nodes: main loops (receive, check, replicate)", nodes.loop_s, "measured"),
        ("nodes: log, tables, LevelDB", cpu[NODES] - nodes.loop_s, "the rest of their threads"),
        ("- of it LevelDB writing the rows", leveldb, "estimate: what the floor used"),
        ("(syncs: waiting, not processor time)", nodes.sync_s, f"{nodes.syncs} group commits"),
    ]
    return [
        {
            "part": part,
            "s": round(seconds, 2),
            "us a row": round(seconds / rows * 1e6, 2),
            "share": "" if part[0] in "-(" else f"{seconds / total:.0%}",
            "known": how,
        }
        for part, seconds, how in parts
    ]
