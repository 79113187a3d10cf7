"""Settings of all tests: Hypothesis profiles, and a guard that nobody's environment leaks in.

``RAFTSTORE_TEST_PROFILE`` chooses the profile: ``dev`` (few examples, the default), ``ci`` (same
examples in every run), ``quick`` (the first of those) or ``long`` (a night's search). With
``RAFTSTORE_TEST_NO_SKIPS`` a skipped test fails the run: what did not run has shown nothing.

Exit code 1 is of failed tests alone, and ``.ci/test`` tries those once more. So a run that a broken
promise, a skipped test or the end of its time failed has another one.
"""

from __future__ import annotations

import gc
import os
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code; slow tests carry a marker instead.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci",
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=20)
settings.register_profile("long", max_examples=5_000, deadline=None)
settings.load_profile(os.environ.get("RAFTSTORE_TEST_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--rewrite``: write what scripts print into them; review the diff like code."""
    parser.addoption("--rewrite", action="store_true", help="rewrite tests/scripts/*.txt")


EXIT_WRONG: Final = 7
"""A promise was broken: as of every command of raftstore that finds something wrong."""
_broken: Final[list[str]] = []
"""Tests that said so."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember broken promises; a test's worker reports it by the name of what was raised."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.failed and crash is not None and "BrokenPromiseError" in crash.message:
        _broken.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Exit codes other than 1 for what no second try of the failed tests could mend.

    A session that ends before its tests do has the code of failed tests otherwise.
    """
    if "session-timeout" in str(session.shouldfail):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    _refuse_skips(session)
    if _broken:
        session.exitstatus = EXIT_WRONG


def _refuse_skips(session: pytest.Session) -> None:
    """Fail a run that skipped tests where every test has to run."""
    if not os.environ.get("RAFTSTORE_TEST_NO_SKIPS"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped:
        reporter.write_line(f"{len(skipped)} skipped tests, and none may be skipped here", red=True)
        session.exitstatus = pytest.ExitCode.INTERRUPTED


gc.disable()  # until the first test: what modules and tests are found as stays, every bit of it


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """No collection looks at what is there before the first test: it stays until the last one.

    That is a million objects, and tests that ask for a collection would pay for all of them.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own RAFTSTORE_ENDPOINTS must not decide what a test talks to."""
    for variable in tuple(os.environ):
        if variable.startswith("RAFTSTORE_") and not variable.startswith("RAFTSTORE_TEST_"):
            monkeypatch.delenv(variable)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Next to Spark a socket that the collector closes is no failure of the test at hand.

    Workers of Spark outlive the jobs that they served, and connect to the nodes of a test until
    these are gone. Which of these sockets is met open, and in which later test, is chance.
    """
    for item in items:
        if item.get_closest_marker("spark") is not None:
            for what in ("function _SelectorTransport", "socket.socket"):
                ignored = f"ignore:Exception ignored in. <{what}"
                marker = f"{ignored}:pytest.PytestUnraisableExceptionWarning"
                item.add_marker(pytest.mark.filterwarnings(marker))
