"""A replica that leaves steady state again and again (NATS-153)."""

from __future__ import annotations

from raftstore.core.effects import Effect, ReplicaFlapping
from raftstore.core.flapping import (
    FLAPPING_ENTRIES,
    FLAPPING_MS,
    STAY_MAX_MS,
    STAY_MIN_MS,
    Flapping,
)
from raftstore.protocol.replication import CaughtUp, CommitNotice, MsgSyncRequest, StoreAck
from raftstore.types import FollowerMode, Seq, Term
from tests.core_world import CHANNEL, N1, N2, Bench, make_replica, record


def test_fifth_time_within_ten_minutes_is_flapping_and_waits_twice_as_long_each_time() -> None:
    """NATS-153: the pause is doubled up to its bound, and forgotten after ten calm minutes."""
    flapping = Flapping()
    stays = [flapping.entered(number * 10_000) for number in range(FLAPPING_ENTRIES + 8)]
    assert stays[: FLAPPING_ENTRIES - 1] == [None] * (FLAPPING_ENTRIES - 1)
    assert stays[FLAPPING_ENTRIES - 1 : FLAPPING_ENTRIES + 2] == [1_000, 2_000, 4_000]
    assert stays[-1] == STAY_MAX_MS
    last_ms = (FLAPPING_ENTRIES + 7) * 10_000
    assert flapping.is_flapping(last_ms)
    assert not flapping.is_flapping(last_ms + FLAPPING_MS)
    assert flapping.entered(last_ms + FLAPPING_MS) is None
    assert not flapping.stays(last_ms + FLAPPING_MS)


def test_fifth_time_in_more_than_ten_minutes_is_not() -> None:
    """Given one every two and a half minutes, nothing is said of it."""
    flapping = Flapping()
    assert [flapping.entered(at * FLAPPING_MS // 4) for at in range(9)] == [None] * 9


class Cycling:
    """A follower that misses a StoreRequest again and again."""

    def __init__(self) -> None:
        self.bench = Bench(make_replica(N1, records=[record(1)]))
        self.bench.follow(N2, term=1)
        self.last = 1
        self.answered: list[Effect] = []
        """Effects of the last answer, the disk included."""
        self.answer()

    def asked(self, effects: list[Effect] | None = None) -> list[int]:
        """Where requests begin that were sent in the last step."""
        sent = self.bench.sent(MsgSyncRequest, effects)
        return [m.from_seq for m in sent if isinstance(m, MsgSyncRequest)]

    def answer(self) -> None:
        """The leader's answer to the newest request: everything up to its end."""
        request = self.bench.sent(MsgSyncRequest, self.bench.all_effects)[-1]
        assert isinstance(request, MsgSyncRequest)
        from_seq = request.from_seq or self.last + 1
        held = self.bench.replica.last_seq
        records = [record(seq) for seq in range(held + 1, self.last + 1)]
        self.answered = (
            self.bench.sync(
                *records, request_id=request.request_id, from_seq=from_seq, prev_term=1, term=1
            )
            + self.bench.persist()
        )

    def miss(self) -> None:
        """The leader has two more records, and sends the second."""
        self.last += 2
        self.bench.store_request(record(self.last), term=1, prev_term=1)

    @property
    def is_steady(self) -> bool:
        """Whether it is steady."""
        return self.bench.replica.mode is FollowerMode.STEADY


def test_flapping_replica_stays_with_history_and_goes_on_to_acknowledge() -> None:
    """NATS-153: given a replica that left steady state for the fifth time, it is fetched all that
    is written while it stays, acknowledges it as any follower does, and is steady afterwards.
    """
    cycling = Cycling()
    for _ in range(FLAPPING_ENTRIES - 1):
        assert cycling.is_steady
        cycling.miss()
        cycling.answer()
    assert not cycling.bench.of(ReplicaFlapping, cycling.bench.all_effects)
    cycling.miss()
    (told,) = cycling.bench.of(ReplicaFlapping)
    assert told == ReplicaFlapping("gap", STAY_MIN_MS)
    assert cycling.bench.replica.is_flapping
    cycling.answer()
    assert not cycling.is_steady
    assert not cycling.asked(cycling.answered), "there is nothing to be asked for"
    bench = cycling.bench
    acks = [ack for ack in bench.sent(StoreAck, cycling.answered) if isinstance(ack, StoreAck)]
    assert acks[-1].match_seq == cycling.last
    cycling.last += 1
    bench.store_request(record(cycling.last), term=1, prev_term=1)
    assert cycling.asked() == [cycling.last]
    cycling.answer()
    assert bench.replica.last_seq == cycling.last
    assert not cycling.is_steady
    effects = bench.wait(STAY_MIN_MS)
    assert bench.sent(MsgSyncRequest, effects)
    cycling.answer()
    assert cycling.is_steady
    assert bench.sent(CaughtUp, cycling.answered)


def test_flapping_replica_asks_when_a_notice_tells_of_more() -> None:
    """Given a record whose StoreRequest is lost, the next notice has it asked for."""
    cycling = Cycling()
    for _ in range(FLAPPING_ENTRIES):
        cycling.miss()
        cycling.answer()
    assert not cycling.is_steady
    cycling.last += 1
    end = Seq(cycling.last)
    cycling.bench.receive(CommitNotice(CHANNEL, Term(1), Seq(0), end, Term(1), b""))
    assert cycling.asked() == [end]


def test_new_leader_is_no_flapping() -> None:
    """Given elections one after the other, the search for the match point is nobody's fault."""
    bench = Bench(make_replica(N1, records=[record(1)]))
    for term in range(2, 3 * FLAPPING_ENTRIES):
        bench.follow(N2, term=term)
        request = bench.sent(MsgSyncRequest, bench.all_effects)[-1]
        assert isinstance(request, MsgSyncRequest)
        bench.sync(request_id=request.request_id, from_seq=2, prev_term=1, term=term)
        assert bench.replica.mode is FollowerMode.STEADY
    assert not bench.replica.is_flapping
