"""Faults that change members of real nodes: a guest that joins is struck like any other node, and
everything is as before in the end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jepsen_like.checker.nodes import check_nodes
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.target import ProcessTarget

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WAIT_S = 60.0
FOUNDERS = ("n1", "n2", "n3")


def until(ready: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_replica_comes_to_a_guest_that_is_killed_and_goes_with_it(tmp_path: Path) -> None:
    """S8: the guest votes, dies, comes back, gives its replica away and leaves; rows are where they
    were."""
    with ProcessTarget(tmp_path) as target:
        with target.cluster.connect(timeout=WAIT_S) as client:
            client.create_table("t", key="k", partitions=1)
            client.table("t").put({"k": 1, "v": 1})
            heal = CATALOGUE["add-replica"].inject(target, random.Random(1))

            def voters() -> set[str]:
                (channel,) = client.replicas(timeout=WAIT_S)
                return set(channel.voters)

            until(lambda: voters() == {*FOUNDERS, "n4"})
            until(lambda: target.nodes == (*FOUNDERS, "n4"))
            with pytest.raises(FaultUnavailableError, match="being changed already"):
                CATALOGUE["remove-replica"].inject(target, random.Random(1))
            target.kill(("n4",))
            client.table("t").put({"k": 2, "v": 2})
            target.start(("n4",))
            heal()
            target.heal()
            assert target.settle_members(WAIT_S) == ""
            assert voters() == set(FOUNDERS)
            assert sorted(row["k"] for row in client.table("t").scan()) == [1, 2]
        assert target.nodes == FOUNDERS
        assert not target.data("n4").exists()
        assert check_nodes(target.watched()).is_valid, check_nodes(target.watched()).summary
        changes = target.voters(0)
        assert any(set(group) >= {"n4"} for group, _, _ in changes.deciding(("t", 0), 1 << 62))
