"""Directories of local clusters: one cluster at a time in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.errors import ConfigError
from raftstore.local_cluster import LocalCluster


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that were started, of which none has a process."""
    names: list[str] = []
    monkeypatch.setattr(LocalCluster, "_spawn", lambda _, name: names.append(name))
    monkeypatch.setattr(LocalCluster, "wait_until_ready", lambda _: None)
    return names


def test_second_cluster_in_a_directory_is_refused_while_the_first_runs(
    spawned: list[str], tmp_path: Path
) -> None:
    """It would take the first one's nodes, at the same addresses, for its own."""
    with LocalCluster(nodes=1, directory=tmp_path):
        second = LocalCluster(nodes=1, directory=tmp_path)
        with pytest.raises(ConfigError, match=f"{tmp_path} is in use by another cluster"), second:
            pytest.fail("it was started")
        assert spawned == ["n1"]
    with LocalCluster(nodes=1, directory=tmp_path):
        assert spawned == ["n1", "n1"]
