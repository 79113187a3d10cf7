"""A log that is written, trimmed, replaced, killed and damaged in any order keeps what it promised.

The production log on simulated files, watched by its oracle (``raftstore.testing.log_truth``) at
every start; besides, every record that it gives back is the one that was written there, and nothing
of it is missing unless the log says so.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from raftstore.config import KIB, StorageSettings
from raftstore.core.folds import advance
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.records import Record
from raftstore.testing.sim_damage import flip_a_bit
from raftstore.testing.sim_files import ProcessEndedError
from raftstore.testing.sim_log import SimLog
from raftstore.types import ChannelId, Seq, Term
from tests.storage_helpers import ALICE, CHANNEL, OTHER, record

SETTINGS: Final = StorageSettings(segment_bytes=1 * KIB, log_cache_bytes=1 * KIB)
OPERATIONS_MAX: Final = 30
"""Of a group commit before which the process may end."""

channels = st.sampled_from((CHANNEL, OTHER))
some = st.integers(0, 30)


class LogMachine(RuleBasedStateMachine):
    """Two channels of one log."""

    def __init__(self) -> None:
        super().__init__()
        self.log = SimLog.new(settings=SETTINGS)
        self.is_damaged = False
        """One entry was; what others were could not always be proven."""

    # --- writing ----------------------------------------------------------------------------------

    @rule(channel=channels, records=st.integers(1, 6), rows=st.integers(1, 3), size=some)
    def append(self, channel: ChannelId, records: int, rows: int, size: int) -> None:
        """Records of the present term, each an operation."""
        self.take_part(channel)
        for _ in range(records):
            found = self.log.open_channel(channel)
            term, seq = max(found.term, 1), found.last_seq + 1
            payload = b"%d" % term * (1 + 10 * size)
            self.log.append(channel, [record(seq, term=term, rows=rows, payload=payload)])

    @rule(channel=channels, number=some)
    def truncate(self, channel: ChannelId, number: int) -> None:
        """The end diverged; the next records are of a new term."""
        self.take_part(channel)
        starts = [one.base_seq for one in self.log.records(channel)]
        if starts:
            self.vote(channel)
            self.log.truncate(channel, Seq(starts[number % len(starts)]))

    @rule(channel=channels)
    def vote(self, channel: ChannelId) -> None:
        """A new term."""
        self.log.set_vote(channel, Term(self.log.open_channel(channel).term + 1), ALICE)

    @rule()
    def flush(self) -> None:
        """Everything becomes durable."""
        self.log.flush()

    # --- bases and the floor ----------------------------------------------------------------------

    @rule(channel=channels, number=some)
    def trim(self, channel: ChannelId, number: int) -> None:
        """The base moves up to some record, or is written anew."""
        self.take_part(channel)
        records = list(self.log.records(channel))
        base = advance(self.log.base(channel), records[: number % (len(records) + 1)])
        if base.seq:
            self.log.rebase(channel, base)

    @rule(channel=channels, rows=st.integers(1, 5))
    def replace(self, channel: ChannelId, rows: int) -> None:
        """A base of a later term, beyond everything that is known here."""
        found = self.log.open_channel(channel)
        seqs = [found.last_seq, found.hole.to_seq if found.hole else 0]
        if found.shortfall is not None:
            seqs.append(found.shortfall.seq)
        term = found.term + 1
        base = advance(EMPTY_BASE, [record(1, rows=max(seqs) + rows, term=term)])
        self.log.set_vote(channel, Term(term), None)
        self.log.rebase(channel, base)

    @rule()
    @precondition(lambda self: self.log.floor_max() > self.log.floor())
    def raise_floor(self) -> None:
        """Segments go."""
        self.log.begin_floor(self.log.floor_max())

    def take_part(self, channel: ChannelId) -> None:
        """A channel that lost something gets a base from its leader first."""
        found = self.log.open_channel(channel)
        if found.hole is not None or found.shortfall is not None:
            self.replace(channel, 1)

    # --- ends -------------------------------------------------------------------------------------

    @rule(operations=st.integers(0, OPERATIONS_MAX), is_power_cut=st.booleans())
    def crash(self, operations: int, is_power_cut: bool) -> None:
        """In the middle of a group commit, and once more in the middle of the start."""
        self.log.files.end_after(operations)
        with suppress(ProcessEndedError):
            self.log.flush()
        self.end(is_power_cut)
        self.log.files.end_after(operations % 4)
        with suppress(ProcessEndedError):
            SimLog(self.log.files, self.log.truth, bytes(16), SETTINGS)
        self.end(is_power_cut)
        self.start()

    def end(self, is_power_cut: bool) -> None:
        """The process does, or the machine."""
        if is_power_cut:
            self.log.files.lose_power()
        else:
            self.log.files.end_process()

    @rule(place=st.integers(0, 10**6))
    @precondition(lambda self: not self.is_damaged)
    def damage(self, place: int) -> None:
        """A bit flips, anywhere behind the header of the first segment."""
        self.log.flush()
        files = self.log.files
        paths = sorted(path for path in files.paths() if path.parent == self.log.directory)
        sizes = [files.size_bytes(path) for path in paths]
        place %= sum(sizes)
        for path, size in zip(paths, sizes, strict=True):
            if place < size:
                flip_a_bit(files, path, place)
                break
            place -= size
        files.lose_power()
        self.is_damaged = self.log.truth.is_damaged = True
        self.start()

    def start(self) -> None:
        """The oracle compares; no record is another one than was written there."""
        self.log = self.log.again()
        for channel in self.log.channels():
            base = self.log.base(channel)
            start = Seq(base.seq + 1)
            given = self.log.read(channel, start, to_seq=Seq(10**9), bytes_max=1 << 30)
            ends = [base.seq, *(one.last_seq for one in given)]
            assert [one.base_seq - 1 for one in given] == ends[:-1]
            assert all(is_what_was_written(one) for one in given)
            found = self.log.open_channel(channel)
            assert found.last_seq == ends[-1]
            if not self.is_damaged:
                assert (found.shortfall, found.hole) == (None, None)


def is_what_was_written(one: Record) -> bool:
    """Whether the payload is that of its term."""
    return set(one.payload) == set(b"%d" % one.term)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogMachine = pytest.mark.slow(LogMachine.TestCase)
