"""One LevelDB: opened with what is known of its faults, its errors translated.

With ``raftstore.storage.tables.shared_database`` the only importer of plyvel. What LevelDB is known
to do on a bad disk decides how it is opened (docs/decisions): with paranoid checks, created only
once and under a name of our own, and never repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import plyvel

from raftstore.config import KIB, MIB, StorageSettings
from raftstore.errors import CorruptRecordError, DiskFullError, PersistError, StorageError
from raftstore.storage.files import starting
from raftstore.storage.tables.leveldb_files import why_incomplete

WRITE_BUFFER_BYTES_MIN: Final = 64 * KIB
"""What LevelDB takes at least."""
WRITE_BUFFER_BYTES_MAX: Final = 16 * MIB
"""Of one channel: more makes no table faster, and a start longer."""
TABLE_FILES_MIN: Final = 64
"""Table files that one database keeps open at least; LevelDB takes no less."""
TABLE_FILES_MAX: Final = 1_000
"""Table files that all databases together keep open, where that is not below their minimum."""
_OTHER_FILES: Final = 10
"""What LevelDB reserves beside table files."""

LEVELS: Final = 7
"""Of LevelDB, fixed when it is compiled."""

BEHIND_ALL: Final = b"\xff" * 32
"""Behind every key: those begin with the id of a channel."""
DATABASE_ERRORS: Final = (plyvel.Error,)
_FULL: Final = ("No space left on device", "Disk quota exceeded")
_DAMAGE: Final = (
    "Invalid argument",
    "No such file or directory",
    "Not a directory",
    "Is a directory",
    "Input/output error",
)


class DatabaseShare(NamedTuple):
    """Resources of one of a node's databases."""

    write_buffer_bytes: int
    block_cache_bytes: int
    files: int


def share_of(settings: StorageSettings, databases: int) -> DatabaseShare:
    """Return the share of each of so many databases in the memory that the settings allow."""
    buffer = settings.write_buffer_bytes // databases
    return DatabaseShare(
        max(WRITE_BUFFER_BYTES_MIN, min(buffer, WRITE_BUFFER_BYTES_MAX)),
        settings.block_cache_bytes // databases,
        max(TABLE_FILES_MIN, TABLE_FILES_MAX // databases) + _OTHER_FILES,
    )


def translate(error: Exception) -> StorageError:
    """Return our error for one of plyvel's, of a running store."""
    text = f"LevelDB failed: {error}; the node stops"
    if isinstance(error, plyvel.CorruptionError) or is_damage(error):
        return CorruptRecordError(text + ", its tables are rebuilt from the log at the next start")
    return PersistError(text)


def create(path: Path, settings: StorageSettings, share: DatabaseShare) -> Any:
    """Create the empty database of a channel and open it. Raises the errors of plyvel."""
    return _open_plyvel(path, settings, share, create=True)


def open_checked(path: Path, settings: StorageSettings, share: DatabaseShare) -> Any:
    """Open a database after a look at its files.

    Raises CorruptRecordError if rows may be missing in front of others, and the errors of plyvel.
    """
    # Asked before LevelDB opens anything, since even opening rewrites its files.
    with starting(path, "looking at LevelDB's files"):
        missing = why_incomplete(path)
    if missing is not None:
        raise CorruptRecordError(f"{path} may lack rows: {missing}")
    return _open_plyvel(path, settings, share, create=False)


def close_while_serving(database: Any) -> None:
    """Close a database that may just have been written to, while the node goes on.

    plyvel keeps all other threads waiting while LevelDB's own thread ends what it is at, which is
    tens of milliseconds where it writes a table file. So that is waited for before, in a call that
    lets them go on: merging keys behind all others has nothing to merge, and comes after it. What
    that call says is not believed; who closes a database reads back what he needs of it.
    """
    with suppress(*DATABASE_ERRORS):
        database.compact_range(start=BEHIND_ALL)
    database.close()


@contextmanager
def iterated(
    source: Any, *, start: bytes, stop: bytes | None = None, include_value: bool = True
) -> Iterator[Iterator[Any]]:
    """Pairs (or keys) of [start, stop) of a database or snapshot, checksums verified.

    plyvel asks LevelDB for errors with each step that finds something, and not with one that does
    not. A range whose last rows are damaged would seem to end before them, or to be empty, so the
    end is asked for once more.
    """
    with source.iterator(
        start=start, stop=stop, include_value=include_value, verify_checksums=True, fill_cache=False
    ) as found:
        first = next(found, None)
        if first is None:
            with source.raw_iterator(verify_checksums=True, fill_cache=False) as raw:
                raw.seek(start)  # raises what LevelDB met there
            yield iter(())
        else:
            yield chain((first,), found, errors_at_end(found))


def errors_at_end(found: Any) -> Iterator[Any]:
    """Nothing, behind all that one of plyvel's iterators found; raises what LevelDB met there."""
    with suppress(StopIteration):
        found.prev()
    yield from ()


def keys_between(database: Any, start: bytes, stop: bytes) -> Iterator[bytes]:
    """Keys of [start, stop), in order."""
    with iterated(database, start=start, stop=stop, include_value=False) as keys:
        yield from keys


def memory_bytes(databases: Iterable[Any]) -> int:
    """Approximate memory of their buffers and caches."""
    name = b"leveldb.approximate-memory-usage"
    return sum(int(each.get_property(name) or 0) for each in databases)


def files_by_level(databases: Iterable[Any]) -> tuple[int, ...]:
    """Number of files at each level, of all of them."""
    all_of_them = list(databases)
    names = [b"leveldb.num-files-at-level%d" % level for level in range(LEVELS)]
    return tuple(sum(int(each.get_property(name) or 0) for each in all_of_them) for name in names)


def opening_error(path: Path, error: Exception) -> StorageError:
    """Return our error for one of plyvel's, of a store that is being opened."""
    if any(reason in str(error) for reason in _FULL):
        return DiskFullError(
            f"no space left on the disk of {path} while opening the tables; free some space, "
            "the node starts by itself then"
        )
    return StorageError(
        f"the tables {path} cannot be opened: {error}; check the disk and its permissions, then "
        "start the node again"
    )


def is_damage(error: Exception) -> bool:
    """Whether opening or reading failed because files are wrong, rather than by circumstances."""
    if isinstance(error, plyvel.IOError):
        return any(reason in str(error) for reason in _DAMAGE)
    return type(error) is plyvel.Error or isinstance(error, plyvel.CorruptionError)


def _open_plyvel(
    path: Path, settings: StorageSettings, share: DatabaseShare, *, create: bool
) -> Any:
    return plyvel.DB(
        str(path),
        create_if_missing=create,
        error_if_exists=create,
        paranoid_checks=True,
        write_buffer_size=share.write_buffer_bytes,
        lru_cache_size=share.block_cache_bytes,
        max_open_files=share.files,
        compression="snappy" if settings.compress_tables else None,
        bloom_filter_bits=10,
    )
