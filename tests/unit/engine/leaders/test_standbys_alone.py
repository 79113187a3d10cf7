"""Standbys of a leader by themselves: reports, nodes that fall silent, and what is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import IssSettings
from raftstore.engine.leaders.standbys import LOOK_MS, REPORTS_MISSED_MAX, Standbys
from raftstore.policy.standbys import CATCHES_UP, SILENT
from raftstore.protocol.node import InSync
from raftstore.types import (
    FOUNDING_NUMBER,
    ChannelConfig,
    MemberRole,
    NodeId,
    ReplicaNumber,
    Role,
    Seq,
    channel_id,
)

ME, B, C, W = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("w")
CHANNEL, METADATA = channel_id(b"t" * 16, 0), channel_id(b"m" * 16, 0)
CONFIG = ChannelConfig(((ME, B, C, W),), roles={W: MemberRole.WITNESS})
REPORT_MS = 500
MAX_LAG = 5


class Bench:
    """A leader of a channel whose followers keep up; the end of its log is at 100."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.up = {B, C, W}
        self.age_ms: dict[NodeId, int | None] = dict.fromkeys((B, C, W), 0)
        self.late: set[NodeId] = set()
        self.told: list[dict[str, Any]] = []
        self.touched = 0
        core: Any = SimpleNamespace(
            last_seq=Seq(100),
            commit_seq=Seq(100),
            leader_is_ready=True,
            progress=lambda: {
                node: SimpleNamespace(keeps_up=lambda _, node=node: node not in self.late)
                for node in (B, C, W)
            },
        )
        self.runner: Any = SimpleNamespace(
            me=ME, channel=CHANNEL, name="t/0", core=core, config=lambda: CONFIG,
            elector=SimpleNamespace(role=Role.LEADER),
        )  # fmt: skip
        self.channels = {CHANNEL: self.runner}
        settings = SimpleNamespace(lag=SimpleNamespace(report_interval_ms=REPORT_MS))
        reports = SimpleNamespace(updated_ms_ago=self._updated_ms_ago)
        parts: Any = SimpleNamespace(
            node=SimpleNamespace(
                active=SimpleNamespace(touch=self._touch),
                clock=self,
                settings=settings,
                tell=lambda name, **about: self.told.append({"name": name, **about}),
            ),
            channels=self.channels,
            watch=SimpleNamespace(
                peers=(B, C, W), is_up=lambda node: node in self.up, reports=reports
            ),
            controller=SimpleNamespace(metadata_channel=METADATA),
        )
        self.standbys = Standbys(parts, IssSettings(MAX_LAG))
        self.standbys.leader_changed(self.runner, None, self.now_ms)

    def _updated_ms_ago(self, node: NodeId, now_ms: int) -> int | None:
        assert now_ms == self.now_ms
        return self.age_ms[node]

    def _touch(self, channel: Any) -> None:
        assert channel == CHANNEL
        self.touched += 1

    def report(self, node: NodeId, applied: int, number: ReplicaNumber = FOUNDING_NUMBER) -> None:
        """A lag report of the node."""
        position: Any = SimpleNamespace(replica=number, applied_seq=Seq(applied))
        self.standbys.on_position(self.runner, node, position)

    def look(self) -> list[dict[str, Any]]:
        """The next look; events since the last one."""
        self.now_ms += LOOK_MS
        self.standbys.on_timer(self.now_ms)
        found = self.told.copy()
        self.told.clear()
        return found

    def iss(self) -> tuple[NodeId, ...]:
        """Standbys in sync."""
        known = self.standbys.in_sync(self.runner)
        return () if known is None else known.standbys


def test_fip_17_entries_and_exits_are_counted_and_one_event_of_a_look() -> None:
    """A witness is none, though its log is in sync; another life of a replica says nothing."""
    bench = Bench()
    assert bench.standbys.status() == {"hot_standbys": 2, "in_sync": 0, "entered": 0, "left": 0}
    for node in (B, C, W):
        bench.report(node, 100)
    bench.report(B, 1, ReplicaNumber(7))
    assert bench.standbys.in_sync(bench.runner) == InSync((B, C, W), 2)
    assert bench.standbys.status() == {"hot_standbys": 2, "in_sync": 2, "entered": 2, "left": 0}
    assert bench.look() == [
        {"name": "iss_changed", "entered": 2, "left": 0, "first": "t/0 b entered; t/0 c entered"}
    ]
    bench.late.add(B)
    bench.up.discard(W)
    assert bench.standbys.in_sync(bench.runner) == InSync((C,), 1)
    bench.late.clear()
    bench.up.add(W)
    bench.report(C, 100 - MAX_LAG - 1)
    assert bench.standbys.why_not_in_sync(bench.runner, C) == "it has 6 rows to apply"
    assert bench.standbys.why_not_in_sync(bench.runner, B) == ""
    assert bench.standbys.status() == {"hot_standbys": 2, "in_sync": 1, "entered": 2, "left": 1}
    assert [(each["entered"], each["left"]) for each in bench.look()] == [(0, 1)]
    assert bench.look() == []
    assert bench.touched == 3


@pytest.mark.parametrize("how", ["down", "silent", "unheard"])
def test_fip_18_node_that_fell_silent_is_out_at_the_next_look(how: str) -> None:
    """One that is up may be silent all the same; it comes back by its next report."""
    bench = Bench()
    bench.report(B, 100)
    bench.look()
    allowed_ms = REPORTS_MISSED_MAX * REPORT_MS + LOOK_MS
    bench.age_ms[B] = allowed_ms
    assert (bench.look(), bench.iss()) == ([], (B,))
    if how == "down":
        bench.up.discard(B)
    bench.age_ms[B] = {"down": 0, "silent": allowed_ms + 1, "unheard": None}[how]
    [event] = bench.look()
    assert (event["left"], event["first"]) == (1, f"t/0 b left: {SILENT}")
    assert (bench.iss(), bench.standbys.why_not_in_sync(bench.runner, B)) == ((), SILENT)
    bench.up.add(B)
    bench.age_ms[B] = 0
    bench.report(B, 100)
    assert bench.iss() == (B,)


def test_fip_17_replica_that_catches_up_is_not_in_sync_whatever_it_has_applied() -> None:
    """It is judged again only when something was written or applied since."""
    bench = Bench()
    bench.late.add(B)
    bench.report(B, 100)
    assert (bench.iss(), bench.standbys.why_not_in_sync(bench.runner, B)) == ((), CATCHES_UP)
    bench.late.clear()
    bench.report(B, 100)
    assert bench.iss() == (B,)
    bench.late.add(B)
    bench.report(B, 100)
    assert bench.standbys.left_total == 0
    bench.runner.core.last_seq = Seq(101)
    bench.report(B, 100)
    assert bench.standbys.left_total == 1


def test_leader_that_has_committed_nothing_in_its_term_or_leads_no_more_knows_no_standbys() -> None:
    """Another term begins anew; a closed channel is forgotten."""
    bench = Bench()
    bench.report(B, 100)
    bench.runner.core.leader_is_ready = False
    assert bench.standbys.in_sync(bench.runner) is None
    assert bench.standbys.counts() == {"hot_standbys": 2, "in_sync": 0}
    bench.runner.core.leader_is_ready = True
    bench.standbys.leader_changed(bench.runner, None, bench.now_ms)
    assert bench.iss() == ()
    bench.report(B, 100)
    bench.channels.clear()
    bench.look()
    assert bench.standbys.in_sync(bench.runner) is None
    assert not bench.standbys.deadlines or bench.look() == []
    assert len(bench.standbys.deadlines) == 0
    bench = Bench()
    bench.runner.elector.role = Role.FOLLOWER
    bench.standbys.leader_changed(bench.runner, None, bench.now_ms)
    bench.report(B, 100)
    assert bench.standbys.in_sync(bench.runner) is None
