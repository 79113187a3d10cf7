"""The sending side of replica snapshots in files by itself: what is kept, sent and let go."""

from __future__ import annotations

from typing import Any

import msgspec

from raftstore.ports.table_files import PartsDigest, digest_of_part
from raftstore.protocol.replica_snapshots import (
    CHUNKS_AHEAD,
    AskReplicaSnapshot,
    AskSnapshotRest,
    ReplicaSnapshotOffer,
    TableFilePart,
    TableFilesRefused,
)
from raftstore.types import Seq, Term
from tests.unit.engine.snapshots.sender_bench import Sending
from tests.unit.engine.snapshots_bench import CHANNEL, FILES, FIRST_ID, SETTINGS, B, C, held_of

TABLE, MANIFEST = FILES


def sending(**settings: Any) -> Sending:
    """A node that gives files to B."""
    bench = Sending(**settings)
    bench.knows_files = {B}
    return bench


def part(
    name: str, number: int, at: int, content: bytes, *, is_quick: bool = False, **changed: Any
) -> TableFilePart:
    """As it is sent."""
    fields: dict[str, Any] = {
        "channel": CHANNEL,
        "snapshot_id": FIRST_ID + 1,
        "number": number,
        "name": name,
        "at": at,
        "content": content,
        "digest": digest_of_part(name, at, content, is_quick=is_quick),
        "is_file_end": False,
    }
    return TableFilePart(**{**fields, **changed})


def all_parts(*, is_quick: bool = False) -> list[TableFilePart]:
    """Of both files, the digest over all with the last."""
    parts = [
        part(TABLE, 0, 0, FILES[TABLE][:25], is_quick=is_quick),
        part(TABLE, 1, 25, FILES[TABLE][25:], is_quick=is_quick, is_file_end=True),
        part(MANIFEST, 2, 0, FILES[MANIFEST], is_quick=is_quick, is_file_end=True, is_last=True),
    ]
    digest = PartsDigest()
    for each in parts:
        digest.add(each.digest)
    parts[-1] = msgspec.structs.replace(parts[-1], all_digest=digest.digest())
    return parts


def test_files_come_behind_a_barrier_with_their_size_and_number() -> None:
    """S6.4: the position is of what the barrier made durable, or before what is in them."""
    bench = sending()
    number = FIRST_ID + 1
    bench.sender.on_ask(B, AskReplicaSnapshot(CHANNEL, 5, Seq(50), Seq(9), in_files=True))
    assert not bench.sent
    bench.applied = 61
    bench.barrier(base_max=33)
    offer = ReplicaSnapshotOffer(CHANNEL, 5, number, Term(4), Seq(60), Seq(33), 49, files=2)
    assert bench.sent == [(B, offer)]
    assert not bench.snapshots, "nothing is read row by row"
    assert bench.sender.pinned(CHANNEL) == {B: 33}
    assert bench.sender.files_bytes == 49


def test_parts_are_sent_in_order_with_their_digests_and_again_if_they_are_lost() -> None:
    """The last one has the digest over all."""
    bench = sending()
    number = bench.opened_files()
    bench.chunk(number, 0, 1)
    bench.go()
    bench.chunk(number, 2)
    bench.go()
    assert bench.said() == all_parts()
    assert bench.sender.sent_bytes == 49
    assert bench.sender.sent_chunks == 3
    for again in range(3):
        bench.chunk(number, again)
        bench.go()
    assert bench.said() == all_parts()


def test_digests_of_parts_are_as_every_version_takes_them() -> None:
    """S12: another version would take each part for damaged."""
    quick, other = (
        digest_of_part("000005.ldb", 7, b"content", is_quick=is_quick) for is_quick in (True, False)
    )
    assert quick.hex() == "e8229297b761a9356d30c07872363258"
    assert other.hex() == "9aae9f253aef316682ec0fe3e0db7f74"


def test_receiver_that_asks_for_quick_digests_gets_them_and_is_told() -> None:
    """S12: those of whole files stay as they were: what an earlier version left is known again."""
    bench = sending()
    held = held_of(TABLE, FILES[TABLE][:25])
    request = AskReplicaSnapshot(
        CHANNEL, 5, Seq(50), Seq(9), in_files=True, held=(held,), quick_digests=True
    )
    for _ in range(2):  # the answer may be lost
        bench.sender.on_ask(B, request)
        if not bench.sent:
            bench.barrier()
        [offer] = bench.said()
        assert offer.quick_digests
    bench.chunk(offer.snapshot_id, 0, 1)
    bench.go()
    bench.chunk(offer.snapshot_id, 2)
    bench.go()
    first, *others = bench.said()
    assert first == part(TABLE, 0, 25, b"", digest=held.digest, is_held=True)
    assert [each.digest for each in others] == [
        each.digest for each in all_parts(is_quick=True)[1:]
    ]


def test_file_that_the_receiver_has_just_so_is_named_and_not_sent() -> None:
    """NATS-154: it is read here, and compared."""
    bench = sending()
    number = bench.opened_files(held_of(TABLE, FILES[TABLE]))
    bench.chunk(number, 0, 1)
    bench.go()
    held, last = bench.said()
    digest = held_of(TABLE, FILES[TABLE]).digest
    assert held == part(TABLE, 0, 40, b"", digest=digest, is_file_end=True, is_held=True)
    assert (last.name, last.number, last.is_last) == (MANIFEST, 1, True)
    over_all = PartsDigest()
    over_all.add(digest)
    over_all.add(last.digest)
    assert last.all_digest == over_all.digest()
    bench.chunk(number, 0)
    bench.go()
    assert bench.said() == [held]


def test_file_whose_beginning_the_receiver_has_goes_on_behind_it() -> None:
    """NATS-154: a large one is not begun again with each restart."""
    bench = sending()
    held = held_of(TABLE, FILES[TABLE][:30])
    number = bench.opened_files(held)
    bench.chunk(number, 0, 1)
    bench.go()
    first, second = bench.said()
    assert first == part(TABLE, 0, 30, b"", digest=held.digest, is_held=True)
    assert second == part(TABLE, 1, 30, FILES[TABLE][30:], is_file_end=True)


def test_file_that_is_another_one_under_the_same_name_is_sent() -> None:
    """By its size, which needs no reading, and by its digest."""
    longer, other = FILES[TABLE] + b"!", FILES[TABLE][:-1] + b"!"
    for content, reads in ((longer, 0), (other, 2), (b"", 0)):
        bench = sending()
        number = bench.opened_files(held_of(TABLE, content))
        bench.chunk(number, 0)
        bench.go()
        assert bench.said() == all_parts()[:1]
        assert len(bench.done()) == reads + 1


def test_table_that_cannot_be_had_in_files_is_offered_in_pairs() -> None:
    """In the same answer."""
    bench = sending()
    bench.has_files = False
    bench.sender.on_ask(B, AskReplicaSnapshot(CHANNEL, 5, Seq(50), Seq(9), in_files=True))
    bench.barrier()
    [offer] = bench.said()
    assert (offer.files, offer.table_bytes) == (0, 4_321)
    assert len(bench.snapshots) == 1


def test_only_who_knows_files_and_asks_for_rows_gets_files() -> None:
    """Not a node that came back as an older version, nor a witness."""
    bench = sending()
    bench.sender.on_ask(C, AskReplicaSnapshot(CHANNEL, 5, Seq(50), Seq(9), in_files=True))
    bench.sender.on_ask(B, AskReplicaSnapshot(CHANNEL, 5, Seq(50), Seq(9), True, in_files=True))
    bench.barrier()
    bench.barrier()
    assert not bench.files
    assert [offer.files for offer in bench.said()] == [0, 0]


def test_files_that_are_not_served_in_the_end_are_let_go() -> None:
    """Something came in between: the channel stopped, or the receiver asks for pairs now."""
    for why in ("nothing newer", "stopped", "pairs"):
        bench = sending()
        have = 60 if why == "nothing newer" else 50
        request = AskReplicaSnapshot(CHANNEL, 5, Seq(have), Seq(9), in_files=True)
        bench.sender.on_ask(B, request)
        if why == "stopped":
            bench.channels[CHANNEL].stopped_reason = "it differs"
        if why == "pairs":
            bench.sender.on_ask(B, AskReplicaSnapshot(CHANNEL, 6, Seq(50), Seq(9)))
        bench.barrier()
        bench.run_steps()
        [offer] = bench.said()
        assert offer.files == 0
        assert (offer.snapshot_id > 0) == (why == "pairs")
        [files] = bench.files
        assert files is not None
        assert files.closed == 1


def test_files_go_when_nobody_asks_when_all_was_read_and_with_the_channel() -> None:
    """NATS-169: what a receiver makes a node keep ends with its session."""
    for how in ("idle", "read", "closed", "asks anew", "refused"):
        bench = sending()
        number = bench.opened_files()
        [files] = bench.files
        assert files is not None
        if how == "idle":
            bench.timer(bench.now_ms + SETTINGS.session_ms)
        elif how == "read":
            bench.chunk(number, 0, 1)
            bench.go()
            bench.chunk(number, 2)
            bench.go()
            bench.chunk(number, 2 + CHUNKS_AHEAD + 1)
        elif how == "closed":
            bench.sender.channel_closed(CHANNEL)
        elif how == "asks anew":
            bench.ask(request_id=6)
        else:
            bench.sender.on_files_refused(B, TableFilesRefused(CHANNEL, number, "why"), 0)
        assert not files.closed, "it waits for the thread of copies"
        bench.run_steps()
        assert files.closed == 1
        assert bench.sender.files_bytes == 0


def test_files_that_are_being_read_are_let_go_behind_that() -> None:
    """Never under a read."""
    bench = sending()
    number = bench.opened_files()
    [files] = bench.files
    assert files is not None
    bench.chunk(number, 0)
    bench.sender.channel_closed(CHANNEL)
    bench.run_steps()
    assert files.closed == 1
    assert not bench.said()


def test_refused_files_have_the_table_looked_at() -> None:
    """S13: the one whose they were; and nobody else may say so."""
    bench = sending()
    looked: list[object] = []
    bench.sender.on_refused = lambda runner, now_ms: looked.append((runner.name, now_ms))
    number = bench.opened_files()
    for sender, snapshot in ((C, number), (B, number + 1)):
        bench.sender.on_files_refused(sender, TableFilesRefused(CHANNEL, snapshot, "why"), 7)
    assert not looked
    bench.sender.on_files_refused(B, TableFilesRefused(CHANNEL, number, "why"), 7)
    assert looked == [("orders/3", 7)]
    fields = {"channel": "orders/3", "peer": "n2", "reason": "why"}
    assert bench.told() == [("replica_snapshot_refused", fields)]
    assert not bench.sender.sessions


def test_files_are_not_compared_with_pairs_that_a_receiver_has() -> None:
    """It asks for the rest of a copy in pairs: the snapshot of it is not this one."""
    bench = sending()
    bench.opened_files()
    [files] = bench.files
    assert files is not None
    rest = AskSnapshotRest(CHANNEL, 6, Term(4), Seq(60), b"key1", 2, bytes(16))
    bench.sender.on_ask_rest(B, rest, bench.now_ms)
    bench.run_steps()
    assert files.closed == 1
    assert len(bench.snapshots) == 1
