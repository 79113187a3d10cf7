"""``raftstore rebalance leaders`` without a cluster: what is moved, printed, and how it ends."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Self

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from raftstore.cli import rebalance
from raftstore.cli.check import UNEVEN_MS_MAX, judge_cluster, uneven_leaders
from raftstore.cli.common import Context
from raftstore.cli.main import cli, global_options_first
from raftstore.errors import UnavailableError
from raftstore.protocol.admin import ChannelView, ClusterViewAnswer, NodeView, ReplicaHint
from raftstore.protocol.reads import Bounds
from raftstore.types import NodeId, Seq, Term, channel_id

NODES = tuple(NodeId(f"n{number}@0{number}") for number in (1, 2, 3))


def view(
    leaders: tuple[int | None, ...], *, state: str = "up", lag: int | None = 7
) -> ClusterViewAnswer:
    """Partitions led by these nodes, with replicas on all; state and lag are those of n3."""
    states = ("up", "up", state)
    nodes = tuple(NodeView(node, f"h:{n}", "", states[n], 0, 5, 0) for n, node in enumerate(NODES))
    channels = []
    for partition, leader in enumerate(leaders):
        replicas = tuple(
            ReplicaHint(node, Seq(100), lag if node == NODES[2] else 0, 0, 0, "follower", 5)
            for node in (*NODES[partition % 3 :], *NODES[: partition % 3])
        )
        channel = channel_id(b"t" * 16, partition)
        led_by = None if leader is None else NODES[leader - 1]
        channels.append(
            ChannelView(channel, "orders", partition, led_by, Term(3), Seq(107), 5, replicas)
        )
    bounds = Bounds(10_000)
    return ClusterViewAnswer(1, NODES[0], b"c" * 16, 9, 5, bounds, nodes, tuple(channels))


class FakeClient:
    """Hands leaderships over, but for one channel."""

    def __init__(self, *found: ClusterViewAnswer, stuck: str = "", draining: int = 0) -> None:
        """``found``: what nodes know, from call to call."""
        self._views = list(found)
        self._draining = draining
        self._stuck = stuck
        self.moved: list[tuple[str, str | None]] = []
        self.switched: list[bool | None] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def cluster_view(self) -> ClusterViewAnswer:
        """The next view, and the last one for ever."""
        return self._views.pop(0) if len(self._views) > 1 else self._views[0]

    def cluster_status(self) -> Any:
        """One node that may drain, one that is down, and one of an earlier version."""
        told: list[Any] = [{"leaders": {"drains": self._draining == 1}}, None, {}]
        nodes = [
            SimpleNamespace(id=node, status=own) for node, own in zip(NODES, told, strict=True)
        ]
        return SimpleNamespace(nodes=nodes)

    def balance_leaders(self, is_on: bool | None) -> None:
        """Remember it."""
        self.switched.append(is_on)

    def step_down(self, channel: str, *, target: str | None = None) -> None:
        """Remember it."""
        if channel == self._stuck:
            raise UnavailableError(f"hand-over of {channel}: no target became equal")
        self.moved.append((channel, target))


def run(monkeypatch: pytest.MonkeyPatch, client: FakeClient, *arguments: str) -> Result:
    monkeypatch.setattr(Context, "connect", lambda _: client)
    monkeypatch.setattr(rebalance, "VIEW_WAIT_S", 0.3)
    monkeypatch.setattr(rebalance, "VIEW_PAUSE_S", 0.001)
    given = global_options_first(["rebalance", "leaders", *arguments])
    return CliRunner().invoke(cli, given, standalone_mode=False)


def test_every_node_leads_its_share_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of six partitions led by n2: each goes to the first node of its placement."""
    client = FakeClient(view((2,) * 6))
    result = run(monkeypatch, client, "-o", "json")
    assert result.return_value == 0
    assert sorted(client.moved) == [
        ("orders/0", "n1"), ("orders/2", "n3"), ("orders/3", "n1"), ("orders/5", "n3"),
    ]  # fmt: skip
    shown = json.loads(result.stdout)
    assert shown["before"] == {"n1": 0, "n2": 6, "n3": 0}
    assert shown["after"] == {"n1": 2, "n2": 2, "n3": 2}
    assert {row["result"] for row in shown["moves"]} == {"moved"}
    assert "4 of 4: orders/" in result.stderr


def test_a_dry_run_moves_nothing_and_prints_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """No leader is asked for anything."""
    client = FakeClient(view((2,) * 6))
    result = run(monkeypatch, client, "--dry-run")
    assert (result.return_value, client.moved) == (0, [])
    assert result.stdout.count("planned") == 4
    assert "n2 leads 2 channels, 6 before" in result.stderr


@pytest.mark.parametrize(
    ("option", "is_on", "said"),
    [
        ("--on", True, "makes leaders even by itself"),
        ("--off", False, "leaves leaders where they are"),
        ("--as-set", None, "where rebalance.leaders of the nodes says so"),
    ],
)
def test_switch_moves_nothing_now(
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    is_on: bool | None,
    said: str,
) -> None:
    """It says what the cluster does by itself from now on; a dry run of that is refused."""
    client = FakeClient(view((2,) * 6))
    result = run(monkeypatch, client, option)
    assert (result.return_value, client.switched, client.moved) == (0, [is_on], [])
    assert said in result.stderr
    result = run(monkeypatch, client, option, "--dry-run")
    assert f"{option} moves nothing" in str(result.exception)
    assert client.switched == [is_on]


def test_a_hand_over_that_is_refused_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other channels are moved, and the exit code says that one was not."""
    client = FakeClient(view((2,) * 6), stuck="orders/0")
    result = run(monkeypatch, client)
    assert result.return_value == 4
    assert len(client.moved) == 3
    assert "no target became equal" in result.stdout
    assert "1 of 4 leaderships stayed where they were" in result.stderr
    assert "n2 leads 3 channels, 6 before" in result.stderr


@pytest.mark.parametrize("found", [{"state": "down"}, {"lag": None}, {"lag": 10_001}])
def test_nodes_that_are_down_and_replicas_far_behind_take_none(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, object]
) -> None:
    """The others share what the third node might have had."""
    client = FakeClient(view((2,) * 6, **found))  # type: ignore[arg-type]
    assert run(monkeypatch, client).return_value == 0
    assert {target for _, target in client.moved} == {"n1"}
    assert len(client.moved) == 3


@pytest.mark.parametrize(
    "early", [{"state": "unknown"}, {"lag": None}, {"leaders": (2, None, 2, 2, 2, 2)}]
)
def test_a_node_that_was_started_a_moment_ago_is_asked_until_it_knows_the_others(
    monkeypatch: pytest.MonkeyPatch, early: dict[str, Any]
) -> None:
    """By what it knows at first, n3 would lead nothing, or a channel would stay where it is."""
    client = FakeClient(view(**{"leaders": (2,) * 6} | early), view((2,) * 6))
    assert run(monkeypatch, client).return_value == 0
    assert len(client.moved) == 4
    assert {target for _, target in client.moved} == {"n1", "n3"}


def test_a_node_that_drains_gives_all_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two others share it, although all was even."""
    client = FakeClient(view((1, 2, 3, 1, 2, 3)), draining=1)
    assert run(monkeypatch, client).return_value == 0
    assert sorted(client.moved) == [("orders/0", "n2"), ("orders/3", "n3")]


def test_where_all_is_even_nothing_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, no table."""
    client = FakeClient(view((1, 2, 3)))
    result = run(monkeypatch, client)
    assert (result.return_value, client.moved, result.stdout) == (0, [], "")
    assert "nothing to move" in result.stderr


def test_it_takes_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input is refused before anything is asked."""
    result = run(monkeypatch, FakeClient(view((2,) * 6)), "orders")
    assert isinstance(result.exception, click.UsageError)
    assert "orders" in str(result.exception)


@pytest.mark.parametrize(
    ("leaders", "told", "warning"),
    [
        ((2,) * 6, {"is_on": False, "balancing_ms": None}, "rebalance.leaders is off"),
        ((1, 2, 3), {"is_on": False, "balancing_ms": None}, ""),
        ((2,) * 6, {"is_on": True, "balancing_ms": None}, ""),
        ((2,) * 6, {"is_on": True, "balancing_ms": UNEVEN_MS_MAX}, ""),
        ((2,) * 6, {"is_on": True, "balancing_ms": 73_000}, "uneven for 73 s"),
    ],
)
def test_check_cluster_warns_when_leaders_stay_uneven(
    leaders: tuple[int, ...], told: dict[str, object], warning: str
) -> None:
    """By the report of the node that plans; for a moment after a restart all is well."""
    planner: Any = SimpleNamespace(status={"metadata": {"role": "leader"}, "leaders": told})
    follower: Any = SimpleNamespace(
        status={"metadata": {"role": "follower"}, "leaders": {"is_on": True, "balancing_ms": 9**9}}
    )
    older: Any = SimpleNamespace(status={"metadata": {"role": "leader"}})
    down: Any = SimpleNamespace(status=None)
    found = uneven_leaders(view(leaders), [down, older, follower, planner])
    assert [warning in text for text in found] == ([True] if warning else [])


def test_check_cluster_has_the_most_and_the_fewest_leaders_as_numbers() -> None:
    """A node that is down leads none, and is not counted."""
    numbers = judge_cluster(view((1, 1, 1, 2, 3, 2), state="down")).numbers
    assert (numbers["leads_most"], numbers["leads_least"]) == (3, 2)


def test_check_cluster_warns_of_replicas_in_one_failure_domain_while_another_is_free() -> None:
    """Partitions with replicas on n1 and n2 alone; n3 could have one of them."""
    found = view((1, 2, 1))
    two = [
        msgspec.structs.replace(
            each, replicas=tuple(r for r in each.replicas if r.node != NODES[2])
        )
        for each in found.channels
    ]
    nodes = [msgspec.structs.replace(each, failure_domain="a") for each in found.nodes]
    free = msgspec.structs.replace(nodes[2], failure_domain="b")
    for third, count in (
        (free, 3),
        (nodes[2], 0),
        (msgspec.structs.replace(free, state="down"), 0),
        (msgspec.structs.replace(free, is_draining=True), 0),
    ):
        known = msgspec.structs.replace(
            found, channels=tuple(two), nodes=(nodes[0], nodes[1], third)
        )
        verdict = judge_cluster(known)
        assert verdict.numbers["crowded"] == count
        warned = [text for text in verdict.warnings if "failure domain" in text]
        assert len(warned) == (1 if count else 0)
    known = msgspec.structs.replace(found, channels=tuple(two), nodes=(nodes[0], nodes[1], free))
    [text] = judge_cluster(known).warnings
    assert text.startswith("3 partitions, such as orders/0, have two replicas in failure domain a")
