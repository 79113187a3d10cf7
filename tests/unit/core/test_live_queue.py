"""The live queue: bounded, ordered, drained from its head."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.live_queue import ENTRY_BYTES, LiveQueue
from raftstore.protocol.records import Record
from raftstore.protocol.replication import StoreRequest
from raftstore.types import Seq, Term
from tests.core_world import CHANNEL, meta_of, record


def request(*records: Record, prev_term: int = 1, inlined: bool = False) -> StoreRequest:
    """A StoreRequest of some records."""
    metas = tuple(meta_of(stored, inlined=inlined) for stored in records)
    return StoreRequest(CHANNEL, Term(1), Term(prev_term), Seq(0), metas)


def queue_of(messages_max: int = 10, bytes_max: int = 10_000) -> LiveQueue:
    """A queue with small bounds."""
    return LiveQueue(messages_max=messages_max, bytes_max=bytes_max)


def test_live_queue_keeps_the_term_before_every_record() -> None:
    """Each record of a request knows the term it must follow (S2.3)."""
    queue = queue_of()
    queue.offer(request(record(4, term=2), record(5, term=3), prev_term=1))
    assert queue.pop().prev_term == 1
    assert queue.pop().prev_term == 2
    assert queue.head is None


def test_live_queue_orders_late_entries_and_drops_repeated_ones() -> None:
    """Delivery order does not matter, and a record is held once."""
    queue = queue_of()
    for seq in (5, 7, 6, 5, 4):
        assert queue.offer(request(record(seq)))
    assert queue.seqs() == ((4, 4), (5, 5), (6, 6), (7, 7))


def test_live_queue_drops_the_newest_when_full() -> None:
    """S6.3: beyond the bound the newest is lost, counted, and the gap remembered."""
    queue = queue_of(messages_max=2)
    assert queue.offer(request(record(1), record(2)))
    assert not queue.offer(request(record(3)))
    assert queue.seqs() == ((1, 1), (2, 2))
    assert queue.statistics().dropped == 1
    assert queue.has_gap_above(Seq(2))
    assert not queue.has_gap_above(Seq(3))


def test_nothing_is_queued_behind_a_gap() -> None:
    """S6.3: given an entry that was dropped, those behind it are, too, until history is there: a
    queue with a hole in it would lead into steady state and out of it again.
    """
    queue = queue_of(messages_max=2)
    queue.offer(request(record(1), record(2), record(3)))
    queue.drop_through(Seq(1))
    assert not queue.offer(request(record(4)))
    assert queue.seqs() == ((2, 2),)
    assert queue.has_gap_above(Seq(3))
    queue.drop_through(Seq(3))
    assert queue.offer(request(record(5)))
    assert queue.seqs() == ((5, 5),)


def test_live_queue_is_bounded_in_bytes_too() -> None:
    """Inlined payloads count."""
    queue = queue_of(bytes_max=2 * ENTRY_BYTES + 5)
    assert queue.offer(request(record(1, payload=b"12345"), inlined=True))
    assert not queue.offer(request(record(2, payload=b"123456"), inlined=True))
    assert queue.offer(request(record(2)))
    assert queue.statistics().bytes == 2 * ENTRY_BYTES + 5


def test_live_queue_discards_what_the_log_has() -> None:
    """NATS-165: entries at or below the log's end go, records as a whole."""
    queue = queue_of()
    queue.offer(request(record(1, rows=3), record(4), record(5, rows=2)))
    dropped = queue.drop_through(Seq(4))
    assert [entry.meta.base_seq for entry in dropped] == [1, 4]
    assert queue.last_seq == 6
    assert queue.statistics().messages == 1


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 12))
def test_live_queue_is_sorted_and_bounded_whatever_arrives(seqs: list[int], bound: int) -> None:
    """In any order of arrival the queue stays sorted, without repetition, within its bound."""
    queue = queue_of(messages_max=bound)
    for seq in seqs:
        queue.offer(request(record(seq)))
        held = [base for base, _ in queue.seqs()]
        assert held == sorted(set(held))
        assert len(held) <= bound
    assert queue.statistics().bytes == len(queue) * ENTRY_BYTES
