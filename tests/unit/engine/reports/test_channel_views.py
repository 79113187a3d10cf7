"""One channel as a node sees it, field by field: what is known, and what is unknown (S7.3).

The node is made of plain values, reports are kept by production code. That a kept view follows all
that happens in a cluster is tested in ``test_kept_channels.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftstore.config import HeartbeatSettings, LagSettings
from raftstore.core.progress import ProgressView
from raftstore.engine.peers.http_reports import HttpReports
from raftstore.engine.peers.lag_reports import LagReports
from raftstore.engine.reports.channel_views import ChannelViewCache, PlacedChannel, _Found, _hint
from raftstore.policy.channel_record import ChannelRecord
from raftstore.protocol.admin import ChannelSync, ChannelView, ReplicaHint
from raftstore.protocol.node import ChannelPosition, InSync
from raftstore.types import ChannelConfig, ChannelId, NodeId, Role, Seq, Term
from tests.storage_helpers import CHANNEL

ME, SECOND, THIRD = NodeId("n1"), NodeId("n2"), NodeId("n3")
NOW = 10_000
AGE_MAX_MS = 3_000


@dataclass
class Core:
    """A replica here, committed up to 100; a micro-batch ends with every tenth seq."""

    commit_seq: Seq = Seq(100)
    knows_position: bool = True
    is_trusting: bool = True
    is_disputed: bool = False
    is_recovering: bool = False
    doubt: str = ""
    fresh: dict[int, int] = field(default_factory=dict)
    acked: dict[NodeId, ProgressView] = field(default_factory=dict)

    def progress(self) -> dict[NodeId, ProgressView]:
        """Acknowledgements of the followers."""
        return self.acked

    def fresh_as_of(self, applied: Seq) -> int | None:
        """When a state applied so far was complete."""
        return self.fresh.get(applied)

    def tell_batches(self, seq: Seq) -> int:
        """Batches up to a seq."""
        return seq // 10

    def batches_between(self, applied: Seq, known_commit: Seq) -> tuple[int, int] | None:
        """Fewest and most; what is not committed here cannot be counted, nor what is long ago."""
        assert applied <= self.commit_seq
        return None if applied < 10 else (0, known_commit // 10 - applied // 10)


class World:
    """A node and what it knows of a channel that it hosts, or of one that lives elsewhere."""

    def __init__(self, *, role: Role | None = None, leader: NodeId | None = None) -> None:
        self.applied = Seq(100)
        self.known_commit = Seq(100)
        self.core = Core()
        self.runner: Any = SimpleNamespace(
            name="t/5",
            stopped_reason=None,
            table_damage=None,
            has_rows=True,
            unserved_until=0,
            core=self.core,
            elector=SimpleNamespace(role=role, leader=leader, term=Term(4)),
            leader_info_heard_ms=None,
            config=lambda: ChannelConfig(((ME, SECOND, THIRD),)),
        )
        self.record: ChannelRecord | None = None
        self.hint: tuple[NodeId | None, Term] = (SECOND, Term(3))
        self.http_reports = HttpReports(HeartbeatSettings())
        parts: Any = SimpleNamespace(identity=SimpleNamespace(me=ME, http=""))
        self.reports = LagReports(parts, LagSettings(), self.http_reports)
        node = SimpleNamespace(
            me=ME,
            settings=SimpleNamespace(read=SimpleNamespace(leader_info_age_max_ms=AGE_MAX_MS)),
            tables=SimpleNamespace(applied_seq=self._applied_seq),
            controller=SimpleNamespace(
                leader_of=lambda channel: self.hint, catalog=SimpleNamespace(changes={})
            ),
            leaders=SimpleNamespace(
                standbys=SimpleNamespace(record=lambda runner: self.record),
            ),
            watch=SimpleNamespace(
                reports=self.reports,
                http_reports=self.http_reports,
                known_commit=lambda runner: self.known_commit,
            ),
            channels={} if role is None else {CHANNEL: self.runner},
        )
        self.cache = ChannelViewCache(cast(Any, node))
        self.cache.follow([PlacedChannel(CHANNEL, "t", 5, (ME, SECOND, THIRD))])

    def _applied_seq(self, channel: ChannelId) -> Seq:
        assert channel == CHANNEL
        return self.applied

    def report(
        self,
        node: NodeId,
        applied: int,
        *,
        commit: int = 100,
        batches: tuple[int, int] = (-1, -1),
        leads: bool = False,
        heard_ms: int = NOW - 300,
        in_sync: InSync | None = None,
    ) -> None:
        """A node says where its replica is."""
        at = Seq(applied), Seq(commit), Seq(commit)
        self.reports.heard_ms[node] = heard_ms
        position = ChannelPosition(CHANNEL, Term(3), leads, *at, b"", *batches, in_sync=in_sync)
        self.reports.keep(node, position)
        self.cache.moved(CHANNEL)

    def say(self, node: NodeId, applied: int, heard_ms: int) -> None:
        """Somebody posts where the replica of a node is."""
        self.http_reports.on_positions(node, [(CHANNEL, Seq(applied), Seq(100))], heard_ms)

    def view(self, now_ms: int = NOW) -> ChannelView:
        """The channel now."""
        [view] = self.cache.views(now_ms)
        return view

    def hint_of(self, node: NodeId, now_ms: int = NOW) -> ReplicaHint:
        """One replica now."""
        [hint] = [each for each in self.view(now_ms).replicas if each.node == node]
        return hint


def leading() -> World:
    """This node leads; the second acknowledged 80 a while ago, the third nothing in this term."""
    world = World(role=Role.LEADER, leader=ME)
    world.core.acked = {
        SECOND: ProgressView(Seq(95), Seq(80), NOW - 40, is_catching_up=False),
        THIRD: ProgressView(Seq(0), Seq(0), None, is_catching_up=True),
    }
    return world


def following() -> World:
    """The second leads, and was heard 20 ms ago."""
    world = World(role=Role.FOLLOWER, leader=SECOND)
    world.runner.leader_info_heard_ms = NOW - 20
    return world


def elsewhere() -> World:
    """The second leads a channel that this node does not host, and reported so 300 ms ago."""
    world = World()
    world.report(SECOND, 100, batches=(10, 10), leads=True)
    return world


# --- a channel that this node leads ---------------------------------------------------------------


def test_leader_tells_what_each_follower_acknowledged() -> None:
    """Ages count from the acknowledgement; of the silent one nothing is known but its role."""
    world = leading()
    world.core.fresh = {100: NOW - 7, 80: NOW - 900}
    assert world.view() == ChannelView(
        CHANNEL,
        "t",
        5,
        ME,
        Term(4),
        Seq(100),
        0,
        (
            ReplicaHint(ME, Seq(100), 0, 0, 0, "leader", 0),
            ReplicaHint(SECOND, Seq(80), 20, 900, 2, "follower", 40),
            ReplicaHint(THIRD, Seq(0), None, None, None, "follower", None),
        ),
        10,
    )


def test_leader_that_applies_late_is_behind_by_what_it_has_committed() -> None:
    """Not by what another replica reported of an end that this one has not committed itself."""
    world = leading()
    world.applied, world.known_commit = Seq(70), Seq(120)
    assert world.hint_of(ME) == ReplicaHint(ME, Seq(70), 30, None, 5, "leader", 0)


def test_leader_that_stood_still_knows_no_lag() -> None:
    """S7.3: another one may have committed since."""
    world = leading()
    world.core.knows_position = world.core.is_trusting = False
    view = world.view()
    assert (view.leader, view.leader_info_age_ms) == (ME, None)
    assert [(hint.lag, hint.batches_behind) for hint in view.replicas] == [(None, None)] * 3


def test_furthest_of_report_and_acknowledgement_counts_and_the_newest_tells_the_age() -> None:
    """Both are words of the replica itself."""
    world = leading()
    world.report(SECOND, 90, heard_ms=NOW - 300)
    assert world.hint_of(SECOND) == ReplicaHint(SECOND, Seq(90), 10, None, 1, "follower", 40)
    world.report(SECOND, 60, heard_ms=NOW - 10)
    assert world.hint_of(SECOND) == ReplicaHint(SECOND, Seq(80), 20, None, 2, "follower", 10)
    world.report(THIRD, 50, heard_ms=NOW - 300)
    assert world.hint_of(THIRD) == ReplicaHint(THIRD, Seq(50), 50, None, 5, "follower", 300)


# --- a channel that another node leads ------------------------------------------------------------


def test_follower_tells_itself_and_what_the_others_reported() -> None:
    """A replica that lacks nothing is as old as the leader's word; that of another is its report's
    age."""
    world = following()
    world.report(SECOND, 100, heard_ms=NOW - 300)
    world.report(THIRD, 75, heard_ms=NOW - 400)
    world.applied = Seq(90)
    world.core.fresh = {90: NOW - 60}
    assert world.view() == ChannelView(
        CHANNEL,
        "t",
        5,
        SECOND,
        Term(4),
        Seq(100),
        20,
        (
            ReplicaHint(ME, Seq(90), 10, 60, 1, "follower", 0),
            ReplicaHint(SECOND, Seq(100), 0, 20, 0, "leader", 300),
            ReplicaHint(THIRD, Seq(75), 25, None, 3, "follower", 400),
        ),
        10,
    )


@pytest.mark.parametrize(("age_ms", "lag"), [(AGE_MAX_MS, 0), (AGE_MAX_MS + 1, None)])
def test_leaders_word_counts_for_a_time(age_ms: int, lag: int | None) -> None:
    """S7.3: then the end of the channel is unknown, while positions are still reported."""
    world = following()
    world.report(SECOND, 100)
    world.runner.leader_info_heard_ms = NOW - age_ms
    view = world.view()
    assert view.leader_info_age_ms == age_ms
    time_lag_ms = None if lag is None else age_ms
    told = [(h.applied_seq, h.lag, h.time_lag_ms, h.batches_behind) for h in view.replicas[:2]]
    assert told == [(Seq(100), lag, time_lag_ms, lag)] * 2


def test_state_proven_by_a_round_trip_is_as_old_as_that_or_as_the_leaders_word() -> None:
    """The newer one counts, and only where nothing is lacking; no age is below 0."""
    world = following()
    for as_of_ms, time_lag_ms in ((NOW - 5, 5), (NOW - 50, 20), (NOW + 9, 0)):
        world.core.fresh = {100: as_of_ms}
        world.cache.moved(CHANNEL)
        assert world.hint_of(ME).time_lag_ms == time_lag_ms
    world.known_commit = Seq(101)
    world.core.fresh = {100: NOW - 50}
    world.cache.moved(CHANNEL)
    assert world.hint_of(ME).time_lag_ms == 50
    world.runner.leader_info_heard_ms = NOW + 8
    assert world.view().leader_info_age_ms == 0


def test_replica_that_stood_still_knows_no_end() -> None:
    """S7.3: of itself; it cannot know what was committed meanwhile."""
    world = following()
    world.core.is_trusting = False
    assert world.hint_of(ME) == ReplicaHint(ME, Seq(100), None, None, None, "follower", 0)


def test_batches_that_a_state_lacks_are_unknown_when_nobody_counted_them() -> None:
    """A state ahead of what is committed here is counted from there."""
    world = following()
    world.known_commit = Seq(130)
    world.report(SECOND, 120, commit=130, batches=(13, 12))
    world.report(THIRD, 5)
    assert (world.hint_of(SECOND).lag, world.hint_of(SECOND).batches_behind) == (10, 3)
    assert (world.hint_of(THIRD).lag, world.hint_of(THIRD).batches_behind) == (125, None)
    assert world.view().batches == 13


def test_roles_are_as_reported_while_no_leader_is_known_here() -> None:
    """Of a node that reported nothing there is none."""
    world = following()
    world.runner.elector.leader = None
    world.report(SECOND, 100, leads=True)
    assert [hint.role for hint in world.view().replicas] == ["follower", "leader", ""]
    world.report(SECOND, 100, leads=False)
    assert world.hint_of(SECOND).role == "follower"


# --- a channel that lives elsewhere ---------------------------------------------------------------


def test_channel_that_lives_elsewhere_is_known_from_reports_alone() -> None:
    """The leader's report states its end, and its age is how old that is."""
    world = elsewhere()
    world.report(THIRD, 70, batches=(8, 7), heard_ms=NOW - 400)
    assert world.view() == ChannelView(
        CHANNEL,
        "t",
        5,
        SECOND,
        Term(3),
        Seq(100),
        300,
        (
            ReplicaHint(ME, Seq(0), None, None, None, "", None),
            ReplicaHint(SECOND, Seq(100), 0, 300, 0, "leader", 300),
            ReplicaHint(THIRD, Seq(70), 30, None, 3, "follower", 400),
        ),
        10,
    )


def test_batches_of_reports_are_unknown_when_one_of_both_did_not_count_them() -> None:
    """Their number is never below 0, whichever replica knows more."""
    world = elsewhere()
    world.report(THIRD, 70, batches=(8, -1))
    assert (world.hint_of(THIRD).lag, world.hint_of(THIRD).batches_behind) == (30, None)
    world.report(THIRD, 70, batches=(8, 12))
    assert world.hint_of(THIRD).batches_behind == 0
    uncounted = World()
    uncounted.report(SECOND, 100, leads=True)
    uncounted.report(THIRD, 70, batches=(-1, 7))
    assert uncounted.hint_of(THIRD).batches_behind is None
    assert uncounted.view().batches is None


def test_replica_that_lacks_no_row_lacks_no_batch() -> None:
    """Whether anybody counted them or not, and however little is committed here."""
    world = elsewhere()
    world.report(THIRD, 100)
    assert (world.hint_of(THIRD).lag, world.hint_of(THIRD).batches_behind) == (0, 0)
    world = following()
    world.core.commit_seq = Seq(90)
    world.report(SECOND, 100)
    assert (world.hint_of(SECOND).lag, world.hint_of(SECOND).batches_behind) == (0, 0)


def test_channel_whose_leader_reported_nothing_has_no_known_end() -> None:
    """S7.3: replicas report where they are; nobody says what they lack."""
    world = World()
    world.hint = (None, Term(0))
    world.report(THIRD, 70)
    view = world.view()
    assert (view.leader, view.term, view.leader_info_age_ms) == (None, Term(0), None)
    assert view.replicas[2] == ReplicaHint(THIRD, Seq(70), None, None, None, "follower", 300)


# --- what somebody else said (KLIP-35) ------------------------------------------------------------


@pytest.mark.parametrize("made", [following, elsewhere])
def test_posted_position_counts_until_the_replica_itself_tells_a_newer_one(made: Any) -> None:
    """Its age is that of the post; at the same moment what the replica itself says counts."""
    world: World = made()
    world.report(THIRD, 70, batches=(8, 7), heard_ms=NOW - 100)
    for heard_ms, applied, told_ms_ago in (
        (NOW - 101, 70, 100),
        (NOW - 100, 70, 100),
        (NOW - 99, 90, 99),
    ):
        world.say(THIRD, 90, heard_ms)
        hint = world.hint_of(THIRD)
        assert (hint.applied_seq, hint.update_ms_ago) == (Seq(applied), told_ms_ago)
        assert (hint.lag, hint.role) == (100 - applied, "follower")
    assert world.hint_of(THIRD, NOW + 5).update_ms_ago == 104


@pytest.mark.parametrize("made", [following, elsewhere])
def test_posted_position_is_all_that_is_known_of_a_silent_replica(made: Any) -> None:
    """This node heard the other one, but about other channels."""
    world: World = made()
    world.reports.heard_ms[THIRD] = NOW
    world.say(THIRD, 90, NOW - 50)
    hint = world.hint_of(THIRD)
    assert (hint.applied_seq, hint.lag, hint.update_ms_ago) == (Seq(90), 10, 50)


def test_posted_position_counts_against_an_acknowledgement_too() -> None:
    """The leader gets reports of its followers all the time."""
    world = leading()
    world.say(SECOND, 99, NOW - 41)
    assert world.hint_of(SECOND).applied_seq == 80
    world.say(SECOND, 99, NOW - 39)
    assert (world.hint_of(SECOND).applied_seq, world.hint_of(SECOND).update_ms_ago) == (99, 39)
    assert world.hint_of(SECOND, NOW - 60).update_ms_ago == 0, "the clock went back"


# --- what is kept ---------------------------------------------------------------------------------


def test_channel_is_looked_at_again_when_it_moved_or_its_state_did() -> None:
    """P16: between two looks only ages are reported anew."""
    world = following()
    assert world.view(NOW + 1).leader_info_age_ms == 21
    world.known_commit = Seq(105)
    assert world.view().end_seq == 100, "nobody said that it moved"
    world.applied = Seq(99)
    assert (world.view().end_seq, world.hint_of(ME).applied_seq) == (105, 99)
    world.known_commit = Seq(106)
    assert world.view().end_seq == 105
    world.cache.moved(CHANNEL)
    assert world.view().end_seq == 106
    world.known_commit = Seq(107)
    world.cache.all_moved()
    assert world.view().end_seq == 107
    world.cache.moved(ChannelId(b"another"))


def test_channel_that_lives_elsewhere_is_looked_at_again_only_when_it_moved() -> None:
    """Its state may still be on this disk, of a replica that was here before."""
    world = elsewhere()
    assert world.view().end_seq == 100
    further = ChannelPosition(CHANNEL, Term(3), True, *(Seq(110),) * 3, b"", 11, 11)
    world.reports.keep(SECOND, further)
    assert world.view().end_seq == 100
    world.cache.moved(CHANNEL)
    assert world.view().end_seq == 110


def test_role_that_was_lost_is_forgotten_with_the_next_look() -> None:
    """The same holds when the channel is closed here: then its reports describe it."""
    world = leading()
    assert world.view().leader_info_age_ms == 0
    world.runner.elector.role = Role.FOLLOWER
    world.cache.moved(CHANNEL)
    assert world.view().leader_info_age_ms is None
    world.runner.elector.role = Role.LEADER
    world.cache.moved(CHANNEL)
    assert world.view().leader_info_age_ms == 0
    world.cache._node.channels.clear()  # type: ignore[attr-defined]
    world.cache.moved(CHANNEL)
    assert (world.view().leader, world.view().leader_info_age_ms) == (SECOND, None)


@pytest.mark.parametrize(
    ("table", "replicas", "is_kept"),
    [
        ("t", (ME, SECOND, THIRD), True),
        ("renamed", (ME, SECOND, THIRD), False),
        ("t", (ME, THIRD), False),
    ],
)
def test_catalog_that_changed_keeps_what_it_did_not_change(
    table: str, replicas: tuple[NodeId, ...], *, is_kept: bool
) -> None:
    """A channel with another name or other replicas is looked at anew, one that is gone is not."""
    world = following()
    assert world.view().end_seq == 100
    world.known_commit = Seq(105)
    world.cache.follow([PlacedChannel(CHANNEL, table, 5, replicas)])
    view = world.view()
    assert (view.table, view.end_seq) == (table, 100 if is_kept else 105)
    assert tuple(hint.node for hint in view.replicas) == replicas
    world.cache.follow([])
    assert world.cache.views(NOW) == []


# --- a hint by itself -----------------------------------------------------------------------------


def found(**fields: Any) -> _Found:
    """A replica elsewhere that lacks nothing and has reported nothing about the time."""
    known: dict[str, Any] = {
        "node": SECOND, "applied_seq": Seq(90), "rows": 0, "batches": 0, "as_of_ms": None,
        "reported_ms": None, "is_reported": False, "is_here": False, "role": "follower",
    }  # fmt: skip
    return _Found(**known | fields)


@pytest.mark.parametrize(
    ("reported_ms", "heard_ms", "ago"),
    [(5, None, 95), (None, None, None), (None, 7, 93), (5, 7, 93), (7, 5, 93), (101, None, 0)],
)
def test_position_is_as_old_as_the_newer_word_about_it(
    reported_ms: int | None, heard_ms: int | None, ago: int | None
) -> None:
    """S7.3: an acknowledgement or a report; without either its age is unknown."""
    reported = {} if heard_ms is None else {SECOND: heard_ms}
    hint = _hint(found(reported_ms=reported_ms, is_reported=True), 100, 30, reported)
    assert hint == ReplicaHint(SECOND, Seq(90), 0, 30, 0, "follower", ago)
    said = _hint(found(reported_ms=reported_ms), 100, 30, reported)
    assert said.update_ms_ago == (None if reported_ms is None else max(0, 100 - reported_ms))


@pytest.mark.parametrize(("rows", "known_ms"), [(None, 30), (3, None), (None, None), (0, None)])
def test_what_is_unknown_of_rows_is_unknown_of_batches(
    rows: int | None, known_ms: int | None
) -> None:
    """S7.3: an end that nobody reported lately measures nothing."""
    hint = _hint(found(rows=rows, batches=2, as_of_ms=60), 100, known_ms, {})
    assert (hint.lag, hint.batches_behind, hint.time_lag_ms) == (None, None, 40)


# --- who keeps up (FIP-06) ------------------------------------------------------------------------


def test_leader_shows_its_own_record() -> None:
    """As it is at the look; a follower here shows what the leader reported."""
    world = World(role=Role.LEADER, leader=ME)
    assert world.view().sync is None
    both = (SECOND, THIRD)
    world.record = ChannelRecord(
        ME, Term(4), (ME, *both), (ME, *both), both, (SECOND,), Term(1), Seq(7)
    )
    world.cache.moved(CHANNEL)
    assert world.view().sync == ChannelSync((ME, *both), both, (SECOND,), Seq(7))


def test_what_a_leader_reported_of_the_others_counts_while_it_leads() -> None:
    """Of a channel that lives elsewhere; standbys in sync are replicas that are known here."""
    world = World()
    stranger = NodeId("n9")
    told = InSync((THIRD, stranger, ME), 2)
    world.report(SECOND, 100, leads=True, in_sync=told)
    expected = ChannelSync((SECOND, THIRD, stranger, ME), (ME, THIRD), (THIRD,), Seq(0))
    assert world.view().sync == expected
    world.hint = (THIRD, Term(4))
    assert world.view().sync is None, "another leader knows other replicas"


def test_leader_of_an_older_version_reports_nobody() -> None:
    """That says that nothing is known, not that nobody keeps up."""
    world = World()
    world.report(SECOND, 100, leads=True)
    assert world.view().sync is None
