"""Tables copied from the files of another replica's: what is taken, and what is not (S6.4)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from raftstore import faults
from raftstore.errors import CorruptRecordError, StorageError
from raftstore.ports.table_files import FileDigest
from raftstore.storage.tables.files_copy import LevelDbFilesCopy
from raftstore.storage.tables.generations import Generation
from raftstore.storage.tables.keys import (
    BARRIER_KEY,
    MERGED_KEY,
    applied_key,
    encode_applied,
    marker_key,
    rows_prefix,
)
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.types import EMPTY_HISTORY, History, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER, database_of, flip_bit, table_path
from tests.unit.storage.tables.files_copied import (
    OFFERED,
    PART_BYTES,
    ROWS,
    applied,
    begun,
    files_of,
    finish,
    reopened,
    switched,
    tables_of,
    take_all,
    take_file,
)

STEPS = (
    "copy.before-write",
    "copy.after-file",
    "copy.before-sync",
    "copy.after-sync",
    "copy.before-switch",
    "copy.after-switch",
)


class Stopped(Exception):
    """The process ended."""


def copied(receiver: LevelDbTables, files: Any) -> None:
    """The table of these files, from the first part to the switch."""
    copy = begun(receiver)
    take_all(copy, files)
    switched(receiver, copy)


@pytest.fixture
def sender(tmp_path: Path) -> Any:
    """Tables at seq 100 of 100 rows, in two files."""
    tables = tables_of(tmp_path / "sender", dict(list(ROWS.items())[:60]))
    files_of(tables).close()
    applied(tables, dict(list(ROWS.items())[60:]))
    yield tables
    tables.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Any:
    """Tables at seq 1 of one row."""
    tables = tables_of(tmp_path / "receiver", {b"old": b"row"})
    yield tables
    tables.close()


def test_copied_table_is_the_senders(sender: LevelDbTables, receiver: LevelDbTables) -> None:
    """Rows, position and hash are those of the sender, now and after a restart; records go on."""
    files, copy = files_of(sender), begun(receiver)
    assert [name[-4:] for name, _ in files.files[:-1]] == [".ldb", ".ldb"]
    take_all(copy, files)
    assert copy.found() == (b"", 101, OFFERED)
    switched(receiver, copy)
    assert receiver.content_hash(CHANNEL) == sender.content_hash(CHANNEL)
    assert receiver.applied_history(CHANNEL) == OFFERED
    receiver.apply_queued()
    applied(receiver, {b"more": b"of it"})
    receiver.close()
    again = reopened(receiver._directory)
    assert again.applied_seq(CHANNEL) == 101
    assert again.copied_position(CHANNEL) == OFFERED
    assert again.begun_copy(CHANNEL) is None
    names = [path.name for path in (again._directory / "tables").iterdir() if path.is_dir()]
    assert names == [Generation(CHANNEL, 1).name]
    assert not table_path(again._directory).exists()
    again.close()


@pytest.mark.parametrize("step", STEPS)
def test_stop_at_any_step_leaves_the_former_table_or_the_copied_one(
    sender: LevelDbTables,
    receiver: LevelDbTables,
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S6.4: never half of a table; whole files are used again, and the copy ends as it would."""
    home, found = receiver._directory, tmp_path / "found"
    written = 0

    def stop(failpoint: str) -> None:
        nonlocal written
        written += failpoint == "copy.before-write"
        if failpoint == step and written > 1:
            shutil.copytree(home, found)
            raise Stopped

    files, is_copied = files_of(sender), step == STEPS[-1]
    expected = sender.content_hash(CHANNEL) if is_copied else receiver.content_hash(CHANNEL)
    monkeypatch.setattr(faults, "reach", stop)
    with pytest.raises(Stopped):
        copied(receiver, files)
    monkeypatch.undo()
    again = reopened(found)
    assert again.content_hash(CHANNEL) == expected
    begun_copy = again.begun_copy(CHANNEL)
    assert (begun_copy is None) == is_copied
    if begun_copy is not None:
        assert isinstance(begun_copy, LevelDbFilesCopy)
        while not begun_copy.look(1):
            pass
        held = {each.name: each.size for each in begun_copy.held()}
        assert len(held) == (1 if step in STEPS[:2] else 2)
        begun_copy.begin(OFFERED)
        for number, (name, size) in enumerate(files.files):
            if name in held:
                begun_copy.keep(name, is_whole=held[name] == size)
            if held.get(name, 0) < size:
                take_file(begun_copy, files, number, held.get(name, 0))
        finish(begun_copy)
        switched(again, begun_copy)
        assert again.content_hash(CHANNEL) == sender.content_hash(CHANNEL)
    again.close()


def test_held_file_is_digested_as_it_is_there(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """A file that the disk lost or turned is not what the sender has; of a file that is not whole
    the beginning is held."""
    files, copy = files_of(sender), begun(receiver)
    take_file(copy, files, 0)
    name, size = files.files[0]
    copy.write_part(files.files[1].name, 0, files.read(1, 0, 100), is_last=False)
    (copy.path / "000099.ldb.part").write_bytes(b"of another life")
    (copy.path / "LOG").write_bytes(b"of LevelDB")
    while not copy.look(1):
        pass
    digest = FileDigest()
    digest.add(files.read(0, 0, size))
    beginning, stray = FileDigest(), FileDigest()
    beginning.add(files.read(1, 0, 100))
    stray.add(b"of another life")
    assert {tuple(each) for each in copy.held()} == {
        (name, size, digest.digest()),
        (files.files[1].name, 100, beginning.digest()),
        ("000099.ldb", 15, stray.digest()),
    }
    assert {path.suffix for path in copy.path.iterdir()} == {".ldb", ".part", ""}
    flip_bit(copy.path / name, 50)
    assert copy.look(1 << 30)
    assert digest.digest() not in [held.digest for held in copy.held()]
    copy.abandon()
    assert not copy.path.exists()


def test_file_of_another_attempt_goes_unless_the_sender_has_it(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """Nothing is in the database that the sender did not name."""
    files, copy = files_of(sender), begun(receiver)
    strays = [copy.path / "000077.ldb", copy.path / "000078.log"]
    for stray in strays:
        stray.write_bytes(b"a file of another sender")
    take_all(copy, files)
    assert not any(stray.exists() for stray in strays)
    assert copy.found()[2] == OFFERED
    copy.abandon()


def test_file_that_is_missing_or_damaged_is_noticed_wherever_it_is(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """S6.4: a bit in any block, index or footer of a table file, or in the MANIFEST, and a file too
    few: the copy fails, or all is as it was (what LevelDB has no use for)."""
    expected = sender.content_hash(CHANNEL)
    files = files_of(sender)
    refused = 0
    for number, (_, size) in enumerate(files.files):
        for at in range(3, size, max(1, size // 12)):
            refused += is_refused(receiver, files.path, number, at, files, expected)
    assert refused >= 24
    copy = begun(receiver)
    for number in range(1, len(files.files)):
        take_file(copy, files, number)
    with pytest.raises(CorruptRecordError, match="missing"):
        finish(copy)
    copy.abandon()


def is_refused(
    receiver: LevelDbTables, path: Path, number: int, at: int, files: Any, expected: Any
) -> bool:
    """Whether a copy with this byte turned is no table; else it must be the sender's."""
    damaged = path / files.files[number].name
    before = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(before)  # no link any more: the sender's own stays as it is
    flip_bit(damaged, at)
    copy = begun(receiver)
    try:
        take_all(copy, files)
    except CorruptRecordError:
        return True
    else:
        found = receiver._reads.content_hash(copy.source, CHANNEL)
        is_older = copy.found()[2] != OFFERED
        assert is_older or found == expected, f"{at} of {files.files[number]}"
        return is_older
    finally:
        damaged.write_bytes(before)
        copy.abandon()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (rows_prefix(CHANNEL) + b"050", bytes(200), "does not match"),
        (rows_prefix(CHANNEL) + b"050", b"short", "303530"),
        (rows_prefix(OTHER) + b"050", bytes(20), "of another channel"),
        (bytes(len(CHANNEL)) + b"\x00strange", b"", "of another channel"),
        (marker_key(CHANNEL), encode_applied(CHANNEL, OFFERED), "middle of a record"),
        (applied_key(CHANNEL), bytes(20), "does not match its checksum"),
    ],
)
def test_what_is_no_table_of_the_channel_is_refused(
    sender: LevelDbTables, receiver: LevelDbTables, key: bytes, value: bytes, reason: str
) -> None:
    """S13: checksums of blocks say nothing of what was wrong before they were made."""
    database_of(sender).put(key, value)
    copy = begun(receiver)
    with pytest.raises(StorageError, match=reason) as raised:
        take_all(copy, files_of(sender))
    # A record that began meanwhile is no damage of the sender's.
    assert isinstance(raised.value, CorruptRecordError) == (key != marker_key(CHANNEL))
    copy.abandon()


def test_table_without_a_position_is_at_none(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """The engine compares it with what was offered."""
    database_of(sender).delete(applied_key(CHANNEL))
    copy = begun(receiver)
    take_all(copy, files_of(sender))
    assert copy.found()[2] == EMPTY_HISTORY
    copy.abandon()


def test_stores_own_keys_go_with_the_files(sender: LevelDbTables, receiver: LevelDbTables) -> None:
    """They are about these very files."""
    database_of(sender).put(MERGED_KEY, b"anything")
    copy = begun(receiver)
    take_all(copy, files_of(sender))
    assert copy.source.get(MERGED_KEY) == b"anything"
    assert copy.source.get(BARRIER_KEY) is not None
    copy.abandon()


@pytest.mark.parametrize(
    "name", ["../000005.ldb", "CURRENT", "000005.log", "", "MANIFEST-1", "a/b", "0" * 99 + ".ldb"]
)
def test_name_that_is_no_files_leads_nowhere(receiver: LevelDbTables, name: str) -> None:
    """S13: a peer says it."""
    copy = begun(receiver)
    with pytest.raises(CorruptRecordError, match="cannot have the file"):
        copy.write_part(name, 0, b"content", is_last=True)
    copy.abandon()


def test_parts_come_in_order_and_files_once(sender: LevelDbTables, receiver: LevelDbTables) -> None:
    """A part behind a gap, a file twice or one that is not held: no version sends that."""
    files, copy = files_of(sender), begun(receiver)
    name = files.files[0].name
    with pytest.raises(CorruptRecordError, match="not there up to byte 7"):
        copy.write_part(name, 7, b"content", is_last=False)
    take_file(copy, files, 0)
    with pytest.raises(CorruptRecordError, match="cannot have the file"):
        copy.write_part(name, 0, b"content", is_last=True)
    for unknown in (name, "000077.ldb"):
        with pytest.raises(CorruptRecordError, match="no file"):
            copy.keep(unknown, is_whole=True)
    with pytest.raises(CorruptRecordError, match=r"MANIFESTs \[\]"):
        copy.finish()
    copy.abandon()


def test_begun_copy_is_gone_on_with_behind_the_next_offer(
    sender: LevelDbTables, receiver: LevelDbTables
) -> None:
    """The table moved on: what did not change is used again, whatever position it was of."""
    files, copy = files_of(sender), begun(receiver)
    take_file(copy, files, 0)
    kept = files.files[0].name
    files.close()
    applied(sender, {b"100": b"more"})
    files = files_of(sender)
    assert copy.look(1 << 30)
    later = History(Term(1), Seq(101))
    copy.begin(later)
    assert copy.position == later
    for number, (name, _) in enumerate(files.files):
        if name == kept:
            copy.keep(name, is_whole=True)
        else:
            take_file(copy, files, number)
    finish(copy)
    assert copy.found()[2] == later
    switched(receiver, copy)
    assert receiver.content_hash(CHANNEL) == sender.content_hash(CHANNEL)


def test_disk_that_fails_costs_the_copy(
    sender: LevelDbTables, receiver: LevelDbTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4: the former table stays."""
    files, copy = files_of(sender), begun(receiver)
    monkeypatch.setattr(copy._ops, "datasync", fails)
    with pytest.raises(StorageError, match="writing a file"):
        take_file(copy, files, 0)
    copy.abandon()
    assert receiver.get(CHANNEL, b"old") is not None


def fails(*_of: object) -> None:
    """The disk does."""
    raise OSError(5, "Input/output error")


def test_parts_are_as_long_as_they_are(sender: LevelDbTables) -> None:
    """The last one ends with the file."""
    files = files_of(sender)
    _, size = files.files[0]
    assert len(files.read(0, 0, PART_BYTES)) == PART_BYTES
    assert len(files.read(0, size - 3, PART_BYTES)) == 3
