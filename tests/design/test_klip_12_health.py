"""KLIP-12, "Failure detection/Healthcheck": one test per requirement, quoting its sentence."""

from __future__ import annotations

import pytest

from raftstore.config import HeartbeatSettings
from raftstore.policy.health import HealthState, HealthTable
from raftstore.policy.lag import LagTable
from raftstore.protocol.node import ChannelPosition
from raftstore.types import NodeId, Seq, Term, channel_id

PEER = NodeId("n2@02")
SEND_MS = 100
HOUR_MS = 3_600_000


def table(**changes: int) -> HealthTable:
    """One peer, discovered at 0, with the document's numbers and no half slot at the edges."""
    health = HealthTable(HeartbeatSettings(send_interval_ms=SEND_MS, **changes))
    health.add_peer(PEER, 0)
    return health


def feed(health: HealthTable, *arrivals_ms: int) -> None:
    """Heartbeats arrive at these times of the local monotonic clock."""
    for arrived_ms in arrivals_ms:
        health.on_heartbeat(PEER, arrived_ms)


@pytest.mark.parametrize(("missed_slots", "up"), [(2, True), (3, False), (4, False)])
def test_klip_27_peer_is_down_when_as_many_heartbeats_are_missed_in_a_row_as_the_threshold(
    missed_slots: int, up: bool
) -> None:
    """KLIP-27: "e.g. 3 missed heartbeats = server is down": at the threshold, not above it."""
    health = table(missed_threshold=3)
    feed(health, *range(0, 3_000, SEND_MS))
    health.check(2_900)
    now = 2_900 + missed_slots * SEND_MS + SEND_MS // 2
    for moment in range(2_950, now + 1, 50):
        health.check(moment)
    assert health.is_up(PEER) is up


def test_klip_27_peer_stays_up_when_missed_heartbeats_are_not_in_a_row() -> None:
    """KLIP-27: only heartbeats missed "in a row" count, not the sum over the window."""
    health = table(missed_threshold=3, window_ms=2_000)
    arrivals = [moment for moment in range(0, 3_000, SEND_MS) if moment % 300 == 0]
    for now in range(0, 3_000, 50):
        feed(health, *(moment for moment in arrivals if moment == now))
        assert health.check(now) == []
    assert health.is_up(PEER)


@pytest.mark.parametrize(("received", "up"), [(1, False), (2, True)])
def test_klip_28_down_peer_is_up_after_as_many_slots_with_a_heartbeat_as_the_threshold(
    received: int, up: bool
) -> None:
    """KLIP-28: "e.g. 2 received heartbeats = server is up", in consecutive slots."""
    health = table(received_threshold=2)
    for now in range(0, 1_001, 50):
        health.check(now)
    assert not health.is_up(PEER)
    feed(health, *(1_100 + SEND_MS * turn for turn in range(received)))
    for now in range(1_050, 1_100 + SEND_MS * received + 50, 50):
        health.check(now)
    assert health.is_up(PEER) is up


def test_klip_28_newly_discovered_peer_is_up_and_shown_as_unknown_for_one_window() -> None:
    """KLIP-28: a new node "starts as up (optimistic) with state unknown"."""
    health = table(window_ms=2_000)
    states = []
    for now in range(0, 2_101, 50):
        if now % SEND_MS == 0:
            feed(health, now)
        health.check(now)
        assert health.is_up(PEER)
        states.append((now, health.state(PEER)))
    assert {state for now, state in states if now < 2_000} == {HealthState.UNKNOWN}
    assert {state for now, state in states if now >= 2_000} == {HealthState.UP}


def test_klip_29_heartbeats_from_before_the_window_are_expunged() -> None:
    """KLIP-29: "Heartbeats that were received before windowStart are expunged"."""
    health = table(window_ms=2_000)
    feed(health, *range(0, 2_000, SEND_MS))
    health.check(1_950)
    assert len(health._peers[PEER].arrivals) == 20
    health.check(3_050)
    assert list(health._peers[PEER].arrivals) == list(range(1_100, 2_000, SEND_MS))
    health.check(9_000)
    assert not health._peers[PEER].arrivals


def test_klip_30_a_heartbeat_is_looked_for_in_every_send_interval_of_the_window() -> None:
    """KLIP-30: "whether there was a heartbeat received every SEND interval"; two in one interval
    do not stand for the one that is missing in the next."""
    health = table(received_threshold=3, missed_threshold=1)
    for now in range(0, 1_001, 50):
        health.check(now)
    assert not health.is_up(PEER)
    feed(health, 1_200, 1_200, 1_400, 1_400)
    for now in range(1_250, 1_500, 50):
        health.check(now)
    assert not health.is_up(PEER)
    feed(health, 1_500, 1_600)
    health.check(1_650)
    assert health.is_up(PEER)


@pytest.mark.parametrize("late_ms", [0, 49])
def test_klip_30_a_heartbeat_late_by_less_than_half_an_interval_is_not_missed(
    late_ms: int,
) -> None:
    """KLIP-30: slot counting "with half an interval of tolerance"."""
    health = table(missed_threshold=1)
    feed(health, *range(0, 1_000, SEND_MS))
    health.check(950)
    now = 900 + SEND_MS + late_ms
    assert health.check(now) == []
    feed(health, now)
    assert health.check(now + 50) == []


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, 0, HOUR_MS])
def test_klip_31_a_clock_skew_of_an_hour_marks_nobody_down(skew_ms: int) -> None:
    """KLIP-31: the receiver's arrival time counts; the sender's "only yields a skew metric"."""
    health = table()
    for now in range(0, 3_000, 50):
        if now % SEND_MS == 0:
            health.on_heartbeat(PEER, now, skew_ms=skew_ms)
        assert health.check(now) == []
    assert health.state(PEER) is HealthState.UP
    assert health.skew_ms(PEER) == skew_ms


def test_klip_32_defaults_find_a_dead_peer_long_before_two_seconds() -> None:
    """KLIP-17, KLIP-32: "no longer than 2 seconds to determine the active server is down"."""
    health = HealthTable(HeartbeatSettings())
    health.add_peer(PEER, 0)
    down_ms = None
    for now in range(0, 10_000, 50):
        if now % 100 == 0 and now <= 5_000:
            feed(health, now)
        if health.check(now):
            down_ms = now
    assert down_ms is not None
    assert down_ms - 5_000 <= 500


def test_klip_44_stopping_lag_reports_does_not_change_who_is_up() -> None:
    """KLIP-44: failure detection is "decoupled" from lag reporting."""
    health = table()
    lags = LagTable(leader_info_age_max_ms=1_000)
    channel = channel_id(b"t" * 16, 0)
    report = ChannelPosition(channel, Term(1), True, Seq(5), Seq(5), Seq(5), b"")
    lags.on_positions(PEER, [report], 0)
    for now in range(0, 5_000, 50):
        if now % SEND_MS == 0:
            feed(health, now)
        assert health.check(now) == []
    assert lags.lag(PEER, channel, 5_000) is None
    assert health.is_up(PEER)


def test_klip_49_a_broken_connection_makes_a_peer_suspect_at_once_and_not_down() -> None:
    """KLIP-49: "marks the peer suspect at once (routed last, not down)"."""
    health = table()
    feed(health, 0, 100)
    health.check(150)
    health.connection_lost(PEER, 160, refused=False)
    assert health.state(PEER) is HealthState.SUSPECT
    assert health.is_up(PEER)
