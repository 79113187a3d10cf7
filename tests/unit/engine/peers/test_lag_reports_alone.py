"""Positions of replicas by themselves: what is reported of this node's, and what is kept of
others'."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.config import HeartbeatSettings, LagSettings
from raftstore.core.batches import NOT_REPORTED
from raftstore.engine.peers.http_reports import HttpReports
from raftstore.engine.peers.lag_reports import (
    LATE_REPORTS_MAX,
    Committed,
    LagReports,
    LeaderHint,
)
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.node import ChannelPosition, LagReport
from raftstore.protocol.payload_repair import ChannelGaps, GapReport
from raftstore.types import ChannelConfig, ChannelId, DiskRoom, NodeId, Role, Seq, Term, channel_id

ME, PEER, THIRD, STRANGER = (NodeId(f"{name}@00") for name in ("n1", "n2", "n3", "x"))
HERE = channel_id(b"orders-table-id!", 0)
ELSEWHERE = channel_id(b"orders-table-id!", 1)
UNKNOWN = channel_id(b"another-tables-!", 0)
HTTP = "host-a:7200"


class Bench:
    """A node that hosts one channel and knows of another."""

    def __init__(self, *, enable: bool = True) -> None:
        self.sent: list[tuple[NodeId, Any]] = []
        self.moved: list[ChannelId] = []
        self.calls: list[tuple[Any, ...]] = []
        self.looks = 0
        self.room = DiskRoom.PLENTY
        self.is_leader, self.knows = False, True
        self.members: tuple[NodeId, ...] = (ME, PEER)
        self.applied = Seq(4)
        self.http = HttpReports(HeartbeatSettings())
        self.runner: Any = SimpleNamespace(
            channel=HERE,
            elector=self,
            term=Term(3),
            core=self,
            parts=SimpleNamespace(tables=self),
            hole=None,
            on_leader_position=lambda *of: self.calls.append(("leader", *of)),
            on_peer_hash=lambda *of, batches: self.calls.append(("hash", *of, batches)),
        )
        self.term, self.last_seq, self.base = Term(3), Seq(9), EMPTY_BASE
        self.number = 0
        parts: Any = SimpleNamespace(
            identity=SimpleNamespace(me=ME, http=HTTP),
            clock=SimpleNamespace(wall_ms=lambda: 77),
            outbox=SimpleNamespace(send_known=lambda *of: self.sent.append(of)),
            channels={HERE: self.runner},
            exists=lambda channel: channel in {HERE, ELSEWHERE},
            moved=self.moved.append,
            disk_room=lambda: self.room,
        )
        self.reports = LagReports(parts, LagSettings(enable=enable), self.http)

    # --- the core, the elector and the table of the channel ---------------------------------------

    @property
    def role(self) -> Role:
        """Of this node."""
        return Role.LEADER if self.is_leader else Role.FOLLOWER

    @property
    def knows_position(self) -> bool:
        """Whether a leader knows how far its term is."""
        return self.knows

    @staticmethod
    def gaps() -> tuple[Seq, tuple[tuple[Seq, Seq], ...]]:
        """The end of what is held, and what is missing in front of it."""
        return Seq(5), ()

    def chain_hash_at_commit(self) -> tuple[Seq, bytes]:
        """How far the channel is committed."""
        self.looks += 1
        return Seq(5), b"h"

    def applied_seq(self, channel: ChannelId) -> Seq:
        """How far it is applied."""
        assert channel == HERE
        return self.applied

    def tell_batches(self, seq: Seq) -> int:
        """Micro-batches up to there."""
        return 10 + seq

    def config(self) -> ChannelConfig:
        """Of two replicas, unless the test adds some."""
        return ChannelConfig((self.members,))

    # --- what the test does -----------------------------------------------------------------------

    def told(self, *to: NodeId) -> list[tuple[ChannelPosition, ...]]:
        """Positions in the reports that go to these nodes."""
        self.sent.clear()
        self.reports.report(to)
        assert [node for node, _ in self.sent] == list(to)
        return [report.positions for _, report in self.sent]

    def hear(self, *positions: ChannelPosition, sender: NodeId = PEER, counter: int = 0) -> None:
        """A report arrived at 90 and is looked at at 100."""
        self.reports.on_report(sender, LagReport(1, positions, counter, "host-b:1"), 90, 100)


def position(
    channel: ChannelId = ELSEWHERE, commit: int = 5, term: int = 3, **more: Any
) -> ChannelPosition:
    """A replica's word."""
    told = ChannelPosition(channel, Term(term), False, Seq(4), Seq(commit), Seq(9), b"h")
    return msgspec.structs.replace(told, **more)


MINE = ChannelPosition(HERE, Term(3), False, Seq(4), Seq(5), Seq(9), b"h", 15, 14)
HASHLESS = msgspec.structs.replace(MINE, commit_hash=b"")


# --- reports sent ---------------------------------------------------------------------------------


def test_report_tells_every_replica_here_with_a_number_of_its_own() -> None:
    """A report has the time, and where the HTTP interface is."""
    bench = Bench()
    for counter in (1, 2):
        assert bench.told(PEER, STRANGER) == [(MINE,), (HASHLESS,)]
        reports = [LagReport(77, (each,), counter, HTTP) for each in (MINE, HASHLESS)]
        assert bench.sent == [(PEER, reports[0]), (STRANGER, reports[1])]


def test_hash_of_a_history_goes_to_those_who_have_one_to_compare_it_with() -> None:
    """S13: a node that becomes a member of the channel gets it from then on."""
    bench = Bench()
    assert bench.told(STRANGER) == [(HASHLESS,)]
    bench.members = (ME, PEER, STRANGER)
    assert bench.told(STRANGER) == [(MINE,)]


def test_position_is_read_anew_only_after_something_happened() -> None:
    """A node has thousands of channels, and most of them stand still."""
    bench = Bench()
    bench.told(PEER)
    bench.applied = Seq(5)
    bench.reports.moved(UNKNOWN)
    assert bench.told(PEER) == [(MINE,)]
    assert bench.looks == 1
    bench.reports.moved(HERE)
    assert bench.told(PEER)[0][0].applied_seq == 5
    bench.applied = Seq(6)
    bench.reports.all_moved()
    assert bench.told(PEER)[0][0].applied_seq == 6
    bench.applied = Seq(7)
    bench.reports.forget(HERE)
    assert bench.told(PEER)[0][0].applied_seq == 7


def test_leader_that_does_not_know_its_position_tells_none() -> None:
    """S7.3: also when it stops knowing while nothing happens to the channel."""
    bench = Bench()
    bench.is_leader = True
    assert bench.told(PEER) == [(msgspec.structs.replace(MINE, is_leader=True),)]
    bench.told(PEER)
    assert bench.looks == 1
    bench.knows = False
    [(told,)] = bench.told(PEER)
    assert (told.commit_seq, told.commit_hash, told.commit_batches) == (0, b"", 10)
    bench.is_leader = False
    bench.reports.moved(HERE)
    assert bench.told(PEER) == [(MINE,)]
    looks = bench.looks
    assert bench.told(PEER) == [(MINE,)]
    assert bench.looks == looks


def test_without_reports_for_routing_hosts_hear_all_and_everybody_the_leaders() -> None:
    """KLIP-38, S13."""
    bench = Bench(enable=False)
    assert bench.told(PEER, STRANGER) == [(MINE,), ()]
    assert bench.sent[1] == (STRANGER, LagReport(77, (), 1, HTTP))
    bench.is_leader = True
    bench.reports.moved(HERE)
    led = msgspec.structs.replace(MINE, is_leader=True)
    hashless = msgspec.structs.replace(led, commit_hash=b"")
    assert bench.told(PEER, STRANGER) == [(led,), (hashless,)]
    assert bench.sent[0] == (PEER, LagReport(77, (led,), 2, HTTP))


# --- reports received -----------------------------------------------------------------------------


def test_position_of_a_replica_elsewhere_is_kept_and_told_on() -> None:
    """S0.8: of a channel that exists; nothing else becomes known by a report."""
    bench = Bench()
    told = position()
    bench.hear(told, position(UNKNOWN, is_leader=True))
    assert bench.reports.positions == {ELSEWHERE: {PEER: told}}
    assert bench.moved == [ELSEWHERE]
    assert (bench.calls, bench.reports.hints) == ([], {})
    assert bench.reports.http_of == {ME: HTTP, PEER: "host-b:1"}
    assert bench.reports.heard_ms == {PEER: 90}
    assert bench.reports.updated_ms_ago(PEER, 100) == 10
    assert bench.reports.updated_ms_ago(PEER, 80) == 0
    assert bench.reports.updated_ms_ago(THIRD, 100) is None


def test_room_of_a_disk_is_what_its_node_reported_last() -> None:
    """GAP-13: of this node what it says now, of one that never reported that it has room."""
    bench = Bench()
    bench.room = DiskRoom.CATALOG
    bench.reports.report([PEER])
    assert bench.sent[0][1].room == DiskRoom.CATALOG
    assert not bench.reports.is_disk_full
    wanted = list(DiskRoom)
    assert [bench.reports.has_room(ME, each) for each in wanted] == [False, False, True, True]
    assert all(bench.reports.has_room(PEER, each) for each in wanted)
    bench.reports.on_report(PEER, LagReport(1, (), 1, "", DiskRoom.RECORDS), 90, 100)
    assert [bench.reports.has_room(PEER, each) for each in wanted] == [False, True, True, True]
    assert bench.reports.is_disk_full
    bench.reports.on_report(PEER, LagReport(1, (), 2, ""), 91, 101)
    assert all(bench.reports.has_room(PEER, each) for each in wanted)
    assert not bench.reports.is_disk_full
    bench.reports.on_report(PEER, LagReport(1, (), 3, "", 99), 92, 102)
    assert not bench.reports.has_room(PEER, DiskRoom.NOTHING), "less than anything known here"
    bench.reports.forget_node(PEER)
    assert not bench.reports.is_disk_full


def test_nothing_is_kept_of_a_node_that_left() -> None:
    """Neither positions nor what it gave away: nobody asks it to take that back."""
    bench = Bench()
    kept: list[tuple[Any, ...]] = []
    bench.reports.on_given_away = lambda *of: kept.append(of)
    given = ((ELSEWHERE, 50),)
    bench.reports.on_report(PEER, LagReport(1, (position(),), 1, "", given_away=given), 90, 100)
    bench.reports.gaps.on_report(PEER, GapReport(1, (ChannelGaps(HERE, Seq(1), Seq(2), ()),)))
    bench.reports.forget_node(PEER)
    assert kept == [(PEER, given, 90), (PEER, (), 0)]
    assert bench.reports.positions == {ELSEWHERE: {}}
    assert bench.reports.gaps.of(HERE) == {}
    assert PEER not in {**bench.reports.heard_ms, **bench.reports.http_of}


def test_position_that_says_what_is_known_moves_nothing() -> None:
    """Views of an idle cluster are not built anew with every report."""
    bench = Bench()
    bench.hear(position())
    bench.hear(position())
    assert bench.moved == [ELSEWHERE]
    bench.hear(position(), sender=THIRD)
    bench.hear(position(commit=6))
    assert bench.moved == [ELSEWHERE] * 3


def test_word_of_the_node_itself_ends_what_was_said_of_it_before() -> None:
    """This holds if it repeats what was known, too; what was said since it was sent stays."""
    bench = Bench()
    bench.hear(position())
    bench.http.on_positions(PEER, [(ELSEWHERE, Seq(1), Seq(2))], 90)
    bench.hear(position())
    assert bench.http.position(ELSEWHERE, PEER) is None
    assert bench.moved == [ELSEWHERE] * 2
    bench.http.on_positions(PEER, [(ELSEWHERE, Seq(1), Seq(2))], 91)
    bench.hear(position())
    assert bench.http.position(ELSEWHERE, PEER) is not None
    assert bench.moved == [ELSEWHERE] * 2


def test_channel_here_compares_hashes_and_hears_its_leader() -> None:
    """S13; S7.3: the leader's word counts from its arrival, and only if it knows its position."""
    bench = Bench()
    bench.hear(position(HERE, commit_batches=6))
    hashed = ("hash", PEER, 5, b"h", 100, 6)
    assert bench.calls == [hashed]
    bench.hear(position(HERE, is_leader=True, commit_batches=6))
    assert bench.calls[1:] == [("leader", PEER, 3, 90, 100), hashed]
    bench.hear(position(HERE, commit=0, is_leader=True))
    assert [name for name, *_ in bench.calls[3:]] == ["hash"]
    assert bench.moved == [HERE] * 3
    assert bench.reports.hints == {}


def test_report_goes_on_behind_a_channel_that_is_not_here() -> None:
    """In any order."""
    bench = Bench()
    bench.hear(position(UNKNOWN), position(), position(HERE))
    assert bench.moved == [ELSEWHERE, HERE]
    assert len(bench.calls) == 1


def test_hint_is_of_the_newest_term_and_of_the_channels_elsewhere() -> None:
    """S7.4: a leader that was deposed, and does not know it yet, is no hint."""
    bench = Bench()
    bench.hear(position(is_leader=True, term=4))
    assert bench.reports.hints == {ELSEWHERE: LeaderHint(PEER, Term(4))}
    bench.hear(position(is_leader=True, term=3), sender=THIRD)
    bench.hear(position(term=5), sender=THIRD)
    assert bench.reports.hints == {ELSEWHERE: LeaderHint(PEER, Term(4))}
    bench.hear(position(is_leader=True, term=4), sender=THIRD)
    assert bench.reports.hints == {ELSEWHERE: LeaderHint(THIRD, Term(4))}


def test_late_or_repeated_report_says_nothing() -> None:
    """S12: up to so many numbers; one older still is of a sender that was started again."""
    bench = Bench()
    newest = 2 * LATE_REPORTS_MAX
    bench.hear(position(), counter=newest)
    for late in (newest, newest - 1, newest - LATE_REPORTS_MAX + 1):
        bench.hear(position(commit=8), counter=late)
    assert bench.reports.committed(ELSEWHERE).seq == 5
    bench.hear(position(commit=6), counter=newest + 1)
    assert bench.reports.committed(ELSEWHERE).seq == 6
    bench.hear(position(commit=7), counter=newest + 1 - LATE_REPORTS_MAX)
    assert bench.reports.committed(ELSEWHERE).seq == 7
    bench.hear(position(commit=8), counter=newest + 1 - LATE_REPORTS_MAX)
    assert bench.reports.committed(ELSEWHERE).seq == 7
    bench.hear(position(commit=9), counter=1, sender=THIRD)
    assert bench.reports.committed(ELSEWHERE).seq == 9


def test_sender_that_is_known_to_be_started_again_counts_anew() -> None:
    """Its numbers may look late meanwhile; a report without numbers is never late."""
    bench = Bench()
    bench.hear(position(), counter=3)
    bench.reports.restarted(PEER)
    bench.reports.restarted(THIRD)
    bench.hear(position(commit=6), counter=1)
    assert bench.reports.committed(ELSEWHERE).seq == 6
    bench.hear(position(commit=7))
    bench.hear(position(commit=8))
    assert bench.reports.committed(ELSEWHERE).seq == 8


# --- what is known --------------------------------------------------------------------------------


def test_furthest_commit_stays_known() -> None:
    """KLIP-36: a replica that knows less takes nothing back; of one seq, counted batches win."""
    bench = Bench()
    assert bench.reports.committed(ELSEWHERE) == Committed(Seq(0), NOT_REPORTED)
    bench.hear(position(commit=6))
    bench.hear(position(commit=5, commit_batches=3))
    assert bench.reports.committed(ELSEWHERE) == Committed(Seq(6), NOT_REPORTED)
    bench.hear(position(commit=6, commit_batches=4), sender=THIRD)
    assert bench.reports.committed(ELSEWHERE) == Committed(Seq(6), 4)
    assert bench.reports.positions[ELSEWHERE][PEER].commit_seq == 5


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_dropped_table_leaves_nothing(is_forgotten: bool) -> None:
    """Neither positions nor hints nor what was committed; others stay."""
    bench = Bench()
    bench.hear(position(is_leader=True), position(HERE))
    bench.reports.hints[UNKNOWN] = LeaderHint(PEER, Term(1))
    if is_forgotten:
        for channel in (ELSEWHERE, UNKNOWN):
            bench.reports.forget(channel)
    else:
        bench.reports.forget_unless(lambda channel: channel == HERE)
    assert set(bench.reports.positions) == {HERE}
    assert bench.reports.hints == {}
    assert bench.reports.committed(ELSEWHERE).seq == 0
    assert bench.reports.committed(HERE).seq == 5


def test_leader_of_the_highest_term_is_the_one_that_tells() -> None:
    """S7.3: none does while that one does not know its position."""
    bench = Bench()
    assert bench.reports.reporting_leader(ELSEWHERE) is None
    bench.hear(position(is_leader=True, term=4))
    assert bench.reports.reporting_leader(ELSEWHERE) == PEER
    bench.hear(position(is_leader=True, term=3), sender=THIRD)
    bench.hear(position(term=6), sender=STRANGER)
    assert bench.reports.reporting_leader(ELSEWHERE) == PEER
    bench.hear(position(is_leader=True, term=5, commit=0), sender=THIRD)
    assert bench.reports.reporting_leader(ELSEWHERE) is None
    bench.hear(position(is_leader=True, term=5), sender=THIRD)
    assert bench.reports.reporting_leader(ELSEWHERE) == THIRD
