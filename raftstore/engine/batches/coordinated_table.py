"""Volatile state of one table's coordinator: clients that wait, answers of channels.

All of it is in memory and dies with the leadership. The next leader starts from the outbox in its
applied state, sends everything again, and gets again what was applied (rule 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from raftstore.config import BatchSettings
from raftstore.engine.batches.commit_checks import CommitChecks, judge_unseen
from raftstore.engine.channel.applied_state import AppliedState
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.ports.tables import TableStore
from raftstore.protocol.batches import ApplyBatch, CommitBatch, Writers, WritersAnswer
from raftstore.protocol.requests import BatchRequest
from raftstore.protocol.staged import apply_message
from raftstore.state_machines.batches.txn_records import Verdict
from raftstore.state_machines.batches.txn_state import (
    Decided,
    OutboxEntry,
    apply_for,
    outbox,
    read_decided,
    read_table,
    read_writer,
    still_waiting,
    view_of,
    writers,
)
from raftstore.state_machines.catalog import TableEntry
from raftstore.types import Seq, channel_id, channel_table

WRITERS_MAX: Final = 10_000
"""Writers in one answer, by name; a client that wants all asks on behind the last."""
PUSH_MS_MAX: Final = 5_000
"""The longest pause between two pushes of one commit to one channel."""
WRITERS_PER_TURN: Final = 256
"""Writers looked at in one turn of the loop after a leadership began."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A client's request without an answer."""

    client: int
    request: BatchRequest
    token: int


@dataclass(slots=True)
class Push:
    """The one commit that is on its way to a channel."""

    n: int
    due_ms: int
    wait_ms: int
    is_hinted: bool = False
    """It was sent once more to whom a replica named as the leader."""


@dataclass(slots=True)
class _Opened:
    attempt: int
    until_ms: int


@dataclass(slots=True)
class _Gate:
    """A client that is notified of a commit when every channel it touches has applied it."""

    n: int
    waiter: Waiter
    verdict: Verdict = field(repr=False)


class CoordinatedTable:
    """The coordinator's memory for one table whose partition 0 is led here."""

    def __init__(self, runner: ChannelRunner, tables: TableStore, settings: BatchSettings) -> None:
        self.runner = runner
        self._tables = tables
        self.state = AppliedState(tables, runner.channel)
        self.asked: dict[Seq, list[Waiter]] = {}
        """Requests that wait for what a record of the coordinator leads to, by its last seq."""
        self.beginning: dict[tuple[str, int, bytes], list[Waiter]] = {}
        """Tasks of one batch that wait for the BEGIN which the first of them caused."""
        self.checks = CommitChecks(runner, settings)
        """Commits that wait for the answer of the channels that they touch."""
        self.gates: dict[int, _Gate] = {}
        """Clients that wait for the application of a decided commit, by token."""
        self.pushes: dict[int, Push] = {}
        self.acked: dict[int, int] = {}
        """Partition -> the newest commit that its leader said it has applied."""
        self.stepped_ms = 0
        """When the last record of the coordinator was proposed."""
        self._settings = settings
        self._entries: dict[int, OutboxEntry] = {}
        self._decided: dict[int, Decided] = {}
        self._news: tuple[tuple[int, int], ...] | None = None
        self._opened: dict[str, _Opened] = {}
        """By writer: the attempt of each that was open when it last sent something."""
        self._writer_of: dict[int, str] = {}
        self._scanned_to: str | None = ""
        head = read_table(self.state)
        self.counted = 0 if head is None else head.next_commit - 1
        """The newest commit that metrics have counted, here or where it was decided."""
        self.refresh()

    def refresh(self) -> None:
        """Read the outbox anew: records of the coordinator were applied."""
        self._entries = {entry.n: entry for entry in outbox(self.state)}
        self._decided = {n: found for n, found in self._decided.items() if n in self._entries}
        # What an earlier leader wrote down is applied late: then nobody waits for the answer.
        self.pushes = {
            partition: push
            for partition, push in self.pushes.items()
            if push.n in self._entries and partition in self._entries[push.n].waiting
        }
        self._news = None

    # --- acknowledgements -------------------------------------------------------------------------

    def ack(self, partition: int, applied: int) -> bool:
        """A channel has applied every commit up to this one; True if that is news."""
        if applied <= self.acked.get(partition, 0):
            return False
        self.acked[partition] = applied
        self._news = None
        push = self.pushes.get(partition)
        if push is not None and push.n <= applied:
            del self.pushes[partition]
        return True

    def is_everywhere(self, n: int) -> bool:
        """Every channel that the decided commit touches has applied it (rule 5)."""
        if n not in self._entries:
            # The state includes records whose application was not reported to this thread yet.
            self.refresh()
        entry = self._entries.get(n)
        return entry is None or not still_waiting(entry, self.acked)

    @property
    def is_current(self) -> bool:
        """Everything that is committed is in the state here (of a leader that is ready)."""
        return self._tables.applied_seq(self.runner.channel) >= self.runner.core.commit_seq

    def judge(self, request: CommitBatch, entry: TableEntry | None) -> Verdict | None:
        """Why channels are not even asked about a commit; None: they are."""
        assert entry is not None, "only a table of the catalog has a coordinator"
        unapplied = self.runner.core.last_seq - self._tables.applied_seq(self.runner.channel)
        return judge_unseen(request, self.state, entry.partitions, max(0, unapplied))

    def news(self) -> tuple[tuple[int, int], ...]:
        """Acknowledgements that the outbox in the log does not show yet."""
        if self._news is None:
            oldest: dict[int, int] = {}
            for entry in self._entries.values():
                for partition in entry.waiting:
                    oldest.setdefault(partition, entry.n)
            self._news = tuple(
                (partition, n)
                for partition, n in sorted(self.acked.items())
                if oldest.get(partition, n + 1) <= n
            )
        return self._news

    def take_passed(self) -> list[_Gate]:
        """Clients whose commit is applied everywhere now."""
        waited_for = dict.fromkeys(gate.n for gate in self.gates.values())
        over = {n for n in waited_for if self.is_everywhere(n)}
        passed = [gate for gate in self.gates.values() if gate.n in over]
        for gate in passed:
            del self.gates[gate.waiter.token]
        return passed

    def add_gate(self, n: int, waiter: Waiter, verdict: Verdict) -> None:
        """Have a client wait until the commit is applied everywhere."""
        self.gates[waiter.token] = _Gate(n, waiter, verdict)

    def forget(self, waiter: Waiter) -> None:
        """The client got the answer that it waited too long, or is gone."""
        self.checks.forget(waiter.token)
        self.gates.pop(waiter.token, None)

    # --- pushes -----------------------------------------------------------------------------------

    def next_pushes(self, now_ms: int) -> Iterator[tuple[int, ApplyBatch]]:
        """(partition, message) for each channel that shall be notified of its next commit now.

        Rule 4: one commit at a time per channel, in the order of the chain.
        """
        oldest: dict[int, OutboxEntry] = {}
        for entry in self._entries.values():
            for partition in still_waiting(entry, self.acked):
                oldest.setdefault(partition, entry)
        for partition, entry in oldest.items():
            push = self.pushes.get(partition)
            if push is None or push.n != entry.n:
                wait_ms = self._settings.push_ms
                push = self.pushes[partition] = Push(entry.n, now_ms, wait_ms)
            elif push.due_ms > now_ms:
                continue
            else:
                push.wait_ms = min(2 * push.wait_ms, PUSH_MS_MAX)
                push.is_hinted = False
            push.due_ms = now_ms + push.wait_ms
            message = self.message(entry.n, partition)
            if message is None:
                del self.pushes[partition]
            else:
                yield partition, message

    def message(self, n: int, partition: int) -> ApplyBatch | None:
        """The message that notifies a channel of a commit in the outbox; None: it is applied
        everywhere by now."""
        entry = self._entries[n]
        decided = self._decided.get(n)
        if decided is None:
            decided = read_decided(n, self.state)
            if decided is None:
                # A record whose application was not reported to this thread yet took it out.
                left = [found.n for found in outbox(self.state)]
                assert n not in left, "a commit in the outbox has its manifest"
                return None
            self._decided[n] = decided
        batch = apply_for(entry, decided, partition)
        assert batch is not None, "a commit waits only for channels that it touches"
        channel = self.runner.channel
        target = channel_id(channel_table(channel), partition)
        return apply_message(channel, self.runner.elector.term, target, batch)

    # --- attempts that nobody goes on with --------------------------------------------------------
    # A writer has one open attempt and an attempt one writer, so ``_opened`` and ``_writer_of`` are
    # each other's inverse. ``touch`` and ``settle`` alone change them, both at once.

    def touch(self, attempt: int, writer: str, ttl_ms: int, now_ms: int) -> None:
        """A task began the attempt: its time starts anew (by this leader's own clock)."""
        opened = self._opened.get(writer)
        if opened is not None and opened.attempt > attempt:
            return  # it is over already
        if opened is not None:
            del self._writer_of[opened.attempt]
        self._opened[writer] = _Opened(attempt, now_ms + ttl_ms)
        self._writer_of[attempt] = writer

    def settle(self, attempt: int) -> None:
        """The attempt is decided: its time plays no part any more."""
        writer = self._writer_of.pop(attempt, None)
        if writer is not None:
            del self._opened[writer]

    def take_expired(self, now_ms: int) -> list[tuple[str, int]]:
        """(writer, attempt) that are still open and were not begun again in time."""
        late = [writer for writer, opened in self._opened.items() if opened.until_ms <= now_ms]
        expired: list[tuple[str, int]] = []
        for writer in late:
            opened = self._opened[writer]
            found = read_writer(writer, self.state)
            if found is None or found.open is None or found.open.attempt != opened.attempt:
                self.settle(opened.attempt)
                continue
            expired.append((writer, opened.attempt))
            # Looked at again: a leader that refuses new records refuses this one, too.
            opened.until_ms = now_ms + self._settings.ask_ms
        return expired

    def scan_writers(self, now_ms: int) -> None:
        """A leadership began: attempts that are open have all of their time from now on."""
        if self._scanned_to is None:
            return
        page = writers(self.state, self._scanned_to, WRITERS_PER_TURN)
        for name, found in page:
            if found.open is not None and found.open.attempt not in self._writer_of:
                self.touch(found.open.attempt, name, found.open.ttl_ms, now_ms)
        self._scanned_to = page[-1][0] if len(page) == WRITERS_PER_TURN else None

    # --- timers -----------------------------------------------------------------------------------

    def trim_due(self, now_ms: int) -> bool:
        """Nothing else carried the acknowledgements into the log for a while."""
        return now_ms >= self.stepped_ms + self._settings.ask_ms and bool(self.news())

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When a timer of this table is due; waiters are watched by the coordinator."""
        if self._scanned_to is not None:
            return now_ms
        due = [push.due_ms for push in self.pushes.values()]
        due += [opened.until_ms for opened in self._opened.values()]
        asked_ms = self.checks.next_deadline_ms()
        if asked_ms is not None:
            due.append(asked_ms)
        if self.news():  # else there is nothing that a timer could write down
            due.append(self.stepped_ms + self._settings.ask_ms)
        return max(min(due), now_ms) if due else None

    def first_pending(self) -> int | None:
        """The oldest commit that some channel has not applied."""
        waiting = (n for n, entry in self._entries.items() if still_waiting(entry, self.acked))
        return min(waiting, default=None)

    @property
    def pending(self) -> int:
        """Decided commits that some channel has not applied."""
        return sum(1 for entry in self._entries.values() if still_waiting(entry, self.acked))

    def tell_writers(self, request: Writers) -> WritersAnswer:
        """The writers of the table, or one of them."""
        head = read_table(self.state)
        if request.writer:
            one = read_writer(request.writer, self.state)
            found = [] if one is None else [(request.writer, one)]
        else:
            found = writers(self.state, request.after, WRITERS_MAX)
        next_commit = 1 if head is None else head.next_commit
        first_open = self.first_pending()
        return WritersAnswer(
            request_id=request.request_id,
            writers=tuple(view_of(name, each) for name, each in found),
            next_commit=next_commit,
            outbox=self.pending,
            vector=() if head is None else head.tail,
            applied_everywhere=(next_commit if first_open is None else first_open) - 1,
            more=len(found) >= WRITERS_MAX,
        )
