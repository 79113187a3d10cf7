"""The receiving side of replica snapshots in files by itself: what it asks for, and what it
takes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftstore.engine.snapshots.transfer import SMALL_BYTES
from raftstore.errors import CorruptRecordError, PersistError
from raftstore.protocol.replica_snapshots import (
    AskReplicaSnapshot,
    AskSnapshotChunk,
    TableFilePart,
    TableFilesRefused,
)
from raftstore.types import History, NodeId, Seq, Term
from tests.unit.engine.receiver_bench import ASKED, SNAPSHOT, VERIFY, Receiving
from tests.unit.engine.snapshots.test_files_sent import all_parts
from tests.unit.engine.snapshots_bench import (
    CHANNEL,
    FILES,
    OTHER,
    SETTINGS,
    B,
    C,
    FilesCopy,
    held_of,
)

TABLE, MANIFEST = FILES
LOOK = VERIFY.replace("verify", "look")


def receiving(**settings: Any) -> Receiving:
    """A node that may take files of B and C."""
    bench = Receiving(**settings)
    bench.knows_files = {B, C}
    return bench


def copying(**offered: Any) -> Receiving:
    """Files were offered, and two parts asked for."""
    bench = receiving()
    question = bench.asking()
    assert question == AskReplicaSnapshot(
        CHANNEL, ASKED, Seq(0), Seq(0), in_files=True, quick_digests=True
    )
    bench.offer(files=2, **offered)
    return bench


def take(
    bench: Receiving,
    number: int,
    *,
    sender: NodeId = B,
    all_digest: bytes = b"",
    is_quick: bool = False,
    **changed: Any,
) -> None:
    """One of the three parts."""
    part = all_parts(is_quick=is_quick)[number]
    part = msgspec.structs.replace(part, snapshot_id=SNAPSHOT, **changed)
    if all_digest:
        part = msgspec.structs.replace(part, all_digest=all_digest)
    bench.receiver.taking.on_chunk(sender, part, bench.now_ms)


def taken(bench: Receiving) -> None:
    """All parts are written."""
    for number in range(3):
        take(bench, number)
        bench.run_steps()


def copy_of(bench: Receiving) -> FilesCopy:
    """The copy that is being built."""
    copy = bench.receiver.transfers[CHANNEL].copy
    assert isinstance(copy, FilesCopy)
    return copy


def test_files_are_written_read_and_switched_to() -> None:
    """S6.4: two parts are under way at a time; every row is read before the switch."""
    bench = copying()
    fields = {"channel": "orders/3", "peer": "n2", "seq": 60, "table_bytes": 90, "pairs": 0}
    assert bench.told() == [("replica_snapshot_started", fields)]
    assert bench.numbers() == [0, 1]
    copy = copy_of(bench)
    bench.durable_operation = 99
    taken(bench)
    assert copy.written == FILES
    assert bench.done() == [
        "begin",
        f"write {TABLE} 0",
        f"write {TABLE} 25 to its end",
        f"write {MANIFEST} 0 to its end",
        "finish",
        VERIFY,
        VERIFY,
        "pause orders/3",
        "complete",
        "install orders/3",
        "reopen orders/3",
    ]
    [(name, ended)] = bench.told()
    assert name == "replica_snapshot_finished"
    assert (ended["seq"], ended["pairs"], ended["table_bytes"]) == (60, 5, 49)
    assert bench.said()[-1] == AskSnapshotChunk(CHANNEL, SNAPSHOT, 5), "the sender lets them go"
    assert bench.receiver.taking.received_bytes == 49
    assert bench.receiver.taking.received_chunks == 3


def test_files_are_asked_of_nodes_that_know_them_and_by_replicas_with_rows() -> None:
    """Others are asked as ever."""
    bench = Receiving()
    assert bench.asking() == AskReplicaSnapshot(CHANNEL, ASKED, Seq(0), Seq(0))
    witness = receiving()
    witness.mine.has_rows = False
    assert witness.asking() == AskReplicaSnapshot(CHANNEL, ASKED, Seq(0), Seq(0), True)


def test_files_asked_for_may_come_in_pairs() -> None:
    """Where the sender cannot keep them."""
    bench = receiving()
    bench.asking()
    bench.offer()
    assert not bench.copies[-1].in_files
    take(bench, 0)
    assert not bench.steps, "what was not offered is not taken"
    bench.chunk(0)
    bench.step()
    assert bench.done() == ["write"]


def test_part_that_is_not_what_it_says_is_asked_for_again() -> None:
    """S12: content, place and name are in the digest."""
    for wrong in ({"content": b"!" * 25}, {"at": 1}, {"name": "000006.ldb"}):
        bench = copying()
        bench.run_steps()
        bench.done()
        bench.said()
        bench.told()
        take(bench, 0, **wrong)
        bench.run_steps()
        assert not bench.done()
        [(name, fields)] = bench.told()
        assert (name, fields["number"]) == ("replica_snapshot_chunk_damaged", 0)
        bench.timer(bench.now_ms + SETTINGS.request_ms)
        assert bench.numbers() == [0, 1]
        take(bench, 0)
        bench.run_steps()
        assert bench.done() == [f"write {TABLE} 0"]


@pytest.mark.parametrize("is_quick", [True, False])
def test_digests_of_parts_are_of_the_kind_that_was_offered(is_quick: bool) -> None:
    """S12: a sender of an earlier version knows one kind, and does not say which."""
    bench = copying(quick_digests=True) if is_quick else copying()
    take(bench, 0, is_quick=not is_quick)
    bench.run_steps()
    assert bench.done() == ["begin"], "the other kind is no digest of this part"
    copy = copy_of(bench)
    for number in range(3):
        take(bench, number, is_quick=is_quick)
        bench.run_steps()
    assert copy.written == FILES


def test_parts_that_are_not_all_that_was_sent_are_not_opened() -> None:
    """S6.4: the digest over all of them."""
    bench = copying()
    bench.run_steps()
    for number in (0, 1):
        take(bench, number)
        bench.run_steps()
    bench.told()
    bench.done()
    take(bench, 2, all_digest=bytes(16))
    bench.run_steps()
    assert "digest over 3 parts" in bench.failed()
    assert bench.done() == [f"write {MANIFEST} 0 to its end", "abandon"]


def test_table_is_as_far_as_was_offered_or_further() -> None:
    """A later state has its own position; a term says which record it was."""
    later, older, other = (4, 61), (4, 59), (3, 60)
    for term, seq in (later, older, other):
        bench = copying()
        copy_of(bench).as_read = b"", 5, History(Term(term), Seq(seq))
        bench.told()
        bench.durable_operation = 99
        taken(bench)
        if (term, seq) == later:
            [(name, fields)] = bench.told()
            assert (name, fields["seq"]) == ("replica_snapshot_finished", 61)
        else:
            assert f"it is at ({term}, {seq}), not (4, 60)" in bench.failed()
            assert "abandon" in bench.done()


def test_files_that_are_no_table_are_refused_and_come_in_pairs_then() -> None:
    """S13: each part is what the sender has, so it is notified; the next sender reads its rows."""
    bench = copying()
    copy = copy_of(bench)
    copy.fails_at = VERIFY
    taken(bench)
    refused = bench.said()[-1]
    reason = f"the disk failed at {VERIFY}"
    assert refused == TableFilesRefused(CHANNEL, SNAPSHOT, reason)
    bench.told()
    bench.barriers.clear()
    bench.timer(bench.now_ms + SETTINGS.retry_ms)
    bench.barrier(40)
    assert bench.said() == [AskReplicaSnapshot(CHANNEL, ASKED + 1, Seq(0), Seq(0))]


def test_disk_that_fails_here_says_nothing_of_the_sender() -> None:
    """The next attempt is in files again; so is one behind a file that cannot be written."""
    for error in (PersistError("the disk is full"), CorruptRecordError("no such file")):
        bench = copying()
        copy = copy_of(bench)

        def fail(*_of: Any, why: Exception = error, **_options: Any) -> None:
            raise why

        copy.write_part = fail  # type: ignore[method-assign]
        take(bench, 0)
        bench.said()
        bench.run_steps()
        assert not any(isinstance(each, TableFilesRefused) for each in bench.said())
        assert str(error) in str(bench.told()[-1][1]["reason"])
        bench.timer(bench.now_ms + SETTINGS.retry_ms)
        bench.barrier(40)
        [question] = bench.said()
        assert question.in_files == isinstance(error, PersistError)


def begun(held: int = 1) -> Receiving:
    """An earlier life of the node has a whole file of a table."""
    bench = receiving()
    bench.begun[CHANNEL] = copy = FilesCopy(bench, History(Term(0), Seq(0)), held)
    bench.receiver.channel_opened(bench.mine, bench.now_ms)
    bench.looking()
    bench.barrier(40)
    bench.run_steps()
    assert bench.done() == [LOOK, LOOK]
    assert copy.written
    return bench


def test_copy_of_an_earlier_life_that_is_read_is_waited_for() -> None:
    """Reading what there is of a large table may take as long as it takes the rest to come."""
    bench = receiving()
    bench.begun[CHANNEL] = FilesCopy(bench, History(Term(0), Seq(0)), 1)
    bench.receiver.channel_opened(bench.mine, bench.now_ms)
    bench.looking()
    bench.barrier(40)
    other = bench.channels[OTHER]
    other.core.trimmed_to = Seq(41)
    for stage in ("reading what was copied before", "asking for an offer"):
        bench.now_ms += SETTINGS.request_ms - 1
        bench.step()
        assert bench.stage() == stage
        bench.receiver.needed(other, bench.now_ms)
        bench.timer()
        assert OTHER not in bench.receiver.transfers
    bench.room_bytes = 2 * SMALL_BYTES
    bench.offer(files=2, table_bytes=SMALL_BYTES)
    bench.timer()
    assert OTHER in bench.receiver.transfers


def test_file_that_is_there_is_told_and_kept() -> None:
    """NATS-154: any node may send, and the position may have moved on."""
    bench = begun()
    held = held_of(TABLE, FILES[TABLE])
    [question] = bench.said()
    assert question == AskReplicaSnapshot(
        CHANNEL, ASKED, Seq(0), Seq(0), in_files=True, held=(tuple(held),), quick_digests=True
    )
    bench.offer(files=2)
    assert [name for name, _ in bench.told()] == ["replica_snapshot_resumed"]
    take_held(bench, held.digest)
    assert bench.done() == ["begin", f"keep {TABLE} whole"]
    assert bench.receiver.transfers[CHANNEL].bytes == 40
    assert bench.receiver.taking.received_bytes == 0


def take_held(bench: Receiving, digest: bytes, name: str = TABLE) -> None:
    """The sender says that it has the file just so."""
    part = TableFilePart(CHANNEL, SNAPSHOT, 0, name, 40, b"", digest, True, True)
    bench.receiver.taking.on_chunk(B, part, bench.now_ms)
    bench.run_steps()


def test_file_that_was_not_told_is_not_kept() -> None:
    """Another one of this name, or none."""
    for name, digest in ((TABLE, bytes(16)), (MANIFEST, held_of(TABLE, FILES[TABLE]).digest)):
        bench = begun()
        bench.offer(files=2)
        bench.run_steps()
        bench.done()
        bench.told()
        take_held(bench, digest, name)
        assert not bench.done()
        assert bench.told()[0][0] == "replica_snapshot_chunk_damaged"


def test_begun_files_are_given_up_where_pairs_are_offered_or_known() -> None:
    """Nothing of them is in pairs."""
    offered = begun()
    offered.offer()
    offered.run_steps()
    assert [name for name, _ in offered.told()] == [
        "replica_snapshot_begun_anew",
        "replica_snapshot_started",
    ]
    assert "abandon" in offered.done()
    older = receiving()
    older.knows_files.clear()
    older.begun[CHANNEL] = FilesCopy(older, History(Term(0), Seq(0)), 1)
    older.receiver.channel_opened(older.mine, older.now_ms)
    older.looking()
    older.barrier(40)
    assert older.said() == [AskReplicaSnapshot(CHANNEL, ASKED, Seq(0), Seq(0))]
    older.run_steps()
    assert older.done() == ["abandon"]


def test_files_of_a_sender_that_went_are_kept_for_the_next() -> None:
    """They are read again then: the disk may have lost some of them."""
    bench = copying()
    bench.run_steps()
    for number in (0, 1):
        take(bench, number)
        bench.run_steps()
    bench.done()
    bench.said()
    bench.receiver.peer_lost(B, bench.now_ms)
    bench.told()
    bench.timer(bench.now_ms + SETTINGS.retry_ms)
    bench.barrier(40)
    bench.run_steps()
    assert bench.done() == [LOOK, LOOK]
    [question] = bench.said()
    assert question.held == (tuple(held_of(TABLE, FILES[TABLE])),)


def test_file_whose_beginning_is_there_goes_on_behind_it() -> None:
    """A large one is not begun again with each restart."""
    bench = begun()
    bench.offer(files=2)
    bench.run_steps()
    bench.done()
    digest = held_of(TABLE, FILES[TABLE]).digest
    part = TableFilePart(CHANNEL, SNAPSHOT, 0, TABLE, 40, b"", digest, False, True)
    bench.receiver.taking.on_chunk(B, part, bench.now_ms)
    bench.run_steps()
    assert bench.done() == [f"keep {TABLE}"]
