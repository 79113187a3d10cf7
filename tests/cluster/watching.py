"""Repeated questions of tests to a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from raftstore.client.blocking.client import Client
from raftstore.client.results import TableDigest
from raftstore.types import node_name

T = TypeVar("T")
PATIENCE_S = 20.0
POLL_S = 0.05


def eventually(
    look: Callable[[], T], is_good: Callable[[T], bool], patience_s: float = PATIENCE_S
) -> T:
    """The result of ``look`` once it is good; if it never is, the failure shows the last one."""
    deadline = time.monotonic() + patience_s
    while True:
        seen = look()
        if is_good(seen):
            return seen
        assert time.monotonic() < deadline, f"still not as wanted: {seen!r}"
        time.sleep(POLL_S)


def digests(client: Client, table: str, names: list[str]) -> list[TableDigest]:
    """Content of the table at each node."""
    return [client.content_hash(table, name) for name in names]


def equal_replicas(client: Client, table: str, names: list[str]) -> int:
    """Wait until all nodes hold the same rows at the same positions; return their number."""
    found = eventually(
        lambda: digests(client, table, names),
        lambda seen: len({str(digest.content()) for digest in seen}) == 1,
    )
    return found[0].rows


def leader_of(client: Client, table: str, partition: int = 0) -> str:
    """Name of the node that leads a partition, waiting for one."""
    channel = eventually(
        lambda: client.table_info(table).channels[partition],
        lambda seen: seen.leader is not None,
    )
    assert channel.leader is not None
    return node_name(channel.leader)


def own_status(client: Client, name: str) -> dict[str, Any]:
    """A node's own report on itself."""
    node = client.cluster_status().node(name)
    assert node is not None
    assert node.status is not None, node.error
    return dict(node.status)
