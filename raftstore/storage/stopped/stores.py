"""One stopped node's store as a whole: identity, formats, promises, logs and tables, verified.

Nothing in the directory is changed: the log is read as ``raftstore log check`` does, a table from a
copy beside. Time: all of the log and of the tables is read. Bounds: the index of the log (20 bytes
a record), one page of rows, and one write-ahead log of LevelDB on the disk of temporary files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from raftstore.config import FORMAT_VERSION
from raftstore.errors import ArgumentError, CorruptRecordError, NewerFormatError, StorageError
from raftstore.ports.log import Base
from raftstore.rows.sealing import unseal
from raftstore.state_machines.catalog import Catalog
from raftstore.storage.identity import StoppedIdentity, lock_stopped, stopped_cleanly
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.log.mark import MARK_NAME, MarkFile, MarkRow
from raftstore.storage.log.recovery import OnLogRead, unheard
from raftstore.storage.stopped.logs import Gap, StoppedLog, catalog_of, channel_name, gaps_of
from raftstore.storage.stopped.read_only_files import ReadOnlyFiles
from raftstore.storage.stopped.tables import (
    SealedRow,
    Skipped,
    TableFound,
    opened_table,
    tables_in,
    verified_rows,
    verify_table,
)
from raftstore.storage.tables.generations import TABLES_DIRECTORY, present
from raftstore.types import ChannelId, History, LineageEntry, channel_id

OnTableRead = Callable[[int, int], None]
"""Called with how many of how many tables are verified."""


@dataclass(frozen=True, slots=True)
class LogFound:
    """A channel in the log."""

    base: Base
    end: History
    lineage: tuple[LineageEntry, ...]
    records: int
    gaps: tuple[Gap, ...]
    shortfall: History | None
    """Something was acknowledged up to here and is missing."""


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """A channel of the store; None: that part is not there, or could not be read."""

    channel: ChannelId
    name: str
    promise: MarkRow | None
    """Term, vote and last durable record, as the mark remembers them (S0.3)."""
    log: LogFound | None
    table: TableFound | None

    @property
    def lacks_rows(self) -> str | None:
        """Why rows are in neither its log nor its table, so that the next start copies those of
        another replica (S6.5)."""
        if self.log is None or (self.table is not None and self.table.damage is not None):
            return None  # nothing is known of the one, or the other is reported anyhow
        applied = None if self.table is None else self.table.applied
        base = self.log.base.seq
        if base <= (0 if applied is None else applied.seq):
            return None
        has = "it has no table" if applied is None else f"its table ends at seq {applied.seq}"
        return f"its log begins behind seq {base}, and {has}"


@dataclass(frozen=True, slots=True)
class StoreFound:
    """The whole store."""

    identity: StoppedIdentity
    is_clean: bool
    """The node ended by itself, with everything synced."""
    formats: Mapping[str, int]
    log_bytes: int | None
    first_segment: int | None
    channels: tuple[StoredChannel, ...]
    notes: tuple[str, ...] = ()
    """What the next start would say or mend."""
    damage: tuple[str, ...] = field(default=())
    """One sentence for each part that is damaged."""


class StoppedStore:
    """The locked store of a node that does not run."""

    def __init__(self, identity: StoppedIdentity, on_read: OnLogRead = unheard) -> None:
        self.identity = identity
        self.directory = identity.directory
        self.damage: list[str] = []
        self.log: StoppedLog | None = None
        self._mark: MarkFile | None = None
        try:
            self.log = StoppedLog(identity, on_read)
        except StorageError as error:
            self.damage.append(f"the log cannot be read: {error}")
        try:
            mark = self.directory / MARK_NAME
            self._mark = MarkFile.open(ReadOnlyFiles(), mark, identity.store_uuid)
        except StorageError as error:
            if self.log is not None:  # else it was reported already
                self.damage.append(str(error))
        self.tables = tables_in(self.directory)
        self.catalog = self._catalog()

    def close(self) -> None:
        """Close the files."""
        if self.log is not None:
            self.log.log.close()
        if self._mark is not None:
            self._mark.close()

    # --- names ------------------------------------------------------------------------------------

    def name_of(self, channel: ChannelId) -> str:
        """table/partition, or the id where the table is not known."""
        return channel_name(channel, self.catalog, self.identity.belonging.cluster_id)

    def channel_of(self, name: str) -> ChannelId:
        """The channel of this name or id; ArgumentError, with what there is, if there is none."""
        names = {self.name_of(channel): channel for channel in self._channels()}
        by_id = {channel.hex(): channel for channel in self._channels()}
        found = names.get(name) or by_id.get(name)
        if found is None:
            have = ", ".join(sorted(names)) or "none"
            raise ArgumentError(f"{self.directory} holds no channel {name!r}; it holds: {have}")
        return found

    def _catalog(self) -> Catalog:
        """The tables as the metadata channel has them: from its table, else from its log."""
        channel = channel_id(self.identity.belonging.cluster_id, 0)
        numbers = self.tables.get(channel, [])
        number = present(self.directory / TABLES_DIRECTORY, channel, numbers)
        try:
            if number is not None:
                with opened_table(self.directory, channel, number) as (source, reads):
                    rows = [
                        (key, unseal(key, sealed), seq)
                        for key, sealed, seq, _ in verified_rows(source, reads, channel)
                    ]
                if rows:
                    return Catalog.from_rows(rows, max(seq for _, _, seq in rows))
        except (StorageError, CorruptRecordError, NewerFormatError):
            pass  # reported where the table is verified
        return Catalog.empty() if self.log is None else catalog_of([self.log])

    def _channels(self) -> set[ChannelId]:
        known = set(self.tables)
        if self.log is not None:
            known |= set(self.log.log.channels())
            known -= set(self.log.log.dropped_channels())
        return known

    # --- reports ----------------------------------------------------------------------------------

    def inspect(self, tell: OnTableRead) -> StoreFound:
        """Read and verify everything."""
        channels = []
        ordered = sorted(self._channels(), key=lambda each: (self.name_of(each), each))
        for done, channel in enumerate(ordered):
            tell(done, len(ordered))
            channels.append(self._channel(channel))
        tell(len(ordered), len(ordered))
        notes: list[str] = []
        if self.log is not None:
            notes += self.log.log.notes
            notes += [f"the next start mends {path}" for path in self.log.repairs]
        if (self.directory / TABLES_DIRECTORY / "CURRENT").exists():
            notes.append(
                "all tables are in one database, as older versions wrote them, and are not looked "
                "at; the next start gives each channel its own"
            )
        formats = {"store": FORMAT_VERSION}
        if self._mark is not None:
            formats["mark"] = self._mark.version
        return StoreFound(
            self.identity,
            stopped_cleanly(self.directory),
            formats,
            None if self.log is None else self.log.log.size_bytes(),
            None if self.log is None else self.log.log.floor(),
            tuple(channels),
            tuple(notes),
            tuple(self.damage) + tuple(_damage_of(channels)),
        )

    def _channel(self, channel: ChannelId) -> StoredChannel:
        index = None if self.log is None else self.log.log.index_of(channel)
        numbers = self.tables.get(channel)
        table = None if numbers is None else verify_table(self.directory, channel, numbers)
        promise = None if self._mark is None else self._mark.rows.get(channel)
        log = None if index is None else _log(index)
        return StoredChannel(channel, self.name_of(channel), promise, log, table)

    # --- export -----------------------------------------------------------------------------------

    @contextmanager
    def rows(
        self, channel: ChannelId, skipped: Skipped | None
    ) -> Iterator[tuple[History, bool, Iterator[SealedRow]]]:
        """The applied position of a channel's table, whether any row ever had a lifetime, and its
        rows, by ``verified_rows``."""
        numbers = self.tables.get(channel, [])
        number = present(self.directory / TABLES_DIRECTORY, channel, numbers)
        if number is None:
            raise ArgumentError(
                f"{self.directory} holds no table of channel {self.name_of(channel)}: no record "
                "of it was applied here"
            )
        with opened_table(self.directory, channel, number) as (source, reads):
            has_lifetimes = reads.channel_time(source, channel) > 0
            rows = verified_rows(source, reads, channel, skipped)
            yield reads.position(source, channel), has_lifetimes, rows


@contextmanager
def stopped_store(directory: Path, on_read: OnLogRead = unheard) -> Iterator[StoppedStore]:
    """Lock the directory of a stopped node, so that no node starts on it, and look into it.

    Raises StoreIdentityError where no founded store is, where a node runs, or for a newer format,
    and StorageError where the directory may not be read.
    """
    identity = lock_stopped(directory, is_shared=True)
    try:
        store = StoppedStore(identity, on_read)
        try:
            yield store
        finally:
            store.close()
    finally:
        os.close(identity.lock)


def _log(index: ChannelIndex) -> LogFound:
    records = sum(len(part) for part in (index, *index.kept))
    return LogFound(
        index.base,
        index.end,
        tuple(index.lineage),
        records,
        tuple(gaps_of(index)),
        index.shortfall,
    )


def _damage_of(channels: list[StoredChannel]) -> Iterator[str]:
    for found in channels:
        if found.log is not None and (found.log.gaps or found.log.shortfall):
            yield f"channel {found.name}: its log lacks records that it held"
        if found.table is not None and found.table.damage is not None:
            yield f"channel {found.name}: its table is damaged: {found.table.damage}"
        if (lacks := found.lacks_rows) is not None:
            yield (
                f"channel {found.name}: {lacks}; the next start takes the table of another replica"
            )
