"""Heartbeat windows on synthetic timelines; the sentences of KLIP-12 are in tests/design."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raftstore.config import HeartbeatSettings
from raftstore.policy.health import HealthChange, HealthState, HealthTable
from raftstore.types import NodeId

SETTINGS = HeartbeatSettings()
PEER = NodeId("n2@02")
OTHER = NodeId("n3@03")
DETECTION_MS = 350
"""missed_threshold intervals, and half of one for delays."""


def run(
    table: HealthTable, arrivals: Iterable[int], *, until_ms: int, from_ms: int = 0
) -> list[tuple[int, HealthChange]]:
    """Feed arrivals and check every check interval; return the changes with their times."""
    pending = sorted(arrivals, reverse=True)
    changes = []
    for now in range(from_ms, until_ms + 1, SETTINGS.check_interval_ms):
        while pending and pending[-1] <= now:
            table.on_heartbeat(PEER, pending.pop())
        changes += [(now, change) for change in table.check(now)]
    return changes


def watched() -> HealthTable:
    """A table with one peer, discovered at 0."""
    table = HealthTable(SETTINGS)
    table.add_peer(PEER, 0)
    return table


def test_peer_stays_up_while_heartbeats_come() -> None:
    """A steady peer never changes, from its discovery on."""
    table = watched()
    assert run(table, range(0, 10_000, 100), until_ms=10_000) == []
    assert table.is_up(PEER)


@given(st.lists(st.integers(-49, 49), min_size=60, max_size=60), st.integers(0, 99))
def test_peer_stays_up_when_heartbeats_jitter_below_half_an_interval(
    jitter: list[int], phase: int
) -> None:
    """Late and early heartbeats are not missed ones."""
    arrivals = [100 + phase + 100 * turn + late for turn, late in enumerate(jitter)]
    assert run(watched(), arrivals, until_ms=6_000) == []


@given(st.lists(st.integers(1, 299), min_size=20, max_size=20))
def test_peer_stays_up_when_no_pause_reaches_the_threshold(pauses: list[int]) -> None:
    """Given any rhythm of heartbeats without three silent intervals, the peer stays up."""
    arrivals, now = [], 0
    for pause in pauses:
        now += pause
        arrivals.append(now)
    assert run(watched(), arrivals, until_ms=now) == []


@given(st.integers(0, 99), st.integers(20, 60))
def test_peer_goes_down_between_three_and_four_intervals_after_its_last_heartbeat(
    phase: int, count: int
) -> None:
    """The time of detection is bounded on both sides, whatever the phase."""
    arrivals = [phase + 100 * turn for turn in range(count)]
    ((down_ms, change),) = run(watched(), arrivals, until_ms=arrivals[-1] + 1_000)
    assert not change.up
    assert change.reason == "3 heartbeats missed in a row"
    silence = down_ms - arrivals[-1]
    assert DETECTION_MS <= silence < DETECTION_MS + SETTINGS.check_interval_ms


def test_peer_stays_up_when_heartbeats_come_in_bursts() -> None:
    """Three at once every 300 ms are three heartbeats, and two missed slots are not three."""
    arrivals = [turn * 300 for turn in range(20) for _ in range(3)]
    assert run(watched(), arrivals, until_ms=5_700) == []


def test_peer_goes_down_and_comes_up_again_after_a_pause() -> None:
    """A paused process is down while it sleeps and up after two slots with heartbeats."""
    table = watched()
    arrivals = [*range(0, 1_000, 100), *range(3_000, 4_000, 100)]
    changes = run(table, arrivals, until_ms=3_900)
    assert [(now, change.up) for now, change in changes] == [(1_250, False), (3_150, True)]
    assert table.state(PEER) is HealthState.UP


def test_peer_stays_down_when_only_a_burst_arrives() -> None:
    """Old heartbeats read at once from a buffer fill one slot, which is not two in a row."""
    arrivals = [*range(0, 1_000, 100), *[3_000] * 50]
    changes = run(watched(), arrivals, until_ms=5_000)
    assert [change.up for _, change in changes] == [False]


def test_peer_never_heard_goes_down_after_the_threshold_from_its_discovery() -> None:
    """The optimism about new nodes ends with the first missed heartbeats in a row."""
    ((down_ms, change),) = run(watched(), [], until_ms=2_000)
    assert (down_ms, change.up) == (DETECTION_MS, False)


def test_peer_is_unknown_until_the_first_window_is_complete() -> None:
    """KLIP-28: unknown counts as up."""
    table = watched()
    run(table, range(0, 1_900, 100), until_ms=1_950)
    assert table.state(PEER) is HealthState.UNKNOWN
    assert table.is_up(PEER)
    run(table, range(1_900, 2_100, 100), from_ms=2_000, until_ms=2_050)
    assert table.state(PEER) is HealthState.UP
    assert table.since_ms(PEER) == 2_000


def test_peer_is_suspect_at_once_when_its_connection_breaks() -> None:
    """KLIP-49: suspect is asked last, but not down before heartbeats are missed."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=2_950)
    assert table.connection_lost(PEER, 2_960, refused=False) is None
    assert table.state(PEER) is HealthState.SUSPECT
    assert table.is_up(PEER)
    ((down_ms, change),) = run(table, [], from_ms=3_000, until_ms=3_500)
    assert (down_ms, change.up) == (3_250, False)  # 350 ms after the last heartbeat at 2,900


def test_suspect_peer_is_up_again_when_a_heartbeat_comes_after_the_break() -> None:
    """A connection that is made anew ends the suspicion; heartbeats from before do not."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=2_950)
    table.connection_lost(PEER, 2_960, refused=False)
    run(table, [], from_ms=3_000, until_ms=3_000)
    assert table.state(PEER) is HealthState.SUSPECT
    assert run(table, [3_040], from_ms=3_050, until_ms=3_050) == []
    assert table.state(PEER) is HealthState.UP


def test_peer_is_down_at_once_when_its_connection_is_refused() -> None:
    """A refused connection takes the peer down at once, without waiting for missed heartbeats, and
    is reported once.
    """
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=2_950)
    assert table.connection_lost(PEER, 2_960, refused=True) == HealthChange(
        PEER, up=False, reason="connection refused"
    )
    assert not table.is_up(PEER)
    assert table.connection_lost(PEER, 2_970, refused=True) is None
    assert run(table, [], from_ms=3_000, until_ms=4_000) == []


def test_refused_peer_comes_up_only_by_heartbeats_from_after_the_refusal() -> None:
    """Heartbeats of the process that died do not count for the one that follows."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=2_950)
    table.connection_lost(PEER, 2_960, refused=True)
    changes = run(table, range(3_000, 3_500, 100), from_ms=3_000, until_ms=3_500)
    assert [(now, change.up) for now, change in changes] == [(3_150, True)]
    assert changes[0][1].reason == "2 heartbeats in a row"


def test_no_peer_goes_down_when_this_node_stood_still() -> None:
    """A node that was paused blames itself: nothing could reach it."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=2_950)
    # The first check comes before the first heartbeat is read.
    assert run(table, range(9_050, 9_550, 100), from_ms=9_000, until_ms=9_500) == []
    assert table.is_up(PEER)


def test_no_peer_goes_down_while_its_heartbeats_may_wait_unread() -> None:
    """Ears that had no processor for a while take nobody for dead; then silence counts again."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=3_000)
    table.listened(3_000, 0)
    assert run(table, (), from_ms=3_050, until_ms=4_500) == []
    for arrived_ms in range(3_000, 4_500, 100):
        table.on_heartbeat(PEER, arrived_ms)
    changes: list[HealthChange] = []
    for now_ms in range(4_500, 5_000, SETTINGS.check_interval_ms):
        table.listened(now_ms, 0)
        changes += table.check(now_ms)
        assert not changes or now_ms >= 4_400 + DETECTION_MS
    assert [change.up for change in changes] == [False]


@given(st.integers(0, 3_000))
def test_peer_goes_down_as_much_later_as_this_node_was_late_itself(late_ms: int) -> None:
    """A node without a processor gives the others as long as it needed, a window at most."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=2_900)
    changes: list[tuple[int, bool]] = []
    for now_ms in range(2_950, 7_000, SETTINGS.check_interval_ms):
        table.listened(now_ms, late_ms)
        changes += [(now_ms, change.up) for change in table.check(now_ms)]
    ((down_ms, is_up),) = changes
    assert not is_up
    allowed_ms = DETECTION_MS + min(late_ms, SETTINGS.window_ms)
    assert 0 <= down_ms - 2_900 - allowed_ms < SETTINGS.check_interval_ms


def test_peer_comes_up_at_once_however_late_this_node_was() -> None:
    """Being late excuses silence; heartbeats that came count all the same."""
    table = watched()
    run(table, range(0, 1_000, 100), until_ms=2_950)
    assert not table.is_up(PEER)
    ups: list[int] = []
    for now_ms in range(3_000, 4_000, SETTINGS.check_interval_ms):
        if now_ms % 100 == 0:
            table.on_heartbeat(PEER, now_ms)
        table.listened(now_ms, 900)
        ups += [now_ms for change in table.check(now_ms) if change.up]
    assert ups == [3_150]


def test_dead_peer_is_found_although_nobody_listens_for_a_whole_window() -> None:
    """Ears that are deaf for good excuse nobody."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=3_000)
    table.listened(3_000, 0)
    ((down_ms, change),) = run(table, (), from_ms=3_050, until_ms=8_000)
    assert not change.up
    assert down_ms == 3_000 + SETTINGS.window_ms + SETTINGS.check_interval_ms


def test_dead_peer_is_found_when_this_node_stood_still_meanwhile() -> None:
    """The excuse delays the detection by one threshold, it does not prevent it."""
    table = watched()
    run(table, range(0, 3_000, 100), until_ms=2_950)
    ((down_ms, _),) = run(table, [], from_ms=9_000, until_ms=9_500)
    assert down_ms == 9_000 + DETECTION_MS


def test_dead_peer_is_found_by_a_node_that_is_always_late() -> None:
    """Standing still excuses once per window only, or nobody would ever be found dead."""
    table = watched()
    changes = [change for now in range(0, 5_000, 400) for change in table.check(now)]
    assert [change.up for change in changes] == [False]


@given(st.integers(300, 2_000), st.integers(50, 300), st.integers(0, 299))
@example(300, 300, 0)
def test_silent_peer_is_found_with_every_window_and_check_interval(
    window_ms: int, check_ms: int, phase_ms: int
) -> None:
    """Checks that are on time, up to a check interval late, excuse nobody."""
    table = HealthTable(HeartbeatSettings(window_ms=window_ms, check_interval_ms=check_ms))
    table.add_peer(PEER, 0)
    for arrived_ms in range(0, 1_000, 100):
        table.on_heartbeat(PEER, arrived_ms)
    checks = range(1_000 + phase_ms, 4_000, check_ms + check_ms // 10)
    downs = [now_ms for now_ms in checks if any(not each.up for each in table.check(now_ms))]
    assert len(downs) == 1
    assert downs[0] - 900 < DETECTION_MS + 2 * check_ms


@given(st.integers(2, 10), st.integers(0, 99))
@example(3, 40)
def test_live_peer_comes_up_although_it_must_be_heard_for_the_whole_window(
    slots: int, phase_ms: int
) -> None:
    """The oldest slot reaches as far beyond the window as the newest one waits for delays."""
    settings = HeartbeatSettings(
        window_ms=100 * slots,
        received_threshold=slots,
        missed_threshold=slots,
        check_interval_ms=100,
    )
    table = HealthTable(settings)
    table.add_peer(PEER, 0)
    table.connection_lost(PEER, 0, refused=True)
    ups: list[bool] = []
    for arrived_ms in range(1_000, 4_000, 100):
        table.on_heartbeat(PEER, arrived_ms)
        ups += [change.up for change in table.check(arrived_ms + phase_ms)]
    assert ups == [True]


@pytest.mark.parametrize("every_ms", [1, 7, 10, 33, 60, 99])
@pytest.mark.parametrize("received", [2, 5, 20])
def test_live_peer_comes_up_however_often_it_sends(every_ms: int, received: int) -> None:
    """KLIP-30: heartbeats that share a slot with others do not push those of older slots out."""
    table = HealthTable(HeartbeatSettings(received_threshold=received))
    table.add_peer(PEER, 0)
    table.connection_lost(PEER, 0, refused=True)
    ups: list[tuple[int, bool]] = []
    for now_ms in range(1_000, 4_000):
        if now_ms % every_ms == 0:
            table.on_heartbeat(PEER, now_ms)
        if now_ms % SETTINGS.check_interval_ms == 0:
            ups += [(now_ms, change.up) for change in table.check(now_ms)]
    ((up_ms, is_up),) = ups
    assert is_up
    assert up_ms - 1_000 <= 100 * (received + 1)


@given(st.lists(st.integers(0, 120), min_size=1, max_size=200), st.integers(0, 200))
def test_slots_are_heard_as_if_every_heartbeat_were_remembered(
    pauses: list[int], after_ms: int
) -> None:
    """KLIP-30: what is not remembered takes no slot away, whatever the rhythm."""
    table, arrivals = watched(), [0]
    for pause in pauses:
        arrivals.append(arrivals[-1] + pause)
    for arrived_ms in arrivals:
        table.on_heartbeat(PEER, arrived_ms)
    now_ms = arrivals[-1] + after_ms
    remembered = table._heard_slots(table._peers[PEER].arrivals, now_ms)
    assert remembered == table._heard_slots(arrivals, now_ms)


def test_memory_of_a_peer_is_bounded_when_heartbeats_flood() -> None:
    """KLIP-29: two heartbeats per slot of a window are remembered at most, whatever arrives."""
    table = watched()
    for arrived_ms in range(100_000):
        table.on_heartbeat(PEER, arrived_ms)
        table.on_heartbeat(PEER, arrived_ms)
    assert len(table._peers[PEER].arrivals) == 2 * (20 + 1)


def test_peers_are_judged_apart() -> None:
    """The silence of one says nothing about the other; unknown nodes are ignored."""
    table = watched()
    table.add_peer(OTHER, 0)
    table.add_peer(OTHER, 500)
    table.on_heartbeat(NodeId("nobody@00"), 1)
    assert table.connection_lost(NodeId("nobody@00"), 1, refused=True) is None
    changes = run(table, range(0, 1_000, 100), until_ms=900)
    assert [(change.node, change.up) for _, change in changes] == [(OTHER, False)]
    assert table.state(NodeId("nobody@00")) is None
    assert not table.is_up(NodeId("nobody@00"))


def test_last_heard_is_the_newest_arrival() -> None:
    """Arrivals may be reported out of order; unknown nodes and silent ones have none."""
    table = watched()
    assert table.last_heard_ms(PEER) is None
    table.on_heartbeat(PEER, 200)
    table.on_heartbeat(PEER, 100)
    assert table.last_heard_ms(PEER) == 200
    assert table.last_heard_ms(OTHER) is None
    assert table.since_ms(OTHER) is None
    assert table.skew_ms(OTHER) is None


@pytest.mark.parametrize(("missed", "down_ms"), [(1, 150), (5, 550), (10, 1_050)])
def test_thresholds_come_from_the_settings(missed: int, down_ms: int) -> None:
    """KLIP-12's numbers are settings, not constants."""
    table = HealthTable(HeartbeatSettings(missed_threshold=missed))
    table.add_peer(PEER, 0)
    times = [now for now in range(0, 3_000, 50) if table.check(now)]
    assert times == [down_ms]
