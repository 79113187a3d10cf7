"""The newest events of a node, numbered: what an operator asks first after something happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from raftstore.engine.node_ports import EventSink
from raftstore.types import EVENT_TYPES

EVENTS_MAX: Final = 4_096
"""Older ones are in the log of the process only."""


KEPT_TYPES: Final = ("failover", "failover_seen", "audit_violation")
"""What outlives the process (N7, N8)."""


class EventRing:
    """Filled by the node, read by requests for events."""

    def __init__(self) -> None:
        self.keep: Callable[[dict[str, Any]], None] | None = None
        """Takes what is to outlive the process."""
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._next = 1

    def add(self, name: str, fields: Mapping[str, object], wall_ms: int) -> None:
        """Keep an event, if it is of a kind that is kept."""
        if name not in EVENT_TYPES:
            return
        shown = {key: value for key, value in fields.items() if _is_plain(value)}
        # Its own fields last: a field of an event may have one of these names, too.
        event = {"number": 0, "type": name, **shown}
        event |= {"number": self._next, "type": name, "at_wall_ms": wall_ms}
        self._events.append(event)
        self._next += 1
        if self.keep is not None and name in KEPT_TYPES:
            self.keep(event)

    def restore(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Begin with what an earlier life of the node kept, before anything of this one."""
        for event in events:
            if event.get("type") in KEPT_TYPES:
                self._events.append({**event, "number": self._next})
                self._next += 1

    def since(
        self, number: int, types: Collection[str], limit: int
    ) -> tuple[int, tuple[dict[str, Any], ...]]:
        """Events after ``number``, oldest first, and the number to go on from.

        A number of the future is of an earlier life of the node: everything is new then.
        """
        if number >= self._next:
            number = 0
        found: list[dict[str, Any]] = []
        for event in self._events:
            if event["number"] <= number:
                continue
            if len(found) >= max(1, limit):
                break
            number = event["number"]
            if not types or event["type"] in types:
                found.append(event)
        return number, tuple(found)

    def newest(self, name: str, limit: int) -> Iterator[dict[str, Any]]:
        """The newest events of one kind, newest first."""
        return islice((event for event in reversed(self._events) if event["type"] == name), limit)


class EventLog:
    """One structured line in the log of the process for each event, and the ring beside it."""

    def __init__(self, ring: EventRing, wall_ms: Callable[[], int], sink: EventSink) -> None:
        self._ring = ring
        self._wall_ms = wall_ms
        self.sink = sink
        """Writes the line."""

    def tell(self, name: str, **fields: object) -> None:
        """Something happened (``node_ports.Tell``)."""
        self._ring.add(name, fields, self._wall_ms())
        self.sink(name, fields)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
