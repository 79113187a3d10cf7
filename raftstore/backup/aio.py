"""The same names for asyncio programs.

A backup compresses and writes files, which would hold up the loop: each call runs in a thread, with
a connection of its own. A call that is cancelled stops at its next file or batch.
"""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from raftstore.backup import create, remove, restore, verify
from raftstore.backup.manifest import Manifest
from raftstore.backup.progress import OnProgress, Progress, nobody
from raftstore.backup.remove import Removed
from raftstore.backup.restore import Restored
from raftstore.backup.verify import Verified
from raftstore.client.blocking.client import connect
from raftstore.errors import BackupError

Result = TypeVar("Result")


async def create_backup(
    endpoints: str | Sequence[str],
    url: str,
    *,
    tables: Sequence[str] = (),
    channelsets: Sequence[str] = (),
    full: bool = False,
    progress: OnProgress = nobody,
    timeout: float | None = None,
) -> Manifest:
    """Write a backup; ``endpoints`` and ``timeout`` (of each request) as ``raftstore.connect``
    takes them, ``progress`` is called on the call's own thread."""

    def work(watched: OnProgress) -> Manifest:
        with connect(endpoints, timeout=timeout) as client:
            return create.create_backup(
                client, url, tables=tables, channelsets=channelsets, full=full, progress=watched
            )

    return await _in_thread(work, progress)


async def restore_backup(
    endpoints: str | Sequence[str],
    url: str,
    backup: str | None = None,
    *,
    tables: Sequence[str] | Mapping[str, str] = (),
    channelsets: Sequence[str] | Mapping[str, str] = (),
    replicas: int | None = None,
    progress: OnProgress = nobody,
    timeout: float | None = None,
) -> Restored:
    """Restore tables and channel sets of a backup; ``endpoints``, ``timeout`` and ``progress`` as
    above."""

    def work(watched: OnProgress) -> Restored:
        with connect(endpoints, timeout=timeout) as client:
            return restore.restore_backup(
                client,
                url,
                backup,
                tables=tables,
                channelsets=channelsets,
                replicas=replicas,
                progress=watched,
            )

    return await _in_thread(work, progress)


async def verify_backup(
    url: str, backup: str | None = None, *, progress: OnProgress = nobody
) -> Verified:
    """Check every file of a backup without a cluster."""
    return await _in_thread(
        lambda watched: verify.verify_backup(url, backup, progress=watched), progress
    )


async def list_backups(url: str) -> list[tuple[str, Manifest | BackupError]]:
    """Return the ids of all backups of a place with their manifests, the oldest first."""
    return await asyncio.to_thread(verify.list_backups, url)


async def remove_backups(url: str, backups: Sequence[str] = (), *, force: bool = False) -> Removed:
    """Remove backups, and the files that no other one needs. It goes on when it is cancelled."""
    return await asyncio.to_thread(remove.remove_backups, url, backups, force=force)


class _StoppedError(Exception):
    """The caller was cancelled."""


async def _in_thread(work: Callable[[OnProgress], Result], progress: OnProgress) -> Result:
    stopped = threading.Event()

    def watched(report: Progress) -> None:
        if stopped.is_set():
            raise _StoppedError
        progress(report)

    task = asyncio.ensure_future(asyncio.to_thread(work, watched))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stopped.set()
        # Nothing of it goes on behind the caller's back.
        await asyncio.gather(task, return_exceptions=True)
        raise
