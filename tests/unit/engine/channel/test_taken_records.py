"""Reads go on where no quorum has room for records: a new leader begins its term all the same
(GAP-13, S7.1)."""

from __future__ import annotations

import pytest

from raftstore.engine.channel.taken_records import ASKED_BYTES, taken
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.records import Record
from raftstore.protocol.replication import MsgSync
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import (
    ChannelId,
    Digest,
    Guid,
    RecordKind,
    RequestId,
    Seq,
    Term,
    TimestampMs,
    channel_id,
)
from tests.unit.engine.channel.test_disk_space import (
    EXHAUSTED,
    MARK,
    ROOM,
    ROWS,
    others,
    with_free_bytes,
    write,
)
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run, spy

READ_MS = 3_000


def is_answered(cluster: SimCluster, channel: ChannelId) -> bool:
    """Whether the channel's leader confirms a linearizable read."""
    leader = cluster.leaders()[channel]
    found: list[bool] = []
    leader.runner.channels[channel].request_read(
        lambda *_: found.append(True), lambda *_: found.append(False), leader.clock.now_ms()
    )
    run(cluster, READ_MS)
    return found == [True]


def end_of(node: SimNode, channel: ChannelId) -> Seq:
    """The last seq of the node's log."""
    return node.runner.channels[channel].core.last_seq


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gap_13_reads_go_on_when_the_leader_and_a_follower_fill_within_one_look(seed: int) -> None:
    """The leadership goes to the one that has room, and the two others store the start of its term,
    though no rows: without it nothing is answered until an operator makes space."""
    cluster, channel = calm_cluster(seed)
    full = cluster.leaders()[channel]
    first, roomy = others(cluster, full)
    assert isinstance(write(cluster, full, channel, 1), PubAck)
    with_free_bytes(cluster, EXHAUSTED, full, first)
    run(cluster, 25_000)
    assert cluster.leaders()[channel] is roomy
    assert is_answered(cluster, channel)
    ends = {end_of(node, channel) for node in cluster.nodes.values()}
    assert len(ends) == 1
    with_free_bytes(cluster, ROOM)
    run(cluster, 2_000)
    assert isinstance(write(cluster, cluster.leaders()[channel], channel, 2), PubAck)


def test_gap_13_reads_go_on_when_the_leader_dies_and_a_full_follower_lacks_the_newest_rows() -> (
    None
):
    """Then it takes these too: they were acknowledged, and its own are what makes the quorum."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    full, roomy = others(cluster, leader)
    with_free_bytes(cluster, EXHAUSTED, full)
    before = end_of(full, channel)
    for counter in range(1, 6):
        assert isinstance(write(cluster, leader, channel, counter), PubAck)
    assert end_of(full, channel) == before, "a term that goes on has a quorum without it"
    assert end_of(roomy, channel) == before + 5
    leader.kill("test")
    run(cluster, 10_000)
    assert cluster.leaders()[channel] is roomy
    assert is_answered(cluster, channel)
    began = end_of(full, channel)
    assert began == end_of(roomy, channel) == before + 6
    ask(cluster, roomy, publish(cluster, roomy, channel, 9, ROWS))
    run(cluster, 2_000)
    assert end_of(full, channel) == began, "writes of the new term wait for space"


@pytest.mark.parametrize(("free", "is_taken"), [(EXHAUSTED, True), (MARK // 8 - 1, False)])
def test_gap_13_what_frees_space_keeps_its_half_of_the_second_mark(
    free: int, is_taken: bool
) -> None:
    """S0.4: a write that fails ends the node. What is taken counts until the next look."""
    cluster, channel = calm_cluster()
    full = others(cluster, cluster.leaders()[channel])[0]
    with_free_bytes(cluster, free, full)
    guard = full.runner.channels[channel].parts.guard
    message = sync(_record(2, 5, RecordKind.ROWS), commit_seq=0)
    assert taken(guard, message, is_catalog=False) is (message if is_taken else None)
    assert not guard.takes_beginning(MARK // 8)


def test_gap_13_answer_with_writes_of_the_new_term_is_taken_up_to_them() -> None:
    """A leader that was given a write before it knew of the full disks would wait for ever: each of
    its answers has that write in it."""
    cluster, channel = calm_cluster()
    full = others(cluster, cluster.leaders()[channel])[0]
    with_free_bytes(cluster, EXHAUSTED, full)
    parts = full.runner.channels[channel].parts
    records = (
        _record(2, 5, RecordKind.ROWS),
        _record(3, 6, RecordKind.TERM_START),
        _record(3, 7, RecordKind.ROWS),
    )
    message = sync(*records, commit_seq=0)
    found = taken(parts.guard, message, is_catalog=False)
    assert isinstance(found, MsgSync)
    assert (found.records, found.done, found.next_seq) == (records[:2], False, 0)
    assert taken(parts.guard, sync(*records, commit_seq=6), is_catalog=False) is None
    assert taken(parts.guard, sync(records[2], commit_seq=0), is_catalog=False) is None
    with_free_bytes(cluster, ROOM)
    run(cluster, 2_000)
    assert taken(parts.guard, message, is_catalog=False) is message


def test_gap_13_little_history_is_asked_for_while_none_of_it_is_taken() -> None:
    """A leader does not read and send a megabyte a second that is thrown away."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    full, _ = others(cluster, leader)
    with_free_bytes(cluster, EXHAUSTED, full)
    rows = encode_rows([(b"k", seal(b"k", b"v" * 30_000))])
    for counter in range(1, 31):
        ask(cluster, leader, publish(cluster, leader, channel, counter, rows))
        run(cluster, 50)
    run(cluster, 2_000)
    before = end_of(full, channel)
    sent = spy(cluster, leader)
    run(cluster, 10_000)
    answers = [each for to, each in sent if to == full.node and isinstance(each, MsgSync)]
    sizes = [sum(len(record.payload) for record in answer.records) for answer in answers]
    assert len(sizes) >= 9
    assert 0 < max(sizes) <= ASKED_BYTES
    assert end_of(full, channel) == before
    with_free_bytes(cluster, ROOM)
    run(cluster, 3_000)
    assert end_of(full, channel) == end_of(cluster.leaders()[channel], channel) == before + 30


def _record(term: int, seq: int, kind: RecordKind) -> Record:
    return Record(
        Term(term), seq, 1, Guid(b"g" * 24), TimestampMs(0), Digest(b"d" * 16), kind, ROWS
    )


def sync(*records: Record, commit_seq: int) -> MsgSync:
    """An answer of the leader of term 3 that has all its log in it."""
    return MsgSync(
        channel=channel_id(b"t" * 16, 0),
        term=Term(3),
        request_id=RequestId(1),
        from_seq=records[0].last_seq,
        prev_term=Term(2),
        records=records,
        commit_seq=Seq(commit_seq),
        last_seq=records[-1].last_seq,
        first_seq=Seq(1),
        done=True,
        next_seq=Seq(records[-1].last_seq + 2),
    )
