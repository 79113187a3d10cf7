"""Pauses, guids and bytes in flight: what bounds a client."""

from __future__ import annotations

import asyncio
import sys
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.cluster.backoff import Backoff
from raftstore.client.context import TIMEOUT_S_MAX, timeout_in_ms
from raftstore.client.settings import ClientSettings
from raftstore.client.writes.in_flight import ByteBudget
from raftstore.client.writes.session import SESSION_IDLE_MS, ProducerSession
from raftstore.config import GUID_WINDOW
from raftstore.errors import ArgumentError, ConfigError
from raftstore.types import Guid, guid_counter, guid_session


def session(window: int = GUID_WINDOW) -> ProducerSession:
    numbers = count(1)
    return ProducerSession(lambda: next(numbers).to_bytes(8, "big"), window=window)


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 100), st.integers(1, 1_000))
def test_backoff_doubles_with_jitter_up_to_its_maximum(
    jitter: float, least: int, most: int
) -> None:
    """Each pause lies between half and all of min * 2^n, at most max, and at least 1 ms."""
    backoff = Backoff(min_ms=least, max_ms=most, jitter=lambda: jitter)
    for attempt in range(40):
        full = min(most, least << attempt)
        assert max(1, full // 2) <= backoff.next_ms() <= max(1, full)
    backoff.reset()
    assert backoff.next_ms() <= max(1, min(least, most))


@pytest.mark.parametrize(
    "timeout", [0, -1, float("nan"), float("inf"), 1e20, sys.maxsize, TIMEOUT_S_MAX + 1]
)
def test_timeout_that_is_none_is_refused(timeout: float) -> None:
    """A timeout that cannot be waited for, or that no message can carry, raises ArgumentError
    before anything is sent.
    """
    with pytest.raises(ArgumentError, match="timeout="):
        timeout_in_ms(timeout)


def test_timeout_is_in_whole_milliseconds() -> None:
    """Rounded, and never none at all."""
    assert [timeout_in_ms(given) for given in (1e-9, 0.0126, 5)] == [1, 13, 5_000]
    assert timeout_in_ms(TIMEOUT_S_MAX) == 1_000 * TIMEOUT_S_MAX


def test_guids_count_up_within_one_session() -> None:
    """Guids of a channel share a session and count from 1 (S4.5)."""

    async def run() -> None:
        ours = session()
        guids = [await ours.reserve(0) for _ in range(3)]
        assert [guid_counter(guid) for guid in guids] == [1, 2, 3]
        assert len({guid_session(guid) for guid in guids}) == 1

    asyncio.run(run())


def test_guids_in_flight_span_less_than_the_window() -> None:
    """S4.5: the oldest unfinished write stays within what nodes remember of a session."""

    async def run() -> None:
        ours = session()
        guids = [ours.try_reserve(0) for _ in range(GUID_WINDOW - 1)]
        assert None not in guids
        assert ours.try_reserve(0) is None
        waiting = asyncio.ensure_future(ours.reserve(0))
        second = guids[1]
        assert second is not None
        ours.release(second)
        await settle()
        assert not waiting.done()
        first = guids[0]
        assert first is not None
        ours.release(first)
        assert guid_counter(await waiting) == GUID_WINDOW

    asyncio.run(run())


def test_guids_are_handed_out_in_the_order_of_asking() -> None:
    """Given a full window, the caller that waits longest gets the next guid; a cancelled one costs
    the others nothing.
    """

    async def run() -> None:
        ours = session(window=2)
        first = await ours.reserve(0)
        order: list[str] = []

        async def ask(name: str) -> Guid:
            guid = await ours.reserve(0)
            order.append(name)
            return guid

        one, two, three = (asyncio.ensure_future(ask(name)) for name in ("one", "two", "three"))
        await settle()
        one.cancel()
        ours.release(first)
        await settle()
        assert order == ["two"]
        ours.release(two.result())
        await settle()
        assert order == ["two", "three"]
        ours.release(three.result())

    asyncio.run(run())


def test_guid_given_to_a_cancelled_caller_is_not_lost() -> None:
    """A caller cancelled in the moment of its turn passes the turn on."""

    async def run() -> None:
        ours = session(window=2)
        first = await ours.reserve(0)
        one, two = (asyncio.ensure_future(ours.reserve(0)) for _ in range(2))
        await settle()
        ours.release(first)
        one.cancel()
        async with asyncio.timeout(1):
            assert guid_counter(await two) == 2

    asyncio.run(run())


def test_session_is_renewed_after_a_long_pause_and_when_it_expired() -> None:
    """Nodes forget silent sessions; a new one begins before that, and after they said so."""

    async def run() -> None:
        ours = session()
        first = await ours.reserve(0)
        ours.release(first)
        second = await ours.reserve(SESSION_IDLE_MS)
        assert guid_session(second) == guid_session(first)
        third = await ours.reserve(2 * SESSION_IDLE_MS + 1)
        assert guid_session(third) == guid_session(first), "one is still in flight"
        ours.release(second)
        ours.release(third)
        fourth = await ours.reserve(4 * SESSION_IDLE_MS)
        assert guid_session(fourth) != guid_session(first)
        ours.release(fourth, expired=True)
        fifth = await ours.reserve(4 * SESSION_IDLE_MS)
        assert guid_session(fifth) != guid_session(fourth)
        assert ours.after_seq == 0, "of what was acknowledged in another session nothing is known"
        assert guid_counter(fifth) == 1

    asyncio.run(run())


def test_budget_admits_in_order_and_one_large_write_alone() -> None:
    """Bytes in flight stay within the bound; what is larger than the bound goes alone."""

    async def run() -> None:
        budget = ByteBudget(10)
        assert budget.try_acquire(8)
        large = asyncio.ensure_future(budget.acquire(50))
        small = asyncio.ensure_future(budget.acquire(1))
        await settle()
        assert not large.done()
        assert not small.done(), "nobody overtakes"
        budget.release(8)
        await settle()
        assert large.done()
        assert not small.done()
        budget.release(50)
        await small
        assert budget.used == 1

    asyncio.run(run())


def test_budget_is_not_lost_when_waiting_is_cancelled() -> None:
    """A cancelled wait gives its place, or the room it was just given, to the next."""

    async def run() -> None:
        budget = ByteBudget(10)
        await budget.acquire(10)
        first, second, third = (asyncio.ensure_future(budget.acquire(10)) for _ in range(3))
        await settle()
        first.cancel()
        await settle()
        budget.release(10)
        second.cancel()
        await third
        assert budget.used == 10
        budget.release(10)
        assert budget.used == 0

    asyncio.run(run())


def test_settings_refuse_what_is_not_positive() -> None:
    """A time or limit of zero would stop everything; it is refused by name."""
    with pytest.raises(ConfigError, match="hedge_ms=0"):
        ClientSettings(hedge_ms=0)
