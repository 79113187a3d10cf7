"""Atomic micro-batches for programs without asyncio; see ``table`` and ``batch_writes``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from raftstore.client.arguments import Ttl
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.batches.batch_writes import BatchResult, BatchTicket, TableWriters
from raftstore.client.batches.stager import AsyncStager, StagedParts
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.table import AsyncTable
from raftstore.protocol.staged import UPSERT
from raftstore.types import BatchModeName


class BatchClient:
    """The part of ``Client`` that is about writers of batches."""

    _client: AsyncClient
    _loop: BackgroundLoop

    def adopt_writer(
        self,
        table: str,
        writer: str,
        *,
        lineage: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Let a writer of batches begin at any batch id again, for the checkpoint ``lineage``."""
        self._loop.call(self._client.adopt_writer(table, writer, lineage=lineage, timeout=timeout))

    def remove_writer(self, table: str, writer: str, *, timeout: float | None = None) -> None:
        """Forget a writer of batches: its next batch is the first one, whatever its id."""
        self._loop.call(self._client.remove_writer(table, writer, timeout=timeout))


class BatchTable:
    """The part of ``Table`` that writes batches."""

    _table: AsyncTable
    _loop: BackgroundLoop

    def check_batches(self, *, timeout: float | None = None) -> None:
        """Raise StoreTooOldError while some node of the cluster could not read batches."""
        self._loop.call(self._table.check_batches(timeout=timeout))

    def begin_batch(
        self,
        writer: str,
        batch_id: int,
        *,
        uuid: bytes | None = None,
        lineage: str = "",
        one_shot: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> BatchTicket:
        """Open an attempt at a batch; the attempt of this writer that was open can never commit."""
        return self._loop.call(
            self._table.begin_batch(
                writer,
                batch_id,
                uuid=uuid,
                lineage=lineage,
                one_shot=one_shot,
                ttl=ttl,
                timeout=timeout,
            )
        )

    def stager(
        self,
        ticket: BatchTicket,
        partition_id: int,
        task_attempt_id: int,
        *,
        max_in_flight: int = 8,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> Stager:
        """Return a stager of encoded chunks for one attempt of one task of the batch."""
        stager = self._loop.call(
            self._table.stager(
                ticket,
                partition_id,
                task_attempt_id,
                max_in_flight=max_in_flight,
                ttl=ttl,
                timeout=timeout,
            )
        )
        return Stager(stager, self._loop)

    def commit_batch(
        self,
        ticket: BatchTicket,
        parts: Iterable[StagedParts],
        *,
        mode: BatchModeName = "append",
        timeout: float | None = None,
    ) -> BatchResult:
        """Make what these tasks staged visible, all at once; "overwrite" replaces the table."""
        return self._loop.call(
            self._table.commit_batch(ticket, list(parts), mode=mode, timeout=timeout)
        )

    def abort_batch(self, ticket: BatchTicket, *, timeout: float | None = None) -> None:
        """Give the attempt up; what it staged never becomes visible."""
        self._loop.call(self._table.abort_batch(ticket, timeout=timeout))

    def write_batch(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        writer: str,
        batch_id: int,
        mode: BatchModeName = "append",
        deletes: Iterable[Any] = (),
        lineage: str = "",
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> BatchResult:
        """Write rows, and remove those with the keys ``deletes``, as one atomic batch."""
        return self._loop.call(
            self._table.write_batch(
                list(rows),
                writer=writer,
                batch_id=batch_id,
                mode=mode,
                deletes=list(deletes),
                lineage=lineage,
                ttl=ttl,
                timeout=timeout,
            )
        )

    def writers(self, writer: str = "", *, timeout: float | None = None) -> TableWriters:
        """Return the writers of the table's batches, or one of them: last batch, open attempt."""
        return self._loop.call(self._table.writers(writer, timeout=timeout))


class Stager:
    """See ``AsyncStager``: ``add`` blocks while ``max_in_flight`` chunks are on their way."""

    def __init__(self, stager: AsyncStager, loop: BackgroundLoop) -> None:
        self._stager = stager
        self._loop = loop

    def add(
        self, partition: int, payload: bytes, rows: int, mode: int = UPSERT, *, ttl: Ttl = None
    ) -> None:
        """Queue a chunk (``protocol.payload.encode_rows``); waits while the window is full.

        Raises the error of an earlier one.
        """
        self._loop.call(self._stager.add(partition, payload, rows, mode, ttl=ttl))

    def flush(self) -> StagedParts:
        """Wait for every chunk added; return what the whole task has staged so far."""
        return self._loop.call(self._stager.flush())

    @property
    def staged(self) -> StagedParts:
        """Rows and bytes acknowledged so far."""
        return self._stager.staged

    def close(self) -> None:
        """Stop without waiting."""
        if not self._loop.is_stopped:
            self._loop.call(self._stager.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()
