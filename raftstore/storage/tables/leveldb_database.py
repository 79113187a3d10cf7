"""The one LevelDB of a store: opened, put aside when damaged, its errors translated.

The only importer of plyvel. What LevelDB is known to do on a bad disk decides how it is opened
(docs/decisions): with paranoid checks, created only once under our own marker, and never repaired.
A damaged database is put aside, and an empty one takes its place that is filled again from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import plyvel

from raftstore.config import StorageSettings
from raftstore.errors import (
    CorruptRecordError,
    DiskFullError,
    PersistError,
    StorageError,
    StoreIdentityError,
)
from raftstore.storage.files import DIRECTORY_MODE, FileOps, starting
from raftstore.storage.quarantine import free_place
from raftstore.storage.tables.keys import DROPPING_PREFIX, applied_key, channel_end
from raftstore.storage.tables.leveldb_files import why_incomplete
from raftstore.types import ChannelId

TABLES_DIRECTORY: Final = "tables"
REBUILD_NAME: Final = "tables.rebuild"
"""Its presence asks the next start to rebuild the tables; it holds the reason."""
OWNER_NAME: Final = "raftstore-store"
"""Beside LevelDB's files, which LevelDB leaves alone: the UUID of the store they belong to."""
OWNER_CHECKSUM_NAME: Final = "raftstore-store.crc"
"""CRC-32 of that file, so that a flipped bit in it is not taken for another store. A file of its
own, since older versions compare the other one as a whole."""
DROP_KEYS_PER_BATCH: Final = 10_000

DATABASE_ERRORS: Final = (plyvel.Error,)
_FULL: Final = ("No space left on device", "Disk quota exceeded")
_DAMAGE: Final = (
    "Invalid argument",
    "No such file or directory",
    "Not a directory",
    "Is a directory",
    "Input/output error",
)


def translate(error: Exception) -> StorageError:
    """Return our error for one of plyvel's, of a running store."""
    text = f"LevelDB failed: {error}; the node stops"
    if isinstance(error, plyvel.CorruptionError) or _is_damage(error):
        return CorruptRecordError(text + ", its tables are rebuilt from the log at the next start")
    return PersistError(text)


def create_database(directory: Path, store_uuid: bytes, settings: StorageSettings) -> None:
    """Create the empty database of a store; only when it is new or being rebuilt."""
    path = directory / TABLES_DIRECTORY
    with starting(path, "creating the tables"):
        path.mkdir(DIRECTORY_MODE, exist_ok=True)  # LevelDB's own would be open to everybody
        try:
            _open_plyvel(path, settings, create=True).close()
        except DATABASE_ERRORS as error:
            raise _opening_error(path, error) from error
        FileOps().create_file(path / OWNER_CHECKSUM_NAME, _checksum(store_uuid))
        FileOps().create_file(path / OWNER_NAME, store_uuid.hex().encode())
        FileOps().sync_directory(directory)


def open_database(
    directory: Path, store_uuid: bytes, settings: StorageSettings
) -> tuple[Any, str | None]:
    """Open the database; put it aside and create an empty one when it is damaged.

    Returns it, and why it starts empty (None: it does not). Raises DiskFullError,
    StoreIdentityError, or StorageError when it cannot be opened now.
    """
    path = directory / TABLES_DIRECTORY
    reason = _rebuild_reason(directory)
    if reason is None:
        if not (path / "CURRENT").exists():
            reason = f"{path} is missing or empty"
        else:
            try:
                return _open_checked(path, store_uuid, settings), None
            except DATABASE_ERRORS as error:
                if not _is_damage(error):
                    raise _opening_error(path, error) from error
                reason = f"LevelDB reports: {error}"
            except CorruptRecordError as error:
                reason = str(error)
    _put_aside(directory, reason)
    create_database(directory, store_uuid, settings)
    try:
        database = _open_checked(path, store_uuid, settings)
    except DATABASE_ERRORS as error:
        raise _opening_error(path, error) from error
    with starting(directory, "starting the tables again"):
        (directory / REBUILD_NAME).unlink(missing_ok=True)
    return database, reason


def ask_for_rebuild(directory: Path, reason: str) -> None:
    """Remember damage of the running store for its next start."""
    try:
        (directory / REBUILD_NAME).write_text(reason, encoding="utf-8")
    except OSError:
        pass  # Then the next start finds the same damage and asks again.


def delete_channel(database: Any, channel: ChannelId) -> None:
    """Remove every key of a channel, then the mark that says that they are being removed."""
    # S0.8, S0.3: whatever a machine keeps beside the rows must not survive them.
    start, stop = applied_key(channel), channel_end(channel)
    batch, keys = database.write_batch(), keys_between(database, start, stop)
    for count, key in enumerate(keys, start=1):
        batch.delete(key)
        if count % DROP_KEYS_PER_BATCH == 0:
            batch.write()
            batch.clear()
    batch.delete(DROPPING_PREFIX + channel)
    batch.write()


def keys_between(database: Any, start: bytes, stop: bytes) -> Iterator[bytes]:
    """Keys of [start, stop), in order."""
    with database.iterator(
        start=start, stop=stop, include_value=False, verify_checksums=True, fill_cache=False
    ) as keys:
        yield from keys


def _open_plyvel(path: Path, settings: StorageSettings, *, create: bool) -> Any:
    return plyvel.DB(
        str(path),
        create_if_missing=create,
        error_if_exists=create,
        paranoid_checks=True,
        write_buffer_size=settings.write_buffer_bytes,
        lru_cache_size=settings.block_cache_bytes,
        compression="snappy" if settings.compress_tables else None,
        bloom_filter_bits=10,
    )


def _open_checked(path: Path, store_uuid: bytes, settings: StorageSettings) -> Any:
    # Asked before LevelDB opens anything, since even opening rewrites its files.
    with starting(path / OWNER_NAME, "reading whose tables these are"):
        _check_owner(path, store_uuid)
    with starting(path, "looking at LevelDB's files"):
        missing = why_incomplete(path)
    if missing is not None:
        raise CorruptRecordError(f"{path} may lack rows: {missing}")
    database = _open_plyvel(path, settings, create=False)
    try:
        _finish_drops(database)
    except BaseException:
        database.close()
        raise
    return database


def _checksum(store_uuid: bytes) -> bytes:
    return f"{crc32(store_uuid.hex().encode()):08x}\n".encode()


def _check_owner(path: Path, store_uuid: bytes) -> None:
    """Raise StoreIdentityError for the tables of another store, CorruptRecordError if damaged."""
    owner, checksum = (
        (path / name).read_bytes() if (path / name).exists() else b""
        for name in (OWNER_NAME, OWNER_CHECKSUM_NAME)
    )
    if owner == store_uuid.hex().encode():
        if checksum != _checksum(store_uuid):  # damaged itself, or tables of the first version
            FileOps().replace_file(path / OWNER_CHECKSUM_NAME, _checksum(store_uuid))
        return
    if not owner or (checksum and checksum != f"{crc32(owner):08x}\n".encode()):
        raise CorruptRecordError(f"{path} does not say whose tables it holds")
    raise StoreIdentityError(
        f"{path} holds the tables of store {owner.decode('ascii', 'replace')}, not of "
        f"{store_uuid.hex()}; put back the directory of this store, or remove it to have it "
        "built again from the log"
    )


def _finish_drops(database: Any) -> None:
    """Go on with deletions that a stop interrupted."""
    for key in list(keys_between(database, DROPPING_PREFIX, DROPPING_PREFIX + b"\xff")):
        delete_channel(database, ChannelId(key[len(DROPPING_PREFIX) :]))


def _opening_error(path: Path, error: Exception) -> StorageError:
    if any(reason in str(error) for reason in _FULL):
        return DiskFullError(
            f"no space left on the disk of {path} while opening the tables; free some space, "
            "the node starts by itself then"
        )
    return StorageError(
        f"the tables {path} cannot be opened: {error}; check the disk and its permissions, then "
        "start the node again"
    )


def _is_damage(error: Exception) -> bool:
    """Whether opening or reading failed because files are wrong, rather than by circumstances."""
    if isinstance(error, plyvel.IOError):
        return any(reason in str(error) for reason in _DAMAGE)
    return type(error) is plyvel.Error or isinstance(error, plyvel.CorruptionError)


def _rebuild_reason(directory: Path) -> str | None:
    path = directory / REBUILD_NAME
    with starting(path, "reading why the tables shall be rebuilt"):
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None


def _put_aside(directory: Path, reason: str) -> None:
    """Move the database into quarantine; nothing reads it again, an operator may."""
    path = directory / TABLES_DIRECTORY
    with starting(directory, "putting the damaged tables aside"):
        (directory / REBUILD_NAME).write_text(reason, encoding="utf-8")
        if not path.exists():
            return
        path.rename(free_place(FileOps(), directory, "tables"))
        FileOps().sync_directory(directory)
