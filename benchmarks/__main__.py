"""``python -m benchmarks [--only NAME] [--json FILE] [--tiny] [--minutes N] [--rows N]``.

Those that run for minutes by their nature (audit_cost, availability, background_work, catch_up,
false_alarms, far_behind, growing, lost_disk, rebalance, scaling, slow_replica, snapshot_kills,
switches, witness), or take the machine for themselves (hostile_clients), run only when named, and
so does what needs Java (spark_read, spark_write).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    audit_cost,
    availability,
    background_work,
    calls,
    catch_up,
    checker,
    commands,
    durability,
    failover,
    false_alarms,
    far_behind,
    growing,
    hostile_clients,
    http_gets,
    idle,
    latency,
    lost_disk,
    puts,
    reads,
    rebalance,
    retention,
    scaling,
    slow_replica,
    snapshot_kills,
    spark_read,
    spark_write,
    switches,
    views,
    witness,
    write,
)

BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "write": write.run,
    "latency": latency.run,
    "puts": puts.run,
    "durability": durability.run,
    "calls": calls.run,
    "commands": commands.run,
    "idle": idle.run,
    "failover": failover.run,
    "reads": reads.run,
    "http_gets": http_gets.run,
    "views": views.run,
    "retention": retention.run,
    "checker": checker.run,
}
WITH_ROWS: dict[str, Callable[..., dict[str, Any]]] = {
    "catch_up": catch_up.run,
    "far_behind": far_behind.run,
    "lost_disk": lost_disk.run,
    "snapshot_kills": snapshot_kills.run,
    "spark_read": spark_read.run,
    "spark_write": spark_write.run,
}
NAMED: dict[str, Callable[[bool], dict[str, Any]]] = {
    "audit_cost": audit_cost.run,
    "background_work": background_work.run,
    "growing": growing.run,
    "rebalance": rebalance.run,
    "scaling": scaling.run,
    "switches": switches.run,
    "witness": witness.run,
}
LONG: dict[str, Callable[..., dict[str, Any]]] = {
    "availability": availability.run,
    "false_alarms": false_alarms.run,
    "hostile_clients": hostile_clients.run,
    "slow_replica": slow_replica.run,
}
MINUTES = {
    "availability": 10.0,
    "false_alarms": 30.0,
    "hostile_clients": 0.75,
    "slow_replica": 1.0,
}
TINY_MINUTES = 0.5


def _show(key: str, value: Any) -> None:
    """A list of rows is shown as a table."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        print(f"{key:>42}: {value}", flush=True)
        return
    print(f"{key:>42}:")
    for row in [dict(zip(value[0], value[0], strict=True)), *value]:
        first, *others = map(str, row.values())
        print(f"  {first:<48}" + "".join(f"{cell:>9}  " for cell in others), flush=True)


def main() -> int:
    """Run the chosen benchmarks and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", choices=sorted({**BENCHMARKS, **NAMED, **WITH_ROWS, **LONG}), action="append"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--minutes", type=float, help="of those that run for minutes")
    parser.add_argument(
        "--rows",
        type=int,
        help="of catch_up, far_behind, lost_disk, snapshot_kills, spark_read and spark_write",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="of catch_up, spark_read and spark_write; kills of snapshot_kills, nodes of lost_disk",
    )
    parser.add_argument(
        "--http-flood", type=int, default=0, help="connections that read in false_alarms"
    )
    parser.add_argument(
        "--slow-disk", type=float, default=0.0, help="ms that a sync takes longer in false_alarms"
    )
    chosen = parser.parse_args()
    # With it, every node that is started compiles the program anew: a second of processor time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    figures: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
        }
    }
    for name in chosen.only or list(BENCHMARKS):
        print(f"--- {name}", flush=True)
        if name in LONG:
            default = TINY_MINUTES if chosen.tiny else MINUTES[name]
            minutes = default if chosen.minutes is None else chosen.minutes
            extra = {"http_flood": chosen.http_flood, "slow_disk_ms": chosen.slow_disk}
            figures[name] = LONG[name](minutes, **(extra if name == "false_alarms" else {}))
        elif name in WITH_ROWS:
            figures[name] = WITH_ROWS[name](chosen.tiny, rows=chosen.rows, rounds=chosen.rounds)
        else:
            figures[name] = (BENCHMARKS | NAMED)[name](chosen.tiny)
        for key, value in figures[name].items():
            _show(key, value)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
