"""`raftstore check cluster` names a disk that hangs, by its node's own report (S0.4)."""

from __future__ import annotations

from typing import Any

from raftstore.cli.check import stopped_channels, troubled_disks
from raftstore.client.results import NodeStatus

STALL = {"doing": "fdatasync", "path": "/data/n1/log/0001.seg", "for_ms": 12_040}


def node(name: str, status: dict[str, Any] | None) -> NodeStatus:
    """The status of one node."""
    return NodeStatus(name, f"{name}@1", "127.0.0.1:1", up=True, status=status, error=None)


def test_disk_that_hangs_is_named_with_operation_file_and_time() -> None:
    """A disk that hangs is named with operation, file and time; nodes without a status, or older
    ones, are passed over.
    """
    nodes = [node("n1", {"storage_stall": STALL}), node("n2", {"storage_stall": None})]
    nodes += [node("n3", None), node("n4", {})]
    assert troubled_disks(nodes) == [
        "the disk of n1 has not finished fdatasync on /data/n1/log/0001.seg for 12.0 s"
    ]


def test_a_channel_that_is_stopped_is_critical_and_named_once() -> None:
    """All replicas of a user's machine stop alike; it waits for somebody."""

    def hosting(name: str, mode: str) -> NodeStatus:
        own = {"table": "c", "partition": 1, "mode": mode, "reason": "ValueError: boom"}
        return node(name, {"channels": [own]})

    nodes = [hosting("n1", "stopped"), hosting("n2", "live"), hosting("n3", "stopped")]
    nodes += [node("n4", None), node("n5", {})]
    assert stopped_channels(nodes) == ["channel c/1 is stopped on n1, n3: ValueError: boom"]


def test_a_state_machine_at_a_command_that_does_not_end_is_critical() -> None:
    """All that its node applies waits, and nothing but a restart ends it."""
    own = {"table": "c", "partition": 1, "mode": "steady", "reason": "", "slow_machine": "c/1: ..."}
    nodes = [
        node("n1", {"channels": [own]}),
        node("n2", {"channels": [own | {"slow_machine": ""}]}),
    ]
    assert stopped_channels(nodes) == ["on n1 c/1: ..."]
