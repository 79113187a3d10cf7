"""Benchmarks beside etcd, small, against real nodes; without etcd our own half of them."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import calls, catch_up, puts
from benchmarks.peers import NOT_INSTALLED

pytestmark = pytest.mark.cluster

WITHOUT_ETCD = shutil.which("etcd") is None


def test_puts_are_measured_in_flight_and_one_at_a_time() -> None:
    """Each line has puts and processor time; etcd is reported as missing or measured."""
    told = puts.run(True)

    stores = 2 if NOT_INSTALLED in told[puts.PEER] else 3
    assert len(told["puts"]) == 2 * stores
    for line in told["puts"]:
        assert line["p50 ms"] > 0
        assert line["servers us"] > 0
        assert line["client us"] > 0
    assert not WITHOUT_ETCD or stores == 2


def test_node_that_missed_rows_is_seen_to_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours alone, beside writers at half of their rate."""
    for peer in catch_up.STORES.keys() - {"raftstore"}:
        monkeypatch.delitem(catch_up.STORES, peer)
    for kind in (catch_up.CALM, catch_up.FULL):
        monkeypatch.delitem(catch_up.ASKED, kind)

    told = catch_up.run(True, rows=5_000)

    [[line]] = (value for value in told.values() if isinstance(value, list))
    assert int(line["missed"].replace(",", "")) >= 5_000
    assert float(line["s"]) > 0
    assert line["own us"] > 0
    assert "0" not in {line["w: all"], line["w: down"]}


def test_operations_take_no_more_calls_on_the_nodes_than_they_did() -> None:
    """Python's time is the number of its calls; a count says it on a busy machine, too."""
    found = calls.measure(tiny=True)

    limits = {work.name: work.nodes_max for work in calls.WORKS}
    counted = {name: round(seen.nodes) for name, (seen, _) in found.items()}
    assert counted.keys() == limits.keys()
    assert {name: count for name, count in counted.items() if count > limits[name]} == {}
    assert all(count > 0 for count in counted.values())
    assert all(seen.client > 0 for seen, _ in found.values())
