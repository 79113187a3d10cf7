"""Tables copied from another replica: built aside, read back, switched to by one name (S6.4)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from raftstore import faults
from raftstore.errors import CorruptRecordError, StorageError
from raftstore.ports.table_copy import CopyDigest, Pair, digest_of_pairs
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.generations import (
    BEGUN_NAME,
    COMPLETE_NAME,
    Generation,
    generation_of,
    path_of,
)
from raftstore.storage.tables.keys import rows_prefix
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.storage.tables.table_copy import LevelDbCopy
from raftstore.testing.sim_tables import SimTables
from raftstore.types import EMPTY_HISTORY, History, Seq, Term
from tests.storage_helpers import (
    CHANNEL,
    SMALL,
    STORE_UUID,
    database_of,
    flip_bit,
    rows_record,
    table_path,
)

STEPS = (
    "copy.before-write",
    "copy.before-sync",
    "copy.after-sync",
    "copy.before-switch",
    "copy.after-switch",
)
COPIED = History(Term(1), Seq(100))
ROWS = {b"%03d" % n: bytes([n]) * 200 for n in range(100)}


class Stopped(Exception):
    """The process ended."""


def make_tables(directory: Path, rows: dict[bytes, bytes], seq: int) -> LevelDbTables:
    """Tables whose channel has these rows, the last of them at ``seq``."""
    directory.mkdir()
    LevelDbTables.create(directory, STORE_UUID, SMALL)
    tables = reopened(directory)
    if seq > len(rows):
        tables.apply(CHANNEL, [rows_record(1, {b"filler%d" % n: b"" for n in range(seq - 1)})])
        tables.apply(CHANNEL, [rows_record(seq, rows)])
    else:
        tables.apply(CHANNEL, [rows_record(1, rows)])
    tables.apply_queued()
    return tables


def reopened(directory: Path) -> LevelDbTables:
    """Tables with one channel attached."""
    tables = LevelDbTables.open(directory, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, TableMachine())
    return tables


@pytest.fixture
def sender(tmp_path: Path) -> Any:
    """Tables at seq 100 of 100 rows."""
    tables = make_tables(tmp_path / "sender", ROWS, 100)
    yield tables
    tables.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Any:
    """Tables at seq 1 of one row."""
    tables = make_tables(tmp_path / "receiver", {b"old": b"row"}, 1)
    yield tables
    tables.close()


def pages_of(tables: LevelDbTables | SimTables, bytes_max: int = 4_000) -> list[list[Pair]]:
    """All that the table of the channel consists of, page by page."""
    snapshot = tables.snapshot(CHANNEL)
    found, after, more = list[list[Pair]](), None, True
    while more:
        pairs, more = snapshot.copy_page(after, bytes_max)
        found.append(pairs)
        after = pairs[-1][0]
    snapshot.close()
    return found


def built(tables: LevelDbTables, pages: list[list[Pair]]) -> LevelDbCopy:
    """A copy of these pages that was read back."""
    copy = tables.begin_copy(CHANNEL, COPIED)
    for pairs in pages:
        copy.write(pairs)
    copy.finish()
    while not copy.verify(5_000):
        pass
    return copy


def installed(tables: LevelDbTables, pages: list[list[Pair]]) -> None:
    """The same, switched to."""
    copy = built(tables, pages)
    copy.complete()
    tables.install(CHANNEL, copy)
    tables.open_channel(CHANNEL, TableMachine())


def test_copied_table_is_the_senders(sender: LevelDbTables, receiver: LevelDbTables) -> None:
    """Rows, position and hash are those of the sender, now and after a restart; records go on."""
    pages = pages_of(sender)
    assert len(pages) > 5
    installed(receiver, pages)
    assert receiver.content_hash(CHANNEL) == sender.content_hash(CHANNEL)
    assert receiver.applied_history(CHANNEL) == History(Term(1), Seq(100))
    receiver.apply(CHANNEL, [rows_record(101, {b"more": b"of it"})])
    receiver.apply_queued()
    receiver.close()
    again = reopened(receiver._directory)
    assert again.applied_seq(CHANNEL) == 101
    assert again.copied_position(CHANNEL) == (1, 100)
    assert [path.name for path in (receiver._directory / "tables").glob("*")].count(
        Generation(CHANNEL, 1).name
    ) == 1
    assert not table_path(again._directory).exists()
    again.close()


def test_pages_are_read_back_as_the_sender_digested_them(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """Digest, number and position are of what is on the disk."""
    pages = pages_of(sender)
    digest = CopyDigest()
    for pairs in pages:
        digest.add(pairs)
    copy = built(receiver, pages)
    assert copy.found() == (digest.digest(), digest.pairs, History(Term(1), Seq(100)))
    assert digest.pairs == 101
    copy.abandon()
    assert not copy.path.exists()
    lacking = built(receiver, pages[:-1])
    assert lacking.found()[0] != digest.digest()
    lacking.abandon()
    assert receiver.get(CHANNEL, b"old") is not None


@pytest.mark.parametrize("step", STEPS)
def test_stop_at_any_step_leaves_the_former_table_or_the_copied_one(
    sender: LevelDbTables,
    receiver: LevelDbTables,
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S6.4: never half of a table; what is not complete is there for who goes on with it only."""
    home, found = receiver._directory, tmp_path / "found"

    def stop(failpoint: str) -> None:
        if failpoint == step and (step != STEPS[0] or any(home.glob("tables/*.g1/CURRENT"))):
            shutil.copytree(home, found)
            raise Stopped

    pages = pages_of(sender)
    expected = sender.content_hash(CHANNEL) if step == STEPS[-1] else receiver.content_hash(CHANNEL)
    monkeypatch.setattr(faults, "reach", stop)
    with pytest.raises(Stopped):
        installed(receiver, pages)
    monkeypatch.undo()
    again = reopened(found)
    assert again.content_hash(CHANNEL) == expected
    copy = again.begun_copy(CHANNEL)
    assert (copy is None) == (step == STEPS[-1])
    if copy is not None:
        copy.abandon()
    names = {path.name for path in (found / "tables").iterdir() if path.is_dir()}
    assert names == {Generation(CHANNEL, 1 if step == STEPS[-1] else 0).name}
    again.close()


def test_reader_of_the_former_table_goes_on_and_then_it_is_removed(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """LevelDB is never closed under a reader."""
    snapshot = receiver.snapshot(CHANNEL)
    installed(receiver, pages_of(sender))
    receiver.apply_queued()
    assert [row.key for row in snapshot.page(b"", b"", 10).rows] == [b"old"]
    assert table_path(receiver._directory).exists()
    snapshot.close()
    assert not table_path(receiver._directory).exists()
    assert receiver.get(CHANNEL, b"old") is None


def test_damaged_copy_is_put_aside_alone_and_nothing_older_comes_back(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """The channel is empty then, so that its base says what it lacks."""
    installed(receiver, pages_of(sender))
    receiver.close()
    (path_of(receiver._directory, CHANNEL) / "CURRENT").unlink()
    again = reopened(receiver._directory)
    assert again.applied_seq(CHANNEL) == 0
    assert again.copied_position(CHANNEL) == (0, 0)
    assert again.rebuilt_because is not None
    again.apply(CHANNEL, [rows_record(1, {b"new": b"row"})])
    again.apply_queued()
    again.close()
    assert reopened_position(again._directory) == 1


def reopened_position(directory: Path) -> int:
    """The applied seq after one more start."""
    tables = reopened(directory)
    tables.close()
    return tables.applied_seq(CHANNEL)


def test_generations_are_numbered_on(sender: LevelDbTables, receiver: LevelDbTables) -> None:
    """An abandoned one gives its number to nobody, and the second copy replaces the first."""
    receiver.begin_copy(CHANNEL, COPIED).abandon()
    installed(receiver, pages_of(sender))
    sender.apply(CHANNEL, [rows_record(101, {b"more": b"rows"})])
    sender.apply_queued()
    installed(receiver, pages_of(sender))
    receiver.apply_queued()
    assert receiver.applied_seq(CHANNEL) == 101
    assert path_of(receiver._directory, CHANNEL).name == Generation(CHANNEL, 3).name
    receiver.close()
    assert reopened_position(receiver._directory) == 101


def test_dropped_channel_leaves_no_generation(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """Its bytes are given back."""
    installed(receiver, pages_of(sender))
    receiver.drop(CHANNEL)
    receiver.apply_queued()
    assert not [path for path in (receiver._directory / "tables").iterdir() if path.is_dir()]


def test_copy_that_cannot_be_written_costs_nothing_but_itself(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """The channel's table is what it was, and the node goes on."""
    pages = pages_of(sender)
    copy = receiver.begin_copy(CHANNEL, COPIED)
    copy.path.mkdir()
    (copy.path / "CURRENT").write_text("what is this")
    with pytest.raises(StorageError):
        copy.write(pages[0])
    copy.abandon()
    assert not copy.path.exists()
    assert receiver.get(CHANNEL, b"old") is not None


def rest_of(tables: LevelDbTables, after: bytes) -> list[Pair]:
    """The sender's pairs behind a key."""
    return [pair for page in pages_of(tables) for pair in page if pair[0] > after]


@pytest.mark.parametrize("pages", [1, 3])
def test_copy_of_an_earlier_life_is_gone_on_with(
    sender: LevelDbTables, receiver: LevelDbTables, pages: int
) -> None:
    """S6.4: what is there is read back, the rest is written behind it, and the whole is verified;
    the table that the channel had serves meanwhile, over the restart, too."""
    copy = receiver.begin_copy(CHANNEL, COPIED)
    for pairs in pages_of(sender)[:pages]:
        copy.write(pairs)
    receiver.close()
    again = reopened(receiver._directory)
    assert again.begun_channels() == (CHANNEL,)
    assert again.get(CHANNEL, b"old") is not None
    found = again.begun_copy(CHANNEL)
    assert found is not None
    assert again.begun_copy(CHANNEL) is None, "it is handed over once"
    assert found.position == COPIED
    while not found.verify(2_000):
        pass
    point = found.resume_point()
    held = [pair for page in pages_of(sender)[:pages] for pair in page]
    digest = CopyDigest()
    digest.add(held)
    assert point == (held[-1][0], len(held), digest.digest())
    found.write(rest_of(sender, point.after))
    found.finish()
    assert found.verify(1 << 30)
    whole = CopyDigest()
    whole.add(pair for page in pages_of(sender) for pair in page)
    assert found.found() == (whole.digest(), whole.pairs, COPIED)
    found.complete()
    again.install(CHANNEL, found)
    again.open_channel(CHANNEL, TableMachine())
    assert again.content_hash(CHANNEL) == sender.content_hash(CHANNEL)
    again.apply_queued()
    again.close()
    assert reopened_position(receiver._directory) == 100


@pytest.mark.parametrize("what", ["no file", "damaged file", "older than the table"])
def test_copy_that_nobody_can_go_on_with_is_removed_at_the_start(
    sender: LevelDbTables, receiver: LevelDbTables, what: str
) -> None:
    """Its position is not known, or another copy was switched to since."""
    copy = receiver.begin_copy(CHANNEL, COPIED)
    copy.write(pages_of(sender)[0])
    file = copy.path / BEGUN_NAME
    if what == "no file":
        file.unlink()
    elif what == "damaged file":
        flip_bit(file, 3)
    else:
        installed(receiver, pages_of(sender))
    receiver.close()
    again = reopened(receiver._directory)
    assert again.begun_channels() == ()
    assert again.begun_copy(CHANNEL) is None
    assert not copy.path.exists()
    assert again.begin_copy(CHANNEL, COPIED).path != path_of(receiver._directory, CHANNEL)
    again.close()


def test_copy_of_a_dropped_channel_is_removed(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """At the start, before it could be handed over; and it is in nobody's way."""
    copy = receiver.begin_copy(CHANNEL, COPIED)
    copy.write(pages_of(sender)[0])
    receiver.close()
    again = reopened(receiver._directory)
    again.forget_copy(CHANNEL)
    again.forget_copy(CHANNEL)
    assert (again.begun_channels(), copy.path.exists()) == ((), False)
    again.close()


def test_damage_at_the_sender_is_found_before_it_is_sent(tmp_path: Path) -> None:
    """S0.3: every row's seal is checked, as in any read."""
    tables = make_tables(tmp_path / "s", ROWS, 100)
    database_of(tables).put(CHANNEL + b"\x01001", b"\0" * 20)
    snapshot = tables.snapshot(CHANNEL)
    with pytest.raises(CorruptRecordError):
        snapshot.copy_page(None, 1 << 20)
    with pytest.raises(StorageError, match="not usable"):
        tables.get(CHANNEL, b"000")
    tables.close()


def test_keys_of_another_channel_are_found_when_a_copy_is_read_back(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """A copy holds one channel's table and nothing else."""
    copy = receiver.begin_copy(CHANNEL, COPIED)
    for pairs in pages_of(sender):
        copy.write(pairs)
    copy.source.put(b"\xff" * 20, b"stray")
    copy.finish()
    with pytest.raises(CorruptRecordError, match="of another"):
        copy.verify(1 << 30)
    copy.abandon()


def test_name_of_a_complete_copy_counts_whatever_is_in_the_file(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """A power cut may leave the name without its content: everything else was durable before."""
    installed(receiver, pages_of(sender))
    receiver.close()
    flip_bit(path_of(receiver._directory, CHANNEL) / COMPLETE_NAME, 3)
    again = reopened(receiver._directory)
    assert again.applied_seq(CHANNEL) == 100
    assert again.copied_position(CHANNEL) == (0, 0)
    again.close()


def test_simulated_tables_copy_as_the_real_ones(sender: LevelDbTables) -> None:
    """The same pairs come out again, and a crash before the switch leaves the former table."""
    pages = pages_of(sender)
    tables = SimTables()
    tables.open_channel(CHANNEL, TableMachine())
    copy = tables.begin_copy(CHANNEL, COPIED)
    for pairs in pages:
        copy.write(pairs)
    copy.finish()
    assert copy.verify(1)
    tables.stop()
    tables.open_channel(CHANNEL, TableMachine())
    assert tables.applied_seq(CHANNEL) == 0
    copy.complete()
    tables.stop()
    tables.open_channel(CHANNEL, TableMachine())
    assert tables.content_hash(CHANNEL) == sender.content_hash(CHANNEL)
    assert tables.copied_position(CHANNEL) == (1, 100)
    assert pages_of(tables) == pages
    assert digest_of_pairs(pages[0]) == digest_of_pairs(pages_of(tables)[0])


@pytest.mark.parametrize(
    "name", ["", "log", "0" * 36, "0" * 36 + ".g0", "0" * 36 + ".g01", "0" * 36 + ".gx", "A" * 36]
)
def test_names_of_generations_are_exact(name: str) -> None:
    """Other names are left alone."""
    found = generation_of(Path(name))
    assert (found is None) == (name != "0" * 36)


def test_empty_copy_puts_a_table_aside_as_evidence(tmp_path: Path, receiver: LevelDbTables) -> None:
    """S13: a table that is another than a quorum's is read no more, here and after a start, and
    stays where a person may look at it."""
    copy = receiver.begin_copy(CHANNEL, EMPTY_HISTORY)
    copy.write([])
    copy.finish()
    copy.complete()
    receiver.install(CHANNEL, copy, keeps_former=True)
    receiver.apply_queued()
    assert receiver.open_channel(CHANNEL, TableMachine()) == 0
    assert receiver.get(CHANNEL, b"old") is None
    (aside,) = (tmp_path / "receiver" / "quarantine").iterdir()
    assert aside.name.startswith(f"tables-{CHANNEL.hex()}")
    assert (aside / "CURRENT").exists()
    receiver.close()
    again = reopened(tmp_path / "receiver")
    assert again.rebuilt_because is None
    assert again.applied_seq(CHANNEL) == 0
    assert again.get(CHANNEL, b"old") is None
    again.apply(CHANNEL, [rows_record(1, {b"new": b"row"})])
    again.apply_queued()
    row = again.get(CHANNEL, b"new")
    assert row is not None
    assert row.value == b"row"
    again.close()


def test_damaged_block_is_told_and_stops_nothing(tmp_path: Path, sender: LevelDbTables) -> None:
    """A reading that only verifies goes over the whole table, finds one flipped bit of a row, and
    leaves the tables usable; a read of that row stops the node as before (S0.4)."""
    snapshot = sender.snapshot(CHANNEL)
    after, size, steps = None, 0, 0
    while steps == 0 or after is not None:
        step = snapshot.verify(after, 3_000)
        assert not step.damage
        after, size, steps = step.after, size + step.bytes, steps + 1
    assert size > sum(map(len, ROWS.values()))
    assert steps > 5
    snapshot.close()
    database = database_of(sender)
    key = rows_prefix(CHANNEL) + b"050"
    stored = bytearray(database.get(key))
    stored[-1] ^= 1
    database.put(key, bytes(stored))
    snapshot = sender.snapshot(CHANNEL)
    assert "checksum" in snapshot.verify(None, 1 << 20).damage
    assert snapshot.verify(None, 1_000).damage == ""
    snapshot.close()
    assert sender.get(CHANNEL, b"051") is not None
    with pytest.raises(CorruptRecordError):
        sender.get(CHANNEL, b"050")
