"""The state of a user's machine beside the rows of its channel, and the rules by which it goes.

Every rule is one over the log alone, so all replicas keep the same (S6.7, S13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from raftstore.record_machine import KeptResult, MachineRules, StateReader
from raftstore.state_machines.state_keys import (
    MACHINE_HEAD,
    MACHINE_LIMITS,
    RESULTS,
    RESULTS_END,
    read_state,
    result_key,
    unpacked,
)
from raftstore.types import Count63, Seq, Small31, TimestampMs

SCANNED_AT_ONCE: Final = 1_000
"""Values read at a time where all of a kind are read."""


class MachineHead(msgspec.Struct, frozen=True):
    """The facts about a user's machine in one partition."""

    version: Small31
    """In force."""
    commands: Count63 = 0
    """That came, rejected and skipped ones included."""
    time_ms: TimestampMs = 0
    """Of the last one."""
    seq: Seq = Seq(0)
    """Of the last one, as the machine was given it (``machine_origin``)."""
    results: Count63 = 0
    """That are kept."""
    result_bytes: Count63 = 0
    first_result: Seq = Seq(0)
    """The oldest of them; 0: nothing came yet."""
    chunks: Count63 = 0
    """Of the snapshot of a machine in memory; 0: there is none yet."""
    snapshot_bytes: Count63 = 0
    journal: Count63 = 0
    """Commands kept behind it."""
    journal_bytes: Count63 = 0


class LimitsInForce(msgspec.Struct, frozen=True, array_like=True):
    """Which limits of commands are in force, and behind which seq, as the machine is given it; not
    in the head, which older versions write as they know it."""

    number: Small31 = 0
    behind: Seq = Seq(0)


class Ends(msgspec.Struct, frozen=True, array_like=True):
    """The ends of the commands of a record, each as it is stored."""

    stored: tuple[bytes, ...]


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """A command as a machine in memory got it; its seq is in the key."""

    term: int
    timestamp_ms: int
    guid: bytes
    version: int
    payload: bytes


def read_head(state_get: Callable[[bytes], bytes | None]) -> MachineHead | None:
    """The head as it is stored; None: nothing was applied yet."""
    stored = state_get(MACHINE_HEAD)
    return None if stored is None else unpacked(stored, MachineHead)


def read_limits(state_get: Callable[[bytes], bytes | None]) -> LimitsInForce:
    """The limits as they are stored; nothing is stored before the first ones come into force."""
    stored = state_get(MACHINE_LIMITS)
    return LimitsInForce() if stored is None else unpacked(stored, LimitsInForce)


def kept_result(stored: bytes) -> KeptResult:
    """The end of a command as it is stored under ``result_key``."""
    return unpacked(stored, KeptResult)


def read_result(state: StateReader, seq: Seq) -> KeptResult | None:
    """The end of the command at a seq; None: it is kept no longer, or there was none."""
    return read_state(state, result_key(seq), KeptResult)


class Results:
    """The results of a partition, oldest first, as far as they have to be removed some day."""

    def __init__(self, rules: MachineRules) -> None:
        self._rules = rules
        self._kept: deque[tuple[int, int]] | None = None
        """(seq, bytes) of each; None: not read yet, since none had to go."""

    def forget(self) -> None:
        """Read them again when they are needed."""
        self._kept = None

    def put(
        self, head: MachineHead, seq: Seq, stored: bytes, state: StateReader
    ) -> tuple[MachineHead, list[tuple[bytes, bytes | None]]]:
        """Keep one more, as it is stored: the head, and what is to be written."""
        writes: list[tuple[bytes, bytes | None]] = [(result_key(seq), stored)]
        count, size = head.results + 1, head.result_bytes + len(stored)
        first = head.first_result or seq
        rules = self._rules
        if count > rules.results_kept or size > rules.result_bytes_kept:
            kept = self._all(state)
            kept.append((seq, len(stored)))
            while count > rules.results_kept or (size > rules.result_bytes_kept and count > 1):
                oldest, freed = kept.popleft()
                writes.append((result_key(oldest), None))
                count, size = count - 1, size - freed
            first = Seq(kept[0][0])
        elif self._kept is not None:
            self._kept.append((seq, len(stored)))
        head = msgspec.structs.replace(head, results=count, result_bytes=size, first_result=first)
        return head, writes

    def _all(self, state: StateReader) -> deque[tuple[int, int]]:
        if self._kept is None:
            self._kept = deque()
            start = RESULTS
            while found := state.scan(start, RESULTS_END, SCANNED_AT_ONCE):
                for key, value in found:
                    self._kept.append((int.from_bytes(key[2:], "big"), len(value)))
                start = found[-1][0] + b"\0"
        return self._kept
