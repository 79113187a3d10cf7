"""The bulk writer: a bounded window, order per partition, and one error for all calls after it."""

from __future__ import annotations

import asyncio

import pytest

from raftstore.client.position import Position
from raftstore.client.results import WriteAck
from raftstore.client.writes.bulk import AsyncBulkWriter
from raftstore.errors import ConfigError, QuorumTimeoutError, UnavailableError
from raftstore.types import Seq, Term

UUID = b"u" * 16


class Gate:
    """Writes that end when the test says so."""

    def __init__(self) -> None:
        self.started: list[tuple[int, bytes]] = []
        self.open: list[asyncio.Future[None]] = []
        self.seq = 0

    async def write(self, partition: int, payload: bytes, rows: int) -> WriteAck:
        self.started.append((partition, payload))
        turn = asyncio.get_running_loop().create_future()
        self.open.append(turn)
        await turn
        self.seq += rows
        position = Position.at(UUID, partition, Term(1), Seq(self.seq))
        return WriteAck(position, partition, Seq(self.seq), Term(1), rows, "fsync", 2)

    def let(self, error: Exception | None = None) -> None:
        """End the oldest write."""
        turn = self.open.pop(0)
        if error is None:
            turn.set_result(None)
        else:
            turn.set_exception(error)


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_bulk_writer_counts_what_was_acknowledged_between_flushes() -> None:
    """Each flush waits for everything added and reports it once."""

    async def run() -> None:
        gate = Gate()
        writer = AsyncBulkWriter(gate.write, max_in_flight=4)
        await writer.add(0, b"abc", 3)
        await writer.add(1, b"de", 2)
        flushing = asyncio.ensure_future(writer.flush())
        await settle()
        assert not flushing.done()
        gate.let()
        gate.let()
        result = await flushing
        assert (result.rows, result.chunks, result.payload_bytes) == (5, 2, 5)
        assert result.position.seq_of(UUID, 1) == 5
        assert (await writer.flush()).rows == 0

    asyncio.run(run())


def test_bulk_writer_keeps_the_order_of_a_partition() -> None:
    """Records of one partition are sent one after the other, so a failover cannot swap them."""

    async def run() -> None:
        gate = Gate()
        writer = AsyncBulkWriter(gate.write, max_in_flight=8)
        for payload in (b"1", b"2", b"3"):
            await writer.add(0, payload, 1)
        await writer.add(1, b"other", 1)
        await settle()
        assert gate.started == [(0, b"1"), (1, b"other")]
        for _ in range(4):
            gate.let()
            await settle()
        assert [payload for partition, payload in gate.started if partition == 0] == [
            b"1",
            b"2",
            b"3",
        ]
        await writer.flush()

    asyncio.run(run())


def test_bulk_writer_waits_while_the_window_is_full() -> None:
    """No more than max_in_flight records are held."""

    async def run() -> None:
        gate = Gate()
        writer = AsyncBulkWriter(gate.write, max_in_flight=2)
        await writer.add(0, b"1", 1)
        await writer.add(1, b"2", 1)
        third = asyncio.ensure_future(writer.add(2, b"3", 1))
        await settle()
        assert not third.done()
        gate.let()
        await third
        gate.let()
        await settle()
        gate.let()
        assert (await writer.flush()).chunks == 3

    asyncio.run(run())


def test_bulk_writer_repeats_its_first_error() -> None:
    """After an error nothing more is sent and every call raises it, waiting ones included."""

    async def run() -> None:
        gate = Gate()
        writer = AsyncBulkWriter(gate.write, max_in_flight=2)
        await writer.add(0, b"1", 1)
        await writer.add(0, b"2", 1)
        waiting = asyncio.ensure_future(writer.add(0, b"3", 1))
        await settle()
        gate.let(QuorumTimeoutError("slow"))
        with pytest.raises(QuorumTimeoutError):
            await waiting
        with pytest.raises(QuorumTimeoutError):
            await writer.flush()
        with pytest.raises(QuorumTimeoutError):
            await writer.add(1, b"4", 1)
        assert gate.started == [(0, b"1")]

    asyncio.run(run())


def test_bulk_writer_sends_nothing_more_in_any_partition_after_an_error() -> None:
    """Given an error in one partition, the writer sends nothing more in the others either: its
    caller starts again with all of it.
    """

    async def run() -> None:
        gate = Gate()
        writer = AsyncBulkWriter(gate.write, max_in_flight=8)
        for partition in (0, 1):
            for payload in (b"1", b"2"):
                await writer.add(partition, payload, 1)
        await settle()
        assert gate.started == [(0, b"1"), (1, b"1")]
        gate.let(QuorumTimeoutError("slow"))
        await settle()
        gate.let()
        await settle()
        assert gate.started == [(0, b"1"), (1, b"1")]
        with pytest.raises(QuorumTimeoutError):
            await writer.flush()
        await writer.close()

    asyncio.run(run())


def test_bulk_writer_flushes_when_its_block_ends_well() -> None:
    """Leaving the context flushes; leaving it by an exception does not wait."""

    async def fill(gate: Gate, end: Exception | None, at_node: Exception | None) -> None:
        async with AsyncBulkWriter(gate.write, max_in_flight=2) as writer:
            await writer.add(0, b"1", 1)
            await settle()
            if at_node is not None:
                gate.let(at_node)
            if end is not None:
                raise end

    async def run() -> None:
        with pytest.raises(KeyError):
            await fill(Gate(), KeyError("caller"), None)
        with pytest.raises(QuorumTimeoutError):
            await fill(Gate(), None, QuorumTimeoutError("slow"))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_bulk_writer_takes_nothing_after_close() -> None:
    """A closed writer says what to do instead."""

    async def run() -> None:
        writer = AsyncBulkWriter(Gate().write, max_in_flight=2)
        await writer.close()
        with pytest.raises(UnavailableError, match="make a new one"):
            await writer.add(0, b"2", 1)

    asyncio.run(run())


def test_bulk_writer_needs_a_window() -> None:
    """A window of nothing is refused."""
    with pytest.raises(ConfigError, match="max_in_flight=0"):
        AsyncBulkWriter(Gate().write, max_in_flight=0)
