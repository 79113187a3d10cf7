"""The directory of a store's tables: one LevelDB for each channel, and whose they are.

``tables/<channel id in hex>/`` is the database of a channel, from its first applied record on; a
copy of another replica's table is a *generation* of it (``generations``). A damaged one is put
aside alone, and its rows are applied again from the log. A name that ends in ``.removing`` is on
its way out; one that ends in ``.copying`` is a copy that was not finished (``shared_database``).
Both are removed at the next start.

Called by the thread that opens the store; ``create_channel`` by the apply thread,
``remove_channel`` and ``remove_generation`` by the one that removes, and ``begin_copy`` and
``switched`` by the loop thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from raftstore.config import StorageSettings
from raftstore.crc import crc32
from raftstore.errors import CorruptRecordError, StoreIdentityError
from raftstore.storage.files import FileOps, persisting, starting
from raftstore.storage.quarantine import free_place
from raftstore.storage.tables.files_copy import LevelDbFilesCopy
from raftstore.storage.tables.generations import (
    TABLES_DIRECTORY,
    Generation,
    begun_position,
    copied_position,
    generations_in,
    is_begun_in_files,
    path_of,
    present,
)
from raftstore.storage.tables.leveldb_database import (
    DATABASE_ERRORS,
    DatabaseShare,
    create,
    is_damage,
    open_checked,
    opening_error,
    share_of,
    translate,
)
from raftstore.storage.tables.shared_database import COPYING_SUFFIX, split_shared
from raftstore.storage.tables.table_copy import LevelDbCopy
from raftstore.types import EMPTY_HISTORY, ChannelId, History

REBUILD_NAME: Final = "tables.rebuild"
"""Its presence asks the next start to rebuild all tables; it holds the reason."""
CHANNEL_REBUILD_NAME: Final = "raftstore-rebuild"
"""The same for one channel, beside the files of its database, which LevelDB leaves alone."""
OWNER_NAME: Final = "raftstore-store"
"""Beside the databases: the UUID of the store they belong to."""
OWNER_CHECKSUM_NAME: Final = "raftstore-store.crc"
"""CRC-32 of that file, so that a flipped bit in it is not taken for another store. A file of its
own, since older versions compare the other one as a whole."""
REMOVING_SUFFIX: Final = ".removing"
OPENING_THREADS: Final = 4
"""Databases that are opened side by side: LevelDB syncs its MANIFEST for each."""


OnOpened = Callable[[int, int], None]
"""Called with (databases that are open, all of them) while the tables are opened."""


def channels_in(directory: Path) -> int:
    """Count the databases of a node that does not run; 0 for a directory that is none."""
    try:
        return len(generations_in(directory / TABLES_DIRECTORY))
    except OSError:
        return 0  # opening the store says more


def ask_for_rebuild(directory: Path, channel: ChannelId | None, reason: str) -> None:
    """Remember damage of a running store for its next start; None: of which channel is unknown."""
    asked = (
        directory / REBUILD_NAME
        if channel is None
        else path_of(directory, channel) / CHANNEL_REBUILD_NAME
    )
    try:
        asked.write_text(reason, encoding="utf-8")
    except OSError:
        pass  # Then the next start finds the same damage and asks again.


class TablesDirectory:
    """Opens, creates and removes the databases below one data directory."""

    def __init__(self, directory: Path, store_uuid: bytes, settings: StorageSettings) -> None:
        self.path = directory / TABLES_DIRECTORY
        self._directory = directory
        self._store_uuid = store_uuid
        self._settings = settings
        self._ops = FileOps()
        self.rebuilt: dict[str, str] = {}
        """What was put aside and starts empty (all tables, or a channel), and why."""
        self._numbers: dict[ChannelId, int] = {}
        """Of the present generation of each channel that has a copied one; others are at 0."""
        self._newest: dict[ChannelId, int] = {}
        """The highest number that was given to a generation of the channel."""
        self._begun: dict[ChannelId, int] = {}
        """Of the copy that an earlier life of the node began, and nobody goes on with yet."""

    @classmethod
    def create(cls, directory: Path, store_uuid: bytes, settings: StorageSettings) -> None:
        """Create the directory of a new store, without any database."""
        cls(directory, store_uuid, settings).begin()

    @property
    def rest_times_max(self) -> int:
        """How many times as long as a step a thread of copies rests at most."""
        return self._settings.rest_times_max

    # --- opening ----------------------------------------------------------------------------------

    def open(self, on_opened: OnOpened | None = None) -> dict[ChannelId, Any]:
        """Open the databases of all channels; damaged ones are put aside. ``on_opened`` is called
        with how many of how many are done.

        Raises DiskFullError, StoreIdentityError, or StorageError when one cannot be opened now;
        none stays open then.
        """
        reason = self._why_to_rebuild_all()
        if reason is not None:
            self._put_all_aside(reason)
        self._clear_leftovers()
        channels = self._channels()
        share = share_of(self._settings, max(1, len(channels)))
        opened: dict[ChannelId, Any] = {}
        with ThreadPoolExecutor(OPENING_THREADS, "raftstore-open") as threads:
            tries = {
                each: threads.submit(self._open_or_put_aside, each, share) for each in channels
            }
            for done, _ in enumerate(as_completed(tries.values()), 1):
                if on_opened is not None:
                    on_opened(done, len(channels))
        failures = [error for each in tries.values() if (error := each.exception()) is not None]
        for channel, tried in tries.items():
            if tried.exception() is None and (database := tried.result()) is not None:
                opened[channel] = database
        if failures:
            for database in opened.values():
                database.close()
            raise failures[0]
        return opened

    def place(self, channel: ChannelId) -> Path:
        """Where the channel's database is, or will be."""
        return self.path / Generation(channel, self._numbers.get(channel, 0)).name

    def memory_table_bytes(self, databases: int) -> int:
        """Bytes of the memory table that each of so many databases has."""
        return share_of(self._settings, max(1, databases)).write_buffer_bytes

    def create_channel(self, place: Path, databases: int) -> Any:
        """Create the database of a channel that has none; ``databases``: as many there are then.

        Raises StorageError: the store is not to be used any more (S0.4).
        """
        try:
            share = share_of(self._settings, max(1, databases))
            return create(place, self._settings, share)
        except DATABASE_ERRORS as error:
            raise translate(error) from error

    def remove_channel(self, channel: ChannelId) -> None:
        """Remove a database that is closed, with its bytes; PersistError if that fails."""
        path = self.place(channel)
        with persisting(path, "removing the table of a dropped channel"):
            self._remove(path)
        self._numbers.pop(channel, None)

    # --- generations ------------------------------------------------------------------------------

    def begin_copy(
        self, channel: ChannelId, position: History, databases: int, *, in_files: bool = False
    ) -> LevelDbCopy:
        """Begin a copied table of the channel in a generation of its own; it takes no file yet."""
        newest = max(self._newest.get(channel, 0), self._numbers.get(channel, 0))
        self._newest[channel] = newest + 1
        copied = Generation(channel, newest + 1)
        return self._copy(copied, position, databases, in_files=in_files)

    def begun_copy(self, channel: ChannelId, databases: int) -> LevelDbCopy | None:
        """Hand over the copy that an earlier life of the node began, once; None: there is none."""
        number = self._begun.pop(channel, None)
        if number is None:
            return None
        found = Generation(channel, number)
        with persisting(self.path / found.name, "reading what a table is copied from"):
            position = begun_position(self.path / found.name, channel)
            in_files = is_begun_in_files(self.path / found.name)
        return self._copy(found, position, databases, in_files=in_files)

    def begun_channels(self) -> tuple[ChannelId, ...]:
        """Channels with such a copy, in a stable order."""
        return tuple(sorted(self._begun))

    def _copy(
        self, copied: Generation, position: History, databases: int, *, in_files: bool
    ) -> LevelDbCopy:
        share = share_of(self._settings, max(1, databases))
        path = self.path / copied.name
        kind = LevelDbFilesCopy if in_files else LevelDbCopy
        return kind(copied.channel, position, path, self._settings, share)

    def switched(self, channel: ChannelId, path: Path) -> Path:
        """The database at ``path`` is complete and is the channel's from now on; return where the
        former one is."""
        former = self.place(channel)
        self._numbers[channel] = int(path.name.rpartition(".g")[2])
        return former

    def remove_generation(self, path: Path, channel: ChannelId, *, keeps: bool = False) -> None:
        """Remove a database that is closed and is no channel's any more, or put it aside
        (``keeps``); PersistError if that fails."""
        with persisting(path, "removing a replaced table"):
            if keeps and path.exists():
                path.rename(free_place(self._ops, self._directory, f"tables-{channel.hex()}"))
            else:
                self._remove(path)

    def copied_position(self, channel: ChannelId) -> History:
        """The position up to which the channel's table was copied from another replica; (0, 0): it
        was built from the log. Raises PersistError."""
        if not self._numbers.get(channel):
            return EMPTY_HISTORY
        path = self.place(channel)
        with persisting(path, "reading what a table was copied from"):
            return copied_position(path, channel)

    # --- inside -----------------------------------------------------------------------------------

    def _remove(self, path: Path) -> None:
        if path.exists():
            # Never opened again under its name, however far the removal gets.
            leaving = path.with_name(path.name + REMOVING_SUFFIX)
            path.rename(leaving)
            shutil.rmtree(leaving)

    def begin(self) -> None:
        """Make the directory and say whose it is."""
        with starting(self.path, "creating the tables"):
            self._ops.make_directory(self.path, may_exist=True)
            self._ops.create_file(self.path / OWNER_CHECKSUM_NAME, _checksum(self._store_uuid))
            self._ops.create_file(self.path / OWNER_NAME, self._store_uuid.hex().encode())
            self._ops.sync_directory(self._directory)

    def _why_to_rebuild_all(self) -> str | None:
        asked = self._directory / REBUILD_NAME
        with starting(asked, "reading why the tables shall be rebuilt"):
            if asked.exists():
                return asked.read_text(encoding="utf-8", errors="replace")
        if not self.path.is_dir() or not any(self.path.iterdir()):
            return f"{self.path} is missing or empty"
        try:
            with starting(self.path / OWNER_NAME, "reading whose tables these are"):
                self._check_owner()
            split_shared(self.path, self._settings)
        except CorruptRecordError as error:
            return str(error)
        except DATABASE_ERRORS as error:
            if not is_damage(error):
                raise opening_error(self.path, error) from error
            return f"LevelDB reports: {error}"
        return None

    def _check_owner(self) -> None:
        """StoreIdentityError for the tables of another store, CorruptRecordError if damaged."""
        expected = self._store_uuid.hex().encode()
        owner, checksum = (
            file.read_bytes() if (file := self.path / name).exists() else b""
            for name in (OWNER_NAME, OWNER_CHECKSUM_NAME)
        )
        if owner == expected:
            if checksum != _checksum(self._store_uuid):
                # Damaged itself, or of tables of the first version.
                self._ops.replace_file(self.path / OWNER_CHECKSUM_NAME, _checksum(self._store_uuid))
            return
        if not owner or (checksum and checksum != f"{crc32(owner):08x}\n".encode()):
            raise CorruptRecordError(f"{self.path} does not say whose tables it holds")
        raise StoreIdentityError(
            f"{self.path} holds the tables of store {owner.decode('ascii', 'replace')}, not of "
            f"{self._store_uuid.hex()}; put back the directory of this store, or remove it to have "
            "it built again from the log"
        )

    def _channels(self) -> list[ChannelId]:
        """The channels that have a table; what is not their present generation is removed."""
        channels = []
        with starting(self.path, "listing the tables"):
            # A killed process may have left names that no power cut would leave, and what they
            # replaced is removed here (S6.4).
            self._ops.sync_directory(self.path)
            for channel, numbers in generations_in(self.path).items():
                current = present(self.path, channel, numbers)
                if current:
                    self._ops.sync_directory(self.path / Generation(channel, current).name)
                begun = self._newest_begun(channel, numbers, current)
                for number in numbers:
                    if number not in (current, begun):
                        self._remove(self.path / Generation(channel, number).name)
                if current is not None:
                    self._numbers[channel] = current
                    channels.append(channel)
        return channels

    def _newest_begun(
        self, channel: ChannelId, numbers: list[int], current: int | None
    ) -> int | None:
        """The newest copy that an earlier life began; it is kept, and nothing reads it."""
        newest = numbers[-1]
        path = self.path / Generation(channel, newest).name
        is_begun = is_begun_in_files(path) or begun_position(path, channel) != EMPTY_HISTORY
        if newest <= (current or 0) or not is_begun:
            return None
        self._begun[channel] = self._newest[channel] = newest
        return newest

    def _open_or_put_aside(self, channel: ChannelId, share: DatabaseShare) -> Any | None:
        path = self.place(channel)
        asked = path / CHANNEL_REBUILD_NAME
        with starting(path, "opening a table"):
            if asked.exists():
                reason = asked.read_text(encoding="utf-8", errors="replace")
            elif _is_begun_only(path):
                shutil.rmtree(path)  # a stop while it was created: nothing was ever in it
                return None
            elif not (path / "CURRENT").exists():
                reason = f"{path} has no CURRENT"
            else:
                try:
                    return open_checked(path, self._settings, share)
                except DATABASE_ERRORS as error:
                    if not is_damage(error):
                        raise opening_error(path, error) from error
                    reason = f"LevelDB reports: {error}"
                except CorruptRecordError as error:
                    reason = str(error)
        self._put_aside(channel, reason)
        return None

    def _put_aside(self, channel: ChannelId, reason: str) -> None:
        """Move a database into quarantine; nothing reads it again, an operator may."""
        path = self.place(channel)
        with starting(path, "putting a damaged table aside"):
            (path / CHANNEL_REBUILD_NAME).write_text(reason, encoding="utf-8")
            path.rename(free_place(self._ops, self._directory, f"tables-{channel.hex()}"))
            self._ops.sync_directory(self.path)
        self._numbers.pop(channel, None)
        self.rebuilt[f"channel {channel.hex()}"] = reason

    def _put_all_aside(self, reason: str) -> None:
        with starting(self._directory, "putting the damaged tables aside"):
            (self._directory / REBUILD_NAME).write_text(reason, encoding="utf-8")
            if self.path.exists():
                self.path.rename(free_place(self._ops, self._directory, "tables"))
                self._ops.sync_directory(self._directory)
        self.begin()
        with starting(self._directory, "starting the tables again"):
            (self._directory / REBUILD_NAME).unlink(missing_ok=True)
        self.rebuilt["all tables"] = reason

    def _clear_leftovers(self) -> None:
        with starting(self.path, "removing what dropped tables left"):
            for path in self.path.iterdir():
                if path.name.endswith((REMOVING_SUFFIX, COPYING_SUFFIX)):
                    shutil.rmtree(path)


def _is_begun_only(path: Path) -> bool:
    """Whether LevelDB was stopped while it created the database, before anything was in it."""
    if (path / "CURRENT").exists():
        return False
    files = [each for each in path.iterdir() if each.suffix in (".log", ".ldb")]
    return all(each.suffix == ".log" and not each.stat().st_size for each in files)


def _checksum(store_uuid: bytes) -> bytes:
    return f"{crc32(store_uuid.hex().encode()):08x}\n".encode()
