"""Two requests for history are under way, and no answer is taken out of its place (NATS-148)."""

from __future__ import annotations

from raftstore.config import CatchUpSettings
from raftstore.core.effects import Halt
from raftstore.protocol.replication import MsgSyncRequest
from raftstore.types import FollowerMode
from tests.core_world import N1, N2, Bench, make_replica, record


def behind(**catch_up: int) -> Bench:
    """A follower that has asked where the logs part."""
    settings = CatchUpSettings(**catch_up)  # type: ignore[arg-type]
    bench = Bench(make_replica(N1, records=[record(1)], catch_up=settings))
    bench.follow(N2, term=1)
    return bench


def asked(bench: Bench) -> list[tuple[int, int]]:
    """(request id, from seq) of the requests of the last step."""
    found = bench.sent(MsgSyncRequest)
    return [(m.request_id, m.from_seq) for m in found if isinstance(m, MsgSyncRequest)]


def answer(
    bench: Bench, request_id: int, from_seq: int, to_seq: int, *, next_seq: int, last_seq: int = 99
) -> None:
    """The leader's answer with the records from one seq to another."""
    bench.sync(
        *(record(seq) for seq in range(from_seq, to_seq + 1)),
        request_id=request_id,
        from_seq=from_seq,
        prev_term=1,
        last_seq=last_seq,
        next_seq=next_seq,
    )


def answered(
    bench: Bench, request_id: int, from_seq: int, to_seq: int, *, next_seq: int
) -> list[tuple[int, int]]:
    """The same; what was asked for then, and the disk is done."""
    answer(bench, request_id, from_seq, to_seq, next_seq=next_seq)
    found = asked(bench)
    bench.persist()
    return found


def test_second_request_goes_on_where_the_answer_to_the_first_will_end() -> None:
    """NATS-148: the leader says where its next answer ends, so two requests are under way."""
    bench = behind()
    assert answered(bench, 1, 2, 3, next_seq=6) == [(2, 4), (3, 6)]
    assert answered(bench, 2, 4, 5, next_seq=8) == [(4, 8)]
    assert answered(bench, 3, 6, 7, next_seq=11) == [(5, 11)]
    assert bench.replica.last_seq == 7


def test_no_more_requests_are_under_way_than_the_setting_says() -> None:
    """NATS-148: given one, each answer is waited for."""
    bench = behind(inflight_requests=1)
    answer(bench, 1, 2, 3, next_seq=6)
    assert asked(bench) == [(2, 4)]


def test_where_the_leader_has_no_more_nothing_is_asked_ahead() -> None:
    """Given a next answer that is the last one, or none, or nonsense, one request is enough."""
    for next_seq in (0, 3, 4, 21, 99):
        bench = behind()
        answer(bench, 1, 2, 3, next_seq=next_seq, last_seq=20)
        assert asked(bench) == [(2, 4)], next_seq


def test_answer_that_ends_before_its_time_has_the_rest_asked_for_anew() -> None:
    """NATS-160: given an answer that is shorter than was reported, what was asked behind it is no
    answer any more, and no leader is suspected of having lost anything.
    """
    bench = behind()
    answer(bench, 1, 2, 3, next_seq=6)
    answer(bench, 2, 4, 4, next_seq=7)
    assert asked(bench) == [(4, 5), (5, 7)]
    answer(bench, 3, 6, 7, next_seq=9)
    assert asked(bench) == []
    assert bench.replica.last_seq == 4
    answer(bench, 4, 5, 6, next_seq=9)
    assert bench.replica.last_seq == 6
    assert not bench.of(Halt, bench.all_effects)


def test_answer_that_comes_before_the_one_in_front_of_it_waits_for_it() -> None:
    """S2.4, S12: given a network that keeps no order, nothing is taken from behind an answer that
    is missing, and nothing is asked for twice.
    """
    bench = behind()
    answer(bench, 1, 2, 3, next_seq=6)
    answer(bench, 3, 6, 7, next_seq=9)
    assert bench.replica.last_seq == 3
    answer(bench, 2, 4, 5, next_seq=8)
    assert bench.replica.last_seq == 7
    assert asked(bench) == [(4, 8)]


def test_answer_that_waits_is_dropped_with_what_it_follows() -> None:
    """Given a first answer that is shorter than was reported, the one behind it fits no more."""
    bench = behind()
    answer(bench, 1, 2, 3, next_seq=6)
    answer(bench, 3, 6, 7, next_seq=9)
    answer(bench, 2, 4, 4, next_seq=0)
    assert bench.replica.last_seq == 4
    assert asked(bench) == [(4, 5)]
    assert not bench.of(Halt, bench.all_effects)


def test_requests_without_answers_are_repeated_in_their_order() -> None:
    """Both of them, under their ids."""
    bench = behind()
    answer(bench, 1, 2, 3, next_seq=6)
    effects = bench.wait(1_000)
    again = [m for m in bench.sent(MsgSyncRequest, effects) if isinstance(m, MsgSyncRequest)]
    assert [m.request_id for m in again] == [2, 3]


def test_what_was_asked_ahead_ends_with_catching_up() -> None:
    """Given a live record that fits, late answers change nothing."""
    bench = behind()
    answer(bench, 1, 2, 3, next_seq=6, last_seq=7)
    bench.hold(record(4), term=1)
    bench.store_request(record(4), term=1, prev_term=1)
    assert bench.replica.mode is FollowerMode.STEADY
    answer(bench, 3, 6, 7, next_seq=0, last_seq=7)
    assert bench.replica.last_seq == 4
    assert bench.replica.next_deadline_ms() is None


def test_batches_under_way_count_as_ahead_of_the_disk() -> None:
    """Given a disk that is behind, what was asked ahead still fits, and nothing more is asked."""
    bench = behind()
    answer(bench, 1, 2, 2, next_seq=4)
    answer(bench, 2, 3, 3, next_seq=5)
    answer(bench, 3, 4, 4, next_seq=6)
    assert asked(bench) == [], "three batches are not on the disk, one is under way"
    answer(bench, 4, 5, 5, next_seq=7)
    assert asked(bench) == []
    effects = bench.persist(2)
    assert [m.from_seq for m in bench.sent(MsgSyncRequest, effects)] == [6]
    effects = bench.persist(3)
    assert [m.from_seq for m in bench.sent(MsgSyncRequest, effects)] == [7]
