"""Reads bounded by time and by micro-batches, and reads at a position, in a calm cluster (S7.3)."""

from __future__ import annotations

import pytest

from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_mark, encode_rows
from raftstore.protocol.reads import Count, Get, GetAnswer, Scan, ScanAnswer, Served
from raftstore.protocol.replication import FreshRequest, ReadIndexRequest
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, RecordKind, Seq
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run, spy


def timed(
    channel: ChannelId, bound_ms: int | None, timeout_ms: int = 2_000, min_seq: int = 0
) -> Get:
    """A read of any replica whose state is proven to be at most so old."""
    return Get(
        1, channel, (b"k",), "bounded", None, Seq(min_seq), timeout_ms, max_staleness_ms=bound_ms
    )


def batched(channel: ChannelId, bound: int) -> Get:
    """A read of any replica that is at most so many micro-batches behind."""
    return Get(1, channel, (b"k",), "bounded", None, Seq(0), 2_000, max_batches_behind=bound)


def follower_of(cluster: SimCluster, channel: ChannelId) -> SimNode:
    """A replica that does not lead."""
    leader = cluster.leaders()[channel]
    return next(node for node in cluster.nodes.values() if node is not leader)


def write(cluster: SimCluster, channel: ChannelId, counter: int, kind: RecordKind) -> None:
    """One record at the leader: a row, or the end of a micro-batch."""
    leader = cluster.leaders()[channel]
    is_mark = kind is RecordKind.BATCH_MARK
    payload = encode_mark("w", counter) if is_mark else encode_rows([(b"k", seal(b"k", b"v"))])
    cluster.add_client("writer", 778, lambda sender, message: None)
    message = publish(cluster, leader, channel, counter, payload, kind=kind)
    cluster.network.send("writer", leader.node, message)
    run(cluster, 100)


def code(answers: list[Message]) -> str:
    """The code of the only answer; "rows" for rows, "" while there is none."""
    if not answers:
        return ""
    [answer] = answers
    return answer.code if isinstance(answer, Failed) else "rows"


def served(answers: list[Message]) -> Served:
    """How fresh the only answer is."""
    [answer] = answers
    assert isinstance(answer, (GetAnswer, ScanAnswer))
    return answer.served


def of_kind(seen: list, kind: type[Message], channel: ChannelId) -> list[Message]:  # type: ignore[type-arg]
    """The messages of a kind about the channel."""
    return [m for _, m in seen if isinstance(m, kind) and m.channel == channel]  # type: ignore[attr-defined]


# --- time -----------------------------------------------------------------------------------------


def test_follower_serves_a_time_bound_after_one_round_trip() -> None:
    """It asks the leader, once, and states the age that it proved (KIP-36)."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    seen = spy(cluster, follower)
    answers = ask(cluster, follower, timed(channel, 500))
    run(cluster, 200)
    assert code(answers) == "rows"
    age = served(answers).staleness_ms
    assert age is not None
    assert 0 < age <= 500
    assert len(of_kind(seen, FreshRequest, channel)) == 1


def test_reads_of_one_channel_share_a_round_trip() -> None:
    """One request is out at a time, and while its proof is young enough none is."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    seen = spy(cluster, follower)
    answers = ask(cluster, follower, *[timed(channel, 1_000)] * 20)
    run(cluster, 200)
    assert len(answers) == 20
    assert len(of_kind(seen, FreshRequest, channel)) == 1


def test_proof_is_renewed_before_the_next_read_has_to_wait() -> None:
    """A read within its bound asks anew when half of it is used up, and is answered at once."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    ask(cluster, follower, timed(channel, 1_000))
    run(cluster, 600)
    seen = spy(cluster, follower)
    answers = ask(cluster, follower, timed(channel, 1_000))
    run(cluster, 300)
    assert code(answers) == "rows"
    assert len(of_kind(seen, FreshRequest, channel)) == 1
    again = ask(cluster, follower, timed(channel, 500))
    run(cluster, 50)
    assert served(again).staleness_ms is not None


def test_channel_that_nobody_reads_sends_no_round_trips() -> None:
    """Bounds cost nothing where nobody names one."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    ask(cluster, follower, timed(channel, 500))
    run(cluster, 2_000)
    seen = spy(cluster, follower)
    seen_too = spy(cluster, cluster.leaders()[channel])
    run(cluster, 30_000)
    assert of_kind(seen, FreshRequest, channel) == []
    assert of_kind(seen_too, ReadIndexRequest, channel) == []


def test_follower_that_cannot_ask_refuses_a_time_bound_soon() -> None:
    """BLOG-10: beyond the bound there is an error, never data, and not only at the deadline."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    others = [node for node in cluster.node_ids if node != follower.node]
    cluster.network.cut_groups([follower.node], others)
    answers = ask(cluster, follower, timed(channel, 500, timeout_ms=5_000))
    run(cluster, 200)
    assert code(answers) == ""
    run(cluster, 300)
    assert code(answers) == "lag_unknown"


def test_time_bound_is_not_met_by_hearing_from_a_leader_of_the_past() -> None:
    """S7.3: messages of a leader that lost its quorum arrive, and prove nothing."""
    options = SimOptions(seed=1, partitions=1, evict_percent=0, nodes=5, replicas=5)
    cluster = SimCluster(options)
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    [channel] = cluster.table_channels
    loyal = follower_of(cluster, channel)
    pair = [cluster.leaders()[channel].node, loyal.node]
    cluster.network.cut_groups(pair, [node for node in cluster.node_ids if node not in pair])
    run(cluster, 150)
    answers = ask(cluster, loyal, timed(channel, 1_200))
    run(cluster, 400)
    assert code(answers) == "lag_unknown"


def test_state_proven_before_a_partition_is_served_until_it_is_too_old() -> None:
    """P11: what was proven stays proven; no leader is needed within the bound."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    ask(cluster, follower, timed(channel, 1_000))
    run(cluster, 100)
    others = [node for node in cluster.node_ids if node != follower.node]
    cluster.network.cut_groups([follower.node], others)
    run(cluster, 1_000)
    answers = ask(cluster, follower, timed(channel, 3_000))
    run(cluster, 50)
    assert code(answers) == "rows"
    run(cluster, 2_000)
    answers = ask(cluster, follower, timed(channel, 3_000))
    run(cluster, 400)
    assert code(answers) == "lag_exceeded"


def test_leader_that_writes_serves_time_bounds_without_asking_anybody() -> None:
    """Its commits are round trips; a leader that is idle confirms itself."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    write(cluster, channel, 1, RecordKind.ROWS)
    seen = spy(cluster, leader)
    answers = ask(cluster, leader, timed(channel, 1_000))
    run(cluster, 50)
    assert code(answers) == "rows"
    assert of_kind(seen, ReadIndexRequest, channel) == []
    run(cluster, 2_000)
    answers = ask(cluster, leader, timed(channel, 1_000))
    run(cluster, 100)
    assert code(answers) == "rows"
    assert of_kind(seen, ReadIndexRequest, channel)


def test_bound_shorter_than_a_round_trip_is_refused_without_asking_for_ever() -> None:
    """The second proof that is too old on arrival shows that no other would be better."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    seen = spy(cluster, follower)
    answers = ask(cluster, follower, timed(channel, 0, timeout_ms=5_000))
    run(cluster, 240)
    assert code(answers) == "lag_exceeded"
    assert len(of_kind(seen, FreshRequest, channel)) <= 3


def test_scans_and_counts_have_the_same_bounds() -> None:
    """Given bounds that the state does not meet, scans and counts are refused by the same rule as
    gets.
    """
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    others = [node for node in cluster.node_ids if node != follower.node]
    cluster.network.cut_groups([follower.node], others)
    ends = (b"", b"")
    level = ("bounded", None, Seq(0), 1_000)
    scan = Scan(1, channel, *ends, 10, *level, max_staleness_ms=100)
    count = Count(2, channel, *ends, *level, max_staleness_ms=100)
    answers = ask(cluster, follower, scan, count)
    run(cluster, 1_000)
    assert [getattr(answer, "code", "rows") for answer in answers] == ["lag_unknown"] * 2


# --- micro-batches --------------------------------------------------------------------------------


def test_blog_32_every_replica_counts_the_micro_batches_of_its_state() -> None:
    """Marks are counted, rows between them are not."""
    cluster, channel = calm_cluster()
    for counter, kind in enumerate(
        (RecordKind.ROWS, RecordKind.BATCH_MARK, RecordKind.ROWS, RecordKind.BATCH_MARK), start=1
    ):
        write(cluster, channel, counter, kind)
    run(cluster, 1_500)
    for node in cluster.nodes.values():
        answers = ask(cluster, node, batched(channel, 0))
        run(cluster, 200)
        assert (served(answers).batches, served(answers).batches_behind) == (2, 0)


def test_restarted_replica_counts_the_same_batches() -> None:
    """S10: a function of the log, which is what a restart leaves."""
    cluster, channel = calm_cluster()
    write(cluster, channel, 1, RecordKind.BATCH_MARK)
    run(cluster, 1_500)
    follower = follower_of(cluster, channel)
    follower.crash("test")
    follower.boot()
    run(cluster, 3_000)
    answers = ask(cluster, follower, batched(channel, 0))
    run(cluster, 300)
    assert served(answers).batches == 1


def test_replica_without_word_of_a_leader_is_infinitely_many_batches_behind() -> None:
    """S7.3: unknown is not zero."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    others = [node for node in cluster.node_ids if node != follower.node]
    cluster.network.cut_groups([follower.node], others)
    run(cluster, 11_000)
    answers = ask(cluster, follower, batched(channel, 2**63 - 1))
    run(cluster, 400)
    assert code(answers) == "lag_unknown"


# --- positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["linearizable", "leader", "bounded", "any"])
def test_blog_33_position_from_the_future_is_refused_at_the_deadline(level: str) -> None:
    """At every level: never other rows, never a hang, and a code of its own."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    answers = ask(cluster, leader, Get(1, channel, (b"k",), level, 5, Seq(10**9), 700))
    run(cluster, 600)
    assert code(answers) == ""
    run(cluster, 200)
    assert code(answers) == "not_up_to_bound"
    [answer] = answers
    assert isinstance(answer, Failed)
    assert "check where the position comes from" in answer.message


@pytest.mark.parametrize("level", ["linearizable", "leader", "bounded", "any"])
def test_position_is_waited_for_at_every_level(level: str) -> None:
    """The answer holds it, and what the level asks for as well."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    wanted = leader.tables.applied_seq(channel) + 1
    read = Get(1, channel, (b"k",), level, 5, Seq(wanted), 5_000)
    answers = ask(cluster, leader, read)
    run(cluster, 500)
    assert code(answers) == ""
    write(cluster, channel, 1, RecordKind.ROWS)
    run(cluster, 100)
    assert served(answers).applied_seq >= wanted


def test_time_bound_counts_when_the_position_is_reached() -> None:
    """A proof from when the read came would be too old by then: it asks for another."""
    cluster, channel = calm_cluster()
    follower = follower_of(cluster, channel)
    wanted = follower.tables.applied_seq(channel) + 1
    answers = ask(cluster, follower, timed(channel, 200, timeout_ms=5_000, min_seq=wanted))
    run(cluster, 2_000)
    assert code(answers) == ""
    write(cluster, channel, 1, RecordKind.ROWS)
    run(cluster, 300)
    age = served(answers).staleness_ms
    assert age is not None
    assert age <= 200
