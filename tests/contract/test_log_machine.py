"""Random histories of a log with crashes, against a list: what survives is a prefix of what was
written and at least what was synced, for the real log and the simulated one."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftstore.protocol.records import Record
from raftstore.testing.sim_files import ProcessEndedError
from raftstore.testing.sim_log import SimLog
from raftstore.types import ChannelId
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    OTHER,
    SMALL,
    all_records,
    create_log,
    open_log,
    record,
)

State = dict[ChannelId, tuple[int, str | None, tuple[Record, ...]]]
CHANNELS = st.sampled_from([CHANNEL, OTHER])


class LogMachine(RuleBasedStateMachine):
    """``history[i]``: the model after i smallest steps; ``synced`` of them are durable."""

    # What each kind of log does in its own way, given by the machine of that log.
    create: Callable[[], Any]
    sync_all: Callable[[], None]
    crash_log: Callable[[int], None]

    def __init__(self) -> None:
        super().__init__()
        self.log: Any = self.create()
        self.history: list[State] = [{CHANNEL: (0, None, ()), OTHER: (0, None, ())}]
        self.synced = 0

    def _state(self) -> State:
        found = {}
        for channel in (CHANNEL, OTHER):
            seen = self.log.open_channel(channel)
            assert seen.shortfall is None
            found[channel] = (seen.term, seen.voted_for, tuple(all_records(self.log, channel)))
        return found

    def _note(self, channel: ChannelId, term: int, vote: str | None, records: Any) -> None:
        self.history.append(self.history[-1] | {channel: (term, vote, tuple(records))})

    @rule(
        channel=CHANNELS,
        rows=st.lists(st.integers(1, 3), min_size=1, max_size=4),
        size=st.integers(0, 300),
        newer=st.booleans(),
    )
    def append(self, channel: ChannelId, rows: list[int], size: int, newer: bool) -> None:
        """Append records, of a new term or not."""
        term, vote, records = self.history[-1][channel]
        last = records[-1] if records else None
        record_term = (last.term if last else 1) + newer
        seq = last.last_seq + 1 if last else 1
        added = []
        for count in rows:
            added.append(record(seq, term=record_term, rows=count, payload=bytes(size)))
            seq += count
            self._note(channel, term, vote, [*records, *added])
        self.log.append(channel, added)

    @precondition(lambda self: any(self.history[-1][c][2] for c in (CHANNEL, OTHER)))
    @rule(channel=CHANNELS, back=st.integers(0, 6))
    def truncate(self, channel: ChannelId, back: int) -> None:
        """Remove a tail."""
        term, vote, records = self.history[-1][channel]
        from_seq = max(1, (records[-1].last_seq if records else 1) - back)
        kept = [one for one in records if one.base_seq < from_seq]
        self._note(channel, term, vote, kept)
        self.log.truncate(channel, from_seq)

    @rule(channel=CHANNELS, voted=st.booleans())
    def vote(self, channel: ChannelId, voted: bool) -> None:
        """A higher term, with a vote or without."""
        term, _, records = self.history[-1][channel]
        vote = ALICE if voted else None
        self._note(channel, term + 1, vote, records)
        self.log.set_vote(channel, term + 1, vote)

    @rule()
    def sync(self) -> None:
        """A group commit of everything."""
        self.sync_all()
        self.synced = len(self.history) - 1
        assert self.log.durable_operation() == self.log.last_operation()

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        """Power is lost: some prefix is left, nothing that was synced is missing."""
        self.crash_log(seed)
        found = self._state()
        possible = self.history[self.synced :]
        assert found in possible
        self.history = [found]
        self.synced = 0

    @invariant()
    def log_equals_model(self) -> None:
        """Buffered or durable, the log says what was written."""
        assert self._state() == self.history[-1]


class SimLogMachine(LogMachine):
    """The log on simulated files, with power losses in the middle of a group commit."""

    def create(self) -> Any:
        return SimLog.new(settings=replace(SMALL, segment_bytes=500))

    def sync_all(self) -> None:
        self.log.flush()

    def crash_log(self, seed: int) -> None:
        files = self.log.files
        files.rng.seed(seed)
        files.end_after(files.rng.randint(0, 12))
        with suppress(ProcessEndedError):
            self.log.flush()
        files.lose_power()
        self.log = self.log.again()


class SegmentLogMachine(LogMachine):
    """The real log; a crash cuts the files at any byte behind what was synced, or zeroes there."""

    def create(self) -> Any:
        self._holder = tempfile.TemporaryDirectory()
        self._directory = Path(self._holder.name)
        log = create_log(self._directory, segment_bytes=500)
        self._sizes = self._file_sizes()
        return log

    def _file_sizes(self) -> dict[str, int]:
        files = sorted((self._directory / "log").iterdir())
        return {path.name: path.stat().st_size for path in files}

    def sync_all(self) -> None:
        self.log.flush()
        self._sizes = self._file_sizes()

    def crash_log(self, seed: int) -> None:
        mark = (self._directory / "mark").read_bytes()
        self.log.flush()
        self.log.close()
        (self._directory / "mark").write_bytes(mark)
        rng = random.Random(seed)
        for path in sorted((self._directory / "log").iterdir(), reverse=True):
            size = path.stat().st_size
            durable = self._sizes.get(path.name, 0)
            cut = rng.randint(durable, size)
            content = path.read_bytes()[:cut] + bytes(rng.choice([0, size - cut]))
            path.write_bytes(content)
            if content or rng.random() < 0.5:
                # A segment is only started when the ones before it are synced whole.
                break
            path.unlink()
        self.log = open_log(self._directory, segment_bytes=500)
        assert not (self._directory / "quarantine").exists()
        self._sizes = self._file_sizes()

    def teardown(self) -> None:
        self.log.close()
        self._holder.cleanup()


TestSimLog = pytest.mark.slow(SimLogMachine.TestCase)
TestSegmentLog = pytest.mark.slow(SegmentLogMachine.TestCase)
TestSegmentLog.settings = settings(
    max_examples=settings().max_examples // 2,
    stateful_step_count=25,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
