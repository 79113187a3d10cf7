"""The way into a data directory: identity, log and tables, made or opened together and compared.

Loop thread only; ``Store.close`` after the threads of log and tables were stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from raftstore.config import StorageSettings
from raftstore.storage.files import DIRECTORY_MODE, FileOps
from raftstore.storage.free_space import FreeSpace
from raftstore.storage.identity import (
    FREE_BYTES_MIN,
    StoreIdentity,
    open_or_create,
)
from raftstore.storage.log.recovery import OnLogRead, unheard
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.log.segments import LOG_DIRECTORY
from raftstore.storage.presence import PresenceWatch
from raftstore.storage.quarantine import QUARANTINE_DIRECTORY
from raftstore.storage.reconcile import reconcile
from raftstore.storage.space_reserve import SpaceReserve
from raftstore.storage.stalls import UNWATCHED, StallWatch
from raftstore.storage.tables.generations import TABLES_DIRECTORY
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.storage.tables.tables_directory import OnOpened
from raftstore.storage.watched_files import WatchedFileOps


@dataclass(slots=True)
class Store:
    """Everything durable of one node. ``notes``: what happened at the start and an operator must
    see."""

    identity: StoreIdentity
    log: SegmentLog
    tables: LevelDbTables
    notes: tuple[str, ...]
    space: FreeSpace

    def watch_presence(self, on_gone: Callable[[str], None]) -> PresenceWatch:
        """Look, in a thread of its own, whether the directory stays where it is (S0.1), and how
        much of its disk is free.

        ``on_gone`` is called from there, once. Stop the watch before the store is closed.
        """
        home, lock = self.identity.directory, self.identity.place()
        directories = (home, home / LOG_DIRECTORY, home / TABLES_DIRECTORY)
        return PresenceWatch(
            directories,
            lambda: (lock, *self.log.committer.places()),
            on_gone,
            look=self.space.look_and_restore,
        )

    def close(self, *, is_clean: bool) -> None:
        """Close everything and unlock the directory; ``is_clean``: the log was flushed before."""
        self.tables.close()
        self.log.close()
        self.identity.close(is_clean=is_clean)


def open_store(
    directory: Path,
    name: str,
    settings: StorageSettings,
    *,
    ops: FileOps | None = None,
    stalls: StallWatch = UNWATCHED,
    free_bytes_min: int = FREE_BYTES_MIN,
    on_log_read: OnLogRead = unheard,
    on_table_opened: OnOpened | None = None,
) -> Store:
    """Open the store of node ``name``, or create it in an empty directory.

    Operations on its files are noted in ``stalls`` (S0.4); ``on_log_read`` is called with how far
    the reading of the log is, and ``on_table_opened`` how many tables are open.

    Raises DiskFullError (wait and call again), StoreIdentityError (exit code 78), or another
    StorageError (exit code 70); nothing stays open then.
    """
    ops = WatchedFileOps(ops or FileOps(), stalls)
    space = FreeSpace(ops, directory, SpaceReserve(ops, directory, settings))
    identity = open_or_create(
        directory,
        name,
        create_parts=partial(_create_parts, ops, settings),
        ops=ops,
        free_bytes_min=free_bytes_min,
        make_room=space.reserve.make_room,
    )
    _close_to_others(directory)
    try:
        log = SegmentLog(ops, directory, identity.store_uuid, settings, on_read=on_log_read)
        try:
            tables = LevelDbTables.open(directory, identity.store_uuid, settings, on_table_opened)
            try:
                notes = [*log.notes, *reconcile(log, tables)]
            except BaseException:
                tables.close()
                raise
        except BaseException:
            log.close()
            raise
    except BaseException:
        identity.close(is_clean=False)
        raise
    if tables.rebuilt_because is not None:
        notes.append(
            "the tables were put aside and are built again from the log, or from another replica "
            f"where the log was trimmed: {tables.rebuilt_because}"
        )
    if identity.freed_bytes:
        notes.append(
            f"the disk was full: the reserve of {identity.freed_bytes} bytes was removed to start "
            "the node; free some space, the reserve is made again then"
        )
    space.look()
    return Store(identity, log, tables, tuple(notes), space)


def _close_to_others(directory: Path) -> None:
    """Rows are read by the user of the node only, also in directories of older versions."""
    for name in (LOG_DIRECTORY, TABLES_DIRECTORY, QUARANTINE_DIRECTORY):
        try:
            (directory / name).chmod(DIRECTORY_MODE)
        except OSError:
            continue  # missing, or of another owner: opening it says more


def _create_parts(
    ops: FileOps, settings: StorageSettings, directory: Path, store_uuid: bytes
) -> None:
    SegmentLog.create(ops, directory, store_uuid)
    LevelDbTables.create(directory, store_uuid, settings)
