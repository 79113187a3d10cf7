"""Taking in the chunks of a table, two under way at a time: pairs, or parts of files.

A chunk that is not what it says is asked for again; what it says is written, in order, on the
threads of copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from raftstore.engine.deadlines import Deadlines
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.engine.snapshots.transfer import Stage, Transfer
from raftstore.ports.table_copy import digest_of_pairs
from raftstore.ports.table_files import FilesCopy, digest_of_part
from raftstore.protocol.replica_snapshots import (
    CHUNKS_AHEAD,
    AskSnapshotChunk,
    SnapshotChunk,
    TableFilePart,
)
from raftstore.types import ChannelId, NodeId, node_name


class Receiver(Protocol):
    """The receiving side, as far as chunks concern it."""

    transfers: dict[ChannelId, Transfer]

    def step(
        self, transfer: Transfer, work: Callable[[], None], done: Callable[[int], None]
    ) -> None:
        """Do the work on a thread of copies, then go on; a failure costs this copy."""

    def fail(
        self, transfer: Transfer, reason: str, now_ms: int, *, is_copy_good: bool = True
    ) -> None:
        """Give this attempt up."""

    def have_all(self, transfer: Transfer, now_ms: int) -> None:
        """The last chunk is written."""


class ChunkTaking:
    """All chunks that come to one node."""

    def __init__(
        self, parts: SnapshotParts, deadlines: Deadlines[ChannelId], receiver: Receiver
    ) -> None:
        self._settings = parts.settings
        self._send = parts.send
        self._tell = parts.tell
        self._shortage = parts.shortage
        self._deadlines = deadlines
        self._receiver = receiver
        self.received_bytes = self.received_chunks = 0

    def ask(self, transfer: Transfer, now_ms: int) -> None:
        """Ask for as many as may be under way."""
        until = transfer.taken_chunks + CHUNKS_AHEAD
        channel = transfer.runner.channel
        while transfer.asked_chunks < until and transfer.last is None:
            number = transfer.asked_chunks
            transfer.asked_chunks += 1
            if number not in transfer.early:
                self._send(transfer.source, AskSnapshotChunk(channel, transfer.snapshot_id, number))
        self._deadlines.push(channel, now_ms + self._settings.request_ms)

    def on_chunk(self, sender: NodeId, chunk: SnapshotChunk | TableFilePart, now_ms: int) -> None:
        """A chunk of the table, asked for by this node."""
        transfer = self._receiver.transfers.get(chunk.channel)
        if (
            transfer is None
            or transfer.source != sender
            or transfer.stage is not Stage.COPYING
            or chunk.snapshot_id != transfer.snapshot_id
        ):
            return  # late
        left_bytes = max(0, transfer.table_bytes - transfer.bytes)
        shortage = self._shortage(left_bytes)
        gone = chunk.reason if isinstance(chunk, SnapshotChunk) else ""
        if gone or shortage:
            reason = gone or shortage or ""
            self._receiver.fail(transfer, reason, now_ms, is_copy_good=shortage is None)
            return
        if transfer.in_files != isinstance(chunk, TableFilePart):
            return  # no version sends that
        number = chunk.number
        is_next = transfer.taken_chunks <= number < transfer.taken_chunks + CHUNKS_AHEAD
        if not is_next or number in transfer.early:
            return  # twice
        transfer.give_up_ms = now_ms + self._settings.session_ms
        transfer.early[number] = chunk
        self._write_next(transfer, now_ms)

    def _write_next(self, transfer: Transfer, now_ms: int) -> None:
        chunk = transfer.early.get(transfer.taken_chunks)
        if chunk is None or transfer.is_writing:
            return
        transfer.is_writing = True
        whole = list[bool]()

        def write() -> None:
            if isinstance(chunk, TableFilePart):
                whole.append(_write_part(transfer, chunk))
            else:
                whole.append(_write_pairs(transfer, chunk))

        self._receiver.step(
            transfer, write, lambda now_ms: self._written(transfer, chunk, whole[0], now_ms)
        )
        self.ask(transfer, now_ms)

    def _written(
        self,
        transfer: Transfer,
        chunk: SnapshotChunk | TableFilePart,
        is_whole: bool,  # noqa: FBT001 - what the other thread found
        now_ms: int,
    ) -> None:
        transfer.is_writing = False
        del transfer.early[chunk.number]
        if not is_whole:
            self._tell(
                "replica_snapshot_chunk_damaged",
                channel=transfer.runner.name,
                peer=node_name(transfer.source),
                number=chunk.number,
            )
            return  # asked for again when its time is over
        transfer.taken_chunks += 1
        if isinstance(chunk, TableFilePart):
            size = len(chunk.content)
            transfer.parts.add(chunk.digest)
            transfer.bytes += chunk.at if chunk.is_held else size
        else:
            size = sum(len(key) + len(value) for key, value in chunk.pairs)
            transfer.pairs += len(chunk.pairs)
            transfer.bytes += size
        self.received_bytes += size
        self.received_chunks += 1
        if chunk.is_last:
            transfer.last = chunk
            self._receiver.have_all(transfer, now_ms)
        else:
            self.ask(transfer, now_ms)
            self._write_next(transfer, now_ms)


def _write_pairs(transfer: Transfer, chunk: SnapshotChunk) -> bool:
    """Write the pairs if they are what the chunk says; a thread of copies."""
    copy, pairs = transfer.copy, list(chunk.pairs)
    assert copy is not None, "chunks are of an offer"
    may_be_empty = transfer.rest is not None and chunk.is_last
    is_whole = (bool(pairs) or may_be_empty) and digest_of_pairs(pairs) == chunk.digest
    if is_whole and pairs:
        copy.write(pairs)
    return is_whole


def _write_part(transfer: Transfer, part: TableFilePart) -> bool:
    """The same for a part of a file."""
    copy = cast("FilesCopy", transfer.copy)
    if part.is_held:
        if transfer.held.get(part.name) != part.digest:
            return False
        copy.keep(part.name, is_whole=part.is_file_end)
        return True
    is_quick = transfer.has_quick_digests
    digest = digest_of_part(part.name, part.at, part.content, is_quick=is_quick)
    is_whole = digest == part.digest
    if is_whole:
        copy.write_part(part.name, part.at, part.content, is_last=part.is_file_end)
    return is_whole
