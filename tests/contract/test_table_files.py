"""The contract of ports.TableFiles and ports.FilesCopy, on LevelDB and on the simulated tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import CorruptRecordError
from raftstore.ports.table_files import FileDigest, FilesCopy, TableFiles, is_file_name
from raftstore.ports.tables import Barrier
from raftstore.state_machines.table import TableMachine
from raftstore.types import EMPTY_HISTORY, History, Seq, Term
from tests.contract.test_table_snapshots import LevelDbWorld, SimWorld, write
from tests.storage_helpers import CHANNEL, OTHER

ROWS: dict[bytes, bytes | None] = {b"%03d" % n: bytes([n]) * 200 for n in range(60)}
AT = History(Term(1), Seq(60))
PART_BYTES = 3_000


@pytest.fixture(params=["leveldb", "sim"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """A sender with rows, and a receiver without any."""
    made: list[Any] = []
    for name in ("sender", "receiver"):
        (tmp_path / name).mkdir()
        is_real = request.param == "leveldb"
        made.append(LevelDbWorld(tmp_path / name) if is_real else SimWorld())
        made[-1].tables.open_channel(CHANNEL, TableMachine())
        made[-1].tables.open_channel(OTHER, TableMachine())
    write(made[0], 1, ROWS)
    yield made[0], made[1]
    for world in made:
        world.close()


def asked(world: Any, channel: Any = CHANNEL) -> tuple[TableFiles | None, Barrier]:
    """The files that are kept of a table."""
    told: list[tuple[TableFiles | None, Barrier]] = []
    world.tables.start_files(channel, lambda files, barrier, _now_ms: told.append((files, barrier)))
    world.next_read()(0)
    return told[0]


def files_of(world: Any) -> TableFiles:
    """The same where it can be had."""
    files, _ = asked(world)
    assert files is not None
    return files


def take(copy: FilesCopy, files: TableFiles, number: int, behind: int = 0) -> None:
    """One of the files, behind so many bytes."""
    name, size = files.files[number]
    for at in range(behind, size, PART_BYTES):
        content = files.read(number, at, PART_BYTES)
        copy.write_part(name, at, content, is_last=at + len(content) == size)


def begun(world: Any) -> FilesCopy:
    """A copy without any file."""
    copy: FilesCopy = world.tables.begin_copy(CHANNEL, AT, in_files=True)
    assert copy.in_files
    copy.begin(AT)
    assert copy.position == AT
    return copy


def installed(world: Any, copy: FilesCopy) -> None:
    """The copy is the table."""
    copy.finish()
    while not copy.verify(1_000):
        pass
    copy.complete()
    world.tables.install(CHANNEL, copy)
    world.tables.open_channel(CHANNEL, TableMachine())


def test_files_become_the_same_table(worlds: tuple[Any, Any]) -> None:
    """Rows, position and hash, whatever is applied meanwhile; the last file names the others."""
    sender, receiver = worlds
    files, barrier = asked(sender)
    assert files is not None
    assert (files.applied, barrier.applied_seq) == (AT, 60)
    assert all(is_file_name(name) and size > 0 for name, size in files.files)
    assert files.files[-1].name.startswith("MANIFEST-")
    expected = sender.tables.content_hash(CHANNEL)
    write(sender, 61, {b"later": b"row"})
    copy = begun(receiver)
    for number in range(len(files.files)):
        take(copy, files, number)
    installed(receiver, copy)
    assert copy.found() == (b"", 61, AT)
    assert receiver.tables.content_hash(CHANNEL) == expected
    assert receiver.tables.applied_history(CHANNEL) == AT
    files.close()
    files.close()


def test_damaged_row_is_found_by_who_takes_it(worlds: tuple[Any, Any]) -> None:
    """The sender does not read its rows."""
    sender, receiver = worlds
    sender.corrupt(b"030")
    files, copy = files_of(sender), begun(receiver)
    for number in range(len(files.files)):
        take(copy, files, number)
    copy.finish()
    with pytest.raises(CorruptRecordError, match=b"030".hex()):
        copy.verify(1 << 30)
    copy.abandon()


def test_what_is_there_is_held_and_gone_on_with(worlds: tuple[Any, Any]) -> None:
    """A whole file, and the beginning of one; but for the one that names the others."""
    sender, receiver = worlds
    files, copy = files_of(sender), begun(receiver)
    name, size = files.files[0]
    manifest = len(files.files) - 1
    part = files.read(0, 0, 1_000)
    take(copy, files, manifest)
    copy.write_part(name, 0, part, is_last=False)
    while not copy.look(1):
        pass
    digest = FileDigest()
    digest.add(part)
    assert [tuple(each) for each in copy.held()] == [(name, 1_000, digest.digest())]
    copy.begin(AT)
    copy.keep(name, is_whole=False)
    take(copy, files, 0, 1_000)
    while not copy.look(1):
        pass
    assert [(each.name, each.size) for each in copy.held()] == [(name, size)]
    copy.begin(AT)
    copy.keep(name, is_whole=True)
    for number in range(1, len(files.files)):
        take(copy, files, number)
    installed(receiver, copy)
    assert receiver.tables.content_hash(CHANNEL) == sender.tables.content_hash(CHANNEL)


def test_files_that_were_not_all_sent_are_no_table(worlds: tuple[Any, Any]) -> None:
    """The one that names the others is missing, or one that it names."""
    sender, receiver = worlds
    files = files_of(sender)
    manifest = len(files.files) - 1
    for number in (0, manifest):
        copy = begun(receiver)
        take(copy, files, number)
        with pytest.raises(CorruptRecordError):
            copy.finish()
        copy.abandon()


def test_table_of_which_nothing_is_applied_has_no_files(worlds: tuple[Any, Any]) -> None:
    """It is given in pairs."""
    files, barrier = asked(worlds[0], OTHER)
    assert files is None
    assert barrier.applied_seq == 0
    assert worlds[0].tables.applied_history(OTHER) == EMPTY_HISTORY
