"""Rows expire in a simulated cluster: when, on whose word, and the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftstore.engine.retention.expirer import WAIT_MS_MAX
from raftstore.errors import SchemaError, StoreTooOldError
from raftstore.protocol.lifetimes import WITH_TTL, encode_expire, encode_with_ttl
from raftstore.protocol.payload import encode_conditional, encode_rows
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import RecordKind, Seq
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

DAY_MS = 86_400_000
LATE_MS = 1_500
"""Rows are gone so long after their expiry: a tick, a commit, and the slack of clocks."""


class World:
    """One channel on three nodes."""

    def __init__(self) -> None:
        self.cluster, self.channel = calm_cluster()
        self.counter = 0

    @property
    def leader(self) -> SimNode:
        return self.cluster.leaders()[self.channel]

    @property
    def followers(self) -> list[SimNode]:
        return [node for node in self.cluster.nodes.values() if node is not self.leader]

    def write(self, kind: RecordKind, payload: bytes, rows: int = 1) -> PubAck | PubReject:
        """One record of a client, and the answer."""
        self.counter += 1
        leader = self.leader
        message = publish(
            self.cluster, leader, self.channel, self.counter, payload, kind=kind, rows=rows
        )
        answers = ask(self.cluster, leader, message)
        run(self.cluster, 200)
        [answer] = answers
        assert isinstance(answer, (PubAck, PubReject))
        return answer

    def put(self, ttl_ms: int, *keys: bytes) -> None:
        """Rows that live so long; 0: for ever."""
        payload = encode_rows((key, seal(key, b"v")) for key in keys)
        kind = RecordKind.ROWS
        if ttl_ms:
            kind, payload = WITH_TTL[kind], encode_with_ttl(ttl_ms, payload)
        assert isinstance(self.write(kind, payload, len(keys)), PubAck)

    def seen(self) -> dict[str, list[bytes]]:
        """The rows that each node shows."""
        return {
            name: [row.key for row in node.tables.scan(self.channel, b"", b"", 99).rows]
            for name, node in sorted(self.cluster.nodes.items())
        }

    def everywhere(self) -> list[bytes]:
        """The same, where all agree, and on all that is beside the rows."""
        tables = [node.tables for node in self.cluster.nodes.values()]
        assert len({each.content_hash(self.channel) for each in tables}) == 1
        [shown] = {tuple(keys) for keys in self.seen().values()}
        return list(shown)


@pytest.fixture
def world() -> Iterator[World]:
    """Three healthy nodes."""
    return World()


def test_rows_expire_on_all_replicas_when_the_log_tells_it(world: World) -> None:
    """Of an idle channel, too; and no record is written before or after."""
    world.put(5_000, b"a", b"b")
    world.put(20_000, b"c")
    world.put(0, b"d")
    end = world.leader.runner.channels[world.channel].core.last_seq
    run(world.cluster, 3_000)
    assert world.everywhere() == [b"a", b"b", b"c", b"d"]
    assert world.leader.runner.channels[world.channel].core.last_seq == end
    run(world.cluster, 2_000 + LATE_MS)
    assert world.everywhere() == [b"c", b"d"]
    run(world.cluster, 15_000 + LATE_MS)
    assert world.everywhere() == [b"d"]
    run(world.cluster, 60_000)
    assert world.leader.runner.channels[world.channel].core.last_seq == end + 3
    assert world.leader.runner.expirer.expired_total == 3


@pytest.mark.parametrize("who", ["a follower", "the leader"])
def test_clock_of_one_node_that_is_a_day_ahead_has_no_row_expire_early(
    world: World, who: str
) -> None:
    """S10: neither hides the row on that node nor has it removed from the others."""
    world.put(10_000, b"a")
    ahead = world.leader if who == "the leader" else world.followers[0]
    ahead.wall_offset_ms = DAY_MS
    run(world.cluster, 7_000)
    assert world.everywhere() == [b"a"]
    run(world.cluster, 3_000 + LATE_MS)
    assert world.everywhere() == []


def test_clocks_of_the_leader_that_jump_together_have_no_row_expire_early(world: World) -> None:
    """S10: by a monotonic clock that jumps no other clock is counted on."""
    world.put(10_000, b"a")
    leader = world.leader
    leader.wall_offset_ms = DAY_MS
    leader.shift_clock(jump_ms=DAY_MS, rate=1.0)
    run(world.cluster, 7_000)
    assert world.everywhere() == [b"a"]


def test_next_leader_goes_on_and_its_clock_takes_no_expiry_back(world: World) -> None:
    """S10: the channel time never goes back; what is due next expires under the new leader."""
    world.put(3_000, b"a")
    world.put(20_000, b"b")
    run(world.cluster, 3_000 + LATE_MS)
    assert world.everywhere() == [b"b"]
    before = world.leader
    for node in world.followers:
        node.wall_offset_ms = -15_000  # two of three are behind: rows live longer
    before.runner.channels[world.channel].step_down("test", int(world.cluster.scheduler.now_ms))
    run(world.cluster, 10_000)
    times = {node.tables.channel_time(world.channel) for node in world.cluster.nodes.values()}
    assert len(times) == 1
    world.put(0, b"c")
    assert world.everywhere() == [b"b", b"c"]
    for node in world.cluster.nodes.values():
        node.wall_offset_ms = 0
    run(world.cluster, 10_000 + WAIT_MS_MAX + LATE_MS)
    assert world.everywhere() == [b"c"]


def test_row_that_is_renewed_in_time_stays(world: World) -> None:
    """The lease of somebody who writes again before it is over never ends."""
    for _ in range(6):
        world.put(2_000, b"lease")
        run(world.cluster, 1_000)
        assert world.everywhere() == [b"lease"]
    run(world.cluster, 2_000 + LATE_MS)
    assert world.everywhere() == []
    payload = encode_with_ttl(4_000, encode_conditional(b"lease", seal(b"lease", b"2"), Seq(0)))
    taken = world.write(RecordKind.CONDITIONAL_WITH_TTL, payload)
    again = world.write(RecordKind.CONDITIONAL_WITH_TTL, payload)
    assert isinstance(taken, PubAck)
    assert isinstance(again, PubAck)
    assert (taken.conflict, again.conflict) == (False, True)
    run(world.cluster, 4_000 + LATE_MS)
    assert world.everywhere() == []


def test_client_cannot_say_how_late_it_is(world: World) -> None:
    """EXPIRE records are the leader's; a lifetime that cannot be is refused before it has a seq."""
    world.put(0, b"a")
    payload = encode_expire(2**61, [b"a"])
    refused = world.write(RecordKind.EXPIRE, payload)
    assert isinstance(refused, PubReject)
    assert refused.code == SchemaError.code
    for ttl_ms in (0, 2**63):
        payload = encode_with_ttl(ttl_ms, encode_rows([(b"b", seal(b"b", b"v"))]))
        refused = world.write(RecordKind.ROWS_WITH_TTL, payload)
        assert isinstance(refused, PubReject)
        assert "a lifetime of" in refused.message
    refused = world.write(RecordKind.ROWS_WITH_TTL, b"1234567")
    assert isinstance(refused, PubReject)
    assert "no room for a lifetime" in refused.message
    run(world.cluster, 10_000)
    assert world.everywhere() == [b"a"]


def test_many_rows_that_are_due_at_once_are_removed_a_bounded_number_at_a_time(
    world: World,
) -> None:
    """They are hidden with the first record, and all gone soon after."""
    keys = [b"%04d" % number for number in range(2_500)]
    world.put(2_000, *keys)
    run(world.cluster, 2_000 + LATE_MS)
    assert world.everywhere() == []
    run(world.cluster, 2_000)
    assert [table.tables._tables[world.channel].rows for table in world.cluster.nodes.values()] == [
        {}, {}, {},
    ]  # fmt: skip
    assert world.leader.runner.expirer.expired_total == 2_500


def test_staged_rows_with_a_lifetime_wait_for_the_last_node_of_before(world: World) -> None:
    """Levels: so do ordinary ones; the same rows without a lifetime are taken."""
    older = world.followers[0]
    older.kill("another version")
    older.level = 4
    older.boot()
    run(world.cluster, 5_000)
    rows = encode_rows([(b"a", seal(b"a", b"v"))])
    header = ChunkHeader("orders", 1, 0, 0, 0, ttl_ms=1_000)
    for kind, payload in (
        (RecordKind.STAGED, encode_staged(header, rows)),
        (RecordKind.ROWS_WITH_TTL, encode_with_ttl(1_000, rows)),
    ):
        refused = world.write(kind, payload)
        assert isinstance(refused, PubReject)
        assert refused.code == StoreTooOldError.code
        assert "need level 5 on every node" in refused.message
        assert "write without a lifetime (ttl)" in refused.message
    plain = encode_staged(header._replace(ttl_ms=0), rows)
    assert isinstance(world.write(RecordKind.STAGED, plain), PubAck)
    assert isinstance(world.write(RecordKind.ROWS, rows), PubAck)
