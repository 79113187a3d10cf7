"""SIGSTOP of real nodes: what waited in their buffers meanwhile is not taken for news (S7.3).

The sleeper is cut off from its peers before it wakes up, so nothing but its own guard can notice
that it slept: without that, both tests find the old row served as if nothing were missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen_like.target.processes.target import ProcessTarget
from raftstore import connect
from raftstore.client.blocking.client import Client
from raftstore.config import ReadSettings
from raftstore.errors import RaftstoreError
from tests.cluster.watching import eventually, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
STOP_S = ReadSettings().leader_info_age_max_ms / 1_000 + 1.0
"""Beyond the age up to which the report of a leader counts: the old row is beyond every bound."""
BUFFERED_S = 2.0
"""Time in which peers go on reporting to the sleeper how far they are."""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ProcessTarget]:
    """Three nodes behind proxies."""
    with ProcessTarget(tmp_path / "stopped") as running:
        yield running


def sleep_through_a_write(target: ProcessTarget, client: Client, sleeper: str) -> None:
    """Stop the node, cut it off once its buffers hold news, write behind its back, wake it up."""
    others = [node for node in target.nodes if node != sleeper]
    target.pause([sleeper])
    stopped = time.monotonic()
    time.sleep(BUFFERED_S)
    target.block([(sleeper, other) for other in others] + [(other, sleeper) for other in others])
    awake = [at for node, at in target.links.endpoints.items() if node != sleeper]
    with connect(awake, timeout=20.0) as writer:
        writer.table("orders").put({"id": 1, "text": "new"})
    time.sleep(max(0.0, stopped + STOP_S - time.monotonic()))
    target.resume([sleeper])


def answers_of(client: Client, node: str) -> list[object]:
    """Answers of the node within a bound of no row at all, asked again and again."""
    answers: list[object] = []
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        try:
            found = client.table("orders").get(1, replica=node, max_lag=0, timeout=0.5)
        except RaftstoreError:
            continue
        answers.append(found)
    return answers


@pytest.mark.parametrize("is_leader", [True, False])
def test_node_that_slept_serves_nothing_from_before(
    target: ProcessTarget, *, is_leader: bool
) -> None:
    """A leader that was replaced while it stood still, and a follower with old word of its leader
    in its buffers: both refuse, until a round trip proves where the channel is."""
    with target.cluster.connect(timeout=20.0) as client:
        client.create_table("orders", key="id", partitions=1)
        orders = client.table("orders")
        written = orders.put({"id": 1, "text": "old"}).position
        leader = leader_of(client, "orders")
        sleeper = next(node for node in target.nodes if (node == leader) is is_leader)
        assert orders.get(1, replica=sleeper, at_least=written, max_lag=0, timeout=20.0)
        sleep_through_a_write(target, client, sleeper)
        assert answers_of(client, sleeper) == []
        assert 'event="stalled"' in target.log_text(sleeper)
        target.unblock()
        healed = eventually(lambda: answers_of(client, sleeper), lambda answers: len(answers) > 0)
        assert healed[0] == {"id": 1, "text": "new"}
