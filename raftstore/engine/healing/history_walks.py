"""Chain hashes of a log as its records are when they are read again (S13).

``ChainWalks`` believes what a running replica remembers of its chain. Here every record is read and
held against its digest, from the base on or from the nearest hash that was made so before; of every
``MILESTONE_RECORDS`` the hash is kept, so that a bisection reads a log once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftstore.config import KIB
from raftstore.core.chain import ChainHashes, digest_of
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.ports.log import MessageLog
from raftstore.protocol.records import Record
from raftstore.protocol.replica_checks import LogRecord
from raftstore.types import Digest, Seq

STEP_BYTES: Final = 256 * KIB
STEP_RECORDS: Final = 256
"""Read in one step, on the node's thread: a few milliseconds."""
RECORD_BYTES: Final = 100
"""What a record counts beside its payload."""
MILESTONE_RECORDS: Final = 1_024


@dataclass(slots=True)
class _Milestones:
    """Hashes of one channel's log behind one base, in ascending order."""

    runner: ChannelRunner
    base_seq: Seq
    seqs: list[Seq]
    hashes: list[bytes]


@dataclass(frozen=True, slots=True)
class WalkEnd:
    """Where a walk ended."""

    end_seq: Seq
    chain_hash: bytes
    record: LogRecord | None
    """The record that ends there; None: the base does."""
    damage: str = ""
    """Why it did not come further."""


class HistoryWalk:
    """One hash that is being computed, in steps."""

    def __init__(
        self,
        log: MessageLog,
        runner: ChannelRunner,
        seq: Seq,
        milestones: Callable[[ChannelRunner], _Milestones],
    ) -> None:
        """Walk to the last record that ends at or before ``seq``; ``milestones``: known hashes."""
        self._log = log
        self._runner = runner
        self._seq = seq
        self._milestones = milestones
        self._chain: ChainHashes | None = None
        self._record: Record | None = None
        self._walked = 0

    def step(self) -> tuple[int, WalkEnd | None]:
        """Read some records; the bytes that it took, and where the walk ended, if it did."""
        runner = self._runner
        known = self._milestones(runner)
        if self._chain is None or self._chain.last_seq < runner.core.base.seq:
            # The log was trimmed meanwhile, or the walk begins.
            self._chain, self._record = self._nearest(known, self._seq), None
        chain, channel = self._chain, runner.channel
        at = Seq(chain.last_seq + 1)
        end = self._log.extent(channel).reach(
            at, to_seq=self._seq, bytes_max=STEP_BYTES, records_max=STEP_RECORDS
        )
        records: list[Record] = []
        if end >= at:
            records = self._log.read(channel, at, to_seq=end, bytes_max=STEP_BYTES)
        size = 0
        for record in records:
            size += RECORD_BYTES + len(record.payload)
            fault = _fault(record, Seq(chain.last_seq + 1))
            if fault:
                return size, self._end(chain, fault)
            chain.append(record)
            self._record = record
            self._walked += 1
            if self._walked % MILESTONE_RECORDS == 0 and chain.last_seq > known.seqs[-1]:
                known.seqs.append(chain.last_seq)
                known.hashes.append(chain.last)
        chain.commit(chain.last_seq)
        is_over = not records or chain.last_seq >= self._seq
        if is_over and self._record is None and chain.last_seq > known.base_seq:
            # A known hash is the last one: the record that ends there is to be reported.
            self._chain = self._nearest(known, chain.last_seq)
            return size, None
        return size, self._end(chain) if is_over else None

    @staticmethod
    def _nearest(known: _Milestones, seq: Seq) -> ChainHashes:
        """Begin at the nearest hash in front of this seq, or at the base."""
        at = max(0, bisect_right(known.seqs, seq - 1) - 1)
        return ChainHashes.behind(known.seqs[at], Digest(known.hashes[at]))

    def _end(self, chain: ChainHashes, damage: str = "") -> WalkEnd:
        record = self._record
        last_record = None
        if record is not None:
            last_record = LogRecord(
                record.base_seq,
                record.last_seq,
                record.term,
                record.kind,
                record.guid,
                record.digest,
            )
        return WalkEnd(chain.last_seq, chain.last, last_record, damage)


class HistoryWalks:
    """Walks at one node, and the hashes that they found in the log that was walked last."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._known: _Milestones | None = None

    def begin(self, runner: ChannelRunner, seq: Seq) -> HistoryWalk:
        """A walk to the last record that ends at or before ``seq``, which is committed."""
        return HistoryWalk(self._log, runner, seq, self._milestones)

    def closed(self, runner: ChannelRunner) -> None:
        """Forget a channel that was closed, or is opened anew."""
        if self._known is not None and self._known.runner is runner:
            self._known = None

    def _milestones(self, runner: ChannelRunner) -> _Milestones:
        base, known = runner.core.base, self._known
        if known is None or known.runner is not runner or known.base_seq != base.seq:
            known = _Milestones(runner, base.seq, [base.seq], [base.chain_hash])
            self._known = known
        return known


def _fault(record: Record, expected: Seq) -> str:
    """Why a record is not what was written; empty: it is."""
    if record.base_seq != expected:
        return f"seq {expected} is missing, the next record begins at {record.base_seq}"
    if digest_of(record.payload) != record.digest:
        return f"the payload of the record at seq {expected} is not what its digest tells"
    return ""
