"""Random misfortune: what the client says of each write agrees with what the nodes did."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.aio import AsyncClient
from raftstore.errors import RequestError
from raftstore.types import Outcome
from tests.integration.client.fake_cluster import (
    Answer,
    FakeCluster,
    apply_and,
    apply_and_lose,
    lose,
    publish,
    refuse,
    silence,
)
from tests.integration.client.play import play

SCRIPTS: dict[str, Answer] = {
    "ack": publish,
    "overloaded": refuse("overloaded"),
    "unavailable": refuse("unavailable"),
    "payload_too_large": refuse("payload_too_large"),
    "guid_expired": refuse("guid_expired"),
    "quorum_timeout": refuse("quorum_timeout"),
    "committed_after_quorum_timeout": apply_and("quorum_timeout"),
    "committed_after_leadership_lost": apply_and("leadership_lost"),
    "committed_and_lost": apply_and_lose,
    "lost": lose,
    "silent": silence,
}
NAMES = ("n1", "n2", "n3")
MISFORTUNE = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from(NAMES),
            st.lists(st.sampled_from(sorted(SCRIPTS)), max_size=3),
        ),
        st.one_of(st.none(), st.sampled_from(NAMES)),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=20)
@given(MISFORTUNE)
def test_every_outcome_agrees_with_what_was_applied(
    steps: list[tuple[dict[str, list[str]], str | None]],
) -> None:
    """OK: applied exactly once. NOT_APPLIED: never. No write is applied under two guids.

    Shows NATS-200.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        (channel,) = [cluster.channels[info.channel] for info in cluster.tables["t"].channels]
        told: dict[int, Outcome] = {}

        async def put(number: int) -> None:
            try:
                await client.table("t").put({"id": number}, timeout=0.3)
                told[number] = Outcome.OK
            except RequestError as error:
                told[number] = error.outcome

        for number, (scripts, leader) in enumerate(steps):
            for name, answers in scripts.items():
                node = cluster.nodes[name]
                node.publish_scripts.clear()
                node.publish_scripts.extend(SCRIPTS[answer] for answer in answers)
            pair = [asyncio.ensure_future(put(2 * number + more)) for more in (0, 1)]
            if leader is not None:
                cluster.elect(channel, leader)
            await asyncio.gather(*pair)
        payloads = [bytes(message.payload) for message in channel.applied]
        assert len(set(payloads)) == len(payloads) == len({m.guid for m in channel.applied})
        # Deduplication keeps every write single; so a row is there exactly if it was applied.
        present = {row["id"] async for row in client.table("t").scan(level="any")}
        for number, outcome in told.items():
            if outcome is not Outcome.UNKNOWN:
                assert (number in present) == (outcome is Outcome.OK)

    play(test)
