"""A world is worth something only if clients were served and faults struck, and in the end, too."""

from __future__ import annotations

import pytest

from raftstore.engine.reads.reader import Reader
from raftstore.errors import Refusal, UnavailableError
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.simulation import simulate

CALM = SimOptions(seed=3, operations=30, faults=0, fault_phase_ms=500)


def test_calm_world_is_of_use() -> None:
    """Without the bugs below nothing is found."""
    verdict = simulate(CALM)
    assert verdict.violation is None
    assert verdict.faults == {}


@pytest.mark.slow
def test_world_whose_nodes_refuse_every_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas are equal, and of no use to anybody."""
    monkeypatch.setattr(Reader, "serving_refusal", lambda *_: Refusal(UnavailableError, "never"))
    found = simulate(CALM).violation
    assert found is not None
    assert "O6: after healing no linearizable read succeeds" in found


def test_faults_that_find_nothing_to_strike_do_not_count() -> None:
    """A node that is down cannot crash again, and a network that heals is no fault."""
    cluster = SimCluster(CALM)  # no node was started
    nemesis = Nemesis(cluster, CALM)
    for _ in range(200):
        nemesis._inject()
    assert nemesis.struck == sum(nemesis.kinds.values()) > 0
    assert not {
        "crash",
        "crash_all",
        "damage",
        "write_error",
        "connection_reset",
        "hand_over",
        "heal_network",
    } & set(nemesis.kinds)
