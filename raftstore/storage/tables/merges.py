"""Merging a channel's files on purpose, so that its LevelDB takes little more than its rows.

LevelDB merges late. A table of a few megabytes that is updated all the time takes several memory
tables' worth of files and write-ahead log besides, and removed rows keep their bytes until enough
else is written. ``compact_range`` merges what there is. As in a barrier it hides a failure,
so nothing is believed before a write on the same database succeeded.

Whether a merge is worth it is decided on the thread of merges, from the sizes of the files: since
the last merge the table grew by a factor, or a part of it was removed. What open snapshots show a
merge would keep: one for removed rows waits until nothing shows them, one for growth for a while. A
large table is merged a range of keys at a time: during a range LevelDB begins none of its own
merges, and would hold writes back in the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Final

from raftstore import faults
from raftstore.config import KIB, MIB
from raftstore.errors import StorageError
from raftstore.ports.tables import MergeStep
from raftstore.rows.sealing import unseal
from raftstore.state_machines.state_keys import TRIMMED
from raftstore.state_machines.trimmed_outcomes import outcome_ranges, trimmed_to
from raftstore.storage.files import persisting
from raftstore.storage.stalls import UNWATCHED, Area, StallWatch
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.channel_database import NOTHING, ChannelDatabase
from raftstore.storage.tables.keys import (
    BEHIND_ALL_KEYS,
    MERGED_KEY,
    REMOVED_KEY,
    STORE_ID,
    channel_end,
    decode_count,
    encode_count,
    never_stored,
    rows_end,
    rows_prefix,
)
from raftstore.storage.tables.leveldb_database import DATABASE_ERRORS, iterated
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.storage.worker import Worker
from raftstore.types import CHANNEL_ID_BYTES, ChannelId

QUIET_FACTOR: Final = 1.5
"""A table that is not written to is merged when it takes more than so many times what it took after
its last merge, and ``QUIET_SLACK_BYTES``."""
QUIET_SLACK_BYTES: Final = 256 * KIB
BUSY_FACTOR: Final = 4.0
"""The same of one that is written to, and the bytes of its memory table: what grows by new rows
alone is then merged a few times while it becomes large, and not at each doubling."""
GROWTH_BYTES_MAX: Final = 256 * MIB
"""A larger table is not merged for its size: what LevelDB has not merged is a small part of it."""
REMOVED_SHARE: Final = 3
"""A table is merged when one part in so many of its bytes are rows that were removed."""
SAMPLED_ROWS: Final = 64
"""Rows by which the size of the removed ones is guessed."""
RANGE_BYTES_MAX: Final = 64 * MIB
"""Bytes of table files that are merged in one step: a second or so."""
SPLIT_BYTES: Final = 32
"""Bytes of keys by which a range is split."""
KEPT: Final = 0
"""Stored instead of what the files took after a merge that had to keep something for readers: these
are gone when it is read, and the table is merged once more."""


def has_grown(size: int, merged_bytes: int, slack_bytes: int, factor: float) -> bool:
    """Whether files of ``size`` bytes should be merged that were ``merged_bytes`` after the last
    merge (0: there was none)."""
    return factor * merged_bytes + slack_bytes < size <= GROWTH_BYTES_MAX


def are_removed(size: int, removed_bytes: int, slack_bytes: int) -> bool:
    """Whether so much of the files is removed rows that these alone are worth a merge."""
    return removed_bytes > slack_bytes and removed_bytes * REMOVED_SHARE > size


def bytes_in(directory: Path) -> int:
    """Bytes of the files of a database, but of those that go meanwhile. Raises PersistError."""
    size = 0
    with persisting(directory, "looking at LevelDB's files"), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                size += entry.stat().st_size
    return size


def trimmed_bytes(source: Any, channel: ChannelId) -> int:
    """About how many bytes the files still have of outcomes that are trimmed: all that is left of
    them there is what no merge has taken out yet."""
    key = channel + TRIMMED
    stored = source.get(key, verify_checksums=True)
    if stored is None:
        return 0
    to_seq = trimmed_to(lambda state_key: unseal(state_key, stored))
    return sum(
        int(source.approximate_size(channel + start, channel + stop))
        for start, stop in outcome_ranges(to_seq)
    )


def key_within(
    size_of: Callable[[bytes, bytes], int], start: bytes, stop: bytes, bytes_max: int
) -> bytes:
    """A key behind ``start`` up to which there are about ``bytes_max`` bytes at most, or ``stop``.

    More if they cannot be distinguished by ``SPLIT_BYTES`` behind the id of their channel.
    """
    if size_of(start, stop) <= bytes_max:
        return stop
    width = CHANNEL_ID_BYTES + SPLIT_BYTES

    def number(key: bytes) -> int:
        return int.from_bytes(key[:width].ljust(width, b"\0"), "big")

    low, high = number(start), number(stop)
    while high - low > 1:
        middle = (low + high) // 2
        size = size_of(start, middle.to_bytes(width, "big"))
        if size > bytes_max:
            high = middle
        else:
            low = middle
            if size * 2 >= bytes_max:
                return low.to_bytes(width, "big")
    return high.to_bytes(width, "big")


def _note(source: Any, removed: int, merged_bytes: int | None) -> None:
    """Have a next life of the node know it, and nodes that get the table in its files."""
    with source.write_batch() as batch:
        batch.put(REMOVED_KEY, encode_count(removed))
        if merged_bytes is not None:
            batch.put(MERGED_KEY, encode_count(merged_bytes))


@dataclass(frozen=True, slots=True)
class MergeJob:
    """A channel that may be worth a merge."""

    state: AppliedChannel
    database: ChannelDatabase
    path: Path
    slack_bytes: int
    """Of a table that is written to: bytes of its memory table."""
    is_quiet: bool
    """Nothing was applied for a while."""
    is_urgent: bool
    """It is merged for its growth even if somebody reads a snapshot of it."""


def _slack(job: MergeJob) -> int:
    return QUIET_SLACK_BYTES if job.is_quiet else job.slack_bytes


@dataclass(slots=True)
class _UnderWay:
    """A merge of a table that is not over."""

    database: ChannelDatabase
    next_key: bytes
    bytes_before: int
    removed: int
    """Removals that it takes the bytes of: those behind them a snapshot keeps."""
    keeps: bool
    """Snapshots were open, which keep what they show."""
    rewrites: bool
    """All files are written anew."""
    is_busy: bool
    """The table was written to when it began."""


class Merges:
    """The thread of one node's merges; ``start`` and ``close`` on the loop thread."""

    def __init__(self, reads: LevelDbReads, on_failed: Callable[[StorageError], None]) -> None:
        self._reads = reads
        self._on_failed = on_failed
        self._worker: Worker | None = None
        self._under_way: _UnderWay | None = None
        self._is_closing = Event()
        self._stalls, self._path = UNWATCHED, Path()

    def note_merges(self, stalls: StallWatch, path: Path) -> None:
        """Note in ``stalls`` when the database at ``path`` is merged, from now on."""
        self._stalls, self._path = stalls, path

    def start(self, job: MergeJob, done: Callable[[MergeStep], object]) -> None:
        """Take a step behind others; ``done`` is called on the thread. The database is held open
        for it (``ChannelDatabase.hold``)."""
        if self._worker is None:
            self._worker = Worker("raftstore-merge", self._on_failed)

        def take() -> None:
            try:
                if self._is_closing.is_set():
                    return
                with self._stalls.doing(Area.READS, "a merge of LevelDB", self._path):
                    step = self.step(job)
            finally:
                job.database.let_go()
            done(step)

        self._worker.submit(take)

    def step(self, job: MergeJob) -> MergeStep:
        """Do it in the calling thread. Raises StorageError, and then the tables are poisoned."""
        source = job.database.source
        if source is NOTHING:
            return MergeStep()
        self._reads.check()
        try:
            return self._step(job, source)
        except DATABASE_ERRORS as error:
            raise self._reads.failed(error, job.state.channel) from error

    def close(self) -> None:
        """End the thread after the step at hand."""
        self._is_closing.set()
        if self._worker is not None:
            self._worker.stop()

    def _step(self, job: MergeJob, source: Any) -> MergeStep:
        work = self._under_way
        if work is None or work.database is not job.database:
            size, removed = bytes_in(job.path), job.state.removed
            self._look_back(job.state, source)
            is_grown = self._is_grown(job, size)
            is_due = is_grown or self._may_have_kept(job, size)
            if not is_due and not self._are_removed(job, source, removed, size):
                return MergeStep()
            # States of before a micro-batch are kept all the time while one follows another: what
            # was removed before the oldest of them is given back meanwhile.
            removed = job.database.removed_shown(removed)
            is_removed = self._are_removed(job, source, removed, size)
            is_read = job.database.is_read
            if is_read and not is_removed and not (job.is_urgent and is_grown):
                return MergeStep(waits=True, bytes_before=size, bytes_after=size)
            # Which levels it merges LevelDB decides before it flushes the memory table.
            source.compact_range(start=BEHIND_ALL_KEYS[0], stop=BEHIND_ALL_KEYS[1])
            work = self._under_way = _UnderWay(
                job.database,
                job.state.channel,
                size,
                removed,
                keeps=is_read,
                rewrites=is_removed or job.state.is_kept_for_readers,
                is_busy=not job.is_quiet,
            )
        return self._merge_range(job, source, work)

    @staticmethod
    def _look_back(state: AppliedChannel, source: Any) -> None:
        """Learn what the last merge left, if that was in an earlier life or another node."""
        if state.merged_bytes is None:
            stored = source.get(MERGED_KEY, verify_checksums=True)
            state.merged_bytes = decode_count(stored)
            state.is_kept_for_readers = stored is not None and state.merged_bytes == KEPT

    @staticmethod
    def _is_grown(job: MergeJob, size: int) -> bool:
        """Whether it is due for what it grew by since the last merge."""
        assert job.state.merged_bytes is not None, "it looked back"
        factor = QUIET_FACTOR if job.is_quiet else BUSY_FACTOR
        return has_grown(size, job.state.merged_bytes, _slack(job), factor)

    @staticmethod
    def _may_have_kept(job: MergeJob, size: int) -> bool:
        """Whether the last merge may have left something that nobody needs now: for readers, or
        what was written meanwhile, in LevelDB's own log. Its size behind that merge counts it, and
        nothing is written to it that would have it grow."""
        leaves_more = job.state.is_kept_for_readers or job.state.was_merged_busy
        return job.is_quiet and leaves_more and QUIET_SLACK_BYTES < size <= GROWTH_BYTES_MAX

    def _are_removed(self, job: MergeJob, source: Any, removed: int, size: int) -> bool:
        """Whether so much of it are rows and outcomes that were removed."""
        removed_bytes = self._removed_bytes(job, source, removed, size)
        removed_bytes += trimmed_bytes(source, job.state.channel)
        return are_removed(size, removed_bytes, _slack(job))

    @staticmethod
    def _removed_bytes(job: MergeJob, source: Any, removed: int, size: int) -> int:
        """About how many bytes still have rows of which so many were ever removed: as many as those
        that there are take each, or where these are few, what is in the files but these."""
        channel, removed = job.state.channel, removed - job.state.removed_merged
        if removed <= 0:
            return 0
        start, stop = rows_prefix(channel), rows_end(channel)
        with iterated(source, start=start, stop=stop) as pairs:
            sizes = [len(key) + len(value) for key, value in islice(pairs, SAMPLED_ROWS)]
        if not sizes:
            return size
        if len(sizes) < SAMPLED_ROWS:
            return int(source.approximate_size(start, stop)) - sum(sizes)
        return removed * sum(sizes) // len(sizes)

    def _merge_range(self, job: MergeJob, source: Any, work: _UnderWay) -> MergeStep:
        end = channel_end(job.state.channel)
        stop = key_within(source.approximate_size, work.next_key, end, RANGE_BYTES_MAX)
        is_over = stop == end
        is_first = work.next_key == job.state.channel
        faults.reach("merge.before")
        if work.rewrites:
            # Files of the last level that no file above overlaps LevelDB leaves as they are, with
            # all that they kept for readers. So a file is made that overlaps them all.
            with source.write_batch() as batch:
                batch.delete(work.next_key if is_first else never_stored(work.next_key))
                batch.delete(stop if is_over else never_stored(stop))
        # From the first key on also those of the store's own; without bounds nothing is merged.
        source.compact_range(start=STORE_ID if is_first else work.next_key, stop=stop)
        faults.reach("merge.after")
        size = bytes_in(job.path)
        if is_over:
            self._under_way = None
            job.state.removed_merged = max(job.state.removed_merged, work.removed)
            job.state.is_kept_for_readers, job.state.merged_bytes = work.keeps, size
            job.state.was_merged_busy = work.is_busy or not job.is_quiet
        left = job.state.removed - job.state.removed_merged
        # S0.4: only a write shows whether the merge failed.
        _note(source, left, (KEPT if work.keeps else size) if is_over else None)
        work.next_key = stop
        return MergeStep(
            is_merged=True,
            is_over=is_over,
            keeps=work.keeps,
            bytes_before=work.bytes_before,
            bytes_after=size,
        )
