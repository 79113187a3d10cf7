"""``python -m benchmarks.counted FILE PYTHON -m MODULE ARGUMENTS...``: count the calls of a node.

Runs the module in this process, its main thread under cProfile. At every SIGUSR2 it replaces FILE
with what was counted so far: JSON of ``number`` (of the signal) and ``calls`` (function -> calls).
(A node takes SIGUSR1 for a checkpoint.)
"""

from __future__ import annotations

import cProfile
import json
import runpy
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Arrange for the counting and become the module."""
    report_file = Path(sys.argv[1])
    module, arguments = sys.argv[4], sys.argv[5:]
    profile = cProfile.Profile()
    number = 0

    def tell(_signal: int, _frame: object) -> None:
        nonlocal number
        number += 1
        profile.disable()
        aside = report_file.with_suffix(".new")
        aside.write_text(json.dumps({"number": number, "calls": counted(profile)}))
        aside.replace(report_file)
        profile.enable(builtins=True)

    signal.signal(signal.SIGUSR2, tell)
    sys.argv = [module, *arguments]
    profile.enable(builtins=True)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def counted(profile: cProfile.Profile) -> dict[str, int]:
    """Calls by function: ``path:name`` of those in Python, the name of builtins."""
    profile.create_stats()
    found: dict[str, int] = {}
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = profile.stats  # type: ignore[attr-defined]
    for (path, _, name), (_, calls, *_) in stats.items():
        where = "/".join(Path(path).parts[-3:])
        key = f"{where}:{name}"
        found[key] = found.get(key, 0) + calls
    return found


if __name__ == "__main__":
    main()
