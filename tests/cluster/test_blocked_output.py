"""Output of real nodes into a pipe that nobody reads, and pages that nobody takes: all goes on.

A node that waits for its own log, or for the reader of its metrics, looks well to probes and
serves no client. The log files of these nodes are named pipes, full to the brim.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from raftstore.local_cluster import LocalCluster
from tests.cluster.test_http import ask
from tests.cluster.watching import leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
PIPE_BYTES = 4096
DEAF_READERS = 8
"""Connections for each node that ask for metrics again and again and take no answer."""
ASKED_TIMES = 8
WITHIN_S = 5.0


class Pipes:
    """A named pipe in place of each node's log file; held open here, and never read."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.ends: dict[str, int] = {}
        for name in cluster.endpoints_by_node():
            path = cluster.log_file(name)
            os.mkfifo(path)
            # For reading and writing: opening it only for writing would wait for a reader.
            self.ends[name] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            fcntl.fcntl(self.ends[name], fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def fill(self) -> None:
        """Leave no room for a single byte."""
        for end in self.ends.values():
            for size in (PIPE_BYTES, 1):
                try:
                    while True:
                        os.write(end, b"x" * size)
                except BlockingIOError:
                    pass

    def close(self) -> None:
        """Let the writers fail."""
        for end in self.ends.values():
            os.close(end)


@pytest.fixture
def blocked(tmp_path: Path) -> Iterator[tuple[LocalCluster, Pipes]]:
    """Three nodes, not started, that will say much into pipes without a reader."""
    cluster = LocalCluster(3, directory=tmp_path / "c", http=True, extra=("--log-level", "debug"))
    pipes = Pipes(cluster)
    try:
        yield cluster, pipes
    finally:
        cluster.close()
        pipes.close()


def ask_without_reading(held: ExitStack, endpoint: str) -> None:
    """Fill the way of the answers: pages of metrics are asked for and not taken."""
    host, port = endpoint.rsplit(":", 1)
    for _ in range(DEAF_READERS):
        deaf = held.enter_context(socket.socket())
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.connect((host, int(port)))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * ASKED_TIMES)


def test_blocked_output_and_unread_metrics_delay_neither_rows_nor_readiness(
    blocked: tuple[LocalCluster, Pipes],
) -> None:
    """Pipes are full before a node says its first word, and again after it has started; metrics
    are never taken. Writes, reads of every kind, /readyz, a change of leader and an end are as
    ever."""
    cluster, pipes = blocked
    pipes.fill()
    with cluster, cluster.connect(timeout=15.0) as client, ExitStack() as held:
        client.create_table("orders", key="id", partitions=2)
        for endpoint in cluster.http_by_node().values():
            ask_without_reading(held, endpoint)
        orders, started = client.table("orders"), time.monotonic()
        for number in range(40):
            orders.put({"id": number}, timeout=WITHIN_S)
            assert orders.get(number, timeout=WITHIN_S) == {"id": number}
        for node, endpoint in cluster.http_by_node().items():
            assert ask(endpoint, "GET", "/readyz").status == 200
            assert len(list(orders.scan(replica=node, level="any", timeout=WITHIN_S))) <= 40
        assert time.monotonic() - started < WITHIN_S
        deposed = leader_of(client, "orders")
        client.step_down("orders/0")
        orders.put_many([{"id": number} for number in range(100)], timeout=WITHIN_S)
        assert orders.count().rows == 100
        assert leader_of(client, "orders") != deposed
        assert cluster.ended() == {}
        for node in cluster.running():
            assert cluster.stop(node) == 0
