"""Zones (Gibbons and Korach): registers whose written values are unique, in O(n log n).

A zone is the time between the earliest return and the latest invocation of the operations on one
value. If the return comes first, the register held the value all the time between (forward). If
the invocation does, one moment within is enough (backward).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Any, NamedTuple

from jepsen_like.checker.models import Entry, Model

_NEVER = 1 << 200


class Zone(NamedTuple):
    """The times of the operations on one value."""

    first: int
    """The earliest return of an operation on it."""
    last: int
    """The latest invocation."""
    early: Entry | None
    """The operation that returned first; None: the value was there from the beginning."""
    late: Entry | None
    """The operation that was invoked last."""


class Clash(NamedTuple):
    """Operations that contradict each other."""

    entries: list[Entry]
    reason: str
    """A clause about what the culprit answered."""


def applies(model: Model, entries: list[Entry]) -> bool:
    """Only reads and writes, and no value is written twice or is the first one."""
    written = set()
    count = 0
    for entry in entries:
        if entry.action == "write":
            written.add(entry.value)
            count += 1
        elif entry.action != "read":
            return False
    return len(written) == count and model.initial not in written


def clash_of(model: Model, entries: list[Entry]) -> Clash | None:
    """None when the register is linearizable, else what is wrong."""
    writes: dict[Any, Entry] = {e.value: e for e in entries if e.action == "write"}
    first: dict[Any, int] = {model.initial: -_NEVER}
    last: dict[Any, int] = {model.initial: -_NEVER}
    early: dict[Any, Entry] = {}
    late: dict[Any, Entry] = {}
    for value, write in writes.items():
        first[value] = _NEVER if write.returned is None else write.returned
        last[value] = write.call
        early[value] = late[value] = write
    read = set()
    for entry in entries:
        returned = entry.returned
        if entry.action != "read" or returned is None:
            continue
        value = entry.result
        if value not in first:
            return Clash([entry], "which no operation that may have happened wrote")
        if returned < first[value]:
            if returned < writes[value].call:
                return Clash([writes[value], entry], "which was written only later")
            first[value], early[value] = returned, entry
        if entry.call >= last[value]:
            last[value], late[value] = entry.call, entry
        read.add(value)
    # A never-returned write that nobody read need not have happened.
    zones = [
        Zone(moment, last[value], early.get(value), late.get(value))
        for value, moment in first.items()
        if value in read or (value in writes and writes[value].returned is not None)
    ]
    return _clash(zones, writes)


def _clash(zones: list[Zone], writes: dict[Any, Entry]) -> Clash | None:
    """Two zones each of which must come before the other."""
    forward = sorted((zone for zone in zones if zone.first < zone.last), key=_first_of)
    for one, other in pairwise(forward):
        if other.first < one.last:
            return _contradiction(one, other, writes)
    starts = [zone.first for zone in forward]
    for zone in zones:
        if zone.first >= zone.last:
            at = bisect_left(starts, zone.last) - 1
            if at >= 0 and zone.first < forward[at].last:
                return _contradiction(forward[at], zone, writes)
    return None


def _contradiction(one: Zone, other: Zone, writes: dict[Any, Entry]) -> Clash:
    found: dict[int, Entry] = {}
    for zone in (one, other):
        for entry in (zone.early, zone.late):
            if entry is not None:
                found[id(entry)] = entry
                write = writes.get(_value_of(entry))
                if write is not None:
                    found[id(write)] = write
    entries = sorted(found.values(), key=_call_of)
    values = " and ".join(
        repr(_value_of(zone.late)) for zone in (one, other) if zone.late is not None
    )
    return Clash(
        entries, f"which fits no order of the operations: {values} would be there at one time"
    )


def culprit_of(clash: Clash) -> Entry:
    """The operation whose answer completed the contradiction."""
    return max(clash.entries, key=lambda entry: -1 if entry.returned is None else entry.returned)


def _value_of(entry: Entry) -> Any:
    return entry.value if entry.action == "write" else entry.result


def _first_of(zone: Zone) -> int:
    return zone.first


def _call_of(entry: Entry) -> int:
    return entry.call
