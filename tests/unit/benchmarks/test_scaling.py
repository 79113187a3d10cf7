"""The formula behind docs/scaling.md says what simulated nodes send."""

from __future__ import annotations

import pytest

from benchmarks.scaling import _idle, formula


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "channels"), [(3, 6), (5, 20)])
def test_formula_gives_what_an_idle_cluster_sends(nodes: int, channels: int) -> None:
    """Message by message; in bytes nearly, for its logs are longer than those of new channels."""
    counted, said = _idle(nodes, channels), formula(nodes, channels)
    for kind in ("heartbeats", "reports"):
        assert counted[kind] == said[kind]
    assert counted["others"] == 0
    assert 0.95 * said["bytes of them"] < counted["bytes of them"] <= said["bytes of them"]
    assert 0.7 * said["bytes of these"] < counted["bytes of these"] <= said["bytes of these"]


def test_bytes_of_reports_grow_with_the_channels_and_hardly_with_the_nodes() -> None:
    """Each node sends its replicas to all others: twice the nodes have half of them each."""
    small, wide, long = formula(100, 10_000), formula(1_000, 10_000), formula(100, 20_000)
    assert wide["bytes of these"] < 1.05 * small["bytes of these"]
    assert long["bytes of these"] > 1.95 * small["bytes of these"]
    assert wide["heartbeats"] > 10 * small["heartbeats"]
