"""The limit of open files is raised as far as it may be."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace

import pytest

from raftstore.config import HttpSettings, NodeSettings, StorageSettings, TransportSettings
from raftstore.errors import ConfigError
from raftstore.node.limits import (
    BEYOND_LIMITS,
    CHANNELS_MIN,
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
        storage=StorageSettings(files_reserved=100, channels_max=CHANNELS_MIN),
    )


BESIDE = FILES_BESIDE_CONNECTIONS + BEYOND_LIMITS + 100 + 4 * CHANNELS_MIN


def test_limit_of_files_that_is_high_enough_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every connection that is allowed has its file, and the reserve stays."""
    limits = Limits(monkeypatch, 1_000, 100_000)
    assert within_open_files(of(2_000, 500)) == of(2_000, 500)
    assert limits.now[0] == 2_500 + BESIDE


def test_as_many_channels_are_allowed_as_the_files_that_are_left_are_enough_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connections come first; channels that are there already are always counted."""
    wanted = of(2_000, 500)
    settings = replace(wanted, storage=replace(wanted.storage, channels_max=10_000))
    Limits(monkeypatch, 1_000, BESIDE + 2_500 + 4 * 300)
    assert within_open_files(settings).storage.channels_max == CHANNELS_MIN + 300
    assert within_open_files(settings, channels=100).storage.channels_max == CHANNELS_MIN + 300
    with_many = within_open_files(settings, channels=400)
    assert with_many.storage.channels_max == CHANNELS_MIN + 400
    assert with_many.transport.client_connections_max == 1_680
    unlimited = Limits(monkeypatch, 1_000, 1_000_000)
    assert within_open_files(settings).storage.channels_max == 10_000
    assert unlimited.now[0] == BESIDE + 2_500 + 4 * (10_000 - CHANNELS_MIN)


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
