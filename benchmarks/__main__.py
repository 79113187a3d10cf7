"""``python -m benchmarks [--only failover|write|idle|latency|checker] [--json FILE] [--tiny]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import checker, failover, idle, latency, write

BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "write": write.run,
    "latency": latency.run,
    "idle": idle.run,
    "failover": failover.run,
    "checker": checker.run,
}


def main() -> int:
    """Run the chosen benchmarks and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=sorted(BENCHMARKS), action="append")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes")
    chosen = parser.parse_args()
    figures: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
        }
    }
    for name in chosen.only or list(BENCHMARKS):
        print(f"--- {name}", flush=True)
        figures[name] = BENCHMARKS[name](chosen.tiny)
        for key, value in figures[name].items():
            print(f"{key:>42}: {value}", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
