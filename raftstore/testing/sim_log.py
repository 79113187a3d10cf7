"""The production log of a simulated node, on simulated files, watched by its oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from raftstore.config import KIB, StorageSettings
from raftstore.ports.log import Base
from raftstore.ports.scrub import LogDamage, LogVerifying
from raftstore.protocol.records import Record
from raftstore.storage.log.base_rules import continues
from raftstore.storage.log.group_commit import Batch
from raftstore.storage.log.index import offset_of, segment_of
from raftstore.storage.log.mark import BOOT_BYTES
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.log.segments import segment_path
from raftstore.testing.log_truth import LogTruth
from raftstore.testing.sim_failpoints import unwatched
from raftstore.testing.sim_files import SimFiles
from raftstore.types import ChannelId, NodeId, Seq, Term

ROOT: Final = Path("/sim")
STORE_UUID: Final = bytes(16)
SETTINGS: Final = StorageSettings(segment_bytes=64 * KIB, log_cache_bytes=256 * KIB)


class _WatchedScrub:
    """ports.LogVerifying: what it makes of damage is reported to the truth."""

    def __init__(self, log: SimLog, verifying: LogVerifying) -> None:
        self._log = log
        self._verifying = verifying
        self.step = verifying.step
        self.channels_hit = verifying.channels_hit
        self.bases_hit = verifying.bases_hit

    def doubt(self, channel: ChannelId) -> None:
        """As in production."""
        self._verifying.doubt(channel)
        self._log.truth.lost(channel, self._log.open_channel(channel).shortfall)

    def lose(self, channel: ChannelId, damage: LogDamage) -> None:
        """As in production."""
        self._verifying.lose(channel, damage)
        self._log.truth.lost(channel, self._log.open_channel(channel).shortfall)


class SimLog(SegmentLog):
    """MessageLog of one life of a simulated node; what it writes is reported to ``truth``."""

    def __init__(
        self,
        files: SimFiles,
        truth: LogTruth,
        store_uuid: bytes,
        settings: StorageSettings,
        reach: Callable[[str], None] = unwatched,
        boot: bytes = bytes(BOOT_BYTES),
    ) -> None:
        super().__init__(files, files.root, store_uuid, settings, reach=reach, boot=boot)
        self.files = files
        self.truth = truth
        self.verifying = _WatchedScrub(self, self.verifying)
        self.flipped: dict[int, ChannelId] = {}
        """Positions of records that were damaged while this life ran, and of which channel."""
        self.covered_position = self._durable_position
        """What is in front of it is in the mark, too: its loss is noticed in any case (S0.3)."""

    @classmethod
    def new(cls, seed: int = 0, settings: StorageSettings = SETTINGS) -> SimLog:
        """An empty log on files of its own."""
        files = SimFiles(random.Random(seed), ROOT)
        cls.create(files, files.root, STORE_UUID)
        files.sync_directory(files.root)
        return cls(files, LogTruth("log"), STORE_UUID, settings)

    def again(self) -> SimLog:
        """The next start on the same files; raises InvariantError if it finds what it must not."""
        log = type(self)(self.files, self.truth, self._store_uuid, self._settings, boot=self._boot)
        self.truth.check(log)
        return log

    def is_behind(self) -> bool:
        """Whether anything buffered is not durable yet."""
        return self._operation != self._durable_operation

    # --- watched ----------------------------------------------------------------------------------

    def rebase(self, channel: ChannelId, base: Base) -> int:
        """As in production."""
        index = self._open(channel)
        replaces, term = not continues(index, base), index.term
        operation = super().rebase(channel, base)
        if index.term > term:
            self.truth.voted(operation, channel, index.term, index.voted_for)
        self.truth.rebased(operation, channel, base.history, replaces=replaces)
        return operation

    def append(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """As in production."""
        operation = super().append(channel, records)
        self.truth.wrote(operation, channel, records)
        return operation

    def fill(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """As in production."""
        operation = super().fill(channel, records)
        self.truth.wrote(operation, channel, records)
        if self._channels[channel].shortfall is None:
            self.truth.whole(operation, channel)
        return operation

    def truncate(self, channel: ChannelId, from_seq: Seq) -> int:
        """As in production."""
        operation = super().truncate(channel, from_seq)
        self.truth.truncated(operation, channel, from_seq)
        return operation

    def set_vote(self, channel: ChannelId, term: Term, voted_for: NodeId | None) -> int:
        """As in production."""
        operation = super().set_vote(channel, term, voted_for)
        self.truth.voted(operation, channel, term, voted_for)
        return operation

    def drop_channel(self, channel: ChannelId) -> int:
        """As in production."""
        operation = super().drop_channel(channel)
        self.truth.dropped(operation, channel)
        return operation

    def remove_replica(self, channel: ChannelId, number: int) -> int:
        """As in production."""
        operation = super().remove_replica(channel, number)
        self.truth.removed(operation, channel, number)
        return operation

    def completed(self, batch: Batch) -> int:
        """As in production."""
        operation = super().completed(batch)
        self.truth.durable(operation)
        return operation

    # --- for faults -------------------------------------------------------------------------------

    def holds_durably(self, channel: ChannelId, record: Record) -> bool:
        """Whether the record is in the log and was reported durable."""
        index = self._channels.get(channel)
        if index is None or index.term_at(record.base_seq) != record.term:
            return False
        at = index.locate(record.base_seq)  # of the last one that the base covers it gives a term
        if at >= len(index.positions) or index.positions[at] in self.flipped:
            return False
        return index.positions[at] < self._durable_position

    @property
    def durable_position(self) -> int:
        """End of what was reported durable."""
        return self._durable_position

    def note_flip(self, channel: ChannelId, record: Record) -> None:
        """A bit of the record flips while the log is open."""
        index = self._channels[channel]
        self.flipped[index.positions[index.locate(record.base_seq)]] = channel

    @property
    def has_flipped(self) -> bool:
        """Whether a record that was damaged under this life is not given back or removed yet."""
        indices = ((at, self._channels.get(channel)) for at, channel in self.flipped.items())
        return any(index is not None and at in index.positions for at, index in indices)

    def knows(self, channel: ChannelId, record: Record) -> bool:
        """Whether the record is somewhere in the log, be it behind damage."""
        index = self._channels.get(channel)
        parts = () if index is None else (index, *index.kept)
        return any(part.term_at(record.base_seq) == record.term for part in parts)

    def is_whole(self, channel: ChannelId) -> bool:
        """Whether it has the channel, lacks nothing of what it promised there, and will not find
        that it does."""
        index = self._channels.get(channel)
        if index is None or not index.is_whole:
            return False
        return not any(
            name == channel and at in index.positions for at, name in self.flipped.items()
        )

    def draw_entry(
        self, rng: random.Random, newest: int, *, covered: bool = False
    ) -> tuple[ChannelId, Record, Path, int, int] | None:
        """Some durable record of the log, one of the ``newest`` of its channel unless that is 0:
        its channel, itself, and the file, offset and length of its entry. None: there is none.

        ``covered``: the mark has it, and it is as it was written.
        """
        channels = [name for name in self.channels() if len(self._channels[name])]
        if not channels:
            return None
        channel = rng.choice(channels)
        index = self._channels[channel]
        at = rng.randrange(max(0, len(index) - newest) if newest else 0, len(index))
        position = index.positions[at]
        below = self.covered_position if covered else self._durable_position
        if position >= below or position in self.flipped:
            return None
        return channel, self._record(channel, index, at), *self.entry_at(channel, at)

    def entry_at(self, channel: ChannelId, at: int) -> tuple[Path, int, int]:
        """File, offset and length of the entry of a channel's n-th record."""
        index = self._channels[channel]
        position = index.positions[at]
        return (
            segment_path(self.directory, segment_of(position)),
            offset_of(position),
            index.lengths[at],
        )
