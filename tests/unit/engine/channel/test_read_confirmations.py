"""A table of continuations: the core answers by number, and each number finds its owner."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.channel.read_confirmations import ReadConfirmations
from raftstore.errors import RequestError, UnavailableError
from raftstore.types import Seq
from tests.unit.engine.engine_world import calm_cluster, run


class Owner:
    """A caller that asked for one confirmation; it keeps the answer."""

    def __init__(self, table: ReadConfirmations) -> None:
        self.told: list[Any] = []
        self.token = table.add(self.told.append, self._refused)

    def _refused(self, error: type[RequestError], text: str) -> None:
        self.told.append((error, text))


def test_each_answer_goes_to_its_owner_once() -> None:
    """In any order; a second answer of the same number has no owner."""
    table = ReadConfirmations()
    one, two, three = Owner(table), Owner(table), Owner(table)
    assert len({one.token, two.token, three.token}) == len(table) == 3
    table.confirm(two.token, Seq(7))
    table.refuse(one.token, UnavailableError, "no quorum")
    for _ in range(2):
        table.confirm(two.token, Seq(8))
        table.refuse(one.token, UnavailableError, "again")
    assert (one.told, two.told, three.told) == ([(UnavailableError, "no quorum")], [7], [])
    assert len(table) == 1


def test_dropped_question_is_answered_to_nobody_and_costs_nothing() -> None:
    """The same holds for a channel that was closed; numbers are never used again."""
    table = ReadConfirmations()
    one, two = Owner(table), Owner(table)
    table.drop([one.token, 99])
    table.confirm(one.token, Seq(1))
    assert len(table) == 1
    table.clear()
    table.refuse(two.token, UnavailableError, "late")
    assert (one.told, two.told, len(table)) == ([], [], 0)
    assert Owner(table).token == 3


@pytest.mark.slow
def test_table_is_as_large_as_what_the_core_lets_wait() -> None:
    """Given a leader without a quorum, the table holds as many reads as the core lets wait; each is
    refused once, at the latest when its time is up.
    """
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    assert leader.runner is not None
    runner = leader.runner.channels[channel]
    others = [other for other in cluster.node_ids if other != leader.node]
    cluster.network.cut_groups([leader.node], others)
    told: list[Any] = []
    limit = leader.settings.replication.read_index_reads_max
    for _ in range(limit + 5):
        runner.request_read(told.append, lambda error, _: told.append(error), leader.clock.now_ms())
    assert len(runner.confirmations) == limit
    assert len(told) == 5
    run(cluster, 2 * leader.settings.replication.read_index_timeout_ms)
    assert len(runner.confirmations) == 0
    assert len(told) == limit + 5
