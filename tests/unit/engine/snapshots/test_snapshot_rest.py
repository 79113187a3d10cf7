"""A copy that is gone on with: by its receiver, by an earlier life of it, by another sender."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.deadlines import NEVER_MS
from raftstore.ports.log import BASE_BYTES_MAX, Base
from raftstore.ports.table_copy import digest_of_pairs
from raftstore.protocol.codec import encode
from raftstore.protocol.replica_snapshots import (
    AskBase,
    AskReplicaSnapshot,
    AskSnapshotRest,
    ReplicaSnapshotOffer,
    SnapshotChunk,
)
from raftstore.types import History, NodeId, Seq, Term
from tests.unit.engine.receiver_bench import ASKED, GIVE_UP_MS, RETRY_MS, Receiving
from tests.unit.engine.snapshots.sender_bench import Sending
from tests.unit.engine.snapshots_bench import (
    CHANNEL,
    PAIRS,
    SETTINGS,
    B,
    C,
    Copy,
    digest_of,
)

POSITION = History(Term(4), Seq(60))
HELD = 2
"""Pairs that the receiver has."""


# --- the receiving side ---------------------------------------------------------------------------


def rest_of(request_id: int, pairs: int = HELD) -> AskSnapshotRest:
    """The question for what follows so many pairs."""
    held = PAIRS[:pairs]
    return AskSnapshotRest(CHANNEL, request_id, *POSITION, held[-1][0], pairs, digest_of(held))


def begun_before(*knows_rest: NodeId, pairs: int = HELD, seq: int = 60) -> Receiving:
    """A node whose earlier life copied some pairs."""
    bench = Receiving()
    bench.knows_rest = set(knows_rest)
    bench.begun[CHANNEL] = Copy(bench, History(Term(4), Seq(seq)), pairs)
    bench.receiver.channel_opened(bench.mine, bench.now_ms)
    return bench


def asking_rest(*knows_rest: NodeId) -> Receiving:
    """The copy was read back, and the question is out."""
    bench = begun_before(*knows_rest)
    bench.looking()
    bench.barrier(40)
    assert bench.stage() == "reading what was copied before"
    bench.run_steps()
    assert bench.stage() == "asking for an offer"
    return bench


def rest_chunk(number: int) -> dict[str, Any]:
    """Of the rest: two pairs, and one."""
    pairs = tuple(PAIRS[HELD + 2 * number : HELD + 2 * number + 2])
    return {"pairs": pairs, "digest": digest_of_pairs(pairs)}


def test_copy_of_an_earlier_life_is_read_back_and_gone_on_with() -> None:
    """NATS-154: only what is missing is sent, and the whole is read back again at the end."""
    bench = asking_rest(B)
    assert bench.sent == [(B, rest_of(ASKED))]
    copy = bench.receiver.transfers[CHANNEL].copy
    assert isinstance(copy, Copy)
    bench.said()
    bench.done()
    bench.now_ms = 1_100
    bench.offer()
    fields = {"channel": "orders/3", "peer": "n2", "seq": 60, "table_bytes": 90, "pairs": HELD}
    assert bench.told() == [("replica_snapshot_resumed", fields)]
    assert bench.numbers() == [0, 1]
    bench.chunk(0, **rest_chunk(0))
    bench.run_steps()
    last = rest_chunk(1) | {"is_last": True, "all_pairs": 5, "all_digest": digest_of(PAIRS)}
    bench.chunk(1, **last)
    bench.durable_operation = 99
    bench.run_steps()
    assert copy.pairs == PAIRS
    did = bench.done()
    assert did[:3] == ["write", "write", "finish"]
    assert did[-3:] == ["complete", "install orders/3", "reopen orders/3"]
    assert not bench.copies, "no other was begun"
    assert bench.receiver.taking.received_chunks == 2


def test_sender_that_still_compares_is_given_time() -> None:
    """Of a large table that takes longer than a session; each answer gives the time again."""
    bench = asking_rest(B)
    for now_ms in (GIVE_UP_MS - 1, GIVE_UP_MS + SETTINGS.session_ms - 2):
        bench.now_ms = now_ms
        bench.offer(snapshot_id=0)
        bench.timer(now_ms + 1)
        assert not bench.told()
    bench.timer(GIVE_UP_MS + 2 * SETTINGS.session_ms)
    assert bench.failed() == "n2 did not answer for 10000 ms"


def test_each_replica_is_asked_for_the_rest_the_leader_last_then_it_is_begun_anew() -> None:
    """Those that have another table say so; in the end its event says why."""
    bench = asking_rest(B, C)
    asked = []
    for request_id in range(ASKED, ASKED + 3):
        [(to, question)] = bench.sent
        assert question == rest_of(request_id)
        asked.append(to)
        bench.said()
        bench.offer(to, request_id=request_id, snapshot_id=0, reason="it is at 61")
        assert bench.failed(to[:2]) == "it is at 61"
        bench.timer(bench.due_ms)
        bench.barrier(40)
        bench.run_steps()
    assert asked == [C, B, C]
    anew = {"channel": "orders/3", "reason": "nobody has the rest of the table at (4, 60)"}
    assert bench.told() == [("replica_snapshot_begun_anew", anew)]
    assert bench.said() == [AskReplicaSnapshot(CHANNEL, ASKED + 3, Seq(0), Seq(0))]
    assert bench.done()[-1] == "abandon"


def test_question_is_not_repeated_to_a_node_that_came_back_as_an_older_version() -> None:
    """S12: it knows replica snapshots, and not how to go on with one."""
    bench = asking_rest(B)
    bench.said()
    bench.knows_rest.clear()
    bench.timer(1_000 + SETTINGS.request_ms)
    assert not bench.sent
    bench.knows_rest.add(B)
    bench.timer(1_000 + 2 * SETTINGS.request_ms)
    assert bench.said() == [rest_of(ASKED)]


def test_rest_of_another_table_is_not_taken() -> None:
    """S6.4: whatever the sender compared."""
    bench = asking_rest(B)
    bench.offer(seq=Seq(61))
    assert "the table of (4, 61) was offered, not of (4, 60)" in bench.failed()
    assert not bench.copies


def copying_from_c() -> Receiving:
    """C, which does not lead, has offered its table."""
    bench = Receiving()
    bench.knows_rest = {B, C}
    bench.looking()
    bench.barrier(40)
    bench.offer(C)
    bench.told()
    return bench


def test_broken_connection_has_another_replica_asked_for_the_rest() -> None:
    """At once: the sender may be dead."""
    bench = copying_from_c()
    bench.chunk(0, sender=C)
    bench.run_steps()
    bench.receiver.peer_lost(B, 1_000)
    assert bench.stage() == "copying"
    bench.receiver.peer_lost(C, 1_000)
    assert bench.failed("n3") == "the connection to n3 broke"
    bench.said()
    bench.timer(RETRY_MS)
    bench.barrier(40)
    bench.run_steps()
    assert bench.sent == [(B, rest_of(ASKED + 1))]


def test_sender_that_falls_silent_has_another_one_asked_long_before_the_session_ends() -> None:
    """A node that was stopped, or hangs, breaks no connection."""
    bench = copying_from_c()
    bench.timer(bench.due_ms)
    assert bench.stage() == "copying"
    bench.down = {C}
    bench.timer(bench.due_ms)
    assert bench.now_ms < GIVE_UP_MS
    assert bench.failed("n3") == "n3 is down"


@pytest.mark.parametrize("stage", ["looking", "verified"])
def test_broken_connection_is_no_matter_where_nothing_is_awaited_of_it(stage: str) -> None:
    """The disk here is at work, or everything is here."""
    bench = Receiving()
    getattr(bench, stage)()
    bench.told()
    bench.receiver.peer_lost(B, 1_000)
    assert not bench.told()
    assert bench.receiver.transfers


@pytest.mark.parametrize(
    ("pairs", "seq", "reason"),
    [
        (0, 60, "nothing of what was copied is there"),
        (2, 55, "it is applied up to seq 55, the table here up to 55"),
    ],
)
def test_copy_that_is_of_no_use_is_begun_anew(pairs: int, seq: int, reason: str) -> None:
    """A power cut took all of it, or the log helped meanwhile and then no more."""
    bench = begun_before(B, pairs=pairs, seq=seq)
    bench.applied = 55
    bench.mine.core.lacks_rows, bench.mine.core.trimmed_to = False, Seq(45)
    bench.looking()
    bench.barrier(40)
    bench.run_steps()
    assert bench.told() == [
        ("replica_snapshot_begun_anew", {"channel": "orders/3", "reason": reason})
    ]
    assert "abandon" in bench.done()
    assert [type(one) for one in bench.said()] == [AskReplicaSnapshot]


def test_copy_that_is_not_needed_any_more_goes_when_the_leader_could_have_said_so() -> None:
    """It takes space for nothing; without a leader nobody knows."""
    bench = begun_before(B)
    bench.mine.core.lacks_rows = False
    bench.mine.elector.leader = None
    assert bench.due_ms == GIVE_UP_MS
    bench.timer(GIVE_UP_MS)
    bench.run_steps()
    assert bench.done() == []
    assert bench.due_ms == GIVE_UP_MS + SETTINGS.session_ms
    bench.mine.elector.leader = B
    bench.timer(bench.due_ms)
    bench.run_steps()
    assert bench.done() == ["abandon"]
    assert bench.due_ms == NEVER_MS


def test_closed_channel_drops_what_was_begun() -> None:
    """Its table was dropped."""
    bench = begun_before(B)
    bench.receiver.channel_closed(bench.mine)
    bench.run_steps()
    assert bench.done() == ["abandon"]


def test_rest_may_be_empty() -> None:
    """All pairs were here but the last report."""
    bench = begun_before(B, pairs=5)
    bench.looking()
    bench.barrier(40)
    bench.run_steps()
    bench.offer()
    empty = {"pairs": (), "digest": digest_of_pairs([])}
    bench.chunk(0, is_last=False, **empty)
    bench.run_steps()
    assert bench.told()[-1][0] == "replica_snapshot_chunk_damaged"
    whole = {"all_pairs": 5, "all_digest": digest_of(PAIRS)}
    bench.chunk(0, is_last=True, **empty, **whole)
    bench.durable_operation = 99
    bench.run_steps()
    assert bench.done()[-1] == "reopen orders/3"


# --- the sending side -----------------------------------------------------------------------------


def offered(bench: Sending, to: NodeId = B) -> list[ReplicaSnapshotOffer]:
    """Answers since the last call."""
    assert all(receiver == to for receiver, _ in bench.sent)
    return bench.said()


def test_rest_is_given_behind_the_same_first_pairs() -> None:
    """The whole is reported with the last chunk, as its receiver reads it back."""
    bench = Sending()
    bench.sender.on_ask_rest(B, rest_of(5), 1_000)
    [wait] = offered(bench)
    assert (wait.snapshot_id, wait.reason, wait.seq) == (0, "", 60)
    bench.run_steps()
    [offer] = offered(bench)
    assert offer.snapshot_id
    assert (offer.term, offer.seq, offer.base_max) == (4, 60, 27)
    bench.chunk(offer.snapshot_id, 0, 1)
    bench.go()
    first, last = bench.said()
    assert first.pairs + last.pairs == tuple(PAIRS[HELD:])
    assert (last.is_last, last.all_pairs, last.all_digest) == (True, 5, digest_of(PAIRS))


@pytest.mark.parametrize("pairs", [1, 2, 3, 5])
def test_first_pairs_end_anywhere_in_a_page(pairs: int) -> None:
    """Its former sender may have cut chunks elsewhere."""
    bench = Sending()
    bench.sender.on_ask_rest(B, rest_of(5, pairs), 1_000)
    bench.run_steps()
    offer = offered(bench)[-1]
    assert offer.snapshot_id
    bench.chunk(offer.snapshot_id, 0)
    bench.go()
    [chunk] = bench.said()
    assert chunk.pairs == tuple(PAIRS[pairs : pairs + 2])
    assert chunk.is_last == (pairs >= 3)


@pytest.mark.parametrize("wrong", ["digest", "after", "pairs"])
def test_rest_behind_other_pairs_is_refused(wrong: str) -> None:
    """S6.4: what the receiver has is not what this table has there."""
    bench = Sending()
    right = rest_of(5)
    other: dict[str, Any] = {"digest": b"other", "after": b"key1x", "pairs": 3}
    fields = {name: getattr(right, name) for name in right.__struct_fields__}
    question = AskSnapshotRest(**{**fields, wrong: other[wrong]})
    bench.sender.on_ask_rest(B, question, 1_000)
    bench.said()
    bench.run_steps()
    [refused] = bench.said()
    assert (refused.snapshot_id, refused.request_id) == (0, 5)
    assert "begins otherwise" in refused.reason
    assert not bench.sender.sessions
    assert [each.closed for each in bench.snapshots] == [1]


def test_rest_of_a_table_that_is_not_here_is_refused_with_the_positions() -> None:
    """This one is applied further, or not as far."""
    bench = Sending()
    bench.applied = 61
    bench.sender.on_ask_rest(B, rest_of(5), 1_000)
    [refused] = bench.said()
    assert refused.reason == "the table here is at (4, 61), not at (4, 60)"
    assert not bench.snapshots


def test_receiver_that_restarted_is_given_the_rest_of_its_own_snapshot() -> None:
    """The table moved on since, and the snapshot stayed as it was."""
    bench = Sending(serve_max=1)
    before = bench.opened(base_max=33)
    bench.applied = 99
    bench.sender.on_ask_rest(B, rest_of(2**40), 1_000)
    bench.run_steps()
    offer = offered(bench)[-1]
    assert list(bench.sender.sessions) == [offer.snapshot_id]
    assert (offer.snapshot_id != before, offer.seq, offer.base_max) == (True, 60, 33)
    assert [each.closed for each in bench.snapshots] == [0]
    bench.timer(1_000 + SETTINGS.session_ms)
    assert [each.closed for each in bench.snapshots] == [1]


def test_snapshot_that_is_handed_on_while_it_is_read_stays_open() -> None:
    """A chunk of the former life was under way."""
    bench = Sending(serve_max=1)
    before = bench.opened()
    bench.chunk(before, 0)
    bench.sender.on_ask_rest(B, rest_of(2**40), 1_000)
    bench.run_steps()
    assert offered(bench)[-1].snapshot_id
    assert [each.closed for each in bench.snapshots] == [0]


def test_question_for_the_rest_that_comes_again_is_not_compared_again() -> None:
    """It is answered as it stands; chunks wait for the outcome."""
    bench = Sending(chunk_bytes_max=10)
    bench.sender.on_ask_rest(B, rest_of(2**40), 1_000)
    bench.step()
    bench.sender.on_ask_rest(B, rest_of(2**40), 1_000)
    bench.sender.on_ask_rest(B, rest_of(2**40 - 1), 1_000)
    assert [offer.snapshot_id for offer in offered(bench)] == [0, 0]
    [number] = bench.sender.sessions
    bench.chunk(number, 0)
    [refused] = bench.said()
    assert isinstance(refused, SnapshotChunk)
    assert refused.reason
    bench.run_steps()
    assert [offer.snapshot_id for offer in offered(bench)] == [number]
    bench.sender.on_ask_rest(B, rest_of(2**40), 1_000)
    assert [offer.snapshot_id for offer in offered(bench)] == [number]
    assert len(bench.snapshots) == 1


def test_channel_that_is_closed_while_tables_are_compared_ends_it() -> None:
    """Nothing is said, and the snapshot is closed behind the read."""
    bench = Sending()
    bench.sender.on_ask_rest(B, rest_of(5), 1_000)
    bench.said()
    bench.sender.channel_closed(CHANNEL)
    assert bench.snapshots[0].closed == 0
    bench.run_steps()
    assert bench.snapshots[0].closed == 1
    assert not bench.sent


def test_table_that_is_to_be_replaced_here_is_given_to_nobody() -> None:
    """S0.3: it is damaged."""
    damaged = [True]
    bench = Sending()
    bench.sender._is_damaged = lambda _channel: damaged[0]
    bench.ask()
    bench.sender.on_ask_rest(B, rest_of(6), 1_000)
    assert [offer.reason for offer in bench.said()] == [
        "this replica does not serve the channel now"
    ] * 2
    damaged[0] = False
    bench.ask(request_id=7)
    assert bench.barriers


# --- late questions, and bases that are too large -------------------------------------------------

BASE = Base(Term(3), Seq(30), b"h" * 16, b"what it adds up to")


@pytest.mark.parametrize("late", [1, 2**32 - 1])
def test_late_question_of_the_same_life_changes_nothing(late: int) -> None:
    """S12: the receiver asked again since, and is served or will be; so it gets nothing of it."""
    bench = Sending()
    now = 2**40
    bench.ask(request_id=now)
    bench.ask(request_id=now - late)
    bench.barrier()
    [offer] = bench.said()
    assert offer.request_id == now
    bench.ask(request_id=now - late)
    assert list(bench.sender.sessions) == [offer.snapshot_id]
    assert (bench.sent, bench.barriers) == ([], [])
    bench.chunk(offer.snapshot_id, 0)
    bench.go()
    assert bench.numbers() == [0]


def test_question_of_another_life_counts_whatever_its_number() -> None:
    """Each life draws where its numbers begin."""
    bench = Sending()
    bench.ask(request_id=2**40)
    bench.barrier()
    bench.said()
    bench.ask(request_id=2**40 - 2**32)
    assert not bench.sender.sessions
    bench.barrier()
    [offer] = bench.said()
    assert offer.request_id == 2**40 - 2**32


@pytest.mark.parametrize("more", [0, 1])
def test_base_that_no_message_holds_is_refused_with_its_size(more: int) -> None:
    """S12: one that is as large as a log may hold still fits."""
    bench = Sending()
    folds = bytes(BASE_BYTES_MAX + more)
    bench.base = Base(Term(3), Seq(30), b"h" * 16, folds)
    bench.sender.on_ask_base(C, AskBase(CHANNEL, 8, Seq(30)))
    [offer] = bench.said()
    size = BASE_BYTES_MAX + more
    reason = f"the base here takes {size} bytes, messages hold {BASE_BYTES_MAX}" if more else ""
    assert (offer.reason, offer.seq, len(offer.folds)) == (
        (reason, 0, 0) if more else ("", 30, size)
    )
    assert encode(offer)


def test_replica_that_is_down_is_not_asked_for_a_table() -> None:
    """O6: no answer would be waited for, as long as for one that is slow, while others could give
    the table; found as world 22280 with changes of members."""
    bench = Receiving()
    bench.knows_rest, bench.down = {B, C}, {C}
    bench.looking()
    bench.barrier(40)
    assert [to for to, _ in bench.sent] == [B], "C, which does not lead, would be asked first"
