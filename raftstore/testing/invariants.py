"""The oracles O1-O6 of the safety contract, checked after every step of a simulated world.

* O1 at most one leader per (channel, term).
* O2 a leader's log contains, when it wins, every record committed in a lower term.
* O3 once committed, what stands at a seq never changes, on any replica.
* O4 an acknowledged publish is in every later committed log, exactly once.
* O5 a read shows exactly the committed prefix it names, and a linearizable read misses nothing
  acknowledged before it began.
* O6 with a connected quorum a leader exists within a bound (checked by the world after healing).

The oracle sees everything; the nodes see only what reaches them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from raftstore.core.batches import BATCH_KINDS, NOT_REPORTED, mark_of
from raftstore.core.quorum import quorum_ms
from raftstore.core.replica import Replica
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.protocol.lifetimes import WITHOUT_TTL, decode_expire, decode_with_ttl
from raftstore.protocol.payload import decode_conditional, decode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Served
from raftstore.protocol.records import Record
from raftstore.rows.sealing import unseal
from raftstore.testing.batch_truth import BatchTruth
from raftstore.testing.sim_clock import WALL_START_MS
from raftstore.types import ChannelId, Guid, NodeId, RecordKind, Role, Seq, Term

if TYPE_CHECKING:
    from raftstore.testing.losses import Losses


class InvariantError(AssertionError):
    """A promise of the contract was broken; the message says which and shows the values."""


LATE_MS_MAX: Final = 10_000.0
"""So long after a loss that may be, answers to clients may be of before."""
AHEAD_MS_MAX: Final = 3_000.0
"""``expiry.clock_ahead_ms``, and as much as two clocks part while heartbeats stay out."""
_ABSENT: Final[tuple[Seq, bytes | None]] = (Seq(0), None)
"""What a read shows of a key without a row."""


@dataclass(slots=True)
class _CommittedRecord:
    """The oracle's knowledge of a committed record."""

    record: Record
    commit_term: Term
    committed_ms: float = 0.0
    """When somebody first knew."""


@dataclass(slots=True)
class _Seen:
    """The last look at a replica in one of its lives."""

    term: Term = Term(0)
    role: Role | None = None
    commit_seq: Seq = Seq(0)
    core: Replica | None = None
    """The channel as it was opened last."""


@dataclass(slots=True)
class _ChannelTruth:
    """The committed history of one channel and the state it adds up to."""

    records: list[_CommittedRecord] = field(default_factory=list)
    base_seqs: list[Seq] = field(default_factory=list)
    """Of the records."""
    last_seq: Seq = Seq(0)
    guid_seq: dict[Guid, Seq] = field(default_factory=dict)
    versions: dict[bytes, list[tuple[Seq, bytes | None]]] = field(default_factory=dict)
    """key -> [(last_seq of the record, value or None)] in seq order."""
    conflicts: dict[Seq, Seq] = field(default_factory=dict)
    marks: list[Seq] = field(default_factory=list)
    """Where micro-batches end, those that are replays left out."""
    newest_marks: dict[str, int] = field(default_factory=dict)
    """Writer -> the batch that it marked last."""
    batches: BatchTruth = field(default_factory=BatchTruth)
    """Those that are atomic."""
    expiries: dict[tuple[bytes, Seq], int] = field(default_factory=dict)
    """(key, seq of the record that wrote the row) -> when the row expires."""
    times: list[tuple[Seq, int]] = field(default_factory=list)
    """The channel time from a seq on."""

    def time_at(self, seq: int) -> int:
        """The channel time as of ``seq``; 0: none was stated."""
        at = bisect_right(self.times, seq, key=lambda each: each[0])
        return self.times[at - 1][1] if at else 0

    def value_at(self, key: bytes, seq: int) -> tuple[Seq, bytes | None]:
        """The row as of ``seq``: (seq of its record, value); (0, None) when absent."""
        versions = self.versions.get(key)
        if versions is None:
            return _ABSENT
        found = versions[-1]  # the newest is asked for mostly
        if found[0] > seq:
            at = bisect_right(versions, seq, key=_seq_of)
            found = versions[at - 1] if at else _ABSENT
        expires_ms = self.expiries.get((key, found[0]), 0)
        is_over = expires_ms and expires_ms <= self.time_at(seq)
        return _ABSENT if found[1] is None or is_over else found

    def learn(self, record: Record, commit_term: Term, now_ms: float = 0.0) -> None:
        """Append the next committed record and fold it into the state."""
        self.records.append(_CommittedRecord(record, commit_term, now_ms))
        self.base_seqs.append(record.base_seq)
        self.last_seq = record.last_seq
        if any(record.guid):
            self.guid_seq[record.guid] = record.last_seq
        if record.kind in BATCH_KINDS:
            self._learn_mark(record)
        if record.kind is RecordKind.STAGED:
            self.batches.stage(record)
        elif record.kind is RecordKind.BATCH_APPLY:
            self._apply_batch(record)
        elif record.kind is RecordKind.EXPIRE:
            self._learn_time(record)
        else:
            self._learn_rows(record)

    def _learn_time(self, record: Record) -> None:
        """Rows that are named and due were absent from this record on, whether removed or not."""
        until_ms = min(decode_expire(record.payload)[0], record.timestamp_ms)
        self.times.append((record.last_seq, max(self.time_at(record.last_seq), until_ms)))

    def _learn_rows(self, record: Record) -> None:
        kind, payload, expires_ms = record.kind, memoryview(record.payload), 0
        if kind in WITHOUT_TTL:
            ttl_ms, payload = decode_with_ttl(payload)
            kind, expires_ms = WITHOUT_TTL[kind], record.timestamp_ms + ttl_ms
        if kind is RecordKind.ROWS:
            flat = decode_rows(payload)
            for i in range(0, len(flat), 2):
                self._write(flat[i] or b"", flat[i + 1], record.last_seq, expires_ms)
        elif kind is RecordKind.CONDITIONAL:
            key, sealed, expected = decode_conditional(payload)
            present = self.value_at(key, record.last_seq)[0]
            if present == expected:
                self._write(key, sealed, record.last_seq, expires_ms)
            else:
                self.conflicts[record.last_seq] = present

    def _apply_batch(self, record: Record) -> None:
        found = self.batches.apply(record)
        if isinstance(found, str):
            message = f"I1: {found}"
            raise InvariantError(message)
        is_emptied, rows = found
        for key in list(self.versions) if is_emptied else ():
            self._write(key, None, record.last_seq)
        for key, sealed in rows:
            self._write(key, sealed, record.last_seq)

    def _learn_mark(self, record: Record) -> None:
        mark = mark_of(record)
        if mark is None or self.newest_marks.get(mark[0]) != mark[1]:
            self.marks.append(record.last_seq)
        if mark is not None:
            self.newest_marks[mark[0]] = mark[1]

    def _write(self, key: bytes, sealed: bytes | None, seq: Seq, expires_ms: int = 0) -> None:
        value = None if sealed is None else unseal(key, sealed)
        self.expiries.pop((key, seq), None)  # of a key that comes twice the last one counts
        if expires_ms:
            self.expiries[key, seq] = expires_ms
        self.versions.setdefault(key, []).append((seq, value))


class Oracle:
    """Global knowledge of one world."""

    def __init__(self, now_ms: Callable[[], float] = lambda: 0.0) -> None:
        self._now_ms = now_ms
        self._leaders: dict[tuple[ChannelId, Term], NodeId] = {}
        self._truth: dict[ChannelId, _ChannelTruth] = {}
        self._seen: dict[tuple[NodeId, int], dict[ChannelId, _Seen]] = {}
        self.acknowledged: dict[ChannelId, dict[Guid, Seq]] = {}
        self.acknowledged_end: dict[ChannelId, Seq] = {}
        self.acknowledged_in: dict[ChannelId, dict[Term, Seq]] = {}
        """By the term of the leader that acknowledged: its newest seq."""
        self.refused: dict[ChannelId, dict[Guid, None]] = {}
        self._shown_end: dict[ChannelId, Seq] = {}
        self.elections_won = 0
        self.commits = 0
        self.losses: Losses | None = None
        """Of a world whose table is below ``fsync`` (S0.6)."""
        self.lost: dict[Guid, None] = {}
        """Writes that it lost as it may."""
        self._lost_ms: dict[ChannelId, float] = {}
        self.clocks_ahead_ms = 0.0
        """So far the clocks of more than one node have been ahead at once: rows may expire by
        them."""
        self._ahead_ms: dict[NodeId, int] = {}
        """How far a node's clock was ahead at most: where few voters are left, it decides."""

    def _has_just_lost(self, channel: ChannelId) -> bool:
        """Answers on their way to clients may be of records that were lost."""
        lost_ms = self._lost_ms.get(channel)
        return lost_ms is not None and self._now_ms() < lost_ms + LATE_MS_MAX

    def _forget(self, channel: ChannelId, first: _CommittedRecord) -> None:
        """This record and those behind it are on no replica any more (S0.6)."""
        old, truth = self._truth[channel], _ChannelTruth()
        for known in old.records:
            if known.record.base_seq < first.record.base_seq:
                truth.learn(known.record, known.commit_term, known.committed_ms)
            else:
                self.lost[known.record.guid] = None
        self._truth[channel], end = truth, truth.last_seq
        self._lost_ms[channel] = self._now_ms()
        acknowledged = self.acknowledged.get(channel, {})
        self.acknowledged[channel] = {g: seq for g, seq in acknowledged.items() if seq <= end}
        of_term = self.acknowledged_in.get(channel, {})
        self.acknowledged_in[channel] = {t: min(seq, end) for t, seq in of_term.items()}
        for ends in (self.acknowledged_end, self._shown_end):
            if channel in ends:
                ends[channel] = min(ends[channel], end)

    def note_clock(self, node: NodeId, ahead_ms: float) -> None:
        """A node's wall clock is ahead from now on; what it showed before may still be believed."""
        self._ahead_ms[node] = max(self._ahead_ms.get(node, 0), int(ahead_ms))

    def truth(self, channel: ChannelId) -> _ChannelTruth:
        """The committed history of a channel as observed so far."""
        return self._truth.setdefault(channel, _ChannelTruth())

    def after_step(self, node: NodeId, incarnation: int, runners: Iterable[ChannelRunner]) -> None:
        """Look at the channels that a node's step may have changed."""
        life = self._seen.get((node, incarnation))
        if life is None:
            life = self._seen[node, incarnation] = {}
        for runner in runners:
            elector, channel = runner.elector, runner.channel
            seen = life.get(channel)
            if seen is None:
                seen = life[channel] = _Seen()
            term, role = elector.term, elector.role
            if term != seen.term or role is not seen.role:
                if term < seen.term:
                    self._fail("S13", f"{node} lowered its term from {seen.term} to {term}")
                seen.term, seen.role = term, role
                if role is Role.LEADER:
                    self._on_leader(node, runner)
            # The core may commit a step later than the elector changed; both are looked at here.
            commit = self._look_at_commit(node, runner, seen)
            self._check_time(node, runner)
            # S0.3: a log with a hole ends before what was applied of it; it serves nothing.
            is_whole = not runner.core.is_recovering
            if is_whole and runner.parts.tables.applied_seq(channel) > commit:
                self._fail("O5", f"{node} applied beyond its commit seq in {runner.name}")

    def _check_time(self, node: NodeId, runner: ChannelRunner) -> None:
        """S10: the channel time is what the log states up to the applied position, no clock's."""
        if runner.is_paused:
            return  # another table is in its place, which is opened next
        tables, channel = runner.parts.tables, runner.channel
        time_ms = tables.channel_time(channel)
        if time_ms > 1 and tables.is_idle(channel):
            stated_ms = self.truth(channel).time_at(tables.applied_seq(channel))
            if time_ms != stated_ms:
                text = (
                    f"{node} is at the time {time_ms} of {runner.name}, its log tells {stated_ms}"
                )
                self._fail("S10", text)

    def _look_at_commit(self, node: NodeId, runner: ChannelRunner, seen: _Seen) -> Seq:
        commit = runner.core.commit_seq
        if runner.core is not seen.core:
            # Opened, maybe anew from another table: what is committed is reported to it again.
            seen.core, seen.commit_seq = runner.core, Seq(0)
        if commit != seen.commit_seq:
            if commit < seen.commit_seq:
                text = f"{node} moved its commit seq back from {seen.commit_seq} to {commit}"
                self._fail("O3", text)
            self._on_commit(node, runner, seen.commit_seq, commit)
            seen.commit_seq = commit
        return commit

    def on_ack(self, channel: ChannelId, ack: PubAck) -> None:
        """A publisher got OK: O4 from now on."""
        truth = self.truth(channel)
        at = truth.guid_seq.get(ack.guid)
        if at != ack.last_seq and ack.guid in self.lost:
            return
        if at != ack.last_seq:
            self._fail(
                "O4", f"guid {ack.guid.hex()} acknowledged at {ack.last_seq}, stands at {at}"
            )
        if ack.conflict != (ack.last_seq in truth.conflicts):
            self._fail("S10", f"condition at seq {ack.last_seq} reported {ack.conflict}")
        self.acknowledged.setdefault(channel, {})[ack.guid] = ack.last_seq
        of_term = self.acknowledged_in.setdefault(channel, {})
        of_term[ack.term] = max(of_term.get(ack.term, Seq(0)), ack.last_seq)
        end = self.acknowledged_end.get(channel, Seq(0))
        self.acknowledged_end[channel] = Seq(max(end, ack.last_seq))

    def check_same(self, guid: Guid, first: Seq, again: Seq) -> None:
        """S4.5: the same GUID is answered with the same place."""
        if first != again and guid not in self.lost:
            self._fail("O4", f"guid {guid.hex()} was acknowledged at {first}, then at {again}")

    def on_not_applied(self, channel: ChannelId, guid: Guid) -> None:
        """A publisher got NOT_APPLIED: the record must never commit (S5.6)."""
        self.refused.setdefault(channel, {})[guid] = None
        if guid in self.truth(channel).guid_seq:
            self._fail("S4", f"guid {guid.hex()} was called not applied, and is committed")

    def on_read(
        self,
        channel: ChannelId,
        key: bytes,
        value: bytes | None,
        row_seq: Seq,
        applied_seq: Seq,
        *,
        must_include: Seq | None,
    ) -> None:
        """A read answered: it shows the committed prefix up to ``applied_seq``, nothing else.

        ``must_include``: what was visible when a linearizable read began; None for other levels.
        """
        truth = self.truth(channel)
        if self._has_just_lost(channel):
            return
        if applied_seq > truth.last_seq:
            self._fail("O5", f"a read claims {applied_seq}, committed is {truth.last_seq}")
        expected = truth.value_at(key, applied_seq)
        if expected != (row_seq, value):
            self._fail(
                "O5",
                f"read of {key!r} at {applied_seq} gave {(row_seq, value)!r}, "
                f"committed is {expected!r}",
            )
        if must_include is None:
            return
        if applied_seq < must_include:
            self._fail(
                "O5",
                f"read at {applied_seq} misses seq {must_include}, acknowledged or read before "
                "it began",
            )
        shown = self._shown_end.get(channel, Seq(0))
        self._shown_end[channel] = Seq(max(shown, applied_seq))

    def on_served(
        self, channel: ChannelId, served: Served, as_of_ms: Callable[[int], float]
    ) -> None:
        """S7.3: what an answer that leaves its node now says of its age and its micro-batches.

        The age is of the node's own clock, which may run at any rate: ``as_of_ms`` says for an age
        at which moment of ours the node saw the state complete.
        """
        truth, now_ms = self.truth(channel), self._now_ms()
        if self._has_just_lost(channel):
            return
        applied = served.applied_seq
        if served.staleness_ms is not None:
            complete_ms = as_of_ms(served.staleness_ms)
            missed = bisect_right(truth.base_seqs, applied)
            if missed < len(truth.records) and truth.records[missed].committed_ms < complete_ms:
                self._fail(
                    "S7.3",
                    f"{served.node} calls its state at {applied} complete as of "
                    f"{served.staleness_ms} ms ago; seq {truth.records[missed].record.last_seq} "
                    f"was committed {now_ms - truth.records[missed].committed_ms:.0f} ms ago",
                )
        held = bisect_right(truth.marks, applied)
        if served.batches not in (NOT_REPORTED, held):
            self._fail("S10", f"{served.node} counts {served.batches} of {held} batches")
        if served.lag is not None and served.batches_behind is not None:
            missing = bisect_right(truth.marks, applied + served.lag) - held
            if missing > served.batches_behind:
                self._fail(
                    "S7.3",
                    f"{served.node} is {missing} batches behind and says {served.batches_behind}",
                )

    def overdue(self, channel: ChannelId) -> list[bytes]:
        """Keys of rows that are there although their lifetime is over by the right clock."""
        truth, wall_ms = self.truth(channel), WALL_START_MS + self._now_ms()
        return [
            key
            for (key, seq), expires_ms in truth.expiries.items()
            if expires_ms <= wall_ms and truth.value_at(key, truth.last_seq)[0] == seq
        ]

    def visible_end(self, channel: ChannelId) -> Seq:
        """The least position of a linearizable read that begins now: all that was acknowledged to a
        publisher or shown by another linearizable read."""
        acknowledged = self.acknowledged_end.get(channel, Seq(0))
        return Seq(max(acknowledged, self._shown_end.get(channel, Seq(0))))

    def check_final(self, runners: list[ChannelRunner]) -> None:
        """After healing: every acknowledged publish stands in every replica's log, once (O4)."""
        for runner in runners:
            truth = self.truth(runner.channel)
            if runner.core.commit_seq < truth.last_seq:
                self._fail(
                    "O6", f"{runner.me} stays behind: {runner.core.commit_seq} < {truth.last_seq}"
                )
            stored: dict[Guid, Seq] = {}
            for record in self._read_log(runner, Seq(1), truth.last_seq):
                if record.guid in stored and any(record.guid):
                    self._fail("O4", f"guid {record.guid.hex()} stands twice on {runner.me}")
                stored[record.guid] = record.last_seq
            for guid, seq in self.acknowledged.get(runner.channel, {}).items():
                if seq > runner.core.base.seq and stored.get(guid) != seq:
                    self._fail(
                        "O4",
                        f"acknowledged guid {guid.hex()} at seq {seq} of {runner.name} is "
                        f"{'missing' if guid not in stored else 'elsewhere'} on {runner.me}",
                    )

    # --- internals --------------------------------------------------------------------------------

    def _on_leader(self, node: NodeId, runner: ChannelRunner) -> None:
        term = runner.elector.term
        other = self._leaders.setdefault((runner.channel, term), node)
        if other != node:
            self._fail("O1", f"two leaders in term {term} of {runner.name}: {other} and {node}")
        self.elections_won += 1
        truth = self.truth(runner.channel)
        # S6.5: what the base stands for is held to the truth by its hash and by who was elected.
        base_seq = runner.core.base.seq
        known = [c for c in truth.records if c.commit_term < term and c.record.base_seq > base_seq]
        must = [c.record for c in known]
        if not must:
            return
        have = self._read_log(runner, Seq(1), must[-1].last_seq)
        del have[len(must) :]
        if have == must or [_identity(r) for r in have] == [_identity(r) for r in must]:
            return
        text = f"leader {node} of term {term} lacks records committed in {runner.name}"
        if self.losses is None or not self.losses.may_lose(runner.channel):
            self._fail("O2", text)
            return
        held = [_identity(r) for r in have]
        equal = sum(
            1
            for _ in takewhile(
                lambda at: held[at : at + 1] == [_identity(must[at])], range(len(must))
            )
        )
        for lost in known[equal:]:
            why_not = self.losses.refusal(runner.channel, lost.record, lost.committed_ms)
            if why_not:
                self._fail("S0.6", f"{text}, seq {lost.record.last_seq} among them: {why_not}")
        self._forget(runner.channel, known[equal])

    def _on_commit(self, node: NodeId, runner: ChannelRunner, seen: Seq, commit: Seq) -> None:
        truth = self.truth(runner.channel)
        for record in self._read_log(runner, Seq(seen + 1), commit):
            last_seq = record.last_seq
            if last_seq <= seen:
                continue
            if last_seq > truth.last_seq:
                if record.base_seq != truth.last_seq + 1:
                    self._fail("O3", f"hole before seq {record.base_seq} of {runner.name}")
                if record.guid in self.refused.get(runner.channel, {}):
                    self._fail("S4", f"guid {record.guid.hex()} commits after NOT_APPLIED")
                truth.learn(record, runner.elector.term, self._now_ms())
                if record.kind is RecordKind.EXPIRE:
                    self._check_early(record, runner)
                self.commits += 1
                continue
            known = self._find(truth, record.base_seq)
            if known is not record and known != record and _identity(known) != _identity(record):
                self._fail(
                    "O3",
                    f"seq {record.base_seq} of {runner.name} is committed as "
                    f"{_identity(known)!r} and, on {node}, as {_identity(record)!r}",
                )

    def _check_early(self, record: Record, runner: ChannelRunner) -> None:
        """S10: no leader states a time that the clocks of a quorum are far from."""
        until_ms, _ = decode_expire(record.payload)
        ahead_ms = until_ms - (WALL_START_MS + self._now_ms())
        configs = [each.config for each in runner.core.known_configs()]
        wrong_ms = max(quorum_ms(config, self._ahead_ms) for config in configs)
        if ahead_ms > AHEAD_MS_MAX + max(self.clocks_ahead_ms, wrong_ms):
            text = f"seq {record.last_seq} of {runner.name} tells a time {ahead_ms:.0f} ms ahead"
            self._fail("S10", text)

    @staticmethod
    def _read_log(runner: ChannelRunner, from_seq: Seq, to_seq: Seq) -> list[Record]:
        from_seq = max(from_seq, Seq(runner.core.base.seq + 1))
        return runner.parts.log.read(runner.channel, from_seq, to_seq=to_seq, bytes_max=2**62)

    @staticmethod
    def _find(truth: _ChannelTruth, base_seq: Seq) -> Record:
        return truth.records[bisect_left(truth.base_seqs, base_seq)].record

    @staticmethod
    def _fail(rule: str, text: str) -> None:
        message = f"{rule}: {text}"
        raise InvariantError(message)


def _identity(record: Record) -> tuple[int, int, int, bytes, bytes]:
    return (record.base_seq, record.last_seq, record.term, record.guid, record.digest)


def _seq_of(version: tuple[Seq, bytes | None]) -> Seq:
    return version[0]
