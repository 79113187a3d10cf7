"""The state of a user's machine beside the rows of its channel, and the rules by which it goes.

Every rule is one over the log alone, so all replicas keep the same (S6.7, S13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from raftstore.protocol.machines import CommandEnd
from raftstore.record_machine import MachineRules, StateReader
from raftstore.state_machines.state_keys import (
    MACHINE_HEAD,
    MACHINE_LIMITS,
    RESULTS,
    RESULTS_END,
    TOGETHER_FORMAT,
    is_together,
    result_key,
    scanned,
    seq_of_key,
    unpacked,
)
from raftstore.types import Count63, Seq, Small31, TimestampMs


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
    """Which limits of commands are in force, and behind which seq those of 1 are, as the machine is
    given it; not in the head, which older versions write as they know it."""

    number: Small31 = 0
    behind: Seq = Seq(0)


class Ends(msgspec.Struct, frozen=True, array_like=True):
    """The ends of the commands of a record, each as it is stored by itself."""

    stored: tuple[bytes, ...]


class EndsTogether(msgspec.Struct, frozen=True, array_like=True):
    """The ends of the commands of a record as they are stored together (limits of 2)."""

    ends: tuple[CommandEnd, ...]


def read_head(state_get: Callable[[bytes], bytes | None]) -> MachineHead | None:
    """The head as it is stored; None: nothing was applied yet."""
    stored = state_get(MACHINE_HEAD)
    return None if stored is None else unpacked(stored, MachineHead)


def read_limits(state_get: Callable[[bytes], bytes | None]) -> LimitsInForce:
    """The limits as they are stored; nothing is stored before the first ones come into force. Those
    by which ends are kept together are stored so that versions without them stop there."""
    stored = state_get(MACHINE_LIMITS)
    return LimitsInForce() if stored is None else unpacked(stored, LimitsInForce, TOGETHER_FORMAT)


def ends_together(stored: bytes) -> tuple[CommandEnd, ...]:
    """The ends of a record's commands as they are stored together."""
    return unpacked(stored, EndsTogether, TOGETHER_FORMAT).ends


def kept_ends(stored: bytes) -> tuple[CommandEnd, ...]:
    """The ends as they are stored under one ``result_key``: of one command, or of all that shared a
    record."""
    if is_together(stored):
        return ends_together(stored)
    return (unpacked(stored, CommandEnd),)


def read_result(state: StateReader, seq: Seq) -> CommandEnd | None:
    """The end of the command at a seq; None: it is kept no longer, or there was none."""
    for key, stored in state.scan(result_key(seq), RESULTS_END, 1):
        ends = kept_ends(stored)
        place = seq - (seq_of_key(key) - len(ends) + 1)
        if place >= 0:
            return ends[place]
    return None


def read_results(state: StateReader, base_seq: Seq, last_seq: Seq) -> list[CommandEnd] | None:
    """The ends of all commands of a record, in one look; None: not all of them are kept."""
    count = last_seq - base_seq + 1
    found = state.scan(result_key(base_seq), result_key(last_seq + 1), count)
    ends = [end for _, stored in found for end in kept_ends(stored)]
    return ends if len(ends) == count else None


class Results:
    """The results of a partition, oldest first, as far as they have to be removed some day: those
    of one command by itself, and those of a record together."""

    def __init__(self, rules: MachineRules) -> None:
        self._rules = rules
        self._kept: deque[tuple[int, int, int]] | None = None
        """(seq, bytes, commands) of each; None: not read yet, since none had to go."""

    def forget(self) -> None:
        """Read them again when they are needed."""
        self._kept = None

    def put(
        self, head: MachineHead, seq: Seq, stored: bytes, state: StateReader, commands: int = 1
    ) -> tuple[MachineHead, list[tuple[bytes, bytes | None]]]:
        """Keep one more, as it is stored, of so many commands of which the last one is at ``seq``:
        the head, and what is to be written."""
        writes: list[tuple[bytes, bytes | None]] = [(result_key(seq), stored)]
        count, size = head.results + commands, head.result_bytes + len(stored)
        first = head.first_result or Seq(seq - commands + 1)
        rules = self._rules
        if count > rules.results_kept or size > rules.result_bytes_kept:
            kept = self._all(state)
            kept.append((seq, len(stored), commands))
            while len(kept) > 1 and (count > rules.results_kept or size > rules.result_bytes_kept):
                oldest, freed, fewer = kept.popleft()
                writes.append((result_key(oldest), None))
                count, size = count - fewer, size - freed
            first = Seq(kept[0][0] - kept[0][2] + 1)
        elif self._kept is not None:
            self._kept.append((seq, len(stored), commands))
        head = msgspec.structs.replace(head, results=count, result_bytes=size, first_result=first)
        return head, writes

    def _all(self, state: StateReader) -> deque[tuple[int, int, int]]:
        if self._kept is None:
            self._kept = deque()
            for key, value in scanned(state, RESULTS, RESULTS_END):
                commands = len(ends_together(value)) if is_together(value) else 1
                self._kept.append((seq_of_key(key), len(value), commands))
        return self._kept
