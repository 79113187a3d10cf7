"""Committed configurations that leaders report until the catalog holds them (M21, M22)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.core.configs import ConfigEntry
from raftstore.core.effects import ConfigCommitted
from raftstore.engine.catalog.config_reports import LOOK_AGAIN_MS, ConfigReports
from raftstore.engine.deadlines import NEVER_MS, Deadlines
from raftstore.protocol.message import Message
from raftstore.protocol.node import ConfigReport, LeadershipRequest
from raftstore.state_machines.catalog_replicas import ReportConfig, report_config_command
from raftstore.types import ChannelConfig, ChannelId, NodeId, Role, Seq, Term, channel_id

ME, OTHER = NodeId("n1@00"), NodeId("n2@00")
METADATA, CHANNEL = channel_id(b"m" * 16, 0), channel_id(b"t" * 16, 0)
CONFIG = ChannelConfig(((ME, OTHER),), change=9, ended=True)
REPORT = ConfigReport(CHANNEL, Term(4), Seq(20), Term(3), CONFIG)
WRITTEN = report_config_command(ReportConfig(CHANNEL, "t", Seq(20), Term(3), CONFIG))


WAIT_MS = 500


class Bench:
    """A node that leads a channel, with a copy of the catalog that the test writes."""

    def __init__(self, catalog_leader: NodeId | None = OTHER) -> None:
        self.sent: list[tuple[NodeId, Message]] = []
        self.written: list[bytes] = []
        self.done: list[Callable[[Any, int], None]] = []
        self.known: dict[ChannelId, Any] = {}
        self.catalog = SimpleNamespace(
            table_of=lambda channel: SimpleNamespace(name="t") if channel == CHANNEL else None,
            changes=self.known,
        )
        self.levels = {OTHER: 6}
        self.behind: tuple[NodeId, ...] = ()
        self.down: tuple[NodeId, ...] = ()
        role = Role.LEADER if catalog_leader == ME else Role.FOLLOWER
        self.metadata = SimpleNamespace(
            channel=METADATA,
            elector=SimpleNamespace(role=role, leader=catalog_leader),
            core=SimpleNamespace(leader_is_ready=True),
        )
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            me=ME,
            elector=SimpleNamespace(role=Role.LEADER, term=Term(4)),
            core=SimpleNamespace(
                committed_config=lambda: ConfigEntry(Seq(20), Term(3), CONFIG),
                voters_behind=lambda seq: self.behind if seq == 20 else (),
            ),
        )
        self.proposals: Any = self
        self.channels: dict[ChannelId, Any] = {CHANNEL: self.runner}
        me: Any = self
        self.deadlines: Deadlines[int] = Deadlines()
        self.reports = ConfigReports(
            me,
            self.channels,
            me,
            self._nodes_at_level,
            lambda node: node not in self.down,
            wait_ms=WAIT_MS,
            deadlines=self.deadlines,
        )

    def _nodes_at_level(self, level: int) -> tuple[NodeId, ...]:
        return tuple(node for node, own in self.levels.items() if own >= level)

    def send_known(self, to: NodeId, message: Message) -> None:
        """Note what leaves."""
        self.sent.append((to, message))

    def refusal_of_format(self, number: int) -> None:
        """Every node reads it."""
        assert number == 5

    def propose(self, runner: Any, payload: bytes, done: Any, now_ms: int, **how: Any) -> None:
        """Note what is written into the catalog."""
        assert (runner, now_ms, how) == (self.metadata, 7, {"refusal": None})
        self.written.append(payload)
        self.done.append(done)

    def committed(self, config: ChannelConfig = CONFIG) -> None:
        """The log of the channel has a committed configuration."""
        self.reports.on_committed(self.runner, ConfigCommitted(Seq(20), Term(3), config))

    def report(self, now_ms: int = 7) -> list[tuple[NodeId, Message]]:
        """All that is sent by one look."""
        del self.sent[:]
        self.reports.report(now_ms)
        return self.sent


def test_m22_leader_reports_until_the_catalog_holds_it() -> None:
    """Nothing is remembered: a report that is lost is made again, one that applied is not."""
    bench = Bench()
    assert bench.report() == []
    bench.committed()
    assert bench.report() == [(OTHER, REPORT)]
    assert bench.report() == [(OTHER, REPORT)]
    bench.known[CHANNEL] = SimpleNamespace(config_seq=Seq(19))
    assert bench.report() == [(OTHER, REPORT)]
    bench.known[CHANNEL] = SimpleNamespace(config_seq=Seq(20))
    assert bench.report() == []


def test_m12_report_waits_for_live_voters_that_are_behind() -> None:
    """A former replica goes by it: until the others have the change it is one copy more. Not for
    ever, not for voters that are down, and a later change begins anew."""
    bench = Bench()
    bench.committed()
    bench.behind = (OTHER,)
    assert bench.report(100) == []
    assert bench.report(100 + WAIT_MS - 1) == []
    assert bench.report(100 + WAIT_MS) == [(OTHER, REPORT)]
    later = Bench()
    later.committed()
    later.behind = (OTHER,)
    assert later.report() == []
    later.behind = ()
    assert later.report() == [(OTHER, REPORT)]
    absent = Bench()
    absent.committed()
    absent.behind = absent.down = (OTHER,)
    assert absent.report() == [(OTHER, REPORT)]


def test_m21_change_that_ended_is_reported_at_once() -> None:
    """The replica that leaves, and the next of many moves, wait for that; the steps in between are
    reported with the next regular look."""
    bench = Bench()
    bench.committed(ChannelConfig(((ME, OTHER),), change=9))
    assert bench.deadlines.next_ms == NEVER_MS
    bench.reports.on_timer(7)
    assert bench.sent == []
    bench.committed()
    assert bench.deadlines.next_ms == 0
    bench.behind = (OTHER,)
    bench.reports.on_timer(7)
    assert bench.sent == []
    assert bench.deadlines.next_ms == 7 + LOOK_AGAIN_MS
    bench.behind = ()
    bench.reports.on_timer(7 + LOOK_AGAIN_MS)
    assert bench.sent == [(OTHER, REPORT)]
    assert bench.deadlines.next_ms == NEVER_MS
    bench.reports.on_timer(100)
    assert bench.sent == [(OTHER, REPORT)]


@pytest.mark.parametrize("why", ["follower", "closed", "no leader", "older leader", "metadata"])
def test_nothing_is_reported_where_nobody_asks_for_it_or_takes_it(why: str) -> None:
    """S8: only the leader speaks for its channel, and only to a node that reads it."""
    bench = Bench(None if why == "no leader" else OTHER)
    if why == "metadata":
        bench.runner.channel = METADATA
    bench.committed()
    if why == "follower":
        bench.runner.elector.role = Role.FOLLOWER
    elif why == "closed":
        bench.reports.on_closed(bench.runner)
    elif why == "older leader":
        bench.levels[OTHER] = 5
    assert bench.report() == []


def test_leader_of_the_catalog_writes_each_report_once_at_a_time() -> None:
    """Its own and those of others; again when the outcome of the first is known."""
    bench = Bench(ME)
    bench.committed()
    assert bench.report() == []
    assert bench.written == [WRITTEN]
    assert bench.reports.on_message(REPORT, 7)
    assert bench.written == [WRITTEN]
    bench.done[0](None, 8)
    assert bench.reports.on_message(REPORT, 7)
    assert bench.written == [WRITTEN] * 2
    bench.done[1](None, 8)
    bench.known[CHANNEL] = SimpleNamespace(config_seq=Seq(20))
    assert bench.reports.on_message(REPORT, 7)
    assert bench.written == [WRITTEN] * 2
    assert not bench.reports.on_message(LeadershipRequest(), 7)


def test_report_is_dropped_by_a_node_that_cannot_write_it() -> None:
    """It is made again, to the one that leads then; a table that was dropped has no replicas."""
    for ready in (True, False):
        bench = Bench(ME if not ready else OTHER)
        bench.metadata.core.leader_is_ready = ready
        assert bench.reports.on_message(REPORT, 7)
        assert bench.written == []
    bench = Bench(ME)
    gone = ConfigReport(channel_id(b"o" * 16, 0), Term(4), Seq(20), Term(3), CONFIG)
    assert bench.reports.on_message(gone, 7)
    assert bench.written == []
