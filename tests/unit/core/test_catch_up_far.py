"""While the leader's end is far away nothing live is held (NATS-145)."""

from __future__ import annotations

from raftstore.config import ReplicationSettings
from raftstore.core.catch_up import FAR_LIVE_QUEUES
from raftstore.core.live_queue import ENTRY_BYTES
from raftstore.protocol.replication import MsgSyncRequest
from raftstore.types import FollowerMode
from tests.core_world import N1, N2, N3, Bench, World, make_replica, record

QUEUE = 2
FAR = FAR_LIVE_QUEUES * QUEUE
"""Records of one row; more than so many are far."""
SETTINGS = ReplicationSettings(live_queue_messages_max=QUEUE)


def at_distance(left: int, *, rows: int = 1, settings: ReplicationSettings = SETTINGS) -> Bench:
    """A follower that got one record of history and lacks so many more rows."""
    bench = Bench(make_replica(N1, records=[record(1)], settings=settings))
    bench.follow(N2, term=1)
    first = record(2, rows=rows, payload=b"x" * 100)
    bench.sync(first, request_id=1, from_seq=2, prev_term=1, last_seq=first.last_seq + left)
    return bench


def live(bench: Bench, seq: int) -> None:
    """The leader's newest record, its payload first."""
    bench.hold(record(seq), term=1)
    bench.store_request(record(seq), term=1, prev_term=1)


def test_far_from_the_end_neither_requests_nor_payloads_are_held() -> None:
    """NATS-145: given more than four live queues to go, what is live now would only be dropped."""
    bench = at_distance(FAR + 1)
    live(bench, FAR + 4)
    assert bench.replica.live_queue() == ()
    held = bench.replica.statistics()
    assert (held.live_queue.messages, held.pending_payloads.messages) == (0, 0)
    assert held.live_queue.dropped == 1
    view = bench.replica.catch_up()
    assert view is not None
    assert view.is_far
    assert view.rows_left == FAR + 2


def test_near_the_end_live_requests_are_queued() -> None:
    """Given four live queues to go and no more, the queue fills."""
    bench = at_distance(FAR)
    live(bench, FAR + 3)
    assert bench.replica.live_queue() == ((FAR + 3, FAR + 3),)
    assert bench.replica.statistics().pending_payloads.messages == 1


def test_distance_is_measured_in_records_like_those_that_came() -> None:
    """Given records of a thousand rows, so many rows are few records."""
    bench = at_distance(1_000 * FAR, rows=1_000)
    live(bench, 1_000 * (FAR + 1) + 2)
    assert len(bench.replica.live_queue()) == 1
    bench = at_distance(1_000 * FAR + 1_000, rows=1_000)
    live(bench, 1_000 * (FAR + 2) + 2)
    assert bench.replica.live_queue() == ()


def test_distance_is_measured_in_bytes_too() -> None:
    """Given few records that are large, their bytes fill the queue."""
    settings = ReplicationSettings(live_queue_bytes_max=ENTRY_BYTES)
    far = FAR_LIVE_QUEUES * ENTRY_BYTES // 100 + 1
    live(bench := at_distance(far, settings=settings), far + 3)
    assert bench.replica.live_queue() == ()
    live(bench := at_distance(far - 1, settings=settings), far + 2)
    assert len(bench.replica.live_queue()) == 1


def test_what_was_queued_is_dropped_when_the_end_turns_out_to_be_far() -> None:
    """Given requests that came before the first answer, they are history by then, and no gap
    between what was dropped and what is queued later is taken for none.
    """
    bench = Bench(make_replica(N1, records=[record(1)], settings=SETTINGS))
    bench.follow(N2, term=1)
    live(bench, FAR + 4)
    assert len(bench.replica.live_queue()) == 1
    bench.sync(record(2), request_id=1, from_seq=2, prev_term=1, last_seq=FAR + 4)
    assert bench.replica.live_queue() == ()
    assert bench.replica.statistics().live_queue.bytes == 0
    batch = [record(seq) for seq in range(3, FAR + 4)]
    bench.sync(*batch, request_id=2, from_seq=3, prev_term=1, last_seq=FAR + 4)
    live(bench, FAR + 5)
    assert bench.replica.live_queue() == ((FAR + 5, FAR + 5),)
    assert bench.replica.mode is FollowerMode.CATCHING_UP, "one record is missing in between"
    rest = [record(FAR + 4), record(FAR + 5)]
    bench.sync(*rest, request_id=3, from_seq=FAR + 4, prev_term=1, last_seq=FAR + 6)
    assert bench.replica.mode is FollowerMode.STEADY
    assert bench.replica.last_seq == FAR + 5


def test_replica_that_missed_much_comes_back_under_load_and_is_sent_everything_once() -> None:
    """S6.3: given one that was away for fifty live queues and writers that go on, it gets every
    record, and no more than two requests are under way at any time (NATS-148).
    """
    world = World(settings=SETTINGS)
    world.sync_records_max = 5
    world.elect(N1)
    world.settle(ticks=1)
    world[N3].crash()
    for counter in range(1, 101):
        world.publish(counter, to=[N1, N2])
        world[N1].persist()
        world[N2].persist()
    world.network.clear()
    world[N3].boot()
    world[N3].follow(N1, world[N1].term)
    sent = 0
    was_far = False
    for counter in range(101, 151):
        world.publish(counter)
        asked = [e.message for e in world.pick(N1, "MsgSyncRequest", N3)]
        answered = [e.message for e in world.pick(N3, "MsgSync")]
        assert len(asked) + len(answered) <= 2
        assert all(isinstance(request, MsgSyncRequest) for request in asked)
        sent += sum(len(answer.records) for answer in answered)
        world.deliver(N1)
        world.deliver(N3)
        for node in world.nodes.values():
            node.persist()
        view = world[N3].replica.catch_up()
        was_far = was_far or (view is not None and view.is_far)
        assert world[N3].replica.statistics().live_queue.messages <= QUEUE
    world.settle(ticks=4)
    assert was_far
    assert world[N3].replica.mode is FollowerMode.STEADY
    assert world[N3].log == world[N1].log
    assert sent <= 151, "something was sent twice"


def test_replica_that_passed_over_a_record_is_not_steady_without_it() -> None:
    """S6.3: given the last answer that the leader made before a record that was passed over, the
    replica asks on.
    """
    bench = at_distance(FAR + 1)
    live(bench, FAR + 4)
    batch = [record(seq) for seq in range(3, FAR + 4)]
    bench.sync(*batch, request_id=2, from_seq=3, prev_term=1, last_seq=FAR + 3)
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    asked = bench.sent(MsgSyncRequest)[-1]
    assert isinstance(asked, MsgSyncRequest)
    assert asked.from_seq == FAR + 4


def test_distance_is_known_before_the_first_answer_of_a_new_connection_or_leader() -> None:
    """NATS-140: 0 rows left would read as caught up. What leaders reported as committed is in the
    log of every later one; what is committed here needs no verifying anew."""
    bench = Bench(make_replica(N1, records=[record(1)], settings=SETTINGS))
    bench.follow(N2, term=1)
    bench.sync(record(2), request_id=1, from_seq=2, prev_term=1, last_seq=12, commit_seq=10)
    for leader, term in ((N2, 1), (N3, 2)):
        bench.follow(leader, term=term)
        view = bench.replica.catch_up()
        assert view is not None
        assert (bench.replica.commit_seq, view.rows_left) == (2, 8)
