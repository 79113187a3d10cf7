"""Redis, one server without replicas, with its append-only file.

``everysec`` acknowledges what is in memory and syncs once a second; ``always`` syncs before it
acknowledges. Neither outlives the machine.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks.peers import START_TIMEOUT_S
from benchmarks.peers.processes import PeerProcesses, free_ports

EVERY_SECOND: Final = "everysec"
ALWAYS: Final = "always"


class Redis(PeerProcesses):
    """A running server."""

    def __init__(self, sync: str) -> None:
        super().__init__("redis-server", "redis")
        self.version = self.said("--version")
        (self.port,) = free_ports(1)
        self.spawn(
            "redis", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory),
            "--appendonly", "yes", "--appendfsync", sync, "--save", "",
        )  # fmt: skip

    def wait(self) -> None:
        """Wait until it answers."""
        import redis

        deadline = time.monotonic() + START_TIMEOUT_S
        with redis.Redis("127.0.0.1", self.port) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    assert time.monotonic() < deadline, "Redis is not ready"
                    time.sleep(0.05)

    def count(self) -> int:
        """How many keys it has."""
        import redis

        with redis.Redis("127.0.0.1", self.port) as client:
            return int(client.dbsize())
