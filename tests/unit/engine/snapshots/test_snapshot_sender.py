"""The sending side of replica snapshots by itself: which node is served, what, and how fast."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.snapshots.sender import CHUNKS_ASKED_MAX
from raftstore.ports.log import Base
from raftstore.ports.table_copy import digest_of_pairs
from raftstore.protocol.replica_snapshots import (
    CHUNKS_AHEAD,
    AskBase,
    AskSnapshotChunk,
    BaseOffer,
    ReplicaSnapshotOffer,
    SnapshotChunk,
)
from raftstore.types import ChannelId, Seq, Term
from tests.unit.engine.snapshots.sender_bench import Sending
from tests.unit.engine.snapshots_bench import (
    CHANNEL,
    FIRST_ID,
    OTHER,
    PAIRS,
    SETTINGS,
    B,
    Bench,
    C,
    digest_of,
)

NOT_SERVED = "this replica does not serve the channel now"
NOT_HERE = "the channel is not here"
FULL = "2 snapshots are served already; ask again later"
GONE = "the snapshot is not kept any more"


def refusal(reason: str, request_id: int = 5, channel: ChannelId = CHANNEL) -> Any:
    """There is no snapshot."""
    return ReplicaSnapshotOffer(channel, request_id, 0, Term(0), Seq(0), Seq(0), 0, reason)


# --- opening --------------------------------------------------------------------------------------


def test_offer_comes_behind_the_barrier_with_position_and_floor() -> None:
    """S6.4: what the table has beside it is of the state that survives a power cut, which the
    snapshot is not older than."""
    bench = Sending()
    assert bench.sender.sent_bytes == 0
    bench.ask()
    assert not bench.sent
    assert not bench.snapshots
    assert [channel for channel, _ in bench.barriers] == [CHANNEL]
    bench.applied = 61
    bench.barrier(base_max=33, applied=60)
    number = FIRST_ID + 1
    offer = ReplicaSnapshotOffer(CHANNEL, 5, number, Term(4), Seq(61), Seq(33), 4_321)
    assert bench.sent == [(B, offer)]
    assert bench.sender.idle.next_ms == 1_000 + SETTINGS.session_ms
    assert bench.sender.sending.next_ms == NEVER_MS


def test_repeated_question_is_answered_again_by_the_same_snapshot() -> None:
    """The answer was lost."""
    bench = Sending()
    bench.ask()
    bench.barrier()
    first = bench.said()
    bench.ask()
    assert bench.said() == first
    assert not bench.barriers
    assert len(bench.snapshots) == len(bench.sender.sessions) == 1
    assert not bench.snapshots[0].closed


def test_new_question_of_a_receiver_ends_its_snapshot() -> None:
    """It began anew; those of others, and of its other channels, go on."""
    bench = Sending(serve_max=8)
    mine, other, theirs = bench.opened(), bench.opened(channel=OTHER), bench.opened(C)
    bench.ask(request_id=6)
    assert mine not in bench.sender.sessions
    assert set(bench.sender.sessions) == {other, theirs}
    assert [each.closed for each in bench.snapshots] == [1, 0, 0]
    bench.barrier()
    [offer] = bench.said()
    assert (offer.request_id, offer.snapshot_id) == (6, theirs + 1)
    assert len(bench.sender.idle) == 3


def test_question_that_comes_again_before_the_barrier_takes_no_second_one() -> None:
    """The newest one is answered."""
    bench = Sending(serve_max=1)
    bench.ask(request_id=5)
    bench.ask(request_id=6, have=59)
    bench.ask(request_id=6, have=59)
    assert len(bench.barriers) == 1
    assert not bench.sent
    bench.barrier()
    assert [offer.request_id for offer in bench.said()] == [6]
    assert len(bench.sender.sessions) == 1
    bench.ask(request_id=7)
    assert len(bench.barriers) == 1, "what was opened is forgotten: it takes a barrier again"


def test_no_more_snapshots_are_served_than_the_setting_allows() -> None:
    """Those that wait for their barrier count; a refused one takes no place."""
    bench = Sending()
    bench.ask(B)
    bench.ask(C)
    bench.ask(B, channel=OTHER)
    assert bench.sent == [(B, refusal(FULL, channel=OTHER))]
    assert len(bench.barriers) == 2
    bench.barrier()
    bench.barrier()
    bench.said()
    bench.ask(C, channel=OTHER)
    assert bench.sent == [(C, refusal(FULL, channel=OTHER))]
    bench.said()
    bench.sender.channel_closed(CHANNEL)
    bench.ask(C, channel=OTHER)
    assert not bench.sent
    assert len(bench.barriers) == 1


def test_receiver_that_begins_anew_takes_the_place_of_its_own_snapshot() -> None:
    """With all places taken, too."""
    bench = Sending(serve_max=1)
    bench.opened()
    bench.ask(request_id=6)
    assert not bench.sent
    assert len(bench.barriers) == 1


def gone(runner: Any, bench: Bench) -> None:
    """The table was dropped."""
    del bench.channels[CHANNEL]


def recovers(runner: Any, bench: Bench) -> None:
    """It lacks something itself."""
    runner.core.is_recovering = True


def ignores_peers(runner: Any, bench: Bench) -> None:
    """Its log has a hole, or is about to be replaced."""
    runner.ignores_peers = True


def is_cut(runner: Any, bench: Bench) -> None:
    """A crash cut a record that is applied in pieces."""
    runner.unserved_until = 61


def is_stopped(runner: Any, bench: Bench) -> None:
    """It contradicts the others."""
    runner.stopped_reason = "a test says so"


CHANGES = [
    (gone, NOT_HERE),
    (recovers, NOT_SERVED),
    (ignores_peers, NOT_SERVED),
    (is_cut, NOT_SERVED),
    (is_stopped, NOT_SERVED),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_only_a_replica_that_serves_the_channel_gives_its_table(change: Any, reason: str) -> None:
    """S6.6: when it is asked, and when the barrier is taken."""
    bench = Sending(serve_max=1)
    runner = bench.channels[CHANNEL]
    change(runner, bench)
    bench.ask()
    assert bench.sent == [(B, refusal(reason))]
    assert not bench.barriers
    bench = Sending(serve_max=1)
    bench.ask(have=60)  # nothing is newer: that is not the reason given
    change(bench.channels[CHANNEL], bench)
    bench.barrier()
    assert bench.sent == [(B, refusal(reason))]
    assert not bench.sender.sessions
    assert not bench.snapshots
    bench.said()
    bench.ask(C, channel=OTHER)
    assert len(bench.barriers) == 1, "its place is free"


def test_reason_of_the_channel_comes_before_that_of_the_limit() -> None:
    """To ask again later would not help."""
    bench = Sending(serve_max=1)
    bench.opened(C, channel=OTHER)
    recovers(bench.channels[CHANNEL], bench)
    bench.ask()
    assert bench.sent == [(B, refusal(NOT_SERVED))]


@pytest.mark.parametrize(("have", "is_served"), [(59, True), (60, False), (61, False)])
def test_table_that_is_no_newer_is_not_offered(have: int, is_served: bool) -> None:
    """It would bring the receiver nothing."""
    bench = Sending()
    bench.ask(have=have)
    bench.barrier()
    [offer] = bench.said()
    if is_served:
        assert offer.snapshot_id
    else:
        assert offer == refusal(f"nothing above seq {have} is applied here")
        assert not bench.snapshots


def test_leader_that_has_not_committed_in_its_term_gives_its_table() -> None:
    """It may be the receiver whose acknowledgement it needs for that."""
    bench = Sending()
    bench.channels[CHANNEL].core.leader_is_ready = False
    assert bench.opened()


def test_seq_behind_which_each_receiver_of_a_channel_needs_records_is_told() -> None:
    """NATS-169: the log keeps them; receivers of other channels need none of it."""
    bench = Sending(serve_max=8)
    assert bench.sender.pinned(CHANNEL) == {}
    bench.opened(B, OTHER, base_max=10)
    assert bench.sender.pinned(CHANNEL) == {}
    bench.opened(B, base_max=40)
    bench.opened(C, base_max=30)
    assert bench.sender.pinned(CHANNEL) == {B: 40, C: 30}
    assert bench.sender.pinned(OTHER) == {B: 10}
    bench.sender.channel_closed(CHANNEL)
    assert bench.sender.pinned(CHANNEL) == {}


# --- chunks ---------------------------------------------------------------------------------------


def all_chunks(bench: Sending, snapshot: int, count: int = 3) -> list[Any]:
    """Ask for one chunk after the other."""
    chunks = []
    for number in range(count):
        bench.chunk(snapshot, number)
        bench.go()
        chunks += bench.said()
    return chunks


def test_chunks_are_the_whole_table_once_and_the_last_tells_of_all() -> None:
    """S6.6: each with its digest, the last one with that of everything."""
    bench = Sending()
    number = bench.opened()
    first, second, third = all_chunks(bench, number)
    assert first == SnapshotChunk(CHANNEL, number, 0, tuple(PAIRS[:2]), digest_of_pairs(PAIRS[:2]))
    assert second == SnapshotChunk(
        CHANNEL, number, 1, tuple(PAIRS[2:4]), digest_of_pairs(PAIRS[2:4])
    )
    assert third == SnapshotChunk(
        CHANNEL,
        number,
        2,
        tuple(PAIRS[4:]),
        digest_of_pairs(PAIRS[4:]),
        is_last=True,
        all_pairs=5,
        all_digest=digest_of(PAIRS),
    )
    assert bench.snapshots[0].pages == [(None, 25), (PAIRS[1][0], 25), (PAIRS[3][0], 25)]
    assert bench.sender.sent_bytes == 50


def test_repeated_chunks_are_the_same_and_count_once() -> None:
    """A lost answer, of the first, of the middle and of the last."""
    bench = Sending()
    number = bench.opened()
    chunks = all_chunks(bench, number)
    for again in (2, 0, 1, 2):
        bench.chunk(number, again)
        bench.go()
        assert bench.said() == [chunks[again]]


def test_chunk_that_is_read_again_in_between_changes_nothing_of_the_rest() -> None:
    """Where the next one begins, and the digest over all of them."""
    bench = Sending()
    number = bench.opened()
    for each in (0, 0, 1, 0, 1, 2):
        bench.chunk(number, each)
        bench.go()
    *_, last = bench.said()
    assert last.pairs == tuple(PAIRS[4:])
    assert (last.all_pairs, last.all_digest) == (5, digest_of(PAIRS))


def test_table_of_one_chunk_is_told_twice_alike() -> None:
    """The first chunk is the last one."""
    bench = Sending(chunk_bytes_max=100)
    number = bench.opened()
    for _ in range(2):
        bench.chunk(number, 0)
        bench.go()
        [chunk] = bench.said()
        assert chunk.pairs == tuple(PAIRS)
        assert (chunk.is_last, chunk.all_pairs, chunk.all_digest) == (True, 5, digest_of(PAIRS))


def test_chunks_are_read_one_at_a_time_in_the_order_asked_for() -> None:
    """The second is not read before it is known where it begins."""
    bench = Sending()
    number = bench.opened()
    bench.chunk(number, 0, 1)
    assert len(bench.steps) == 1
    done = bench.on_thread()
    bench.chunk(number, 2)
    assert not bench.steps
    done(bench.now_ms)
    assert len(bench.steps) == 1
    bench.go()
    assert bench.numbers() == [0, 1, 2]


def test_chunk_that_there_is_not_is_no_answer() -> None:
    """Further on than the next, or behind the last; what there is goes on."""
    bench = Sending()
    number = bench.opened()
    bench.chunk(number, 1, 2)
    assert not bench.steps
    bench.chunk(number, 0)
    bench.go()
    bench.chunk(number, 2)
    assert not bench.steps
    assert bench.numbers() == [0]
    bench.chunk(number, 1)
    bench.go()
    bench.chunk(number, 2)
    bench.go()
    assert bench.numbers() == [1, 2]
    bench.chunk(number, 3, 4)
    assert not bench.steps
    bench.chunk(number, 0)
    bench.go()
    assert bench.numbers() == [0]


def test_snapshot_goes_when_its_receiver_has_all_of_it() -> None:
    """It keeps files of a table that is written to; a question so far ahead is asked for nothing
    else. Before the last chunk was read it says nothing."""
    bench = Sending()
    number = bench.opened()
    bench.chunk(number, CHUNKS_AHEAD + 1)
    assert number in bench.sender.sessions
    all_chunks(bench, number)
    bench.chunk(number, 2 + CHUNKS_AHEAD)
    assert number in bench.sender.sessions
    bench.chunk(number, 2 + CHUNKS_AHEAD + 1)
    assert not bench.sender.sessions
    assert [each.closed for each in bench.snapshots] == [1]
    assert len(bench.sender.idle) == 0


def test_what_is_asked_for_in_vain_makes_way_for_the_next() -> None:
    """While one chunk is read, one behind the last and one that exists were asked for."""
    bench = Sending()
    number = bench.opened()
    all_chunks(bench, number)
    bench.chunk(number, 0, 3, 1)
    bench.go()
    assert bench.numbers() == [0, 1]


def test_receiver_that_repeats_itself_gets_each_chunk_once() -> None:
    """Where chunks leave slowly, copies of them would pile up in memory, in front of those that
    the receiver lacks."""
    bench = Sending(second_bytes_max=10)
    number = bench.opened()
    bench.chunk(number, 0, 1)
    bench.run_steps()
    assert bench.numbers() == [0]
    for _ in range(10):
        bench.chunk(number, 1)
        bench.run_steps()
    assert len(bench.snapshots[0].pages) == 2
    bench.timer(10_000)
    assert bench.numbers() == [1]
    bench.timer(20_000)
    assert not bench.sent
    bench.chunk(number, 1)
    bench.run_steps()
    assert bench.numbers() == [1], "it was lost on the way"


def test_no_more_chunks_wait_for_a_receiver_than_the_limit() -> None:
    """It asks for two at a time."""
    bench = Sending(chunk_bytes_max=1, second_bytes_max=10)
    number = bench.opened()
    for each in range(5):
        bench.chunk(number, each)
        bench.run_steps()
    assert bench.numbers() == [0]
    assert len(bench.snapshots[0].pages) == CHUNKS_ASKED_MAX + 1
    bench = Sending()
    number = bench.opened()
    bench.chunk(number, 0)
    bench.chunk(number, 1, 2, 3, 4, 5)
    assert len(bench.sender.sessions[number].wanted) == CHUNKS_ASKED_MAX - 1


@pytest.mark.parametrize("wrong", ["number", "receiver", "channel"])
def test_chunk_of_a_snapshot_that_is_not_the_askers_is_refused(wrong: str) -> None:
    """It was forgotten, or is another node's, or another channel's."""
    bench = Sending()
    number = bench.opened()
    asker = C if wrong == "receiver" else B
    channel = OTHER if wrong == "channel" else CHANNEL
    number += wrong == "number"
    bench.now_ms += 1
    bench.sender.on_ask_chunk(asker, AskSnapshotChunk(channel, number, 1), bench.now_ms)
    assert bench.sent == [(asker, SnapshotChunk(channel, number, 1, (), b"", reason=GONE))]
    assert not bench.steps
    assert bench.sender.idle.next_ms == 1_000 + SETTINGS.session_ms


# --- pace -----------------------------------------------------------------------------------------


def test_chunks_leave_at_the_pace_of_the_setting() -> None:
    """Twenty bytes at 100 a second take 200 ms, for all receivers together."""
    bench = Sending(second_bytes_max=100)
    number = bench.opened()
    bench.chunk(number, 0, 1)
    bench.run_steps()
    assert bench.numbers() == [0]
    assert bench.sender.sent_bytes == 20
    assert bench.sender.sending.next_ms == 1_201
    theirs = bench.opened(C)
    bench.chunk(theirs, 0, sender=C)
    bench.run_steps()
    assert not bench.sent
    bench.timer(1_200)
    assert not bench.sent
    bench.timer(1_201)
    assert [(to, m.number) for to, m in bench.sent] == [(B, 1)]
    bench.said()
    assert bench.sender.sending.next_ms == 1_402
    bench.timer(1_402)
    assert [(to, m.number) for to, m in bench.sent] == [(C, 0)]
    assert bench.sender.sending.next_ms == NEVER_MS
    assert bench.sender.sent_bytes == 60


def test_slow_pace_is_exact() -> None:
    """Twenty bytes at one a second: no less than twenty seconds, and one moment more."""
    bench = Sending(second_bytes_max=1)
    number = bench.opened()
    bench.chunk(number, 0, 1)
    bench.run_steps()
    assert bench.sender.sending.next_ms == 21_001


def test_chunk_that_is_read_when_the_time_of_the_one_before_is_over_leaves_at_once() -> None:
    """In that very millisecond."""
    bench = Sending(second_bytes_max=100)
    number = bench.opened()
    bench.chunk(number, 0)
    bench.run_steps()
    bench.now_ms = 1_200
    bench.chunk(number, 1)
    bench.run_steps()
    assert bench.numbers() == [0, 1]
    assert bench.sender.sending.next_ms == NEVER_MS


def test_pause_is_no_credit() -> None:
    """After an idle hour no burst leaves; a chunk of a moment that was free leaves at once."""
    bench = Sending(second_bytes_max=100)
    number = bench.opened()
    bench.chunk(number, 0)
    bench.run_steps()
    assert bench.numbers() == [0]
    bench.now_ms = 9_000
    bench.chunk(number, 0, 1)
    bench.run_steps()
    assert bench.numbers() == [0]
    assert bench.sender.sending.next_ms == 9_201


def test_moment_in_which_a_small_chunk_may_leave_is_the_next_millisecond() -> None:
    """It took a fraction of one."""
    bench = Sending()
    number = bench.opened()
    bench.chunk(number, 0)
    bench.run_steps()
    assert bench.numbers() == [0]
    bench.chunk(number, 1)
    bench.run_steps()
    assert bench.sender.sending.next_ms == 1_001
    bench.timer(1_001)
    assert bench.numbers() == [1]


def test_chunks_of_a_receiver_that_is_gone_take_no_time_of_others() -> None:
    """They do not leave."""
    bench = Sending(second_bytes_max=100)
    number = bench.opened()
    theirs = bench.opened(C)
    bench.chunk(number, 0, 1)
    bench.run_steps()
    bench.chunk(theirs, 0, sender=C)
    bench.run_steps()
    bench.said()
    bench.ask(B, request_id=6)
    bench.timer(1_201)
    assert [(to, m.number) for to, m in bench.sent] == [(C, 0)]
    assert bench.sender.sent_bytes == 40


def test_chunks_of_a_receiver_that_is_gone_are_passed_over_in_one_go() -> None:
    """Before a timer, and when nothing is behind them."""
    bench = Sending(second_bytes_max=100)
    number = bench.opened()
    theirs = bench.opened(C)
    bench.chunk(number, 0, 1)
    bench.run_steps()
    bench.said()
    bench.ask(B, request_id=6)
    bench.now_ms = 1_300
    bench.chunk(theirs, 0, 1, sender=C)
    bench.step()
    assert [(to, m.number) for to, m in bench.sent] == [(C, 0)]
    bench.step()
    bench.sender.channel_closed(CHANNEL)
    bench.said()
    bench.timer(3_000)
    assert not bench.sent
    assert bench.sender.sending.next_ms == NEVER_MS


# --- bases ----------------------------------------------------------------------------------------

BASE = Base(Term(3), Seq(30), b"h" * 16, b"what it adds up to")


@pytest.mark.parametrize("base_max", [30, 31])
def test_base_is_given_if_the_other_log_may_begin_there(base_max: int) -> None:
    """S6.6: at the highest seq that the receiver's table allows, at most."""
    bench = Sending()
    bench.base = BASE
    bench.sender.on_ask_base(C, AskBase(CHANNEL, 8, Seq(base_max)))
    assert bench.sent == [(C, BaseOffer(CHANNEL, 8, Term(3), Seq(30), b"h" * 16, BASE.folds))]


def test_base_above_what_the_other_table_allows_is_not_given() -> None:
    """I1: the receiver takes a table first."""
    bench = Sending()
    bench.base = BASE
    bench.sender.on_ask_base(C, AskBase(CHANNEL, 8, Seq(29)))
    reason = "the log here begins behind seq 30, above 29"
    nothing = BaseOffer(CHANNEL, 8, Term(0), Seq(0), b"h" * 16, b"", reason)
    assert bench.sent == [(C, nothing)]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_only_a_replica_that_serves_the_channel_gives_its_base(change: Any, reason: str) -> None:
    """S6.6: what it contradicts or lacks must not spread; whatever its log's base is."""
    bench = Sending()
    bench.base = BASE
    change(bench.channels[CHANNEL], bench)
    for base_max in (29, 30):
        bench.sender.on_ask_base(C, AskBase(CHANNEL, 8, Seq(base_max)))
        [offer] = bench.said()
        assert (offer.reason, offer.seq, offer.folds) == (reason, 0, b"")


# --- ending ---------------------------------------------------------------------------------------


def test_receiver_that_asks_for_nothing_is_forgotten() -> None:
    """Each question gives it the whole time again."""
    bench = Sending()
    number = bench.opened()
    bench.timer(5_000)
    bench.chunk(number, 0)
    bench.run_steps()
    bench.timer(5_000 + SETTINGS.session_ms - 1)
    assert number in bench.sender.sessions
    bench.timer(5_000 + SETTINGS.session_ms)
    assert not bench.sender.sessions
    assert bench.snapshots[0].closed == 1
    assert bench.sender.idle.next_ms == NEVER_MS
    bench.said()
    bench.chunk(number, 1)
    assert [chunk.reason for chunk in bench.said()] == [GONE]


def test_snapshot_that_is_being_read_is_closed_behind_the_read() -> None:
    """Not under the thread that reads it; nothing of it leaves."""
    bench = Sending()
    number = bench.opened()
    bench.chunk(number, 0, 1)
    done = bench.on_thread()
    bench.sender.channel_closed(CHANNEL)
    assert not bench.snapshots[0].closed
    done(bench.now_ms)
    assert bench.snapshots[0].closed == 1
    assert not bench.sent
    assert not bench.steps


def test_closed_channel_ends_its_snapshots_and_no_others() -> None:
    """Its table was dropped, or it is opened anew."""
    bench = Sending(serve_max=8)
    bench.opened()
    other = bench.opened(channel=OTHER)
    bench.opened(C)
    bench.sender.channel_closed(CHANNEL)
    assert set(bench.sender.sessions) == {other}
    assert [each.closed for each in bench.snapshots] == [1, 0, 1]
    assert len(bench.sender.idle) == 1


def test_node_that_came_back_as_an_older_version_is_sent_nothing() -> None:
    """It would not know the message."""
    bench = Sending()
    bench.ask()
    bench.known.discard(B)
    bench.barrier()
    assert not bench.sent
