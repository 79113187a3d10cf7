"""Settings of all tests: Hypothesis profiles, and a guard that nobody's environment leaks in.

``RAFTSTORE_TEST_PROFILE`` chooses the profile: ``dev`` (few examples, the default), ``ci`` (same
examples in every run), ``quick`` (the first of those) or ``long`` (a night's search). With
``RAFTSTORE_TEST_NO_SKIPS`` a skipped test fails the run: what did not run has shown nothing.
"""

from __future__ import annotations

import os

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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped tests where every test has to run."""
    if not os.environ.get("RAFTSTORE_TEST_NO_SKIPS"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
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
