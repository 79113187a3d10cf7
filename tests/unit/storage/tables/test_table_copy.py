"""One table being copied here, by itself: what is read back, what is durable, what stays (S6.4)."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import plyvel
import pytest

from raftstore.errors import CorruptRecordError, PersistError
from raftstore.ports.table_copy import CopyDigest, Pair, digest_of_pairs
from raftstore.storage.tables import table_copy as module
from raftstore.storage.tables.generations import (
    BEGUN_NAME,
    COMPLETE_NAME,
    Generation,
    copied_position,
)
from raftstore.storage.tables.keys import applied_key, encode_applied
from raftstore.storage.tables.leveldb_database import share_of
from raftstore.storage.tables.table_copy import READ_BYTES, LevelDbCopy
from raftstore.types import EMPTY_HISTORY, History, Seq, Term
from tests.noting_files import NotingFiles
from tests.storage_helpers import CHANNEL, SMALL

COPIED = History(Term(2), Seq(9))
PAIRS: list[Pair] = [
    (applied_key(CHANNEL)[len(CHANNEL) :], encode_applied(CHANNEL, COPIED)),
    *((b"\x01%d" % n, bytes([n]) * 98) for n in range(5)),
]
APPLIED_BYTES = len(PAIRS[0][0]) + len(PAIRS[0][1])


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[LevelDbCopy]:
    """One that has no file yet."""
    tables = tmp_path / "tables"
    tables.mkdir()
    made = LevelDbCopy(
        CHANNEL, COPIED, tables / Generation(CHANNEL, 1).name, SMALL, share_of(SMALL, 1)
    )
    yield made
    made.close()


def test_copy_takes_no_file_before_its_first_pair(copy: LevelDbCopy) -> None:
    """One that was never begun is abandoned in peace."""
    assert (copy.source, copy.is_complete, copy.is_abandoned) == (None, False, False)
    copy.abandon()
    assert copy.is_abandoned
    assert not copy.path.exists()


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_read_back_is_bounded_by_bytes(copy: LevelDbCopy, count: int) -> None:
    """Each call ends with the pair that reaches the bytes, and the next goes on behind it."""
    copy.write(PAIRS)
    copy.finish()
    bytes_max = APPLIED_BYTES + 100 * count
    calls = 1
    while not copy.verify(bytes_max):
        digest = CopyDigest()
        digest.add(PAIRS[: copy.found()[1]])
        assert copy.found() == (digest.digest(), digest.pairs, COPIED)
        calls += 1
        assert calls < 9
    first = copy_pairs(copy, bytes_max)
    assert first == count + 1
    digest = CopyDigest()
    digest.add(PAIRS)
    assert copy.found()[:2] == (digest.digest(), 6)


def copy_pairs(copy: LevelDbCopy, bytes_max: int) -> int:
    """The pairs that the first call of another reader takes."""
    other = LevelDbCopy(CHANNEL, COPIED, copy.path, SMALL, share_of(SMALL, 1))
    other.source = copy.source
    other.verify(bytes_max)
    found = other.found()[1]
    other.source = None
    return found


@pytest.mark.parametrize("size", [0, 10, 5_000, 70_000])
@pytest.mark.parametrize("page_pairs", [1, 7, 40])
def test_digest_is_the_same_in_whatever_pages_pairs_come(size: int, page_pairs: int) -> None:
    """Other versions take it pair by pair, and receivers in other pages than senders."""
    pairs = [(b"key %d" % number, bytes([number]) * (size + number)) for number in range(40)]
    known = blake2b(digest_size=16)
    for key, value in pairs:
        known.update(struct.pack(">II", len(key), len(value)) + key + value)
    digest, again = CopyDigest(), CopyDigest()
    for first in range(0, len(pairs), page_pairs):
        page = pairs[first : first + page_pairs]
        digest.add(page)
        assert again.add_page(page) == digest_of_pairs(page)
    sizes = sum(len(key) + len(value) for key, value in pairs)
    for each in (digest, again):
        assert (each.digest(), each.pairs, each.bytes) == (known.digest(), len(pairs), sizes)


def test_thread_may_rest_while_a_large_part_is_read_back(copy: LevelDbCopy) -> None:
    """Within one call, behind each part of it but the last."""
    rests = list[int]()
    copy.write(PAIRS[:1])
    copy.write([(b"\x01%05d" % number, b"v" * READ_BYTES) for number in range(5)])
    copy.finish()
    copy.give_way = lambda: rests.append(copy.found()[1])
    assert not copy.verify(3 * READ_BYTES)
    assert (rests, copy.found()[1]) == ([2, 3], 4)
    assert copy.verify(9 * READ_BYTES)
    assert (rests, copy.found()[1:]) == ([2, 3, 5, 6], (6, COPIED))


def test_nothing_is_found_before_it_was_read_back(copy: LevelDbCopy) -> None:
    """Only bytes from the disk count, not those that were written."""
    copy.write(PAIRS)
    assert copy.found() == (CopyDigest().digest(), 0, EMPTY_HISTORY)


def test_copy_is_read_back_with_checksums_and_without_the_cache(copy: LevelDbCopy) -> None:
    """Damage must be found, and a large table must not drive out what readers need."""
    asked: list[dict[str, Any]] = []

    class Nothing:
        """An iterator of plyvel's that finds nothing, in either direction."""

        def __iter__(self) -> Any:
            return iter(())

        def prev(self) -> None:
            """Nothing is before, either."""
            raise StopIteration

    class Source:
        """A database of nothing."""

        def iterator(self, **options: Any) -> Nothing:
            """Note how it is read."""
            asked.append(options)
            return Nothing()

    copy.source = Source()
    assert copy.verify(1)
    assert copy.verify(1)
    copy.source = None
    assert asked == [{"verify_checksums": True, "fill_cache": False}] * 2


def test_directories_are_synced_before_the_copy_is_whole(copy: LevelDbCopy) -> None:
    """The names of its files, then its own name; then the file that is the switch."""
    ops = copy._ops = NotingFiles()
    copy.write(PAIRS)
    name = copy.path.name
    begun = [f"create {BEGUN_NAME}"]
    assert ops.changes[:1] == begun
    ops.changes.clear()
    copy.finish()
    assert ops.changes == [f"sync {name}/", "sync tables/"]
    assert copy.verify(1 << 20)
    copy.complete()
    assert copy.is_complete
    assert ops.changes[2] == f"create {COMPLETE_NAME}"
    assert f"sync {name}/" in ops.changes[3:]
    assert ops.opened == {}
    assert copied_position(copy.path, CHANNEL) == COPIED


@pytest.mark.parametrize("error", [None, plyvel.IOError("No space left on device")])
def test_database_that_was_filled_is_waited_for_before_it_is_closed(
    copy: LevelDbCopy, error: Exception | None
) -> None:
    """plyvel keeps all threads of the node waiting in ``close`` for as long as LevelDB writes; what
    the wait finds out is not believed, since what counts is read back."""
    copy.write(PAIRS)
    database, calls = copy.source, list[tuple[str, Any]]()

    class Noting:
        """The database, whose calls are noted."""

        def compact_range(self, **of: Any) -> None:
            """The one that other threads go on beside."""
            calls.append(("compact_range", of))
            if error is not None:
                raise error

        def close(self) -> None:
            """Close it."""
            calls.append(("close", {}))
            database.close()

    copy.source = Noting()
    copy.finish()
    assert [name for name, _ in calls] == ["compact_range", "close"]
    assert calls[0][1]["start"] > CHANNEL + PAIRS[-1][0], "nothing is merged"
    assert copy.verify(1 << 20)
    assert copy.found()[1] == len(PAIRS)


def test_copy_has_a_small_memory_table_while_it_is_filled(
    copy: LevelDbCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies come beside the tables of all channels, which have all the memory there is for them;
    from when it is opened anew the copy has the share of its channel."""
    full = copy._share = copy._share._replace(write_buffer_bytes=16 << 20)
    given = dict[str, Any]()
    for name in ("create", "open_checked"):
        real = getattr(module, name)

        def noting(
            path: Path, settings: Any, share: Any, name: str = name, real: Any = real
        ) -> Any:
            given[name] = share
            return real(path, settings, share)

        monkeypatch.setattr(module, name, noting)
    copy.write(PAIRS)
    copy.finish()
    small = full._replace(write_buffer_bytes=module.FILLING_BUFFER_BYTES_MAX)
    assert given == {"create": small, "open_checked": full}


class Broken:
    """A database of which every call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.is_closed = False

    def write_batch(self) -> Any:
        """Writing."""
        raise self._error

    def iterator(self, **_options: Any) -> Any:
        """Reading."""
        raise self._error

    def close(self) -> None:
        """Closing."""
        self.is_closed = True


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (plyvel.IOError("disk is broken"), PersistError),
        (plyvel.CorruptionError("bad block"), CorruptRecordError),
    ],
)
def test_errors_of_the_database_are_translated(
    copy: LevelDbCopy, error: Exception, ours: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4: of writing, of opening anew and of reading back."""
    copy.source = Broken(error)
    steps: list[Callable[[], object]] = [lambda: copy.write(PAIRS), lambda: copy.verify(1)]
    for step in steps:
        with pytest.raises(ours, match=str(error)) as raised:
            step()
        assert raised.value.__cause__ is error
    copy.source = None

    def refuse(*_: Any) -> Any:
        raise error

    for name, again in (("create", lambda: copy.write(PAIRS)), ("open_checked", copy.finish)):
        monkeypatch.setattr(module, name, refuse)
        with pytest.raises(ours, match=str(error)):
            again()
    assert copy.source is None


@pytest.mark.parametrize("operation", ["sync_directory", "create_file"])
def test_errors_of_the_disk_name_the_copy(copy: LevelDbCopy, operation: str) -> None:
    """The operator reads which directory and what was done."""

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    copy.write(PAIRS)
    ops: Any = copy._ops
    setattr(ops, operation, fail)
    what = "making a copied table durable"
    if operation == "create_file":
        copy.finish()
        what = "switching to a copied table"
    with pytest.raises(PersistError, match=what) as raised:
        copy.complete() if operation == "create_file" else copy.finish()
    assert str(copy.path) in str(raised.value)
    assert not copy.is_complete


def test_abandoned_copy_is_closed_and_removed(
    copy: LevelDbCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before LevelDB has let go of it, which other threads go on beside; an error names it."""
    waited: list[dict[str, bytes]] = []

    class Filled(Broken):
        """A database that LevelDB may still write files of."""

        def compact_range(self, **of: bytes) -> None:
            """Wait for that."""
            assert not self.is_closed
            waited.append(of)

    source = copy.source = Filled(plyvel.Error("no"))
    copy.path.mkdir()
    removed: list[Path] = []

    def remove(path: Path) -> None:
        assert source.is_closed
        removed.append(path)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(PersistError, match="removing a copied table") as raised:
        copy.abandon()
    assert str(copy.path) in str(raised.value)
    assert (copy.source, copy.is_abandoned, removed) == (None, True, [copy.path])
    assert len(waited) == 1
    monkeypatch.undo()
    copy.abandon()
    assert not copy.path.exists()


def test_complete_copy_is_never_removed(copy: LevelDbCopy) -> None:
    """It is the channel's table after a crash, whatever becomes of the channel here."""
    copy.write(PAIRS)
    copy.finish()
    assert copy.verify(1 << 20)
    copy.complete()
    source = copy.source
    copy.abandon()
    assert (copy.path / COMPLETE_NAME).exists()
    assert source.closed


def test_open_database_is_handed_over_once(copy: LevelDbCopy) -> None:
    """Closing the copy leaves the channel its table; one that is not complete is never read."""
    copy.write(PAIRS)
    copy.finish()
    with pytest.raises(AssertionError, match="never read"):
        copy.taken()
    assert copy.verify(1 << 20)
    copy.complete()
    source = copy.taken()
    copy.close()
    assert copy.source is None
    assert source.get(CHANNEL + PAIRS[1][0]) == PAIRS[1][1]
    source.close()


def test_closed_copy_reads_from_the_start_again(copy: LevelDbCopy) -> None:
    """A reader of a closed database would end the process."""
    copy.write(PAIRS)
    copy.finish()
    assert not copy.verify(1)
    first = copy.source
    copy.finish()
    assert first.closed
    assert copy.source is not first
    assert copy.verify(1 << 20)
