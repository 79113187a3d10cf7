"""A follower that falls further behind all the time says so, and nothing else (NATS-147..152)."""

from __future__ import annotations

import pytest

from raftstore.config import SLOW_ACTIONS, SLOW_IGNORED, CatchUpSettings
from raftstore.core.effects import CannotCatchUp, CatchUpPaced, ReplicaCannotComplete
from raftstore.protocol.replication import (
    CannotComplete,
    CaughtUp,
    CommitNotice,
    MsgSyncRequest,
    StoreAck,
)
from raftstore.types import FollowerMode, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, Bench, make_replica, record

WINDOW_MS = 1_000
WINDOWS = 3


class Throttled:
    """A follower that is given one record of history in each window."""

    def __init__(self, slow_action: str = "retire", stored: int = 1) -> None:
        settings = CatchUpSettings(
            slow_action=slow_action, slow_windows=WINDOWS, slow_window_ms=WINDOW_MS
        )
        self.stored = stored
        self.bench = Bench(make_replica(N1, records=[record(1)], catch_up=settings))
        self.bench.follow(N2, term=1)
        self.held, self.end = 1, 100
        self.give(records=0)

    def give(self, *, records: int) -> None:
        """Answer the request with so many records, and have them on the disk."""
        asked = self.bench.sent(MsgSyncRequest, self.bench.all_effects)[-1]
        assert isinstance(asked, MsgSyncRequest)
        self.bench.sync(
            *(record(self.held + 1 + number) for number in range(records)),
            request_id=asked.request_id,
            from_seq=self.held + 1,
            prev_term=1,
            last_seq=self.end,
        )
        self.held += records
        self.bench.persist()

    def window(self, *, written: int = 2) -> None:
        """The leader writes so many records, and the follower gets its one."""
        self.bench.now_ms += WINDOW_MS
        self.end += written
        self.give(records=self.stored)

    def told(self) -> list[CannotComplete]:
        """Messages to the leader that say so."""
        sent = self.bench.sent(CannotComplete, self.bench.all_effects)
        return [message for message in sent if isinstance(message, CannotComplete)]


def test_follower_whose_distance_grows_in_each_window_tells_its_leader_once() -> None:
    """NATS-150: with the distances; NATS-147: and it goes on catching up, acknowledging what it
    stored: nothing is counted for it or against it in the quorum that was not before.
    """
    throttled = Throttled()
    for _ in range(WINDOWS - 1):
        throttled.window()
    assert throttled.told() == []
    throttled.window()
    (message,) = throttled.told()
    assert (message.seq, message.deltas) == (throttled.held, (100, 101, 102))
    for _ in range(2 * WINDOWS):
        throttled.window()
        acks = throttled.bench.sent(StoreAck)
        assert acks, "it acknowledges what it has stored"
    assert len(throttled.told()) == 1
    view = throttled.bench.replica.catch_up()
    assert view is not None
    assert view.cannot_complete
    assert throttled.bench.replica.mode is FollowerMode.CATCHING_UP


def test_follower_that_comes_nearer_says_nothing() -> None:
    """Given two records in each window and one that is written, it is on its way; its pace is
    reported at the end of each window (NATS-140, NATS-149).
    """
    throttled = Throttled(stored=2)
    for _ in range(2 * WINDOWS):
        throttled.window(written=1)
    assert throttled.told() == []
    paced = throttled.bench.of(CatchUpPaced, throttled.bench.all_effects)
    assert len(paced) == 2 * WINDOWS
    view = throttled.bench.replica.catch_up()
    assert view is not None
    assert (view.from_seq, view.verified_seq, view.end_seq) == (1, 13, 106)
    assert (view.rows_per_s, view.written_per_s) == (2, 1)
    assert (view.rows_left, view.left_ms) == (93, 93_000)
    assert view.bytes_taken == sum(len(record(seq).payload) for seq in range(2, 14))
    assert not view.cannot_complete


@pytest.mark.parametrize("action", SLOW_ACTIONS)
def test_its_own_node_hears_it_whatever_the_action_is(action: str) -> None:
    """NATS-147: the leader is not notified where that is not wanted."""
    throttled = Throttled(action)
    for _ in range(WINDOWS):
        throttled.window()
    (effect,) = throttled.bench.of(CannotCatchUp, throttled.bench.all_effects)
    assert effect == CannotCatchUp((100, 101, 102), Seq(throttled.held))
    assert bool(throttled.told()) is (action != SLOW_IGNORED)


def test_follower_that_is_given_nothing_is_not_slow() -> None:
    """Given a leader that does not answer and goes on writing, the follower is not at fault."""
    throttled = Throttled()
    bench = throttled.bench
    for number in range(20):
        end = Seq(200 + number)
        bench.receive(CommitNotice(CHANNEL, Term(1), Seq(0), end, Term(1), b""))
        bench.wait(WINDOW_MS)
    assert throttled.told() == []


def test_new_leader_is_told_anew() -> None:
    """S6.2: what was measured under one leader says nothing to the next one; it is reported in its
    turn.
    """
    throttled = Throttled()
    for _ in range(WINDOWS):
        throttled.window()
    assert len(throttled.told()) == 1
    throttled.bench.follow(N3, term=2)
    view = throttled.bench.replica.catch_up()
    assert view is not None
    assert not view.cannot_complete


def test_leader_remembers_it_until_the_follower_has_caught_up() -> None:
    """NATS-151: it keeps a mark for its reports, counts acknowledgements as ever, and commits."""
    bench = Bench(make_replica(N1))
    bench.lead(1)
    effects = bench.receive(CannotComplete(CHANNEL, Term(1), Seq(0), (7,) * 50), N2)
    assert bench.of(ReplicaCannotComplete, effects) == [
        ReplicaCannotComplete(N2, (7,) * CatchUpSettings().slow_windows)
    ]
    progress = bench.replica.progress()
    assert (progress[N2].cannot_complete, progress[N3].cannot_complete) == (True, False)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    assert bench.replica.commit_seq == 1
    bench.receive(CaughtUp(CHANNEL, Term(1), Seq(1)), N2)
    assert not bench.replica.progress()[N2].cannot_complete
