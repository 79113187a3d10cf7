"""The limit on requested changes of leader: no client keeps a channel without a leader by repeating
them.
"""

from __future__ import annotations

from raftstore.engine.catalog.step_down_limit import (
    CHANNEL_BURST,
    CLIENT_BURST,
    INTERVAL_MS,
    KEPT_MIN,
    StepDownLimit,
)
from raftstore.protocol.admin import Metrics, MetricsAnswer, StepDown
from raftstore.protocol.message import Done, Failed
from raftstore.types import ChannelId
from tests.unit.engine.engine_world import ask, calm_cluster, run

FIRST, SECOND = ChannelId(b"1" * 18), ChannelId(b"2" * 18)


def taken(
    limit: StepDownLimit, client: int, times: int, now_ms: int, channel: ChannelId = FIRST
) -> int:
    """How many of so many requests are taken in."""
    return sum(limit.refusal(channel, "t/0", client, now_ms) is None for _ in range(times))


def test_one_client_leaves_something_for_another() -> None:
    """Given a client that asks without end, it is refused, and another client may still move the
    leader once or twice.
    """
    limit = StepDownLimit()
    assert taken(limit, 1, 100, 0) == CLIENT_BURST
    assert taken(limit, 2, 1, 0) == 1
    assert limit.refused == 100 - CLIENT_BURST


def test_more_connections_give_nobody_more() -> None:
    """All clients together have a bound, too, and other channels have their own."""
    limit = StepDownLimit()
    assert sum(taken(limit, client, 1, 0) for client in range(1, 101)) == CHANNEL_BURST
    assert taken(limit, 1, 1, 0, SECOND) == 1
    text = limit.refusal(FIRST, "t/0", 200, 1)
    assert text is not None
    assert "channel t/0 was asked too often to change its leader" in text
    assert text.endswith("ask again in 10 s")


def test_one_more_is_taken_after_each_interval() -> None:
    """A refused request is not counted: who keeps asking waits no longer for it."""
    limit = StepDownLimit()
    assert taken(limit, 1, CLIENT_BURST, 0) == CLIENT_BURST
    assert taken(limit, 1, 100, INTERVAL_MS - 1) == 0
    assert taken(limit, 1, 100, INTERVAL_MS) == 1
    assert taken(limit, 1, 100, 100 * INTERVAL_MS) == CLIENT_BURST


def test_counts_that_have_run_out_are_forgotten() -> None:
    """Thousands of channels and clients come and go."""
    limit = StepDownLimit()
    for number in range(10 * KEPT_MIN):
        channel = ChannelId(number.to_bytes(18, "big"))
        assert limit.refusal(channel, "t/0", number + 1, number * INTERVAL_MS) is None
        assert len(limit) <= KEPT_MIN + 2


def test_counts_are_looked_through_when_they_have_doubled() -> None:
    """To look at all of them at each request would cost more than they do; those that still count
    stay, and so does the bound of who asked too often."""
    limit = StepDownLimit()
    assert len(limit) == 0
    for number in range(KEPT_MIN // 2):
        assert taken(limit, number + 1, 1, 0, ChannelId(number.to_bytes(18, "big"))) == 1
        assert len(limit) == 2 * (number + 1)
    # The first look: one pair more than fits, and everything before it has run out just now.
    assert taken(limit, 1, 1, INTERVAL_MS, FIRST) == 1
    assert len(limit) == 2
    for number in range(KEPT_MIN // 2 - 1):
        assert taken(limit, number + 1, 1, INTERVAL_MS, ChannelId(bytes(17) + bytes([number]))) == 1
    assert len(limit) == KEPT_MIN
    # The next look finds all of them alive: it doubles what may be kept.
    assert taken(limit, 1, CLIENT_BURST, INTERVAL_MS, SECOND) == CLIENT_BURST
    assert len(limit) == KEPT_MIN + 2
    later = 2 * INTERVAL_MS
    for number in range(KEPT_MIN // 2 + 1):
        assert taken(limit, number + 1, 1, later, ChannelId(b"\x01" * 17 + bytes([number]))) == 1
    assert len(limit) == 2 * (KEPT_MIN + 2)
    assert taken(limit, 1, 1, later, ChannelId(b"\x02" * 18)) == 1
    assert len(limit) == KEPT_MIN + 2 + 4, "the first ones have run out, SECOND has not"
    assert taken(limit, 1, 100, later, SECOND) == 1


def test_flood_of_requests_moves_a_leadership_few_times() -> None:
    """S12: each node takes a few, says clearly why it takes no more, and counts what it refused."""
    cluster, channel = calm_cluster()
    moved = 0
    for number in range(1, 40):
        leader = cluster.leaders()[channel]
        answers = ask(cluster, leader, StepDown(number, channel, None, 1_000))
        run(cluster, 300)
        done = [answer for answer in answers if isinstance(answer, Done)]
        moved += len(done)
        if not done:
            [failed] = answers
            assert isinstance(failed, Failed)
            assert failed.code == "overloaded"
            assert "was asked too often to change its leader" in failed.message
            assert cluster.leaders()[channel] is leader
            break
    assert 0 < moved <= 3 * CHANNEL_BURST
    answers = ask(cluster, leader, Metrics(99))
    run(cluster, 10)
    [metrics] = answers
    assert isinstance(metrics, MetricsAnswer)
    assert ("raftstore_step_downs_refused_total", (), 1.0) in metrics.samples
