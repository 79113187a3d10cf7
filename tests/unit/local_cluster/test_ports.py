"""Ports of a local cluster: free, its own while a node is down, and not of outgoing connections."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from raftstore import local_cluster
from raftstore.errors import RaftstoreError


def ports_of(endpoints: list[str]) -> list[int]:
    """The numbers alone."""
    return [int(endpoint.rpartition(":")[2]) for endpoint in endpoints]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that states the range of outgoing ports, as Linux does."""
    file = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(local_cluster, "PORT_RANGE", file)
    return file


def test_ports_are_below_those_of_outgoing_connections(told: Path) -> None:
    """A node that is down keeps its port: no connection of anybody may be given it meanwhile."""
    told.write_text("32768\t60999\n")
    ports = ports_of(local_cluster._free_endpoints(6))
    assert len(set(ports)) == 6
    assert all(local_cluster.LOWEST_PORT <= port < 32_768 for port in ports)


def test_port_that_somebody_listens_on_is_not_taken(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only port below is taken: then they are the system's."""
    with socket.socket() as mine:
        mine.bind((local_cluster.LOOPBACK, ports_of(local_cluster._free_endpoints(1))[0]))
        taken = mine.getsockname()[1]
        monkeypatch.setattr(local_cluster, "LOWEST_PORT", taken)
        told.write_text(f"{taken + 1}\t60999\n")
        assert taken not in ports_of(local_cluster._free_endpoints(2))


@pytest.mark.parametrize("text", [None, "", "words", "1024 65535"])
def test_without_room_below_the_system_chooses(told: Path, text: str | None) -> None:
    """Where nothing states the range, or it leaves nothing below."""
    if text is not None:
        told.write_text(text)
    ports = ports_of(local_cluster._free_endpoints(3))
    assert len(set(ports)) == 3


def test_no_free_port_is_an_error_that_says_so(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never an endless search."""

    class Taken(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError("address in use")

    monkeypatch.setattr(local_cluster.socket, "socket", Taken)
    with pytest.raises(RaftstoreError, match="fewer than 2 ports"):
        local_cluster._free_endpoints(2)
