"""Where the life of a replica on a node passes failpoints (``raftstore.faults``): at its events.

The process and the simulated node call this before they do anything else with an event.
"""

from __future__ import annotations

from collections.abc import Callable

REPLICA_OPENED = "replica_opened"
"""One that an order names was opened, with nothing in it."""
REPLICA_DELETED = "replica_deleted"
"""Nothing names it any more; its log and its table are as they were."""
REPLICA_FORGOTTEN = "replica_forgotten"
"""The log remembers durably that it was removed; its table is still there."""


def pass_event(name: str, reach: Callable[[str], object]) -> None:
    """An event is reported."""
    if name == REPLICA_OPENED:
        reach("replica.after-open")
    elif name == REPLICA_DELETED:
        reach("replica.before-delete")
    elif name == REPLICA_FORGOTTEN:
        reach("replica.before-drop")
