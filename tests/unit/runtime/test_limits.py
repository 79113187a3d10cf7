"""The limit of open files is raised as far as it may be."""

from __future__ import annotations

import resource

import pytest

from raftstore.runtime.limits import raise_open_files


class Limits:
    """RLIMIT_NOFILE of a process that does not exist."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda which: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda which, to: setattr(self, "now", to))


@pytest.mark.parametrize(
    ("soft", "hard", "reached"),
    [
        (100, 4_096, 1_000),
        (100, 500, 500),
        (100, resource.RLIM_INFINITY, 1_000),
        (4_096, 4_096, 4_096),
        (500, 500, 500),
    ],
)
def test_open_files_are_raised_within_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, reached: int
) -> None:
    """The hard limit is the administrator's word; a higher soft limit stays."""
    limits = Limits(monkeypatch, soft, hard)
    assert raise_open_files(1_000) == reached
    assert limits.now == (reached, hard)


def test_open_files_without_limit_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinity is stored as -1, which is not less than what is wanted."""
    unlimited = resource.RLIM_INFINITY
    limits = Limits(monkeypatch, unlimited, unlimited)
    assert raise_open_files(1_000) == 1_000
    assert limits.now == (unlimited, unlimited)
