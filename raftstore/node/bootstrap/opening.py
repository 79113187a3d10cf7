"""Opens a node's port and its data directory, in an order that harms nobody."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

from raftstore import faults
from raftstore.config import NodeSettings
from raftstore.errors import ConfigError, DiskFullError
from raftstore.node.bootstrap.founding import check_founders_agree, check_founders_are_named
from raftstore.node.bootstrap.introductions import Introductions
from raftstore.node.bootstrap.starting import Start
from raftstore.node.http_port import HttpPort
from raftstore.node.logs import fields
from raftstore.node.system_clock import monotonic_ms
from raftstore.storage.faulty_files import FaultyFileOps
from raftstore.storage.identity import belonging_of, holds_store
from raftstore.storage.stalls import UNWATCHED, StallWatch
from raftstore.storage.store import Store, open_store
from raftstore.transport.endpoints import bind_listener, start_listening

logger = logging.getLogger("raftstore.node")


async def open_port_and_store(
    settings: NodeSettings, http: HttpPort, stop: asyncio.Event, stalls: StallWatch = UNWATCHED
) -> tuple[socket.socket, Store | None]:
    """The port and the store; whatever can be refused is, before the directory is touched.

    No store when ``stop`` was set while the disk was full. Raises ConfigError and StorageError.
    """
    directory = Path(settings.data_dir)
    start = Start(http.facts, monotonic_ms)
    mine = belonging_of(directory, settings.name)
    if mine is None:
        check_founders_are_named(settings)
    else:
        check_founders_agree(settings, mine.members)
    listener = bind_listener(settings.listen, insecure=settings.insecure)
    try:
        http.bind()
        # Before the store is open, which may take long: who asks then is refused at once.
        http.start(*listener.getsockname()[:2])
        if mine is not None:
            start.enters("joining", "asks the other members whether it is one of them")
            await Introductions(settings, mine).ask()
        if not holds_store(directory):
            # Only who listens has the port for sure. A store that exists is opened first: its
            # log may be long, and until then others are better refused than kept waiting.
            start_listening(listener, settings.listen)
        store = await _open_store(directory, settings, stop, stalls, start)
        if store is None:
            listener.close()
            http.stop()
            return listener, None
        try:
            start_listening(listener, settings.listen)
        except ConfigError:
            store.close(is_clean=True)
            raise
    except BaseException:
        listener.close()
        http.stop()
        raise
    return listener, store


async def _open_store(
    directory: Path, settings: NodeSettings, stop: asyncio.Event, stalls: StallWatch, start: Start
) -> Store | None:
    """Open the data directory; a full disk is waited out with a clear state (GAP-13)."""
    injector = faults.injector()
    ops = None if injector is None else FaultyFileOps(injector)

    def on_log_read(done_bytes: int, total_bytes: int) -> None:
        if done_bytes < total_bytes:
            start.has_read(done_bytes, total_bytes)
        else:
            start.enters("opening_tables", "opens its tables; ask another node, or retry later")

    def on_table_opened(done: int, total: int) -> None:
        start.has_opened("opening_tables", "tables", done, total)

    while True:
        start.enters("starting", "opens its data directory; ask another node, or retry")
        try:
            return open_store(
                directory,
                settings.name,
                settings.storage,
                ops=ops,
                stalls=stalls,
                on_log_read=on_log_read,
                on_table_opened=on_table_opened,
            )
        except DiskFullError as error:
            start.enters("disk_full", f"waits for disk space: {error}")
            logger.error("waiting for disk space", extra=fields(reason=str(error)))  # noqa: TRY400
        try:
            pause_s = settings.storage.disk_full_retry_ms / 1000
            async with asyncio.timeout(pause_s):
                await stop.wait()
        except TimeoutError:
            continue
        return None
