"""Real node processes on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftstore.client.blocking.client import Client
from raftstore.local_cluster import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that serve."""
    with LocalCluster(nodes=3, directory=tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the three nodes."""
    with cluster.connect(timeout=15.0) as connected:
        yield connected
