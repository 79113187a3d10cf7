"""Settings of all tests: Hypothesis profiles, and a guard that nobody's environment leaks in.

``RAFTSTORE_TEST_PROFILE`` chooses the profile: ``dev`` (few examples, the default), ``ci`` (same
examples in every run), ``quick`` (the first of those) or ``long`` (a night's search). With
``RAFTSTORE_TEST_NO_SKIPS`` a skipped test fails the run: what did not run has shown nothing.

The CI runs on machines that now and then give it no processor for seconds, and then a test of real
processes may fail that has nothing to tell. There, and only there, a failed test runs once more
(``--reruns 1``); the end of the log names it with its reason, and a run with more than
SECOND_RUNS_MAX of them fails: that many are no accident.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

SECOND_RUNS_MAX = 3
"""Tests of one run that may pass at the second try only."""

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


def _reports(config: pytest.Config, outcome: str) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get(outcome, []) if reporter else []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name what ran a second time, and why."""
    for report in _reports(config, "rerun"):
        reason = report.longreprtext.strip().rpartition("\nE ")[2].partition("\n")[0].strip()
        terminalreporter.write_line(f"ran again: {report.nodeid}: {reason}", yellow=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run with many second tries, and one that skipped tests where all have to run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if len(again := _reports(session.config, "rerun")) > SECOND_RUNS_MAX:
        reporter.write_line(f"\n{len(again)} tests ran again, too many to be chance", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if not os.environ.get("RAFTSTORE_TEST_NO_SKIPS"):
        return
    skipped = _reports(session.config, "skipped")
    if skipped:
        reporter.write_line(f"{len(skipped)} skipped tests, and none may be skipped here", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
