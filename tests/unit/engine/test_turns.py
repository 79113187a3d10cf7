"""Several calls into a node that are one turn: what is put off to its end, and what is not."""

from __future__ import annotations

from raftstore.protocol.admin import ClusterInfo
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.replication import StoreRequest
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_runner import WatchedRunner
from raftstore.types import ChannelId
from tests.unit.engine.engine_world import calm_cluster, publish, spy


def leading() -> tuple[SimCluster, ChannelId, SimNode, WatchedRunner]:
    """A calm cluster with a table of one channel, and the node that leads it."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    assert node.runner is not None
    return cluster, channel, node, node.runner


def write(
    cluster: SimCluster, channel: ChannelId, node: SimNode, counter: int, now_ms: int
) -> None:
    """A client's write arrives, and what follows from it is left to the caller."""
    assert node.runner is not None
    payload = encode_rows([(b"k", seal(b"k", b"%d" % counter))])
    message = publish(cluster, node, channel, counter, payload)
    node.runner.on_client_message(778, message, now_ms)


def test_deadlines_of_a_turn_are_asked_for_once_at_its_end() -> None:
    """A write that waits for its quorum has an end: the node knows of it after the turn."""
    cluster, channel, node, runner = leading()
    asked: list[int] = []
    channel_runner = runner.channels[channel]
    found = channel_runner.next_deadline_ms

    def spied() -> int | None:
        asked.append(1)
        return found()

    channel_runner.next_deadline_ms = spied  # type: ignore[method-assign]
    now = node.clock.now_ms()
    runner.begin_turn()
    for counter in (1, 2, 3):
        write(cluster, channel, node, counter, now)
    assert asked == []
    runner.end_turn(now)
    assert len(asked) == 1
    due = found()
    assert due is not None
    assert runner.next_deadline_ms() <= due


def test_stop_of_the_process_within_a_turn_is_noticed() -> None:
    """S7.3: what the turn heard before the stop is old when the turn ends."""
    cluster, channel, node, runner = leading()
    now = node.clock.now_ms()
    runner.begin_turn()
    write(cluster, channel, node, 1, now)
    assert runner.channels[channel].core.is_trusting
    runner.end_turn(now + 20_000)
    assert not runner.channels[channel].core.is_trusting
    assert runner.next_deadline_ms() <= now + 20_000 + 1_000


def test_report_within_a_turn_tells_what_the_turn_has_done_before() -> None:
    """S7.3: a position that is called new is not the one of before the turn."""
    cluster, channel, node, runner = leading()
    now = node.clock.now_ms()
    reports = runner.watch.reports
    reports._positions_here()  # a report was made before
    end = runner.channels[channel].core.last_seq
    runner.begin_turn()
    write(cluster, channel, node, 1, now)
    runner.on_client_message(778, ClusterInfo(1), now)  # another call, of the same turn
    told = {whole.channel: whole for _, whole, _ in reports._positions_here()}
    assert told[channel].last_seq == end + 1
    runner.end_turn(now)


def test_messages_of_a_turn_leave_at_its_end_unless_the_node_halted() -> None:
    """S0.4: nothing leaves a node that found itself broken before its turn was over."""
    cluster, channel, node, runner = leading()
    sent = spy(cluster, node)
    now = node.clock.now_ms()
    for counter, expected in ((1, 2), (2, 0)):
        runner.begin_turn()
        write(cluster, channel, node, counter, now)
        assert [message for _, message in sent if isinstance(message, StoreRequest)] == []
        if not expected:
            runner.halt.reason = "broken"
        runner.end_turn(now)
        assert len([1 for _, message in sent if isinstance(message, StoreRequest)]) == expected
        sent.clear()
