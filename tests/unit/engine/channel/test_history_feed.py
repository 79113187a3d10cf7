"""Batches of history that a leader reads from its log for a follower that catches up (S6.1)."""

from __future__ import annotations

import pytest

from raftstore.config import ROWS_PER_RECORD_MAX, ReplicationSettings
from raftstore.core.effects import ServeSync
from raftstore.engine.channel.history_feed import history_for
from raftstore.protocol.records import Record
from raftstore.protocol.replication import MsgSync, MsgSyncRequest
from raftstore.testing.sim_log import SimLog
from raftstore.types import NodeId, Seq, Term
from tests.storage_helpers import CHANNEL, record

ROWS = ROWS_PER_RECORD_MAX
SETTINGS = ReplicationSettings()


def log_of(*records: Record) -> SimLog:
    """A log that holds these records."""
    log = SimLog.new()
    log.open_channel(CHANNEL)
    log.append(CHANNEL, list(records))
    return log


def served(
    log: SimLog,
    from_seq: int,
    last_seq: int,
    *,
    asked: int = 1_000,
    bytes_max: int = 1_000,
    records_max: int = 100,
) -> MsgSync:
    """A leader's answer to a follower that asks from a seq on; its log ends at ``last_seq``."""
    request = MsgSyncRequest(CHANNEL, Term(3), 7, Seq(from_seq), (), asked)
    serve = ServeSync(NodeId("n2"), request, Term(3), Seq(from_seq), Term(2), Seq(2), Seq(last_seq))
    settings = ReplicationSettings(
        sync_batch_bytes_max=bytes_max, sync_batch_records_max=records_max
    )
    return history_for(serve, CHANNEL, log, settings)


def seqs(message: MsgSync) -> list[int]:
    """Base seqs of the records in it."""
    return [stored.base_seq for stored in message.records]


def test_answer_names_its_question_and_the_leader_s_positions() -> None:
    """NATS-138: the follower knows what it answers, what comes before it, and what is
    committed.
    """
    message = served(log_of(record(1), record(2), record(3)), 2, 3)
    assert (message.request_id, message.from_seq, message.prev_term) == (7, 2, 2)
    assert (message.term, message.commit_seq, message.last_seq) == (3, 2, 3)
    assert message.first_seq == 1
    assert seqs(message) == [2, 3]


@pytest.mark.parametrize(
    ("from_seq", "last_seq", "done"), [(1, 3, True), (1, 4, False), (4, 3, True), (4, 4, False)]
)
def test_done_says_that_the_leader_has_no_more(from_seq: int, last_seq: int, done: bool) -> None:
    """NATS-159: without it a follower asks for ever; too early, and it misses the rest.

    Shows NATS-162.
    """
    log = log_of(record(1), record(2), record(3))
    assert served(log, from_seq, last_seq).done is done


@pytest.mark.parametrize(("asked", "bytes_max"), [(20, 1_000), (1_000, 20)])
def test_answer_ends_with_the_bytes_of_the_smaller_bound(asked: int, bytes_max: int) -> None:
    """Neither a follower nor a setting makes a leader read more than both allow (NATS-161)."""
    log = log_of(*(record(seq, payload=bytes(10)) for seq in range(1, 6)))
    message = served(log, 1, 5, asked=asked, bytes_max=bytes_max)
    assert seqs(message) == [1, 2]
    assert not message.done
    following = served(log, 3, 5, asked=asked, bytes_max=bytes_max)
    assert seqs(following) == [3, 4]


def test_record_above_the_bound_comes_alone() -> None:
    """At least one record whatever its size, or nobody could ever catch up with it."""
    log = log_of(record(1, payload=bytes(10)), record(2, payload=bytes(500)), record(3))
    assert seqs(served(log, 2, 3, asked=20)) == [2]


def test_rows_of_an_answer_are_bounded_too() -> None:
    """Metadata of many small records would outgrow the frame."""
    log = log_of(record(1, rows=ROWS - 1), record(ROWS), record(ROWS + 1))
    message = served(log, 1, ROWS + 1)
    assert seqs(message) == [1, ROWS]
    assert not message.done


def test_nothing_beyond_the_end_that_the_core_named_is_sent() -> None:
    """Given a record appended after the end that the core named, the answer leaves it to the next
    one.
    """
    log = log_of(record(1), record(2), record(3))
    message = served(log, 1, 2)
    assert seqs(message) == [1, 2]
    assert message.done


def test_nothing_is_read_below_the_base_that_the_core_named() -> None:
    """S6.6: given records that the log still has by chance, the follower learns what it may ask
    for: records behind a gap would look like history.
    """
    log = log_of(record(1), record(2), record(3))
    request = MsgSyncRequest(CHANNEL, Term(3), 7, Seq(1), (), 1_000)
    of = (NodeId("n2"), request, Term(3))
    trimmed = history_for(
        ServeSync(*of, Seq(1), Term(2), Seq(2), Seq(3), Seq(2)), CHANNEL, log, SETTINGS
    )
    assert (trimmed.records, trimmed.first_seq, trimmed.done) == ((), 2, False)
    assert trimmed.next_seq == 0
    held = history_for(
        ServeSync(*of, Seq(2), Term(2), Seq(2), Seq(3), Seq(2)), CHANNEL, log, SETTINGS
    )
    assert seqs(held) == [2, 3]
    assert held.done


def test_records_of_an_answer_are_bounded() -> None:
    """So that a live queue of two batches holds what comes while one is taken."""
    log = log_of(*(record(seq, rows=1) for seq in range(1, 6)))
    assert seqs(served(log, 2, 5, records_max=3)) == [2, 3, 4]
    assert seqs(served(log, 1, 5, records_max=1)) == [1]


def test_answer_tells_where_the_next_one_will_end() -> None:
    """NATS-148: whatever bounds it, the answer to the question behind it ends there; given the last
    one, nothing is reported.
    """
    log = log_of(
        *(record(seq, payload=bytes(10)) for seq in range(1, 6)),
        record(6, rows=3, payload=bytes(25)),
        record(9, payload=bytes(500)),
        record(10, payload=bytes(10)),
    )
    for bounds in ({"asked": 20}, {"bytes_max": 20}, {"records_max": 2}, {"asked": 40}):
        from_seq = 1
        told = 0
        while from_seq <= 10:
            message = served(log, from_seq, 10, **bounds)
            end = message.records[-1].last_seq
            assert told in (0, end + 1)
            assert (message.next_seq > 0) is (end < 10)
            from_seq, told = end + 1, message.next_seq
        assert told == 0


def test_no_answer_goes_beyond_the_end_that_the_core_named() -> None:
    """Given records behind it, neither does what is stated of the next one."""
    log = log_of(*(record(seq, payload=bytes(10)) for seq in range(1, 10)))
    assert served(log, 1, 4, asked=20).next_seq == 5
    assert served(log, 1, 3, asked=20).next_seq == 4
