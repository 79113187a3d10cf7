"""A node whose disk is nearly full makes room, for others and for itself, and recovers (GAP-13)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import LagSettings, StorageSettings
from raftstore.engine.channel.disk_space import DiskSpace
from raftstore.engine.channel.space_hand_overs import HAND_OVER_INTERVAL_MS, SpaceHandOvers
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reports.status_report import node_status
from raftstore.errors import NoSpaceError
from raftstore.protocol.admin import CreateTable, DropTable
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelConfig, ChannelId, NodeId, Role, channel_id
from tests.unit.engine.catalog.test_edit_table import catalog_leader
from tests.unit.engine.engine_world import ask, calm_cluster, error_class, publish, run

ROWS = encode_rows([(b"k", seal(b"k", b"v"))])
SETTINGS = StorageSettings()
MARK = SETTINGS.min_free_bytes
ROOM, LOW, EXHAUSTED = 2 * MARK, MARK - 1, MARK // 4 - 1
LOOK_MS = SETTINGS.free_check_ms + 10
ME, PEER, OTHER = NodeId("n1@00"), NodeId("n2@00"), NodeId("n3@00")


def with_free_bytes(cluster: SimCluster, free: int, *nodes: SimNode) -> None:
    """These disks have so much free, which the nodes see with their next look; others have room."""
    for node in cluster.nodes.values():
        node.free_bytes = free if node in nodes else ROOM
    run(cluster, LOOK_MS)


def write(cluster: SimCluster, leader: SimNode, channel: ChannelId, counter: int) -> Any:
    """The answer to a write that is sent to this node."""
    answers = ask(cluster, leader, publish(cluster, leader, channel, counter, ROWS))
    run(cluster, 500)
    (answer,) = answers
    return answer


def others(cluster: SimCluster, node: SimNode) -> list[SimNode]:
    """The other nodes."""
    return [each for each in cluster.nodes.values() if each is not node]


# --- in a cluster ---------------------------------------------------------------------------------


def test_gap_13_leader_without_space_gives_its_leadership_to_a_replica_that_has_some() -> None:
    """Writes go on there; the node follows, and stores what the new leader sends."""
    cluster, channel = calm_cluster()
    full = cluster.leaders()[channel]
    with_free_bytes(cluster, LOW, full)
    run(cluster, 2_000)
    leader = cluster.leaders()[channel]
    assert leader is not full
    assert isinstance(write(cluster, leader, channel, 1), PubAck)
    run(cluster, 500)
    ends = {node.runner.channels[channel].core.durable_seq for node in cluster.nodes.values()}
    assert len(ends) == 1, "it follows as before"


def test_gap_13_leader_that_finds_no_successor_refuses_writes_and_recovers_by_itself() -> None:
    """All disks are nearly full: it is certain that nothing was done, and nothing gets a seq."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    term = leader.runner.channels[channel].elector.term
    with_free_bytes(cluster, LOW, *cluster.nodes.values())
    run(cluster, 5_000)
    assert cluster.leaders()[channel] is leader
    now = leader.runner.channels[channel].elector.term
    assert now == term, "replicas without space decline"
    end = leader.runner.channels[channel].core.last_seq
    refused = write(cluster, leader, channel, 1)
    assert isinstance(refused, PubReject)
    assert refused.code == "no_space"
    assert f"the disk of {leader.name} has {LOW} bytes free" in refused.message
    assert leader.runner.channels[channel].core.last_seq == end
    assert leader.runner.space.refused == 1
    with_free_bytes(cluster, ROOM)
    assert isinstance(write(cluster, leader, channel, 2), PubAck)


@pytest.mark.slow
def test_gap_13_leadership_goes_past_a_replica_without_space_to_the_next_one() -> None:
    """No node knows of the disks of others: one without space declines, and the next is asked."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    _, roomy = others(cluster, leader)
    full = [node for node in cluster.nodes.values() if node is not roomy]
    with_free_bytes(cluster, LOW, *full)
    run(cluster, 2 * HAND_OVER_INTERVAL_MS)
    assert cluster.leaders()[channel] is roomy
    assert isinstance(write(cluster, roomy, channel, 1), PubAck)


def test_gap_13_followers_without_space_go_on_as_long_as_they_can() -> None:
    """Their acknowledgements make the quorum; below the second mark they take nothing more, and
    catch up when there is space again."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    low, dead = others(cluster, leader)
    dead.kill("test")
    with_free_bytes(cluster, LOW, low)
    assert isinstance(write(cluster, leader, channel, 1), PubAck)
    with_free_bytes(cluster, EXHAUSTED, low)
    end = low.runner.channels[channel].core.last_seq
    ask(cluster, leader, publish(cluster, leader, channel, 2, ROWS))
    run(cluster, 1_000)
    assert leader.runner.channels[channel].core.last_seq > end
    assert low.runner.channels[channel].core.last_seq == end
    with_free_bytes(cluster, ROOM)
    run(cluster, 3_000)
    leader = cluster.leaders()[channel]
    assert low.runner.channels[channel].core.last_seq >= end + 1


@pytest.mark.parametrize("free", [LOW, EXHAUSTED])
def test_gap_13_table_can_be_removed_while_no_node_has_space(free: int) -> None:
    """That is what an operator does about it: below the second mark, too."""
    cluster, _ = calm_cluster()
    with_free_bytes(cluster, free, *cluster.nodes.values())
    answers = ask(cluster, catalog_leader(cluster), DropTable(5, "t", 2_000))
    run(cluster, 3_000)
    assert [type(answer) for answer in answers] == [Done]


FULL = MARK // 16 - 1
"""Not even a record of the catalog has room."""


@pytest.mark.parametrize("is_fresh", [False, True], ids=["with_a_leader", "fresh"])
def test_gap_13_creating_a_table_names_the_disk_if_no_node_takes_changes_of_the_catalog(
    is_fresh: bool,
) -> None:
    """Such as with a mark beyond all disks: the catalog has no leader that could commit anything,
    and it is certain that nothing was done; with space the same command succeeds."""
    cluster = SimCluster(SimOptions(seed=1, partitions=1, evict_percent=0))
    cluster.start()
    if not is_fresh:
        run(cluster, 5_000)
    with_free_bytes(cluster, FULL, *cluster.nodes.values())
    run(cluster, 5_000)
    create = CreateTable(7, "new", ("id",), 1, 3, "fsync", None, "", False, 5_000)
    (leader,) = (
        node
        for node in cluster.nodes.values()
        if node.runner.controller.metadata.elector.role is Role.LEADER
    )
    answers = ask(cluster, leader, create)
    run(cluster, 100)
    (answer,) = answers
    assert isinstance(answer, Failed)
    assert error_class(answer.code) is NoSpaceError
    assert f"the disk of {leader.name} has {FULL} bytes free" in answer.message
    assert "free some, or lower storage.min_free_bytes" in answer.message
    with_free_bytes(cluster, ROOM)
    run(cluster, 5_000)
    answers = ask(cluster, catalog_leader(cluster), create)
    run(cluster, 5_000)
    assert [type(answer) for answer in answers] == [Done]


def test_gap_13_write_that_no_quorum_has_room_for_is_refused_with_the_names_of_the_disks() -> None:
    """It certainly is not applied; with one full disk, or space again, it is taken."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    first, second = others(cluster, leader)
    with_free_bytes(cluster, EXHAUSTED, first, second)
    run(cluster, LagSettings().report_interval_ms)
    end = leader.runner.channels[channel].core.last_seq
    refused = write(cluster, leader, channel, 1)
    assert isinstance(refused, PubReject)
    assert refused.code == "no_space"
    names = ", ".join(sorted((first.name, second.name)))
    assert f"the disks of {names} have no room for records" in refused.message
    assert leader.runner.channels[channel].core.last_seq == end
    with_free_bytes(cluster, EXHAUSTED, first)
    run(cluster, 3_000)
    assert isinstance(write(cluster, cluster.leaders()[channel], channel, 2), PubAck)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("free", "what"), [(FULL, "changes of the catalog"), (EXHAUSTED, "records of a table")]
)
def test_gap_13_creating_a_table_names_the_full_disks_of_followers(free: int, what: str) -> None:
    """The leader has room, a quorum has none: nothing is proposed, so nothing is in doubt. One full
    disk of three is no hindrance; with space the same command succeeds."""
    cluster, _ = calm_cluster()
    leader = catalog_leader(cluster)
    first, second = others(cluster, leader)
    with_free_bytes(cluster, free, first, second)
    run(cluster, LagSettings().report_interval_ms)
    end = leader.runner.controller.metadata.core.last_seq
    create = CreateTable(7, "new", ("id",), 1, 3, "fsync", None, "", False, 5_000)
    answers = ask(cluster, leader, create)
    run(cluster, 100)
    (answer,) = answers
    assert isinstance(answer, Failed)
    assert error_class(answer.code) is NoSpaceError
    names = ", ".join(sorted((first.name, second.name)))
    assert f"the disks of {names} have no room for {what}" in answer.message
    assert "a majority of n1, n2, n3" in answer.message
    assert "lower storage.min_free_bytes there" in answer.message
    assert leader.runner.controller.metadata.core.last_seq == end
    with_free_bytes(cluster, free, first)
    run(cluster, 5_000)
    answers = ask(cluster, catalog_leader(cluster), create)
    run(cluster, 5_000)
    assert [type(answer) for answer in answers] == [Done]


def test_gap_13_table_that_exists_needs_no_space() -> None:
    """Jobs create their tables at each start, if they are not there."""
    cluster, _ = calm_cluster()
    existing = catalog_leader(cluster).runner.controller.catalog.tables["t"]
    with_free_bytes(cluster, FULL, *cluster.nodes.values())
    create = CreateTable(
        7, "t", existing.key_columns, 1, 3, existing.durability, existing.max_lag, "", True, 5_000
    )
    answers = ask(cluster, catalog_leader(cluster), create)
    run(cluster, 100)
    assert [type(answer) for answer in answers] == [Done]


def test_gap_13_status_and_events_tell_of_the_disk() -> None:
    """Once when there is too little, once when there is enough again."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    told: list[tuple[str, Any]] = []
    node.runner.events.sink = lambda name, fields: told.append((name, fields))
    with_free_bytes(cluster, EXHAUSTED, node)
    status = node.runner.reports.status()
    assert status["disk"] == {
        "free_bytes": EXHAUSTED,
        "min_free_bytes": MARK,
        "is_low": True,
        "takes_records": False,
        "reserve_bytes": None,
    }
    assert any("takes no records until there is more" in text for text in status["warnings"])
    samples = {sample[0]: sample[2] for sample in node.runner.reports.metrics()[0]}
    assert samples["raftstore_disk_free_bytes"] == EXHAUSTED
    assert samples["raftstore_disk_low"] == 1
    with_free_bytes(cluster, ROOM)
    run(cluster, 3 * LOOK_MS)
    lines = [(name, fields) for name, fields in told if name.startswith("disk_")]
    numbers = {"min_free_bytes": MARK}
    assert [name for name, _ in lines] == ["disk_low", "disk_space_back"]
    assert lines[0][1] == {"free_bytes": EXHAUSTED, "takes_records": False, **numbers}
    assert lines[1][1] == {"free_bytes": ROOM, "takes_records": True, **numbers}


def test_gap_13_status_warns_of_a_reserve_that_cannot_be_made() -> None:
    """It says what would happen without one, and what is needed; not while it is being made."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    wanted = SETTINGS.reserve_bytes
    needed = wanted + MARK * 5 // 4
    for free, kept, is_warned in [
        (needed - 1, 0, True),
        (needed, 0, False),
        (needed - 1, wanted, False),
        (needed - 1, None, False),
    ]:
        with_free_bytes(cluster, free, node)
        status = node_status(node.runner.parts, node.clock.now_ms(), kept)
        assert status["disk"]["reserve_bytes"] == kept
        warnings = [text for text in status["warnings"] if "has no reserve" in text]
        assert bool(warnings) == is_warned, (free, kept)
        assert all(f"once {needed} bytes are free" in text for text in warnings)


# --- by itself ------------------------------------------------------------------------------------


class Bench:
    """A node that leads one channel, with a disk of which the test says what is free."""

    def __init__(self, **settings: Any) -> None:
        self.free: int | None = None
        self.unwritten = 0
        self.up = {PEER, OTHER}
        self.asked: list[tuple[int, NodeId | None]] = []
        self.told: list[str] = []
        self.elector = SimpleNamespace(role=Role.LEADER)
        self.voters = (ME, PEER, OTHER)
        channel = channel_id(b"t" * 16, 0)
        runner: Any = SimpleNamespace(
            channel=channel,
            name="t/0",
            elector=self.elector,
            config=lambda: ChannelConfig((self.voters,)),
            parts=SimpleNamespace(is_up=self.up.__contains__),
            request_hand_over=lambda target, reason, now_ms: self.asked.append((now_ms, target)),
        )
        self.space = DiskSpace(
            ME,
            StorageSettings(**{"min_free_bytes": 400, "free_check_ms": 100, **settings}),
            lambda name, **fields: self.told.append(name),
            lambda: self.free,
            lambda: self.unwritten,
            SpaceHandOvers(ME, {channel: runner}).offer,
        )
        self.space.start(1_000)

    def look(self, now_ms: int, free: int | None) -> tuple[bool, bool]:
        """The disk has so much free now."""
        self.free = free
        self.space.on_timer(now_ms)
        return self.space.is_low, self.space.is_exhausted


def test_marks_are_left_a_quarter_above_where_they_were_met() -> None:
    """Otherwise each file that is merged would change its mind."""
    bench = Bench()
    steps = [
        (None, (False, False)),
        (400, (False, False)),
        (399, (True, False)),
        (400, (True, False)),
        (499, (True, False)),
        (100, (True, False)),
        (99, (True, True)),
        (124, (True, True)),
        (125, (True, False)),
        (None, (True, False)),
        (500, (False, False)),
        (400, (False, False)),
    ]
    for number, (free, state) in enumerate(steps):
        assert bench.look(1_000 + 100 * number, free) == state, free
    assert bench.told == ["disk_low", "disk_low", "disk_low", "disk_space_back"]


def test_disk_is_looked_at_in_intervals_and_not_at_all_without_a_mark() -> None:
    """A node that reads the clock often does not ask each time."""
    bench = Bench()
    assert bench.look(1_000, 500) == (False, False)
    assert bench.look(1_099, 3) == (False, False)
    assert bench.look(1_100, 3) == (True, True)
    bench = Bench(min_free_bytes=0)
    assert bench.space.deadlines.next_ms == NEVER_MS
    assert bench.look(1_000, 0) == (False, False)
    assert bench.space.refusal() is None


def test_leadership_is_offered_to_one_live_voter_after_another() -> None:
    """At intervals; a follower offers nothing, nor does the only replica."""
    bench = Bench()
    for now_ms in range(1_000, 1_000 + 3 * HAND_OVER_INTERVAL_MS, 100):
        bench.look(now_ms, 3)
    times = [1_000 + number * HAND_OVER_INTERVAL_MS for number in range(3)]
    assert bench.asked == list(zip(times, (PEER, OTHER, PEER), strict=True))
    bench.up.discard(PEER)
    bench.look(31_000, 3)
    assert bench.asked[3:] == [(31_000, OTHER)]
    for change in ({"voters": (ME,)}, {"voters": (ME, PEER)}):
        vars(bench).update(change)
        bench.look(60_000, 3)
    bench.voters = (ME, PEER, OTHER)
    bench.elector.role = Role.FOLLOWER
    bench.look(90_000, 3)
    assert len(bench.asked) == 4


def test_copy_fits_if_a_quarter_of_the_mark_stays_free_beside_it() -> None:
    """B8: nothing is copied before it is known to fit; without a mark, or a look, all is taken."""
    bench = Bench()
    assert bench.space.shortage(1 << 60) is None
    bench.look(1_000, 1_000)
    assert bench.space.shortage(900) is None
    shortage = bench.space.shortage(901)
    assert shortage is not None
    assert "901 bytes have no room" in shortage
    assert "the disk of n1, which has 1000 bytes free" in shortage
    bench = Bench(min_free_bytes=0)
    bench.look(1_000, 1_000)
    assert bench.space.shortage(901) is None


def test_what_frees_space_may_use_most_of_what_the_second_mark_keeps() -> None:
    """B8: all but a quarter; what was granted counts until the next look, which sees it."""
    bench = Bench()
    assert bench.space.claim(1 << 60), "nothing is known yet"
    bench.look(1_000, 90)
    assert not bench.space.claim(66)
    assert bench.space.claim(40)
    assert not bench.space.claim(26)
    assert bench.space.claim(25)
    assert not bench.space.claim(1)
    bench.look(bench.space.deadlines.next_ms, 75)
    assert bench.space.claim(50)
    bench = Bench(min_free_bytes=0)
    bench.look(1_000, 1_000)
    assert bench.space.claim(1_001)


@pytest.mark.parametrize("free", [0, 399])
def test_refusal_tells_the_bytes_and_the_setting(free: int) -> None:
    """Each refusal is counted."""
    bench = Bench()
    assert bench.space.refusal() is None
    bench.look(1_000, free)
    refusal = bench.space.refusal()
    assert refusal is not None
    assert refusal.error.code == "no_space"
    assert f"the disk of n1 has {free} bytes free, storage.min_free_bytes is 400" in refusal.text
    assert bench.space.refused == 1


def test_what_a_slow_disk_has_yet_to_write_counts_at_each_look() -> None:
    """GAP-13: it was taken before the look, which does not show it, and needs room all the same."""
    bench = Bench()
    bench.unwritten = 302
    assert bench.look(1_000, 500) == (True, False)
    assert bench.space.free_bytes == 198
    bench.unwritten = 500
    assert bench.look(1_100, 500) == (True, True)
    assert bench.look(1_200, 499) == (True, True)
    assert bench.space.free_bytes == 0
    bench.unwritten = 0
    assert bench.look(1_300, 500) == (False, False)
    bench.unwritten = 1
    bench.look(1_400, 1_600)
    assert bench.space.is_near


def test_what_the_log_grows_by_counts_between_two_looks() -> None:
    """GAP-13: a fast disk takes more in one interval than the marks keep free."""
    bench = Bench()
    bench.look(1_000, 1_600)
    assert not bench.space.is_near, "four times the mark: nothing is counted"
    bench.look(1_100, 1_599)
    assert bench.space.is_near
    for log_bytes, state in [
        (5_000, (False, False)),
        (6_199, (False, False)),
        (6_200, (True, False)),
        (6_499, (True, False)),
        (6_500, (True, True)),
        (6_000, (True, True)),
    ]:
        bench.space.note_log(log_bytes)
        assert (bench.space.is_low, bench.space.is_exhausted) == state, log_bytes
    assert bench.space.free_bytes == 99
    assert bench.look(1_200, 500) == (False, False), "the next look counts"
    bench.space.note_log(9_000)
    assert bench.space.free_bytes == 500


@pytest.mark.parametrize("is_near", [False, True])
def test_guard_counts_the_log_before_records_are_taken_near_the_marks_only(
    is_near: bool,
) -> None:
    """Far from them no write pays for that."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    with_free_bytes(cluster, 2 * MARK if is_near else 5 * MARK, *cluster.nodes.values())
    guard, noted = leader.runner.guard, list[int]()
    guard.space.note_log = noted.append  # type: ignore[method-assign]
    assert guard.takes_records(is_catalog=False)
    assert guard.write_refusal(0, is_client=True) is None
    assert noted == ([leader.log.size_bytes()] * 2 if is_near else [])
