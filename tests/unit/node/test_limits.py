"""The limit of open files is raised as far as it may be."""

from __future__ import annotations

import logging
import resource

import pytest

from raftstore.config import HttpSettings, NodeSettings, StorageSettings, TransportSettings
from raftstore.errors import ConfigError
from raftstore.node.limits import (
    BEYOND_LIMITS,
    CONNECTIONS_MIN,
    FILES_BESIDE_CONNECTIONS,
    raise_open_files,
    within_open_files,
)


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


def of(clients: int, http: int) -> NodeSettings:
    """Settings of a node with so many connections, and 100 files in reserve."""
    return NodeSettings(
        name="n1",
        data_dir="d",
        transport=TransportSettings(client_connections_max=clients),
        http=HttpSettings(connections_max=http),
        storage=StorageSettings(files_reserved=100),
    )


BESIDE = FILES_BESIDE_CONNECTIONS + BEYOND_LIMITS + 100


def test_limit_of_files_that_is_high_enough_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every connection that is allowed has its file, and the reserve stays."""
    limits = Limits(monkeypatch, 1_000, 100_000)
    assert within_open_files(of(2_000, 500)) == of(2_000, 500)
    assert limits.now[0] == 2_500 + BESIDE


def test_fewer_connections_are_allowed_where_the_limit_of_files_is_too_low(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both ports give in proportion, and the log names what would help."""
    Limits(monkeypatch, 200, BESIDE + 250)
    with caplog.at_level(logging.WARNING):
        assert within_open_files(of(2_000, 500)) == of(200, 50)
    told = str(vars(caplog.records[0]))
    assert "transport.client_connections_max is 200 instead of 2000" in told
    assert f"(ulimit -n) to {2_500 + BESIDE}" in told


def test_limit_of_files_that_leaves_no_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that would stop at its first burst of connections does not start."""
    Limits(monkeypatch, 200, BESIDE + CONNECTIONS_MIN - 1)
    with pytest.raises(ConfigError, match=r"leaves 63 for connections; raise LimitNOFILE"):
        within_open_files(of(2_000, 500))
