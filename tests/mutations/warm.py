"""A process that has everything imported but raftstore, and runs tests in forks of it.

Starting Python, pytest and Hypothesis takes longer than most tests that notice a mutation run. A
fork begins behind all that, imports raftstore as it is edited at that moment, and ends. Linux only.

A line of JSON comes in for each run, its exit code goes out: see ``main`` and
``directed.Workplace``.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import traceback

import pytest
from hypothesis import HealthCheck, Phase, settings

PRELOADED = (
    "asyncio",
    "click",
    "hypothesis.stateful",
    "hypothesis.strategies",
    "msgpack",
    "msgspec.msgpack",
    "plyvel",
    "pyarrow",
    "pyspark.sql.types",
    "pysyncobj",
    "rich.console",
)
OPTIONS = (
    "-x",
    "-q",
    "--no-header",
    "--tb=line",
    "--override-ini=addopts=--strict-markers --import-mode=importlib -rf",
    "-pno:cacheprovider",
    # Of Hypothesis, which is imported before the fork.
    "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning",
)
PROFILE = "mutations"
BROKEN = 70
"""Exit code of a run that ended by something else than a test."""


def _run(request: dict[str, object]) -> int:
    descriptor = os.open(str(request["output"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    tests = request["tests"]
    assert isinstance(tests, list)
    return int(pytest.main([*OPTIONS, *tests]))


def _fork(request: dict[str, object], seconds: float) -> int:
    """Exit code of the run; -1 when it took too long and was killed."""
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            os.setsid()
            code = _run(request)
        except BaseException:  # noqa: BLE001 - a fork must never return into the parent's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    ended = os.pidfd_open(child)
    try:
        is_over = bool(select.select([ended], [], [], seconds)[0])
    finally:
        os.close(ended)
    if not is_over:
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if is_over else -1


def main() -> None:
    """Serve requests until there are no more.

    ``{"tests": [pytest's node ids]}`` with ``"output"``, a file for what it prints, and
    ``"seconds"``, after which it is killed.
    """
    # A failure is enough; nobody reads the smallest example of it.
    settings.register_profile(
        PROFILE,
        max_examples=80,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        code = _fork(request, float(request["seconds"]))
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
