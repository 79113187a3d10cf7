"""Refusals of one replica for itself alone: the others are asked, and all of them must agree."""

from __future__ import annotations

import pytest

from raftstore.aio import AsyncClient
from raftstore.errors import (
    DataLossError,
    PayloadTooLargeError,
    SnapshotExpiredError,
    UnsupportedRequestError,
)
from tests.integration.client.fake_cluster import FakeCluster, fail
from tests.integration.client.play import play

REFUSALS = [
    ("data_loss", DataLossError),
    ("snapshot_expired", SnapshotExpiredError),
    ("unsupported_request", UnsupportedRequestError),
]


async def state_after(client: AsyncClient, batch_id: int) -> None:
    """Open the state after a batch, when others were committed since."""
    table = client.table("t")
    batch = await table.write_batch([{"id": 1, "v": 1}], writer="w", batch_id=batch_id)
    await table.write_batch([{"id": 1, "v": 2}], writer="w", batch_id=batch_id + 1)
    async with await table.snapshot(at_batch=batch, timeout=60) as snapshot:
        assert await snapshot.get_many([1]) == [{"id": 1, "v": 1}]


def refuse_in_all(cluster: FakeCluster, code: str) -> None:
    """Have every node refuse each request that is no read."""
    for node in cluster.nodes.values():
        node.request_scripts.clear()
        node.request_scripts.extend([fail(code)] * 100)


@pytest.mark.parametrize(("code", "kind"), REFUSALS)
def test_refusal_of_one_replica_sends_the_request_to_the_next(
    code: str, kind: type[Exception]
) -> None:
    """It keeps other states, lacks changes or is older; when all are so, that is the error."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        batch = await table.write_batch([{"id": 1, "v": 1}], writer="w", batch_id=0)
        for names in (["n1"], ["n1", "n2"]):
            for name in names:
                cluster.nodes[name].request_scripts.append(fail(code))
            async with await table.snapshot(at_batch=batch) as snapshot:
                assert await snapshot.get_many([1]) == [{"id": 1, "v": 1}]
        refuse_in_all(cluster, code)
        with pytest.raises(kind, match="by script"):
            await table.snapshot(at_batch=batch, timeout=60)

    play(test)


def test_state_that_one_replica_keeps_no_longer_is_had_at_another() -> None:
    """Each keeps states of before for itself: one that was restarted has fewer."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].kept = 0
        await state_after(client, 0)
        cluster.nodes["n2"].kept = 0
        await state_after(client, 10)
        await cluster.nodes["n3"].kill()
        with pytest.raises(SnapshotExpiredError, match="no longer"):
            await state_after(client, 20)

    play(test)


def test_refusal_that_all_would_repeat_ends_the_request() -> None:
    """Given a refusal that depends on the request alone, the other replicas are not asked."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        batch = await table.write_batch([{"id": 1}], writer="w", batch_id=0)
        refuse_in_all(cluster, "payload_too_large")
        with pytest.raises(PayloadTooLargeError):
            await table.snapshot(at_batch=batch)
        left = sum(len(node.request_scripts) for node in cluster.nodes.values())
        assert left == 3 * 100 - 1

    play(test)
