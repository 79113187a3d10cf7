"""Pages that are one scan, counts and columns: what comes back is of one state, or an error."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.scans.pages import PageToken, Place
from raftstore.errors import (
    ConfigError,
    NoReplicaAvailableError,
    PageExpiredError,
    PageTokenError,
    SchemaError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.reads import Get
from raftstore.types import SEQ_MAX, TERM_MAX, Seq, Term
from tests.integration.client.fake_cluster import FakeCluster, fail, silence
from tests.integration.client.play import QUICK, play

UUID = b"u" * 16
INFO = TableInfo("orders", UUID, ("id",), 4, 3, "fsync", None, "", ())
SCAN = b"8 bytes!"
TOKENS = st.builds(
    PageToken,
    st.just(UUID),
    st.just(SCAN),
    st.binary(max_size=40),
    st.just(("n1@00", "n2@00")),
    st.lists(
        st.builds(
            Place,
            st.integers(0, 3),
            st.integers(0, TERM_MAX).map(Term),
            st.integers(0, SEQ_MAX).map(Seq),
            st.integers(0, 1),
            st.integers(0, 2**63 - 1),
        ),
        max_size=4,
    ).map(tuple),
)


@given(TOKENS)
def test_page_token_survives_its_text(token: PageToken) -> None:
    """A token read back is the same, and fits into an address."""
    text = token.text()
    assert PageToken.parse(text, INFO, SCAN) == token
    assert text.replace("-", "").replace("_", "").replace(".", "").isalnum()


@given(TOKENS, st.data())
def test_page_token_that_was_damaged_is_refused(token: PageToken, data: st.DataObject) -> None:
    """Never another page, never an exception of another kind, whatever was done to it."""
    text = token.text()
    at = data.draw(st.integers(0, len(text) - 1))
    damage = data.draw(st.sampled_from(["cut", "change", "insert"]))
    with_ = data.draw(st.characters().filter(lambda c: c != text[at]))
    damaged = {
        "cut": text[:at],
        "change": text[:at] + with_ + text[at + 1 :],
        "insert": text[:at] + with_ + text[at:],
    }[damage]
    parsed: PageToken | None = None
    with suppress(PageTokenError):
        parsed = PageToken.parse(damaged, INFO, SCAN)
    assert parsed in (None, token)  # the last character has bits that mean nothing


def test_page_token_with_one_other_letter_is_refused() -> None:
    """A changed key would skip rows; a changed seq or pin would be another state."""
    places = (Place(0, Term(7), Seq(300), 0, 2**40), Place(1, Term(7), Seq(301)))
    token = PageToken(UUID, SCAN, b"a key of some length", ("n1@00",), places)
    text = token.text()
    for at in range(len("s1."), len(text) - 1):
        other = "B" if text[at] == "A" else "A"
        with pytest.raises(PageTokenError, match="is no page token"):
            PageToken.parse(text[:at] + other + text[at + 1 :], INFO, SCAN)


@pytest.mark.slow
@given(st.text() | st.binary().map(lambda raw: "s1." + base64.urlsafe_b64encode(raw).decode()))
def test_text_that_is_no_page_token_is_refused(text: str) -> None:
    """Anything else that comes in its place."""
    with pytest.raises(PageTokenError, match="is no page token"):
        PageToken.parse(text, INFO, SCAN)


def test_page_token_of_another_scan_or_table_is_refused() -> None:
    """Going on in another range would skip rows or repeat them."""
    token = PageToken(UUID, SCAN, b"k", ("n1@00",), (Place(0, Term(1), Seq(1), 0, 7),))
    with pytest.raises(PageTokenError, match="belongs to another scan"):
        PageToken.parse(token.text(), INFO, b"another!")
    elsewhere = PageToken(b"v" * 16, SCAN, b"k", (), ())
    with pytest.raises(PageTokenError, match="belongs to another scan"):
        PageToken.parse(elsewhere.text(), INFO, SCAN)
    beyond = PageToken(UUID, SCAN, b"k", (), (Place(4, Term(1), Seq(1)),))
    with pytest.raises(PageTokenError, match="names partitions that table 'orders' does not have"):
        PageToken.parse(beyond.text(), INFO, SCAN)
    nowhere = PageToken(UUID, SCAN, b"k", ("n1@00",), (Place(0, Term(1), Seq(1), 1, 7),))
    with pytest.raises(PageTokenError, match="node or pin"):
        PageToken.parse(nowhere.text(), INFO, SCAN)


async def pages_of(client: AsyncClient, limit: int, **options: Any) -> list[list[Any]]:
    """The ids of all pages of a scan."""
    pages, token = [], None
    while True:
        page = await client.table("t").page(limit=limit, token=token, **options)
        pages.append([row["id"] for row in page.rows])
        token = page.next_token
        if token is None:
            return pages


@pytest.mark.parametrize("limit", [1, 7, 20, 50, 1_000])
def test_pages_of_any_size_are_all_rows_in_key_order(limit: int) -> None:
    """Over all partitions, each row once, and no state stays pinned behind the last page."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put_many([{"id": n} for n in range(50)])
        pages = await pages_of(client, limit)
        assert [key for page in pages for key in page] == list(range(50))
        assert all(len(page) == limit for page in pages[:-1])
        assert await pages_of(client, limit, start=10, stop=13) in (
            [[10, 11, 12]],
            [[10], [11], [12], []],
            [[10], [11], [12]],
        )
        await cluster.until(lambda: not any(node.pins for node in cluster.nodes.values()))

    play(test, partitions=3)


def test_pages_are_of_the_state_of_the_first_one() -> None:
    """Given writes between its pages, each page has the state and the position of the first one."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        summary = await table.put_many([{"id": n, "v": "old"} for n in range(10)])
        page = await table.page(limit=4)
        assert page.position == summary.position
        seen = list(page.rows)
        while page.next_token is not None:
            await table.put_many([{"id": n, "v": "new"} for n in range(20)])
            token = page.next_token
            async with await aio.connect(cluster.endpoints) as other:  # it holds everything
                page = await other.table("t").page(limit=4, token=token)
            assert page.position == summary.position
            seen += page.rows
        assert seen == [{"id": n, "v": "old"} for n in range(10)]
        assert {part.node for part in page.served} <= {"n1"}

    play(test, partitions=2)


@pytest.mark.slow
def test_page_that_was_not_served_in_time_may_be_asked_for_again() -> None:
    """A node that is overloaded or silent may keep the state: only it can say that it does not."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(10)])
        token = (await table.page(limit=4)).next_token
        node = cluster.nodes["n1"]
        for script in (fail("overloaded", "too much to do"), silence):
            node.read_scripts.extend([script] * 1_000)
            with pytest.raises(NoReplicaAvailableError) as caught:
                await table.page(limit=4, token=token, timeout=0.2)
            assert caught.value.retriable
            node.read_scripts.clear()
        page = await table.page(limit=4, token=token)
        assert [row["id"] for row in page.rows] == [4, 5, 6, 7]
        assert page.next_token is not None
        node.read_scripts.extend([fail("unknown_channel", "not hosted here")] * 2)
        with pytest.raises(PageExpiredError, match="not hosted here"):
            await table.page(limit=4, token=page.next_token)

    play(test)


def test_page_is_not_lost_before_the_first_connection_stands() -> None:
    """A token that came to another process: its time ran out before the node was ever reached."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put_many([{"id": n} for n in range(10)])
        token = (await client.table("t").page(limit=4)).next_token
        slow = replace(QUICK, connect_timeout_ms=60_000)
        async with await aio.connect(cluster.endpoints, settings=slow) as other:
            node = cluster.nodes["n1"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(node, "_take", lambda *_: None)  # it does not even shake hands
                with pytest.raises(NoReplicaAvailableError, match="no connection yet"):
                    await other.table("t").page(limit=4, token=token, timeout=0.1)
            node.drop_connections()
            page = await other.table("t").page(limit=4, token=token)
            assert [row["id"] for row in page.rows] == [4, 5, 6, 7]

    play(test)


def test_page_whose_state_is_gone_is_refused() -> None:
    """Never the rows of another state: too old, or with its node."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(10)])
        token = (await table.page(limit=4)).next_token
        cluster.nodes["n1"].pins.clear()
        with pytest.raises(PageExpiredError, match="the state is gone"):
            await table.page(limit=4, token=token)
        token = (await table.page(limit=4)).next_token
        await cluster.nodes["n1"].kill()
        with pytest.raises(PageExpiredError, match="start the scan again"):
            await table.page(limit=4, token=token, timeout=0.3)

    play(test)


@pytest.mark.parametrize(
    "changed", [{"start": 1}, {"prefix": (1,)}, {"columns": ["id"]}, {"keys_only": True}]
)
def test_page_token_goes_with_its_range_and_columns(changed: dict[str, Any]) -> None:
    """Another range under the same token is a mistake, and refused."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(10)])
        token = (await table.page(limit=4)).next_token
        with pytest.raises(PageTokenError, match="belongs to another scan"):
            await table.page(limit=4, token=token, **changed)
        for limit in (0, -1, True, 10_001, "9"):
            with pytest.raises(ConfigError, match="is no number of rows from 1 to 10000"):
                await table.page(limit=limit)  # type: ignore[arg-type]

    play(test)


def test_first_page_that_fails_leaves_no_state_pinned() -> None:
    """One partition without a leader fails the page; the others' states are given up."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        channels = cluster.add_table("two", 2, leaders=("n1", "n2"))
        await client.table("two").put_many([{"id": n} for n in range(20)])
        cluster.elect(channels[1], None)
        with pytest.raises(Exception, match=r"no leader|not I"):
            await client.table("two").page(limit=4, timeout=0.2)
        await cluster.until(lambda: not any(node.pins for node in cluster.nodes.values()))

    play(test)


def test_count_adds_up_all_partitions() -> None:
    """Of a range or of everything, at any level, with the states that were counted."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        summary = await table.put_many([{"id": n} for n in range(50)])
        found = await table.count()
        assert (found.rows, found.position) == (50, summary.position)
        assert [part.partition for part in found.served] == [0, 1, 2]
        assert (await client.count("t", start=10, stop=20, max_lag=0)).rows == 10
        assert (await client.count("t", at_least=summary.position)).rows == 50

    play(test, partitions=3)


def test_columns_are_those_asked_for() -> None:
    """In their order; rows without such a column come without it; keys alone travel alone."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": 1, "a": 2, "b": 3}, {"id": 2, "b": 4}])
        assert await table.get(1, columns=["b", "id"]) == {"b": 3, "id": 1}
        assert await table.get(9, columns=["b"]) is None
        assert await table.get_many([1, 2], columns=["a"]) == [{"a": 2}, {}]
        assert [row async for row in table.scan(columns=["b"])] == [{"b": 3}, {"b": 4}]
        assert (await table.page(columns=["id"])).rows == ({"id": 1}, {"id": 2})
        scans = [read for read in cluster.nodes["n1"].reads if not isinstance(read, Get)]
        assert scans[-1].keys_only  # type: ignore[union-attr]
        schema = (
            '{"type":"struct","fields":['
            + ",".join(
                f'{{"name":"{name}","type":"long","nullable":true,"metadata":{{}}}}'
                for name in ("id", "a")
            )
            + "]}"
        )
        cluster.add_table("typed", schema_json=schema)
        with pytest.raises(SchemaError, match=r"no column 'c' \(there are: id, a\)"):
            await client.table("typed").get(1, columns=["c"])

    play(test)
