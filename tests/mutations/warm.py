"""Processes that run tests in forks of themselves, on sources that are edited at that moment.

Starting Python, pytest and Hypothesis, importing raftstore and collecting take far longer than most
tests that notice a mutation run. A fork of one process begins behind all that: it replaces the code
of the functions that are edited. A fork of the other one, for edits of anything else, has imported
everything but raftstore. Linux only.

The first line of JSON that comes in names the tests to collect, if any. Another one comes for each
run, and its exit code goes out: see ``main`` and ``directed.Workplace``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutations.replaced import Functions

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
FAILED = 1
"""Exit code of a run in which a test failed, as pytest's."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run that is asked for."""

    tests: list[str]
    """Pytest's node ids."""
    edited: list[str]
    """Files that differ from the originals."""
    output: str
    """The file for what it prints."""
    seconds: float
    """After so many it is killed."""


Run = Callable[[Request], int]


def _run_fresh(request: Request) -> int:
    return int(pytest.main([*OPTIONS, *request.tests]))


class Collected:
    """A plugin of pytest that serves runs of the tests that are collected, instead of its loop."""

    def __init__(self, serve: Callable[[Run], None]) -> None:
        self._serve = serve
        self._items: list[pytest.Item] = []
        self._functions: Functions | None = None
        self._failed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own."""
        self._items = list(session.items)
        self._functions = Functions(Path.cwd())
        gc.freeze()
        self._serve(self._run)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # pytest would say that no tests ran
        session.items = []
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the test that noticed."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = report.longreprtext if crash is None else crash.message
            self._failed.append(f"FAILED {report.nodeid} - {said.strip().partition(chr(10))[0]}")

    def _run(self, request: Request) -> int:
        assert self._functions is not None
        self._functions.replace(request.edited)
        # Two guards may name a test, one of them with others: an item runs once only.
        items = list(
            dict.fromkeys(
                item
                for test in request.tests
                for item in self._items
                if item.nodeid == test or item.nodeid.startswith((f"{test}[", f"{test}::"))
            )
        )
        assert items, request.tests
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                sys.stdout.write("\n" + "\n".join(self._failed) + "\n")
                return FAILED
        return 0


def _fork(run: Run, request: Request) -> int:
    """Exit code of the run; -1 when it took too long and was killed."""
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            os.setsid()
            descriptor = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            code = run(request)
        except BaseException:  # noqa: BLE001 - a fork must never return into the parent's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    ended = os.pidfd_open(child)
    try:
        is_over = bool(select.select([ended], [], [], request.seconds)[0])
    finally:
        os.close(ended)
    if not is_over:
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if is_over else -1


def main() -> None:
    """Serve requests until there are no more."""
    # Descriptors that no output of pytest or of a test finds.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # A process in the background ignores it, and tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A failure is enough; nobody reads the smallest example of it.
    settings.register_profile(
        PROFILE,
        max_examples=80,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )

    def serve(run: Run) -> None:
        for line in requests:
            answers.write(f"{_fork(run, Request(**json.loads(line)))}\n")
            answers.flush()

    if tests := json.loads(requests.readline()):
        pytest.main([*OPTIONS, "--capture=no", *tests], plugins=[Collected(serve)])
        return
    for name in PRELOADED:
        importlib.import_module(name)
    serve(_run_fresh)


if __name__ == "__main__":
    main()
