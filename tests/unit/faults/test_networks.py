"""Namespaces: a refusal names what is missing, and those of live processes are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes import namespaces
from jepsen_like.target.processes.network import connect
from raftstore.local_cluster import LocalCluster


@pytest.fixture
def _able(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has everything."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool, path: f"{path}/{tool}")
    monkeypatch.setattr(namespaces, "TUN", tmp_path)


@pytest.mark.usefixtures("_able")
def test_nothing_is_missing_where_everything_is_there() -> None:
    """Root, tools and the device."""
    assert namespaces.why_unavailable() is None


@pytest.mark.usefixtures("_able")
def test_a_refusal_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One thing after the other, each in one sentence with a remedy."""
    monkeypatch.setattr(namespaces, "TUN", tmp_path / "tun")
    assert "tun, and there is none; use --network loopback" in (namespaces.why_unavailable() or "")
    monkeypatch.setattr("shutil.which", lambda tool, path: None)
    assert "need ip and nsenter; install iproute2" in (namespaces.why_unavailable() or "")
    monkeypatch.setattr("os.geteuid", lambda: 65_534)
    assert "need root; run it as root" in (namespaces.why_unavailable() or "")


def test_a_network_that_cannot_be_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the reason; a name nobody knows is refused, too."""
    monkeypatch.setattr("os.geteuid", lambda: 65_534)
    cluster = LocalCluster(1, directory=tmp_path / "cluster")
    with pytest.raises(FaultUnavailableError, match="need root"):
        connect(cluster, "namespaces", 0)
    with pytest.raises(FaultUnavailableError, match="no network 'lan'; use loopback or namespaces"):
        connect(cluster, "lan", 0)


def test_only_names_of_dead_runs_are_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run is its process id and when that process began: ids come again."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    alive = f"raftstore-{os.getpid()}-{ticks}-0-n1"
    dead = [f"raftstore-{os.getpid()}-{ticks - 1}-0-n1", "raftstore-4999999-7-2-n3"]
    for name in (alive, *dead, "raftstore", "raftstore-7", f"my-{alive}", "blue"):
        (tmp_path / name).touch()
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(namespaces, "NAMED", tmp_path)
    monkeypatch.setattr(namespaces, "_try_ip", lambda *words: asked.append(words))
    assert namespaces.remove_stale() == sorted(dead)
    assert asked == [("netns", "del", name) for name in sorted(dead)]
