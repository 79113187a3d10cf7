"""Content hashes of channels, taken on a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event

from raftstore.errors import StorageError
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.storage.tables.views import Shared
from raftstore.storage.worker import Post, Worker
from raftstore.types import ChannelId, Seq


class ContentHashes:
    """All content hashes of one node; everything but the hashing itself on the loop thread."""

    def __init__(self, reads: LevelDbReads, on_failed: Callable[[StorageError], None]) -> None:
        self._reads = reads
        self._on_failed = on_failed
        self._worker: Worker | None = None
        self._is_closing = Event()

    def start(
        self,
        channel: ChannelId,
        shared: Shared,
        post: Post,
        done: Callable[[bytes, int, Seq], None],
    ) -> None:
        """Hash a state behind others; ``done`` is called by ``post``. What is still queued when
        this is closed is not taken."""
        if self._worker is None:
            self._worker = Worker("raftstore-hash", self._on_failed)

        def take_hash() -> None:
            if self._is_closing.is_set():
                shared.release()  # LevelDB must not be closed under it.
            else:
                post(partial(done, *self.take(channel, shared)))

        self._worker.submit(take_hash)

    def take(self, channel: ChannelId, shared: Shared) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq; any thread."""
        try:
            return self._reads.content_hash(shared.snapshot, channel)
        finally:
            shared.release()

    def close(self) -> None:
        """End the thread after the hash at hand."""
        self._is_closing.set()
        if self._worker is not None:
            self._worker.stop()
