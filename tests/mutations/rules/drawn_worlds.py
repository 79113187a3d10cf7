"""Worlds in which logs are trimmed, tables are copied and files rot: guards of many mutations."""

from __future__ import annotations

from typing import Final

from tests.mutations.guard import worlds

TRIMMED: Final = worlds(range(1, 21), retention="yes", duplicate_percent="20")
"""Logs of a few records: replicas take bases and tables, and writes are tried again below bases."""
COPIED: Final = worlds(range(1, 21), retention="yes", keys="100", fault_interval_ms="200")
"""The same with tables that are copied in several chunks."""
CUT_OFF: Final = worlds(range(1, 21), retention="yes", fault_interval_ms="150")
"""The same with crashes and power cuts all the time, often of all nodes at once."""
STAGED: Final = worlds(range(1, 21), retention="yes", jobs="2", failpoint_percent="20")
"""The same with micro-batches, whose staged rows are in the logs."""
ROTTING: Final = worlds(
    range(1, 31),
    retention="yes",
    scrub="yes",
    jobs="1",
    live_flip_percent="30",
    failpoint_percent="20",
    damage_percent="0",
)
"""Bits flip under nodes that run, and nodes die in the middle of copies."""
LIVES: Final = worlds(range(1, 21), ttl_percent="50", rolling_upgrades="no")
"""Most rows live for moments, and one clock jumps."""
MEMBERS: Final = worlds(range(1, 25), member_changes="yes", partitions="1")
"""Nodes come and go and replicas move, mostly those of one channel."""
