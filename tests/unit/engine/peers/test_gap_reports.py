"""Gaps are reported while there are any, and once when there are none any more (NATS-207)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftstore.engine.peers.gap_reports import GapReports, SeenGap, gaps_of
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.node import Hole
from raftstore.protocol.payload_repair import GAPS_MAX, ChannelGaps, GapReport
from raftstore.types import NodeId, Seq, Term, channel_id

PEER, OLD = NodeId("n2"), NodeId("n3")
HERE, THERE, GONE = (channel_id(b"t" * 16, number) for number in range(3))
Gap = tuple[Seq, Seq]


class Bench:
    """A node with one channel; one of its peers knows gap reports."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, Any]] = []
        self.clock = SimpleNamespace(now_ms=1_000)
        self.gaps: tuple[Gap, ...] = ()
        core = SimpleNamespace(gaps=lambda: (Seq(20), self.gaps), base=EMPTY_BASE)
        self.runner: Any = SimpleNamespace(channel=HERE, core=core, hole=None)
        parts: Any = SimpleNamespace(
            clock=self.clock,
            outbox=SimpleNamespace(send_known=lambda *of: self.sent.append(of)),
            nodes_at_level=lambda level: (PEER,) if level == 6 else (PEER, OLD),
            exists=lambda channel: channel in {HERE, THERE},
        )
        self.reports = GapReports(parts)

    def missing(self, *gaps: tuple[int, int]) -> None:
        """The replica here misses this from now on."""
        self.gaps = tuple((Seq(first), Seq(last)) for first, last in gaps)
        self.reports.look(self.runner)

    def report(self, counter: int = 1) -> list[Any]:
        """Messages to both peers."""
        self.sent.clear()
        for node in (PEER, OLD):
            self.reports.report(node, counter)
        return list(self.sent)


def gaps(channel: Any, *missing: tuple[int, int], end: int = 20) -> ChannelGaps:
    """The report of one channel."""
    held = tuple((Seq(first), Seq(last)) for first, last in missing)
    return ChannelGaps(channel, Seq(1), Seq(end), held)


def test_nothing_is_told_while_nothing_is_missing() -> None:
    """A calm cluster pays nothing for it."""
    bench = Bench()
    bench.missing()
    assert bench.report() == []


def test_gaps_are_told_to_who_knows_them_and_their_end_once() -> None:
    """A node of level 5 gets nothing: it ends the control connection that brings it a report."""
    bench = Bench()
    bench.missing((3, 4))
    assert bench.report(7) == [(PEER, GapReport(7, (gaps(HERE, (3, 4)),)))]
    assert len(bench.report(8)) == 1
    bench.missing()
    assert bench.report(9) == [(PEER, GapReport(9, ()))]
    assert bench.report(10) == []


def test_gaps_have_the_age_since_they_were_seen() -> None:
    """NATS-214: first seen; what is seen for the first time now has no age yet."""
    bench = Bench()
    bench.missing((3, 4))
    bench.clock.now_ms = 1_500
    bench.missing((4, 4), (9, 9))
    bench.clock.now_ms = 1_700
    bench.gaps += ((Seq(12), Seq(12)),)
    assert bench.reports.seen(bench.runner) == [
        SeenGap(Seq(4), Seq(4), 700),
        SeenGap(Seq(9), Seq(9), 200),
        SeenGap(Seq(12), Seq(12), 0),
    ]


def test_each_report_replaces_the_one_before() -> None:
    """Of what is not named nothing is missing; no report makes a channel known (S0.8)."""
    bench = Bench()
    report = GapReport(1, (gaps(HERE, (3, 3)), gaps(THERE, (5, 6)), gaps(GONE, (1, 1))))
    bench.reports.on_report(PEER, report)
    assert bench.reports.of(THERE) == {PEER: gaps(THERE, (5, 6))}
    assert bench.reports.of(GONE) == {}
    bench.reports.on_report(OLD, GapReport(1, (gaps(HERE, (4, 4)),)))
    bench.reports.on_report(PEER, GapReport(2, ()))
    assert bench.reports.of(THERE) == {}
    assert bench.reports.of(HERE) == {OLD: gaps(HERE, (4, 4))}


def test_nothing_is_kept_of_a_node_that_left() -> None:
    """Neither its gaps, nor that the end of those here is to be reported to it."""
    bench = Bench()
    bench.missing((3, 4))
    bench.report()
    bench.reports.on_report(PEER, GapReport(1, (gaps(HERE, (3, 3)),)))
    bench.reports.on_report(OLD, GapReport(1, (gaps(HERE, (4, 4)),)))
    bench.reports.node_left(PEER)
    assert bench.reports.of(HERE) == {OLD: gaps(HERE, (4, 4))}
    bench.missing()
    assert bench.report() == []


def test_dropped_channel_is_forgotten() -> None:
    """Its table is gone."""
    bench = Bench()
    bench.missing((3, 4))
    bench.reports.on_report(PEER, GapReport(1, (gaps(HERE, (3, 3)),)))
    bench.reports.forget(HERE)
    assert bench.reports.of(HERE) == {}
    assert bench.report() == []


def test_hole_of_a_log_is_a_gap() -> None:
    """S0.3: records that damage took are missing, too; at most sixteen gaps are reported."""
    bench = Bench()
    bench.runner.hole = Hole(Seq(30), Seq(33), Term(1), ())
    bench.gaps = tuple((Seq(at), Seq(at)) for at in range(40, 40 + GAPS_MAX))
    found = gaps_of(bench.runner)
    assert found.gaps[0] == (30, 33)
    assert (len(found.gaps), found.first_seq, found.end_seq) == (GAPS_MAX, 1, 33)
