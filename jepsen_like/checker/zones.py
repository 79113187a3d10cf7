"""Zones (Gibbons and Korach): registers whose written values are unique, in O(n log n)."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from jepsen_like.checker.models import Entry, Model

Zone = tuple[float, float, Entry]
"""Earliest return and latest invocation of the operations on one value, and one of them."""


def applies(model: Model, entries: list[Entry]) -> bool:
    """Only reads and writes, and no value is written twice or is the first one."""
    written = [entry.value for entry in entries if entry.action == "write"]
    if not {entry.action for entry in entries} <= {"read", "write"}:
        return False
    return len({model.initial, *written}) == len(written) + 1


def culprit_of(model: Model, entries: list[Entry]) -> list[Entry]:
    """Nothing when the register is linearizable, else operations that contradict each other."""
    never = float("inf")
    writes: dict[Any, Entry] = {e.value: e for e in entries if e.action == "write"}
    first: dict[Any, float] = {model.initial: -never}
    last: dict[Any, float] = {model.initial: -never}
    sample: dict[Any, Entry] = {}
    for value, write in writes.items():
        first[value] = never if write.returned is None else write.returned
        last[value] = write.call
        sample[value] = write
    read_values = set()
    for entry in entries:
        if entry.action != "read" or entry.returned is None:
            continue
        value = entry.result
        write_of = writes.get(value)
        if value not in first:
            return [entry]
        if write_of is not None and entry.returned < write_of.call:
            return [write_of, entry]
        read_values.add(value)
        first[value] = min(first[value], entry.returned)
        if entry.call >= last[value]:
            last[value], sample[value] = entry.call, entry
    # A never-returned write that nobody read need not have happened.
    zones = [
        (first[value], last[value], sample[value])
        for value in sample
        if value in read_values or writes[value].returned is not None
    ]
    return _clash(zones)


def _clash(zones: list[Zone]) -> list[Entry]:
    """Two zones each of which must come before the other."""
    forward = sorted((z for z in zones if z[0] < z[1]), key=lambda zone: zone[0])
    for index in range(1, len(forward)):
        if forward[index][0] < forward[index - 1][1]:
            return [forward[index - 1][2], forward[index][2]]
    starts = [zone[0] for zone in forward]
    for zone in zones:
        if zone[0] < zone[1]:
            continue
        at = bisect_left(starts, zone[1]) - 1
        if at >= 0 and zone[0] < forward[at][1]:
            return [forward[at][2], zone[2]]
    return []
