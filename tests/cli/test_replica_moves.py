"""``raftstore rebalance plan|start|status|cancel|throttle`` without a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Self

import click
import pytest
from click.testing import CliRunner, Result

from raftstore.cli.check import LOST_MS, lost_nodes
from raftstore.cli.common import Context
from raftstore.cli.main import cli, global_options_first
from raftstore.client.rebalancing import (
    MoveStatus,
    PlannedMove,
    PlannedNode,
    RebalanceProposal,
    RebalanceStatus,
)
from raftstore.errors import ArgumentError
from raftstore.protocol.admin import ChannelView, ClusterViewAnswer, NodeView, ReplicaHint
from raftstore.protocol.reads import Bounds
from raftstore.protocol.rebalance import WantedMove
from raftstore.types import ChannelId, NodeId, Seq, Term

WANTED = WantedMove(ChannelId(b"c" * 20), (), (), (), ())
MOVES = tuple(
    PlannedMove(f"orders/{number}", ("n1",), ("n4",), 50 * 1024**2, spare, WANTED)
    for number, spare in enumerate((1, 0, -1))
)
PLAN = RebalanceProposal(
    moves=MOVES,
    nodes=(PlannedNode("n1", 6, 3, 300, 150, 2, 1), PlannedNode("n4", 0, 3, 0, 150, 0, 1)),
    crowded=2,
    crowded_after=0,
    bytes=150 * 1024**2,
    seconds=3.75,
    rate=40 * 1024**2,
    is_rate_measured=True,
    staying=("orders/9 on n3",),
    unknown=("n2",),
)
EMPTY = replace(PLAN, moves=(), bytes=0, crowded=0, staying=(), unknown=())
MOVE = MoveStatus("orders/0", ("n1",), ("n4",), "CATCHING_UP", 100, 40, 7, "order 7 is carried out")
OPEN = RebalanceStatus(61, "CATCHING_UP", "n1 goes", 1, 0, False, (MOVE,), 1024, {"n1": "x"})
DONE = replace(OPEN, state="COMPLETED", ended_ms=2, moves=(replace(MOVE, state="COMPLETED"),))


class FakeClient:
    """Has a plan, and a rebalance that goes on from look to look."""

    def __init__(self, plan: RebalanceProposal = PLAN, *seen: RebalanceStatus) -> None:
        self._plan = plan
        self._seen = list(seen)
        self.started: list[tuple[int, str | None]] = []
        self.calls: list[tuple[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def plan_rebalance(self) -> RebalanceProposal:
        """The plan."""
        return self._plan

    def start_rebalance(self, plan: RebalanceProposal, *, reason: str | None = None) -> int:
        """Remember it."""
        self.started.append((len(plan.moves), reason))
        return 61

    def rebalance_status(self) -> RebalanceStatus:
        """The next look, and the last one for ever."""
        return self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]

    def cancel_rebalance(self, number: int) -> None:
        """Remember it."""
        self.calls.append(("cancel", number))

    def throttle_copies(self, most: int) -> None:
        """Remember it."""
        self.calls.append(("throttle", most))

    def tag_node(self, name: str, tag: str) -> None:
        """Remember it."""
        self.calls.append((name, tag))


def run(monkeypatch: pytest.MonkeyPatch, client: FakeClient, *words: str) -> Result:
    """Run a command."""
    monkeypatch.setattr(Context, "connect", lambda _: client)
    return CliRunner().invoke(cli, global_options_first(list(words)), standalone_mode=False)


def test_plan_shows_the_price_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """N11: bytes, seconds and where that rate is from, and what is at risk meanwhile."""
    client = FakeClient()
    result = run(monkeypatch, client, "rebalance", "plan")
    assert (result.return_value, client.started) == (None, [])
    assert "stops if one more of its nodes goes down" in result.stdout
    assert "has no majority now" in result.stdout
    assert "3 moves, 150.0 MiB to copy, about 4 s at 40.0 MiB/s each" in result.stderr
    assert "as copies were measured" in result.stderr
    assert "2 replicas share a failure domain" in result.stderr
    assert "no other node for orders/9 on n3; add a node" in result.stderr
    assert "n2 did not report the sizes" in result.stderr
    shown = json.loads(run(monkeypatch, client, "rebalance", "plan", "-o", "json").stdout)
    assert [move["channel"] for move in shown["moves"]] == ["orders/0", "orders/1", "orders/2"]
    assert shown["moves"][0]["from"] == "n1"
    assert shown["nodes"][1]["replicas_after"] == 3


def test_start_asks_and_begins_no_more_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal --yes is needed; an empty plan begins nothing."""
    client = FakeClient()
    refused = run(monkeypatch, client, "rebalance", "start")
    assert isinstance(refused.exception, click.UsageError)
    assert "Start 3 of 3 moves, 150.0 MiB to copy" in str(refused.exception)
    assert client.started == []
    run(monkeypatch, client, "rebalance", "start", "--yes", "--limit", "2", "--reason", "why")
    assert client.started == [(2, "why")]
    empty = FakeClient(EMPTY)
    result = run(monkeypatch, empty, "rebalance", "start", "--yes")
    assert "nothing to move" in result.stderr
    assert empty.started == []


def test_status_is_watched_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code says how; one that is open is no failure."""
    monkeypatch.setattr("raftstore.cli.watch.INTERVAL_S", 0.001)
    result = run(monkeypatch, FakeClient(PLAN, OPEN), "rebalance", "status")
    assert result.return_value == 0
    assert "order 7 is carried out" in result.stdout
    assert "rebalance 61 (n1 goes): CATCHING_UP, 0 of 1 moves done" in result.stderr
    result = run(monkeypatch, FakeClient(PLAN, OPEN, OPEN, DONE), "rebalance", "status", "--watch")
    assert result.return_value == 0
    assert "COMPLETED, 1 of 1 moves done" in result.stderr
    failed = replace(DONE, state="TIMEOUT")
    assert run(monkeypatch, FakeClient(PLAN, failed), "rebalance", "status").return_value == 4
    none = replace(OPEN, number=0, moves=())
    result = run(monkeypatch, FakeClient(PLAN, none), "rebalance", "status")
    assert (result.return_value, "there was no rebalance yet" in result.stderr) == (0, True)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (("rebalance", "cancel"), ("cancel", 0)),
        (("rebalance", "cancel", "61"), ("cancel", 61)),
        (("rebalance", "throttle", "20MiB"), ("throttle", 20 * 1024**2)),
        (("rebalance", "throttle", "300000"), ("throttle", 300_000)),
        (("rebalance", "throttle", "none"), ("throttle", 0)),
        (("cluster", "tag", "n3", "permanent_offline"), ("n3", "permanent_offline")),
        (("cluster", "tag", "n3", "none"), ("n3", "none")),
    ],
)
def test_commands_ask_for_what_they_say(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], call: tuple[str, Any]
) -> None:
    """One call each."""
    client = FakeClient()
    assert run(monkeypatch, client, *words).exception is None
    assert client.calls == [call]


@pytest.mark.parametrize("rate", ["0", "fast", "20 MiB per second"])
def test_throttle_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, rate: str) -> None:
    """Before anything is asked."""
    client = FakeClient()
    result = run(monkeypatch, client, "rebalance", "throttle", rate)
    assert isinstance(result.exception, ArgumentError)
    assert client.calls == []


@pytest.mark.parametrize(
    ("state", "silent_ms", "is_said"),
    [("down", LOST_MS, True), ("down", LOST_MS - 1, False), ("up", LOST_MS, False)],
)
def test_check_says_what_to_do_about_a_node_that_is_gone(
    state: str, silent_ms: int, is_said: bool
) -> None:
    """It holds replicas, and has been down for long."""
    gone = NodeId("n1@01")
    node = NodeView(gone, "h:1", "", state, silent_ms, 5, 0)
    hint = ReplicaHint(gone, Seq(1), 0, 0, 0, "follower", 5)
    channel = ChannelView(ChannelId(b"c" * 20), "orders", 0, None, Term(1), Seq(1), 5, (hint,))
    view = ClusterViewAnswer(1, gone, b"c" * 16, 9, 5, Bounds(1), (node,), (channel,))
    said = lost_nodes(view)
    assert bool(said) == is_said
    assert all("cluster tag n1 permanent_offline" in text for text in said)
    assert not lost_nodes(ClusterViewAnswer(1, gone, b"c" * 16, 9, 5, Bounds(1), (node,), ()))
