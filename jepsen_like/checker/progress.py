"""Progress: no channel stops for long while a majority of its replicas is whole and connected.

A minority fault must not stop a channel for more than five seconds, and after healing every
channel answers again. Faults overlap, so what counts is not their number but their nodes: as
long as the same majority is untouched, whatever comes and goes elsewhere is no excuse.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import log
from typing import Any, Final

from jepsen_like.checker.facts import (
    WRITES,
    Findings,
    is_answered,
    keys_of,
    level_of,
    positions_of,
    rows_of_write,
    table_of,
)
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from raftstore.types import Level

STOP_MS_MAX: Final = 5_000.0
"""Longest silence of a channel under a minority fault."""
REPEAT_MS: Final = 1_000.0
"""Nodes wait so long for an answer before they ask again (``sync_request_timeout_ms``)."""
REPEATS_SHARE: Final = 0.001
"""Share of the stops that may need more repeats in a row than a lossy network is granted."""
HEAL_MS_MAX: Final = 60_000.0
"""Longest way from the end of the last fault to the first answer of a channel."""
CLIENTS: Final = "clients"
_MS: Final = 1_000_000
_FOREVER: Final = 1 << 62
_EVIDENCE_MAX: Final = 12
_PAUSE_NS: Final = 1_000 * _MS
"""Nobody asks for longer than this: a stop before and one after are two."""
_STRONG: Final = (Level.LINEARIZABLE.value, Level.LEADER.value)

Channel = tuple[str, int]
"""(table, partition)."""
_Call = tuple[int, int, Operation]
"""(invoked, given up or answered, the operation)."""
_Stop = tuple[int, list[_Call]]
"""(length, the calls in vain)."""
_Window = tuple[int, int]
"""[from, to) in nanoseconds."""


def check_progress(
    run: Run, *, stop_ms: float = STOP_MS_MAX, heal_ms: float = HEAL_MS_MAX
) -> Verdict:
    """Judge writes and strong reads, channel by channel; a channel nobody asks is not judged.

    Stopped: for more than ``stop_ms`` clients asked, one majority was whole, and nothing was
    answered. Dead: an operation of the read-back was not answered OK. Late: the first answer of a
    channel came more than ``heal_ms`` after the last fault. Faults whose nodes are not known
    (`jepsen_like.nemesis.witness`) excuse everything as long as they last.
    """
    return _Judge(run, int(stop_ms * _MS), int(heal_ms * _MS)).verdict()


def stop_ms_max(loss_percent: float) -> float:
    """Longest silence where every link loses messages: a lost question or answer costs one repeat.

    A majority is whole then, and not connected as well as ``STOP_MS_MAX`` supposes.
    """
    lost = 1 - (1 - loss_percent / 100) ** 2
    repeats = int(log(REPEATS_SHARE) / log(lost)) if lost else 0
    return STOP_MS_MAX + repeats * REPEAT_MS


@dataclass(frozen=True, slots=True)
class _Fault:
    """Its times and the nodes it hits; ``excuses`` all alone, or together with another."""

    started: int
    ended: int
    nodes: frozenset[str]
    links: frozenset[tuple[str, str]]
    excuses: bool
    is_everywhere: bool


@dataclass(slots=True)
class _Traffic:
    """The operations on one channel, and the moments of its answers."""

    asked: list[_Call] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)


class _Judge:
    def __init__(self, run: Run, stop_ns: int, heal_ns: int) -> None:
        self._stop_ns = stop_ns
        self._heal_ns = heal_ns
        self._run = run
        self._history = sorted(run.history, key=lambda operation: operation.invoked)
        self._faults = [_fault_of(entry) for entry in run.faults if entry.get("fired", True)]
        self._findings = Findings("progress", "stopped", "dead", "late")
        self._partitions: dict[str, int] = {}
        for table, partition in (*run.replica_hashes, *run.commits):
            self._partitions[table] = max(self._partitions.get(table, 0), partition + 1)
        self._windows: dict[tuple[str, ...], list[_Window]] = {}

    def verdict(self) -> Verdict:
        traffic = self._traffic()
        watched = longest = 0
        for channel, calls in sorted(traffic.items()):
            windows = self._windows_of(channel, calls)
            watched += sum(end - begin for begin, end in _united(windows))
            longest = max(longest, self._judge_stops(channel, calls, windows))
        finals, recovery = self._judge_heal(traffic)
        figures = {
            "channels": len(traffic), "watched_s": watched // (1_000 * _MS),
            "longest_stop_ms": longest // _MS, "read_back": finals, "recovery_ms": recovery // _MS,
        }  # fmt: skip
        bound = f"{self._stop_ns // (1_000 * _MS)} s"
        stops = (
            f"no channel stopped for more than {bound} in the {figures['watched_s']} s a majority "
            f"was whole (longest {figures['longest_stop_ms']} ms)"
            if watched
            else f"faults never left a majority alone for {bound}, so no stop was judged"
        )
        sound = f"{stops}; all {finals} calls after healing were answered"
        doubt = None if finals or watched else "nothing was asked while a majority was whole"
        return self._findings.verdict(figures, sound, doubt)

    # --- traffic ----------------------------------------------------------------------------------

    def _traffic(self) -> dict[Channel, _Traffic]:
        traffic: dict[Channel, _Traffic] = {}
        free: dict[str, int] = {}
        for operation in reversed(self._history):
            reported = operation.details.get("told_at")  # also of an outcome that is unknown
            given_up = (
                operation.returned or reported or free.get(operation.process, operation.invoked)
            )
            free[operation.process] = operation.invoked
            if operation.action not in WRITES and level_of(operation) not in _STRONG:
                continue
            for channel in self._channels_of(operation):
                calls = traffic.setdefault(channel, _Traffic())
                calls.asked.append((operation.invoked, given_up, operation))
                if is_answered(operation):
                    calls.answered.append(operation.returned or 0)
        for calls in traffic.values():
            calls.asked.reverse()
            calls.answered.sort()
        return traffic

    def _channels_of(self, operation: Operation) -> Iterator[Channel]:
        table = table_of(operation)
        count = self._partitions.get(table, 1)
        reported = positions_of(operation)
        if is_answered(operation) and reported:
            yield from ((table, partition) for partition in reported)
        elif isinstance(partition := operation.details.get("partition"), int):
            yield table, partition
        elif operation.action == "scan":
            yield from ((table, partition) for partition in range(count))
        else:
            keys = (
                [key for key, _ in rows_of_write(operation)]
                if operation.action in WRITES
                else keys_of(operation)
            )
            found = {
                partition_of(encode_key((key,)), count)
                for key in keys
                if isinstance(key, str | int)
            }
            yield from ((table, partition) for partition in sorted(found))

    # --- who could go on --------------------------------------------------------------------------

    def _windows_of(self, channel: Channel, calls: _Traffic) -> list[_Window]:
        """When some majority of the channel's replicas was whole for longer than the bound."""
        if channel in self._run.voters:
            return list(self._windows_of_changed(channel, calls))
        replicas = tuple(sorted(self._run.replica_hashes.get(channel, ())))
        if not replicas:
            return []
        if replicas not in self._windows:
            begin, end = self._times(calls)
            majorities = combinations(replicas, len(replicas) // 2 + 1)
            self._windows[replicas] = [
                window
                for majority in majorities
                for window in self._whole(frozenset(majority), begin, end)
                if window[1] - window[0] > self._stop_ns
            ]
        return self._windows[replicas]

    def _times(self, calls: _Traffic) -> tuple[int, int]:
        """The first call of all, and the last thing that happened to one of these."""
        ended = max(call[1] for call in calls.asked)
        returned = (operation.returned or 0 for operation in self._history)
        return self._history[0].invoked, max([ended, *returned])

    def _windows_of_changed(self, channel: Channel, calls: _Traffic) -> Iterator[_Window]:
        """The same where members changed: a majority is one of the voters of that time."""
        begin, end = self._times(calls)
        whole: dict[frozenset[str], list[_Window]] = {}
        for group, since, until in self._run.voters.deciding(channel, end):
            if until - since <= self._stop_ns:
                continue
            if group not in whole:
                whole[group] = list(self._whole(group, begin, end))
            for first, last in whole[group]:
                window = max(first, since), min(last, until)
                if window[1] - window[0] > self._stop_ns:
                    yield window

    def _whole(self, majority: frozenset[str], begin: int, end: int) -> Iterator[_Window]:
        """The longest stretches in which nothing touches this majority."""
        changes: dict[int, list[tuple[int, _Fault]]] = {begin: [], end: []}
        for fault in self._faults:
            changes.setdefault(max(begin, fault.started), []).append((1, fault))
            changes.setdefault(min(end, max(begin, fault.ended)), []).append((-1, fault))
        harm = _Harm(majority)
        since: int | None = None
        for moment in sorted(changes):
            if moment > end:
                break
            for step, fault in changes[moment]:
                harm.change(fault, step)
            if moment == end or harm.is_done:
                if since is not None:
                    yield since, moment
                since = None
            elif since is None:
                since = moment

    # --- verdicts ---------------------------------------------------------------------------------

    def _judge_stops(self, channel: Channel, calls: _Traffic, windows: Sequence[_Window]) -> int:
        """The longest stop of the channel while a majority was whole."""
        longest = 0
        gaps = pairwise([0, *calls.answered, _FOREVER])
        for before, after in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
            if after - before <= min(longest, self._stop_ns):
                break
            worst: _Stop = (0, [])
            for begin, end in windows:
                stop = self._stop_in(calls, max(before, begin), min(after, end))
                worst = max(worst, stop, key=lambda found: found[0])
            longest = max(longest, worst[0])
            if worst[0] > self._stop_ns:
                table, partition = channel
                text = (
                    f"{table}/{partition} answered nothing for {worst[0] // _MS} ms while a "
                    "majority of its replicas was whole"
                )
                operations = [call[2] for call in worst[1][:_EVIDENCE_MAX]]
                self._findings.add("stopped", text, operations[0], *operations[1:])
        return longest

    def _stop_in(self, calls: _Traffic, begin: int, end: int) -> _Stop:
        """How long the channel was asked in vain between the two moments, without long pauses."""
        worst: _Stop = (0, [])
        since = until = begin
        group: list[_Call] = []
        for call in self._unanswered(calls, begin, end):
            if not group or call[0] > until + _PAUSE_NS:
                since, until, group = max(begin, call[0]), begin, []
            group.append(call)
            until = max(until, min(end, call[1]))
            worst = max(worst, (until - since, list(group)), key=lambda found: found[0])
        return worst

    def _unanswered(self, calls: _Traffic, begin: int, end: int) -> list[_Call]:
        """Calls under way between the two moments, in order of invocation."""
        last = bisect_right(calls.asked, end, key=lambda call: call[0])
        # A process has one call at a time, so only a few begin before and end within.
        first = bisect_right(calls.asked, begin - 2 * self._stop_ns, key=lambda call: call[0])
        return [call for call in calls.asked[first:last] if call[1] > begin]

    def _judge_heal(self, traffic: Mapping[Channel, _Traffic]) -> tuple[int, int]:
        """How many calls the read-back made, and how long its slowest channel took to answer."""
        ended = [fault.ended for fault in self._faults if fault.ended < _FOREVER]
        healed = max(ended, default=None)
        finals = [operation for operation in self._history if operation.details.get("final")]
        for operation in finals:
            if not is_answered(operation):
                text = f"{operation.action} of the read-back was not answered after healing"
                self._findings.add("dead", text, operation)
        slowest = 0
        for (table, partition), calls in traffic.items() if healed is not None else ():
            assert healed is not None
            at = bisect_right(calls.answered, healed)
            if at == len(calls.answered):
                continue
            took = calls.answered[at] - healed
            slowest = max(slowest, took)
            if took > self._heal_ns:
                text = f"{table}/{partition} answered {took // _MS} ms after the last fault"
                late = next(call[2] for call in calls.asked if call[2].returned == took + healed)
                self._findings.add("late", text, late)
        return len(finals), slowest


class _Harm:
    """The faults in force, as far as one majority is concerned."""

    def __init__(self, majority: frozenset[str]) -> None:
        self._majority = majority
        self._excuses = self._hits = self._everywhere = self._open = 0

    def change(self, fault: _Fault, step: int) -> None:
        """A fault begins (1) or ends (-1)."""
        inside = self._majority | {CLIENTS}
        # Clients that cannot reach a leader wait for it, even if other nodes are whole.
        is_cut = any(
            CLIENTS in link or (link[0] in inside and link[1] in inside) for link in fault.links
        )
        self._excuses += step * fault.excuses
        self._hits += step * (is_cut or bool(self._majority & fault.nodes))
        self._everywhere += step * fault.is_everywhere
        self._open += step

    @property
    def is_done(self) -> bool:
        """Something in force is an excuse for this majority to stop."""
        is_bad_weather = bool(self._everywhere) and self._open > 1
        return bool(self._excuses or self._hits) or is_bad_weather


def _fault_of(entry: Mapping[str, Any]) -> _Fault:
    ended = entry.get("ended")
    is_final = ended is None or entry.get("stays")
    return _Fault(
        started=int(entry["started"]),
        ended=_FOREVER if is_final else int(ended or 0),
        nodes=frozenset(entry.get("nodes", ())),
        links=frozenset((link[0], link[1]) for link in entry.get("links", ())),
        excuses=not entry.get("is_minority", False),
        is_everywhere=bool(entry.get("is_everywhere")),
    )


def _united(windows: Sequence[_Window]) -> Iterator[_Window]:
    """The same moments without overlaps."""
    last: _Window | None = None
    for begin, end in sorted(windows):
        if last is not None and begin <= last[1]:
            last = (last[0], max(last[1], end))
            continue
        if last is not None:
            yield last
        last = (begin, end)
    if last is not None:
        yield last
