"""Mistakes with asyncio: a client that was not awaited, or taken to another loop."""

from __future__ import annotations

import asyncio

import pytest

import raftstore
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.settings import ClientSettings
from raftstore.errors import ConfigError


def test_client_that_was_not_awaited_says_so() -> None:
    """Its methods are those of what is awaited."""
    opening = raftstore.aio.connect("127.0.0.1:1")
    with pytest.raises(AttributeError, match="'table' is of what this call opens, which was not"):
        opening.table("t")  # type: ignore[attr-defined]
    assert not hasattr(opening, "__array__")
    opening.close()


@pytest.mark.parametrize(("is_closed", "state"), [(True, "was closed"), (False, "is another one")])
def test_client_in_another_loop_is_refused_at_once(is_closed: bool, state: str) -> None:
    """A program that calls ``asyncio.run`` twice with one client."""

    async def made() -> AsyncClient:
        return AsyncClient("127.0.0.1:1", ClientSettings())

    async def used(client: AsyncClient) -> None:
        await client.table("t").get(1)

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(made())
    if is_closed:
        loop.close()
    with pytest.raises(ConfigError, match=f"belongs to an event loop that {state}"):
        asyncio.run(used(client))
    loop.close()
