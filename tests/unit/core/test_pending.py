"""Held payloads are a bounded cache; waiting publishers are answered once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.chain import digest_of
from raftstore.core.dedupe import WrittenRecord
from raftstore.core.pending import PendingPayloads, WaitingPublishers
from raftstore.types import RecordKind, Seq, Term
from tests.core_world import guid, pub_msg


def payloads(messages_max: int = 3, bytes_max: int = 100) -> PendingPayloads:
    """A small cache that holds for one second."""
    return PendingPayloads(messages_max=messages_max, bytes_max=bytes_max, hold_ms=1_000)


def hold(cache: PendingPayloads, counter: int, payload: bytes, now_ms: int = 0) -> None:
    """Hold a payload under its own digest."""
    cache.hold(guid(counter), digest_of(payload), payload, now_ms)


def test_payload_is_found_by_guid_digest_and_length_only() -> None:
    """S5.2: a right guid with another digest or length does not correlate."""
    cache = payloads()
    hold(cache, 1, b"abc")
    assert cache.find(guid(1), digest_of(b"abc"), 3) == b"abc"
    assert cache.find(guid(1), digest_of(b"abd"), 3) is None
    assert cache.find(guid(1), digest_of(b"abc"), 4) is None
    assert cache.find(guid(2), digest_of(b"abc"), 3) is None


def test_two_payloads_under_one_guid_do_not_displace_each_other() -> None:
    """S5.2: a wrong payload cannot shadow the right one."""
    cache = payloads()
    hold(cache, 1, b"wrong")
    hold(cache, 1, b"right")
    assert cache.find(guid(1), digest_of(b"right"), 5) == b"right"
    assert cache.find(guid(1), digest_of(b"wrong"), 5) == b"wrong"


def test_oldest_payload_makes_room_when_full() -> None:
    """NATS-051: bounded by number; the oldest is dropped and counted."""
    cache = payloads()
    for counter in range(1, 5):
        hold(cache, counter, b"x")
    assert cache.find(guid(1), digest_of(b"x"), 1) is None
    assert cache.find(guid(4), digest_of(b"x"), 1) == b"x"
    assert cache.statistics().dropped == 1


def test_payload_larger_than_the_cache_is_not_held() -> None:
    """A giant is dropped rather than everything else."""
    cache = payloads(bytes_max=10)
    hold(cache, 1, b"small")
    hold(cache, 2, b"far too large for it")
    assert cache.find(guid(1), digest_of(b"small"), 5) == b"small"
    assert cache.statistics().messages == 1


def test_orphan_payload_expires_silently() -> None:
    """S5.3: a payload nobody sequences is dropped at its deadline."""
    cache = payloads()
    hold(cache, 1, b"a", now_ms=0)
    hold(cache, 2, b"b", now_ms=500)
    assert cache.next_ms == 1_000
    cache.expire(1_000)
    assert cache.find(guid(1), digest_of(b"a"), 1) is None
    assert cache.find(guid(2), digest_of(b"b"), 1) == b"b"
    assert cache.next_ms == 1_500
    cache.discard(guid(2), digest_of(b"b"))
    assert cache.next_ms is None
    assert cache.statistics().bytes == 0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), max_size=60))
def test_payload_cache_never_exceeds_its_bounds(arrivals: list[tuple[int, int]]) -> None:
    """Given any arrivals, the number and bytes of payloads stay within their bounds and the count
    of bytes is exact.
    """
    cache = payloads(messages_max=4, bytes_max=60)
    sizes: dict[tuple[int, int], int] = {}
    for counter, size in arrivals:
        hold(cache, counter, b"x" * size)
        sizes[counter, size] = size
        assert cache.statistics().messages <= 4
        held = sum(
            size
            for counter, size in sizes
            if cache.find(guid(counter), digest_of(b"x" * size), size) is not None
        )
        assert cache.statistics().bytes == held <= 60


def written(seq: int) -> WrittenRecord:
    """A record in the log."""
    return WrittenRecord(Seq(seq), Seq(seq), Term(1), b"", RecordKind.ROWS, outcome_known=True)


def test_waiting_publisher_is_taken_once_with_its_record() -> None:
    """Everybody who asked for a record gets its one outcome."""
    waiting = WaitingPublishers(quorum_timeout_ms=100)
    waiting.add(1, pub_msg(1), written(4), 0)
    waiting.add(2, pub_msg(1), written(4), 10)
    waiting.add(2, pub_msg(1, attempt=3), written(4), 20)
    taken = waiting.take(Seq(4))
    assert [waiter.client for waiter in taken] == [1, 2]
    assert [waiter.attempt for waiter in taken] == [0, 3], "the answer is one to the newest"
    assert waiting.take(Seq(4)) == []
    assert waiting.next_deadline_ms() is None


def test_overdue_publishers_leave_one_by_one() -> None:
    """Each waiter has its own deadline, also on the same record."""
    waiting = WaitingPublishers(quorum_timeout_ms=100)
    waiting.add(1, pub_msg(1), written(4), 0)
    waiting.add(2, pub_msg(2), written(5), 10)
    waiting.add(3, pub_msg(1), written(4), 50)
    waiting.take(Seq(5))
    assert [waiter.client for waiter in waiting.take_overdue(120)] == [1]
    assert waiting.next_deadline_ms() == 150
    assert [waiter.client for waiter in waiting.take_all()] == [3]
    assert len(waiting) == 0


def test_deadline_of_an_answered_publisher_is_no_deadline() -> None:
    """Given one that is overdue and one behind it that was answered, the next deadline is the next
    that counts.
    """
    waiting = WaitingPublishers(quorum_timeout_ms=100)
    for client, seq, now_ms in ((1, 4, 0), (2, 5, 10), (3, 4, 50)):
        waiting.add(client, pub_msg(client), written(seq), now_ms)
    waiting.take(Seq(5))
    assert [waiter.client for waiter in waiting.take_overdue(100)] == [1]
    assert waiting.next_deadline_ms() == 150
