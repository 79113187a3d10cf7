"""Scans: pages of all partitions merged in key order."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.scans.scanning import Item, merged
from raftstore.errors import NoLeaderError
from raftstore.protocol.reads import ScanAnswer, Served
from raftstore.types import ChannelId, Seq, Term, node_id

SERVED = Served(node_id("n", b"n" * 16), ChannelId(b"t" * 18), Term(1), Seq(1), 0, 0, "any")


def page(rows: list[Item], *, more: bool) -> ScanAnswer:
    return ScanAnswer(1, tuple(rows), more, SERVED)


class Pages:
    """Sorted rows of several partitions, served in pages of a given size."""

    def __init__(self, partitions: list[list[bytes]], page_rows: int) -> None:
        self.partitions = [sorted(set(keys)) for keys in partitions]
        self.page_rows = page_rows
        self.fetched = 0

    async def fetch(self, partition: int, start: bytes) -> ScanAnswer:
        await asyncio.sleep(0)
        self.fetched += 1
        rows = [key for key in self.partitions[partition] if key >= start]
        shown: list[Item] = [(key, b"v", Seq(1)) for key in rows[: self.page_rows]]
        return page(shown, more=len(rows) > self.page_rows)


def scan(pages: Pages, start: bytes, limit: int | None) -> list[bytes]:
    async def run() -> list[bytes]:
        rows = merged(len(pages.partitions), start, limit, pages.fetch)
        return [key async for key, _, _ in rows]

    return asyncio.run(run())


@given(
    st.lists(st.lists(st.binary(max_size=3), max_size=20), min_size=1, max_size=4),
    st.integers(1, 7),
    st.binary(max_size=2),
    st.one_of(st.none(), st.integers(0, 30)),
)
def test_scan_merges_all_partitions_in_key_order(
    partitions: list[list[bytes]], page_rows: int, start: bytes, limit: int | None
) -> None:
    """Every row at or above start comes once, in order, up to the limit, in pages of any size."""
    pages = Pages(partitions, page_rows)
    expected = sorted(key for keys in pages.partitions for key in keys if key >= start)
    assert scan(pages, start, limit) == expected[:limit]


def test_scan_reads_one_page_ahead_and_no_more() -> None:
    """A scan that is given up early has not read the table."""
    pages = Pages([[b"%03d" % n for n in range(100)]], 10)

    async def run() -> None:
        rows = merged(1, b"", None, pages.fetch)
        assert (await anext(rows))[0] == b"000"
        await rows.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert pages.fetched <= 2


def test_scan_passes_on_a_failure_and_leaves_nothing_running() -> None:
    """One partition that cannot be read fails the scan."""

    async def fetch(partition: int, start: bytes) -> ScanAnswer:
        await asyncio.sleep(0)
        if partition == 1:
            raise NoLeaderError("none")
        return page([(b"k", b"v", Seq(1))], more=True)

    async def run() -> None:
        with pytest.raises(NoLeaderError):
            async for _ in merged(3, b"", None, fetch):
                pass
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
