"""Hands the rows of one decided micro-batch from the log to the table, a bounded amount at a time.

A BATCH_APPLY record names staged records that are before it in the channel's log. Their rows are
read there again, the listed records and no others, in the order of the plan, and are handed over in
pieces (``ports.tables.Piece``): whatever the size of the batch, only some pieces of it are in
memory, and pieces of other channels are applied between them.
"""

from __future__ import annotations

from typing import Final

from raftstore.engine.channel.applied_state import AppliedState
from raftstore.errors import CorruptRecordError
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import Piece, TableStore
from raftstore.protocol.records import Record
from raftstore.record_machine import Chunk, PieceMachine
from raftstore.types import ChannelId, Seq

PART_BYTES_MAX: Final = 4 * 1024 * 1024
"""Payload bytes of one piece; at least one staged record whatever its size."""


class BatchFeed:
    """One BATCH_APPLY record, from its plan to its last piece.

    Made when everything before the record is applied (S10): the plan is a function of that state
    and of the record, so every replica makes the same one, and makes it again after a crash.
    """

    def __init__(
        self,
        log: MessageLog,
        tables: TableStore,
        channel: ChannelId,
        record: Record,
        machine: PieceMachine,
    ) -> None:
        self._log = log
        self._tables = tables
        self._channel = channel
        self._record = record
        self._machine = machine
        self._plan = machine.plan(record, AppliedState(tables, channel))
        self.broken = self._plan.broken
        """Why the record cannot be applied by anybody; then there are no pieces."""
        self._next = 0
        self._is_begun = False
        self._truncates = self._plan.truncate

    def next_piece(self, outstanding: int) -> Piece | None:
        """The next piece; None while those before it have to be applied first."""
        if not self._truncates:
            return self._rows()
        start: bytes | None = b""
        if self._is_begun:
            if outstanding:
                return None
            start = self._tables.truncated(self._channel)
        if start is None:
            self._truncates = False
            return self._rows()
        return self._part(last=False, truncate_from=start)

    def _rows(self) -> Piece:
        refs, first_chunk = self._plan.chunks, self._next
        chunks: list[tuple[int, memoryview]] = []
        ttls_ms: list[int] = []
        size = 0
        while self._next < len(refs):
            ref = refs[self._next]
            size += ref.size
            if chunks and size > PART_BYTES_MAX:
                break
            rows, ttl_ms = self._chunk(ref)
            chunks.append((ref.mode, rows))
            ttls_ms.append(ttl_ms)
            self._next += 1
        is_last = self._next == len(refs)
        return self._part(
            last=is_last,
            chunks=tuple(chunks),
            first_chunk=first_chunk,
            ttls_ms=tuple(ttls_ms) if any(ttls_ms) else (),
        )

    def _chunk(self, ref: Chunk) -> tuple[memoryview, int]:
        """One staged record as it is in the log: what the plan was made of, or nothing at all."""
        base, last = Seq(ref.base_seq), Seq(ref.last_seq)
        found = self._log.read(self._channel, base, to_seq=last, bytes_max=1)
        if not found or (found[0].base_seq, found[0].digest) != (ref.base_seq, ref.digest):
            raise CorruptRecordError(
                f"staged rows at seq {base} to {last} of channel {self._channel.hex()} are not in "
                f"the log as record {self._record.last_seq} lists them; compare the log with "
                "another replica's"
            )
        return self._machine.chunk_rows(found[0].payload)

    def _part(
        self,
        *,
        last: bool,
        chunks: tuple[tuple[int, memoryview], ...] = (),
        first_chunk: int = 0,
        ttls_ms: tuple[int, ...] = (),
        truncate_from: bytes | None = None,
    ) -> Piece:
        is_first, self._is_begun = not self._is_begun, True
        return Piece(
            self._record,
            first=is_first,
            last=last,
            chunks=chunks,
            first_chunk=first_chunk,
            ttls_ms=ttls_ms,
            truncate_from=truncate_from,
            state_writes=self._plan.state_writes if last else (),
            version=self._plan.version if is_first else -1,
        )
