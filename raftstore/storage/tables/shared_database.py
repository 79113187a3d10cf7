"""Brings the tables of the first format to one database per channel.

Until then all channels of a node were in one LevelDB in ``tables/`` itself. Its keys begin with the
channel and stay as they are: each channel is copied into a database of its own, and only when all
of them are there the old one is removed, its CURRENT first. A stop in between begins with the
channels that are missing. Nothing is synced for that: rows that a crash takes away take the applied
position with them, and a log of that format still holds all records.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any, Final

from raftstore.config import MIB, StorageSettings
from raftstore.storage.files import FileOps, starting
from raftstore.storage.tables.keys import DROPPING_PREFIX, STORE_ID, channel_end
from raftstore.storage.tables.leveldb_database import (
    create,
    iterated,
    keys_between,
    open_checked,
    share_of,
)
from raftstore.types import ChannelId

COPYING_SUFFIX: Final = ".copying"
COPY_BATCH_BYTES: Final = 1 * MIB
_OWN_FILES: Final = ("*.ldb", "*.log", "MANIFEST-*", "LOG", "LOG.old", "LOCK", "*.dbtmp")

logger = logging.getLogger("raftstore.storage")


def split_shared(path: Path, settings: StorageSettings) -> None:
    """Give each channel of a shared database in ``path`` its own; does nothing if there is none.

    Raises CorruptRecordError or the errors of plyvel; what is there is left as it is then.
    """
    current = path / "CURRENT"
    if current.exists():
        shared = open_checked(path, settings, share_of(settings, 1))
        try:
            dropping = keys_between(shared, DROPPING_PREFIX, DROPPING_PREFIX + b"\xff")
            dropped = {key[len(DROPPING_PREFIX) :] for key in dropping}
            channels = [each for each in _channels_in(shared) if each not in dropped]
            for number, channel in enumerate(channels, 1):
                logger.info(
                    "table %d of %d gets a database of its own: channel %s",
                    number,
                    len(channels),
                    channel.hex(),
                )
                _copy(shared, path, channel, settings, databases=len(channels))
        finally:
            shared.close()
        with starting(path, "removing the database that all tables shared"):
            FileOps().sync_directory(path)
            current.unlink()
            FileOps().sync_directory(path)
    with starting(path, "removing the files that all tables shared"):
        for pattern in _OWN_FILES:
            for file in path.glob(pattern):
                file.unlink()


def _channels_in(shared: Any) -> list[ChannelId]:
    found: list[ChannelId] = []
    with shared.raw_iterator(verify_checksums=True, fill_cache=False) as keys:
        keys.seek(STORE_ID + b"\xff")
        while keys.valid():
            found.append(ChannelId(keys.key()[: len(STORE_ID)]))
            keys.seek(found[-1] + b"\xff")
    return found


def _copy(
    shared: Any, path: Path, channel: ChannelId, settings: StorageSettings, *, databases: int
) -> None:
    target = path / channel.hex()
    if target.exists():
        return  # a stop came after it
    copying = target.with_name(target.name + COPYING_SUFFIX)
    with starting(copying, "copying a table"):
        if copying.exists():
            shutil.rmtree(copying)
    copy = create(copying, settings, share_of(settings, databases))
    try:
        with iterated(shared, start=channel, stop=channel_end(channel)) as pairs:
            batch, size = copy.write_batch(), 0
            for key, value in pairs:
                batch.put(key, value)
                size += len(key) + len(value)
                if size >= COPY_BATCH_BYTES:
                    batch.write()
                    batch, size = copy.write_batch(), 0
            batch.write()
    finally:
        copy.close()
    with starting(copying, "copying a table"):
        copying.rename(target)
