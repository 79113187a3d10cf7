"""The checker of what nodes say of the cluster."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from jepsen_like.checker.status import StatusWatch, untruths
from jepsen_like.checker.verdict import Validity

RUNNING = ("n1", "n2")
FLAPPING = {"mode": "catching_up", "flapping": True, "catch_up": {"rows_left": 0}}
"""A replica that left steady state too often, and stays with history for a while."""


def channel(role: str, **changed: Any) -> dict[str, Any]:
    """One node's word on channel t/0, which n1 leads in term 3."""
    replicas = [{"node": "n1", "lag": 0}, {"node": "n2", "lag": 0}, {"node": "n3", "lag": None}]
    said = {"channel": "t/0", "role": role, "term": 3, "leader": "n1-id", "mode": "steady"}
    return {**said, "lag": 0, "replicas": replicas, **changed}


def truth() -> dict[str, dict[str, Any]]:
    """Status of both running nodes of three without a fault."""
    nodes = [{"name": name, "up": name in RUNNING} for name in ("n1", "n2", "n3")]
    return {
        "n1": {"nodes": deepcopy(nodes), "channels": [channel("leader")]},
        "n2": {"nodes": deepcopy(nodes), "channels": [channel("follower")]},
    }


def test_truth_is_found_true() -> None:
    """Nothing to say against a healthy cluster, one node of which is down."""
    assert untruths(truth(), RUNNING) == []


@pytest.mark.parametrize(
    ("node", "changed", "said"),
    [
        ("n2", {"role": "leader"}, "2 nodes say that they lead it"),
        ("n1", {"role": "follower"}, "0 nodes say that they lead it"),
        ("n2", {"term": 2}, "leaders and terms differ"),
        ("n2", {"leader": "n9-id"}, "leaders and terms differ"),
        ("n2", {"lag": 4}, "n2 says that it lags by 4"),
        ("n2", {"lag": None}, "n2 says that it lags by None"),
        ("n2", {"mode": "catching_up"}, "n2 is catching_up"),
        ("n2", {"mode": "catching_up", "flapping": True}, "n2 is catching_up"),
        ("n2", {"mode": "catching_up", "catch_up": {"rows_left": 0}}, "n2 is catching_up"),
        ("n2", {**FLAPPING, "catch_up": {"rows_left": 1}}, "n2 is catching_up"),
        ("n2", {**FLAPPING, "mode": "recovering"}, "n2 is recovering"),
        ("n1", {"replicas": [{"node": "n2", "lag": 7}]}, "n1 says that n2 lags by 7"),
    ],
)
def test_untruth_about_a_channel_is_named(node: str, changed: dict[str, Any], said: str) -> None:
    """By channel and by who said it."""
    views = truth()
    views[node]["channels"][0].update(changed)
    (found,) = untruths(views, RUNNING)
    assert found.startswith("t/0: ")
    assert said in found


def test_flapping_replica_that_has_everything_is_well() -> None:
    """NATS-153: for up to a minute it asks for new records instead of waiting for live ones."""
    views = truth()
    views["n2"]["channels"][0].update(FLAPPING)
    assert untruths(views, RUNNING) == []


def test_untruth_about_a_node_is_named() -> None:
    """Up and down are what they are, not what they were; who says nothing is named, too."""
    views: dict[str, Any] = truth()
    views["n1"]["nodes"][2]["up"] = True
    assert untruths(views, RUNNING) == ["n1 says that n3 is up"]
    views["n1"] = None
    assert "n1 says nothing" in untruths(views, RUNNING)


def test_two_leaders_of_one_term_are_a_violation_whenever_they_were_seen() -> None:
    """It is one even if nobody looked at both at the same moment."""
    watch = StatusWatch(true_after_ms=10.0)
    watch.observe({"n1": truth()["n1"]})
    watch.observe({"n2": {"nodes": [], "channels": [channel("leader", term=4)]}, "n3": None})
    assert watch.verdict().validity is Validity.VALID
    watch.observe({"n2": {"nodes": [], "channels": [channel("leader")]}})
    verdict = watch.verdict()
    assert verdict.validity is Validity.INVALID
    assert "n1, n2 all said that they lead channel t/0 in term 3" in verdict.summary


def test_verdict_needs_somebody_who_looked() -> None:
    """A state that never became true is a violation."""
    assert StatusWatch().verdict().validity is Validity.UNDECIDED
    verdict = StatusWatch(last_untruths=("n1 says that n3 is up",)).verdict()
    assert verdict.validity is Validity.INVALID
    assert "n1 says that n3 is up" in verdict.summary
